"""The wire format of protocol buffers, as far as a reader of known fields needs it.

Format: https://protobuf.dev/programming-guides/encoding/. No library: the messages that are read have a dozen fields,
and the full schema of a Perfetto trace is a megabyte of generated code.
"""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5

Value = int | bytes


def varint(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned number and where it ends. Raises ValueError if it isn't all there or longer than 64 bits."""
    value = shift = 0
    while shift < 70:
        if at >= len(data):
            raise ValueError("a number is cut off")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
    raise ValueError("a number longer than 64 bits")


def fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """Number and value of each field, groups excepted. Raises ValueError where the message is malformed."""
    at, end = 0, len(data)
    while at < end:
        tag, at = varint(data, at)
        number, wire = tag >> 3, tag & 7
        if not number:
            raise ValueError("a field without a number")
        value: Value
        if wire == VARINT:
            value, at = varint(data, at)
        elif wire == LENGTH:
            size, at = varint(data, at)
            value = data[at : at + size]
            at += size
        elif wire in (FIXED64, FIXED32):
            size = 8 if wire == FIXED64 else 4
            value = int.from_bytes(data[at : at + size], "little")
            at += size
        else:
            raise ValueError(f"a field of wire type {wire}")
        if at > end:
            raise ValueError("a field is cut off")
        yield number, value


def message(data: Value | None) -> dict[int, Value]:
    """The last value of each field; empty for what is no message. Raises ValueError as `fields` does."""
    return dict(fields(data)) if isinstance(data, bytes) else {}


def number(value: Value | None, default: int = 0) -> int:
    """A varint or fixed-width field as a number."""
    return value if isinstance(value, int) else default


def signed(value: int) -> int:
    """An int64 from its unsigned form."""
    return value - (1 << 64) if value >= 1 << 63 else value


def text(value: Value | None) -> str:
    """A string field."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""
