"""Rules that answer a question: what an investigation measured, and what a named probe says of a prediction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from feedback.criteria import Criteria, MetricCriterion
from feedback.observations import Measurement
from feedback.rules.performance import measured, question
from feedback.rules.performance.objective import METHOD, METHOD_IN_TURN
from feedback.rules.performance.question import COUNTED
from feedback.signals import Signal

OBJECTIVE = MetricCriterion(metric="output_throughput", direction="maximize", probe="load")
ASKED = MetricCriterion(metric="slice_time_s", direction="minimize", probe="micro")
CRITERIA = Criteria(objective=OBJECTIVE, asked=ASKED, floor=0.01, floor_known=True, floor_units=30, changed=())
INVESTIGATION = Criteria(question="How does time grow with batch?", changed=())


def one(value: float, arm: str = "baseline", **fields: Any) -> Measurement:
    known = {"probe": "micro", "metric": "slice_time_s", "arm": arm, "value": value}
    return Measurement.model_validate(known | fields)


def pairs(ratios: Sequence[float], **fields: Any) -> list[Measurement]:
    return [
        one(0.01 * (ratio if arm == "candidate" else 1.0), arm, pair=pair, position=position, **fields)
        for pair, ratio in enumerate(ratios)
        for position, arm in enumerate(("baseline", "candidate", "candidate", "baseline"))
    ]


def only(signals: Sequence[Signal]) -> Signal:
    assert len(signals) == 1, [s.message for s in signals]
    return signals[0]


# performance.question


def test_the_named_probe_answers_with_an_interval_over_its_pairs() -> None:
    signal = only(question(pairs([0.79, 0.80, 0.81, 0.80, 0.80]), CRITERIA))
    assert (signal.rule_id, signal.role, signal.finding) == ("performance.question", "information", "observed")
    assert signal.effect is not None
    assert signal.effect.ratio == pytest.approx(0.8, rel=1e-3)
    assert signal.effect.ratio_lo < 0.79 < 0.81 < signal.effect.ratio_hi
    assert (signal.effect.n_units, signal.effect.n_observations, signal.effect.method) == (5, 20, METHOD)


def test_the_noise_floor_of_the_objective_is_not_said_to_be_known_of_another_probe() -> None:
    effect = only(question(pairs([0.8] * 5), CRITERIA)).effect
    assert effect is not None
    assert (effect.floor_known, effect.floor_units) == (False, None)


def test_arms_that_ran_in_turn_are_said_to_have_done_so() -> None:
    in_turn = CRITERIA.model_copy(update={"asked": ASKED.model_copy(update={"side_by_side": False})})
    effect = only(question(pairs([0.8] * 5), in_turn)).effect
    assert effect is not None
    assert effect.method == METHOD_IN_TURN


@pytest.mark.parametrize(
    "asked", [None, OBJECTIVE, ASKED.model_copy(update={"probe": "other"}), ASKED.model_copy(update={"metric": "x_s"})]
)
def test_what_was_not_asked_is_not_answered(asked: MetricCriterion | None) -> None:
    """The objective has a rule of its own."""
    found = pairs([0.8] * 5) + pairs([0.8] * 5, probe="load", metric="output_throughput")
    assert question(found, CRITERIA.model_copy(update={"asked": asked})) == []


@pytest.mark.parametrize("found", [[], pairs([0.8]), [one(0.01), one(0.01, pair=1)], pairs([0.8] * 5, stage="confirm")])
def test_too_little_is_no_answer(found: list[Measurement]) -> None:
    assert question(found, CRITERIA) == []


def test_counted_instructions_are_exact_and_those_of_functions_are_left_out() -> None:
    asked = ASKED.model_copy(update={"metric": "instructions"})
    counts = [one(1000.0, metric="instructions"), one(900.0, "candidate", metric="instructions")]
    by_function = [one(5.0, arm, metric="instructions", case={"function": "f"}) for arm in ("baseline", "candidate")]
    signal = only(question(counts + by_function, CRITERIA.model_copy(update={"asked": asked})))
    assert signal.effect is not None
    assert (signal.effect.ratio, signal.effect.ratio_lo, signal.effect.ratio_hi) == (0.9, 0.9, 0.9)
    assert signal.effect.method == COUNTED
    assert "instructions +10.0%" in signal.message


@pytest.mark.parametrize("counts", [(1000.0, 0.0), (0.0, 900.0)])
def test_nothing_counted_is_no_answer(counts: tuple[float, float]) -> None:
    asked = CRITERIA.model_copy(update={"asked": ASKED.model_copy(update={"metric": "instructions"})})
    found = [
        one(value, arm, metric="instructions") for value, arm in zip(counts, ("baseline", "candidate"), strict=True)
    ]
    assert question(found, asked) == []


# performance.measured


def test_an_investigation_tells_each_case_with_the_range_over_processes() -> None:
    found = [
        one(0.01 * size * level, case={"batch": size}, pair=pair)
        for size in (1, 8)
        for pair, level in enumerate((0.9, 1.0, 1.1))
    ]
    signal = only(measured(found, INVESTIGATION))
    assert signal.message == "micro slice_time_s: 0.01 at batch=1, 0.08 at batch=8"
    assert [(q.value, q.lo, q.hi) for q in signal.measured] == [
        pytest.approx((0.01, 0.009, 0.011)), pytest.approx((0.08, 0.072, 0.088)),
    ]  # fmt: skip


def test_one_process_has_no_range() -> None:
    quantity = only(measured([one(0.01), one(0.02), one(0.03)], INVESTIGATION)).measured[0]
    assert (quantity.value, quantity.lo, quantity.hi) == (0.02, None, None)


def test_a_comparison_is_told_by_other_rules() -> None:
    assert measured(pairs([0.8] * 5), CRITERIA) == []


@pytest.mark.parametrize(
    "fields", [{"warmup": True}, {"stage": "confirm"}, {"value": float("nan")}, {"metric": "distinct_checks"}]
)
def test_what_says_nothing_of_the_question_is_left_out(fields: dict[str, Any]) -> None:
    assert measured([one(0.01).model_copy(update=fields)], INVESTIGATION) == []


@pytest.mark.parametrize(
    ("metric", "is_told"),
    [
        ("time_s", True), ("time_ms", True), ("tokens_per_s", True), ("instructions", True),
        ("output_throughput", True), ("p99_ttft_ms", True), ("p90_ttft_ms", False), ("request_throughput", False),
    ],
)  # fmt: skip
def test_of_the_metrics_of_a_load_a_few_are_told(metric: str, is_told: bool) -> None:
    assert [s.subject for s in measured([one(3.0, metric=metric)], INVESTIGATION)] == [f"micro {metric}"] * is_told


def test_functions_are_told_most_costly_first() -> None:
    costs = {"softplus": 10.0, "decode": 85.0, "main": 5.0}
    found = [one(cost, metric="instructions", case={"function": f, "file": f"{f}.c"}) for f, cost in costs.items()]
    signal = only(measured(found, INVESTIGATION))
    assert signal.message == "micro instructions by function: decode 85%, softplus 10%, main 5%"
    assert [q.name for q in signal.measured] == ["decode", "softplus", "main"]
