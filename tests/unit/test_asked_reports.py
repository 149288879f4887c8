"""Probes that wait to be asked, in the order of an experiment; what their files say: time by name, or nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from traces import device_events, spans, stacks

from feedback.criteria import Criteria, MetricCriterion
from feedback.observations import Observation, RuntimeEvent, Source
from feedback.rules.correctness import lost_report
from feedback.rules.utilization.spent import own_time
from feedback.signals import CodeLocation, InputLocation, KernelLocation
from infra_agent.course import ordered
from infra_agent.domain import Change, Hypothesis, Proposal
from infra_agent.target import TargetSpec
from sandboxes.results import ArmName

PARENT = (CodeLocation(file="the parent"),)
ASKS = Criteria(changed=PARENT, question="Where does the time go?")
COMPARES = Criteria(changed=PARENT)
SPEC = TargetSpec.model_validate(
    {
        "schema": 1, "name": "example", "description": "an example", "editable": ["src"],
        "objective": {"metric": "slice_time_s", "direction": "minimize", "probe": "bench"},
        "probes": [
            {"name": "bench", "kind": "microbench", "method": "slices", "worker": ["w"]},
            {"name": "trace", "kind": "trace", "method": "command", "command": ["t"]},
            {"name": "long", "kind": "correctness", "method": "command", "command": ["l"], "when": "asked"},
            {"name": "tests", "kind": "correctness", "method": "command", "command": ["t"]},
        ],
    }
)  # fmt: skip
NESTED = spans(
    [("python_function", "outer", "main", 0, 1_000_000, -1), ("native", "inner", "main", 0, 600_000, -1),
     ("native", "inner", "main", 700_000, 900_000, -1)]
)  # fmt: skip


@pytest.mark.parametrize(("asked", "runs"), [("", []), ("trace", ["trace"]), ("long", ["long"]), ("bench", [])])
def test_what_waits_runs_only_as_the_probe_that_answers(asked: str, runs: list[str]) -> None:
    proposal = Proposal(hypothesis=Hypothesis(claim="c"), change=Change(), probe=asked)
    assert [p.name for p in ordered(SPEC, proposal, gates=True, hidden=True)] == [*runs, "tests", "bench"]
    assert [p.name for p in ordered(SPEC, None, gates=True, hidden=True)] == ["tests", "bench"]


def test_a_trace_is_told_by_own_time_with_the_longest_interval_of_each_name() -> None:
    (signal,) = own_time([replace(NESTED, case={"batch": 4})], ASKS)
    assert signal.message == "trace at batch=4: own time on threads 0.001 s: inner 80.0 % in 2, outer 20.0 % in 1"
    assert [(q.name, q.value) for q in signal.measured] == [("inner", pytest.approx(8e-4)), ("outer", 2e-4)]
    inner, outer = signal.evidence
    assert (inner.start_ns, inner.end_ns) == (0, 600_000)
    assert (outer.start_ns, outer.end_ns) == (0, 1_000_000)
    assert KernelLocation(name="inner") in signal.locations
    assert InputLocation(condition={"batch": 4}) in signal.locations


def test_devices_are_told_apart_from_threads() -> None:
    threads, devices = own_time([spans(device_events(20))], ASKS)
    assert "own time on threads" in threads.message
    assert "own time on devices 0.001 s: gemm 100.0 % in 20" in devices.message
    assert threads.fingerprint != devices.fingerprint


def test_many_names_are_told_by_the_costly_ones_and_the_rest() -> None:
    events = [("native", f"f{n}", "main", 1000 * n, 1000 * n + 100 + n, -1) for n in range(40)]
    (signal,) = own_time([spans(events)], ASKS)
    assert [q.name for q in signal.measured][:2] == ["f39", "f38"]
    assert len(signal.measured) == 12
    total = sum(100 + n for n in range(40))
    assert f"f39 {13900 / total:.1f} %" in signal.message


def test_a_profile_is_told_by_line() -> None:
    (signal,) = own_time([stacks([("main", "run (a.py:1);hot (b.py:2)", 90), ("main", "run (a.py:3)", 10)])], ASKS)
    assert "100 samples, every thread: hot (b.py:2) 90.0 %, run (a.py:3) 10.0 %" in signal.message
    assert CodeLocation(file="b.py", line=2, symbol="hot") in signal.locations


def test_own_time_is_told_only_where_somebody_asked() -> None:
    assert own_time([NESTED], COMPARES) == []
    assert own_time([replace(NESTED, stage="confirm")], ASKS) == []
    assert own_time([spans([])], ASKS) == []
    question = MetricCriterion(metric="slice_time_s", direction="minimize", probe="trace")
    named = COMPARES.model_copy(update={"asked": question})
    arms: tuple[ArmName, ...] = ("baseline", "candidate")
    both = own_time([replace(NESTED, arm=arm) for arm in arms], named)
    assert [s.message.split(":")[0] for s in both] == ["trace, baseline", "trace, candidate"]
    elsewhere = question.model_copy(update={"probe": "bench"})
    assert own_time([NESTED], COMPARES.model_copy(update={"asked": elsewhere})) == []


def lost(arm: ArmName, name: str = "missing") -> RuntimeEvent:
    return RuntimeEvent(
        probe="trace", source="report", name=name, level="warning", message="no report /scratch/t.json", arm=arm,
        place=Source(file=f"screen-trace-{arm}-0-t.json"),
    )  # fmt: skip


def test_a_lost_report_abstains_and_of_a_gate_it_is_not_passed() -> None:
    both: list[Observation] = [lost("baseline"), lost("candidate", "unreadable")]
    found = lost_report(both, COMPARES)
    assert [(s.finding, s.role, s.level) for s in found] == [("abstained", "information", "warning")] * 2
    assert [len(s.evidence) for s in found] == [0, 1]
    gate = lost_report(both, COMPARES.model_copy(update={"gates": ("trace",)}))
    assert [(s.finding, s.role) for s in gate] == [("abstained", "information"), ("violates", "gate")]


def test_other_events_and_other_stages_lose_no_report() -> None:
    assert lost_report([lost("candidate").model_copy(update={"source": "events"})], COMPARES) == []
    assert lost_report([lost("candidate").model_copy(update={"stage": "confirm"})], COMPARES) == []
