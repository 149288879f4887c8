"""Intervals collected from a file, a batch at a time, into the columns of Spans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from feedback.readers.patterns import clean
from feedback.spans import Instant, Ints, Spans, Track
from sandboxes.results import ArmName

MAX_NAMES = 100_000
"""Distinct names (or categories) that are kept; further ones become one."""
MAX_NAME = 1024
MAX_TRACKS = 20_000
MAX_INSTANTS = 100_000
LATEST_NS = 1 << 62
"""Times are below this; a later one is not a time."""

OTHERS = "(others)"


def text_of(value: object) -> str:
    """A name as text that can be printed, cut to MAX_NAME characters."""
    return clean(str(value)[:MAX_NAME]).strip()


def short(key: Any) -> Any:
    """A key that a file made up, its texts cut to MAX_NAME characters."""
    if isinstance(key, tuple):
        return tuple(short(part) for part in key)
    return key[:MAX_NAME] if isinstance(key, str) else key


class Numbering(dict[Any, int]):
    """A number for each distinct value that is looked up, from 0; values beyond `limit` share the last one."""

    def __init__(self, limit: int, shown: Callable[[Any], Any]) -> None:
        super().__init__()
        self.distinct: dict[Any, int] = {}
        """The values as `shown` gives them, in the order of their numbers."""
        self._limit, self._shown = limit, shown

    def __missing__(self, key: Any) -> int:
        value = self._shown(key)
        number = self.distinct.get(value)
        if number is None:
            if len(self.distinct) >= self._limit:
                return self.distinct.setdefault(OTHERS, len(self.distinct))
            number = self.distinct[value] = len(self.distinct)
        if len(self) < 2 * self._limit and short(key) == key:
            self[key] = number
        return number


@dataclass
class Columns:
    """Parts of columns, appended batch by batch, and what is known of the tracks."""

    names: Numbering = field(default_factory=lambda: Numbering(MAX_NAMES, text_of))
    categories: Numbering = field(default_factory=lambda: Numbering(MAX_NAMES, text_of))
    tracks: Numbering = field(default_factory=lambda: Numbering(MAX_TRACKS, short))
    """By any key that the reader turns into a Track."""
    instants: list[Instant] = field(default_factory=list)
    lost: int = 0
    skipped: int = 0
    """Moments that were too many to keep."""
    notes: list[str] = field(default_factory=list)
    _parts: dict[str, list[npt.NDArray[Any]]] = field(default_factory=dict)
    _length: int = 0

    def __len__(self) -> int:
        return self._length

    def add(
        self,
        start_ns: Ints,
        end_ns: Ints,
        name: npt.NDArray[np.int32],
        category: npt.NDArray[np.int32],
        track: npt.NDArray[np.int32],
        correlation: Ints | None = None,
        **numbers: npt.NDArray[np.float64],
    ) -> None:
        """Append a batch. Intervals that end before they start or lie beyond any clock count as lost."""
        if correlation is None:
            correlation = np.full(len(start_ns), -1, dtype=np.int64)
        batch: dict[str, npt.NDArray[Any]] = {
            "start_ns": start_ns, "end_ns": end_ns, "name": name, "category": category, "track": track,
            "correlation": correlation, **numbers,
        }  # fmt: skip
        possible = (end_ns >= start_ns) & (np.abs(start_ns) < LATEST_NS) & (end_ns < LATEST_NS)
        if not possible.all():
            self.lost += int(len(possible) - possible.sum())
            batch = {key: values[possible] for key, values in batch.items()}
        n = len(batch["start_ns"])
        for key, values in batch.items():
            parts = self._parts.setdefault(key, [])
            if key in numbers and not parts and self._length:
                parts.append(np.full(self._length, np.nan))
            parts.append(values)
        for key, parts in self._parts.items():
            if key not in batch:
                parts.append(np.full(n, np.nan))
        self._length += n

    def instant(self, at_ns: int, name: object, category: object, track: int) -> None:
        """Append a moment. One at no time counts as lost; those beyond MAX_INSTANTS are noted."""
        if not -LATEST_NS < at_ns < LATEST_NS:
            self.lost += 1
            return
        if len(self.instants) >= MAX_INSTANTS:
            self.skipped += 1
            return
        self.instants.append(Instant(at_ns, text_of(name), text_of(category), track))

    def spans(
        self,
        path: Path,
        probe: str,
        stage: str,
        arm: ArmName,
        tracks: Sequence[Track] = (),
        clock: str = "unknown",
        has_native_times: bool = True,
        shift_ns: int = 0,
    ) -> Spans:
        """What was collected, sorted by start, an interval before those inside it. Empties the parts."""
        if self.skipped:
            self.notes.append(f"{self.skipped} moments after the first {MAX_INSTANTS} were not kept")
        empty = np.empty(0, dtype=np.int64)
        columns = {key: np.concatenate(self._parts.pop(key)) for key in tuple(self._parts)}
        start, end = columns.pop("start_ns", empty), columns.pop("end_ns", empty)
        later, same = start[1:] > start[:-1], start[1:] == start[:-1]
        if not (later | (same & (end[1:] <= end[:-1]))).all():
            order = np.lexsort((-end, start))
            start, end = start[order], end[order]
            for key in columns:
                columns[key] = columns[key][order]
        if shift_ns and len(start) and 0 < shift_ns + int(end.max()) < LATEST_NS:
            start, end = start + shift_ns, end + shift_ns
            self.instants = [i._replace(at_ns=i.at_ns + shift_ns) for i in self.instants]
        ints = empty.astype(np.int32)
        return Spans(
            probe=probe, file=path.name, arm=arm, stage=stage,
            names=tuple(self.names.distinct), categories=tuple(self.categories.distinct),
            tracks=tuple(tracks), start_ns=start, end_ns=end,
            name=columns.pop("name", ints), category=columns.pop("category", ints),
            track=columns.pop("track", ints), correlation=columns.pop("correlation", empty),
            columns=columns, instants=tuple(sorted(self.instants)), clock=clock,
            has_native_times=has_native_times, lost=self.lost, notes=tuple(self.notes),
        )  # fmt: skip
