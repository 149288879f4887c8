"""What an investigation of one arm measured: the numbers by case, most costly functions first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from feedback.criteria import Criteria
from feedback.observations import Measurement, Observation
from feedback.rules import rule
from feedback.rules.cases import Key, evidence, key, text, where
from feedback.rules.performance.compared import direction_of, is_time
from feedback.signals import CodeLocation, InputLocation, Quantity, Signal

MAX_SHOWN = 12
_TOLD = ("output_throughput", "median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "p99_tpot_ms", "median_e2el_ms")
"""Of the many metrics of a load, those that are told."""


@rule(
    "performance.measured",
    says="what the parent measures under conditions that somebody chose to look at",
    needs="an investigation",
)
def measured(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """One signal a probe and metric, with a value a case; and one a probe with its most costly functions."""
    if not criteria.question:
        return []
    groups: dict[tuple[str, str], list[Measurement]] = {}
    functions: dict[str, list[Measurement]] = {}
    for o in observations:
        if not isinstance(o, Measurement) or o.stage != criteria.stage or not math.isfinite(o.value) or o.warmup:
            continue
        if "function" in o.case:
            functions.setdefault(o.probe, []).append(o)
        elif _is_told(o.metric):
            groups.setdefault((o.probe, o.metric), []).append(o)
    found = [_values(probe, metric, of, criteria) for (probe, metric), of in groups.items()]
    return found + [_functions(probe, of, criteria) for probe, of in functions.items()]


def _is_told(metric: str) -> bool:
    """Counts, times and rates of a microbenchmark; of a load a few."""
    if metric in _TOLD or metric == "instructions" or is_time(metric):
        return True
    of_a_load = metric.endswith("_ms") or "throughput" in metric or "goodput" in metric
    return direction_of(metric) is not None and not of_a_load


def _values(probe: str, metric: str, of: Sequence[Measurement], criteria: Criteria) -> Signal:
    cases: dict[Key, list[Measurement]] = {}
    for m in of:
        cases.setdefault(key(m.case), []).append(m)
    quantities = [_quantity(metric, case, ms) for case, ms in list(cases.items())[:MAX_SHOWN]]
    said = ", ".join(f"{q.value:.4g} at {text(case)}" if case else f"{q.value:.4g}" for q, case in
                     zip(quantities, cases, strict=False))  # fmt: skip
    return Signal(
        rule_id="performance.measured", level="note", finding="observed", subject=f"{probe} {metric}",
        message=f"{probe} {metric}: {said}"[:400], measured=tuple(quantities),
        locations=where(criteria, probe, *(InputLocation(condition=ms[0].case) for ms in list(cases.values())[:3] if
                                           ms[0].case)),
        evidence=evidence(ms[0] for ms in cases.values()),
    )  # fmt: skip


def _quantity(metric: str, case: Key, of: Sequence[Measurement]) -> Quantity:
    """The median over the processes' medians, with the range of these."""
    rounds: dict[int, list[float]] = {}
    for m in of:
        rounds.setdefault(m.pair, []).append(m.value)
    units = [median(values) for values in rounds.values()]
    ends = {"lo": min(units), "hi": max(units)} if len(units) > 1 else {}
    return Quantity(name=f"{metric} of {text(case)[:100]}" if case else metric, value=median(units), **ends)


def _functions(probe: str, of: Sequence[Measurement], criteria: Criteria) -> Signal:
    total = sum(m.value for m in of) or 1.0
    top = sorted(of, key=lambda m: -m.value)[:MAX_SHOWN]
    said = ", ".join(f"{m.case['function']} {m.value / total:.0%}" for m in top[:6])
    return Signal(
        rule_id="performance.measured", level="note", finding="observed", subject=f"{probe} functions",
        message=f"{probe} {of[0].metric} by function: {said}"[:400],
        measured=tuple(Quantity(name=str(m.case["function"])[:100], value=m.value) for m in top),
        locations=where(criteria, probe, *(CodeLocation(
            file=str(m.case.get("file", ""))[:200], symbol=str(m.case["function"])[:200]) for m in top[:3])),
        evidence=evidence(top),
    )  # fmt: skip
