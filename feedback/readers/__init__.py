"""Readers, one file a format: each turns a file of a run into observations or says where it is unreadable."""

from __future__ import annotations

from pathlib import Path


class Unreadable(ValueError):
    """A file of a run is truncated or malformed."""

    def __init__(self, path: Path, line: int, reason: str) -> None:
        super().__init__(f"{path.name}, line {line}: {reason}"[:500])
        self.path = path
        self.line = line
        """Counted from 1; 0 stands for the file as a whole."""
        self.reason = reason
