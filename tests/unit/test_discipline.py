"""What every proposal must keep to, and the ledger of lever families."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from feedback.signals import CodeLocation, Effect, Signal
from feedback.verdict import Verdict, VerdictKind
from infra_agent.domain import Change, Experiment, Hypothesis, Prediction, Proposal, State
from infra_agent.journal import Journal
from infra_agent.levers import families, ledger, untried
from infra_agent.planner import Context
from infra_agent.planner.discipline import known_metrics, objection, unexplained
from infra_agent.target import TargetSpec

SPEC = TargetSpec.model_validate(
    {
        "schema": 1, "name": "example", "description": "an example", "editable": ["kernels", "launch.toml"],
        "objective": {"metric": "output_throughput", "direction": "maximize", "probe": "load"},
        "guardrails": [{"metric": "p99_ttft_ms", "direction": "minimize", "probe": "load", "max_regression": 0.1}],
        "launch_file": {"path": "launch.toml"},
        "levers": ["kernels", "transfer"],
        "knobs": [
            {"name": "threads", "description": "", "key": "t", "minimum": 1, "maximum": 8},
            {"name": "cache", "description": "", "key": "c", "choices": ["f16", "q8"], "family": "precision"},
        ],
        "server": {"command": ["serve"]},
        "probes": [
            {"name": "load", "kind": "load", "method": "load", "traffic": "t.json", "tokenizer": "t", "cost_s": 60},
            {"name": "count", "kind": "microbench", "method": "callgrind", "command": ["c"], "cost_s": 3,
             "covers": ["kernels/"]},
            {"name": "bench", "kind": "microbench", "method": "slices", "worker": ["w"], "cost_s": 9,
             "covers": ["kernels/", "cache"]},
        ],
    }
)  # fmt: skip
SIGNAL = Signal(
    rule_id="performance.instructions", level="note", finding="observed", message="many",
    locations=(CodeLocation(file="kernels/step.c"),),
)  # fmt: skip


def experiment(number: int, family: str, kind: VerdictKind, gain: float | None = None, **more: Any) -> Experiment:
    effects = () if gain is None else (
        Effect(
            metric="output_throughput", direction="maximize", baseline=1.0, measured=1 + gain, ratio=1 + gain,
            ratio_lo=1 + gain - 0.01, ratio_hi=1 + gain + 0.01, confidence=0.95, method="t", n_units=5,
            n_observations=20, floor=0.02, floor_known=True,
        ),
    )  # fmt: skip
    return Experiment(
        id=f"e{number}", campaign_id="c", number=number, role="change", state=State.COMPLETE, parent_commit="base",
        proposal=Proposal(hypothesis=Hypothesis(claim="c", lever_family=family), change=Change(knobs={"threads": 2})),
        verdict=Verdict(kind=kind, reasons=("r",)), confirmed=kind is VerdictKind.ACCEPT, signals=(SIGNAL,),
        effects=effects, **more,
    )  # fmt: skip


@pytest.fixture
def context(tmp_path: Path) -> Context:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels/step.c").write_text("int a;\nint b;\n")
    return Context(
        spec=SPEC, journal=Journal(experiments=(experiment(1, "launch parameters", VerdictKind.REJECT, -0.02),)),
        parent_commit="base", parent_tree=tmp_path, knobs={"threads": 4, "cache": None}, cores=2, digest="",
        experiments_left=5, seconds_left=None,
    )  # fmt: skip


def proposal(probe: str = "", knobs: dict[str, Any] | None = None, **stated: Any) -> Proposal:
    fields: dict[str, Any] = {
        "claim": "c", "falsifier": "no change", "evidence": ("#1",), "lever_family": "kernels",
        "predicted": Prediction(metric="output_throughput", direction="up", low=0.05),
    }  # fmt: skip
    return Proposal(hypothesis=Hypothesis(**(fields | stated)), change=Change(knobs=knobs or {}), probe=probe)


@pytest.mark.parametrize(
    "evidence", ["#1", SIGNAL.fingerprint, f"[{SIGNAL.fingerprint}]", "kernels/step.c", "kernels/step.c:2", "threads"]
)
def test_evidence_is_what_the_campaign_holds(context: Context, evidence: str) -> None:
    assert objection(proposal(knobs={"threads": 2}, evidence=(evidence,)), (), context) is None


@pytest.mark.parametrize(
    "evidence",
    ["#7", "0123456789ab", "kernels/none.c", "kernels/step.c:99", "../secret", "/etc/passwd", "experience", ""],
)
def test_evidence_that_nobody_can_look_up_is_none(context: Context, evidence: str) -> None:
    said = objection(proposal(knobs={"threads": 2}, evidence=("#1", evidence)), (), context)
    assert said is not None
    assert "no such evidence" in said


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ({"evidence": ()}, "cite the evidence"),
        ({"falsifier": "  "}, "name the falsifier"),
        ({"lever_family": "magic"}, "is not one of: launch parameters"),
        ({"predicted": None}, "predict the effect"),
        ({"predicted": Prediction(metric="happiness", direction="up")}, "no probe measures 'happiness'"),
        ({"predicted": Prediction(metric="p99_ttft_ms", direction="down", low=0.2, high=0.1)}, "from a small to"),
        ({"predicted": Prediction(metric="p99_ttft_ms", direction="down", low=-0.2)}, "both positive"),
    ],
)  # fmt: skip
def test_what_a_hypothesis_lacks_is_said(context: Context, stated: dict[str, Any], said: str) -> None:
    found = objection(proposal(knobs={"threads": 2}, **stated), (), context)
    assert found is not None
    assert said in found


def test_a_load_test_where_a_kernel_test_covers_the_place_is_sent_back_with_its_name(context: Context) -> None:
    for probe in ("", "load"):
        said = objection(proposal(probe), ("kernels/step.c",), context)
        assert said is not None
        assert "set probe to 'count'" in said
    said = objection(proposal(knobs={"cache": "q8"}), ("kernels/step.c",), context)
    assert said is not None
    assert "set probe to 'bench'" in said
    assert objection(proposal("count", predicted=COUNTED), ("kernels/step.c",), context) is None


COUNTED = Prediction(metric="instructions", direction="down", low=0.1)


def test_what_no_cheaper_probe_covers_may_ask_for_the_load_test(context: Context) -> None:
    assert objection(proposal(knobs={"threads": 2}), (), context) is None
    assert objection(proposal(knobs={"threads": 2}), ("kernels/step.c",), context) is None


def test_a_prediction_is_about_what_the_asked_probe_or_the_judged_metrics_measure(context: Context) -> None:
    said = objection(proposal(knobs={"threads": 2}, predicted=COUNTED), (), context)
    assert said is not None
    assert "probe load does not measure instructions; ask count" in said


def test_metrics_are_those_of_the_probes() -> None:
    assert known_metrics(SPEC)[:2] == ("output_throughput", "p99_ttft_ms")
    assert {"instructions", "slice_time_s", "median_tpot_ms"} <= set(known_metrics(SPEC))


def test_the_ledger_counts_by_family_and_names_what_was_left_alone() -> None:
    journal = Journal(
        experiments=(
            experiment(1, "launch parameters", VerdictKind.REJECT, -0.02),
            experiment(2, "launch parameters", VerdictKind.ACCEPT, 0.2),
            experiment(3, "host code", VerdictKind.INCONCLUSIVE),
        )
    )
    assert families(SPEC) == ("launch parameters", "kernels", "precision", "transfer")
    found = {lever.family: lever for lever in ledger(journal, SPEC)}
    assert tuple(found) == ("launch parameters", "kernels", "precision", "host code", "transfer")
    assert (found["launch parameters"].tried, found["launch parameters"].accepted) == (2, 1)
    assert str(found["launch parameters"]) == "launch parameters: 2 tried, 1 accepted, best estimate +20.0%"
    assert str(found["host code"]) == "host code: 1 tried, 0 accepted"
    assert untried(journal, SPEC) == ("kernels", "precision", "transfer")


def test_an_early_stop_explains_each_family_that_was_left_alone(context: Context) -> None:
    assert unexplained(context, {}) == ("kernels", "precision", "transfer")
    assert unexplained(context, {"kernels": "too risky", "precision": " "}) == ("precision", "transfer")
    spent = context.model_copy(update={"experiments_left": 0})
    assert unexplained(spent, {}) == ()
