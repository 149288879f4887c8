"""Text logs through a table of patterns that is data: what a line stands for, counted over a file.

A table (TOML beside the reader that uses it) holds `[[event]]` (a line that stands for an event), `[[stat]]` (a
periodic line with numbers: gauges become samples over time, sums become totals), `[[setting]]` (a launch parameter
that the program says it runs with), `[[ignore]]`, `[[skip]]`, and `[[engine]]`: how a program's lines begin, by what
it is recognised, when it is ready and when it serves. Patterns are Python's regular expressions and are searched in a
line without its prefix, colours and control characters; the first event that fits takes the line. A pattern bounds
what it leaves open (`.{0,300}`, not `.*`): a hostile line must not cost the square of its length.

Logs are untrusted: lines are read one at a time and cut, only counts, a bounded number of samples and one line a
kind are kept.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from feedback.readers.literals import Screened
from feedback.wording import printable

MAX_LINE_BYTES = 1 << 14
"""vLLM prints its whole configuration in one line of some 5,000 characters."""
MAX_MESSAGE = 240

Level = Literal["error", "warning", "note"]

_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b.?")


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Event(_Row):
    """A kind of line. A group `what` in the pattern tells apart several of a kind, such as functions."""

    name: str
    level: Level
    pattern: str
    message: str
    explain: bool = False
    """Whether the line itself goes into the message."""
    engine: str = ""
    """The only program that says so; empty for any."""
    compiles: bool = False
    """Whether it is expected before the first request and costs latency after it."""
    amount: str = ""
    """Where the line says how many it stands for."""


class Stat(_Row):
    """A line that is printed again and again with numbers in it, each with a pattern of its own."""

    trigger: str
    engine: str = ""
    gauges: dict[str, str] = {}
    sums: dict[str, str] = {}
    scale: dict[str, float] = {}
    """What a number is multiplied with: 0.01 makes a share of percent."""


class Setting(_Row):
    """A launch parameter in effect, under the name of the program that says so."""

    name: str
    knob: str
    pattern: str
    engine: str = ""


class Engine(_Row):
    """How one program's log looks."""

    name: str
    mark: str
    """What only its lines look like."""
    prefix: str
    """What stands before the message; groups `clock` and `level`."""
    clock: Literal["stopwatch", "date", "day"]
    ready: str
    request: str
    """A request is served, or was."""


class Ignored(_Row):
    """A line of a warning's level that says nothing of interest."""

    pattern: str


class Skipped(_Row):
    """A line that is frequent and stands for nothing: it is known by its beginning, before all else is tried."""

    pattern: str


class Table(_Row):
    """A whole table as it stands in the file."""

    event: tuple[Event, ...]
    stat: tuple[Stat, ...] = ()
    setting: tuple[Setting, ...] = ()
    ignore: tuple[Ignored, ...] = ()
    skip: tuple[Skipped, ...] = ()
    engine: tuple[Engine, ...] = ()


class Patterns:
    """The rows of a table that concern one program (all of them for the empty name), ready to search."""

    def __init__(self, table: Table, engine: str = "") -> None:
        def mine(row: Event | Stat | Setting) -> bool:
            return not engine or row.engine in ("", engine)

        events = [row for row in table.event if mine(row)]
        stats = [row for row in table.stat if mine(row)]
        self.any = Screened([row.pattern for row in events])
        """Fits whatever one of the events fits: most lines are none."""
        self.events = [(re.compile(row.pattern), row) for row in events]
        self.ignored = Screened([row.pattern for row in table.ignore])
        self.skip = re.compile("|".join(row.pattern for row in table.skip) or r"(?!)")
        self.trigger = Screened([row.trigger for row in stats])
        self.stats = [(re.compile(row.trigger), row) for row in stats]
        settings = [row for row in table.setting if mine(row)]
        self.sets = Screened([row.pattern for row in settings])
        self.settings = [(re.compile(row.pattern), row) for row in settings]
        self.engines = [row for row in table.engine if not engine or row.name == engine]
        self.prefixes = [(re.compile(row.prefix), row.clock) for row in self.engines]
        self.ready = Screened([row.ready for row in self.engines])
        self.request = Screened([row.request for row in self.engines])

    def classify(self, said: str, level: str) -> Event | None:
        """The event that a line without its prefix stands for; None for any other line."""
        if self.any.fits(said):
            return next(row for pattern, row in self.events if pattern.search(said))
        other = OTHERS.get(level[:1])
        return other if other and not self.ignored.fits(said) else None

    def take_apart(self, text: str) -> Said:
        """A line's message, its level and when it was said."""
        for prefix, clock in self.prefixes:
            if (found := prefix.match(text)) and found.end():
                groups = found.groupdict()
                return Said(text[found.end() :], groups["level"] or "", groups["clock"] or "", clock)
        return Said(text, "")


class Said(NamedTuple):
    """A line, taken apart."""

    text: str
    level: str
    stamp: str = ""
    clock: str = ""

    @property
    def at_s(self) -> float | None:
        """Seconds on the program's own clock; few lines are asked for it, and to read it costs as much as the rest."""
        return _seconds(self.stamp, self.clock)


OTHERS: dict[str, Event] = {
    "E": Event(name="engine_error", level="error", pattern="", message="the engine said", explain=True),
    "C": Event(name="engine_error", level="error", pattern="", message="the engine said", explain=True),
    "W": Event(name="engine_warning", level="warning", pattern="", message="the engine said", explain=True),
}
"""What a line is when no pattern takes it, by the first letter of its level."""


@lru_cache(maxsize=8)
def table(name: str) -> Table:
    """The table of that name (without `.toml`)."""
    return Table.model_validate(tomllib.loads(files(__package__).joinpath(f"{name}.toml").read_text(encoding="utf-8")))


@lru_cache(maxsize=16)
def patterns(name: str, engine: str = "") -> Patterns:
    """The patterns of a table for one program, or for all of them."""
    return Patterns(table(name), engine)


@lru_cache(maxsize=8)
def _marks(name: str) -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((row.name, re.compile(row.mark)) for row in table(name).engine)


def engine_of(name: str, text: str) -> str:
    """Which program of a table a line is of; empty if it doesn't show."""
    return next((engine for engine, mark in _marks(name) if mark.search(text)), "")


def engine_in(name: str, head: bytes) -> str:
    """The same of the first bytes of a file."""
    lines = (clean(line) for line in head.decode("utf-8", "replace").splitlines())
    return next((engine for line in lines if (engine := engine_of(name, line))), "")


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines without colours and control characters. Raises OSError."""
    with path.open("rb") as file:
        for number, line in enumerate(_lines(file), 1):
            yield number, " ".join(clean(line.rstrip("\r\n")).split())


def clean(text: str) -> str:
    """Text without terminal escapes, and with a blank for each character that can't be printed."""
    return text if text.isprintable() else printable(_ESCAPES.sub("", text))


def _lines(file: BinaryIO) -> Iterator[str]:
    """Decoded lines; of a long one only its beginning, the rest is skipped without being kept."""
    while chunk := file.readline(MAX_LINE_BYTES):
        yield chunk.decode("utf-8", "replace")
        while not chunk.endswith(b"\n") and len(chunk) == MAX_LINE_BYTES:
            chunk = file.readline(MAX_LINE_BYTES)


def _seconds(clock: str, kind: str) -> float | None:
    """Seconds of a time stamp: `0.10.614.234` is minutes, seconds, milli- and microseconds; a `day` has no year."""
    if not clock:
        return None
    parts = [int(part) for part in re.findall(r"\d{1,9}", clock)]
    try:
        if kind == "stopwatch":
            minutes, seconds, milliseconds, microseconds = parts
            return minutes * 60 + seconds + milliseconds / 1e3 + microseconds / 1e6
        year, *rest = parts if kind == "date" else (2000, *parts)
        return datetime(year, *rest[:5], tzinfo=UTC).timestamp()  # type: ignore[arg-type,misc]
    except (ValueError, TypeError, OverflowError):
        return None
