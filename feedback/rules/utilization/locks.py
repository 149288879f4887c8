"""Threads that wait for a lock, and lines that keep the GIL from everyone else."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from feedback.criteria import Criteria
from feedback.intervals import Intervals, Ints, intersection, overlap, union
from feedback.observations import Observation
from feedback.rules import rule
from feedback.rules.utilization import arms, profiles, timeline
from feedback.rules.utilization.arms import State, percent
from feedback.signals import Cause, CodeLocation, Evidence, Quantity, Signal, ThreadLocation
from feedback.spans import Spans, Stacks
from feedback.stats import share_interval

MIN_SAMPLES = 100
MIN_GIL_SHARE = 0.25
"""Of the samples that hold the GIL, at one line: Python code spreads over lines, a call that keeps the GIL doesn't."""
MIN_OTHERS = 0.03
"""Share of the other threads together: with less nobody else needs the GIL, and a busy thread is no contention."""
MAX_SPREAD = 0.05
"""Samples on a function's other lines, against its hottest one: a loop in Python spreads over its lines, a native call
stays at the one that makes it."""
HOG = 2
"""How many times as often as all other threads together: where they get their turns, the GIL is shared, not kept."""
TAIL = 0.005

MIN_WAITS = 20
MIN_WAIT_SHARE = 0.10
SWITCH_INTERVAL_NS = 4_000_000
"""CPython asks for the GIL after 5 ms: waits of about that length mean that the holder gave it up only then."""
GIL = re.compile(r"\bgil\b|take_gil|_gil_", re.I)
WAITS_FOR_WORK = re.compile(r"cond|queue|event|select|poll|accept|recv|sleep|idle|hold|held|owner", re.I)


@rule(
    "utilization.gil",
    says="one line holds the GIL for much of the time while other threads need it",
    needs="a sampling profile of GIL holders, by thread (py-spy record --gil -t -f raw)",
)
def gil(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """The line that holds the GIL most, if it does so in a quarter of the samples and other threads hold it too."""
    signals = []
    for pair in arms.pairs([o for o in observations if not isinstance(o, Stacks) or o.only_gil], criteria, Stacks):
        signals += arms.compare(pair, _look_at_gil)
    return signals


def _look_at_gil(stacks: Stacks) -> list[State]:
    leaves = profiles.leaves(profiles.working(stacks))
    n = sum(leaves.values())
    by_thread: dict[str, float] = {}
    for leaf, k in leaves.items():
        by_thread[leaf.thread] = by_thread.get(leaf.thread, 0.0) + k
    if n < MIN_SAMPLES or len(by_thread) < 2:
        return []
    states: dict[str, State] = {}
    for leaf, k in leaves.items():
        # A function stands in the other arm even if an edit moved its lines; its hottest line comes first.
        key = f"{leaf.thread}|{leaf.frame.file}|{leaf.frame.function}"
        if key in states:
            continue
        lo, hi = share_interval(k, n, TAIL)
        others = n - by_thread[leaf.thread]
        is_needed = share_interval(others, n, TAIL)[0] > MIN_OTHERS
        is_native = _spread(leaves, leaf, n) <= MAX_SPREAD
        is_bad = lo > MIN_GIL_SHARE and is_needed and is_native and k > HOG * others
        signal = _gil_signal(stacks, leaf, k, n, others) if is_bad else None
        states[key] = State(key, is_bad, f"{percent(k / n)} [{percent(lo)}, {percent(hi)}]", signal)
    return list(states.values())


def _spread(leaves: Mapping[profiles.Leaf, float], leaf: profiles.Leaf, n: float) -> float:
    """Samples on a function's other lines, per sample on the leaf's; lines that hold much themselves don't count,
    unless they stand next to it, as those of a loop do."""
    top = leaf.frame
    other = 0.0
    for (thread, frame), k in leaves.items():
        if thread == leaf.thread and frame != top and (frame.file, frame.function) == (top.file, top.function):
            is_near = abs((frame.line or 0) - (top.line or 0)) <= 2
            other += k if is_near or k < MIN_GIL_SHARE * n else 0.0
    return other / leaves[leaf]


def _gil_signal(stacks: Stacks, leaf: profiles.Leaf, k: float, n: float, others: float) -> Signal:
    lo, hi = share_interval(k, n, TAIL)
    callers = profiles.callers(stacks, leaf)
    where = leaf.place if not callers else f"{leaf.place} (called at {' and '.join(callers[:2])})"
    return Signal(
        rule_id="utilization.gil", level="warning", finding="observed",
        message=f"{leaf.thread} holds the GIL at {where} in {percent(k / n)} of the samples; all other threads "
        f"together in {percent(others / n)}",
        locations=(CodeLocation(file=leaf.frame.file, line=leaf.frame.line, symbol=leaf.frame.function),
                   ThreadLocation(process=stacks.probe, name=leaf.thread)),
        measured=(Quantity(name="gil_held", value=k / n, unit="share of GIL samples; 99 % inside this process", lo=lo,
                           hi=hi),
                  Quantity(name="samples", value=n)),
        expected=(Quantity(name="gil_held", value=0.0, unit="share of GIL samples", hi=MIN_GIL_SHARE),),
        causes=(
            Cause(text="a native call that keeps the GIL while it waits or computes",
                  refutable_by="py-spy record --native shows no native frame below this line, or a native trace shows "
                  "other threads running during it"),
            Cause(text="a loop in Python on this line", support="weak", refutable_by="the line calls native code"),
        ),
        caveats=("the shares are of samples that held the GIL, not of time",
                 "the interval is for this process; against another one it is wider, as profile_diff's is"),
        next=("read the line: does it call native code (ctypes.PyDLL, a pybind11 function without gil_scoped_release)?",
              "trace native intervals of both threads: with the GIL held they never overlap"),
        evidence=(Evidence(artefact=stacks.file, detail=f"stacks that end in {leaf.place}",
                           query="weight by (thread, innermost frame's file:line)"),),
    )  # fmt: skip


@rule(
    "utilization.lock_wait",
    says="a thread spends much of its time waiting for a lock",
    needs="a trace with lock intervals",
)
def lock_wait(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """Each thread and lock with waits over a tenth of the time in which it was traced; waits for work don't count."""
    signals = []
    for pair in arms.pairs(observations, criteria, Spans):
        signals += arms.compare(pair, _look_at_locks)
    return signals


def _look_at_locks(spans: Spans) -> list[State]:
    is_wait = timeline.is_a(spans, "lock") & timeline.on_host(spans) & ~timeline.named(spans, WAITS_FOR_WORK)
    rows = np.flatnonzero(is_wait)
    states = []
    place = spans.track[rows].astype(np.int64) * len(spans.names) + spans.name[rows]
    lo, hi = int(spans.start_ns.min()), int(spans.end_ns.max())
    order = np.argsort(place, kind="stable")
    for part in np.split(rows[order], np.flatnonzero(np.diff(place[order])) + 1):
        if len(part) < MIN_WAITS:
            continue
        waits = union(spans.start_ns[part], spans.end_ns[part])
        share = waits.total / (hi - lo)
        track, name = int(spans.track[part[0]]), spans.names[spans.name[part[0]]]
        is_bad = share >= MIN_WAIT_SHARE
        key = f"{spans.tracks[track].name}|{name}"
        signal = _wait_signal(spans, track, name, part, waits, share) if is_bad else None
        states.append(State(key, is_bad, f"waits {percent(share)}", signal))
    return states


def _wait_signal(spans: Spans, track: int, name: str, rows: Ints, waits: Intervals, share: float) -> Signal:
    lengths = spans.end_ns[rows] - spans.start_ns[rows]
    p50, p99 = (float(np.percentile(lengths, q)) / 1e6 for q in (50, 99))
    place = timeline.thread(spans, track)
    is_gil = bool(GIL.search(name))
    holder, part = _holder(spans, track, waits)
    causes = []
    if holder:
        causes.append(
            Cause(text=f"{holder} runs meanwhile, and may hold it", explains=part,
                  support="moderate" if part >= 0.5 else "weak", refutable_by="it runs as long with the lock released")
        )  # fmt: skip
    if part < 0.5:
        text = "unknown: no thread of the trace runs during half of the waits"
        causes.insert(0, Cause(text=text, support="weak", refutable_by="a trace of all threads names the holder"))
    if is_gil:
        causes.append(
            Cause(text="too little CPU: the holder itself waits to run", support="weak",
                  refutable_by="run_delay of the holder (/proc/PID/schedstat) stays small")
        )  # fmt: skip
    slow = f"; half of them over {p50:.3g} ms, the holder gives up only at the switch interval" \
        if is_gil and p50 * 1e6 >= SWITCH_INTERVAL_NS else f" (median {p50:.3g} ms)"  # fmt: skip
    return Signal(
        rule_id="utilization.lock_wait", level="warning", finding="observed",
        message=f"{place.name} waits for {name[:60]} {percent(share)} of the time in {len(rows)} waits{slow}",
        locations=(place, timeline.stretch(spans, f"{place.process}/{place.name}", waits)),
        measured=(Quantity(name="wait_share", value=share, unit="share of window"),
                  Quantity(name="wait", value=p50, unit="ms, median"), Quantity(name="wait_p99", value=p99, unit="ms"),
                  Quantity(name="waits", value=len(rows))),
        expected=(Quantity(name="wait_share", value=0.0, unit="share of window", hi=MIN_WAIT_SHARE),),
        causes=tuple(causes),
        next=("py-spy record --gil -t -f raw names the lines that hold it",) if is_gil else
             ("perf trace -s, or bpftrace on futex, with user stacks of holder and waiter",),
        evidence=timeline.evidence(spans, f"lock intervals {name[:60]} of {place.name}", int(waits.start[0]),
                                   int(waits.end[-1]), "category = lock, by thread and name"),
    )  # fmt: skip


def _holder(spans: Spans, track: int, waits: Intervals) -> tuple[str, float]:
    """The call of another thread of the process that covers most of the waits, and its share of them."""
    pid = spans.tracks[track].pid
    same = np.array([t.pid == pid and t.kind == "thread" and n != track for n, t in enumerate(spans.tracks)])
    rows = np.flatnonzero(same[spans.track] & timeline.is_a(spans, *timeline.HOST_WORK) & ~timeline.is_a(spans, "lock"))
    if not len(rows):
        return "", 0.0
    inside = overlap(waits, spans.start_ns[rows], spans.end_ns[rows])
    name, _ = timeline.longest_name(spans, rows, inside)
    mine = rows[spans.name[rows] == spans.names.index(name)]
    covered = intersection(waits, union(spans.start_ns[mine], spans.end_ns[mine])).total
    return name, covered / waits.total
