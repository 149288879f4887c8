"""Interval arithmetic against sets of moments, and nesting against a stack."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from feedback.intervals import (
    NONE,
    Intervals,
    complement,
    covered,
    difference,
    intersection,
    nest,
    outermost,
    overlap,
    union,
    whole,
)

Rows = list[tuple[int, int, int]]


def moments(intervals: Intervals) -> set[int]:
    return {t for start, end in zip(*intervals, strict=True) for t in range(start, end)}


def some(random: np.random.Generator) -> Intervals:
    edges = np.sort(random.integers(0, 60, (2, 8)), axis=0)
    return union(edges[0], edges[1])


@pytest.mark.parametrize("seed", range(40))
def test_sets_of_intervals_are_sets_of_moments(seed: int) -> None:
    random = np.random.default_rng(seed)
    a, b = some(random), some(random)
    assert moments(intersection(a, b)) == moments(a) & moments(b)
    assert moments(difference(a, b)) == moments(a) - moments(b)
    assert moments(complement(a, 5, 50)) == set(range(5, 50)) - moments(a)
    assert overlap(a, b.start, b.end).tolist() == [len(moments(a) & set(range(s, e))) for s, e in zip(*b, strict=True)]
    assert covered(a, np.arange(60)).tolist() == [sum(m < t for m in moments(a)) for t in range(60)]
    assert whole(a, b.start, b.end).tolist() == [set(range(s, e)) <= moments(a) for s, e in zip(*b, strict=True)]


def test_union_takes_any_order_and_joins_what_touches() -> None:
    found = union(np.array([30, 0, 10, 5, 40]), np.array([35, 10, 20, 6, 40]))
    assert found.start.tolist() == [0, 30]
    assert found.end.tolist() == [20, 35]
    assert found.total == 25


def test_nothing_is_fine_everywhere() -> None:
    empty = np.empty(0, np.int64)
    assert not union(empty, empty)
    assert not intersection(NONE, NONE)
    assert not difference(NONE, NONE)
    assert overlap(NONE, np.array([1]), np.array([2])).tolist() == [0]
    assert len(nest(empty, empty, empty).parent) == 0
    assert len(outermost(empty, empty, empty)) == 0


def nested(random: np.random.Generator, lo: int, hi: int, depth: int, lane: int, rows: Rows) -> None:
    edges = np.sort(random.integers(lo, hi + 1, 2 * random.integers(0, 4)))
    for start, end in edges.reshape(-1, 2).tolist():
        rows.append((start, end, lane))
        if depth and end > start:
            nested(random, start, end, depth - 1, lane, rows)


def innermost_around(rows: npt.NDArray[np.int64], n: int) -> tuple[int, int] | None:
    """Times of the parent by the definition: the shortest that holds it, an equal one only if it stands before."""
    start, end, lane = rows[n].tolist()
    around = [
        (e - s, s, e)
        for k, (s, e, other) in enumerate(rows.tolist())
        if k != n and other == lane and s <= start and end <= e and start < e
        and ((s, e) != (start, end) or k < n)
    ]  # fmt: skip
    return min(around)[1:] if around else None


@pytest.mark.parametrize("seed", range(40))
def test_parents_are_the_innermost_intervals_around(seed: int) -> None:
    random = np.random.default_rng(seed)
    rows: Rows = []
    for lane in range(3):
        nested(random, 0, 40, 3, lane, rows)
    table = np.array(rows, np.int64).reshape(-1, 3)[random.permutation(len(rows))]
    start, end, lane = table.T
    found = nest(start, end, lane)
    for n in np.flatnonzero(end > start).tolist():
        parent = int(found.parent[n])
        assert (None if parent < 0 else (start[parent], end[parent])) == innermost_around(table, n)
        assert found.depth[n] == (found.depth[parent] + 1 if parent >= 0 else 0)
    for one in range(3):
        mine = lane == one
        assert found.self_ns[mine].sum() == union(start[mine], end[mine]).total
    assert set(np.flatnonzero((found.parent < 0) & (end > start))) <= set(outermost(start, end, lane))


def test_an_interval_that_outlasts_its_parent_counts_up_to_the_parents_end() -> None:
    found = nest(np.array([0, 5, 12]), np.array([10, 15, 14]), np.array([0, 0, 0]))
    assert found.parent.tolist() == [-1, 0, -1] or found.parent.tolist() == [-1, 0, 1]
    assert found.self_ns[0] == 5


def test_lanes_far_apart_in_time_do_not_mix() -> None:
    found = nest(np.array([10**15, 0, 1]), np.array([10**15 + 5, 9, 2]), np.array([70_000, 3, 3]))
    assert found.parent.tolist() == [-1, -1, 1]
    assert found.self_ns.tolist() == [5, 8, 1]
