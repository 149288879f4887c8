"""Errors against the baseline's: a gate that a loose tolerance does not blunt, and which precision leaked in.

A tolerance such as 8e-3 passes a float32 kernel that rounds to TF32 at every step; its errors are thousands of
times the baseline's all the same, and the number of right bits names the dtype.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from feedback.criteria import Criteria
from feedback.observations import Observation, ParityPoint
from feedback.rules import rule
from feedback.rules.cases import evidence, key, separating, text, times, where
from feedback.rules.parity.points import (
    CALLS,
    REGIONS,
    bits,
    chance,
    eps,
    errors,
    grouped,
    lines,
    rounding,
    sound_bits,
    typical,
)
from feedback.signals import Cause, InputLocation, Quantity, Signal
from feedback.trends import MIN_SIZES, power_law

MAX_BASELINE_RATIO = 2.0
MAX_LOST_BITS = 1.0
MAX_LOCATED = 3
GROSS = 10.0
CLASS_BITS = 4.0
"""Losing so many bits is an arithmetic less, whatever the tolerance."""
FEWER_BITS = 2.0
"""float16 and bfloat16 lie this far apart, all others farther, TF32 and float16 aside."""


class Precision(NamedTuple):
    """The signature of an arithmetic in the number of right bits of a short computation."""

    name: str
    lo: float
    hi: float


PRECISIONS = (
    Precision("fp32", 21.3, 24.5),
    Precision("TF32", 10.9, 12.5),
    Precision("fp16 (or TF32 over many steps)", 9.9, 10.9),
    Precision("bf16", 7.9, 9.2),
    Precision("fp8 (e4m3)", 2.9, 4.5),
)
MIN_FP8 = 3
"""An error of 5 to 13 % has many reasons: only so many conditions that agree make it fp8's."""
AGREE = 2 / 3
"""Share of the conditions with too few bits that must point at one arithmetic."""


def precision(right_bits: Sequence[float]) -> Precision | None:
    """Which arithmetic leaves so many right bits under several conditions; None where they don't agree on one."""
    middle = median(right_bits)
    named = next((p for p in PRECISIONS if p.lo <= middle <= p.hi), None)
    if named is None or (named.hi < 5 and len(right_bits) < MIN_FP8):
        return None
    return named if sum(named.lo <= b <= named.hi for b in right_bits) >= AGREE * len(right_bits) else None


class _Pair(NamedTuple):
    case: dict[str, str | int | float | bool]
    tensor: str
    baseline: float
    candidate: float
    allowed: float
    fact: ParityPoint


@rule(
    "parity.relative_error",
    says="the candidate's errors are beyond what the baseline's and the dtype's rounding allow",
    needs="rms_ratio of both arms for the same cases",
)
def relative_error(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """One signal a probe: candidate at most max(2 x baseline, 8 eps sqrt(K)), and no more than one bit lost at the
    smallest size. Silent where the baseline was not compared with the truth."""
    points = [p for p in errors(observations, criteria) if p.reference == "golden"]
    signals = []
    for probe in dict.fromkeys(p.probe for p in points):
        pairs = _pairs([p for p in points if p.probe == probe])
        usual = chance((p.baseline, p.candidate) for p in pairs)
        beyond = (p for p in pairs if not p.candidate <= max(p.allowed, usual * p.baseline))
        worse = sorted(beyond, key=lambda p: -p.candidate / p.allowed)
        lost = _lost_bits([p for p in points if p.probe == probe], max(MAX_LOST_BITS, math.log2(usual)))
        if worse or lost:
            signals.append(_violated(probe, pairs, worse, lost, criteria))
    return signals


def _pairs(points: Sequence[ParityPoint]) -> list[_Pair]:
    found = []
    groups = grouped(points)
    for place, of in groups.items():
        other = groups.get(place._replace(arm="baseline"))
        if place.arm == "candidate" and other:
            before, after = typical(other), typical(of)
            if math.isfinite(before):
                allowed = max(MAX_BASELINE_RATIO * before, rounding(of[0].case))
                found.append(_Pair(dict(place.case), place.tensor, before, after, allowed, of[0]))
    return found


class _Lost(NamedTuple):
    tensor: str
    case: dict[str, str | int | float | bool]
    baseline: float
    candidate: float
    at: str
    """The size that the bits are of, such as ` at K=8`; empty where there is none."""
    fact: ParityPoint


def _at(axis: str, size: float) -> str:
    return f" at {axis}={size:g}" if axis else ""


def _lost_bits(points: Sequence[ParityPoint], usual: float) -> list[_Lost]:
    """Where the smallest size has `usual` bits less than the baseline, or than a sound result of its dtype."""
    found = []
    groups = lines(points, (*REGIONS, *CALLS))
    for place, line in groups.items():
        other = groups.get(place._replace(arm="baseline"))
        if place.arm != "candidate" or not other:
            continue
        common = sorted(line.sizes.keys() & other.sizes.keys())
        if not common or not math.isfinite(line.sizes[common[0]] + other.sizes[common[0]]):
            continue
        before, after = bits(other.sizes[common[0]]), bits(line.sizes[common[0]])
        if after < min(before, sound_bits(line.points[0].case)) - usual:
            at = _at(line.axis, common[0])
            found.append(_Lost(place.tensor, line.smallest.case, before, after, at, line.smallest))
    return sorted(found, key=lambda x: x.candidate - x.baseline)


def _violated(
    probe: str, pairs: Sequence[_Pair], worse: Sequence[_Pair], lost: Sequence[_Lost], criteria: Criteria
) -> Signal:
    quantities, expected, said = [], [], []
    if worse:
        w = worse[0]
        against = (
            f"{times(w.candidate / w.baseline)} the baseline's {w.baseline:.2g}" if w.baseline else "0 in the baseline"
        )
        said.append(f"{w.tensor} error {w.candidate:.2g}, {against}, at {text(key(w.case))}")
        if math.isfinite(w.candidate):
            quantities.append(Quantity(name=f"{w.tensor} rms_ratio", value=w.candidate))
        expected.append(Quantity(name=f"{w.tensor} rms_ratio", value=w.baseline, hi=w.allowed))
        at = separating([p.case for p in worse], [p.case for p in pairs if p not in worse])
        said += [f"{len(worse)} of {len(pairs)} cases" + (f", all with {at}" if at else "")]
    if lost and (lost[0].candidate >= 2 or not worse):
        at = lost[0].at
        said.append(f"{lost[0].candidate:.1f} bits are right{at}, {lost[0].baseline:.1f} in the baseline")
        quantities.append(Quantity(name=f"right bits{at}", value=lost[0].candidate, unit="bit"))
        expected.append(Quantity(name=f"right bits{at}", value=lost[0].baseline, unit="bit"))
    cases = [({**x.case}, x.tensor) for x in worse[:MAX_LOCATED]] or [({**x.case}, x.tensor) for x in lost[:1]]
    tolerated = all(p.fact.tolerance is not None and p.candidate <= p.fact.tolerance for p in worse)
    # Within its tolerance a result may be a few times worse; an arithmetic less it may not.
    gross = not tolerated or any(p.candidate > GROSS * p.allowed for p in worse) or bool(lost and _class_lost(lost))
    return Signal(
        rule_id="parity.relative_error", level="error" if gross else "warning", finding="violates",
        role=criteria.role_of(probe) if gross else "information",
        message=f"{probe}: {'; '.join(said)}"[:400],
        locations=where(criteria, probe, *(InputLocation(condition={**c, "tensor": t}) for c, t in cases)),
        measured=tuple(quantities), expected=tuple(expected),
        caveats=("every error is within the file's own tolerance, which is too wide to see this",) if tolerated else (),
        causes=_causes(lost), evidence=evidence([*(x.fact for x in worse[:2]), *(x.fact for x in lost[:1])]),
        next=("compare the intermediate tensors at the smallest size that differs, step by step",),
    )  # fmt: skip


def _class_lost(lost: Sequence[_Lost]) -> bool:
    return any(min(x.baseline, sound_bits(x.fact.case) + 2) - x.candidate >= CLASS_BITS for x in lost)


def _causes(lost: Sequence[_Lost]) -> tuple[Cause, ...]:
    named = precision([x.candidate for x in lost]) if lost else None
    if named is None:
        return (Cause(text="an operand, a term or a factor is left out", refutable_by="in float64 the error is gone"),)
    return (
        Cause(text=f"{named.name} arithmetic where the baseline has more bits", support="strong",
              refutable_by="the same step in float32 (ieee, or tf32x3) keeps the error"),
    )  # fmt: skip


@rule(
    "parity.precision",
    says="how many bits of a result are right, which arithmetic that is, and whether it rounds once or at every step",
    needs="rms_ratio against golden values, at four sizes or more for the slope",
)
def fingerprint(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """Results that have fewer bits than their dtype: one signal a tensor. A note where the baseline has no more."""
    points = [p for p in errors(observations, criteria) if p.reference == "golden"]
    found: dict[tuple[str, str, str], list[_Short]] = {}
    known = lines(points, (*REGIONS, *CALLS))
    for place, line in known.items():
        right = line.bits
        fewer = [p.hi for p in PRECISIONS if p.hi <= sound_bits(line.smallest.case) + 0.5]
        if fewer and 2 < right <= max(fewer):
            fit = power_law(list(line.sizes), list(line.sizes.values())) if len(line.sizes) >= MIN_SIZES else None
            before = known.get(place._replace(arm="baseline"))
            lost = before.bits - right if before else 0.0
            at = _at(line.axis, min(line.sizes))
            short = _Short(right, lost, fit.slope if fit else None, at, line.smallest)
            found.setdefault((place.probe, place.tensor, place.arm), []).append(short)
    signals = []
    for (probe, tensor, arm), of in found.items():
        named = precision([x.bits for x in of])
        if named is not None and (arm == "candidate" or (probe, tensor, "candidate") not in found):
            signals.append(_leaked(probe, named.name, of, median(x.lost for x in of) >= FEWER_BITS, criteria))
    return signals


class _Short(NamedTuple):
    bits: float
    lost: float
    """Of the bits that the baseline has."""
    slope: float | None
    """Of the error in the size."""
    at: str
    """The smallest size, which the bits are of; empty where there is none."""
    fact: ParityPoint


def _leaked(probe: str, name: str, of: Sequence[_Short], new: bool, criteria: Criteria) -> Signal:
    right, _, slope, at, fact = min(of, key=lambda x: x.bits)
    dtype = str(fact.case.get("dtype", "float32"))
    if slope is None:
        how, cause = "", f"operands or results rounded to {name}"
    elif slope < 0.15:
        how, cause = "; the error does not grow", f"operands or the result rounded to {name} once, sums in more bits"
    elif slope < 0.8:
        how, cause = f"; it grows with exponent {slope:.2f}", f"rounded to {name} at every step of a chain"
    else:
        how, cause = f"; it grows with exponent {slope:.2f}", f"sums kept in {name}: small terms are lost"
    quantities = [Quantity(name=f"right bits{at}", value=right, unit="bit")]
    if slope is not None:
        quantities.append(Quantity(name="exponent of the error in the size", value=slope))
    also = "" if new else " (so is the baseline, or there is none: not this change's doing)"
    return Signal(
        rule_id="parity.precision", level="warning" if new else "note", finding="observed",
        message=f"{probe}: {fact.tensor} is right to {right:.1f} bits{at}, which is {name}, not {dtype}{also}"
        f"{how}"[:400],
        locations=where(criteria, probe, InputLocation(condition={**fact.case, "tensor": fact.tensor})),
        measured=tuple(quantities),
        expected=(Quantity(name=f"right bits{at}", value=-math.log2(eps(fact.case)), unit="bit"),),
        causes=(Cause(text=cause, support="moderate", refutable_by=f"forcing {dtype} in that step changes nothing"),),
        evidence=evidence(x.fact for x in of),
        next=(f"force full {dtype} in one dot after the other (input_precision, accumulator dtype), smallest size",),
    )  # fmt: skip
