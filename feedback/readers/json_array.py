"""The elements of one long array in a JSON file of any size, a batch at a time.

A JSON parser wants the whole text. Here the file is read in chunks, each cut where an element ends. Where that is,
is first guessed (`}, {`) and the guess is proven by parsing: a text that begins at an element and, closed with `]`,
is an array, was cut between two elements. When the guess fails, quotes and brackets are counted instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np

from feedback.readers import Unreadable
from feedback.readers.compressed import Stream
from feedback.spans import Ints

CHUNK_BYTES = 1 << 20
MAX_ELEMENT_BYTES = 16 << 20
"""A longer element is not kept in memory: the file is refused."""
MAX_MEMBER_BYTES = 64 << 20
"""A longer value beside the array ends the reading."""
MAX_KEPT_BYTES = 1 << 20
"""Values beside the array are kept up to this length."""
MAX_MEMBERS = 1000

_BOUNDARY = re.compile(rb"\}\s*,\s*(?=\{)")
_BLANK = re.compile(rb"[\s,]*")
_KEY = re.compile(rb'[\s,]*"((?:[^"\\]|\\.)*)"\s*:\s*(?=\S)', re.DOTALL)
_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_SCALAR_END = re.compile(rb"[\s,\]}]")
_GUESS_BYTES = 1 << 14

T = TypeVar("T")


class Elements(Generic[T]):
    """Iterates over batches of the elements of `key` in the file's object, or of the file's array.

    `decode` parses the text of an array; `lenient` one element that `decode` refused, or gives None. What can't be read
    is counted in `lost`. Raises Unreadable when the file is neither an object with such an array nor an array.
    """

    def __init__(
        self,
        file: Stream,
        path: Path,
        key: str,
        decode: Callable[[bytes], list[T]],
        lenient: Callable[[Any], T | None],
    ) -> None:
        self._file, self._path, self._key = file, path, key
        self._decode, self._lenient = decode, lenient
        self._buffer = b""
        self._read_bytes = 0
        self._ended = False
        self.members: dict[str, Any] = {}
        """What stands beside the array in the file's object."""
        self.lost = 0
        self.complete = False
        """Whether the array was closed; a Chrome trace may leave it open."""

    def __iter__(self) -> Iterator[list[T]]:
        self._more()
        self._buffer = self._buffer.removeprefix(b"\xef\xbb\xbf").lstrip()
        while not self._buffer and not self._ended:
            self._more()
            self._buffer = self._buffer.lstrip()
        opening, self._buffer = self._buffer[:1], self._buffer[1:]
        if opening == b"[":
            yield from self._array()
        elif opening == b"{":
            yield from self._object()
        else:
            raise self._unreadable("neither a JSON object nor an array")

    def _unreadable(self, reason: str) -> Unreadable:
        return Unreadable(self._path, 0, f"before byte {self._read_bytes} (decompressed): {reason}")

    def _more(self, at_least: int = 0) -> None:
        chunk = self._file.read(max(CHUNK_BYTES, at_least))
        self._ended = not chunk
        self._read_bytes += len(chunk)
        self._buffer += chunk

    def _object(self) -> Iterator[list[T]]:
        found = False
        while (key := self._next_key()) is not None:
            if key == self._key and self._buffer[:1] == b"[":
                found = True
                self._buffer = self._buffer[1:]
                yield from self._array()
                continue
            value = self._value()
            if value is not None and len(self.members) < MAX_MEMBERS:
                self.members[key] = value
        if not found:
            raise self._unreadable(f"no array `{self._key}`")

    def _next_key(self) -> str | None:
        while (match := _KEY.match(self._buffer)) is None:
            rest = self._buffer.lstrip(b" \t\r\n,")
            if self._ended or (rest and rest[:1] != b'"') or len(rest) > MAX_MEMBER_BYTES:
                return None
            self._more(len(rest))
        self._buffer = self._buffer[match.end() :]
        return match[1].decode("utf-8", "replace")

    def _value(self) -> Any:
        """The value that the buffer begins with; None if it is broken. Leaves what follows it."""
        while (end := _value_end(self._buffer)) is None:
            if self._ended or len(self._buffer) > MAX_MEMBER_BYTES:
                self._buffer, self._ended = b"", True  # nothing behind it can be found
                return None
            self._more(len(self._buffer))
        text, self._buffer = self._buffer[:end], self._buffer[end:]
        return _parse(text) if len(text) <= MAX_KEPT_BYTES else None

    def _array(self) -> Iterator[list[T]]:
        while True:
            self._more()
            if self._buffer[:1] != b"{":
                self._buffer = self._buffer.lstrip(b" \t\r\n,")
            batch = self._guessed() if not self._ended else None
            if batch is None:
                batch, closed = self._counted()
                if closed:
                    self.complete = True
                    if batch:
                        yield batch
                    return
            if batch:
                yield batch
            if self._ended:
                self.lost += bool(self._buffer.strip(b" \t\r\n,"))
                self._buffer = b""
                return
            if len(self._buffer) > MAX_ELEMENT_BYTES:
                raise self._unreadable(f"an element longer than {MAX_ELEMENT_BYTES >> 20} MiB, or an open string")

    def _guessed(self) -> list[T] | None:
        """The elements up to the last likely boundary; None if it is none."""
        window = max(0, len(self._buffer) - _GUESS_BYTES)
        last = None
        for last in _BOUNDARY.finditer(self._buffer, window):  # noqa: B007
            pass
        if last is None:
            return None
        try:
            batch = self._decode(b"[" + self._buffer[: last.start() + 1] + b"]")
        except (msgspec.DecodeError, RecursionError):
            return None
        self._buffer = self._buffer[last.end() :]
        return batch

    def _counted(self) -> tuple[list[T], bool]:
        """The complete elements in the buffer by counting brackets, and whether the array ends after them."""
        starts, ends, close = _elements(self._buffer)
        used = close + 1 if close is not None else ends[-1] + 1 if ends else 0
        text = self._buffer[: close if close is not None else used]
        self._buffer = self._buffer[used:]
        batch: list[T] = []
        try:
            batch = self._decode(b"[" + text + b"]") if text.strip() else []
        except (msgspec.DecodeError, RecursionError):
            batch = [
                element for start, end in zip(starts, ends, strict=True) for element in self._one(text[start : end + 1])
            ]
            self.lost += _junk(text, starts, ends)
        return batch, close is not None

    def _one(self, text: bytes) -> list[T]:
        try:
            return self._decode(b"[" + text + b"]")
        except (msgspec.DecodeError, RecursionError):
            value = _parse(text)
        element = None if value is None else self._lenient(value)
        self.lost += element is None
        return [] if element is None else [element]


def _parse(text: bytes) -> Any:
    """Any JSON value, and what Python's writer adds to JSON (NaN, Infinity, lone surrogates); None if it is none."""
    try:
        return json.loads(text.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


def brackets(text: bytes) -> tuple[Ints, Ints]:
    """Positions of all brackets outside strings, and +1 or -1 for each."""
    if b"\\" in text:
        text = _ESCAPED.sub(b"__", text)
    codes = np.frombuffer(text, dtype=np.uint8)
    folded = codes | 32  # makes [ and { one, and ] and }
    at = np.flatnonzero((codes == ord('"')) | (folded == ord("{")) | (folded == ord("}")))
    is_quote = codes[at] == ord('"')
    inside = np.cumsum(is_quote) & 1
    outside = ~is_quote & (inside == 0)
    positions = at[outside]
    return positions, np.where(folded[positions] == ord("{"), 1, -1)


def _elements(text: bytes) -> tuple[list[int], list[int], int | None]:
    """First and last position of each complete bracketed element, and of the array's closing bracket, if it is here."""
    positions, steps = brackets(text)
    depth = np.cumsum(steps)
    below = np.flatnonzero(depth < 0)
    close = int(positions[below[0]]) if len(below) else None
    if len(below):
        positions, steps, depth = positions[: below[0]], steps[: below[0]], depth[: below[0]]
    ends = positions[(depth == 0) & (steps < 0)].tolist()
    starts = positions[(depth == 1) & (steps > 0)].tolist()
    return starts[: len(ends)], ends, close


def _junk(text: bytes, starts: list[int], ends: list[int]) -> int:
    """How many stretches between elements hold anything but blanks and commas."""
    gaps = zip([0, *(end + 1 for end in ends)], [*starts, len(text)], strict=True)
    return sum(bool(_BLANK.sub(b"", text[start:end])) for start, end in gaps)


def _value_end(text: bytes) -> int | None:
    """Where the JSON value that the text begins with ends; None if it is not all here."""
    if text[:1] in (b"{", b"["):
        positions, steps = brackets(text)
        closed = np.flatnonzero(np.cumsum(steps) <= 0)
        return int(positions[closed[0]]) + 1 if len(closed) else None
    if text[:1] == b'"':
        end = _ESCAPED.sub(b"__", text).find(b'"', 1)
        return end + 1 if end > 0 else None
    scalar = _SCALAR_END.search(text)
    return scalar.start() if scalar else None
