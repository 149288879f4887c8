"""Times over shapes: how they scale, and how far they are from what the hardware could do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from feedback.criteria import Criteria
from feedback.observations import Measurement, Observation, Scalar
from feedback.rules import rule
from feedback.rules.cases import Key, evidence, key, number, parameters, text, times, where
from feedback.rules.performance.compared import is_time
from feedback.signals import Cause, InputLocation, Quantity, Signal
from feedback.stats import discoveries
from feedback.trends import MIN_SIZES, PowerLaw, power_law

SURE = 0.01
LEAST_CHANGE = 0.1
"""Exponents closer than this are called equal."""
GOOD_FIT = 0.9


class Scaling(NamedTuple):
    """Times of one benchmark along one numeric parameter, the others fixed."""

    probe: str
    metric: str
    axis: str
    rest: Key
    times: dict[str, dict[float, float]]
    """Median time by arm and size."""
    facts: tuple[Measurement, ...]

    def law(self, arm: str) -> PowerLaw | None:
        """The fitted power law of an arm."""
        sizes = sorted(self.times.get(arm, {}))
        return power_law(sizes, [self.times[arm][s] for s in sizes]) if len(sizes) >= MIN_SIZES else None


def scalings(observations: Sequence[Observation], criteria: Criteria) -> list[Scaling]:
    """Every benchmark along every numeric parameter that has at least four sizes in an arm."""
    groups: dict[tuple[str, str, str, Key], list[tuple[float, Measurement]]] = {}
    shapes: dict[Key, dict[str, Scalar]] = {}
    for o in observations:
        if not (isinstance(o, Measurement) and o.stage == criteria.stage and is_time(o.metric) and o.case):
            continue
        if o.warmup or o.disturbed or not (math.isfinite(o.value) and o.value > 0):
            continue
        case = shapes.setdefault(key(o.case), parameters(o.case))
        for axis, value in key(case):
            if (size := number(value)) is not None and size > 0:
                groups.setdefault((o.probe, o.metric, axis, key(case, {axis})), []).append((size, o))
    found = []
    for (probe, metric, axis, rest), points in groups.items():
        raw: dict[str, dict[float, list[float]]] = {}
        for size, m in points:
            raw.setdefault(m.arm, {}).setdefault(size, []).append(m.value)
        times = {arm: {size: median(v) for size, v in sizes.items()} for arm, sizes in raw.items()}
        if max(len(sizes) for sizes in times.values()) >= MIN_SIZES:
            found.append(Scaling(probe, metric, axis, rest, times, tuple(m for _, m in points[:1] + points[-1:])))
    return found


@rule(
    "performance.scaling",
    says="how the time grows with each shape parameter, and where that changed between the arms",
    needs="times at four sizes or more",
)
def scaling(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """Exponents that changed; of a single arm, the exponents."""
    found = scalings(observations, criteria)
    both = [(s, ratio) for s in found if (ratio := _ratio(s))]
    stand = discoveries([ratio.exponent.p for _, ratio in both], SURE)
    signals = [
        _changed(s, ratio, criteria)
        for (s, ratio), stands in zip(both, stand, strict=True)
        if stands and abs(ratio.slope) >= LEAST_CHANGE
    ]
    alone = [s for s in found if len(s.times) == 1]
    return signals + [signal for s in alone if (signal := _alone(s, criteria))]


def _ratio(s: Scaling) -> PowerLaw | None:
    """candidate / baseline over the common sizes: what bends both curves alike drops out."""
    if len(s.times) < 2:
        return None
    sizes = sorted(s.times["baseline"].keys() & s.times["candidate"].keys())
    if len(sizes) < MIN_SIZES:
        return None
    return power_law(sizes, [s.times["candidate"][x] / s.times["baseline"][x] for x in sizes])


def _changed(s: Scaling, ratio: PowerLaw, criteria: Criteria) -> Signal:
    i = ratio.exponent.interval(1 - SURE)
    laws = {arm: s.law(arm) for arm in ("baseline", "candidate")}
    said = " -> ".join(f"{s.axis}^{law.slope:.2f}" for law in laws.values() if law)
    ends = ", ".join(f"x{ratio.at(size):.2g} at {s.axis}={size:g}" for size in (ratio.lowest, ratio.highest))
    equal = math.exp(min(700.0, max(-700.0, -ratio.intercept / ratio.slope)))
    meet = f"; equal near {s.axis}={equal:.3g}" if ratio.lowest / 4 <= equal <= ratio.highest * 4 else ""
    worse = ratio.slope > 0
    return Signal(
        rule_id="performance.scaling", level="warning" if worse else "note", finding="observed",
        message=f"{_name(s)}: {s.metric} {said}: candidate/baseline {ends}{meet}"[:400],
        locations=where(criteria, s.probe, InputLocation(condition=_condition(s))),
        measured=(Quantity(name=f"exponent of candidate/baseline in {s.axis}", value=i.mean, lo=i.lo, hi=i.hi),),
        expected=(Quantity(name=f"exponent of candidate/baseline in {s.axis}", value=0.0),),
        causes=(
            Cause(
                text=f"work that is repeated for each {s.axis}" if worse else f"less work for each {s.axis}",
                refutable_by=f"instruction counts at two sizes of {s.axis} grow alike in both arms",
            ),
        ),
        evidence=evidence(s.facts),
        next=(f"count instructions at {s.axis}={ratio.lowest:g} and {ratio.highest:g} in both arms",),
    )  # fmt: skip


def _alone(s: Scaling, criteria: Criteria) -> Signal | None:
    (arm,) = s.times
    law = s.law(arm)
    if law is None or law.r2 < GOOD_FIT or law.slope < LEAST_CHANGE:
        return None
    i = law.exponent.interval(0.95)
    return Signal(
        rule_id="performance.scaling", level="note", finding="observed",
        message=f"{_name(s)}: {s.metric} grows as {s.axis}^{law.slope:.2f} [{i.lo:.2f}, {i.hi:.2f}] from "
        f"{s.axis}={law.lowest:g} to {law.highest:g} (R2 {law.r2:.3f})"[:400],
        locations=where(criteria, s.probe, InputLocation(condition=_condition(s))),
        measured=(Quantity(name=f"exponent in {s.axis}", value=law.slope, lo=i.lo, hi=i.hi),),
        evidence=evidence(s.facts),
    )  # fmt: skip


def _name(s: Scaling) -> str:
    return f"{s.probe}: {text(s.rest)}" if s.rest else s.probe


def _condition(s: Scaling) -> dict[str, Scalar]:
    return {**dict(s.rest), "axis": s.axis}


@rule(
    "performance.roofline",
    says="what share of the hardware's limit each case attains, and what could still be gained",
    needs="cases that declare flops and bytes, and the machine's peaks",
)
def roofline(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """Headroom of the candidate's cases (of the baseline's where there is no candidate): one signal a probe."""
    signals = []
    attained = roofs(observations, criteria)
    for probe in dict.fromkeys(r.probe for r in attained):
        of = [r for r in attained if r.probe == probe]
        arm = "candidate" if any(r.arm == "candidate" for r in of) else "baseline"
        signals.append(_roofline(probe, [r for r in of if r.arm == arm], criteria))
    return signals


class Roof(NamedTuple):
    """How near a case is to the limit that its arithmetic intensity sets."""

    probe: str
    arm: str
    case: dict[str, Scalar]
    attained: float
    """Least possible time / measured time."""
    bound: str
    fact: Measurement


def roofs(observations: Sequence[Observation], criteria: Criteria) -> list[Roof]:
    """Every case of which `flops` or `bytes` are known, from the case itself or as measurements of it. Peaks stand in
    the case, or are measurements `peak_flops_per_s` and `peak_bytes_per_s`, of which the largest holds."""
    peaks: dict[str, float] = {}
    work_of: dict[tuple[str, str, Key], float] = {}
    groups: dict[tuple[str, str, Key], list[Measurement]] = {}
    for o in observations:
        if not isinstance(o, Measurement) or not math.isfinite(o.value) or o.value <= 0:
            continue
        if o.metric in ("peak_flops_per_s", "peak_bytes_per_s"):
            peaks[o.metric] = max(peaks.get(o.metric, 0.0), o.value)
        elif o.metric in ("flops", "bytes"):
            work_of[o.probe, o.metric, key(o.case)] = o.value
        elif o.stage == criteria.stage and o.metric in ("time_s", "slice_time_s") and not o.warmup:
            groups.setdefault((o.probe, o.arm, key(o.case)), []).append(o)
    found = []
    for (probe, arm, case), ms in groups.items():
        limits = {}
        for work, bound in (("flops", "compute"), ("bytes", "bandwidth")):
            amount = number(ms[0].case.get(work)) or work_of.get((probe, work, case))
            peak = number(ms[0].case.get(f"peak_{work}_per_s")) or peaks.get(f"peak_{work}_per_s")
            if amount and peak and amount > 0 and peak > 0:
                limits[bound] = amount / peak
        if limits:
            bound = max(limits, key=lambda b: limits[b])
            attained = limits[bound] / median(m.value for m in ms)
            if 0 < attained < math.inf:
                found.append(Roof(probe, arm, ms[0].case, attained, bound, ms[0]))
    return found


def _roofline(probe: str, of: Sequence[Roof], criteria: Criteria) -> Signal:
    above = [r for r in of if r.attained > 1]
    worst = min(of, key=lambda r: r.attained)
    best = max(of, key=lambda r: r.attained)
    if above:
        reason = f"{len(above)} of {len(of)} cases attain more than the peak ({best.attained:.0%} at {text(best.case)})"
        return Signal(
            rule_id="performance.roofline", level="note", finding="abstained", reason=f"uncalibrated: {reason}"[:400],
            message=f"{probe}: {reason}: the peaks are too low, or the declared work is too high"[:400],
            locations=where(criteria, probe, InputLocation(condition=best.case)), evidence=evidence([best.fact]),
            next=("measure the peaks again: the maximum of 5 spaced runs on a quiet machine, for each cache level",),
        )  # fmt: skip
    done = worst.attained >= 0.95
    headroom = "nothing left to gain" if done else f"at most {times(1 / worst.attained)} to gain"
    return Signal(
        rule_id="performance.roofline", level="note", finding="observed",
        message=f"{probe}: {worst.attained:.0%} of the {worst.bound} limit at {text(_shape(worst.case))} ({headroom}); "
        f"best {best.attained:.0%} at {text(_shape(best.case))}"[:400],
        locations=where(criteria, probe, InputLocation(condition=worst.case)),
        measured=(Quantity(name="attained share of the limit", value=worst.attained),),
        expected=(Quantity(name="attained share of the limit", value=1.0),),
        causes=() if worst.attained >= 0.6 else (
            Cause(text="neither compute nor bandwidth is used: latency, launches, waiting or too little parallel work",
                  support="weak", refutable_by="a case 4 times as large attains the same share"),
        ),
        evidence=evidence([worst.fact, best.fact]),
        next=() if done else (f"look for what is not {worst.bound} at {text(_shape(worst.case))}: a profile",),
    )  # fmt: skip


def _shape(case: dict[str, Scalar]) -> Key:
    return key(case)
