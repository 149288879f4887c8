"""What a hypothesis predicted, held against what was measured. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from feedback.signals import Effect
from infra_agent.domain import Experiment, Prediction
from sandboxes.results import Record

ForecastOutcome = Literal["confirmed", "refuted", "undecided", "not measured"]


class Forecast(Record):
    """What a hypothesis predicted, and what was measured of it."""

    predicted: Prediction
    outcome: ForecastOutcome
    """`undecided` when the interval holds the smallest change that would confirm it; `not measured` when there is
    no effect on that metric."""
    change: float | None = None
    """Relative change of the metric, positive in the predicted direction."""
    interval: tuple[float, float] | None = None
    is_beyond: bool = False
    """The whole interval lies above the predicted range."""


def standing(experiment: Experiment) -> Forecast | None:
    """What became of an experiment's hypothesis; None without a prediction or while it is not finished."""
    predicted = experiment.proposal.hypothesis.predicted
    if predicted is None or not experiment.state.is_finished:
        return None
    effects = (*experiment.effects, *(s.effect for s in experiment.signals if s.effect is not None))
    return held_against(predicted, effects)


def held_against(predicted: Prediction, effects: Iterable[Effect]) -> Forecast:
    """The prediction beside the effect on its metric, if there is one.

    Confirmed when the whole interval is a change in the predicted direction of at least the predicted size, refuted
    when the whole interval is less than that, else undecided.
    """
    effect = next((e for e in effects if e.metric == predicted.metric), None)
    if effect is None:
        return Forecast(predicted=predicted, outcome="not measured")
    if predicted.direction == "up":
        change, low, high = (r - 1 for r in (effect.ratio, effect.ratio_lo, effect.ratio_hi))
    else:
        change, low, high = (1 - r for r in (effect.ratio, effect.ratio_hi, effect.ratio_lo))
    outcome: ForecastOutcome = "undecided"
    if low >= predicted.low and low > 0:
        outcome = "confirmed"
    elif high < predicted.low or high <= 0:
        outcome = "refuted"
    is_beyond = predicted.high is not None and low > predicted.high
    return Forecast(predicted=predicted, outcome=outcome, change=change, interval=(low, high), is_beyond=is_beyond)


def said(forecast: Forecast, beside: Effect | None = None) -> str:
    """`slice_time_s down 10 % to 30 %: refuted, measured -6.2 % [-12.7 %, -0.1 %]`; a negative number is a change
    in the other direction. The numbers are left out where those of `beside` are the same."""
    p = forecast.predicted
    size = f"{100 * p.low:g} % or more" if p.high is None else f"{100 * p.low:g} % to {100 * p.high:g} %"
    claim = f"{p.metric} {p.direction} {size}: {forecast.outcome}"
    if forecast.change is None or forecast.interval is None:
        return claim
    claim += ", more than predicted" if forecast.is_beyond else ""
    if beside is not None and beside.improvement == forecast.change:
        return claim
    low, high = (f"{100 * end:+.1f} %" for end in forecast.interval)
    return f"{claim}, measured {100 * forecast.change:+.1f} % [{low}, {high}]"
