"""Threads that burn a CPU while they wait."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from feedback.criteria import Criteria
from feedback.intervals import union
from feedback.observations import Observation
from feedback.rules import rule
from feedback.rules.utilization import arms, profiles, timeline
from feedback.rules.utilization.arms import State, percent
from feedback.signals import Cause, CodeLocation, Evidence, Quantity, Signal, ThreadLocation
from feedback.spans import Spans, Stacks
from feedback.stats import share_interval

MIN_SAMPLES = 100
MIN_LEAF = 0.90
"""Share of a thread's samples in one function, by the interval's low end."""
MIN_ALWAYS = 0.5
"""Of the samples of the busiest thread: a thread that is seldom on a CPU spins little."""
MIN_POLLS = 500
MIN_POLLED = 0.20
POLLS = re.compile(
    r"(^|[._:\s])(\w*poll\w*|\w*spin\w*|busy_?wait\w*|\w*_?yield|try_?wait\w*|try_?lock\w*|is_set|empty|get_nowait|"
    r"\w*Query|\w*query_event|test_?some|test_?any|MPI_I?Test\w*|MPI_Iprobe|pause|cpu_relax)\b",
    re.I,
)
TAIL = 0.005


@rule(
    "utilization.spin",
    says="a thread is always on a CPU in one poll loop",
    needs="a sampling profile of all threads, or a trace with native or runtime calls",
)
def spin(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """Threads whose samples, or whose native calls, are nearly all polls. A long computation in one function is none:
    the function's name has to say that it polls."""
    signals = []
    for profile in arms.pairs([o for o in observations if isinstance(o, Stacks) and not o.only_gil], criteria, Stacks):
        signals += arms.compare(profile, _look_at_samples)
    for trace in arms.pairs(observations, criteria, Spans):
        signals += arms.compare(trace, _look_at_calls)
    return signals


def _look_at_samples(stacks: Stacks) -> list[State]:
    n = profiles.counts(stacks)
    if n is None:
        return []
    by_thread: dict[str, float] = {}
    by_function: dict[tuple[str, str, str], tuple[float, profiles.Leaf]] = {}
    for leaf, k in profiles.leaves(stacks).items():
        by_thread[leaf.thread] = by_thread.get(leaf.thread, 0.0) + k
        key = (leaf.thread, leaf.frame.file, leaf.frame.function)
        before, top = by_function.get(key, (0.0, leaf))
        by_function[key] = before + k, top
    busiest = max(by_thread.values(), default=0.0)
    states = []
    for (thread, file, function), (k, leaf) in by_function.items():
        total = by_thread[thread]
        low, high = share_interval(k, total, TAIL)
        if not POLLS.search(function) or profiles.is_blocked(leaf.frame):
            continue
        is_bad = total >= MIN_SAMPLES and low >= MIN_LEAF and total >= MIN_ALWAYS * busiest
        states.append(
            State(f"{thread}|{file}|{function}", is_bad, f"{percent(k / total)} of its samples",
                  _sampled(stacks, leaf, k, total, (low, high)) if is_bad else None)
        )  # fmt: skip
    return states


def _sampled(stacks: Stacks, leaf: profiles.Leaf, k: float, total: float, interval: tuple[float, float]) -> Signal:
    return Signal(
        rule_id="utilization.spin", level="warning", finding="observed",
        message=f"{leaf.thread} spins in {leaf.place}: {percent(k / total)} of its {total:.0f} samples",
        locations=(CodeLocation(file=leaf.frame.file or "native", line=leaf.frame.line, symbol=leaf.frame.function),
                   ThreadLocation(process=stacks.probe, name=leaf.thread)),
        measured=(Quantity(name="in_poll", value=k / total, unit="share of samples", lo=interval[0], hi=interval[1]),),
        expected=(Quantity(name="in_poll", value=0.0, unit="share of samples"),),
        causes=(
            Cause(text="it waits by polling instead of blocking", refutable_by="its CPU time (/proc/PID/task/TID/stat) "
                  "stands still: then the recording counted sleeping threads (py-spy --idle)"),
        ),
        caveats=("a spin on a core of its own can be wanted: it shortens the wake-up",),
        next=("compare CPU time of the thread with wall time", "block on an event, or back off, and measure"),
        evidence=(Evidence(artefact=stacks.file, detail=f"stacks of {leaf.thread} that end in {leaf.frame.function}",
                           query="weight by (thread, innermost function)"),),
    )  # fmt: skip


def _look_at_calls(spans: Spans) -> list[State]:
    rows = np.flatnonzero(
        timeline.is_a(spans, "native", *timeline.RUNTIME) & timeline.on_host(spans) & timeline.named(spans, POLLS)
    )
    states = []
    order = np.argsort(spans.track[rows], kind="stable")
    for part in np.split(rows[order], np.flatnonzero(np.diff(spans.track[rows][order])) + 1):
        if len(part) < MIN_POLLS:
            continue
        track = int(spans.track[part[0]])
        lo, hi = int(spans.start_ns[part[0]]), int(spans.end_ns[part].max())
        polled = union(spans.start_ns[part], spans.end_ns[part])
        share = polled.total / max(1, hi - lo)
        is_bad = share >= MIN_POLLED
        name, _ = timeline.longest_name(spans, part, np.ones(len(part)))
        states.append(
            State(f"{spans.tracks[track].name}|{name}", is_bad, f"{len(part)} polls, {percent(share)} of the time",
                  _called(spans, track, name, len(part), share, (lo, hi)) if is_bad else None)
        )  # fmt: skip
    return states


def _called(spans: Spans, track: int, name: str, n: int, share: float, window: tuple[int, int]) -> Signal:
    place = timeline.thread(spans, track)
    return Signal(
        rule_id="utilization.spin", level="warning", finding="observed",
        message=f"{place.name} polls: {n} calls of {name[:80]} and the like take {percent(share)} of its time",
        locations=(place,),
        measured=(Quantity(name="polled", value=share, unit="share of time"), Quantity(name="polls", value=n)),
        expected=(Quantity(name="polled", value=0.0, unit="share of time", hi=MIN_POLLED),),
        causes=(Cause(text="it waits by polling instead of blocking", refutable_by="each call does work of its own"),),
        caveats=("a spin on a core of its own can be wanted: it shortens the wake-up",),
        next=("block on an event or back off, and measure the latency",),
        evidence=timeline.evidence(spans, f"calls of {name[:80]} on {place.name}", *window, "native, cuda_runtime"),
    )  # fmt: skip
