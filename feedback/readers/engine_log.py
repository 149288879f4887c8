"""The log of an inference server as events: a table of patterns that is data, counted over the file.

The log is the candidate's and untrusted: lines are read one at a time and cut, colours and control characters
go, and only counts and one line a kind are kept. What is looked for stands in `engine_log.toml`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from feedback.observations import RuntimeEvent
from sandboxes.results import ArmName

MAX_LINE_BYTES = 4096
MAX_MESSAGE = 240

Level = Literal["error", "warning", "note"]

_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b.?")
_PREFIX = re.compile(r"^(?:[\d.]+ )?(?:([EWID]) )?")
"""llama.cpp's time stamp and level letter."""


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    level: Level
    pattern: str
    message: str
    explain: bool = False


class _Ignored(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    pattern: str


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    event: tuple[_Event, ...]
    ignore: tuple[_Ignored, ...] = ()


class Patterns(NamedTuple):
    """The table, ready to search."""

    any: re.Pattern[str]
    """Fits whatever one of the events fits: most lines are none."""
    events: tuple[tuple[re.Pattern[str], _Event], ...]
    ignored: re.Pattern[str]


OTHERS: dict[str, _Event] = {
    "E": _Event(name="engine_error", level="error", pattern="", message="the engine said", explain=True),
    "W": _Event(name="engine_warning", level="warning", pattern="", message="the engine said", explain=True),
}
"""What a line of the engine's level E or W is when no pattern takes it."""


def read(path: Path, probe: str, stage: str, arm: ArmName) -> list[RuntimeEvent]:
    """One event a kind, counted over the file, with the first line of the kinds that need explaining.

    Raises OSError if the file can't be read; whatever it holds is readable.
    """
    counts: dict[str, int] = {}
    first: dict[str, tuple[_Event, str]] = {}
    with path.open("rb") as file:
        for line in _lines(file):
            found = classify(line)
            if found is not None:
                event, said = found
                counts[event.name] = counts.get(event.name, 0) + 1
                first.setdefault(event.name, (event, said))
    return [
        RuntimeEvent(
            probe=probe,
            source="engine_log",
            name=name,
            level=event.level,
            message=f"{event.message}: {said}" if event.explain else event.message,
            count=counts[name],
            arm=arm,
            stage=stage,
        )
        for name, (event, said) in first.items()
    ]


def classify(line: str) -> tuple[_Event, str] | None:
    """The event that a line stands for, and the line without its prefix; None for any other line."""
    patterns = _patterns()
    text = " ".join(clean(line).split())
    prefix = _PREFIX.match(text)
    level = prefix[1] if prefix else None
    said = text[prefix.end() if prefix else 0 :]
    if patterns.any.search(said):
        return next(event for pattern, event in patterns.events if pattern.search(said)), said[:MAX_MESSAGE]
    if level in OTHERS and not patterns.ignored.search(said):
        return OTHERS[level], said[:MAX_MESSAGE]
    return None


def clean(text: str) -> str:
    """Text without terminal escapes, and with a blank for each character that can't be printed."""
    return "".join(c if c.isprintable() else " " for c in _ESCAPES.sub("", text))


def _lines(file: BinaryIO) -> Iterator[str]:
    """Decoded lines; of a long one only its beginning, the rest is skipped without being kept."""
    while chunk := file.readline(MAX_LINE_BYTES):
        yield chunk.decode("utf-8", "replace")
        while not chunk.endswith(b"\n") and len(chunk) == MAX_LINE_BYTES:
            chunk = file.readline(MAX_LINE_BYTES)


@lru_cache(maxsize=1)
def _patterns() -> Patterns:
    table = _Table.model_validate(
        tomllib.loads(files(__package__).joinpath("engine_log.toml").read_text(encoding="utf-8"))
    )
    return Patterns(
        any=_either([event.pattern for event in table.event]),
        events=tuple((re.compile(event.pattern), event) for event in table.event),
        ignored=_either([line.pattern for line in table.ignore]),
    )


def _either(patterns: list[str]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns) or r"(?!)")
