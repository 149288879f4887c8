"""What a parity table must hold for each rule, and how its points are grouped.

A point's `case` holds the condition under the names below; `tensor`, `measure`, `reference` and `arm` are fields.

* sizes (`SIZES`): the length along which errors may grow; `T_max` (and so on) the length that must still work.
* `dtype`: what the result is meant to be computed in; float32 where it isn't said. `K`: length of the reductions.
* `partition`, `batch`: how the work was split; 1 is unsplit.
* `region` or `index`: the part of the tensor, with `chunk` or `partition` for where its boundaries lie.
* `call` (0, 1, ...): which call of the same process; `after`: the case that ran before this one.
* `scale`: a scale that the computation applies; the measure `scale_ratio` is RMS(output) / RMS(reference).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from statistics import median
from typing import NamedTuple

from feedback.criteria import Criteria
from feedback.observations import Observation, ParityPoint, Scalar
from feedback.rules.cases import Key, key, number

SIZES = ("T", "seq_len", "sequence_length", "context", "length", "n_tokens", "tokens", "chunks", "N", "K")
"""Names of a size along which errors may grow, in the order in which they are looked for."""

REGIONS = ("region", "index")
CALLS = ("call", "after")

_EPS = {
    "float64": 2.0**-52, "fp64": 2.0**-52,
    "float32": 2.0**-23, "fp32": 2.0**-23, "tfloat32": 2.0**-10, "tf32": 2.0**-10,
    "float16": 2.0**-10, "fp16": 2.0**-10, "half": 2.0**-10,
    "bfloat16": 2.0**-7, "bf16": 2.0**-7,
    "float8_e4m3": 2.0**-3, "float8_e4m3fn": 2.0**-3, "fp8": 2.0**-3, "fp8_e4m3": 2.0**-3,
}  # fmt: skip
"""Distance from 1 to the next number of a dtype."""


def eps(case: dict[str, Scalar]) -> float:
    """Of the dtype that a case is meant to be computed in."""
    return _EPS.get(str(case.get("dtype", "float32")).removeprefix("torch."), 2.0**-23)


def rounding(case: dict[str, Scalar]) -> float:
    """The relative error that a sound computation of a case may have: 8 eps sqrt(K)."""
    return 8 * eps(case) * math.sqrt(max(1.0, number(case.get("K")) or 1.0))


def sound_bits(case: dict[str, Scalar]) -> float:
    """How many right bits a short sound computation has at least: 22 for float32, 9 for float16, 6 for bfloat16."""
    return -math.log2(eps(case)) - 1


def bits(ratio: float) -> float:
    """How many bits of a result are right: -log2 of its relative error, from none to those of float64."""
    return 53.0 if ratio <= 2.0**-53 else max(0.0, -math.log2(ratio))


_NOISES = 3.5
_MAX_NOISE = 0.5


def chance(pairs: Iterable[tuple[float, float]]) -> float:
    """By which factor an error exceeds the one it is held against by chance. How much equally good ones differ is
    taken from those that turned out smaller: chance makes as many of the others."""
    smaller = [math.log(before / after) for before, after in pairs if 0 < after < before < math.inf]
    noise = math.sqrt(sum(x * x for x in smaller) / len(smaller)) if smaller else 0.0
    return math.exp(_NOISES * min(_MAX_NOISE, noise))


class Where(NamedTuple):
    """What a set of points that are compared with each other has in common."""

    probe: str
    tensor: str
    reference: str
    arm: str
    case: Key


def errors(observations: Iterable[Observation], criteria: Criteria, measure: str = "rms_ratio") -> list[ParityPoint]:
    """The points of one measure at the criteria's stage, without the arms' checksums."""
    return [
        o
        for o in observations
        if isinstance(o, ParityPoint) and o.stage == criteria.stage and o.measure == measure and o.tensor != "check"
    ]


def judged(observations: Iterable[Observation], criteria: Criteria) -> list[ParityPoint]:
    """The candidate's points that have a tolerance, at the criteria's stage and without checksums."""
    return [
        o
        for o in observations
        if isinstance(o, ParityPoint)
        and o.stage == criteria.stage
        and o.arm == "candidate"
        and o.tensor != "check"
        and o.tolerance is not None
    ]


def grouped(points: Sequence[ParityPoint], without: Collection[str] = ()) -> dict[Where, list[ParityPoint]]:
    """Points that differ only in their seed and in the parts of the case that are named."""
    found: dict[Where, list[ParityPoint]] = defaultdict(list)
    for p in points:
        found[Where(p.probe, p.tensor, p.reference, p.arm, key(p.case, without))].append(p)
    return found


def typical(points: Iterable[ParityPoint]) -> float:
    """Median over seeds; infinite if any of them can't be compared."""
    values = [p.value for p in points]
    return median(values) if values and all(math.isfinite(v) and v >= 0 for v in values) else math.inf


class Line(NamedTuple):
    """Points that differ only in one size, and in their seeds."""

    axis: str
    """Name of the size; empty if there is none."""
    sizes: dict[float, float]
    """Typical error by size, smallest size first; of size 0 where there is none."""
    points: list[ParityPoint]

    @property
    def bits(self) -> float:
        """How many bits are right at the smallest size."""
        return bits(self.sizes[min(self.sizes)])

    @property
    def smallest(self) -> ParityPoint:
        """A point of the smallest size."""
        return min(self.points, key=lambda p: number(p.case.get(self.axis)) or 0.0)


def lines(points: Sequence[ParityPoint], without: Collection[str] = ()) -> dict[Where, Line]:
    """The errors of each condition by size. The size is the first of `SIZES` that varies for the tensor; conditions
    that differ only in the parts of the case that are named count as one."""
    tensors: dict[tuple[str, str], list[ParityPoint]] = defaultdict(list)
    for p in points:
        tensors[p.probe, p.tensor].append(p)
    found = {}
    for of in tensors.values():
        axis = next((name for name in SIZES if len({p.case.get(name) for p in of} - {None}) > 1), "")
        for place, same in grouped(of, {axis, f"{axis}_max", *without}).items():
            by_size: dict[float, list[ParityPoint]] = defaultdict(list)
            for p in same:
                by_size[number(p.case.get(axis)) or 0.0].append(p)
            found[place] = Line(axis, {size: typical(by_size[size]) for size in sorted(by_size)}, same)
    return found
