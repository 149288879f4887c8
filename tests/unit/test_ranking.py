"""Which signals come first, and which of them are one."""

from __future__ import annotations

from typing import Any

import pytest

from feedback.ranking import MAX_EVIDENCE, ordered, rank, share_cause
from feedback.signals import (
    Cause,
    CodeLocation,
    Effect,
    Evidence,
    InputLocation,
    KernelLocation,
    ParamLocation,
    Signal,
    ThreadLocation,
)

GIL_IN_TRACE = Cause(text="dispatch holds the GIL in engine while it waits", refutable_by="py-spy --gil")
GIL_IN_PROFILE = Cause(text="a native call that keeps the GIL")


def effect(ratio: float = 1.1) -> Effect:
    return Effect(
        metric="time_s", direction="minimize", baseline=1.0, measured=ratio, ratio=ratio, ratio_lo=ratio - 0.01,
        ratio_hi=ratio + 0.01, confidence=0.95, method="m", n_units=5, n_observations=10, floor=0.02, floor_known=False,
    )  # fmt: skip


def make(rule: str = "utilization.overlap", message: str = "said", **fields: Any) -> Signal:
    known = {
        "rule_id": rule, "level": "warning", "finding": "observed", "message": message,
        "locations": (CodeLocation(file="trace.json"),), "evidence": (Evidence(artefact=f"{rule}.json"),),
    }  # fmt: skip
    return Signal.model_validate(known | fields)


def test_what_changes_the_next_decision_comes_first() -> None:
    expected = [
        make("integrity.work_mismatch", level="error", finding="violates"),
        make("correctness.test_fail", level="error", finding="violates", role="gate"),
        make("parity.numeric_error", level="error", finding="violates"),
        make("performance.bench_delta", finding="inconclusive", reason="few pairs", role="objective"),
        make("performance.guardrail", finding="inconclusive", reason="few pairs", role="guardrail"),
        make("performance.case_delta", finding="worse", effect=effect(1.5)),
        make("performance.case_delta", finding="worse", effect=effect(1.1)),
        make("utilization.lock_wait", causes=(Cause(text="a lock", support="strong"),)),
        make("utilization.idle_gap"),
        make("performance.case_delta", finding="better", effect=effect(0.9), level="note"),
        make("utilization.overlap", finding="abstained", reason="no native times", level="note"),
        make("utilization.gil", level="note"),
        make("correctness.test_fail", finding="holds", level="note"),
    ]
    assert ordered(reversed(expected)) == expected


def test_the_same_said_twice_is_one_signal_with_all_evidence() -> None:
    first = make(message="idle 31.0 % of 12 ms", evidence=(Evidence(artefact="a"),), next=("look",))
    again = make(
        message="idle 30.5 % of 13 ms", evidence=(Evidence(artefact="b"),), next=("look", "there"), level="error"
    )
    (one,) = rank([first, again])
    assert one.level == "error"
    assert one.message == again.message
    assert {e.artefact for e in one.evidence} == {"a", "b"}
    assert one.next == ("look", "there")
    assert one.fingerprint == first.fingerprint


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (make(message="build: passed (1)"), make(message="bench: passed (1)")),
        (make(message="p1: slow"), make(message="p2: slow")),
        (make(), make(finding="same")),
        (make(), make(locations=(CodeLocation(file="other.json"),))),
    ],
)
def test_what_only_looks_alike_stays_apart(a: Signal, b: Signal) -> None:
    assert len(rank([a, b])) == 2


SGEMM = KernelLocation(name="sgemm")
STEP = CodeLocation(file="engine.py", line=7, symbol="step")

ONE_CAUSE = [
    (make(causes=(GIL_IN_TRACE,)), make("utilization.gil", causes=(GIL_IN_PROFILE,))),
    (
        make(causes=(Cause(text="The cache is cold"),)),
        make("stability.cache", causes=(Cause(text="the cache is cold"),)),
    ),
    (make("utilization.profile_diff", locations=(SGEMM,)), make("performance.function", locations=(SGEMM,))),
    (make("utilization.gil", locations=(STEP,)), make("performance.f", locations=(KernelLocation(name="step"),))),
    (
        make("stability.config", locations=(ParamLocation(name="max_num_seqs", value=4, was=2),)),
        make("stability.preemption", locations=(ParamLocation(name="max_num_seqs"),)),
    ),
    (
        make("performance.case_delta", locations=(SGEMM,), finding="better", effect=effect(0.8), level="note"),
        make("performance.bench_table", locations=(SGEMM,), finding="better", effect=effect(0.9), level="note"),
    ),
]


@pytest.mark.parametrize(("a", "b"), ONE_CAUSE)
def test_one_cause_is_one_signal(a: Signal, b: Signal) -> None:
    assert share_cause(a, b)
    assert share_cause(b, a)
    assert len(rank([a, b])) == 1


WEAK = Cause(text="maybe the GIL", support="weak")

OTHER_CAUSES = {
    "the same rule at two places": (make(causes=(GIL_IN_TRACE,)), make(message="other", causes=(GIL_IN_TRACE,))),
    "a mere guess": (make(causes=(GIL_IN_TRACE,)), make("utilization.gil", causes=(WEAK,))),
    "only the second cause": (
        make(causes=(GIL_IN_TRACE,)), make("utilization.gil", causes=(Cause(text="a lock"), GIL_IN_PROFILE)),
    ),
    "the same thread": (
        make(locations=(ThreadLocation(process="p", name="engine"),)),
        make("utilization.spin", locations=(ThreadLocation(process="p", name="engine"),)),
    ),
    "the same line without a name": (
        make(locations=(CodeLocation(file="a.c", line=3),)), make("x.y", locations=(CodeLocation(file="a.c", line=3),)),
    ),
    "the same parameter, which nobody changed": (
        make("stability.preemption", locations=(ParamLocation(name="max_running_requests", value=4096),)),
        make("stability.capture_grid", locations=(ParamLocation(name="max_running_requests", value=4096),)),
    ),
    "the same input": (
        make(locations=(InputLocation(condition={"T": 1}),)),
        make("x.y", locations=(InputLocation(condition={"T": 1}),)),
    ),
    "worse and better": (
        make("performance.a", locations=(SGEMM,), finding="worse", effect=effect()),
        make("performance.b", locations=(SGEMM,), finding="better", effect=effect(0.9)),
    ),
    "in both arms, so a note": (make(causes=(GIL_IN_TRACE,)), make("u.gil", causes=(GIL_IN_PROFILE,), level="note")),
    "an abstention": (
        make(causes=(GIL_IN_TRACE,)), make("u.gil", causes=(GIL_IN_PROFILE,), finding="abstained", reason="r"),
    ),
    "a part in the verdict": (make(locations=(SGEMM,)), make("p.gate", locations=(SGEMM,), role="gate")),
    "no evidence": (make(locations=(SGEMM,)), make("p.q", locations=(SGEMM,), evidence=())),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_CAUSES)
def test_two_causes_stay_two_signals(name: str) -> None:
    a, b = OTHER_CAUSES[name]
    assert not share_cause(a, b)
    assert not share_cause(b, a)
    assert len(rank([a, b])) == 2


def test_what_the_change_touches_connects_nothing() -> None:
    knob = ParamLocation(name="threads", value=4, was=2)
    signals = [make(locations=(knob,)), make("utilization.idle_gap", locations=(knob,))]
    assert len(rank(signals, changed=(knob,))) == 2
    objective = make("performance.bench_delta", locations=(knob,), role="objective")
    assert len(rank([*signals, objective])) == 3
    assert len(rank(signals)) == 1


def test_three_views_become_one_signal_with_three_pieces_of_evidence() -> None:
    trace = make(message="no overlap", causes=(GIL_IN_TRACE,), level="error", next=("profile",))
    profile = make("utilization.gil", "73 % at line 27", causes=(GIL_IN_PROFILE,), next=("read the line",))
    event = make("stability.stall", "stalls", causes=(Cause(text="the GIL is held"),))
    (one,) = rank([profile, event, trace])
    assert (one.rule_id, one.message, one.fingerprint) == (trace.rule_id, trace.message, trace.fingerprint)
    assert [e.artefact for e in one.evidence] == [
        "utilization.overlap.json", "utilization.gil.json", "stability.stall.json",
    ]  # fmt: skip
    assert one.evidence[1].detail == "utilization.gil: 73 % at line 27"
    assert one.causes[0] == GIL_IN_TRACE
    assert GIL_IN_PROFILE in one.causes
    assert one.next == ("profile", "read the line")


def test_a_merged_signal_does_not_pull_in_the_causes_of_those_it_took() -> None:
    a = make("u.a", level="error", locations=(SGEMM,))
    b = make("u.b", locations=(SGEMM, STEP))
    c = make("u.c", locations=(STEP,))
    assert [s.rule_id for s in rank([a, b, c])] == ["u.a", "u.c"]


def test_evidence_stays_bounded() -> None:
    signals = [make(f"rule.n{n}", causes=(GIL_IN_TRACE,)) for n in range(3 * MAX_EVIDENCE)]
    (one,) = rank(signals)
    assert len(one.evidence) == MAX_EVIDENCE
