"""Errors that grow with a size: which law, whether it is worse than the baseline's, and where it ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from feedback.criteria import Criteria
from feedback.observations import Observation, ParityPoint
from feedback.rules import rule
from feedback.rules.cases import evidence, number, text, where
from feedback.rules.parity.points import Where, errors, lines
from feedback.signals import Cause, InputLocation, Quantity, Signal
from feedback.trends import Growth, growth

UNSTABLE = 1.3
"""A log-log slope above it is faster than a constant bias adds up."""
WORSE_SLOPE = 0.2
CONFIDENCE = 0.99

_MEANS = {
    "constant": "does not grow",
    "square root": "grows as the square root, as independent roundings add up",
    "linear": "grows linearly, as a bias adds up",
    "quadratic": "grows quadratically",
    "power": "grows as a power",
    "exponential": "grows exponentially: an unstable recurrence",
}


class _Line(NamedTuple):
    place: Where
    axis: str
    sizes: dict[float, float]
    law: Growth
    points: list[ParityPoint]


@rule(
    "parity.numeric_growth",
    says="how an error grows with length, whether faster than before, and what it extrapolates to",
    needs="rms_ratio at four sizes or more; `T_max` in the case for the extrapolation",
)
def numeric_growth(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """Growth that is faster than the baseline's, unstable, or beyond the tolerance at the stated maximum."""
    fitted = {line.place: line for line in _lines(errors(observations, criteria))}
    signals = []
    for place, line in fitted.items():
        if place.arm != "candidate" and place._replace(arm="candidate") in fitted:
            continue
        before = fitted.get(place._replace(arm="baseline")) if place.arm == "candidate" else None
        ends = _ends(line)
        reasons = []
        slope = line.law.power.exponent.interval(CONFIDENCE)
        if before is not None:
            was = before.law.power.exponent.interval(CONFIDENCE)
            if slope.lo > was.hi and slope.mean > was.mean + WORSE_SLOPE:
                reasons.append(f"the baseline's exponent is {was.mean:.2f}")
        unstable = line.law.law == "exponential" or slope.lo > UNSTABLE
        if unstable:
            reasons.append("unstable")
        if ends is not None and ends.beyond:
            reasons.append(ends.said)
        if reasons:
            signals.append(_grows(line, before, ends, reasons, unstable, criteria))
        elif ends is not None and ends.open:
            signals.append(_undecided(line, ends, criteria))
    return signals


def _lines(points: Sequence[ParityPoint]) -> list[_Line]:
    found = []
    for place, line in lines(points).items():
        law = growth(list(line.sizes), list(line.sizes.values())) if line.axis else None
        if law is not None:
            found.append(_Line(place, line.axis, line.sizes, law, line.points))
    return found


class _Ends(NamedTuple):
    """What the error extrapolates to at the largest size that must still work."""

    size: float
    lo: float
    hi: float
    tolerance: float

    @property
    def beyond(self) -> bool:
        return self.lo > self.tolerance

    @property
    def open(self) -> bool:
        """Whether the laws that fit disagree over it."""
        return self.lo <= self.tolerance < self.hi

    @property
    def said(self) -> str:
        """For people."""
        return f"it reaches {self.lo:.2g} at {self.size:g}, {self.tolerance:.2g} is allowed"


def _ends(line: _Line) -> _Ends | None:
    stated = [n for p in line.points if (n := number(p.case.get(f"{line.axis}_max"))) is not None and n > 0]
    tolerances = [p.tolerance for p in line.points if p.tolerance is not None]
    if not stated or not tolerances or max(stated) <= max(line.sizes):
        return None
    return _Ends(max(stated), *line.law.at(max(stated)), min(tolerances))


def _grows(
    line: _Line, before: _Line | None, ends: _Ends | None, reasons: Sequence[str], unstable: bool, criteria: Criteria
) -> Signal:
    probe, tensor = line.place.probe, line.place.tensor
    slope = line.law.power.exponent.interval(CONFIDENCE)
    law = line.law.law
    how = _MEANS[law] if law else "grows (" + " or ".join(line.law.rivals) + ")"
    lowest, highest = min(line.sizes), max(line.sizes)
    place = {**dict(line.place.case), line.axis: _whole(highest), "tensor": tensor}
    shared = before is not None and len(reasons) == 1 and unstable and before.law.law == law
    name = f"exponent of the {tensor} error in {line.axis}"
    expected = [Quantity(name=name, value=before.law.power.slope)] if before else []
    measured = [Quantity(name=name, value=slope.mean, lo=slope.lo, hi=slope.hi)]
    if ends:
        # Between the laws that fit; one law alone has no range.
        lo, hi = (ends.lo, ends.hi) if ends.hi > 1.001 * ends.lo else (None, None)
        name = f"{tensor} error at {line.axis}={ends.size:g}, extrapolated"
        measured.append(Quantity(name=name, value=ends.lo, lo=lo, hi=hi))
        expected.append(Quantity(name=name, value=ends.tolerance))
    return Signal(
        rule_id="parity.numeric_growth", level="note" if shared else "warning",
        finding="violates" if ends and ends.beyond else "observed", role="information",
        message=f"{probe}: {tensor} error {how}: {line.sizes[lowest]:.2g} at {line.axis}={lowest:g}, "
        f"{line.sizes[highest]:.2g} at {highest:g} (exponent {slope.mean:.2f}); {'; '.join(reasons)}"
        f"{'; the same in the baseline' if shared else ''}"[:400],
        locations=where(criteria, probe, InputLocation(condition=place)),
        measured=tuple(measured), expected=tuple(expected),
        causes=(_cause(line.law),), evidence=evidence(line.points),
        caveats=("an extrapolation holds only while the same law does",) if ends else (),
        next=(f"measure one size in between and one beyond {highest:g}, in float64 and in the service's dtype",),
    )  # fmt: skip


def _whole(size: float) -> float:
    return int(size) if size == int(size) else size


def _cause(law: Growth) -> Cause:
    slope = law.power.slope
    if law.law == "exponential" or slope > UNSTABLE:
        return Cause(text="an unstable recurrence: a factor above 1 multiplies the error at every step",
                     refutable_by="a smaller decay or step removes the growth")  # fmt: skip
    if slope > 0.8:
        return Cause(text="a bias in every step: truncation, a lost term, an accumulator with too few bits",
                     refutable_by="rounding to nearest in float32 keeps the slope")  # fmt: skip
    return Cause(text="independent roundings add up, each with too few bits",
                 refutable_by="float32 steps have the same error")  # fmt: skip


def _undecided(line: _Line, ends: _Ends, criteria: Criteria) -> Signal:
    reason = (
        f"{' and '.join(line.law.rivals)} fit the {len(line.sizes)} sizes about equally well and give "
        f"{ends.lo:.2g} and {ends.hi:.2g}" if math.isfinite(ends.hi) else "no law fits clearly"
    )  # fmt: skip
    return Signal(
        rule_id="parity.numeric_growth", level="note", finding="abstained", reason=reason,
        message=f"{line.place.probe}: whether the {line.place.tensor} error stays within {ends.tolerance:.2g} up to "
        f"{line.axis}={ends.size:g} is open ({text(line.place.case)})"[:400],
        locations=where(criteria, line.place.probe, InputLocation(
            condition={**dict(line.place.case), line.axis: _whole(ends.size), "tensor": line.place.tensor}
        )),
        evidence=evidence(line.points), next=(f"measure at {line.axis}={max(line.sizes) * 4:g}",),
    )  # fmt: skip
