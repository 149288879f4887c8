"""The same result computed split and unsplit: by ranks or chunks, and by batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from feedback.criteria import Criteria
from feedback.observations import Observation, ParityPoint, Scalar
from feedback.rules import rule
from feedback.rules.cases import Key, evidence, key, number, separating, text, times, where
from feedback.rules.parity.points import chance, errors, rounding
from feedback.signals import Cause, InputLocation, Quantity, Signal

MAX_RATIO = 3.0
"""A split may add at most this times the error that the unsplit result has."""

PARTITIONS = ("partition", "world_size", "cp", "tp")


class _Split(NamedTuple):
    probe: str
    tensor: str
    arm: str
    axis: str
    case: dict[str, Scalar]
    unsplit: float
    split: float
    fact: ParityPoint

    @property
    def allowed(self) -> float:
        return max(MAX_RATIO * self.unsplit, rounding(self.case))

    @property
    def is_beyond(self) -> bool:
        return not self.split <= self.allowed


def _splits(points: Sequence[ParityPoint], axis: str) -> list[_Split]:
    """Each split case beside its unsplit one. What is held against the unsplit error with respect to the truth is
    the distance from the unsplit result where the table has it, else the split error."""
    groups: dict[tuple[str, str, str, str, Key], dict[float, list[ParityPoint]]] = {}
    for p in points:
        n = number(p.case.get(axis))
        if n is not None and p.reference in ("golden", "unpartitioned"):
            place = (p.probe, p.tensor, p.arm, p.reference, key(p.case, {axis, "region"}))
            groups.setdefault(place, {}).setdefault(n, []).append(p)
    found = []
    for (probe, tensor, arm, reference, rest), by_n in groups.items():
        direct = groups.get((probe, tensor, arm, "unpartitioned", rest), {})
        golden = groups.get((probe, tensor, arm, "golden", rest), {})
        unsplit = _largest(golden.get(1.0, []))
        for n, of in by_n.items():
            if n <= 1 or not math.isfinite(unsplit) or (reference == "golden" and n in direct):
                continue
            worst = max(of, key=lambda p: p.value if p.value == p.value else math.inf)
            found.append(_Split(probe, tensor, arm, axis, worst.case, unsplit, worst.value, worst))
    return found


def _largest(points: Sequence[ParityPoint]) -> float:
    """The largest error over seeds and regions; infinite where one can't be compared."""
    return max(p.value if p.value == p.value else math.inf for p in points) if points else math.inf


@rule(
    "parity.partition_mismatch",
    "parity.batch_mismatch",
    says="a result changes by more than its rounding when the work is split over ranks or put in a batch",
    needs="rms_ratio of the case unsplit (`partition` or `batch` 1) against golden values, and split",
)
def split_mismatch(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """One signal a probe and way of splitting; what the baseline does as well is a note."""
    points = errors(observations, criteria)
    signals = []
    for axis in (*PARTITIONS, "batch"):
        splits = _splits(points, axis)
        for probe in dict.fromkeys(s.probe for s in splits):
            of = [s for s in splits if s.probe == probe]
            mine = [s for s in of if s.arm == "candidate"] or of
            usual = chance((s.unsplit, s.split) for s in mine)
            beyond = (s for s in mine if s.is_beyond and not s.split <= usual * s.unsplit)
            broken = sorted(beyond, key=lambda s: -s.split / s.allowed)
            before = [s for s in of if s.arm == "baseline"]
            if broken:
                both = any(s.is_beyond for s in before)
                shared = both and max(s.split for s in before) * 2 >= broken[0].split
                signals.append(_mismatch(axis, mine, broken, shared, criteria))
            elif axis != "batch":
                signals += _blind(axis, mine, criteria)
    return signals


def _mismatch(axis: str, of: Sequence[_Split], broken: Sequence[_Split], shared: bool, criteria: Criteria) -> Signal:
    worst = broken[0]
    n = number(worst.case[axis]) or 0.0
    named = "partition_mismatch" if axis != "batch" else "batch_mismatch"
    at = separating([s.case for s in broken], [s.case for s in of if not s.is_beyond])
    tensors = ", ".join(sorted({s.tensor for s in broken}))
    by = "without it" if worst.split == math.inf or not worst.unsplit else times(worst.split / worst.unsplit)
    return Signal(
        rule_id=f"parity.{named}", level="note" if shared else "error",
        finding="observed" if shared else "violates",
        role="information" if shared else criteria.role_of(worst.probe),
        message=f"{worst.probe}: {tensors} with {axis}={n:g} is {worst.split:.2g} off, {by} the error with {axis}=1 "
        f"({worst.unsplit:.2g}); {len(broken)} of {len(of)} cases{f', all with {at}' if at else ''}"
        f"{'; as in the baseline' if shared else ''}"[:400],
        locations=where(
            criteria, worst.probe,
            *(InputLocation(condition={**s.case, "tensor": s.tensor}) for s in broken[:3]),
        ),
        measured=(Quantity(name=f"{worst.tensor} error with {axis}={n:g}", value=worst.split),)
        if math.isfinite(worst.split) else (),
        expected=(Quantity(name=f"{worst.tensor} error with {axis}=1", value=worst.unsplit, hi=worst.allowed),),
        causes=_causes(axis, min(s.split for s in broken)), evidence=evidence(s.fact for s in broken),
        next=(f"the smallest case with {axis}=2 and one with 3: compare each rank's own part first",)
        if axis != "batch" else ("bisect the batch size at which the row changes; compare the row alone, bit by bit",),
    )  # fmt: skip


def _causes(axis: str, least: float) -> tuple[Cause, ...]:
    if axis == "batch":
        return (
            Cause(text="the number of splits of a reduction follows the batch, and so does its order",
                  refutable_by="a fixed split size gives bit-equal rows"),
            Cause(text="a row reads another row's state or padding", support="weak",
                  refutable_by="the row is the same whatever the others hold"),
        )  # fmt: skip
    if least > 0.01:  # not by rounding
        return (
            Cause(text=f"a count, a size or a scale of the whole is used on each part of {axis}",
                  refutable_by=f"printed on each part, they divide by {axis}"),
            Cause(text="a boundary: rows lost, counted twice or shifted between parts",
                  refutable_by="the error inside a part does not depend on the distance from its first row"),
        )  # fmt: skip
    return (
        Cause(text="the merge of partial states rounds to fewer bits than the unsplit path",
              refutable_by="the merge alone in float64 leaves the error"),
        Cause(text="a boundary: rows lost, counted twice or shifted between ranks", support="weak",
              refutable_by="the error inside a rank does not depend on the distance from its first row"),
    )  # fmt: skip


def _blind(axis: str, of: Sequence[_Split], criteria: Criteria) -> list[Signal]:
    """Two parts that start from zero multiply what is merged by zero: such a table proves nothing of the merge."""
    if max(number(s.case[axis]) or 0.0 for s in of) > 2 or any(number(s.case.get("initial_state")) for s in of):
        return []
    reason = "with two parts and a zero start the merged factor multiplies zero: a wrong one goes unseen"
    return [
        Signal(
            rule_id="parity.partition_mismatch", level="note", finding="abstained", reason=reason,
            message=f"{of[0].probe}: {len(of)} split cases agree, none with over 2 parts ({text(of[0].case)})"[:400],
            locations=where(criteria, of[0].probe, InputLocation(condition=of[0].case)),
            evidence=evidence(s.fact for s in of), next=(f"add {axis}=3 or more, or a start that is not zero",),
        )
    ]  # fmt: skip
