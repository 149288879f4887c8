"""Python's garbage collections as events, from either of two logs.

JSON lines of a callback in `gc.callbacks`, one a collection:
    {"type": "gc", "generation": 2, "at_s": 12.5, "duration_s": 0.31, "collected": 0, "uncollectable": 0}
or what `gc.set_debug(gc.DEBUG_STATS)` writes to standard error (CPython 3.8 to 3.13):
    gc: collecting generation 2...
    gc: done, 4 unreachable, 0 uncollectable, 0.0310s elapsed
Other lines are passed over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from feedback.observations import RuntimeEvent, Source
from feedback.readers import Unreadable, patterns
from sandboxes.results import ArmName

LONGEST = 16
"""How many of the longest collections are kept one by one."""
_BEGIN = re.compile(r"^gc: collecting generation (\d)\.\.\.")
_DONE = re.compile(r"gc: done(?:, (\d+) unreachable, (\d+) uncollectable)?, ([\d.]+)s elapsed")
_TELLING = re.compile(rb'^gc: collecting generation \d|^\{"type": ?"gc"', re.MULTILINE)


class _Collection(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    type: Literal["gc"]
    generation: Annotated[int, Field(ge=0, le=9)]
    at_s: Annotated[float, Field(allow_inf_nan=False)] | None = None
    duration_s: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    uncollectable: Annotated[int, Field(ge=0)] = 0


def fits(path: Path, head: bytes) -> bool:
    """Whether a collection stands at the beginning."""
    return bool(_TELLING.search(head))


def read(path: Path, probe: str, stage: str, arm: ArmName) -> list[RuntimeEvent]:
    """`gc_generation_N`: how many collections and their seconds together; `gc_pause`: the longest ones; `gc_window`:
    the seconds between the first and the last. Raises Unreadable for a broken JSON line, OSError."""
    counts: dict[int, tuple[int, float, int]] = {}
    longest: list[tuple[float, int, _Collection]] = []
    start_s, end_s, uncollectable = None, None, 0
    for line, one in _collections(path):
        n, total_s, first = counts.get(one.generation, (0, 0.0, line))
        counts[one.generation] = (n + 1, total_s + one.duration_s, first)
        uncollectable += one.uncollectable
        longest = sorted([*longest, (one.duration_s, line, one)], key=lambda each: -each[0])[:LONGEST]
        if one.at_s is not None:
            start_s = one.at_s if start_s is None else start_s
            end_s = one.at_s + one.duration_s

    def made(name: str, line: int, count: float, duration_s: float | None, at_s: float | None) -> RuntimeEvent:
        return RuntimeEvent(
            probe=probe, source="gc", name=name, count=count, duration_s=duration_s, at_s=at_s, arm=arm, stage=stage,
            place=Source(file=path.name, line=line),
        )  # fmt: skip

    found = [made(f"gc_generation_{g}", line, n, total_s, None) for g, (n, total_s, line) in sorted(counts.items())]
    found += [
        made("gc_pause", line, 1, seconds, None if one.at_s is None or start_s is None else one.at_s - start_s)
        for seconds, line, one in longest
    ]
    if start_s is not None and end_s is not None and end_s > start_s:
        found.append(made("gc_window", 1, 1, end_s - start_s, 0.0))
    if uncollectable:
        found.append(made("gc_uncollectable", 1, uncollectable, None, None))
    return found


def _collections(path: Path) -> Iterator[tuple[int, _Collection]]:
    generation = 0
    for number, text in patterns.lines(path):
        if text.startswith("{"):
            try:
                line = json.loads(text)
                if isinstance(line, dict) and line.get("type") == "gc":
                    yield number, _Collection.model_validate(line)
            except (ValidationError, ValueError, RecursionError) as error:
                raise Unreadable(path, number, f"not a collection: {error}") from error
        elif begin := _BEGIN.match(text):
            generation = int(begin[1])
        elif done := _DONE.search(text):
            seconds = float(done[3]) if done[3].count(".") < 2 and done[3] != "." else 0.0
            yield (
                number,
                _Collection(
                    type="gc", generation=generation, duration_s=seconds, uncollectable=int((done[2] or "0")[:9])
                ),
            )
