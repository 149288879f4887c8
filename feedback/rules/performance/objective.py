"""The objective and the guardrails, by fresh process pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from feedback.criteria import Criteria, MetricCriterion
from feedback.observations import Measurement, Observation
from feedback.rules import rule
from feedback.rules.cases import where
from feedback.signals import Effect, Finding, Quality, Signal, as_gain, as_loss
from feedback.stats import (
    Finding as Look,
    Rule,
    Units,
    interval,
    is_futile,
    look,
    non_inferior,
    paired_units,
    tail_of,
)

METHOD = "Student t over fresh process pairs (median of interleaved ABBA blocks)"
METHOD_IN_TURN = "Student t over groups of four fresh runs in the order ABBA (median over their slices)"


@rule(
    "performance.bench_delta",
    "performance.guardrail",
    says="effect on the objective and on each guardrail, with an interval over fresh pairs",
    needs="paired measurements",
)
def bench_delta(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """The objective and every guardrail whose probe was measured in pairs; what the probe says nothing of, or
    nothing possible, is abstained from, so that no guardrail holds by silence."""
    measurements = [o for o in observations if isinstance(o, Measurement) and o.stage == criteria.stage]
    signals = []
    for criterion in criteria.judged:
        of_probe = [m for m in measurements if m.probe == criterion.probe]
        if not of_probe:
            continue
        try:
            units = paired_units(of_probe, criterion.metric, criteria.stage)
        except ValueError as error:
            signals.append(_abstained(criterion, criteria, str(error)))
            continue
        if not units.values:
            signals.append(_abstained(criterion, criteria, "no undisturbed, complete pair holds it"))
        elif criterion is criteria.objective:
            signals.append(_objective(units, criterion, criteria))
        else:
            signals.append(_guardrail(units, criterion, criteria))
    return signals


def _abstained(criterion: MetricCriterion, criteria: Criteria, reason: str) -> Signal:
    is_objective = criterion is criteria.objective
    return Signal(
        rule_id="performance.bench_delta" if is_objective else "performance.guardrail",
        level="warning", finding="abstained", role="objective" if is_objective else "guardrail",
        message=f"{criterion.metric} was not measured by {criterion.probe}: {reason}"[:400],
        locations=where(criteria, criterion.probe), reason=reason,
    )  # fmt: skip


def effect(units: Units, criterion: MetricCriterion, criteria: Criteria) -> Effect | None:
    """The effect on one metric with its interval; None with fewer than two units."""
    if len(units.values) < 2:
        return None
    rule = criteria.rule(criterion)
    i = interval(units.values, tail_of(rule))
    quality: Quality = "ok" if len(units.values) >= rule.looks[0] else "underpowered"
    return Effect(
        metric=criterion.metric, direction=criterion.direction,
        baseline=units.baseline, measured=units.candidate,
        ratio=math.exp(i.mean), ratio_lo=math.exp(i.lo), ratio_hi=math.exp(i.hi),
        confidence=i.confidence, method=METHOD if criterion.side_by_side else METHOD_IN_TURN,
        n_units=len(units.values), n_observations=units.n_observations,
        floor=criteria.floor, floor_known=criteria.floor_known, floor_units=criteria.floor_units, quality=quality,
    )  # fmt: skip


def _objective(units: Units, criterion: MetricCriterion, criteria: Criteria) -> Signal:
    rule = criteria.rule(criterion)
    found = effect(units, criterion, criteria)
    finding = look(units.values, rule)
    said = f"{criterion.metric} {gain_text(found)}" if found else f"{criterion.metric}: too few pairs"
    words: dict[Look, tuple[Finding, Literal["note", "warning"], str]] = {
        Look.BETTER: ("better", "note", "better than the parent"),
        Look.WORSE: ("worse", "warning", "worse than the parent"),
        Look.SAME: ("same", "note", f"no gain worth having (asked: {_worth(rule):.1%})"),
        Look.UNDECIDED: ("inconclusive", "warning", "undecided"),
    }
    name, level, conclusion = words[finding]
    return Signal(
        rule_id="performance.bench_delta", level=level, finding=name, role="objective",
        message=f"{said}: {conclusion}", locations=where(criteria, criterion.probe), effect=found,
        reason=_why_undecided(found, units, rule) if name == "inconclusive" else "",
    )  # fmt: skip


def _worth(rule: Rule) -> float:
    """The least gain worth having, on the scale of the gains that stand beside it."""
    return as_gain(max(rule.min_effect, rule.floor), rule.direction)


def _why_undecided(found: Effect | None, units: Units, rule: Rule) -> str:
    if found is None:
        return "fewer than two undisturbed pairs were measured"
    lo, hi = found.improvement_interval
    ended = "; more pairs would hardly have made it a gain that counts" if is_futile(units.values, rule) else ""
    return (
        f"after {found.n_units} pairs the interval {lo:+.1%}..{hi:+.1%} neither clears the noise floor of "
        f"{as_gain(rule.floor, rule.direction):.1%} nor excludes a gain of {_worth(rule):.1%}{ended}"
    )


def _guardrail(units: Units, criterion: MetricCriterion, criteria: Criteria) -> Signal:
    found = effect(units, criterion, criteria)
    finding = non_inferior(units.values, criteria.rule(criterion), criterion.max_regression)
    said = f"{criterion.metric} {gain_text(found)}" if found else f"{criterion.metric}: too few pairs"
    limit = f"may lose at most {100 * as_loss(criterion.max_regression, criterion.direction):.3g}%"
    words: dict[Look, tuple[Finding, Literal["note", "warning", "error"], str]] = {
        Look.SAME: ("holds", "note", f"guardrail holds ({limit})"),
        Look.WORSE: ("violates", "error", f"guardrail violated ({limit})"),
        Look.UNDECIDED: ("inconclusive", "warning", f"guardrail undecided ({limit})"),
    }
    name, level, conclusion = words[finding]
    return Signal(
        rule_id="performance.guardrail", level=level, finding=name, role="guardrail",
        message=f"{said}: {conclusion}", locations=where(criteria, criterion.probe), effect=found,
        reason="the interval reaches beyond the tolerated loss" if name == "inconclusive" else "",
    )  # fmt: skip


def gain_text(found: Effect) -> str:
    """`+21.3 % [+18.0 %, +24.7 %]`: the gain in the wanted direction with its interval."""
    lo, hi = found.improvement_interval
    return f"{found.improvement:+.1%} [{lo:+.1%}, {hi:+.1%}]"
