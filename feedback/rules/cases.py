"""Cases (shapes, dtypes, parameters), and where a signal says its facts come from: what several families share."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from feedback.criteria import Criteria
from feedback.observations import Measurement, ParityPoint, Scalar, TestOutcome
from feedback.signals import Evidence, Location, ProcessLocation

Case = Mapping[str, Scalar]
Key = tuple[tuple[str, Scalar], ...]

DECLARED = frozenset(
    {"seed", "iterations", "repetitions", "rounds", "flops", "bytes", "peak_flops_per_s", "peak_bytes_per_s"}
)
"""Parts of a case that say something of the measurement, not which case it is."""

MAX_EVIDENCE = 3


def key(case: Case, without: Collection[str] = ()) -> Key:
    """What tells a case from others, hashable and in order."""
    return tuple(sorted((k, v) for k, v in case.items() if k not in DECLARED and k not in without))


def text(case: Case | Key) -> str:
    """`attention T=4096 dtype=float32`: the benchmark's name first, then the parameters."""
    parts = dict(case)
    name = parts.pop("benchmark", "")
    return " ".join([*([str(name)] if name else []), *(f"{k}={v}" for k, v in parts.items())]) or "the only case"


def parameters(case: Case) -> dict[str, Scalar]:
    """A case with its benchmark's name freed of the parameters in it, so that its sizes can be set side by side:
    `pp512` of n_prompt=512 is `pp#`, and `BM_scan/4096` is `BM_scan/#` with arg0=4096."""
    found = dict(case)
    name = re.sub(r"\[.*\]$", "", str(case.get("benchmark", "")))
    for n, digits in enumerate(re.findall(r"/(\d{1,18})(?=/|$)", name)):
        found[f"arg{n}"] = int(digits)
    name = re.sub(r"/\d+(?=/|$)", "/#", name)
    for value in {str(v) for v in case.values() if number(v) is not None}:
        name = re.sub(rf"(?<![\d.]){re.escape(value)}(?![\d.])", "#", name)
    return found | ({"benchmark": name} if name else {})


def times(ratio: float) -> str:
    """`1.97x`, `1970x`: three significant digits, without an exponent below a million."""
    rounded = float(f"{ratio:.3g}")
    return f"{rounded:.0f}x" if 100 <= rounded < 1e6 else f"{rounded:.3g}x"


def number(value: object) -> float | None:
    """A case's value as a finite number, or None; True and False are none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def separating(hits: Sequence[Case], rest: Sequence[Case]) -> str:
    """The condition that holds for all of `hits` and none of `rest`, such as `batch<=4` or `dtype=float16`; empty
    if no single parameter tells them apart, or if there are too few to say."""
    if len(hits) < 2 or len(rest) < 2:
        return ""
    named = ""
    for name in sorted(set.intersection(*(set(case) for case in (*hits, *rest))) - DECLARED):
        inside, outside = [case[name] for case in hits], [case[name] for case in rest]
        numbers = [number(v) for v in (*inside, *outside)]
        if None not in numbers:
            low, high = [float(v) for v in inside], [float(v) for v in outside]
            if max(low) < min(high):
                return f"{name}<={max(low):g}"
            if min(low) > max(high):
                return f"{name}>={min(low):g}"
        few, others = {str(v) for v in inside}, {str(v) for v in outside}
        if not named and not few & others and len(few) <= (1 if None not in numbers else 3):
            named = f"{name}=" + "|".join(sorted(few))
    return named


def where(criteria: Criteria, probe: str, *places: Location) -> tuple[Location, ...]:
    """The places, then where the change acts; the probe itself where nothing else is known."""
    return (*places, *criteria.changed) or (ProcessLocation(arm="candidate", role=probe),)


def evidence(facts: Iterable[Measurement | ParityPoint | TestOutcome]) -> tuple[Evidence, ...]:
    """Where the first few facts stand in their files."""
    found: dict[Evidence, None] = {}
    for fact in facts:
        if (s := fact.source) is not None:
            place = Evidence(
                artefact=s.file, line=s.line, byte_start=s.byte_start, byte_end=s.byte_end, query=s.query
            )  # fmt: skip
            found.setdefault(place)
        if len(found) == MAX_EVIDENCE:
            break
    return tuple(found)
