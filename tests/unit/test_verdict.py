"""From signals to a verdict: which one wins, and that silence never accepts."""

from __future__ import annotations

from itertools import permutations, product
from typing import get_args

import pytest

from feedback.signals import CodeLocation, Direction, Effect, Finding, Level, Signal
from feedback.verdict import VerdictKind, judge

PLACE = (CodeLocation(file="kernels/kernel.c"),)
Role = str


def make_effect(direction: Direction = "minimize") -> Effect:
    return Effect(
        metric="slice_time_s", direction=direction, baseline=1.0, measured=0.8, ratio=0.8, ratio_lo=0.78, ratio_hi=0.82,
        confidence=0.97, method="m", n_units=5, n_observations=140, floor=0.02, floor_known=True,
    )  # fmt: skip


def signal(role: Role, finding: str, rule_id: str = "performance.x", message: str = "") -> Signal:
    return Signal.model_validate(
        {
            "rule_id": rule_id,
            "level": "note",
            "finding": finding,
            "message": message or f"{role} {finding}",
            "locations": PLACE,
            "role": role,
            "effect": make_effect() if finding in ("better", "worse") else None,
            "reason": "a reason" if finding in ("inconclusive", "abstained") else "",
        }
    )


BETTER = signal("objective", "better")
HOLDS = signal("guardrail", "holds")
PASSED = signal("gate", "holds")
MISMATCH = signal("information", "violates", "integrity.work_mismatch")


def test_clear_gain_with_gates_and_guardrails_held_is_accepted() -> None:
    verdict = judge([PASSED, BETTER, HOLDS])
    assert verdict.kind is VerdictKind.ACCEPT
    assert verdict.reasons == ("objective better", "guardrail holds")


def test_guardrail_that_became_better_holds() -> None:
    assert judge([BETTER, signal("guardrail", "better")]).kind is VerdictKind.ACCEPT


@pytest.mark.parametrize("finding", ["worse", "same", "violates"])
def test_objective_without_a_gain_rejects(finding: str) -> None:
    verdict = judge([PASSED, signal("objective", finding), HOLDS])
    assert verdict.kind is VerdictKind.REJECT
    assert verdict.reasons == (f"objective {finding}",)


@pytest.mark.parametrize("role", ["gate", "guardrail"])
@pytest.mark.parametrize("finding", ["violates", "worse"])
def test_broken_gate_or_guardrail_rejects_whatever_was_gained(role: str, finding: str) -> None:
    verdict = judge([BETTER, PASSED, signal(role, finding)])
    assert verdict.kind is VerdictKind.REJECT
    assert verdict.reasons == (f"{role} {finding}",)


def test_all_that_broke_is_told() -> None:
    broken = [signal("gate", "violates", message=f"gate {n}") for n in range(3)]
    assert judge([BETTER, *broken]).reasons == ("gate 0", "gate 1", "gate 2")


def test_work_that_does_not_match_is_invalid_before_anything_else() -> None:
    for order in permutations([BETTER, signal("gate", "violates"), MISMATCH]):
        verdict = judge(order)
        assert verdict.kind is VerdictKind.INVALID
        assert verdict.reasons == ("information violates",)


def test_integrity_that_holds_is_no_reason() -> None:
    assert judge([BETTER, signal("information", "holds", "integrity.work_mismatch")]).kind is VerdictKind.ACCEPT


@pytest.mark.parametrize("role", ["objective", "guardrail", "gate"])
@pytest.mark.parametrize("finding", ["inconclusive", "abstained"])
def test_what_is_undecided_is_inconclusive(role: str, finding: str) -> None:
    rest = [s for s in (BETTER, HOLDS, PASSED) if s.role != role]
    verdict = judge([*rest, signal(role, finding)])
    assert verdict.kind is VerdictKind.INCONCLUSIVE
    assert verdict.reasons == (f"{role} {finding}",)


def test_undecided_guardrail_does_not_save_a_loss() -> None:
    assert judge([signal("objective", "worse"), signal("guardrail", "inconclusive")]).kind is VerdictKind.REJECT


def test_no_signals_accept_nothing() -> None:
    verdict = judge([])
    assert verdict.kind is VerdictKind.INCONCLUSIVE
    assert verdict.reasons == ("the objective was not measured",)


def test_gate_that_abstained_says_why_the_objective_was_not_measured() -> None:
    assert judge([signal("gate", "abstained")]).reasons == ("a reason",)


def test_information_changes_no_verdict() -> None:
    for finding in ("violates", "worse", "inconclusive", "observed"):
        assert judge([BETTER, signal("information", finding)]).kind is VerdictKind.ACCEPT


def test_nothing_but_better_with_everything_held_is_ever_accepted() -> None:
    """All combinations of one objective, one guardrail and one gate."""
    findings = get_args(Finding)
    held = {"holds", "better", "same"}
    for objective, guardrail, gate in product(findings, repeat=3):
        verdict = judge([signal("objective", objective), signal("guardrail", guardrail), signal("gate", gate)])
        is_accepted = verdict.kind is VerdictKind.ACCEPT
        assert is_accepted == (objective == "better" and guardrail in held and gate in held)
        assert verdict.reasons


def test_levels_change_no_verdict() -> None:
    for level in get_args(Level):
        loud = BETTER.model_copy(update={"level": level})
        assert judge([loud, HOLDS]).kind is VerdictKind.ACCEPT
