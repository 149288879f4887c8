"""Each rule: what makes it speak, and what must not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from feedback import observations as facts
from feedback.criteria import Criteria, MetricCriterion
from feedback.observations import Measurement, Observation, ParityPoint, RuntimeEvent
from feedback.rules.correctness import failed_tests, gate_silent
from feedback.rules.derive import RULES, derive
from feedback.rules.integrity import work_mismatch, work_unproven
from feedback.rules.parity import numeric_error
from feedback.rules.performance import METHOD, METHOD_IN_TURN, bench_delta, gain_text, instructions
from feedback.rules.stability import env_contention, runtime_event, tool_error
from feedback.signals import CodeLocation, HostLocation, InputLocation, ProcessLocation, Signal
from feedback.verdict import VerdictKind, judge
from sandboxes.results import ArmName

CHANGED = (CodeLocation(file="kernels/kernel.c"),)
TIME = MetricCriterion(metric="slice_time_s", direction="minimize", probe="bench", min_effect=0.02)
LATENCY = MetricCriterion(metric="p99_ttft_ms", direction="minimize", probe="bench", max_regression=0.1)


def make_criteria(**fields: Any) -> Criteria:
    return Criteria.model_validate({"objective": TIME, "changed": CHANGED, "floor_known": True} | fields)


CRITERIA = make_criteria()
GUARDED = make_criteria(guardrails=(LATENCY,))
GATED = make_criteria(gates=("build", "unit", "parity"))


def pairs(
    ratios: Sequence[float], metric: str = "slice_time_s", base: float = 0.01, **fields: Any
) -> Iterator[Measurement]:
    """One complete block a pair whose candidate takes `ratio` times as long as its baseline."""
    for pair, ratio in enumerate(ratios):
        for position, arm in enumerate(("baseline", "candidate", "candidate", "baseline")):
            known: dict[str, Any] = {"probe": "bench", "metric": metric, "arm": arm, "pair": pair}
            known |= {"position": position, "value": base * (ratio if arm == "candidate" else 1.0)}
            yield Measurement.model_validate(known | fields)


def around(ratio: float, spread: float = 0.005, n: int = 5) -> list[float]:
    return [ratio * math.exp(spread * (i - (n - 1) / 2)) for i in range(n)]


def outcome(name: str = "build", result: str = "passed", **fields: Any) -> facts.TestOutcome:
    known = {"probe": name, "name": name, "outcome": result, "message": "" if result == "passed" else "it broke"}
    return facts.TestOutcome.model_validate(known | fields)


def point(value: float, tolerance: float = 1e-6, tensor: str = "o", **fields: Any) -> ParityPoint:
    known = {"probe": "parity", "case": {"batch": 1, "seed": 7}, "tensor": tensor, "measure": "rms_ratio"}
    return ParityPoint.model_validate(known | {"value": value, "tolerance": tolerance} | fields)


def event(source: str, name: str, **fields: Any) -> RuntimeEvent:
    return RuntimeEvent.model_validate({"probe": "load", "source": source, "name": name} | fields)


def only(signals: Sequence[Signal]) -> Signal:
    assert len(signals) == 1
    return signals[0]


# correctness.test_fail


def test_failed_command_is_a_broken_gate() -> None:
    signal = only(failed_tests([outcome(result="failed"), outcome(result="error")], GATED))
    assert (signal.rule_id, signal.role, signal.finding, signal.level) == (
        "correctness.test_fail", "gate", "violates", "error",
    )  # fmt: skip
    assert signal.message == "build: 2 of 2 failed; build: it broke"
    assert signal.locations == (*CHANGED, ProcessLocation(arm="candidate", role="build"))


def test_passed_commands_hold_probe_by_probe() -> None:
    signals = failed_tests([outcome("build"), outcome("unit"), outcome("unit")], GATED)
    assert [(s.message, s.finding, s.role) for s in signals] == [
        ("build: passed (1)", "holds", "gate"),
        ("unit: passed (2)", "holds", "gate"),
    ]


def test_failures_of_the_baseline_and_of_other_stages_are_not_the_candidates() -> None:
    failed = [outcome(result="failed", arm="baseline"), outcome(result="failed", stage="confirm")]
    assert failed_tests(failed, GATED) == []
    assert only(failed_tests(failed, make_criteria(stage="confirm"))).finding == "violates"


def test_long_output_of_a_test_is_cut() -> None:
    failed = outcome(result="failed", message="x" * 5000)
    assert len(only(failed_tests([failed], CRITERIA)).message) == 400


# parity.numeric_error


def test_errors_beyond_tolerance_are_located_worst_first() -> None:
    points = [
        point(1e-7),
        point(2e-6, case={"batch": 2, "seed": 1}),
        point(9e-6, case={"batch": 4, "seed": 2}, tensor="state"),
        point(3e-6, case={"batch": 8, "seed": 3}),
        point(1.5e-6, case={"batch": 16, "seed": 4}),
    ]
    signal = only(numeric_error(points, GATED))
    assert (signal.rule_id, signal.role, signal.finding) == ("parity.numeric_error", "gate", "violates")
    assert "4 of 5 comparisons beyond tolerance (o, state)" in signal.message
    assert "worst state rms_ratio 9e-06, allowed 1e-06, at batch=4 seed=2" in signal.message
    assert signal.locations == (
        InputLocation(condition={"batch": 4, "seed": 2, "tensor": "state"}),
        InputLocation(condition={"batch": 8, "seed": 3, "tensor": "o"}),
        InputLocation(condition={"batch": 2, "seed": 1, "tensor": "o"}),
        *CHANGED,
    )


@pytest.mark.parametrize("value", [math.inf, math.nan, 1e300])
def test_outputs_that_can_not_be_compared_are_errors(value: float) -> None:
    assert only(numeric_error([point(value)], GATED)).finding == "violates"


@pytest.mark.parametrize(("value", "tolerance"), [(9e-7, 1e-6), (1e-6, 1e-6), (0.0, 0.0), (0.0, 1e-6)])
def test_errors_within_tolerance_hold(value: float, tolerance: float) -> None:
    signal = only(numeric_error([point(value, tolerance), point(0.0, tolerance)], GATED))
    assert (signal.finding, signal.role) == ("holds", "gate")
    assert "all 2 comparisons within tolerance" in signal.message


def test_errors_of_the_baseline_and_of_checksums_are_other_rules_matter() -> None:
    points = [point(1.0, arm="baseline"), point(1.0, stage="confirm"), point(1.0, tensor="check")]
    assert numeric_error(points, GATED) == []


def test_probes_of_parity_speak_apart() -> None:
    signals = numeric_error([point(1.0, probe="a"), point(0.0, probe="b")], GATED)
    assert [s.finding for s in signals] == ["violates", "holds"]


def test_many_tensors_fit_into_a_message() -> None:
    points = [point(1.0, tensor=f"tensor-{n}-" + "x" * 60, case={"k" * 200: "v" * 200}) for n in range(50)]
    assert len(only(numeric_error(points, GATED)).message) == 400
    held = [p.model_copy(update={"value": 0.0, "tensor": "t" * 900}) for p in points]
    assert len(only(numeric_error(held, GATED)).message) == 400


# integrity.work_mismatch


@pytest.mark.parametrize("value", [2e-4, math.inf, math.nan])
def test_arms_that_did_different_work_are_a_mismatch(value: float) -> None:
    signal = only(work_mismatch([point(value, 1e-4, "check")], CRITERIA))
    assert (signal.rule_id, signal.finding) == ("integrity.work_mismatch", "violates")
    assert judge([signal]).kind is VerdictKind.INVALID


def test_arms_that_did_the_same_work_are_none() -> None:
    agreeing = [point(0.0, 1e-4, "check"), point(1e-4, 1e-4, "check"), point(1.0, 1e-4, "check", stage="confirm")]
    assert work_mismatch([*agreeing, point(1.0, 1e-4, "o")], CRITERIA) == []


# performance.bench_delta


def test_faster_candidate_is_better() -> None:
    signal = only(bench_delta(list(pairs(around(0.8))), CRITERIA))
    assert (signal.rule_id, signal.role, signal.finding) == ("performance.bench_delta", "objective", "better")
    assert signal.effect is not None
    assert signal.effect.ratio == pytest.approx(0.8)
    assert signal.effect.baseline == pytest.approx(0.01)
    assert signal.effect.measured == pytest.approx(0.008)
    assert (signal.effect.n_units, signal.effect.n_observations, signal.effect.quality) == (5, 20, "ok")
    assert signal.effect.floor_known
    assert signal.message.startswith("slice_time_s +20.0% [+")
    assert signal.message.endswith("]: better than the parent")
    assert judge([signal]).kind is VerdictKind.ACCEPT


@pytest.mark.parametrize(
    ("ratios", "finding"),
    [
        (around(1.2), "worse"),
        (around(1.0), "same"),
        (around(0.99, 0.002), "same"),
        (around(0.97, 0.02), "inconclusive"),
        (around(0.9, 0.2), "inconclusive"),
    ],
)
def test_candidate_without_a_clear_gain_is_not(ratios: list[float], finding: str) -> None:
    signal = only(bench_delta(list(pairs(ratios)), CRITERIA))
    assert signal.finding == finding
    assert bool(signal.reason) == (finding == "inconclusive")
    assert judge([signal]).kind is not VerdictKind.ACCEPT


def test_reason_of_an_undecided_objective_gives_interval_and_floor() -> None:
    signal = only(bench_delta(list(pairs(around(0.97, 0.02))), make_criteria(floor=0.03)))
    assert signal.reason.startswith("after 5 pairs the interval ")
    assert "neither clears the noise floor of 2.9% nor excludes a gain of 2.9%" in signal.reason


def test_one_pair_decides_nothing() -> None:
    signal = only(bench_delta(list(pairs([0.5])), CRITERIA))
    assert (signal.finding, signal.effect) == ("inconclusive", None)
    assert signal.message == "slice_time_s: too few pairs: undecided"


def test_arms_that_ran_in_turn_are_said_to_have_done_so() -> None:
    measured = list(pairs(around(0.8)))
    arms = [TIME.model_copy(update={"side_by_side": side}) for side in (True, False)]
    told = [only(bench_delta(measured, make_criteria(objective=arm))).effect for arm in arms]
    assert [effect.method for effect in told if effect] == [METHOD, METHOD_IN_TURN]
    assert "interleaved" not in METHOD_IN_TURN


def test_fewer_pairs_than_the_first_look_are_marked() -> None:
    signal = only(bench_delta(list(pairs(around(0.5, 0.001, 3))), CRITERIA))
    assert signal.effect is not None
    assert signal.effect.quality == "underpowered"


def test_higher_throughput_is_better() -> None:
    throughput = MetricCriterion(metric="output_throughput", direction="maximize", probe="bench", min_effect=0.02)
    criteria = make_criteria(objective=throughput)
    signal = only(bench_delta(list(pairs(around(1.3), "output_throughput", 50.0)), criteria))
    assert signal.finding == "better"
    assert signal.message.startswith("output_throughput +30.0% [")


def test_nothing_measured_says_nothing() -> None:
    assert bench_delta([], GUARDED) == []
    assert bench_delta([outcome()], GUARDED) == []
    assert bench_delta(list(pairs(around(0.8), probe="other")), GUARDED) == []
    assert bench_delta(list(pairs(around(0.8), stage="confirm")), GUARDED) == []


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_impossible_value_is_abstained_from_and_never_raises(value: float) -> None:
    measured = [*pairs(around(0.8)), *pairs([1.0], value=value, arm="candidate")]
    signal = only(bench_delta(measured, CRITERIA))
    assert (signal.finding, signal.role) == ("abstained", "objective")
    assert "in the candidate arm" in signal.reason
    assert judge(derive(measured, CRITERIA)).kind is VerdictKind.INCONCLUSIVE


def test_only_disturbed_pairs_are_abstained_from() -> None:
    signal = only(bench_delta(list(pairs(around(0.8), disturbed=True)), CRITERIA))
    assert signal.finding == "abstained"


# performance.guardrail


def guarded(ratios: Sequence[float]) -> list[Observation]:
    return [*pairs(around(0.8)), *pairs(ratios, "p99_ttft_ms", 100.0)]


@pytest.mark.parametrize(
    ("ratios", "finding", "kind"),
    [
        (around(1.0), "holds", VerdictKind.ACCEPT),
        (around(0.5), "holds", VerdictKind.ACCEPT),
        (around(1.05), "holds", VerdictKind.ACCEPT),
        (around(1.3), "violates", VerdictKind.REJECT),
        (around(1.05, 0.2), "inconclusive", VerdictKind.INCONCLUSIVE),
        ([1.0], "inconclusive", VerdictKind.INCONCLUSIVE),
    ],
)
def test_guardrail(ratios: list[float], finding: str, kind: VerdictKind) -> None:
    objective, guardrail = bench_delta(guarded(ratios), GUARDED)
    assert objective.finding == "better"
    assert (guardrail.rule_id, guardrail.role, guardrail.finding) == ("performance.guardrail", "guardrail", finding)
    assert "may lose at most 10%" in guardrail.message
    assert judge([objective, guardrail]).kind is kind


def test_guardrail_that_was_not_measured_does_not_hold() -> None:
    objective, guardrail = bench_delta(list(pairs(around(0.8))), GUARDED)
    assert objective.finding == "better"
    assert (guardrail.finding, guardrail.role) == ("abstained", "guardrail")
    assert judge([objective, guardrail]).kind is VerdictKind.INCONCLUSIVE


def test_gain_reads_in_the_wanted_direction() -> None:
    signal = only(bench_delta(list(pairs(around(0.8, 0.0001))), CRITERIA))
    assert signal.effect is not None
    assert gain_text(signal.effect) == "+20.0% [+20.0%, +20.0%]"


# performance.instructions


def counts(baseline: float, candidate: float, probe: str = "count") -> list[Measurement]:
    arms: dict[ArmName, float] = {"baseline": baseline, "candidate": candidate}
    return [Measurement(probe=probe, metric="instructions", value=value, arm=arm) for arm, value in arms.items()]


@pytest.mark.parametrize(
    ("candidate", "words"),
    [(8e6, "(-20.00%): less work"), (1.2e7, "(+20.00%): more work"), (1.0005e7, "(+0.05%): the same work")],
)
def test_instructions_tell_whether_the_work_changed(candidate: float, words: str) -> None:
    signal = only(instructions(counts(1e7, candidate), CRITERIA))
    assert (signal.finding, signal.role) == ("observed", "information")
    assert signal.message.endswith(words)


def test_instructions_of_single_functions_are_not_the_total() -> None:
    of_functions = [m.model_copy(update={"case": {"function": "scale"}, "value": 1.0}) for m in counts(1e7, 8e6)]
    assert instructions(counts(1e7, 8e6) + of_functions, CRITERIA) == instructions(counts(1e7, 8e6), CRITERIA)


def test_instructions_of_one_arm_or_another_stage_say_nothing() -> None:
    assert instructions(counts(1e7, 1e7)[:1], CRITERIA) == []
    assert instructions(counts(1e7, 8e6), make_criteria(stage="confirm")) == []
    assert instructions(list(pairs([0.5])), CRITERIA) == []


@pytest.mark.parametrize(("baseline", "candidate"), [(0.0, 1e7), (1e7, 0.0), (0.0, 0.0)])
def test_function_that_never_ran_is_not_less_work(baseline: float, candidate: float) -> None:
    signal = only(instructions(counts(baseline, candidate), CRITERIA))
    assert signal.finding == "abstained"
    assert "did not run" in signal.reason


# stability.tool_error


def test_crash_of_the_candidate_is_a_broken_gate() -> None:
    crash = event("process", "signalled", level="error", message="slice 3: was ended by signal 11")
    signal = only(tool_error([crash], CRITERIA))
    assert (signal.role, signal.finding, signal.level) == ("gate", "violates", "error")
    assert signal.message == "load: slice 3: was ended by signal 11"
    assert judge([signal]).kind is VerdictKind.REJECT


def test_crash_of_the_baseline_is_not_the_candidates() -> None:
    crashes = [event("process", "signalled", arm="baseline"), event("process", "signalled", stage="confirm")]
    assert tool_error([*crashes, event("engine_log", "oom")], CRITERIA) == []


# stability.env_contention


def disturbed(name: str, n: int = 1) -> list[RuntimeEvent]:
    return [event("contention", name, level="warning", message="foreign CPU 40%, steal 0%") for _ in range(n)]


def test_pairs_kept_on_a_busy_machine_are_a_warning() -> None:
    events = [*disturbed("disturbed_pair_repeated", 5), *disturbed("disturbed_pair_kept", 2)]
    signal = only(env_contention([event("contention", "quiet_pair"), *events], CRITERIA))
    assert (signal.level, signal.finding, signal.locations) == ("warning", "observed", (HostLocation(),))
    assert "5 disturbed pair(s) measured again, 2 kept" in signal.message
    assert "foreign CPU 40%" in signal.message
    assert signal.next


def test_pairs_that_were_repeated_are_a_note() -> None:
    assert only(env_contention(disturbed("disturbed_pair_repeated"), CRITERIA)).level == "note"


def test_quiet_pairs_say_nothing() -> None:
    assert env_contention([event("contention", "quiet_pair")] * 9, CRITERIA) == []
    assert env_contention([], CRITERIA) == []
    assert env_contention(disturbed("disturbed_pair_kept"), make_criteria(stage="confirm")) == []


# stability.runtime_event


def test_message_of_the_engine_in_the_candidate_only_is_told() -> None:
    events = [
        event("engine_log", "prompt_reprocessed", level="warning", message="computed again", count=4),
        event("engine_log", "prompt_reprocessed", level="warning", message="computed again", arm="baseline"),
    ]
    signal = only(runtime_event(events, CRITERIA))
    assert (signal.level, signal.role, signal.finding) == ("warning", "information", "observed")
    assert signal.message == "load: prompt_reprocessed 4x in the candidate, 1x in the baseline: computed again"


def test_message_of_the_engine_in_both_arms_says_nothing() -> None:
    both = [event("metrics", "transfers", level="warning", count=3, arm=arm) for arm in ("baseline", "candidate")]
    assert runtime_event(both, CRITERIA) == []


def test_notes_and_other_stages_say_nothing() -> None:
    quiet = [
        event("engine_log", "loaded", level="note"),
        event("engine_log", "oom", level="error", stage="confirm"),
        event("process", "oom", level="error"),
    ]
    assert runtime_event(quiet, CRITERIA) == []


# integrity.work_unproven


def test_a_baseline_without_checksums_is_said_and_decides_nothing() -> None:
    signal = only(work_unproven([event("check", "no_check", arm="baseline")], CRITERIA))
    assert (signal.rule_id, signal.level, signal.role) == ("integrity.work_unproven", "note", "information")
    assert "nothing proves that both arms did the same work" in signal.message
    won = derive([*pairs(around(0.8)), event("check", "no_check")], CRITERIA)
    assert judge(won).kind is VerdictKind.ACCEPT


def test_checksums_that_were_compared_are_proof() -> None:
    assert work_unproven([point(1e-9, 1e-4, "check"), event("check", "no_check", stage="confirm")], CRITERIA) == []


def test_what_stands_beside_a_gain_is_on_its_scale() -> None:
    slow = make_criteria(floor=0.25, objective=TIME.model_copy(update={"min_effect": 0.25}))
    same = only(bench_delta(list(pairs(around(0.95))), slow))
    assert "no gain worth having (asked: 20.0%)" in same.message
    throughput = MetricCriterion(metric="output_throughput", direction="maximize", probe="bench", max_regression=0.25)
    found = bench_delta(
        [*pairs(around(0.8)), *pairs(around(0.9), "output_throughput")], make_criteria(guardrails=(throughput,))
    )
    assert "may lose at most 20%" in found[1].message


# All of them.


def test_every_rule_is_silent_on_nothing() -> None:
    assert derive([], GUARDED) == []


def test_rules_never_raise_on_odd_data() -> None:
    odd: list[Observation] = [
        outcome(name="n" * 500, result="error", message="\x00" * 999),
        point(math.nan, 0.0, "t" * 500, case={"k": math.inf}),
        point(math.nan, math.nan, "check"),
        *pairs([1.0], value=math.nan),
        *counts(math.nan, 0.0),
        event("process", "", message="\n" * 999),
        event("check", "no_check", probe="p" * 500),
        *disturbed("disturbed_pair_kept"),
        event("engine_log", "n" * 500, level="error", message="m" * 999, count=math.inf),
    ]
    signals = derive(odd, GUARDED)
    spoken = {s.rule_id for s in signals}
    assert spoken >= {
        "correctness.test_fail", "integrity.work_mismatch", "integrity.work_unproven", "parity.numeric_error",
        "performance.bench_delta", "performance.guardrail", "performance.instructions", "stability.env_contention",
        "stability.runtime_event", "stability.tool_error",
    }  # fmt: skip
    assert spoken <= {rule_id for rule in RULES for rule_id in rule.ids}
    assert judge(signals).kind is VerdictKind.INVALID


def test_signals_come_in_the_order_in_which_they_matter() -> None:
    observations = [*pairs(around(0.8)), point(1.0), outcome(), point(1.0, 1e-4, "check")]
    assert [s.rule_id for s in derive(observations, CRITERIA)] == [
        "integrity.work_mismatch", "correctness.test_fail", "parity.numeric_error", "performance.bench_delta",
    ]  # fmt: skip


def test_every_signal_of_a_change_says_where_it_acted() -> None:
    observations = [*guarded(around(1.0)), point(1.0), outcome(), *counts(1e7, 8e6), event("process", "x")]
    for signal in derive(observations, GUARDED):
        assert CHANGED[0] in signal.locations


def test_gate_that_said_nothing_is_not_passed() -> None:
    heard = [outcome("build"), outcome("unit")]
    silent = only(gate_silent(heard, GATED))
    assert (silent.role, silent.finding) == ("gate", "abstained")
    assert "parity" in silent.message
    assert judge(derive([*heard, *pairs(around(0.8))], GATED)).kind is VerdictKind.INCONCLUSIVE


def test_gates_that_all_spoke_are_not_called_silent() -> None:
    assert gate_silent([outcome("build"), outcome("unit"), point(0.0)], GATED) == []


def test_broken_probe_that_is_no_gate_informs_and_does_not_decide() -> None:
    observations = [outcome("lint", "failed"), *pairs(around(0.8))]
    assert judge(derive(observations, CRITERIA)).kind is VerdictKind.ACCEPT
