"""The report of a campaign: what it says of a journal, and what it does not say."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from feedback.rules.performance import gain_text
from feedback.signals import CodeLocation, Effect, HostLocation, Signal
from feedback.verdict import VerdictKind, judge
from infra_agent.domain import (
    Budget,
    Campaign,
    CampaignSpec,
    CampaignState,
    Change,
    Experiment,
    Hypothesis,
    NoiseUnits,
    Prediction,
    Proposal,
    State,
)
from infra_agent.forecast import held_against
from infra_agent.journal import Journal
from infra_agent.report import Report, Result, build, render_text
from infra_agent.report.text import duration
from infra_agent.report.units import change
from infra_agent.report.words import gain, percent
from infra_agent.target import parse_target

TARGET = """
schema = 1
name = "engine"
description = "An engine"
editable = ["launch.toml", "src"]
[objective]
metric = "output_throughput"
direction = "maximize"
probe = "load"
min_effect = 0.02
[[guardrails]]
metric = "p99_ttft_ms"
direction = "minimize"
probe = "load"
max_regression = 0.10
[launch_file]
path = "launch.toml"
[[knobs]]
name = "threads"
description = "Threads"
key = "threads"
minimum = 1
maximum = 64
engine_default = 2
[[knobs]]
name = "flash"
description = "Flash attention"
key = "flash"
choices = [true, false]
engine_default = false
[[controls]]
name = "engine-defaults"
description = "Every knob left to the engine"
[server]
command = ["serve"]
[[probes]]
name = "load"
kind = "load"
method = "load"
traffic = "traffic.json"
tokenizer = "model.gguf"
"""
SPEC = parse_target(TARGET, "target.toml")
PATCH = """\
diff --git a/launch.toml b/launch.toml
index 1..2 100644
--- a/launch.toml
+++ b/launch.toml
@@ -1 +1 @@
-threads = 8
+threads = 2
"""
PLACE = (CodeLocation(file="launch.toml"),)


def effect(gain: float, half: float, metric: str = "output_throughput", **given: Any) -> Effect:
    """An effect with that gain, plus or minus `half`."""
    minimize = metric.endswith(("_s", "_ms"))
    sign = -1 if minimize else 1
    ends = sorted((1 + sign * (gain - half), 1 + sign * (gain + half)))
    fields: dict[str, Any] = {
        "metric": metric, "direction": "minimize" if minimize else "maximize",
        "baseline": 40.0, "measured": 40.0 * (1 + sign * gain),
        "ratio": 1 + sign * gain, "ratio_lo": ends[0], "ratio_hi": ends[1], "confidence": 0.967,
        "method": "t", "n_units": 3, "n_observations": 72, "floor": 0.03, "floor_known": False,
    }  # fmt: skip
    return Effect.model_validate(fields | given)


def objective(found: Effect, finding: Any, reason: str = "") -> Signal:
    return Signal(
        rule_id="performance.bench_delta", level="note", finding=finding, role="objective",
        message=f"{found.metric} {gain_text(found)}: so it is", locations=PLACE, effect=found, reason=reason,
    )  # fmt: skip


def gate(message: str, finding: Any = "holds") -> Signal:
    return Signal(
        rule_id="parity.numeric_error", level="note", finding=finding, role="gate",
        message=message, locations=PLACE,
    )  # fmt: skip


def guardrail(found: Effect, finding: Any = "holds") -> Signal:
    return Signal(
        rule_id="performance.guardrail", level="note", finding=finding, role="guardrail",
        message="a guardrail", locations=PLACE, effect=found,
    )  # fmt: skip


def contention(level: Any = "warning") -> Signal:
    return Signal(
        rule_id="stability.env_contention", level=level, finding="observed",
        message="2 disturbed pair(s) measured again, 1 kept", locations=(HostLocation(),),
    )  # fmt: skip


def experiment(number: int, role: Any, *signals: Signal, **given: Any) -> Experiment:
    fields: dict[str, Any] = {
        "id": f"exp_{number}", "campaign_id": "cmp_1", "number": number, "role": role, "state": State.COMPLETE,
        "proposal": Proposal(
            hypothesis=Hypothesis(claim=given.pop("claim", f"claim {number}")),
            change=given.pop("change", Change(knobs={"threads": number} if role == "change" else {})),
        ),
        "parent_commit": "base", "commit": f"c{number}", "verdict": judge(signals), "signals": signals,
        "effects": tuple(s.effect for s in signals if s.effect), "run_directory": f"runs/{number}",
        "alpha": 0.002, "sandbox_s": 10.0,
    }  # fmt: skip
    return Experiment.model_validate(fields | given)


def accepted(number: int, found: Effect, *more: Signal, **given: Any) -> Experiment:
    return experiment(number, "change", objective(found, "better"), *more, confirmed=True, **given)


def rejected(number: int, found: Effect, finding: Any = "same", reason: str = "") -> Experiment:
    return experiment(number, "change", objective(found, finding, reason))


def baseline(found: Effect | None = None, *more: Signal) -> Experiment:
    aa = objective(found or effect(0.004, 0.02, n_units=3), "inconclusive", "A/A")
    return experiment(0, "baseline", aa, *more, commit="base")


def control(number: int, found: Effect, finding: Any, commit: str) -> Experiment:
    signal = objective(found, finding, "undecided" if finding == "inconclusive" else "")
    return experiment(number, "control", signal, claim="engine-defaults", commit=commit)


def report(*experiments: Experiment, result: Result | None = None, **given: Any) -> Report:
    fields: dict[str, Any] = {
        "id": "cmp_1", "spec": CampaignSpec(target="/repo/engine", budget=Budget(experiments=20)),
        "target_name": "engine", "target_toml": TARGET, "source_commit": "s", "base_commit": "base",
        "host_fingerprint": "h", "state": CampaignState.COMPLETE, "stop_reason": "every knob was tried",
        "elapsed_s": 200.0,
    }  # fmt: skip
    campaign = Campaign.model_validate(fields | given)
    return build(campaign, SPEC, Journal(experiments=experiments), result or Result())


WON = Result(PATCH, {"threads": 8, "flash": None}, {"threads": 2, "flash": None})
LARGE = effect(1.93, 0.12)


def one_accepted(*more: Experiment, result: Result = WON) -> Report:
    held = (guardrail(effect(0.3, 0.1, "p99_ttft_ms")), gate("answers: within tolerance"))
    return report(baseline(), accepted(1, LARGE, *held), *more, result=result)


def test_a_single_accepted_change_is_the_result_against_the_original() -> None:
    found = one_accepted()
    assert found.headline == (
        "output_throughput +193 % [+181 %, +205 %] against the original launch.toml, confirmed with fresh "
        "processes (3 pairs)."
    )
    original = found.comparisons[0]
    assert (original.kind, original.experiment, original.confirmed) == ("original", 1, True)


def test_time_is_stated_as_time_saved() -> None:
    saved = effect(0.39, 0.05, "slice_time_s")
    assert "slice_time_s +39.0 % [+34.0 %, +44.0 %] time saved" in report(accepted(1, saved)).headline


def test_a_control_without_a_difference_says_that_the_gain_only_undoes_the_inherited_settings() -> None:
    text = render_text(one_accepted(control(2, effect(0.004, 0.015), "same", "c1")))
    assert "control engine-defaults" in text
    joined = " ".join(text.split())
    assert "no difference found, +0.4 % [-1.1 %, +1.9 %]" in joined
    assert "the gain comes from undoing the inherited settings" in joined


def test_a_wide_control_claims_only_what_its_interval_allows() -> None:
    def said(found: Effect) -> str:
        return " ".join(render_text(one_accepted(control(2, found, "inconclusive", "c1"))).split())

    assert "most of the gain comes from undoing" in said(effect(0.05, 0.20))
    assert "undoing" not in said(effect(0.5, 2.0))


def test_a_control_that_differs_says_how() -> None:
    better = render_text(one_accepted(control(2, effect(0.12, 0.03), "better", "c1")))
    assert "better, +12.0 % [+9.0 %, +15.0 %] (40 -> 44.8 tok/s, 3 pairs)" in better
    worse = render_text(one_accepted(control(2, effect(-0.12, 0.03), "worse", "c1")))
    assert "worse, -12.0 % [-15.0 %, -9.0 %]" in worse
    tiny = render_text(one_accepted(control(2, effect(0.02, 0.01), "inconclusive", "c1")))
    assert "within the noise floor, +2.0 %" in tiny


def test_a_guardrail_that_is_lost_against_an_arm_is_said_beside_the_gain() -> None:
    slower = guardrail(effect(-0.16, 0.05, "p99_ttft_ms"), "violates")
    versus = control(2, effect(0.10, 0.02), "better", "c1")
    found = one_accepted(versus.model_copy(update={"signals": (*versus.signals, slower)}))
    said = " ".join(render_text(found).split())
    assert (
        "better, +10.0 % [+8.0 %, +12.0 %] (40 -> 44 tok/s, 3 pairs); but violates: guardrail p99_ttft_ms -16.0 %"
        in said
    )
    whole = experiment(3, "final", objective(effect(0.75, 0.1), "better"), slower, commit="c2")
    changes = (accepted(1, effect(0.5, 0.1)), accepted(2, effect(0.2, 0.05), parent_commit="c1"))
    assert "But violates: guardrail p99_ttft_ms -16.0 %" in report(*changes, whole, result=WON).headline


def test_a_result_that_equals_the_control_says_so() -> None:
    found = one_accepted(result=Result(PATCH, {"threads": 8}, {"threads": None, "flash": None}))
    assert found.comparisons[1].is_identical
    assert found.headline.endswith("The result is the control arm engine-defaults itself.")
    assert "control engine-defaults   the result itself" in render_text(found)


def test_a_control_that_was_not_measured_is_not_taken_for_equal() -> None:
    found = one_accepted()
    assert not found.comparisons[1].is_identical
    assert "control engine-defaults   not measured" in render_text(found)
    patched = PATCH + PATCH.replace("launch.toml", "src/a.c")
    same_knobs = Result(patched, {}, {"threads": None, "flash": None})
    assert not one_accepted(result=same_knobs).comparisons[1].is_identical


def test_a_control_measured_against_an_earlier_best_is_not_the_results() -> None:
    stale = control(2, effect(0.9, 0.1), "better", "c0")
    assert one_accepted(stale).comparisons[1].effect is None


def test_several_accepted_changes_are_stated_by_the_measurement_of_the_whole() -> None:
    changes = (accepted(1, effect(0.5, 0.1)), accepted(2, effect(0.2, 0.05), parent_commit="c1"))
    unmeasured = report(*changes, result=WON)
    assert "2 changes accepted; the whole was not measured against the original launch.toml yet" in (
        unmeasured.headline
    )
    whole = experiment(3, "final", objective(effect(0.75, 0.1), "better"), commit="c2")
    found = report(*changes, whole, result=WON)
    assert found.headline == (
        "output_throughput +75.0 % [+65.0 %, +85.0 %] against the original launch.toml, measured as a whole "
        "with fresh processes (3 pairs); 2 changes confirmed one by one."
    )
    assert found.comparisons[0].experiment == 3


def test_a_whole_that_was_not_found_better_is_not_called_so() -> None:
    changes = (accepted(1, effect(0.05, 0.02)), accepted(2, effect(0.04, 0.02), parent_commit="c1"))
    whole = experiment(3, "final", objective(effect(0.03, 0.06), "inconclusive", "why"), commit="c2")
    said = report(*changes, whole, result=WON).headline
    assert said.startswith("2 changes confirmed singly, but the whole is undecided: output_throughput +3.0 %")


def test_nothing_found_states_what_was_excluded_and_how_small_an_effect_would_have_been_seen() -> None:
    tried = (
        rejected(1, effect(0.001, 0.01)),
        rejected(2, effect(-0.05, 0.02), "worse"),
        rejected(3, effect(0.011, 0.03), "inconclusive", "too wide"),
    )
    noise = NoiseUnits(
        host_fingerprint="h", target_name="engine", probe="load", metric="output_throughput",
        direction="maximize", units=tuple(0.01 * math.sin(i) for i in range(40)),
    )  # fmt: skip
    found = report(baseline(), *tried, result=Result(noise=noise))
    assert found.headline == (
        "Nothing better than the original launch.toml was found in 3 changes: a gain above +4.1 % is excluded for "
        "each of the 3 that were measured (1 of them undecided below that)."
    )
    text = " ".join(render_text(found).split())
    assert found.noise.minimum_detectable_effect is not None
    assert "finds a true gain of" in text
    assert "with 90 % probability" in text
    assert "the original launch.toml unchanged: nothing was accepted" in text
    assert "Guardrails" not in text


def test_a_single_undecided_change_is_not_counted_among_several() -> None:
    alone = report(rejected(1, effect(0.011, 0.03), "inconclusive", "too wide"))
    assert alone.headline.endswith("is excluded for the one that was measured (undecided below that).")


def test_intervals_that_exclude_nothing_are_not_said_to() -> None:
    wide = report(rejected(1, effect(0.2, 0.78), "inconclusive", "too wide")).headline
    assert wide.endswith("in 1 change: intervals that reach up to +98.0 % exclude no gain worth naming.")


def test_a_number_that_can_not_be_trusted_is_none() -> None:
    cheat = Signal(
        rule_id="integrity.work_mismatch", level="error", finding="violates", message="different work",
        locations=(CodeLocation(file="a.c"),),
    )  # fmt: skip
    predicted = Prediction(metric="output_throughput", direction="up", low=0.1)
    proposal = Proposal(hypothesis=Hypothesis(claim="c", predicted=predicted), change=Change(knobs={"threads": 1}))
    faked = experiment(1, "change", cheat, objective(effect(9.0, 0.1), "better"), proposal=proposal)
    found = report(faked)
    (tried,) = found.tried
    assert (tried.outcome, tried.effect) == ("invalid", None)
    assert tried.forecast is not None
    assert tried.forecast.outcome == "not measured"
    assert "none got as far as a measurement" in found.headline


def test_nothing_found_when_all_were_worse_or_none_was_measured() -> None:
    worse = report(rejected(1, effect(-0.1, 0.02), "worse"))
    assert worse.headline.endswith("in 1 change: the one that was measured is worse.")
    refused = experiment(1, "change", gate("refused before any run", "violates"), run_directory="")
    assert "none got as far as a measurement of output_throughput" in report(refused).headline
    assert report().headline == "No change was tried, so the original launch.toml stands."


def test_a_gain_that_broke_a_guardrail_is_told_apart() -> None:
    broke = experiment(
        1, "change", objective(effect(0.3, 0.1), "better"), guardrail(effect(-0.5, 0.1, "p99_ttft_ms"), "violates")
    )  # fmt: skip
    assert broke.verdict is not None
    assert broke.verdict.kind is VerdictKind.REJECT
    said = report(broke, rejected(2, effect(0.0, 0.01))).headline
    assert "a gain above +1.0 % is excluded for the one that was measured" in said
    assert "1 change did better but broke a guardrail or a gate" in said


@pytest.mark.parametrize("state", [CampaignState.STOPPED, CampaignState.INTERRUPTED])
def test_an_unfinished_campaign_says_so_and_how_to_go_on(state: CampaignState) -> None:
    running = experiment(1, "change", state=State.RUNNING, verdict=None, commit=None)
    found = report(baseline(), running, state=state, stop_reason="")
    assert found.headline.startswith("Not finished. So far: Nothing better")
    assert found.next[0].startswith("infra-agent run --resume cmp_1  # ")
    assert found.tried[0].outcome == "running"
    assert f"campaign cmp_1: {state.value}" in render_text(found)


def test_a_campaign_that_is_being_run_is_not_to_be_resumed() -> None:
    found = report(baseline(), state=CampaignState.RUNNING, stop_reason="")
    assert found.headline.startswith("Not finished.")
    assert found.next[0].startswith("infra-agent show cmp_1  # ")
    assert not any("--resume" in command for command in found.next)


def test_a_target_that_fails_by_itself_asks_for_a_new_campaign() -> None:
    found = report(state=CampaignState.FAILED, stop_reason="the unchanged target fails: build exited with status 1")
    assert found.headline == (
        "Failed: the original launch.toml itself does not pass, so no change can be measured against it."
    )
    assert found.next == ("infra-agent run /repo/engine --planner search  # once the target is mended",)
    assert "campaign cmp_1: failed\n  why it stopped: the unchanged target fails" in render_text(found)


def test_knobs_are_shown_as_was_and_now_with_the_engines_default() -> None:
    result = Result(PATCH, {"threads": 8, "flash": None}, {"threads": None, "flash": True})
    found = one_accepted(result=result)
    assert [(k.name, k.was, k.now) for k in found.knobs] == [("threads", 8, None), ("flash", None, True)]
    text = render_text(found)
    assert "threads  8 -> the engine's default (2)" in text
    assert "flash    the engine's default (False) -> true" in text
    assert "files: launch.toml" in text


def test_a_knob_of_another_type_is_a_change() -> None:
    assert one_accepted(result=Result(PATCH, {"threads": 1}, {"threads": True})).knobs


def test_what_was_tried_has_gain_interval_and_first_reason() -> None:
    undecided = rejected(1, effect(0.01, 0.04), "inconclusive", "the interval is too wide")
    refused = experiment(2, "change", gate("refused before any run: threads = 99 is outside 1..64", "violates"))
    found = report(undecided, refused)
    assert [(t.number, t.outcome, t.reason) for t in found.tried] == [
        (1, "inconclusive", "the interval is too wide"),
        (2, "reject", "refused before any run: threads = 99 is outside 1..64"),
    ]
    text = render_text(found)
    assert "1  inconclusive  +1.0 % [-3.0 %, +5.0 %]  threads=1" in text
    assert "2  reject        not measured             threads=2" in text


def test_guardrails_and_gates_of_the_result_are_shown_with_numbers() -> None:
    text = render_text(one_accepted())
    assert "guardrail p99_ttft_ms +30.0 % [+20.0 %, +40.0 %] time saved, may lose at most 10 %" in text
    assert "holds         answers: within tolerance" in text


def test_warnings_name_contention_an_assumed_floor_and_a_baseline_that_differs_from_itself() -> None:
    aa = baseline(effect(0.1, 0.02, floor_units=0), contention())
    found = report(aa, rejected(1, effect(0.0, 0.01, floor_units=0)))
    said = "\n".join(found.warnings)
    assert "The baseline differs from itself (+10.0 % [+8.0 %, +12.0 %])" in said
    assert "busy with other work in 1 of 2 measurements" in said
    assert "noise floor of 3.0 % is assumed (0 of 30 A/A pairs of this host were known" in said
    assert "infra-agent calibrate /repo/engine  # measure this machine's noise floor" in found.next


def test_a_quiet_calibrated_campaign_has_no_warnings() -> None:
    known: dict[str, Any] = {"floor_known": True, "floor": 0.008}
    found = report(baseline(effect(0.001, 0.004, **known), contention("note")), rejected(1, effect(0.0, 0.01, **known)))
    assert found.warnings == ()
    assert not any("calibrate" in command for command in found.next)
    assert "noise floor of 0.8 % (measured on this machine)" in render_text(found)


def test_next_commands_apply_the_patch_and_raise_a_spent_budget() -> None:
    spent = CampaignSpec(target="/my repo", budget=Budget(experiments=1))
    found = report(accepted(1, LARGE), result=WON, spec=spent, stop_reason="the budget of 1 experiments is used up")
    assert found.next[0] == (
        "infra-agent show cmp_1 --patch | git -C '/my repo' apply "
        "--directory=\"$(git -C '/my repo' rev-parse --show-prefix)\"  # apply the patch"
    )
    assert "infra-agent run --resume cmp_1 --experiments 11  # search on" in found.next
    shipped = CampaignSpec(target="/x/infra_agent/shipped_targets/engine")
    assert "--patch > engine.patch" in report(accepted(1, LARGE), result=WON, spec=shipped).next[0]


def test_a_time_budget_that_is_spent_is_raised_in_minutes() -> None:
    timed = CampaignSpec(target="/r", budget=Budget(experiments=50, minutes=4))
    spent = report(spec=timed, stop_reason="the budget of 4 minutes is nearly used up (20 s left)")
    assert "infra-agent run --resume cmp_1 --minutes 8  # search on" in spent.next
    assert "ended by the budget: the budget of 4 minutes" in render_text(spent)


def test_a_planner_with_nothing_left_is_not_asked_to_search_on() -> None:
    timed = CampaignSpec(target="/r", budget=Budget(experiments=50, minutes=4))
    reason = "nothing new is left next to the values in force: " + "a value, " * 40
    found = report(rejected(1, effect(0.0, 0.01)), spec=timed, stop_reason=reason)
    assert found.ended_by == "planner"
    assert not any("search on" in command for command in found.next)
    text = render_text(found)
    assert "\n  ended by the planner: nothing new is left" in text
    assert max(map(len, text.splitlines())) <= 100


def test_the_confidence_of_the_intervals_is_said_once_as_a_range() -> None:
    found = report(rejected(1, effect(0.0, 0.01)), rejected(2, effect(0.0, 0.01, confidence=0.983)))
    assert found.confidence == (0.967, 0.983)
    text = render_text(found)
    assert text.count("confidence") == 1
    assert "96.7 % to 98.3 %" in text


@pytest.mark.parametrize("width", [80, 100])
def test_text_fits_its_width_and_carries_no_control_characters(width: int) -> None:
    nasty = "\x1b[31mred\x1b[0m\nnext\tline " + "very " * 100
    change = Change(patch=PATCH + "+\x1b]0;title\x07\n")
    found = report(
        baseline(), experiment(1, "change", gate("g", "violates"), claim=nasty, change=change),
        accepted(2, LARGE, claim=nasty), result=Result(PATCH + "+\x1b[2J\r\n" * 60),
    )  # fmt: skip
    text = render_text(found, width)
    assert all(c.isprintable() or c == "\n" for c in text)
    assert max(len(line) for line in text.splitlines() if "apply" not in line) <= width
    assert "more lines: infra-agent show cmp_1 --patch" in text


def test_the_report_survives_json() -> None:
    found = one_accepted(control(2, effect(0.0, 0.01), "same", "c1"))
    assert Report.model_validate(json.loads(found.model_dump_json())) == found


def test_small_words() -> None:
    assert percent(-0.0123) == "-1.2 %"
    assert gain(effect(0.9, 0.3)) == "+90 % [+60 %, +120 %]"
    assert [duration(s) for s in (4.4, 65, 7500)] == ["4 s", "1 min 05 s", "2 h 05 min"]


TIMED = parse_target(
    TARGET.replace('"output_throughput"\ndirection = "maximize"', '"slice_time_s"\ndirection = "minimize"')
    .replace("min_effect = 0.02", "min_effect = 0.25"),
    "target.toml",
)  # fmt: skip


def test_floor_and_pairs_are_those_that_the_campaign_was_judged_by() -> None:
    noise = NoiseUnits(
        host_fingerprint="h", target_name="engine", probe="load", metric="output_throughput",
        direction="maximize", units=tuple(0.01 * math.sin(i) for i in range(31)),
    )  # fmt: skip
    judged = (baseline(effect(0.0, 0.01, floor_units=28)), rejected(1, effect(0.0, 0.01, floor_units=28)))
    found = report(*judged, result=Result(noise=noise))
    assert (found.noise.is_measured, found.noise.n_units, found.noise.n_units_today) == (False, 28, 31)
    said = " ".join(found.warnings)
    assert "assumed (28 of 30 A/A pairs" in said
    assert "By now 31 pairs are known, which make a floor of " in said
    assert not any("calibrate" in command for command in found.next)


def test_numbers_from_before_and_after_a_calibration_name_both_floors() -> None:
    later = effect(0.0, 0.01, floor=0.01, floor_known=True, floor_units=33)
    found = report(baseline(), rejected(1, effect(0.0, 0.01)), rejected(2, later))
    assert (found.noise.floor, found.noise.earlier_floors) == (0.01, (0.03,))
    said = " ".join(render_text(found).split())
    assert "noise floor of 1.0 % (measured on this machine from 33 A/A pairs)" in said
    assert "Earlier numbers of this campaign were held against a floor of 3.0 %" in said


def test_effects_without_a_number_of_pairs_still_load() -> None:
    old = {k: v for k, v in effect(0.1, 0.02).model_dump().items() if k != "floor_units"}
    found = report(rejected(1, Effect.model_validate(old)))
    assert found.noise.n_units is None
    assert "noise floor of 3.0 % is assumed; `infra-agent" in " ".join(found.warnings)


def test_floor_and_thresholds_stand_on_the_scale_of_the_gains() -> None:
    saved = effect(0.3, 0.02, "slice_time_s", floor=0.25, floor_known=True)
    campaign = Campaign(
        id="cmp_1", spec=CampaignSpec(target="/r"), target_name="engine", target_toml=TARGET, source_commit="s",
        base_commit="base", host_fingerprint="h", state=CampaignState.COMPLETE,
    )  # fmt: skip
    found = build(campaign, TIMED, Journal(experiments=(accepted(1, saved),)), WON)
    assert found.noise.floor == pytest.approx(0.2)
    assert found.min_effect == pytest.approx(0.2)
    said = " ".join(render_text(found).split())
    assert "noise floor of 20.0 % (measured on this machine) and it is itself at least 20.0 %" in said
    assert "25 % more speed is 20 % of the time saved" in said
    assert "of the time saved" not in render_text(one_accepted())


@pytest.mark.parametrize(
    ("metric", "before", "after", "text"),
    [
        ("slice_time_s", 0.009541, 0.00729, "9.541 -> 7.29 ms"),
        ("slice_time_s", 42e-6, 1.5e-3, "42 -> 1500 µs"),
        ("p99_ttft_ms", 3100.0, 900.0, "3.1 -> 0.9 s"),
        ("median_itl_ms", 0.5, 0.25, "500 -> 250 µs"),
        ("output_throughput", 40.0, 44.8, "40 -> 44.8 tok/s"),
        ("total_token_throughput", 40.0, 44.8, "40 -> 44.8 tok/s"),
        ("request_throughput", 4.0, 5.0, "4 -> 5 req/s"),
        ("request_goodput", 4.0, 5.0, "4 -> 5 req/s"),
        ("peak_bytes", 3 * 2**20, 2**20, "3 -> 1 MiB"),
        ("wasted_tokens", 30.0, 10.0, "30 -> 10 tokens"),
        ("goodput_share", 0.9, 0.95, "0.9 -> 0.95"),
        ("slice_time_s", math.nan, 1.0, "nan -> 1 s"),
    ],
)
def test_absolute_values_have_units(metric: str, before: float, after: float, text: str) -> None:
    assert change(effect(0.1, 0.01, metric, baseline=before, measured=after)) == text


@pytest.mark.parametrize(
    ("gain", "half", "predicted", "outcome"),
    [
        (0.30, 0.05, {"low": 0.2, "high": 0.5}, "confirmed"),
        (0.30, 0.05, {"low": 0.1, "high": 0.2}, "confirmed"),
        (0.30, 0.15, {"low": 0.2}, "undecided"),
        (0.05, 0.02, {"low": 0.1}, "refuted"),
        (-0.30, 0.05, {"low": 0.1}, "refuted"),
        (0.01, 0.02, {}, "undecided"),
        (-0.05, 0.02, {}, "refuted"),
    ],
)
@pytest.mark.parametrize(("metric", "wanted"), [("output_throughput", "up"), ("slice_time_s", "down")])
def test_a_prediction_is_held_against_the_whole_interval(
    gain: float, half: float, predicted: dict[str, float], outcome: str, metric: str, wanted: str
) -> None:
    prediction = Prediction.model_validate({"metric": metric, "direction": wanted} | predicted)
    found = held_against(prediction, [effect(0.9, 0.01, "p99_ttft_ms"), effect(gain, half, metric)])
    assert found.outcome == outcome
    assert found.change == pytest.approx(gain)
    assert found.is_beyond == (predicted.get("high") == 0.2)


def test_a_prediction_in_the_unwanted_direction_is_held_against_that() -> None:
    slower = Prediction(metric="p99_ttft_ms", direction="up", low=0.1)
    found = held_against(slower, [effect(-0.2, 0.05, "p99_ttft_ms")])
    assert found.outcome == "confirmed"
    assert held_against(slower, []).outcome == "not measured"


def counted(message: str) -> Signal:
    return Signal(
        rule_id="performance.instructions", level="note", finding="observed", message=message, locations=PLACE
    )


def predicting(number: int, metric: str, *signals: Signal) -> Experiment:
    low = Prediction(metric=metric, direction="up", low=0.1)
    hypothesis = Hypothesis(claim="c", predicted=low)
    return experiment(number, "change", *signals, proposal=Proposal(hypothesis=hypothesis, change=Change()))


def test_what_was_tried_shows_the_prediction_and_the_counts_beside_the_gain() -> None:
    work = counted("kernel: 200 -> 100 instructions (-50.00%): less work")
    small = objective(effect(0.01, 0.02), "inconclusive", "too wide")
    other = guardrail(effect(0.3, 0.1, "p99_ttft_ms"))
    found = report(
        predicting(1, "output_throughput", small, work), predicting(2, "p99_ttft_ms", small, other),
        spec=CampaignSpec(target="/r", planner="llm"),
    )  # fmt: skip
    assert found.tried[0].forecast is not None
    assert found.tried[0].forecast.outcome == "refuted"
    said = render_text(found)
    assert "counted: kernel: 200 -> 100 instructions" in said
    assert "predicted: output_throughput up 10 % or more: refuted\n" in said
    assert "predicted: p99_ttft_ms up 10 % or more: refuted, measured -30.0 % [-40.0 %, -20.0 %]" in said
    searched = report(predicting(1, "output_throughput", small))
    assert searched.tried[0].forecast is not None
    assert "predicted:" not in render_text(searched)


def test_a_wide_baseline_says_what_it_is_worth() -> None:
    wide = " ".join(render_text(report(baseline(effect(0.02, 0.3)))).split())
    assert "+2.0 % [-28.0 %, +32.0 %] over 3 pairs. That is wide: identical arms could differ by about 30 %" in wide
    assert "`infra-agent calibrate` measures the noise with enough pairs" in wide
    assert "That is wide" not in render_text(report(baseline(effect(0.0, 0.01))))


def test_the_medians_are_explained_where_they_stand() -> None:
    assert "need not be the ratio of the two medians" in " ".join(render_text(one_accepted()).split())
    assert "medians" not in render_text(report(baseline()))


def test_work_that_nothing_proves_is_a_warning() -> None:
    unproven = Signal(
        rule_id="integrity.work_unproven", level="note", finding="abstained", reason="no checksums",
        message="bench: nothing proves that both arms did the same work", locations=PLACE,
    )  # fmt: skip
    found = report(baseline(None, unproven), rejected(1, effect(0.0, 0.01)))
    assert sum("nothing proves that both arms did the same work" in w for w in found.warnings) == 1


def test_each_change_of_a_stack_is_stated_with_its_own_share() -> None:
    changes = (accepted(1, effect(0.5, 0.1)), accepted(2, effect(0.2, 0.05), parent_commit="c1"))
    whole = experiment(3, "final", objective(effect(0.75, 0.1), "better"), commit="c2")
    first = experiment(4, "layer", objective(effect(0.44, 0.1), "better"), commit="c2", claim="#1")
    stale = experiment(5, "layer", objective(effect(0.9, 0.1), "better"), commit="c1", claim="#2")
    found = report(*changes, whole, first, stale, result=WON)
    assert [(one.number, one.finding) for one in found.layers] == [(1, "better"), (2, "")]
    text = render_text(found)
    assert "What each change is worth in the result" in text
    assert "#1    +44.0 %" in text
    assert "#2    not measured" in text
    assert report(changes[0], result=WON).layers == ()


def test_what_each_knob_did_and_who_proposed_it_is_said() -> None:
    def proposed(planner: str, made: Experiment) -> Experiment:
        return made.model_copy(update={"proposal": made.proposal.model_copy(update={"planner": planner})})

    flash = Change(knobs={"flash": True})
    first = proposed("search", accepted(1, effect(0.3, 0.02), change=Change(knobs={"threads": 2})))
    second = proposed("random", experiment(2, "change", objective(effect(0.01, 0.02), "same"), change=flash))
    portfolio = CampaignSpec(target="/repo/engine", planner="portfolio:search,random")
    text = " ".join(render_text(report(baseline(), first, second, result=WON, spec=portfolio)).split())
    assert "100 % threads 1 step: best +30.0 % [+28.0 %, +32.0 %]" in text
    assert "0 % flash 1 step, within the noise floor" in text
    assert "search 1 experiment, 10 s measuring, 0.0 s planning; 1 accepted, +30.0 % of confirmed gain" in text
    assert "random 1 experiment, 10 s measuring, 0.0 s planning; 0 accepted, +0.0 % of confirmed gain" in text
    alone = render_text(report(baseline(), first, result=WON))
    assert "Who proposed" not in alone


def test_of_changes_made_beside_each_other_the_result_is_the_best_one() -> None:
    changes = (accepted(1, effect(0.5, 0.1)), accepted(2, effect(0.2, 0.05)))
    whole = experiment(3, "final", objective(effect(0.45, 0.1), "better"), commit="c1")
    found = report(baseline(), *changes, whole, result=WON)
    assert (found.n_accepted, found.n_in_result) == (2, 1)
    assert found.comparisons[0].experiment in (1, 3)
    assert "2 changes confirmed one by one" not in found.headline
