"""Rules on whether the numbers mean what they seem to: same work, varying outputs, possible speeds."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median

from feedback.criteria import Criteria
from feedback.observations import Measurement, Observation, ParityPoint, RuntimeEvent
from feedback.rules import rule
from feedback.rules.cases import evidence, key, number, text, where
from feedback.rules.parity.points import errors, grouped
from feedback.rules.performance.scaling import roofs, scalings
from feedback.rules.performance.work import REAL_CHANGE_OF_WORK
from feedback.signals import Cause, InputLocation, Level, ProcessLocation, Quantity, Signal
from feedback.stats import interval

MIN_SEEDS = 3
LEAST_CLOCK_S = 1e-6
"""A single stretch of work shorter than this is not told apart from reading the clock twice."""
MIN_INSTRUCTIONS = 1000
FLAT = 0.05
"""An exponent below it is no dependence on the size."""
WIDE = 8.0
"""Sizes must span this factor to say that a time does not depend on them."""
ABOVE_ROOF = 1.05
MOVED_UNITS = 5
LEAST_GAIN = 0.1


@rule(
    "integrity.work_mismatch",
    says="for the same seeds the arms gave different results, so their times do not compare the same work",
    needs="slice records with checksums",
)
def work_mismatch(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """The arms' checksums of the same slices must agree, or the times compare different work."""
    signals = []
    for o in observations:
        if not isinstance(o, ParityPoint) or o.tensor != "check" or o.stage != criteria.stage:
            continue
        allowed = math.inf if o.tolerance is None else o.tolerance
        if o.value <= allowed:
            continue
        signals.append(
            Signal(
                rule_id="integrity.work_mismatch",
                level="error",
                finding="violates",
                message=f"{o.probe}: for the same seeds the arms' results differ by {o.value:.3g} (allowed "
                f"{allowed:.3g}): their times don't compare the same work",
                locations=where(criteria, o.probe),
            )
        )
    return signals


def _measured(observations: Iterable[Observation], criteria: Criteria, *metrics: str) -> list[Measurement]:
    return [
        o
        for o in observations
        if isinstance(o, Measurement)
        and o.stage == criteria.stage
        and o.metric in metrics
        and not (o.disturbed or o.warmup)
        and math.isfinite(o.value)
    ]


@rule(
    "integrity.work_unproven",
    says="the worker sends no checksums, so nothing proves that both arms did the same work",
    needs="slice records without checksums",
)
def work_unproven(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """The baseline's worker sends no checksums, so times are compared on trust."""
    return [
        Signal(
            rule_id="integrity.work_unproven", level="note", finding="abstained",
            message=f"{o.probe}: nothing proves that both arms did the same work: the baseline sends no `check`"[:400],
            reason="there are no checksums to compare", locations=(ProcessLocation(arm="baseline", role=o.probe),),
            next=("let the worker answer every slice with a `check` that depends on all of its results",),
        )
        for o in observations
        if isinstance(o, RuntimeEvent) and o.source == "check" and o.stage == criteria.stage
    ]  # fmt: skip


@rule(
    "integrity.constant_output",
    says="outputs do not depend on the seed, so the check on them proves nothing",
    needs="`distinct_checks` of slices, or rms_ratio for three seeds or more",
)
def constant_output(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """Checksums that are the same for all seeds, and errors that are the same to the last bit."""
    signals = []
    counts: dict[str, dict[str, Measurement]] = defaultdict(dict)
    for m in _measured(observations, criteria, "distinct_checks"):
        if (number(m.case.get("seeds")) or 0) >= MIN_SEEDS:
            counts[m.probe][m.arm] = m
    for probe, arms in counts.items():
        constant = [arm for arm, m in arms.items() if m.value <= 1]
        if "candidate" in constant or constant == [*arms]:
            new = "baseline" in arms and "baseline" not in constant
            also = " in the candidate, not in the baseline" if new else ""
            fact = arms.get("candidate") or arms["baseline"]
            said = f"the checksum of all {fact.case['seeds']} seeds is the same{also}"
            signals.append(_constant(probe, said, "error" if new else "warning", fact, criteria))
    for place, of in grouped(errors(observations, criteria)).items():
        seeds = {p.case["seed"] for p in of if "seed" in p.case}
        value = of[0].value
        # An error of exactly 1 is a zero output, and has a rule of its own.
        usual = value not in (0.0, 1.0) and math.isfinite(value)
        if place.arm == "candidate" and len(seeds) > MIN_SEEDS and usual and all(p.value == value for p in of):
            said = f"the error of {place.tensor} is {value:.6g} for all {len(seeds)} seeds, to the last bit"
            signals.append(_constant(place.probe, said, "warning", of[0], criteria))
    return signals


def _constant(probe: str, said: str, level: Level, fact: Measurement | ParityPoint, criteria: Criteria) -> Signal:
    return Signal(
        rule_id="integrity.constant_output", level=level, finding="violates" if level == "error" else "observed",
        message=f"{probe}: {said}"[:400], locations=where(criteria, probe, InputLocation(condition=fact.case)),
        causes=(
            Cause(text="the seed does not reach the inputs", refutable_by="two seeds give different inputs"),
            Cause(text="the output is not written, or a stored one is returned",
                  refutable_by="a buffer filled with NaN before the call is overwritten"),
            Cause(text="the checksum is too coarse", refutable_by="one changed element changes it"),
        ),
        evidence=evidence([fact]), next=("print the checksum of the inputs and of the outputs for two seeds",),
    )  # fmt: skip


@rule(
    "integrity.impossible_speed",
    says="a time is below what the hardware, or the clock, can tell",
    needs="slice times; or cases that declare flops and bytes, with the machine's peaks",
)
def impossible_speed(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """Slices shorter than the clock resolves, and candidates above a limit that the baseline keeps. Where the
    baseline is above it too, the peaks are wrong: `performance.roofline` abstains."""
    signals = []
    short: dict[str, list[Measurement]] = defaultdict(list)
    for m in _measured(observations, criteria, "slice_time_s", "time_s"):
        n = number(m.case.get("iterations")) if m.metric == "time_s" else 1.0
        if n and m.value * n < LEAST_CLOCK_S:
            short[m.probe].append(m)
    for probe, of in short.items():
        least = min(of, key=lambda m: m.value)
        signals.append(
            Signal(
                rule_id="integrity.impossible_speed", level="warning", finding="observed",
                message=f"{probe}: {len(of)} times below {LEAST_CLOCK_S:.0e} s, such as {least.value:.2g} s in the "
                f"{least.arm}: the clock's resolution, not work",
                locations=where(criteria, probe, InputLocation(condition=least.case)), evidence=evidence(of),
                measured=(Quantity(name=least.metric, value=least.value, unit="s"),),
                expected=(Quantity(name=least.metric, value=LEAST_CLOCK_S, unit="s"),),
                next=("put enough iterations into a slice for it to take 1 ms",),
            )
        )  # fmt: skip
    attained = roofs(observations, criteria)
    for probe in dict.fromkeys(r.probe for r in attained):
        of_probe = [r for r in attained if r.probe == probe]
        before = {key(r.case): r.attained for r in of_probe if r.arm == "baseline"}
        above = [r for r in of_probe if r.arm == "candidate" and r.attained > ABOVE_ROOF]
        if not above or not before or max(before.values()) > 1:
            continue
        worst = max(above, key=lambda r: r.attained)
        signals.append(
            Signal(
                rule_id="integrity.impossible_speed", level="error", finding="violates",
                message=f"{probe}: {text(key(worst.case))} runs at {worst.attained:.0%} of the {worst.bound} limit, "
                f"which the baseline keeps: not all of the declared work is done"[:400],
                locations=where(criteria, probe, InputLocation(condition=worst.case)),
                measured=(Quantity(name="attained share of the limit", value=worst.attained),),
                expected=(Quantity(name="attained share of the limit", value=1.0),),
                causes=(
                    Cause(text="work is skipped: a cached result, an early exit, a launch that isn't waited for",
                          refutable_by="new inputs and a wait before the clock is read keep the time"),
                    Cause(text="the candidate's data fits into a nearer cache than the peak was measured in",
                          refutable_by="a working set beyond the last cache is as fast"),
                ),
                evidence=evidence([worst.fact]), next=("compare the outputs of the timed iterations themselves",),
            )
        )  # fmt: skip
    return signals


@rule(
    "integrity.moved_work",
    says="the timed part got faster, the whole process did not: work may have moved out of the timed part",
    needs="slice times with `process_cpu_s` of the same processes, or executed instructions",
)
def moved_work(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """Seconds saved in the slices against seconds saved in the process, pair by pair; else instruction counts."""
    slices = _measured(observations, criteria, "slice_time_s")
    cpu = _measured(observations, criteria, "process_cpu_s")
    counts = [m for m in _measured(observations, criteria, "instructions") if "function" not in m.case]
    signals = []
    for probe in dict.fromkeys(m.probe for m in slices):
        mine = [m for m in slices if m.probe == probe]
        before, after = _values(mine, "baseline"), _values(mine, "candidate")
        if not before or not after or median(after) > (1 - LEAST_GAIN) * median(before) or median(before) <= 0:
            continue
        gain = 1 - median(after) / median(before)
        shares = _kept(mine, [m for m in cpu if m.probe == probe])
        if len(shares) >= MOVED_UNITS:
            i = interval(shares, 0.005)
            if i.hi < 0.5:
                said = f"slices take {gain:.0%} less, but the process saves only {max(0.0, i.mean):.0%} of that"
                measured = Quantity(name="share of the saving that the process keeps", value=i.mean, lo=i.lo, hi=i.hi)
                signals.append(_moved(probe, said, "warning", measured, mine, criteria))
            continue
        was, now = _values(counts, "baseline"), _values(counts, "candidate")
        if was and now and median(was) > 0 and abs(median(now) / median(was) - 1) <= REAL_CHANGE_OF_WORK:
            said = f"slices take {gain:.0%} less with the same number of executed instructions ({median(now):.4g})"
            measured = Quantity(name="executed instructions", value=median(now))
            signals.append(_moved(probe, said, "note", measured, [*mine[:1], *counts[:1]], criteria))
    return signals


def _values(measurements: Iterable[Measurement], arm: str) -> list[float]:
    return [m.value for m in measurements if m.arm == arm]


def _kept(slices: Sequence[Measurement], cpu: Sequence[Measurement]) -> list[float]:
    """Of the time that a pair saves in its slices, the share that its process saves; pairs in which the saving is
    too small a part of the process to be seen are left out."""
    sums: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for m in slices:
        sums[m.pair][m.arm] += m.value
    whole: dict[int, dict[str, float]] = defaultdict(dict)
    for m in cpu:
        whole[m.pair][m.arm] = m.value
    found = []
    for pair, arms in sums.items():
        if arms.keys() == whole[pair].keys() == {"baseline", "candidate"}:
            saved = arms["baseline"] - arms["candidate"]
            if saved > 0.05 * whole[pair]["baseline"]:
                found.append((whole[pair]["baseline"] - whole[pair]["candidate"]) / saved)
    return found


def _moved(
    probe: str, said: str, level: Level, measured: Quantity, facts: Sequence[Measurement], criteria: Criteria
) -> Signal:
    causes = (
        Cause(text="caches, vector width or waiting changed, not the amount of work", support="moderate",
              refutable_by="cache misses and IPC are the same"),
        Cause(text="work moved to set-up, to another thread or past the end of the slice",
              support="moderate" if level == "warning" else "weak",
              refutable_by="timing the whole process shows the same gain"),
    )  # fmt: skip
    return Signal(
        rule_id="integrity.moved_work", level=level, finding="observed", message=f"{probe}: {said}"[:400],
        locations=where(criteria, probe), measured=(measured,),
        causes=causes[::-1] if level == "warning" else causes, evidence=evidence(facts),
        next=("time whole processes of both arms, from start to end", "count instructions by function"),
    )  # fmt: skip


@rule(
    "integrity.measures_nothing",
    says="a benchmark's time does not depend on its size, or it hardly executes anything",
    needs="times at four sizes that span a factor of 8, or executed instructions",
)
def measures_nothing(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """Benchmarks that do no work that grows: one signal a benchmark and size parameter."""
    signals = []
    for s in scalings(observations, criteria):
        flat = []
        for arm in s.times:
            law = s.law(arm)
            if law and law.highest >= WIDE * law.lowest and abs(law.slope) + 3 * law.error < FLAT:
                flat.append((arm, law))
        if not flat or (len(flat) < len(s.times) and flat[0][0] == "baseline") or not _is_size(s.axis):
            continue
        arm, law = flat[-1]
        new = len(s.times) == 2 and len(flat) == 1
        signals.append(
            Signal(
                rule_id="integrity.measures_nothing", level="warning", finding="observed",
                message=f"{s.probe}: {text(s.rest)} takes as long at {s.axis}={law.lowest:g} as at {law.highest:g} "
                f"(exponent {law.slope:.3f}){', unlike in the baseline' if new else ''}"[:400],
                locations=where(criteria, s.probe, InputLocation(condition={**dict(s.rest), "axis": s.axis})),
                measured=(Quantity(name=f"exponent in {s.axis}", value=law.slope),),
                causes=(
                    Cause(text="the work is launched but not waited for, or optimised away",
                          refutable_by="using the result, after a wait, keeps the time"),
                    Cause(text="a fixed cost (launch, dispatch, Python) hides the work at these sizes",
                          refutable_by=f"{s.axis}={law.highest * 16:g} takes as long"),
                ),
                evidence=evidence(s.facts), next=(f"one run at {s.axis}={law.highest * 16:g}",),
            )
        )  # fmt: skip
    for m in _measured(observations, criteria, "instructions"):
        if "function" not in m.case and 0 < m.value < MIN_INSTRUCTIONS and m.arm == "candidate":
            signals.append(
                Signal(
                    rule_id="integrity.measures_nothing", level="warning", finding="observed",
                    message=f"{m.probe}: {m.value:g} instructions executed in all: what is counted hardly runs",
                    locations=where(criteria, m.probe, InputLocation(condition=m.case)), evidence=evidence([m]),
                    measured=(Quantity(name="executed instructions", value=m.value),),
                    next=("check that the counted function is called, and that its result is used",),
                )
            )  # fmt: skip
    return signals


_SIZES = ("t", "n", "m", "k", "s", "batch", "size", "len", "tokens", "context", "elements", "bytes", "rows", "cols")


def _is_size(axis: str) -> bool:
    """Whether a parameter's name is that of an amount of work, rather than of a setting."""
    name = axis.lower()
    return name in _SIZES or name.startswith("n_") or name.endswith(tuple(f"_{s}" for s in _SIZES))
