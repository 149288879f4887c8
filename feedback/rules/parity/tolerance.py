"""Errors against the tolerance that their file states."""

from __future__ import annotations

import math
from collections.abc import Sequence

from feedback.criteria import Criteria
from feedback.observations import Observation, ParityPoint
from feedback.rules import rule
from feedback.rules.cases import evidence, where
from feedback.rules.parity.points import judged
from feedback.signals import InputLocation, Signal

MAX_LOCATED = 3
"""Cases that are named one by one; the rest are counted."""


@rule(
    "parity.numeric_error",
    says="the outputs of a probe are within tolerance of the truth, or where they are not",
    needs="parity points with a tolerance",
)
def numeric_error(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """One signal a probe: the candidate's errors are within tolerance, or where they are not."""
    points = judged(observations, criteria)
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
        locations=where(criteria, probe), evidence=evidence([worst]),
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
        locations=(*cases, *criteria.changed), evidence=evidence(broken),
        next=("find the smallest case that differs and compare step by step with the parent",),
    )  # fmt: skip


def _condition(point: ParityPoint) -> str:
    return " ".join(f"{k}={v}" for k, v in point.case.items())
