"""Threads that never run side by side although nothing orders them: a lock, and in Python most often the GIL."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from feedback.criteria import Criteria
from feedback.intervals import Intervals, clipped, overlap, union, whole
from feedback.observations import Observation
from feedback.rules import rule
from feedback.rules.utilization import arms, timeline
from feedback.rules.utilization.arms import Pair, State, percent
from feedback.signals import Cause, Quantity, Signal
from feedback.spans import Spans
from feedback.stats import Overlap, share_interval, shift_test

MIN_INTERVALS = 20
MAX_TESTS = 8
NO_OVERLAP = 0.1
"""Fewer calls inside than this part of what chance gives are none: one that was under way when a lock was taken still
ends. Whole calls count, not time: one that is pre-empted spans whatever runs meanwhile."""
MIN_EXPECTED = 5
MIN_SHARE, MAX_SHARE = 0.1, 0.95
"""Of the window, for the busier thread: with less, chance gives no overlap either; with more, no other time is left."""
ALPHA = 0.01
ORDERED = 0.9
PYTHON_SIDE = ("python_function", "user_annotation")


class Threads(NamedTuple):
    """Two threads of one process with what they did inside native code."""

    a: int
    """Track of the one that has more native time."""
    b: int
    in_a: Intervals
    in_b: Intervals

    def key(self, spans: Spans) -> str:
        return f"{spans.tracks[self.a].name}|{spans.tracks[self.b].name}"


@rule(
    "utilization.overlap",
    says="the native calls of two threads never overlap although nothing orders them, which points at a held lock",
    needs="a trace whose intervals are stamped inside native code",
)
def no_overlap(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """Pairs of threads whose native calls exclude one another, by a circular-shift test."""
    signals = []
    for pair in arms.pairs(observations, criteria, Spans):
        signals += arms.compare(pair, _look) or _abstained(pair)
    return signals


def _look(spans: Spans) -> list[State]:
    if not spans.has_native_times:
        return []
    found = _pairs_of_threads(spans)
    states = []
    for threads in found:
        lo = max(threads.in_a.start[0], threads.in_b.start[0])
        hi = min(threads.in_a.end[-1], threads.in_b.end[-1])
        a, b = clipped(threads.in_a, int(lo), int(hi)), clipped(threads.in_b, int(lo), int(hi))
        if len(a.start) < MIN_INTERVALS or len(b.start) < MIN_INTERVALS:
            continue
        by_time = a.total / int(hi - lo)
        if not MIN_SHARE <= by_time <= MAX_SHARE:
            continue
        inside = float(whole(a, b.start, b.end).mean())
        said = f"{percent(inside)} of its calls inside ({percent(by_time)} by time)"
        is_suspect = inside <= 2 * NO_OVERLAP * by_time and (_waits(spans, threads)[1] > 0 or not _looks_ordered(a, b))
        tested = shift_test(a, b) if is_suspect else None
        is_bad = (
            tested is not None
            and tested.whole_expected >= MIN_EXPECTED
            and tested.whole <= NO_OVERLAP * tested.whole_expected
            and tested.p_low * len(found) < ALPHA
        )
        states.append(State(threads.key(spans), is_bad, said, _signal(spans, threads, tested) if tested else None))
    return states


def _pairs_of_threads(spans: Spans) -> list[Threads]:
    """Pairs of threads of one process that both have native intervals, those with most shared activity first."""
    rows = np.flatnonzero(timeline.is_a(spans, "native") & timeline.on_host(spans))
    native: dict[int, Intervals] = {}
    for track in np.unique(spans.track[rows]).tolist():
        mine = rows[spans.track[rows] == track]
        if len(mine) >= MIN_INTERVALS:
            native[track] = union(spans.start_ns[mine], spans.end_ns[mine])
        if len(native) == 32:
            break
    found = []
    for one, other in combinations(native, 2):
        if spans.tracks[one].pid == spans.tracks[other].pid:
            a, b = sorted((one, other), key=lambda track: -native[track].total)
            found.append(Threads(a, b, native[a], native[b]))
    return sorted(found, key=lambda t: -t.in_b.total)[:MAX_TESTS]


def _looks_ordered(a: Intervals, b: Intervals) -> bool:
    """Whether the same number of B follows each A that any follows: that is how a dependency looks. A lock instead
    cuts runs of B wherever A happens to begin."""
    counts = np.bincount(np.searchsorted(a.start, b.start, side="right"), minlength=len(a.start) + 1)[1:-1]
    some = counts[counts > 0]
    return len(some) > 0 and int(np.bincount(some).max()) >= ORDERED * len(some)


def _waits(spans: Spans, threads: Threads) -> tuple[int, int]:
    """Time that B's thread waited for locks, and how much of that inside A."""
    rows = np.flatnonzero(timeline.is_a(spans, "lock") & (spans.track == threads.b))
    waits = union(spans.start_ns[rows], spans.end_ns[rows])
    return waits.total, int(overlap(threads.in_a, waits.start, waits.end).sum())


def _signal(spans: Spans, threads: Threads, found: Overlap) -> Signal:
    a, b = timeline.thread(spans, threads.a), timeline.thread(spans, threads.b)
    names = _names(spans, threads.a)
    lo, hi = share_interval(found.whole, found.n_b, 0.025)
    return Signal(
        rule_id="utilization.overlap", level="warning", finding="observed",
        message=f"{b.name} runs beside {_listed(names)} of {a.name} in {percent(found.whole / found.n_b)} of its "
        f"calls; by chance {percent(found.whole_expected / found.n_b)} (p {found.p_low:.2g})",
        locations=(b, a, timeline.stretch(spans, f"{a.process}/{a.name}", threads.in_a)),
        measured=(
            Quantity(name="whole_inside", value=found.whole / found.n_b, unit="share of calls", lo=lo, hi=hi),
            Quantity(name="overlap", value=found.share, unit="share of native time"),
            Quantity(name="shift_test_p", value=found.p_low),
            Quantity(name="intervals", value=found.n_b, unit=b.name),
        ),
        expected=(
            Quantity(name="whole_inside", value=found.whole_expected / found.n_b, unit="share of calls"),
            Quantity(name="overlap", value=found.expected, unit="share of native time"),
            Quantity(name="intervals", value=found.n_a, unit=a.name),
        ),
        causes=_causes(spans, threads, names),
        caveats=(f"an order that the trace doesn't show, {b.name} waiting for {a.name}, looks the same",),
        next=(
            f"py-spy record --gil -t -f raw: the share of {a.name} at the lines that call {_listed(names)}",
            "release the GIL around the call (gil_scoped_release, nogil, CDLL) or avoid its wait, and trace again: "
            "the overlap should come near what chance gives",
        ),
        evidence=timeline.evidence(
            spans, f"native intervals of {b.name} against those of {a.name}", found.start, found.end,
            "category = native; calls of B wholly inside A, against circular shifts of B",
        ),
    )  # fmt: skip


def _causes(spans: Spans, threads: Threads, names: Sequence[str]) -> tuple[Cause, ...]:
    waited, inside = _waits(spans, threads)
    a, b = spans.tracks[threads.a].name, spans.tracks[threads.b].name
    seen = f"; {percent(inside / waited)} of {b}'s lock waits lie inside these calls" if waited else ""
    return (
        Cause(
            text=f"{_listed(names)} hold the GIL in {a} while they wait or compute{seen}",
            support="strong" if waited and inside > 0.5 * waited else "moderate",
            explains=inside / waited if waited else None,
            refutable_by=f"{a} holds the GIL for less than half of these calls (py-spy --gil, uprobes on take_gil and "
            "drop_gil), or the overlap stays away with it released",
        ),
        Cause(
            text="another lock that both take, such as a mutex of the library", support="weak",
            refutable_by=f"no futex wait of {b} during the calls (perf trace -s, bpftrace)",
        ),
        Cause(
            text=f"{b} works only on what {a} has just made: then it is by design", support="weak",
            refutable_by=f"work is queued for {b} when a call begins",
        ),
    )  # fmt: skip


def _names(spans: Spans, track: int) -> list[str]:
    """The native calls that make up most of a thread's native time, longest first."""
    rows = np.flatnonzero(timeline.is_a(spans, "native") & (spans.track == track))
    time = np.bincount(
        spans.name[rows], (spans.end_ns[rows] - spans.start_ns[rows]).astype(np.float64), len(spans.names)
    )
    order = np.argsort(-time)
    return [spans.names[n] for n in order[:3] if time[n] > 0.1 * time.sum()] or [spans.names[order[0]]]


def _listed(names: Sequence[str]) -> str:
    return " and ".join(name[:60] for name in names[:2])


def _abstained(pair: Pair[Spans]) -> list[Signal]:
    """Where two threads could be compared but for want of native intervals: timestamps taken in Python include the
    wait for the GIL and show overlap where there is none."""
    spans = pair.present[0]
    rows = np.flatnonzero(timeline.on_host(spans))
    by_track = np.bincount(spans.track[rows], minlength=len(spans.tracks))
    native = np.bincount(spans.track[rows[timeline.is_a(spans, "native")[rows]]], minlength=len(spans.tracks))
    python = np.bincount(spans.track[rows[timeline.is_a(spans, *PYTHON_SIDE)[rows]]], minlength=len(spans.tracks))
    many = np.flatnonzero(by_track >= MIN_INTERVALS)
    only_python = [t for t in many if not spans.has_native_times or python[t] == by_track[t]]
    pids = [spans.tracks[t].pid for t in many if t in only_python or native[t] >= MIN_INTERVALS]
    blind = [int(t) for t in only_python if pids.count(spans.tracks[t].pid) > 1]
    if not blind:
        return []
    places = [timeline.thread(spans, track) for track in blind[:3]]
    reason = f"{', '.join(p.name for p in places)}: intervals are stamped by Python code, which includes its GIL waits"
    return [
        Signal(
            rule_id="utilization.overlap", level="note", finding="abstained", reason=reason,
            message="overlap of threads not judged: no native intervals", locations=tuple(places),
            next=("stamp inside the native calls (NVTX, uprobes, a clock read in C), or py-spy record --gil -t",),
            evidence=timeline.evidence(
                spans, "categories of the threads' intervals", int(spans.start_ns.min()), int(spans.end_ns.max()),
                "has_native_times; category",
            ),
        )
    ]  # fmt: skip
