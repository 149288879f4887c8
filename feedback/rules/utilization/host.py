"""Threads that compute on the CPU: how much of a step lies in no operator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from feedback.criteria import Criteria
from feedback.intervals import Intervals, Ints, difference, overlap, union
from feedback.observations import Observation
from feedback.rules import rule
from feedback.rules.utilization import arms, timeline
from feedback.rules.utilization.arms import State, percent
from feedback.signals import Cause, Quantity, Signal
from feedback.spans import Spans

MIN_STEPS = 5
MIN_OPERATORS = 100
MIN_OUTSIDE = 0.30
"""Of a step, for three steps in four: eager PyTorch under its profiler leaves a tenth, at times over a fifth."""
OPERATORS = ("cpu_op", "native", "gc", "lock", *timeline.RUNTIME)


@rule(
    "utilization.op_gap",
    says="much of each step of a CPU thread lies in no operator: Python, or work that the trace doesn't show",
    needs="a trace without a device, with annotated steps and operators",
)
def op_gap(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """Threads with annotated steps. Only inside a step is a thread known to be at work; a gap elsewhere is no
    idleness. With a device, what counts is whether that waits."""
    signals = []
    for pair in arms.pairs(observations, criteria, Spans):
        signals += arms.compare(pair, _look)
    return signals


def _look(spans: Spans) -> list[State]:
    if any(track.kind == "device" for track in spans.tracks):
        return []
    steps = timeline.steps(spans)
    operators = timeline.is_a(spans, *OPERATORS)
    states = []
    for track in np.unique(spans.track[steps]).tolist():
        mine = steps[spans.track[steps] == track]
        rows = np.flatnonzero(operators & (spans.track == track))
        length = spans.end_ns[mine] - spans.start_ns[mine]
        mine = mine[length > 0]
        if len(mine) < MIN_STEPS or len(rows) < MIN_OPERATORS:
            continue
        busy = union(spans.start_ns[rows], spans.end_ns[rows])
        shares = 1 - overlap(busy, spans.start_ns[mine], spans.end_ns[mine]) / length[length > 0]
        low, middle, high = (float(q) for q in np.percentile(shares, (25, 50, 75)))
        is_bad = low >= MIN_OUTSIDE
        signal = _signal(spans, track, mine, busy, (low, middle, high)) if is_bad else None
        states.append(State(spans.tracks[track].name, is_bad, percent(middle), signal))
    return states


def _signal(spans: Spans, track: int, steps: Ints, busy: Intervals, shares: tuple[float, float, float]) -> Signal:
    place = timeline.thread(spans, track)
    low, middle, high = shares
    gaps = difference(union(spans.start_ns[steps], spans.end_ns[steps]), busy)
    return Signal(
        rule_id="utilization.op_gap", level="note", finding="observed",
        message=f"{place.name}: {percent(middle)} of a step (quartiles {percent(low)}, {percent(high)}; {len(steps)} "
        "steps) lies in no operator",
        locations=(place, timeline.stretch(spans, f"{place.process}/{place.name}", gaps)),
        measured=(Quantity(name="outside_operators", value=middle, unit="share of step, median; quartiles", lo=low,
                           hi=high),),
        expected=(Quantity(name="outside_operators", value=0.0, unit="share of step", hi=MIN_OUTSIDE),),
        causes=_causes(spans, track, gaps),
        caveats=("the profiler itself costs a microsecond or two an operator, between operators",),
        next=("record with_stack=True, or py-spy over the same steps, to name the lines",),
        evidence=timeline.evidence(spans, f"steps of {place.name} without its operators", int(gaps.start[0]),
                                   int(gaps.end[-1]), "user_annotation steps minus union of operators, by step"),
    )  # fmt: skip


def _causes(spans: Spans, track: int, gaps: Intervals) -> tuple[Cause, ...]:
    rows = np.flatnonzero(timeline.is_a(spans, "python_function") & (spans.track == track))
    inside = overlap(gaps, spans.start_ns[rows], spans.end_ns[rows])
    # The innermost function says most: of those that fill a good part of the gaps, the one with the shortest calls.
    time = np.bincount(spans.name[rows], inside.astype(np.float64), len(spans.names))
    whole = np.bincount(spans.name[rows], (spans.end_ns[rows] - spans.start_ns[rows]).astype(np.float64), len(time))
    some = np.flatnonzero(time > 0.5 * gaps.total)
    python = Cause(text="Python between operators", refutable_by="py-spy finds the thread in native code there")
    if not len(some):
        return (python,)
    name = int(some[np.argmin(whole[some])])
    text = f"Python between operators, in {spans.names[name][:120]}"
    return (python.model_copy(update={"text": text, "explains": min(1.0, float(time[name]) / gaps.total)}),)
