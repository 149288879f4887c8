"""A hidden probe tells whether it was passed, and nothing that could be learnt from."""

from __future__ import annotations

from typing import Any

import pytest

from feedback import observations as facts
from feedback.criteria import Criteria, MetricCriterion
from feedback.observations import Observation, ParityPoint, RuntimeEvent
from feedback.rules.derive import derive
from feedback.signals import CodeLocation
from feedback.verdict import VerdictKind, judge
from infra_agent.errors import TargetInvalid
from infra_agent.target import parse_target

CRITERIA = Criteria(
    objective=MetricCriterion(metric="slice_time_s", direction="minimize", probe="bench"),
    changed=(CodeLocation(file="kernel.c"),),
    hidden=("answers",),
)
SECRET = {"T": 4099, "seed": 77}


def point(value: float, **fields: Any) -> ParityPoint:
    known = {"probe": "answers", "case": SECRET, "tensor": "o", "measure": "rms_ratio", "tolerance": 1e-6}
    return ParityPoint.model_validate(known | {"value": value} | fields)


CRASH = RuntimeEvent(probe="answers", source="process", name="signalled", level="error", message="at T=4099")
FAILED = facts.TestOutcome(probe="answers", name="test_4099", outcome="failed", message="T=4099 differs")


@pytest.mark.parametrize("broken", [point(0.5), CRASH, FAILED], ids=["parity", "crash", "test"])
def test_failure_rejects_and_tells_nothing_else(broken: Observation) -> None:
    signals = derive([point(1e-9), broken], CRITERIA)
    (signal,) = signals
    assert (signal.rule_id, signal.finding, signal.role) == ("correctness.hidden_probe", "violates", "gate")
    assert signal.message == "hidden probe answers: failed"
    assert "4099" not in signal.model_dump_json()
    assert judge(signals).kind is VerdictKind.REJECT


def test_pass_tells_nothing_else() -> None:
    (signal,) = derive([point(1e-9), point(2e-9, arm="baseline")], CRITERIA)
    assert (signal.finding, signal.message) == ("holds", "hidden probe answers: passed")
    assert "4099" not in signal.model_dump_json()


def test_silence_is_no_pass() -> None:
    (signal,) = derive([], CRITERIA)
    assert signal.finding == "abstained"
    assert judge([signal]).kind is VerdictKind.INCONCLUSIVE


def test_probe_that_is_not_hidden_speaks_as_ever() -> None:
    signals = derive([point(0.5)], CRITERIA.model_copy(update={"hidden": ()}))
    assert any("4099" in s.model_dump_json() for s in signals)


TARGET = """\
schema = 1
name = "example"
description = "An example"
editable = ["src"]
[objective]
metric = "slice_time_s"
direction = "minimize"
probe = "bench"
min_effect = 0.01
[[probes]]
name = "bench"
kind = "microbench"
method = "slices"
worker = ["{python}", "worker.py"]
[[probes]]
name = "answers"
kind = "correctness"
method = "command"
command = ["make", "check"]
gate = true
hidden = true
"""


def test_planners_are_not_shown_it() -> None:
    spec = parse_target(TARGET, "target.toml")
    assert [p.name for p in spec.shown_probes] == ["bench"]


@pytest.mark.parametrize("change", [("gate = true\n", ""), ('slices"\n', 'slices"\nhidden = true\n')])
def test_only_gates_can_be_hidden(change: tuple[str, str]) -> None:
    with pytest.raises(TargetInvalid, match="only a gate"):
        parse_target(TARGET.replace(*change), "target.toml")
