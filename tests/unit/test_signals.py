"""What a signal must hold, and its identity across runs."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from feedback.signals import (
    CodeLocation,
    Effect,
    HostLocation,
    InputLocation,
    ParamLocation,
    ProcessLocation,
    Signal,
)


def make_effect(**fields: Any) -> Effect:
    known = {
        "metric": "slice_time_s", "direction": "minimize", "baseline": 1.0, "measured": 0.8, "ratio": 0.8,
        "ratio_lo": 0.75, "ratio_hi": 0.85, "confidence": 0.97, "method": "m", "n_units": 5, "n_observations": 140,
        "floor": 0.02, "floor_known": True,
    }  # fmt: skip
    return Effect.model_validate(known | fields)


def make_signal(**fields: Any) -> Signal:
    known = {
        "rule_id": "performance.bench_delta", "level": "note", "finding": "observed", "message": "m",
        "locations": (CodeLocation(file="a.c"),),
    }  # fmt: skip
    return Signal.model_validate(known | fields)


def test_signal_without_a_place_is_refused() -> None:
    with pytest.raises(ValidationError, match="locations"):
        make_signal(locations=())


@pytest.mark.parametrize("finding", ["better", "worse"])
def test_comparison_without_an_interval_is_refused(finding: str) -> None:
    with pytest.raises(ValidationError, match="needs an effect with an interval"):
        make_signal(finding=finding)
    assert make_signal(finding=finding, effect=make_effect()).finding == finding


@pytest.mark.parametrize("finding", ["inconclusive", "abstained"])
def test_open_question_without_a_reason_is_refused(finding: str) -> None:
    with pytest.raises(ValidationError, match="needs a reason"):
        make_signal(finding=finding)
    assert make_signal(finding=finding, reason="too few pairs").reason


@pytest.mark.parametrize("finding", ["same", "violates", "holds", "observed"])
def test_other_findings_need_neither(finding: str) -> None:
    assert make_signal(finding=finding).effect is None


@pytest.mark.parametrize(
    "fields", [{"finding": "great"}, {"level": "fatal"}, {"role": "judge"}, {"extra": 1}, {"message": "x" * 401}]
)
def test_unknown_words_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        make_signal(**fields)


def test_signal_is_frozen() -> None:
    with pytest.raises(ValidationError):
        make_signal().message = "other"  # type: ignore[misc]


def test_what_programs_said_can_not_steer_a_terminal() -> None:
    signal = make_signal(message="\x1b[2Jall passed\r\nreally\x00\u202e", reason="\x9b31mred")
    assert signal.message == " [2Jall passed  really  "
    assert signal.reason == " 31mred"
    assert make_signal(message="größer als 5 µs – 日本").message == "größer als 5 µs – 日本"


def test_signal_survives_json() -> None:
    locations = (
        CodeLocation(file="a.c", line=3, symbol="f"),
        ParamLocation(name="threads", value=4, was=None),
        InputLocation(condition={"batch": 1, "dtype": "f16", "scale": 0.5, "causal": True}),
        ProcessLocation(arm="candidate", role="server"),
        HostLocation(cpus=(1, 3)),
    )
    signal = make_signal(finding="better", effect=make_effect(), locations=locations)
    assert Signal.model_validate_json(signal.model_dump_json()) == signal


@pytest.mark.parametrize(
    ("direction", "improvement", "interval"),
    [("minimize", 0.2, (0.15, 0.25)), ("maximize", -0.2, (-0.25, -0.15))],
)
def test_improvement_points_in_the_wanted_direction(
    direction: str, improvement: float, interval: tuple[float, float]
) -> None:
    effect = make_effect(direction=direction)
    assert effect.improvement == pytest.approx(improvement)
    assert effect.improvement_interval == pytest.approx(interval)


def test_fingerprint_is_of_rule_and_places_only() -> None:
    first = make_signal(message="one", finding="better", effect=make_effect())
    assert first.fingerprint == make_signal(message="two", level="error", finding="observed").fingerprint
    assert len(first.fingerprint) == 12


@pytest.mark.parametrize(
    "fields",
    [
        {"rule_id": "performance.guardrail"},
        {"locations": (CodeLocation(file="b.c"),)},
        {"locations": (CodeLocation(file="a.c", symbol="f"),)},
        {"locations": (ProcessLocation(arm="candidate", role="a.c"),)},
    ],
)
def test_fingerprint_tells_rules_and_places_apart(fields: dict[str, Any]) -> None:
    assert make_signal(**fields).fingerprint != make_signal().fingerprint


def test_fingerprint_does_not_know_values_or_seeds() -> None:
    def at(location: Any) -> str:
        return make_signal(locations=(location,)).fingerprint

    assert at(ParamLocation(name="t", value=4, was=2)) == at(ParamLocation(name="t", value=8))
    assert at(ParamLocation(name="t")) != at(ParamLocation(name="u"))
    case = {"batch": 1, "tensor": "o"}
    assert at(InputLocation(condition={**case, "seed": 1})) == at(InputLocation(condition={**case, "seed": 2}))
    assert at(InputLocation(condition=case)) != at(InputLocation(condition={**case, "batch": 2}))
