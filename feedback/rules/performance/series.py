"""How times move while they are measured: slow starts, levels that change, series that never settle."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median
from typing import NamedTuple

from feedback.criteria import Criteria
from feedback.observations import Measurement, Observation, Scalar
from feedback.rules import rule
from feedback.rules.cases import Key, evidence, key, text, times, where
from feedback.rules.performance.compared import is_time, process_medians
from feedback.signals import Cause, InputLocation, Quantity, Signal
from feedback.stats import at_least, trend
from feedback.trends import Step, step, warm_up
from feedback.wording import count

SURE = 0.01
"""Of a whole set of series, the chance that one without a change is named."""
LEAST_STEP = 0.03
LEAST_DRIFT = 0.05
MAX_WARM_UP = 0.3
"""Share of a series that may be dropped as warm-up; beyond it the series never settles."""


class Series(NamedTuple):
    """Times of one case in one arm, in order."""

    probe: str
    metric: str
    case: dict[str, Scalar]
    arm: str
    paired: bool
    processes: tuple[tuple[Measurement, ...], ...]
    """Rounds of each process."""

    @property
    def units(self) -> list[float]:
        """The median round of each process."""
        return [math.exp(u) for u in process_medians(m for rounds in self.processes for m in rounds)]


def all_series(observations: Sequence[Observation], criteria: Criteria) -> list[Series]:
    """Every series of times, baselines first."""
    groups: dict[tuple[str, str, Key, str], dict[int, list[Measurement]]] = {}
    for o in observations:
        if (
            isinstance(o, Measurement)
            and o.stage == criteria.stage
            and is_time(o.metric)
            and not (o.warmup or o.disturbed)
            and math.isfinite(o.value)
            and o.value > 0
        ):
            groups.setdefault((o.probe, o.metric, key(o.case), o.arm), {}).setdefault(o.pair, []).append(o)
    found = []
    for (probe, metric, _, arm), processes in groups.items():
        rounds = tuple(
            tuple(sorted(processes[p], key=lambda m: (m.block, m.position))) for p in sorted(processes)
        )  # fmt: skip
        found.append(Series(probe, metric, rounds[0][0].case, arm, rounds[0][0].paired, rounds))
    return sorted(found, key=lambda s: s.arm)


def _by_probe(series: Sequence[Series]) -> Iterator[tuple[str, list[Series]]]:
    for probe in dict.fromkeys(s.probe for s in series):
        yield probe, [s for s in series if s.probe == probe]


@rule(
    "performance.warm_up",
    says="the first rounds of a process are slow, so they belong to no mean",
    needs="at least 8 rounds a process",
)
def slow_starts(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """Cases whose processes start slowly: one signal a probe."""
    series = [s for s in all_series(observations, criteria) if not s.paired]
    signals = []
    for probe, of_probe in _by_probe(series):
        slow = [(s, *found) for s in of_probe if (found := _slow_start(s, SURE / len(of_probe)))]
        if not slow:
            continue
        worst, n, excess = max(slow, key=lambda x: x[2])
        arms = {s.arm for s, _, _ in slow}
        one = "" if len(arms) == 2 or len({s.arm for s in of_probe}) < 2 else f" in the {arms.pop()} only"
        signals.append(
            Signal(
                rule_id="performance.warm_up", level="warning" if one else "note", finding="observed", subject=probe,
                message=f"{probe}: {len(slow)} of {len(of_probe)} series start slowly{one}; worst {text(worst.case)}: "
                f"first {count(n, 'round')} {times(excess)} the later ones"[:400],
                locations=where(criteria, probe, InputLocation(condition=worst.case)),
                measured=(Quantity(name="first rounds / later rounds", value=excess),),
                expected=(Quantity(name="first rounds / later rounds", value=1.0),),
                causes=(Cause(
                    text="compilation, caches, page faults or clocks that ramp up",
                    refutable_by="more warm-up rounds in the process leave the later ones as they are",
                ),),
                evidence=evidence(r[0] for r in worst.processes),
                next=(f"drop the first {n} rounds of each process and compare again",),
            )
        )  # fmt: skip
    return signals


def _slow_start(series: Series, sure: float) -> tuple[int, float] | None:
    """How many rounds, and how slow they are. One slow first round is chance in one process; in most of many, or
    three in a row, it is none."""
    starts = [warm_up([m.value for m in rounds]) for rounds in series.processes if len(rounds) >= 8]
    slow = [(n, excess) for n, excess in starts if n and excess >= 1 + LEAST_DRIFT]
    if not slow:
        return None
    n, excess = int(median(n for n, _ in slow)), median(e for _, e in slow)
    if len(starts) >= 3:
        return (n, excess) if at_least(len(slow), len(starts), 0.1) < sure else None
    return (n, excess) if n >= 3 else None


@rule(
    "performance.drift",
    says="a series changes its level or never settles: the machine or the process changed while it was measured",
    needs="20 rounds of a process, or 20 processes",
)
def drift(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """Changes of level and drift, the baseline's first: one signal a probe and arm."""
    series = all_series(observations, criteria)
    signals = []
    for probe, of_probe in _by_probe(series):
        for arm in dict.fromkeys(s.arm for s in of_probe):
            mine = [s for s in of_probe if s.arm == arm]
            moved = [(s, *found) for s in mine if (found := _moved(s, SURE / len(of_probe), criteria))]
            if moved:
                signals.append(_drift(probe, arm, moved, len(mine), criteria))
    return signals


def _moved(series: Series, sure: float, criteria: Criteria) -> tuple[Step, int, bool] | None:
    """The clearest change of a series: the step, how many values the series has, whether it is a steady drift."""
    runs = [[m.value for m in rounds] for rounds in series.processes] if not series.paired else []
    runs = [values[min(warm_up(values)[0], int(len(values) * MAX_WARM_UP)) :] for values in runs]
    runs = [series.units, *runs]
    least = max(LEAST_STEP, criteria.floor)
    best: tuple[Step, int, bool] | None = None
    for values in runs:
        found = step(values)
        if found is None or found.p > sure / len(runs) or abs(math.log(found.ratio)) < math.log1p(least):
            continue
        if best is None or found.p < best[0].p:
            best = found, len(values), _steady(values, found)
    return best


def _steady(values: Sequence[float], found: Step) -> bool:
    """Whether the level goes on moving on both sides of the step, in the same direction."""
    sides = values[: found.at], values[found.at :]
    if any(len(side) < 8 or abs(trend(side)) < 2 for side in sides):
        return False
    return all((median(s[len(s) // 2 :]) > median(s[: len(s) // 2])) == (found.ratio > 1) for s in sides)


def _drift(probe: str, arm: str, moved: Sequence[tuple[Series, Step, int, bool]], n: int, criteria: Criteria) -> Signal:
    series, found, length, steady = min(moved, key=lambda x: x[1].p)
    how = "never settles" if steady else f"changes level at value {found.at + 1} of {length}"
    facts = [rounds[0] for rounds in series.processes]
    return Signal(
        rule_id="performance.drift", level="note" if series.paired else "warning", finding="observed",
        subject=f"{probe} {arm}",
        message=f"{probe}: {text(series.case)} in the {arm} {how}: {found.ratio - 1:+.1%} "
        f"(p={found.p:.1g}); {len(moved)} of {n} series moved"[:400],
        locations=where(criteria, probe, InputLocation(condition=series.case)),
        measured=(Quantity(name="later / earlier level", value=found.ratio),),
        expected=(Quantity(name="later / earlier level", value=1.0),),
        caveats=("the arms were interleaved: what moved both is no part of the effect",) if series.paired else (),
        causes=(
            Cause(text="the machine changed: clock, temperature, other load",
                  refutable_by="the other arm, interleaved, does not move with it"),
            Cause(text="the process changed: memory grows, caches fill, collections set in", support="weak",
                  refutable_by="a fresh process starts at the later level"),
        ),
        evidence=evidence(facts), next=("measure again, the arms interleaved in fresh processes",),
    )  # fmt: skip
