"""Each case of both arms compared: what was measured, how many units that is, and what it says.

The false discovery rate is held over all cases of all metrics together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Literal, NamedTuple

from feedback.criteria import Criteria
from feedback.observations import Measurement, Observation, Scalar
from feedback.rules.cases import Key, key, text
from feedback.signals import Direction, Effect
from feedback.stats import Difference, discoveries, exp, paired_difference, paired_units, unpaired_difference

MIN_UNITS = 3
"""Fresh processes in each arm below which no interval is worth its name."""
_TIMES = ("_s", "_ms", "_us", "_ns")
_NOT_COMPARED = ("instructions", "cpu_time_s", "process_cpu_s", "user_time_s", "system_time_s")
"""Have rules of their own, or stand beside the wall time that decides."""

Found = Literal["better", "worse", "same", "undecided"]


class Compared(NamedTuple):
    """One case in both arms."""

    probe: str
    metric: str
    case: dict[str, Scalar]
    direction: Direction
    paired: bool
    interleaved: bool
    """Whether the arms were, in one process pair or in turn."""
    difference: Difference | None
    """None where there are too few units, or impossible values; `reason` says which."""
    reason: str
    baseline: float
    candidate: float
    n_units: int
    """Of the arm that has fewer."""
    n_observations: int
    facts: tuple[Measurement, ...]
    found: Found = "undecided"
    confidence: float = 0.95

    @property
    def has_ratio(self) -> bool:
        """Whether both arms have a median of which a ratio can be taken."""
        return all(math.isfinite(x) and x > 0 for x in (self.baseline, self.candidate))

    @property
    def gain(self) -> float:
        """Relative change of the medians in the wanted direction."""
        ratio = exp(math.log(self.candidate) - math.log(self.baseline))
        return ratio - 1 if self.direction == "maximize" else 1 - ratio


def direction_of(metric: str) -> Direction | None:
    """Which way a metric is better, by its name; None where that isn't known."""
    if "throughput" in metric or "goodput" in metric or metric.endswith(("_per_s", "_per_second")):
        return "maximize"
    return "minimize" if metric.endswith(_TIMES) else None


def is_time(metric: str) -> bool:
    """Whether a metric is the time of one round of work, rather than a latency under load."""
    return metric in ("time_s", "time_ms", "time_us", "slice_time_s")


def compared_cases(observations: Sequence[Observation], criteria: Criteria) -> list[Compared]:
    """Every metric of every case that both arms measured, with what it says."""
    return _judged(_compared(observations, criteria), criteria)


def _compared(observations: Sequence[Observation], criteria: Criteria) -> list[Compared]:
    groups: dict[tuple[str, str, Key], list[Measurement]] = {}
    for o in observations:
        if (
            isinstance(o, Measurement)
            and o.stage == criteria.stage
            and not (o.disturbed or o.warmup)
            and o.metric not in _NOT_COMPARED
            and not o.metric.startswith("peak_")
            and direction_of(o.metric)
            and (o.case or not o.paired or not criteria.judged)  # else they are the objective's and the guardrails'
        ):
            groups.setdefault((o.probe, o.metric, key(o.case)), []).append(o)
    return [
        c
        for (probe, metric, case), of in groups.items()
        # A rate beside the time that it was computed from says nothing new.
        if not (direction_of(metric) == "maximize" and (probe, "time_s", case) in groups)
        and (c := _compare(probe, metric, of, criteria.stage))
    ]


def _compare(probe: str, metric: str, of: Sequence[Measurement], stage: str) -> Compared | None:
    arms = {arm: [m for m in of if m.arm == arm] for arm in ("baseline", "candidate")}
    direction = direction_of(metric)
    if not (arms["baseline"] and arms["candidate"] and direction):
        return None
    facts = (arms["candidate"][0], arms["baseline"][0])
    paired = all(m.paired for m in of)
    difference, reason, n_units = None, "", 0
    middle = {"baseline": math.nan, "candidate": math.nan}
    if all(math.isfinite(m.value) for m in of):
        middle = {arm: median(m.value for m in ms) for arm, ms in arms.items()}
    if not all(math.isfinite(m.value) and m.value > 0 for m in of):
        reason = "a value is zero, negative or not finite, so it has no ratio"
    else:
        units = {arm: process_medians(ms) for arm, ms in arms.items()}
        pairs = paired_units(of, metric, stage).values if paired else ()
        n_units = len(pairs) if paired else min(len(u) for u in units.values())
        if n_units >= MIN_UNITS:
            difference = paired_difference(pairs) if paired else unpaired_difference(**units)
        elif n_units <= 1:
            reason = "all rounds of an arm share one process, so nothing says how much a fresh one would differ"
        else:
            reason = f"{n_units} fresh processes an arm; {MIN_UNITS} are the least, 5 are better"
    return Compared(
        probe, metric, facts[0].case, direction, paired, paired or all(m.in_turn for m in of), difference, reason,
        middle["baseline"], middle["candidate"], n_units, len(of), facts,
    )  # fmt: skip


def process_medians(measurements: Iterable[Measurement]) -> list[float]:
    """ln of the median round of each process, in the order of the processes: the units of an unpaired arm."""
    rounds: dict[int, list[float]] = {}
    for m in measurements:
        rounds.setdefault(m.pair, []).append(m.value)
    return [math.log(median(rounds[process])) for process in sorted(rounds)]


def _judged(compared: Sequence[Compared], criteria: Criteria) -> list[Compared]:
    """What each case says, with the error rate held over all cases of all metrics together."""
    tested = [c.difference for c in compared if c.difference is not None]
    stand = iter(discoveries([d.p for d in tested], criteria.alpha))
    n_named = sum(discoveries([d.p for d in tested], criteria.alpha))
    floor = math.log1p(criteria.floor)
    found = []
    for c in compared:
        if c.difference is None:
            found.append(c)
            continue
        named = next(stand)
        confidence = 1 - criteria.alpha * (n_named / len(tested) if named else 1.0)
        i = c.difference.interval(confidence)
        lo, hi = (i.lo, i.hi) if c.direction == "maximize" else (-i.hi, -i.lo)
        says: Found = "undecided"
        if named and lo > floor:
            says = "better"
        elif named and hi < -floor:
            says = "worse"
        elif -floor < lo and hi < floor:
            says = "same"
        reason = (
            "" if says != "undecided" else f"{text(c.case)}: {_range(lo, hi, c.direction)} does not clear the noise"
        )
        found.append(c._replace(found=says, confidence=confidence, reason=reason))
    return found


def _range(lo: float, hi: float, direction: Direction) -> str:
    """An interval of log gains as relative ones."""
    ends = (exp(lo) - 1, exp(hi) - 1) if direction == "maximize" else (1 - exp(-lo), 1 - exp(-hi))
    return f"{ends[0]:+.1%}..{ends[1]:+.1%}"


def effect_of(c: Compared, criteria: Criteria) -> Effect | None:
    """The effect on one case, or None without units."""
    if c.difference is None:
        return None
    i = c.difference.interval(c.confidence)
    method = "Student t over fresh process pairs" if c.paired else "Welch's t on log values over fresh processes"
    return Effect(
        metric=c.metric, direction=c.direction, baseline=c.baseline, measured=c.candidate,
        ratio=exp(i.mean), ratio_lo=exp(i.lo), ratio_hi=exp(i.hi),
        confidence=c.confidence, method=f"{method}, false discovery rate over all cases",
        n_units=c.n_units, n_observations=c.n_observations,
        floor=criteria.floor, floor_known=criteria.floor_known, floor_units=criteria.floor_units,
    )  # fmt: skip
