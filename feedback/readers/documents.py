"""What readers of JSON and CSV files share: bounded loading, validation that names the place, printable text."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from feedback.observations import Scalar
from feedback.readers import Unreadable
from feedback.readers.patterns import clean

MAX_BYTES = 128 << 20
"""Of a file that is read as a whole, and of one line of a JSON-lines file."""
MAX_TEXT = 240
MAX_CASE = 32
"""Entries of a `case` that are kept."""

Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=1 << 53)]


class Fields(BaseModel):
    """A part of a foreign document: what isn't used isn't looked at."""

    model_config = ConfigDict(frozen=True, extra="ignore")


Part = TypeVar("Part", bound=Fields)


def text(path: Path) -> str:
    """The whole file. Raises Unreadable when it is too large or not UTF-8, OSError when it can't be read."""
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise Unreadable(path, 0, f"larger than {MAX_BYTES} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unreadable(path, data.count(b"\n", 0, error.start) + 1, f"not UTF-8 at byte {error.start}") from error


def document(path: Path, model: type[Part]) -> Part:
    """A file that is one JSON document. Raises Unreadable with line or place, OSError if it can't be read."""
    return valid(model, parsed(path, text(path)), path)


def parsed(path: Path, said: str, line: int = 0) -> Any:
    """What JSON says. Raises Unreadable at `line`, or at the line of the error where `line` is 0."""
    try:
        return json.loads(said)
    except json.JSONDecodeError as error:
        raise Unreadable(path, line or error.lineno, f"not JSON: {error.msg} (column {error.colno})") from error
    except (ValueError, RecursionError) as error:
        raise Unreadable(path, line, f"not JSON: {error}") from error


def lines(path: Path, max_bytes: int = MAX_BYTES) -> Iterator[tuple[int, Any]]:
    """Numbered values of a JSON-lines file; empty lines are skipped. Raises Unreadable with the line."""
    with path.open("rb") as file:
        number = 0
        while data := file.readline(max_bytes + 1):
            number += 1
            if len(data) > max_bytes:
                raise Unreadable(path, number, f"longer than {max_bytes} bytes")
            try:
                said = data.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            except UnicodeDecodeError as error:
                raise Unreadable(path, number, f"not UTF-8 at byte {error.start}") from error
            if said:
                yield number, parsed(path, said, number)


def rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Numbered rows of a CSV file; empty ones are skipped. Raises Unreadable."""
    reader = csv.reader(io.StringIO(text(path), newline=""))
    try:
        for row in reader:
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        raise Unreadable(path, reader.line_num, f"not CSV: {error}") from error


def valid(model: type[Part], value: Any, path: Path, line: int = 0) -> Part:
    """`value` as a model. Raises Unreadable that names the first wrong place inside it."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = "/".join(shown(part, 60) for part in first["loc"]) or "the document"
        raise Unreadable(path, line, f"{place}: {first['msg']}") from error


def shown(value: object, limit: int = MAX_TEXT) -> str:
    """Foreign text or a number on one line, printable and cut; nothing for anything else."""
    said = value if isinstance(value, str) else str(value) if isinstance(value, int | float) else ""
    return " ".join(clean(said[: 8 * limit]).split())[:limit]


def scalars(values: Mapping[Any, Any], skip: Sequence[str] = ()) -> dict[str, Scalar]:
    """What can stand in a `case`: the plain values, with printable names; others are left out."""
    found: dict[str, Scalar] = {}
    for name, value in values.items():
        if name in skip or len(found) == MAX_CASE:
            continue
        if isinstance(value, bool) or (isinstance(value, int) and abs(value) < 1 << 63):
            found[shown(name, 60)] = value
        elif isinstance(value, float):
            found[shown(name, 60)] = value if math.isfinite(value) else str(value)
        elif isinstance(value, str):
            found[shown(name, 60)] = shown(value)
    return found


def has(head: bytes, *words: bytes) -> bool:
    """Whether the beginning of a file names all these keys."""
    return all(b'"' + word + b'"' in head for word in words)


def first_object(head: bytes) -> dict[str, Any]:
    """The JSON object on the first line of a file; empty when there is none."""
    try:
        value = json.loads(head.lstrip(b"\xef\xbb\xbf \t\r\n").split(b"\n", 1)[0])
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
