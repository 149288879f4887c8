"""Keep the beginning and the end of a stream in bounded memory, and optionally all of it in a file."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

HEAD_BYTES = 64 << 10
TAIL_BYTES = 64 << 10


class Capture:
    """What one stream said: head and tail, with a mark where something was left out."""

    def __init__(self, head_bytes: int = HEAD_BYTES, tail_bytes: int = TAIL_BYTES) -> None:
        self.total_bytes = 0
        self._head_bytes, self._tail_bytes = head_bytes, tail_bytes
        self._head, self._tail = bytearray(), bytearray()

    def add(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        self.total_bytes += len(data)
        room = self._head_bytes - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        # Cut only when it has doubled, so that a flood does not move the tail with every read.
        if len(self._tail) > 2 * self._tail_bytes:
            del self._tail[: -self._tail_bytes]

    def text(self) -> str:
        """Head and tail decoded as UTF-8, undecodable bytes replaced."""
        tail = self._tail[-self._tail_bytes :]
        left_out = self.total_bytes - len(self._head) - len(tail)
        if left_out == 0:
            return (self._head + tail).decode("utf-8", "replace")
        mark = f"\n[... {left_out} bytes left out ...]\n"
        return self._head.decode("utf-8", "replace") + mark + tail.decode("utf-8", "replace")


class Log:
    """A file on the host that receives a copy of the streams, up to a limit. None as path writes nothing."""

    def __init__(self, path: Path | None, limit_bytes: int) -> None:
        """Raises OSError if the file cannot be opened for appending."""
        self._file: BinaryIO | None = path.open("ab", buffering=0) if path is not None else None
        self._left_bytes = limit_bytes

    def add(self, data: bytes) -> None:
        """Append, dropping what exceeds the limit."""
        if self._file is not None and self._left_bytes > 0:
            self._file.write(data[: self._left_bytes])
            self._left_bytes -= len(data)

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        if self._file is not None:
            self._file.close()
