"""Words beside numbers."""

from __future__ import annotations


def count(number: int, noun: str) -> str:
    """`1 pair`, `3 pairs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
