"""Errors whose pattern names the defect: a scale twice or not at all, a stale buffer, a boundary that is off."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from feedback.criteria import Criteria
from feedback.observations import Observation, ParityPoint, Scalar
from feedback.rules import rule
from feedback.rules.cases import evidence, key, number, text, times, where
from feedback.rules.parity.points import CALLS, REGIONS, errors, grouped, rounding, typical
from feedback.signals import Cause, InputLocation, Quantity, RegionLocation, Signal
from feedback.stats import at_least
from feedback.wording import count

MIN_CASES = 3
LEAST_FACTOR = 0.05
"""Norms that differ by less (as a fraction) may be rounding of a small dtype."""
STEADY = 0.02
"""A factor that varies by less over the cases is one factor."""
JUMP = 3.0
MIN_INSIDE = 6
"""Steps inside chunks that show how much errors change anyway."""
CHANCE = 1e-3
STALE = 10.0


@rule(
    "parity.scale",
    says="outputs are the right ones times a constant: a scale is applied twice, not at all, or over the ranks",
    needs="the measure `scale_ratio` in three cases or more, or outputs that are all zero",
)
def scale(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """Outputs whose norm is off by the same factor in all cases, or by the case's own scale: one signal a tensor."""
    signals = []
    tensors: dict[tuple[str, str, str], list[ParityPoint]] = defaultdict(list)
    for p in errors(observations, criteria, "scale_ratio"):
        tensors[p.probe, p.tensor, p.arm].append(p)
    for (probe, tensor, arm), of in tensors.items():
        usual = [p for p in of if math.isfinite(p.value) and p.value > 0]
        if arm == "candidate" and len(usual) >= MIN_CASES and (how := _scaled(usual)):
            before = tensors.get((probe, tensor, "baseline"), [])
            shared = len(before) >= MIN_CASES and _scaled([p for p in before if p.value > 0]) is not None
            signals.append(_off(probe, tensor, usual, how, shared, criteria))
    for place, of in grouped(errors(observations, criteria)).items():
        if place.arm == "candidate" and len(of) >= MIN_CASES and all(p.value == 1.0 for p in of):
            signals.append(_zero(place.probe, place.tensor, of, criteria))
    return signals


class _Scaled(NamedTuple):
    said: str
    cause: str
    factor: float


def _scaled(points: Sequence[ParityPoint]) -> _Scaled | None:
    """What relation the norms have to the cases; None where there is none, or all is well."""
    factors = [p.value for p in points]
    if all(abs(math.log(f)) < math.log1p(LEAST_FACTOR) for f in factors):
        return None
    for name, cause in (
        ("scale", "the scale {}"),
        ("partition", "a sum over ranks {}"),
        ("world_size", "a sum over ranks {}"),
        ("tp", "a sum over ranks {}"),
    ):
        known = [(p.value, n) for p in points if (n := number(p.case.get(name))) is not None and n > 0 and n != 1]
        if len(known) < len(points) * 0.6 or len(known) < 2:
            continue
        if all(_near(f, n) for f, n in known):
            return _Scaled(f"{name} times too large", cause.format("is applied twice, or never divided by"), 0)
        if all(_near(f, 1 / n) for f, n in known):
            return _Scaled(f"{name} times too small", cause.format("is left out, or divided by twice"), 0)
    middle = median(factors)
    if len(factors) >= MIN_CASES and max(factors) / min(factors) <= 1 + STEADY:
        return _Scaled(f"x{middle:.4g} in every case", "a constant scale is applied twice or not at all", middle)
    return None


def _near(a: float, b: float) -> bool:
    return abs(math.log(a / b)) <= math.log1p(STEADY)


def _off(
    probe: str, tensor: str, points: Sequence[ParityPoint], how: _Scaled, shared: bool, criteria: Criteria
) -> Signal:
    worst = max(points, key=lambda p: abs(math.log(p.value)))
    unit = [p for p in points if p.case.get("scale") == 1]
    return Signal(
        rule_id="parity.scale", level="note" if shared else "error", finding="observed" if shared else "violates",
        role="information" if shared else criteria.role_of(probe),
        message=f"{probe}: {tensor} is {how.said} ({len(points)} cases; x{worst.value:.4g} at {text(key(worst.case))})"
        f"{', as in the baseline' if shared else ''}"[:400],
        locations=where(criteria, probe, InputLocation(condition={**worst.case, "tensor": tensor})),
        measured=(Quantity(name=f"norm of {tensor} / norm of the reference", value=worst.value),),
        expected=(Quantity(name=f"norm of {tensor} / norm of the reference", value=1.0),),
        causes=(Cause(text=how.cause, support="strong", refutable_by="dividing by the factor leaves a large error"),),
        caveats=(f"{len(unit)} cases have scale 1, where no such defect shows",) if unit else (),
        evidence=evidence(points), next=("halve the scale in one case: see whether the output follows it",),
    )  # fmt: skip


def _zero(probe: str, tensor: str, points: Sequence[ParityPoint], criteria: Criteria) -> Signal:
    return Signal(
        rule_id="parity.scale", level="error", finding="violates", role=criteria.role_of(probe),
        message=f"{probe}: {tensor} has an error of exactly 1 in all {len(points)} cases: it is zero",
        locations=where(criteria, probe, InputLocation(condition={**points[0].case, "tensor": tensor})),
        measured=(Quantity(name=f"{tensor} rms_ratio", value=1.0),), evidence=evidence(points),
        causes=(Cause(text="the output is never written, or multiplied by a scale of zero", support="strong",
                      refutable_by="the buffer filled with ones before the call comes back as zeros"),),
        next=("fill the output with NaN before the call and see what is left of it",),
    )  # fmt: skip


@rule(
    "parity.stale_buffer",
    says="a result is right at first and wrong on later calls, or depends on the case before it",
    needs="`call` (0, 1, ...) or `after` (the case before) in the case",
)
def stale_buffer(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """What an earlier call left behind: one signal a probe and tensor."""
    points = errors(observations, criteria)
    signals = []
    for name in CALLS:
        found: dict[tuple[str, str, str], list[tuple[ParityPoint, float, ParityPoint]]] = defaultdict(list)
        for place, of in grouped([p for p in points if name in p.case], {name}).items():
            by: dict[Scalar, list[ParityPoint]] = defaultdict(list)
            for p in of:
                by[p.case[name]].append(p)
            clean = typical(by.get(0, [])) if name == "call" else min(typical(ps) for ps in by.values())
            worst = max(by, key=lambda n: typical(by[n]))
            least = max(STALE * clean, rounding(of[0].case))
            if len(by) > 1 and math.isfinite(clean) and typical(by[worst]) > least and _starts(by, clean, name):
                fact = max(by[worst], key=lambda p: p.value)
                found[place.probe, place.tensor, place.arm].append((fact, clean, of[0]))
        for (probe, tensor, arm), of_tensor in found.items():
            if arm == "candidate":
                shared = (probe, tensor, "baseline") in found
                signals.append(_stale(probe, tensor, name, of_tensor, shared, criteria))
    return signals


def _starts(by: dict[Scalar, list[ParityPoint]], clean: float, name: str) -> bool:
    """Whether the first call (for `after`: at least one order of cases) is the sound one."""
    later = [typical(ps) for n, ps in by.items() if n != 0] if name == "call" else [1.0]
    return bool(later) and (name == "after" or median(later) > clean)


def _stale(
    probe: str, tensor: str, name: str, found: Sequence[tuple[ParityPoint, float, ParityPoint]], shared: bool,
    criteria: Criteria,
) -> Signal:  # fmt: skip
    fact, clean, _ = max(found, key=lambda x: x[0].value)
    when = "only from a later call on" if name == "call" else f"only after {fact.case[name]}"
    return Signal(
        rule_id="parity.stale_buffer", level="note" if shared else "error",
        finding="observed" if shared else "violates", role="information" if shared else criteria.role_of(probe),
        message=f"{probe}: {tensor} is wrong {when}: {fact.value:.2g} at {text(key(fact.case))}, {clean:.2g} before; "
        f"{count(len(found), 'case')}{', as in the baseline' if shared else ''}"[:400],
        locations=where(criteria, probe, InputLocation(condition={**fact.case, "tensor": tensor})),
        measured=(Quantity(name=f"{tensor} rms_ratio", value=fact.value),) if math.isfinite(fact.value) else (),
        expected=(Quantity(name=f"{tensor} rms_ratio", value=clean),),
        causes=(
            Cause(text="a buffer, a cached plan or a position counter keeps what an earlier call left",
                  refutable_by="zeroed buffers before each call leave the error"),
            Cause(text="a captured graph replays with the first call's addresses", support="weak",
                  refutable_by="the same without capture"),
        ),
        evidence=evidence(x[0] for x in found), next=("fill every buffer with NaN between the two calls",),
    )  # fmt: skip


@rule(
    "parity.boundary",
    says="errors jump just after the boundaries of chunks or ranks: an index is off by one, or the merge is wrong",
    needs="`index` in the case, with `chunk`, or `T` and `partition`",
)
def boundary(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """Errors that jump at boundaries and nowhere else: one signal a probe and tensor."""
    points = [p for p in errors(observations, criteria) if number(p.case.get("index")) is not None]
    found: dict[tuple[str, str, str], list[_Jump]] = defaultdict(list)
    for place, of in grouped(points, REGIONS).items():
        jumps = [j for j in (_jumps(of, width, what) for what, width in _widths(of[0].case)) if j]
        if jumps:
            largest = max(jumps, key=lambda j: (j.ratio, j.width))
            found[place.probe, place.tensor, place.arm].append(largest)
    return [
        _boundary(probe, tensor, jumps, (probe, tensor, "baseline") in found, criteria)
        for (probe, tensor, arm), jumps in found.items()
        if arm == "candidate"
    ]


class _Jump(NamedTuple):
    what: str
    width: float
    first: ParityPoint
    before: float
    ratio: float
    stays: bool
    """Whether the error stays up until the next boundary."""


def _widths(case: dict[str, Scalar]) -> list[tuple[str, float]]:
    """How far apart boundaries lie."""
    found = []
    if (chunk := number(case.get("chunk"))) and chunk > 1:
        found.append(("chunk", chunk))
    length, parts = number(case.get("T")), number(case.get("partition"))
    if length and parts and parts > 1:
        found.append(("rank", length / parts))
    return found


def _jumps(points: Sequence[ParityPoint], width: float, what: str) -> _Jump | None:
    """Whether errors jump over each boundary and not elsewhere."""
    by_index: dict[float, list[ParityPoint]] = defaultdict(list)
    for p in points:
        by_index[number(p.case["index"]) or 0.0].append(p)
    order = sorted(by_index)
    noise = rounding(points[0].case) / 8
    errors_at = {i: max(typical(by_index[i]), noise) for i in order}
    steps = [(a, b, math.log(errors_at[b] / errors_at[a])) for a, b in pairwise(order) if math.isfinite(errors_at[a])]
    across = [s for s in steps if s[0] // width != s[1] // width]
    inside = sorted(max(0.0, step) for a, b, step in steps if a // width == b // width)
    if not across or len(inside) < MIN_INSIDE:
        return None
    a, b, largest = max(across, key=lambda s: s[2])
    usual = inside[int(0.9 * len(inside))]  # nine in ten steps are no larger
    beyond = [s for s in across if s[2] > max(usual, math.log(JUMP))]
    enters = largest > max(2 * inside[-1], math.log(JUMP))
    spikes = bool(beyond) and at_least(len(beyond), len(across), 0.1) < CHANCE
    if not (enters or spikes):
        return None
    a, b, largest = beyond[0] if spikes else (a, b, largest)
    until = [errors_at[i] for i in order if b // width == i // width][1:]
    stays = not until or median(until) > errors_at[b] / JUMP
    return _Jump(what, width, by_index[b][0], errors_at[a], min(math.exp(min(largest, 700.0)), 1e300), stays)


def _boundary(probe: str, tensor: str, jumps: Sequence[_Jump], shared: bool, criteria: Criteria) -> Signal:
    j = max(jumps, key=lambda x: x.ratio)
    index = int(number(j.first.case["index"]) or 0)
    n = int(index // j.width)
    causes = [
        Cause(text=f"what is merged at a {j.what} boundary carries the error into the whole {j.what}",
              refutable_by="the true state put in at the boundary leaves the error"),
        Cause(text=f"an index or a mask is off by one at the {j.what} boundary",
              refutable_by=f"a {j.what} that is twice as long moves no jump"),
    ]  # fmt: skip
    after = "stays up" if j.stays else "falls back inside"
    return Signal(
        rule_id="parity.boundary", level="note" if shared else "error",
        finding="observed" if shared else "violates", role="information" if shared else criteria.role_of(probe),
        message=f"{probe}: {tensor} error jumps {times(j.ratio)} at the start of {j.what} {n} (index {index}), "
        f"{after}; {count(len(jumps), 'case')}{', as in the baseline' if shared else ''}"[:400],
        locations=where(
            criteria, probe, RegionLocation(tensor=tensor, region=f"{j.what} {n}", index=index),
            InputLocation(condition=j.first.case),
        ),
        measured=(Quantity(name=f"{tensor} error after the boundary", value=j.first.value),)
        if math.isfinite(j.first.value) else (),
        expected=(Quantity(name=f"{tensor} error before the boundary", value=j.before),),
        causes=tuple(causes if j.stays else reversed(causes)), evidence=evidence(x.first for x in jumps),
        next=(f"compare rows {max(0, index - 2)}..{index + 2} one by one in both paths",),
    )  # fmt: skip
