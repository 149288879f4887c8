"""Text that others wrote, made safe to show; words beside numbers."""

from __future__ import annotations


def printable(text: str) -> str:
    """Text with a blank for each character that can't be printed."""
    return "".join(c if c.isprintable() else " " for c in text)


def plain(text: str) -> str:
    """Text in which nothing steers a terminal or a build log: names of kernels, threads and files are not ours."""
    return printable(text).replace("##[", "## [")


def one_line(text: str) -> str:
    """The same on one line."""
    return " ".join(plain(text).split())


def short(text: str, limit: int) -> str:
    """The same on one line, cut at `limit` characters."""
    return cut(one_line(text), limit)


def cut(line: str, limit: int) -> str:
    """A line as it is if it has at most `limit` characters, else its beginning and an ellipsis."""
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def count(number: int, noun: str) -> str:
    """`1 pair`, `3 pairs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
