"""Rules on being right: errors against an oracle or the baseline, by case and tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence

from feedback.criteria import Criteria
from feedback.observations import Observation, ParityPoint, RuntimeEvent
from feedback.rules import rule
from feedback.signals import InputLocation, ProcessLocation, Signal

MAX_LOCATED = 3
"""Cases that are named one by one; the rest are counted."""


@rule(
    "parity.numeric_error",
    says="the outputs of a probe are within tolerance of the truth, or where they are not",
    needs="parity points with a tolerance",
)
def numeric_error(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """One signal a probe: the candidate's errors are within tolerance, or where they are not."""
    points = [
        o
        for o in observations
        if isinstance(o, ParityPoint)
        and o.stage == criteria.stage
        and o.arm == "candidate"
        and o.tensor != "check"
        and o.tolerance is not None
    ]
    signals = []
    for probe in sorted({p.probe for p in points}):
        of_probe = [p for p in points if p.probe == probe]
        broken = sorted((p for p in of_probe if not p.value <= _allowed(p)), key=lambda p: -_excess(p))
        signals.append(
            _violated(probe, broken, len(of_probe), criteria) if broken else _held(probe, of_probe, criteria)
        )
    return signals


def _allowed(point: ParityPoint) -> float:
    return math.inf if point.tolerance is None else point.tolerance


def _excess(point: ParityPoint) -> float:
    return point.value / point.tolerance if point.tolerance and math.isfinite(point.value) else math.inf


def _held(probe: str, points: Sequence[ParityPoint], criteria: Criteria) -> Signal:
    worst = max(points, key=_excess)
    return Signal(
        rule_id="parity.numeric_error", level="note", finding="holds", role=criteria.role_of(probe),
        message=f"{probe}: all {len(points)} comparisons within tolerance; worst {worst.tensor} "
        f"{worst.measure} {worst.value:.3g} of {_allowed(worst):.3g} allowed"[:400],
        locations=criteria.changed,
    )  # fmt: skip


def _violated(probe: str, broken: Sequence[ParityPoint], n: int, criteria: Criteria) -> Signal:
    worst = broken[0]
    cases = tuple(InputLocation(condition={**p.case, "tensor": p.tensor}) for p in broken[:MAX_LOCATED])
    tensors = sorted({p.tensor for p in broken})
    return Signal(
        rule_id="parity.numeric_error", level="error", finding="violates", role=criteria.role_of(probe),
        message=f"{probe}: {len(broken)} of {n} comparisons beyond tolerance ({', '.join(tensors)[:80]}); worst "
        f"{worst.tensor} {worst.measure} {worst.value:.3g}, allowed {_allowed(worst):.3g}, "
        f"at {_condition(worst)}"[:400],
        locations=(*cases, *criteria.changed),
        next=("find the smallest case that differs and compare step by step with the parent",),
    )  # fmt: skip


def _condition(point: ParityPoint) -> str:
    return " ".join(f"{k}={v}" for k, v in point.case.items())


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
        if o.value <= _allowed(o):
            continue
        signals.append(
            Signal(
                rule_id="integrity.work_mismatch",
                level="error",
                finding="violates",
                message=f"{o.probe}: for the same seeds the arms' results differ by {o.value:.3g} (allowed "
                f"{_allowed(o):.3g}): their times don't compare the same work",
                locations=criteria.changed,
            )
        )
    return signals


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
