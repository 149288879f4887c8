"""Which part of the conditions goes with large errors: region, shape, partition or dtype."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from feedback.criteria import Criteria
from feedback.observations import Observation, ParityPoint, Scalar
from feedback.rules import rule
from feedback.rules.cases import evidence, separating, where
from feedback.rules.parity.points import judged
from feedback.signals import InputLocation, Quantity, Signal


@rule(
    "parity.breakdown",
    says="all errors beyond tolerance share one condition that no sound case has",
    needs="parity points with a tolerance, some within and some beyond it",
)
def breakdown(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """The one condition that tells the candidate's violations from what is within tolerance, and how errors are
    spread over its values: one signal a probe."""
    signals = []
    points = judged(observations, criteria)
    for probe in dict.fromkeys(p.probe for p in points):
        of = [p for p in points if p.probe == probe]
        broken = [p for p in of if not p.value <= (p.tolerance or 0.0)]
        rest = [p for p in of if p.value <= (p.tolerance or 0.0)]
        at = separating([_condition(p) for p in broken], [_condition(p) for p in rest])
        if at:
            signals.append(_where(probe, at, broken, rest, criteria))
    return signals


def _condition(p: ParityPoint) -> dict[str, Scalar]:
    return {**p.case, "tensor": p.tensor}


def _where(
    probe: str, at: str, broken: Sequence[ParityPoint], rest: Sequence[ParityPoint], criteria: Criteria
) -> Signal:
    name = at.partition("=")[0].rstrip("<>")
    by: dict[str, list[float]] = defaultdict(list)
    for p in (*broken, *rest):
        by[str(_condition(p)[name])].append(p.value if math.isfinite(p.value) else math.inf)
    table = {value: median(errors) for value, errors in by.items()}
    spread = ", ".join(f"{v}: {e:.2g}" for v, e in sorted(table.items(), key=lambda x: -x[1])[:4])
    return Signal(
        rule_id="parity.breakdown", level="warning", finding="observed",
        message=f"{probe}: all {len(broken)} errors beyond tolerance have {at}, none of the {len(rest)} others; "
        f"median error by {name}: {spread}"[:400],
        locations=where(criteria, probe, InputLocation(condition={"where": at})),
        measured=tuple(
            Quantity(name=f"median error, {name}={v}"[:80], value=e)
            for v, e in list(table.items())[:8] if math.isfinite(e)
        ),
        evidence=evidence(broken),
        next=(f"the cheapest case with {at}: it is enough to work on", "the nearest case without, beside it"),
    )  # fmt: skip
