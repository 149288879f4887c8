"""Values of a TOML text: on which line one stands, so that an error can name it, and which fit nowhere."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator
from typing import Any

Place = tuple[int | str, ...]
"""Keys and positions that lead to a value."""
LARGEST_INTEGER = 2**63 - 1
"""What every TOML reader must take."""
_NAME = re.compile(r"\"[^\"]*\"|'[^']*'|[\w-]+")
_PATH = rf"(?P<path>(?:{_NAME.pattern})(?:\s*\.\s*(?:{_NAME.pattern}))*)"
_HEADER = re.compile(rf"^\s*(?P<open>\[\[?)\s*{_PATH}\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(rf"^\s*{_PATH}\s*=")


def line_of(text: str, loc: tuple[int | str, ...]) -> int | None:
    """The line (from 1) on which the value at `loc` stands, or of the nearest key or table around it; None if
    nothing of it stands anywhere."""
    places = list(_places(text))
    found: tuple[int | str, ...] = ()
    line = None
    for part in loc:
        wanted = (*found, part)
        number = next((n for n, place in places if place[: len(wanted)] == wanted), None)
        if number is not None:
            found, line = wanted, number
    return line


def _places(text: str) -> Iterator[tuple[int, tuple[int | str, ...]]]:
    """Numbered lines of a valid TOML text that begin a table or a key, with the full path of what they begin."""
    table: tuple[int | str, ...] = ()
    counts: dict[tuple[int | str, ...], int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if match := _HEADER.match(line):
            names = _names(match["path"])
            is_array = match["open"] == "[["
            table = ()
            for name in names[:-1]:
                table = (*table, name)
                if table in counts:
                    table = (*table, counts[table])
            table = (*table, names[-1])
            if is_array:
                counts[table] = counts.get(table, -1) + 1
                table = (*table, counts[table])
            yield number, table
        elif match := _KEY.match(line):
            yield number, (*table, *_names(match["path"]))


def _names(path: str) -> list[str]:
    return [name.strip().strip("\"'") for name in _NAME.findall(path)]


def unfit(value: Any, place: Place) -> Iterator[tuple[Place, str]]:
    """What TOML can say and no part of a target can hold."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from unfit(key, (*place, key))
            yield from unfit(inner, (*place, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from unfit(inner, (*place, number))
    elif isinstance(value, str):
        if bad := next((c for c in value if unicodedata.category(c) == "Cc" and c not in "\n\t"), None):
            yield place, f"control character {bad!r}; text may hold no others than line ends and tabs"
    elif isinstance(value, float) and not math.isfinite(value):
        yield place, f"{value} is not a finite number"
    elif isinstance(value, int) and abs(value) > LARGEST_INTEGER:
        yield place, "does not fit 64 bits"
    elif not isinstance(value, int | float):
        yield place, "dates and times are not used here; put it in quotes"
