"""What a trace tells apart and belongs together: begins with their ends, counters with their next value, flows."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from feedback.readers.columns import Columns
from feedback.spans import Ints, Spans

MAX_OPEN = 100_000
MAX_POINTS = 2_000_000
"""Counter values, and ends of flows, that are kept."""
MAX_SERIES = 10_000
MAX_DEPTH = 64
"""How many intervals that started before a flow's point are looked at for the one around it."""


class _Begin(NamedTuple):
    at_ns: int
    name: int
    category: int
    track: int


class Pairs:
    """Intervals whose begin and end are separate entries; they nest within one key."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._open: dict[Hashable, list[_Begin]] = {}
        self._n_open = 0
        self._closed: list[tuple[int, int, int, int, int]] = []

    def begin(self, key: Hashable, at_ns: int, name: str, category: str, track: int) -> None:
        """An interval of that key starts, inside those of the same key that are open."""
        if self._n_open >= MAX_OPEN:
            self._columns.lost += 1
            return
        begun = _Begin(at_ns, self._columns.names[name], self._columns.categories[category], track)
        self._open.setdefault(key, []).append(begun)
        self._n_open += 1

    def end(self, key: Hashable, at_ns: int) -> None:
        """The innermost open interval of that key ends; one that never began is lost."""
        opened = self._open.get(key)
        if not opened:
            self._columns.lost += 1
            return
        begun = opened.pop()
        self._n_open -= 1
        if not opened:
            del self._open[key]
        self._closed.append((begun.at_ns, at_ns, begun.name, begun.category, begun.track))

    def flush(self) -> None:
        """Hand the ended intervals to the columns."""
        if self._closed:
            _add(self._columns, self._closed)
            self._closed = []

    def finish(self, last_ns: int) -> None:
        """What is still open lasts until the end of the trace, and a note says so."""
        if self._n_open:
            self._columns.notes.append(f"{self._n_open} interval(s) had no end: they last until the end of the trace")
        for begun in (begun for opened in self._open.values() for begun in opened):
            self._closed.append((begun.at_ns, max(last_ns, begun.at_ns), begun.name, begun.category, begun.track))
        self._open, self._n_open = {}, 0
        self.flush()


def _add(columns: Columns, rows: list[tuple[int, int, int, int, int]]) -> None:
    table = np.array(rows, dtype=np.int64)
    start, end, *indices = (np.ascontiguousarray(table[:, n]) for n in range(5))
    name, category, track = (column.astype(np.int32) for column in indices)
    columns.add(start, end, name, category, track)


class Counters:
    """Values over time: each lasts until the next of its series."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._series: dict[Hashable, list[tuple[int, float]]] = {}
        self._names: dict[Hashable, str] = {}
        self._n = 0

    def value(self, key: Hashable, at_ns: int, name: str, value: float) -> None:
        """One value. `key` becomes a track of the columns."""
        if self._n >= MAX_POINTS or (key not in self._series and len(self._series) >= MAX_SERIES):
            self._columns.lost += 1
            return
        self._n += 1
        self._names.setdefault(key, name)
        self._series.setdefault(key, []).append((at_ns, value))

    def finish(self) -> None:
        """Hand all series to the columns, the values in the column `value`."""
        for key, points in self._series.items():
            points.sort()
            at = np.array([at for at, _ in points], dtype=np.int64)
            n = len(at)
            name, category, track = (
                np.full(n, number, dtype=np.int32)
                for number in (
                    self._columns.names[self._names[key]],
                    self._columns.categories["counter"],
                    self._columns.tracks[key],
                )
            )
            values = np.array([value for _, value in points], dtype=np.float64)
            self._columns.add(at, np.append(at[1:], at[-1:]), name, category, track, value=values)
        self._series = {}


class Flows:
    """Arrows from interval to interval, for traces that join launches and kernels by nothing else."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._points: list[tuple[int, int, int]] = []
        self.lost = 0

    def point(self, key: Hashable, at_ns: int, track: int) -> None:
        """An arrow of that key leaves, passes or ends at this moment of this track."""
        if len(self._points) >= MAX_POINTS:
            self.lost += 1
            return
        number = self._numbers.setdefault(key, len(self._numbers))
        self._points.append((track, at_ns, number))

    def join(self, spans: Spans) -> None:
        """Give the innermost interval around each point its flow's number as correlation, where it has none."""
        if not self._points or (spans.correlation >= 0).any():
            return
        points = np.array(sorted(self._points), dtype=np.int64)
        for track in np.unique(points[:, 0]):
            rows = np.flatnonzero(spans.track == track)
            if len(rows):
                _join_track(spans, rows, points[points[:, 0] == track])


def _join_track(spans: Spans, rows: npt.NDArray[np.intp], points: Ints) -> None:
    """`rows` are in order of start, outer before inner; a point goes to the last one that started and still runs."""
    start, end = spans.start_ns[rows], spans.end_ns[rows]
    for _, at, number in points.tolist():
        position = int(np.searchsorted(start, at, side="right")) - 1
        for candidate in range(position, max(position - MAX_DEPTH, -1), -1):
            if end[candidate] >= at:
                if spans.correlation[rows[candidate]] < 0:
                    spans.correlation[rows[candidate]] = number
                break
