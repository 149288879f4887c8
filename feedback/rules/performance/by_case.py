"""Effects case by case, with the false discovery rate held over all of them, and what their mean hides."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, median, pstdev
from typing import Literal, NamedTuple

from feedback.criteria import Criteria
from feedback.observations import Measurement, Observation, Scalar
from feedback.rules import rule
from feedback.rules.cases import Key, evidence, key, separating, text, where
from feedback.signals import Cause, Direction, Effect, InputLocation, Quantity, Signal
from feedback.stats import Difference, discoveries, exp, paired_difference, paired_units, unpaired_difference

MIN_UNITS = 3
"""Fresh processes in each arm below which no interval is worth its name."""
MAX_NAMED = 8
"""Cases that get a signal of their own; the rest are counted."""
ONE_FACTOR = 0.25
"""Cases whose log-ratios spread by less than this share of their mean moved by one common factor."""
MAX_MACHINE = math.log(1.3)
"""Clocks, other load and thermal limits rarely move a whole machine by more."""

_TIMES = ("_s", "_ms", "_us", "_ns")
_UNITS = {"_per_s": "/s", "_ms": "ms", "_us": "us", "_ns": "ns", "_s": "s", "_throughput": "/s", "_goodput": "/s"}
MAX_SHOWN = 24
"""Cases and metrics whose values are shown although nothing is decided about them."""
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


@rule(
    "performance.case_delta",
    "performance.bench_table",
    says="which cases got better or worse, and what a mean over them hides; at most 5 % of the named are false",
    needs="measurements of both arms, by case, in several fresh processes",
)
def by_case(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """Every case with a clear effect, and one table a metric."""
    compared = _judged(_compared(observations, criteria), criteria)
    signals = []
    loose = {
        m for m in {(c.probe, c.metric) for c in compared} if not any(c.difference for c in compared if c[:2] == m)
    }
    for probe in dict.fromkeys(probe for probe, _ in loose):
        metrics = [c for c in compared if c.probe == probe and (probe, c.metric) in loose]
        if len({c.metric for c in metrics}) > 1:
            signals.append(_unmeasured(metrics, criteria))
            compared = [c for c in compared if c not in metrics]
    for probe, metric in dict.fromkeys((c.probe, c.metric) for c in compared):
        cases = [c for c in compared if (c.probe, c.metric) == (probe, metric)]
        named = sorted((c for c in cases if c.found in ("better", "worse")), key=lambda c: -abs(c.gain))
        if not _one_factor(cases):
            signals += [_case(c, criteria) for c in named[:MAX_NAMED]]
        if len(cases) > 1 or not named:
            signals.append(_table(cases, criteria))
    return signals


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
        probe, metric, facts[0].case, direction, paired, difference, reason,
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


def _case(c: Compared, criteria: Criteria) -> Signal:
    effect = effect_of(c, criteria)
    assert effect is not None
    lo, hi = effect.improvement_interval
    return Signal(
        rule_id="performance.case_delta", level="note" if c.found == "better" else "warning",
        finding="better" if c.found == "better" else "worse",
        message=f"{text(c.case)}: {c.metric} {effect.improvement:+.1%} [{lo:+.1%}, {hi:+.1%}]: {c.found}"[:400],
        locations=where(criteria, c.probe, InputLocation(condition=c.case)),
        effect=effect, caveats=() if c.paired else (_APART,), evidence=evidence(c.facts), subject=_subject(c),
        next=("profile this case in both arms and compare the hot lines",) if c.found == "worse" else (),
    )  # fmt: skip


_APART = "the arms were measured one after the other: what drifted in between is part of the effect"


def _one_factor(cases: Sequence[Compared]) -> bool:
    """Whether all cases moved together by about one factor that a machine's state explains as well."""
    moved = [c.difference.mean for c in cases if c.difference is not None]
    if len(moved) < 4 or any(c.paired for c in cases) or all(c.found in ("same", "undecided") for c in cases):
        return False
    return pstdev(moved) < ONE_FACTOR * abs(fmean(moved)) and abs(fmean(moved)) < MAX_MACHINE


def _table(cases: Sequence[Compared], criteria: Criteria) -> Signal:
    c, n = cases[0], len(cases)
    of = {found: [x for x in cases if x.found == found] for found in ("better", "worse", "same", "undecided")}
    decided = n - len(of["undecided"])
    known = [x for x in cases if x.has_ratio]
    mean = exp(fmean(math.log(x.candidate) - math.log(x.baseline) for x in known)) if known else math.nan
    counts = ", ".join(f"{len(x)} {found}" for found, x in of.items() if x)
    said = f"{c.probe} {c.metric}: {counts} of {n} case{'s' if n > 1 else ''}"
    if n > 1 and known:
        said += f"; geometric mean x{mean:.3g}"
    if len(of["same"]) == n:
        lo, hi = (f([r[i] for r in map(_relative, cases)]) for i, f in ((0, min), (1, max)))
        said += f", within {lo:+.1%}..{hi:+.1%}"
    mixed = bool(of["better"] and of["worse"])
    if mixed:
        said += f" hides {_extreme(of['better'], 1)} and {_extreme(of['worse'], -1)}"
    conditions = _conditions(of)
    if conditions:
        said += f"; {conditions}"
    together = _one_factor(cases)
    if together:
        said += "; all moved together, as when the machine's clock or load changed"
    reasons = list(dict.fromkeys(x.reason for x in of["undecided"]))
    undecided = not decided or together
    shown = [x for x in cases if math.isfinite(x.baseline) and (together or x.found in ("undecided", "same"))][
        :MAX_SHOWN
    ]
    places = [InputLocation(condition=x.case) for x in (of["worse"] or of["undecided"] or of["better"] or cases)[:3]]
    return Signal(
        rule_id="performance.bench_table", level="warning" if undecided or of["worse"] else "note",
        finding="inconclusive" if undecided else "same" if len(of["same"]) == n else "observed",
        message=said[:400], locations=where(criteria, c.probe, *places),
        reason=_APART if together else "; ".join(reasons)[:400], subject=_subject(c),
        measured=(*((Quantity(name="geometric mean of ratios", value=mean),) if n > 1 and known else ()),
                  *_quantities(shown, n, "candidate")),
        expected=(*((Quantity(name="geometric mean of ratios", value=1.0),) if n > 1 and known else ()),
                  *_quantities(shown, n, "baseline")),
        caveats=() if c.paired else (_APART,),
        causes=(
            Cause(text="the machine was in another state, not the change", refutable_by="measure interleaved"),
        ) if together else (),
        evidence=evidence(x.facts[0] for x in cases),
        next=_next(of["undecided"], c.paired, together),
    )  # fmt: skip


def _unmeasured(cases: Sequence[Compared], criteria: Criteria) -> Signal:
    """Many metrics of which none has enough units, as of a load test that ran once in each arm: one signal."""
    known = sorted((c for c in cases if c.has_ratio), key=lambda c: -abs(c.gain))
    most = ", ".join(f"{c.metric} {c.gain:+.1%}" for c in known[:3])
    n, n_cases = len({c.metric for c in cases}), len({key(c.case) for c in cases})
    shown = [c for c in (*known, *(c for c in cases if c not in known)) if math.isfinite(c.baseline)][:MAX_SHOWN]
    return Signal(
        rule_id="performance.bench_table", level="warning", finding="inconclusive",
        message=f"{cases[0].probe}: {n} metrics undecided; largest changes for the better or worse: {most}"[:400],
        reason="; ".join(dict.fromkeys(c.reason for c in cases))[:400], subject=cases[0].probe,
        measured=tuple(_quantities(shown, n_cases, "candidate")),
        expected=tuple(_quantities(shown, n_cases, "baseline")),
        locations=where(criteria, cases[0].probe, InputLocation(condition=cases[0].case)),
        evidence=evidence(fact for c in shown for fact in c.facts), caveats=(_APART,),
        next=("run the whole measurement in at least 5 fresh processes an arm, the arms interleaved",),
    )  # fmt: skip


def _subject(c: Compared) -> str:
    return f"{c.probe} {c.metric}"


def _relative(c: Compared) -> tuple[float, float]:
    """The interval of the gain; empty of width where there is none."""
    if c.difference is None:
        return c.gain, c.gain
    i = c.difference.interval(c.confidence)
    return (exp(i.lo) - 1, exp(i.hi) - 1) if c.direction == "maximize" else (1 - exp(i.hi), 1 - exp(i.lo))


def _quantities(cases: Sequence[Compared], all_cases: int, arm: Literal["baseline", "candidate"]) -> list[Quantity]:
    """The medians of an arm by metric, and by case where there are several."""
    return [
        Quantity(
            name=c.metric if all_cases == 1 else f"{c.metric} of {text(c.case)[:100]}", value=getattr(c, arm),
            unit=next((unit for end, unit in _UNITS.items() if c.metric.endswith(end)), ""),
        )
        for c in cases
    ]  # fmt: skip


def _conditions(of: dict[str, list[Compared]]) -> str:
    cases = {found: [x.case for x in xs] for found, xs in of.items()}
    worse = separating(cases["worse"], cases["better"] + cases["same"])
    better = separating(cases["better"], cases["worse"] + cases["same"])
    return "; ".join(f"{found} where {at}" for found, at in (("worse", worse), ("better", better)) if at)


def _extreme(cases: Sequence[Compared], sign: int) -> str:
    x = max(cases, key=lambda c: sign * c.gain)
    return f"{x.gain:+.0%} at {text(x.case)}"


def _next(undecided: Sequence[Compared], paired: bool, together: bool) -> tuple[str, ...]:
    if together:
        return ("run the arms interleaved, A B B A, in fresh processes: what drifts then meets both",)
    if not paired and any(x.n_units < MIN_UNITS for x in undecided):
        return ("run each case in at least 5 fresh processes an arm, the arms interleaved",)
    return ("more fresh processes of the undecided cases only",) if undecided else ()
