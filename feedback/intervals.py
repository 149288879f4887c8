"""Arithmetic of time intervals as columns: unions, overlaps, gaps, nesting. Linear but for one sort.

Intervals are half open. Times are integers, in nanoseconds wherever this package uses them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class Intervals(NamedTuple):
    """Disjoint intervals in order; none is empty and no two touch."""

    start: Ints
    end: Ints

    @property
    def total(self) -> int:
        """Time covered."""
        return int((self.end - self.start).sum())

    def __bool__(self) -> bool:
        return len(self.start) > 0


NONE = Intervals(np.empty(0, np.int64), np.empty(0, np.int64))


def union(start: Ints, end: Ints) -> Intervals:
    """What intervals cover together, whatever their order and however they overlap."""
    full = end > start
    if not full.all():
        start, end = start[full], end[full]
    if not len(start):
        return NONE
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    first = np.flatnonzero(np.concatenate(([True], start[1:] > reach[:-1])))
    return Intervals(start[first], reach[np.concatenate((first[1:] - 1, [len(reach) - 1]))])


def covered(of: Intervals, until: Ints) -> Ints:
    """How much time `of` covers before each moment."""
    if not of:
        return np.zeros(np.shape(until), np.int64)
    done = np.concatenate(([0], np.cumsum(of.end - of.start)))
    n = np.searchsorted(of.start, until, side="right")
    ahead = np.where(n > 0, np.maximum(of.end[np.maximum(n - 1, 0)] - until, 0), 0)
    return np.asarray(done[n] - ahead, dtype=np.int64)


def overlap(of: Intervals, start: Ints, end: Ints) -> Ints:
    """How much of each interval lies inside `of`."""
    return covered(of, end) - covered(of, start)


def whole(of: Intervals, start: Ints, end: Ints) -> Bools:
    """Which intervals lie wholly inside one interval of `of`."""
    if not of:
        return np.zeros(len(start), np.bool_)
    n = np.searchsorted(of.start, start, side="right")
    return np.asarray((n > 0) & (end <= of.end[np.maximum(n - 1, 0)]), dtype=np.bool_)


def intersection(a: Intervals, b: Intervals) -> Intervals:
    """What both cover."""
    if not a or not b:
        return NONE
    starts = np.concatenate((a.start[_holds(b, a.start)], b.start[_holds(a, b.start)]))
    ends = np.concatenate((a.end[_holds(b, a.end - 1)], b.end[_holds(a, b.end - 1)]))
    return Intervals(np.unique(starts), np.unique(ends))


def _holds(of: Intervals, moments: Ints) -> Bools:
    n = np.searchsorted(of.start, moments, side="right")
    return np.asarray((n > 0) & (moments < of.end[np.maximum(n - 1, 0)]), dtype=np.bool_)


def complement(of: Intervals, lo: int, hi: int) -> Intervals:
    """The gaps of `of` from `lo` to `hi`."""
    inside = clipped(of, lo, hi)
    start = np.concatenate(([lo], inside.end)).astype(np.int64)
    end = np.concatenate((inside.start, [hi])).astype(np.int64)
    full = end > start
    return Intervals(start[full], end[full])


def clipped(of: Intervals, lo: int, hi: int) -> Intervals:
    """The part of `of` from `lo` to `hi`."""
    start, end = np.maximum(of.start, lo), np.minimum(of.end, hi)
    full = end > start
    return Intervals(start[full], end[full])


def difference(a: Intervals, b: Intervals) -> Intervals:
    """What `a` covers and `b` does not."""
    if not a:
        return NONE
    return intersection(a, complement(b, int(a.start[0]), int(a.end[-1])))


def end_to_end(start: Ints, end: Ints, lane: npt.NDArray[np.integer]) -> tuple[Ints, Ints]:
    """Times moved so that lanes follow one another with a moment between them: what is asked of each lane can then
    be asked of all at once. The sum of the lanes' lengths must fit 63 bits."""
    if not len(start):
        return start, end
    n = int(lane.max()) + 1
    first = np.full(n, np.iinfo(np.int64).max)
    last = np.full(n, np.iinfo(np.int64).min)
    np.minimum.at(first, lane, start)
    np.maximum.at(last, lane, end)
    used = last >= first
    length = np.where(used, last - np.where(used, first, 0) + 1, 0)
    move = np.concatenate(([0], np.cumsum(length)[:-1])) - np.where(used, first, 0)
    return start + move[lane], end + move[lane]


class Nesting(NamedTuple):
    """How intervals of the same lane lie inside one another; one entry an interval, in the given order."""

    parent: Ints
    """Index of the innermost interval that it began in, -1 for none."""
    depth: Ints
    self_ns: Ints
    """Its length without its children."""


def nest(start: Ints, end: Ints, lane: npt.NDArray[np.integer]) -> Nesting:
    """Parents, depths and own times. An interval that outlasts its parent counts there up to the parent's end."""
    n = len(start)
    if not n:
        return Nesting(start, start, start)
    s, e = end_to_end(start, np.maximum(start, end), lane)
    order = _outer_first(s, e, lane)
    s, e = s[order], e[order]
    full = e > s
    began: Ints = np.cumsum(full) - full
    depth = began - np.searchsorted(np.sort(e[full]), s, side="right")
    # The parent is the last one before it that is one level up: found by one search over (level, position).
    rank = depth * (n + 1) + np.arange(n)
    candidates = np.flatnonzero(full)
    candidates = candidates[np.argsort(_small(depth[candidates]), kind="stable")]
    found = np.searchsorted(rank[candidates], rank - (n + 1), side="right") - 1
    above = candidates[np.maximum(found, 0)] if len(candidates) else np.zeros(n, np.int64)
    is_inside = (found >= 0) & (depth[above] == depth - 1) & (e[above] > s)
    inner = np.flatnonzero(is_inside)
    spent = np.bincount(above[inner], (np.minimum(e[inner], e[above[inner]]) - s[inner]).astype(np.float64), n)
    parent, depths, own = np.full(n, -1), np.empty(n, np.int64), np.empty(n, np.int64)
    parent[order[inner]] = order[above[inner]]
    depths[order] = depth
    own[order] = np.maximum(e - s - spent.astype(np.int64), 0)
    return Nesting(parent, depths, own)


def _outer_first(s: Ints, e: Ints, lane: npt.NDArray[np.integer]) -> Ints:
    """Order by lane and start, longer first. Much is in order already, so this sorts as little as it can."""
    order = np.argsort(_small(lane), kind="stable")
    if (s[order][1:] < s[order][:-1]).any():
        order = np.argsort(s, kind="stable")
    ordered = s[order]
    tied = np.flatnonzero(np.concatenate(([False], ordered[1:] == ordered[:-1])))
    if len(tied):
        rows = np.union1d(tied, tied - 1)
        some = order[rows]
        order[rows] = some[np.lexsort((-e[some], s[some]))]
    return order


def _small(values: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
    """Values as 16 bits where they fit: numpy sorts those by radix, ten times faster."""
    return values.astype(np.int16) if len(values) and values.min() >= 0 and values.max() < 1 << 15 else values


def outermost(start: Ints, end: Ints, lane: npt.NDArray[np.integer]) -> Ints:
    """Indices of the intervals that lie in no other one of their lane."""
    s, e = end_to_end(start, end, lane)
    order = _outer_first(s, e, lane)
    s, e = s[order], e[order]
    if not len(s):
        return order
    reach = np.maximum.accumulate(e)
    return order[np.concatenate(([True], s[1:] >= reach[:-1]))]
