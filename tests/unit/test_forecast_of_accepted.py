"""A prediction about what another probe counts outlives the confirmation, which asks only the objective."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from playbook_cases import target

from feedback.signals import Effect, HostLocation, Signal
from feedback.verdict import Verdict, VerdictKind
from infra_agent import forecast
from infra_agent.domain import Change, Experiment, Hypothesis, Prediction, Proposal
from infra_agent.experiment import Measured, _outcome


def told(rule: str, metric: str, ratio: float) -> Signal:
    effect = Effect(
        metric=metric, direction="minimize", baseline=1.0, measured=ratio, ratio=ratio, ratio_lo=ratio, ratio_hi=ratio,
        confidence=0.99, method="counted", n_units=1, n_observations=2, floor=0.001, floor_known=True,
    )  # fmt: skip
    return Signal(
        rule_id=rule, level="note", finding="observed", message="m", effect=effect, locations=(HostLocation(),)
    )


@pytest.mark.parametrize("confirmed", [True, False])
def test_a_prediction_about_a_count_is_held_against_it(confirmed: bool) -> None:
    bench = cast(Any, SimpleNamespace(artefacts=(), sandbox_s=1.0))
    screened = Measured([told("performance.question", "instructions", 0.7)], [], bench, False)
    again = Measured([told("performance.bench_delta", "slice_time_s", 0.9)], [], bench, False)
    stages = [screened, again] if confirmed else [screened]
    lab = cast(Any, SimpleNamespace(spec=target()))
    verdict = Verdict(kind=VerdictKind.ACCEPT, reasons=("r",))
    outcome = _outcome(lab, stages, verdict, "c", "", confirmed, Path())
    assert len(outcome.signals) == len(stages)
    predicted = Prediction(metric="instructions", direction="down", low=0.2)
    experiment = Experiment(
        id="e", campaign_id="c", number=1, role="change", state=outcome.state, parent_commit="p",
        proposal=Proposal(hypothesis=Hypothesis(claim="c", predicted=predicted), change=Change()),
        signals=outcome.signals, effects=outcome.effects,
    )  # fmt: skip
    found = forecast.standing(experiment)
    assert found is not None
    assert found.outcome == "confirmed"
    assert found.change == pytest.approx(0.3)
