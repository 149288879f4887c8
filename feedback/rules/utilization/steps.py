"""How long the annotated steps of a trace take in both arms, and whether more calls in them wait for the device."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from feedback.criteria import Criteria
from feedback.intervals import Intervals, Ints, outermost
from feedback.observations import Observation
from feedback.rules import rule
from feedback.rules.utilization import arms, timeline
from feedback.rules.utilization.arms import Pair
from feedback.signals import Cause, Evidence, KernelLocation, Quantity, Signal
from feedback.spans import Spans
from feedback.stats import Interval, log_change

MIN_STEPS = 5
MIN_RATIO = 1.1
"""Change of a step's time from which it is worth a word."""
TAIL = 0.01
MORE_SYNCS = 1.5
"""How many times the baseline's waits a step, and one more at least, count as more."""
SYNC = re.compile(
    r"^aten::(item|_local_scalar_dense)$|^(cuda|hip)(Stream|Device|Event)Synchronize$|^cu(Stream|Ctx|Event)Synchronize$"
)
"""Calls in which the host waits for a result of the device, or would, if there were one."""


class Steps(NamedTuple):
    """The annotated steps of one trace."""

    spans: Spans
    name: str
    """Without the number: `ProfilerStep`."""
    rows: Ints

    @property
    def lengths_ns(self) -> Ints:
        return self.spans.end_ns[self.rows] - self.spans.start_ns[self.rows]

    def calls(self, name: str) -> float:
        """Calls of this name inside the steps, for each step."""
        spans = self.spans
        if name not in spans.names:
            return 0.0
        at = spans.start_ns[(spans.name == spans.names.index(name)) & timeline.on_host(spans)]
        # Steps don't overlap: a call is in the last one that began before it, or in none.
        begin, end = spans.start_ns[self.rows], spans.end_ns[self.rows]
        step = np.searchsorted(begin, at, side="right") - 1
        return float(((step >= 0) & (at < end[np.maximum(step, 0)])).sum()) / len(self.rows)


@rule(
    "utilization.step_time",
    says="annotated steps take another time than in the baseline, or more calls in them wait for the device",
    needs="traces of both arms with annotated steps (ProfilerStep#, record_function)",
)
def step_time(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """One signal a pair of traces. A warning only where longer steps go with more such calls: a trace is of one
    process, and the steps of another one of the same program would last longer or shorter too."""
    signals = []
    for pair in arms.pairs(observations, criteria, Spans):
        found = _both(pair)
        if found is None:
            continue
        before, after = found
        more = _more_syncs(before, after)
        change = log_change(before.lengths_ns.astype(np.float64), after.lengths_ns.astype(np.float64), TAIL)
        if change is None:
            continue
        is_sure = (change.lo > 0 or change.hi < 0) and abs(change.mean) >= math.log(MIN_RATIO)
        if is_sure or more:
            signals.append(_signal(before, after, change, more, is_sure))
    return signals


def _both(pair: Pair[Spans]) -> tuple[Steps, Steps] | None:
    if pair.baseline is None or pair.candidate is None:
        return None
    before, after = _steps(pair.baseline), _steps(pair.candidate)
    return (before, after) if before and after and before.name == after.name else None


def _steps(spans: Spans) -> Steps | None:
    """The steps that follow each other on one thread; None with too few of them."""
    rows = timeline.steps(spans)
    if not len(rows):
        rows = _regions(spans)
    if not len(rows):
        return None
    tracks, counts = np.unique(spans.track[rows], return_counts=True)
    rows = rows[spans.track[rows] == tracks[np.argmax(counts)]]
    rows = rows[outermost(spans.start_ns[rows], spans.end_ns[rows], spans.track[rows])]
    rows = rows[np.argsort(spans.start_ns[rows], kind="stable")]
    name = re.sub(r"[\d#\s]+", "", spans.names[spans.name[rows[0]]])
    return Steps(spans, name, rows) if len(rows) >= MIN_STEPS else None


def _regions(spans: Spans) -> Ints:
    """Where nothing is called a step: the annotated regions of the name that takes the most time."""
    rows = np.flatnonzero(timeline.is_a(spans, "user_annotation") & timeline.on_host(spans))
    by_name: dict[str, list[int]] = {}
    for row in rows.tolist():
        by_name.setdefault(re.sub(r"\d+", "", spans.names[spans.name[row]]), []).append(row)
    often = [np.array(of, dtype=np.int64) for of in by_name.values() if len(of) >= MIN_STEPS]
    return max(often, key=lambda of: int((spans.end_ns[of] - spans.start_ns[of]).sum()), default=rows[:0])


def _signal(
    before: Steps, after: Steps, change: Interval, more: Sequence[tuple[str, float, float]], is_sure: bool
) -> Signal:
    a, b = (float(np.median(s.lengths_ns)) / 1e6 for s in (before, after))
    lo, hi = (math.exp(x) for x in (change.lo, change.hi))
    is_cause = bool(more) and is_sure and change.mean > 0
    waits = "each waits for the device" if timeline.devices(after.spans) else "each would wait for a device"
    said = "; ".join(f"{name} {n0:.4g} -> {n1:.4g} calls a step" for name, n0, n1 in more[:2])
    n = f"{len(before.rows)} and {len(after.rows)} steps of one process each" + ("" if is_sure else ", not surely")
    longest = Intervals(after.spans.start_ns[after.rows], after.spans.end_ns[after.rows])
    return Signal(
        rule_id="utilization.step_time", level="warning" if is_cause else "note", finding="observed",
        message=f"{after.name[:60]}: {a:.4g} -> {b:.4g} ms, median of {n}" + (f"; {said}" if said else ""),
        locations=(timeline.stretch(after.spans, f"steps {after.name[:60]}", longest),
                   *(KernelLocation(name=name) for name, *_ in more)),
        measured=(Quantity(name="step time", value=b, unit="ms, median"),
                  Quantity(name="step time against the baseline", value=math.exp(change.mean),
                           unit=f"x, {change.confidence:.0%} interval over steps", lo=lo, hi=hi),
                  *(Quantity(name=name, value=n1, unit="calls a step") for name, _, n1 in more)),
        expected=(Quantity(name="step time", value=a, unit="ms, median"),
                  *(Quantity(name=name, value=n0, unit="calls a step") for name, n0, _ in more)),
        causes=(
            Cause(text=f"the host asks for values of tensors more often ({more[0][0]}): {waits}",
                  refutable_by="the step lasts as long with the values kept in tensors (no .item(), no bool())"),
        ) if is_cause else (),
        caveats=("one process an arm: the interval is of its steps, and doesn't know how a second process would differ",
                 "a profiler costs time at every operator: more operators look slower than they are"),
        next=("find the .item(), .tolist() or bool(tensor) in the step (a trace with_stack names the line)",)
        if more else ("time the step without a profiler in five fresh processes an arm",),
        evidence=tuple(
            Evidence(artefact=s.spans.file, detail=f"{len(s.rows)} steps", start_ns=int(s.spans.start_ns[s.rows[0]]),
                     end_ns=int(s.spans.end_ns[s.rows[-1]]), query=f"user_annotation {s.name[:60]}, outermost")
            for s in (after, before)
        ),
    )  # fmt: skip


def _more_syncs(before: Steps, after: Steps) -> list[tuple[str, float, float]]:
    """Calls that wait for the device of which there are more in a step, with their numbers; most first."""
    found = []
    for name in (n for n in after.spans.names if SYNC.search(n)):
        n0, n1 = before.calls(name), after.calls(name)
        if n1 >= MORE_SYNCS * n0 and n1 - n0 >= 1:
            found.append((name, n0, n1))
    # One inside the other, as many: `item` is what the code calls.
    inner = [x for x in found if x[0] == "aten::_local_scalar_dense" and ("aten::item", *x[1:]) in found]
    return sorted((x for x in found if x not in inner), key=lambda x: (x[1] - x[2], x[0]))
