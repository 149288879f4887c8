"""What the probe that was chosen to answer a hypothesis measured of the metric that it predicts."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from feedback.criteria import Criteria, MetricCriterion
from feedback.observations import Measurement, Observation
from feedback.rules import rule
from feedback.rules.cases import where
from feedback.rules.performance.objective import effect
from feedback.rules.performance.work import REAL_CHANGE_OF_WORK
from feedback.signals import Effect, Signal
from feedback.stats import paired_units

COUNTED = "executed instructions, counted once an arm"


@rule(
    "performance.question",
    says="what the probe that a hypothesis names measured of the metric that it predicts",
    needs="a hypothesis that is to be answered by another probe than the objective's",
)
def question(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """One signal with the effect, whether or not it is what was predicted; nothing without such a question."""
    asked = criteria.asked
    if asked is None or (criteria.objective is not None and asked.probe == criteria.objective.probe):
        return []
    of = [
        o
        for o in observations
        if isinstance(o, Measurement) and (o.probe, o.metric, o.stage) == (asked.probe, asked.metric, criteria.stage)
        and "function" not in o.case
    ]  # fmt: skip
    found = _counted(of, asked) if asked.metric == "instructions" else _paired(of, asked, criteria)
    if found is None:
        return []
    lo, hi = found.improvement_interval
    said = f"{found.improvement:+.1%}" + ("" if lo == hi else f" [{lo:+.1%}, {hi:+.1%}]")
    return [
        Signal(
            rule_id="performance.question", level="note", finding="observed", subject=f"{asked.probe} {asked.metric}",
            message=f"{asked.probe}: {asked.metric} {said} (gain in the wanted direction)", effect=found,
            locations=where(criteria, asked.probe),
        )
    ]  # fmt: skip


def _counted(of: Sequence[Measurement], asked: MetricCriterion) -> Effect | None:
    arms = {arm: [m.value for m in of if m.arm == arm and m.value > 0] for arm in ("baseline", "candidate")}
    if not all(arms.values()):
        return None
    before, after = median(arms["baseline"]), median(arms["candidate"])
    ratio = after / before
    return Effect(
        metric=asked.metric, direction=asked.direction, baseline=before, measured=after, ratio=ratio, ratio_lo=ratio,
        ratio_hi=ratio, confidence=0.99, method=COUNTED, n_units=1, n_observations=len(of),
        floor=REAL_CHANGE_OF_WORK, floor_known=True,
    )  # fmt: skip


def _paired(of: Sequence[Measurement], asked: MetricCriterion, criteria: Criteria) -> Effect | None:
    try:
        units = paired_units(of, asked.metric, criteria.stage)
    except ValueError:
        return None
    # The noise floor of the objective's probe was not measured for this one.
    return effect(units, asked, criteria.model_copy(update={"floor_known": False, "floor_units": None}))
