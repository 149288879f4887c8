"""Files that may be gzipped, read as a stream; one that is cut off gives what is there."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

GZIP = b"\x1f\x8b"
_RAW_BYTES = 1 << 17


class Stream(Protocol):
    """What can be read from, a piece at a time."""

    damage: str
    """What ended the stream before its time; empty if nothing did. Known once `read` gave nothing."""

    def read(self, size: int, /) -> bytes: ...


class _Plain:
    damage = ""

    def __init__(self, file: BinaryIO) -> None:
        self.read = file.read


class _Gunzip:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._member = zlib.decompressobj(wbits=31)
        self._waiting = b""
        self.damage = ""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; none at the end, or where the compressed data is damaged."""
        while not self.damage:
            raw = self._waiting or self._file.read(_RAW_BYTES)
            if self._member.eof:
                if not raw:
                    return b""
                self._member = zlib.decompressobj(wbits=31)
            if not raw:
                self.damage = "the compressed data is cut off"
                break
            try:
                data = self._member.decompress(raw, size)
            except zlib.error as error:
                self.damage = f"the compressed data is damaged: {error}"
                break
            self._waiting = self._member.unconsumed_tail or self._member.unused_data
            if data:
                return data
        return b""


@contextmanager
def stream(path: Path) -> Iterator[Stream]:
    """The file's content, decompressed if it is gzipped. Raises OSError if it can't be read."""
    with path.open("rb") as file:
        head = file.read(2)
        file.seek(0)
        yield _Gunzip(file) if head == GZIP else _Plain(file)


def start(head: bytes, size: int = 1 << 16) -> bytes:
    """The beginning of the content, from the beginning of the file."""
    if not head.startswith(GZIP):
        return head
    try:
        return zlib.decompressobj(wbits=31).decompress(head, size)
    except zlib.error:
        return b""
