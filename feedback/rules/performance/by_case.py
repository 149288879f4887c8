"""Effects case by case, with the false discovery rate held over all of them, and what their mean hides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import Literal

from feedback.criteria import Criteria
from feedback.observations import Observation
from feedback.rules import rule
from feedback.rules.cases import evidence, key, separating, text, where
from feedback.rules.performance.compared import MIN_UNITS, Compared, compared_cases, effect_of
from feedback.signals import Cause, InputLocation, Quantity, Signal
from feedback.stats import exp
from feedback.wording import count

MAX_NAMED = 8
"""Cases that get a signal of their own; the rest are counted."""
ONE_FACTOR = 0.25
"""Cases whose log-ratios spread by less than this share of their mean moved by one common factor."""
MAX_MACHINE = math.log(1.3)
"""Clocks, other load and thermal limits rarely move a whole machine by more."""

_UNITS = {"_per_s": "/s", "_ms": "ms", "_us": "us", "_ns": "ns", "_s": "s", "_throughput": "/s", "_goodput": "/s"}
MAX_SHOWN = 24
"""Cases and metrics whose values are shown although nothing is decided about them."""


@rule(
    "performance.case_delta",
    "performance.bench_table",
    says="which cases got better or worse, and what a mean over them hides; at most 5 % of the named are false",
    needs="measurements of both arms, by case, in several fresh processes",
)
def by_case(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """Every case with a clear effect, and one table a metric."""
    compared = compared_cases(observations, criteria)
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
        together = _one_factor(cases)
        if not together:
            signals += [_case(c, criteria) for c in named[:MAX_NAMED]]
        if len(cases) > 1 or together or not named:
            signals.append(_table(cases, criteria))
    return signals


def _case(c: Compared, criteria: Criteria) -> Signal:
    effect = effect_of(c, criteria)
    assert effect is not None
    lo, hi = effect.improvement_interval
    return Signal(
        rule_id="performance.case_delta", level="note" if c.found == "better" else "warning",
        finding="better" if c.found == "better" else "worse",
        message=f"{text(c.case)}: {c.metric} {effect.improvement:+.1%} [{lo:+.1%}, {hi:+.1%}]: {c.found}"[:400],
        locations=where(criteria, c.probe, InputLocation(condition=c.case)),
        effect=effect, caveats=() if c.interleaved else (_APART,), evidence=evidence(c.facts), subject=_subject(c),
        next=("profile this case in both arms and compare the hot lines",) if c.found == "worse" else (),
    )  # fmt: skip


_APART = "the arms were measured one after the other: what drifted in between is part of the effect"


def _one_factor(cases: Sequence[Compared]) -> bool:
    """Whether all cases, or the only one, moved by about one factor that a machine's state explains as well."""
    moved = [c.difference.mean for c in cases if c.difference is not None]
    if not moved or any(c.interleaved for c in cases) or all(c.found in ("same", "undecided") for c in cases):
        return False
    return pstdev(moved) < ONE_FACTOR * abs(fmean(moved)) and abs(fmean(moved)) < MAX_MACHINE


def _table(cases: Sequence[Compared], criteria: Criteria) -> Signal:
    c, n = cases[0], len(cases)
    of = {found: [x for x in cases if x.found == found] for found in ("better", "worse", "same", "undecided")}
    decided = n - len(of["undecided"])
    known = [x for x in cases if x.has_ratio]
    mean = exp(fmean(math.log(x.candidate) - math.log(x.baseline) for x in known)) if known else math.nan
    counts = ", ".join(f"{len(x)} {found}" for found, x in of.items() if x)
    said = f"{c.probe} {c.metric}: {counts} of {count(n, 'case')}"
    if n > 1 and known:
        said += f"; geometric mean x{mean:.3g}"
    if len(of["same"]) == n:
        said += f", within {_relative_range(cases)}"
    mixed = bool(of["better"] and of["worse"])
    if mixed:
        said += f" hides {_extreme(of['better'], 1)} and {_extreme(of['worse'], -1)}"
    conditions = _conditions(of)
    if conditions:
        said += f"; {conditions}"
    together = _one_factor(cases)
    if together:
        moved = "all moved together" if n > 1 else f"it moved by {_relative_range(cases)}"
        said += f"; {moved}, as when the machine's clock or load changed"
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
        caveats=() if c.interleaved else (_APART,),
        causes=(
            Cause(text="the machine was in another state, not the change", refutable_by="measure interleaved"),
        ) if together else (),
        evidence=evidence(x.facts[0] for x in cases),
        next=_next(of["undecided"], c.interleaved, together),
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


def _relative_range(cases: Sequence[Compared]) -> str:
    lo, hi = (f([r[i] for r in map(_relative, cases)]) for i, f in ((0, min), (1, max)))
    return f"{lo:+.1%}..{hi:+.1%}"


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


def _next(undecided: Sequence[Compared], interleaved: bool, together: bool) -> tuple[str, ...]:
    if together:
        return ("run the arms in turn, A B B A, one file a process: what drifts then meets both",)
    if not interleaved and any(x.n_units < MIN_UNITS for x in undecided):
        return ("run each case in at least 5 fresh processes an arm, the arms interleaved",)
    return ("more fresh processes of the undecided cases only",) if undecided else ()
