"""Counters that the Linux kernel keeps of a control group: throttling, OOM kills, page faults, stalls.

A file is one of the kernel's own (`cpu.stat`, `memory.events`, `memory.stat`, `cpu.pressure`, ...; version 2 or 1,
or /proc/pressure), or several with a line `==> NAME <==` above each, as `tail -n +1 cpu.stat memory.events` prints
them. When a name stands there twice, before and after a run, the difference counts. Which values are read stands in
`cgroup.toml`. Format: Documentation/admin-guide/cgroup-v2.rst and accounting/psi.rst of Linux 6.
"""

from __future__ import annotations

import math
import re
import tomllib
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from feedback.observations import RuntimeEvent, Source
from feedback.readers import Unreadable, patterns
from sandboxes.results import ArmName

_HEADER = re.compile(r"^==> (?:.*/)?([\w.]+) <==$")
_HEADERS = re.compile(rb"^==> (?:[^\n]*/)?(?:cpu|memory|io)\.\w+ <==$", re.MULTILINE)
_FIRST = re.compile(
    rb"\A(?:usage_usec \d+\n|nr_periods \d+\n|low \d+\nhigh \d+\n|anon \d+\nfile \d+\n|cache \d+\nrss \d+\n"
    rb"|oom_kill_disable \d\n|some avg10=)"
)
MAX_LINES = 100_000


class _Counter(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    file: str
    key: str
    scale: float = 1.0
    gauge: bool = False


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    counter: tuple[_Counter, ...]


def fits(path: Path, head: bytes) -> bool:
    """Whether the file begins as one of the kernel's does, or holds several of them."""
    return bool(_FIRST.match(head) or _HEADERS.search(head))


def read(path: Path, probe: str, stage: str, arm: ArmName) -> list[RuntimeEvent]:
    """Counters (since the group's beginning, or the difference of two readings) and the last state of gauges.

    Raises Unreadable with the line where a counter has no number, OSError.
    """
    seen: dict[tuple[str, str], list[tuple[float, int]]] = {}
    for line, file, key, value in _values(path):
        both = seen.setdefault((file, key), [])
        both[1:] = [(value, line)]
    found = {}
    for row in _table():
        if values := seen.get((row.file, row.key)):
            value, line = values[-1]
            if len(values) > 1 and not row.gauge:
                value = max(0.0, value - values[0][0])
            found[row.name] = RuntimeEvent(
                probe=probe, source="cgroup", name=row.name, count=value * row.scale, arm=arm, stage=stage,
                message="between two readings" if len(values) > 1 and not row.gauge else "",
                place=Source(file=path.name, line=line, query=f"{row.file} {row.key}".strip()),
            )  # fmt: skip
    return list(found.values())


def _values(path: Path) -> list[tuple[int, str, str, float]]:
    """Line, file, key and value of everything that the table names."""
    wanted = {(row.file, row.key) for row in _table()}
    file = path.name
    found = []
    for number, text in patterns.lines(path):
        if number > MAX_LINES:
            raise Unreadable(path, number, f"more than {MAX_LINES} lines: not the kernel's")
        if header := _HEADER.match(text):
            file = header[1]
            continue
        name = file if any(file == each for each, _ in wanted) else _file_of(text, file)
        for key, value in _pairs(text):
            if (name, key) in wanted:
                try:
                    amount = float(value)
                except ValueError:
                    amount = math.nan
                if not (math.isfinite(amount) and amount >= 0):
                    raise Unreadable(path, number, f"{key or name} is no number: {value[:40]}")
                found.append((number, name, key, amount))
    return found


def _pairs(text: str) -> list[tuple[str, str]]:
    """Keys and values of a line: `some avg10=0.5 total=9`, `oom_kill 1`, or a number alone."""
    words = text.split()
    if len(words) > 1 and "=" in words[1]:
        return [(f"{words[0]} {key}", value) for key, _, value in (word.partition("=") for word in words[1:])]
    if len(words) == 2:
        return [(words[0], words[1])]
    return [("", words[0])] if len(words) == 1 else []


def _file_of(text: str, file: str) -> str:
    """The kernel's name of a file that was renamed, by the keys in it; pressure files don't show which they are."""
    key = text.partition(" ")[0]
    if key in ("some", "full"):
        return next((f"{what}.pressure" for what in ("memory", "io", "cpu") if what in file), file)
    return {row.key: row.file for row in _table()}.get(key, file)


@lru_cache(maxsize=1)
def _table() -> tuple[_Counter, ...]:
    text = files(__package__).joinpath("cgroup.toml").read_text(encoding="utf-8")
    return _Table.model_validate(tomllib.loads(text)).counter
