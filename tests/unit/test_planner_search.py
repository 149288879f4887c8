"""The search planner, on simulated campaigns: response surfaces measured with noise and judged by the project's own
rule. Counts of experiments, no timing."""

from __future__ import annotations

from statistics import fmean

import pytest
from simulation import (
    DEFAULTS,
    INHERITED,
    SPEC,
    Campaign,
    Coupled,
    Interacting,
    among,
    effect,
    make_spec,
    simulate,
    whole,
)

from feedback.observations import Scalar
from feedback.verdict import Verdict, VerdictKind
from infra_agent.domain import Change, Hypothesis, Proposal, State
from infra_agent.planner import Action, Propose, Stop
from infra_agent.planner.chance import RandomPlanner
from infra_agent.planner.search import SearchPlanner


def steps_only(campaign: Campaign) -> Action:
    return SearchPlanner(0, ("local",)).next_action(campaign.context())


def test_it_comes_within_two_percent_of_the_best_in_fifteen_experiments_and_beats_random_search() -> None:
    budget, seeds = 40, range(50)
    courses = [simulate(Interacting(seed), SearchPlanner(seed), budget, seed) for seed in seeds]
    assert fmean(course.needed(0.02, budget) for course in courses) <= 15
    assert fmean(course.gap(10) for course in courses) <= 0.03
    by_chance = fmean(simulate(Interacting(seed), RandomPlanner(seed), 15, seed).gap(15) for seed in seeds)
    assert fmean(course.gap(15) for course in courses) < by_chance / 5


def test_it_never_repeats_never_proposes_what_is_refused_and_stops_by_itself() -> None:
    for seed in range(100, 112):  # `simulate` checks each proposal
        course = simulate(Interacting(seed), SearchPlanner(seed), 200, seed)
        assert course.stop is not None
        assert "nothing new is left" in course.stop.reason
        assert "joint changes found nothing more" in course.stop.reason
        assert "1 control arm and 1 joint move among" in course.stop.reason
        assert "threads (" in course.stop.reason


def test_joint_changes_find_what_no_single_step_shows_and_cost_nothing_before() -> None:
    seeds = range(12)
    steps = [simulate(Coupled(seed), SearchPlanner(seed, ("local",)), 60, seed) for seed in seeds]
    both = [simulate(Coupled(seed), SearchPlanner(seed), 60, seed) for seed in seeds]
    assert fmean(course.gap(60) for course in both) < fmean(course.gap(60) for course in steps) - 0.05
    for alone, course in zip(steps, both, strict=True):
        assert course.gaps[: len(alone.gaps) - 1] == alone.gaps[:-1]


def test_the_same_journal_gives_the_same_proposal() -> None:
    campaign = Campaign(SPEC, INHERITED)
    for kind in (VerdictKind.ACCEPT, VerdictKind.REJECT, VerdictKind.INCONCLUSIVE, VerdictKind.ACCEPT):
        first = SearchPlanner(3).next_action(campaign.context())
        assert SearchPlanner(3).next_action(campaign.context()) == first
        campaign.play(kind, 0.03)


def test_controls_come_first_then_moves_then_the_best_guess_of_each_knob() -> None:
    campaign = Campaign(SPEC, INHERITED)
    gone = dict.fromkeys(("threads", "threads_batch"))
    assert campaign.play(VerdictKind.REJECT, -0.1) == gone  # the others are at the engine's defaults already
    campaign = Campaign(SPEC, {**INHERITED, "parallel": 2, "kv": "q8_0"})
    assert campaign.play(VerdictKind.REJECT, -0.1) == {**gone, "parallel": None, "kv": None}
    assert campaign.play(VerdictKind.REJECT, -0.1) == {"threads": 4, "threads_batch": 4}
    assert campaign.play(VerdictKind.REJECT, -0.1) == {"threads": 4}
    assert campaign.play(VerdictKind.REJECT, -0.1) == {"threads_batch": 4}
    assert campaign.play(VerdictKind.REJECT, -0.1) == {"parallel": 4}


def test_a_hypothesis_says_what_where_why_and_what_would_refute_it() -> None:
    campaign = Campaign(SPEC, {**INHERITED, "kv": "q8_0"})
    campaign.play(VerdictKind.REJECT, -0.1)
    action = SearchPlanner(0).next_action(campaign.context())
    assert isinstance(action, Propose)
    hypothesis = action.proposal.hypothesis
    assert hypothesis.claim == "Setting threads = 4, threads_batch = 4 together helps"
    assert hypothesis.mechanism == "both pools on every core"
    assert hypothesis.location == "threads, threads_batch"
    assert "threads goes from 16 to 4, threads_batch goes from 16 to 4?" in hypothesis.question
    assert hypothesis.predicted is not None
    assert (hypothesis.predicted.direction, hypothesis.predicted.low) == ("up", 0.02)
    assert "below 2.0%" in hypothesis.falsifier


ONE = make_spec([whole("threads", None, [8], top=64)])


def test_a_direction_that_paid_off_is_followed_and_left_when_it_fails() -> None:
    campaign = Campaign(ONE, {"threads": 2})
    assert campaign.play(VerdictKind.ACCEPT, 0.2) == {"threads": 8}
    assert campaign.play(VerdictKind.ACCEPT, 0.1) == {"threads": 16}
    assert campaign.play(VerdictKind.REJECT, -0.1) == {"threads": 32}
    while isinstance(SearchPlanner().next_action(campaign.context()), Propose):
        (value,) = campaign.play(VerdictKind.REJECT, -0.1).values()
        assert 8 < int(str(value)) < 32  # never past what was measured worse
    assert len(campaign.experiments) < 9


def test_three_measured_values_point_to_the_peak_between_them() -> None:
    campaign = Campaign(make_spec([whole("slots", None, [4, 8])]), {"slots": 1})
    assert campaign.play(VerdictKind.ACCEPT, 0.04) == {"slots": 4}
    assert campaign.play(VerdictKind.REJECT, -0.14) == {"slots": 8}
    assert campaign.proposed() == {"slots": 2}


def test_a_small_step_is_followed_by_a_step_of_the_same_size() -> None:
    campaign = Campaign(make_spec([whole("threads", None, [7])]), {"threads": 8})
    assert campaign.play(VerdictKind.ACCEPT, 0.1) == {"threads": 7}
    assert campaign.proposed() == {"threads": 6}


def test_the_middle_of_a_wide_step_without_effect_is_tried() -> None:
    campaign = Campaign(make_spec([whole("slots", None, [16])]), {"slots": 1})
    assert campaign.play(VerdictKind.INCONCLUSIVE, 0.0) == {"slots": 16}
    assert campaign.proposed() == {"slots": 4}


THREE = make_spec([among(name, [0, 1, 2], 0, [1]) for name in ("a", "b", "c")])


def test_small_gains_are_pooled_once() -> None:
    campaign = Campaign(THREE, dict.fromkeys("abc"))
    assert campaign.play(VerdictKind.INCONCLUSIVE, 0.015) == {"a": 1}
    assert campaign.play(VerdictKind.INCONCLUSIVE, -0.01) == {"b": 1}
    assert campaign.play(VerdictKind.INCONCLUSIVE, 0.02) == {"c": 1}
    assert campaign.play(VerdictKind.REJECT, -0.001) == {"c": 1, "a": 1}
    assert isinstance(steps_only(campaign), Stop)


def test_three_small_gains_do_not_wait_for_the_other_knobs() -> None:
    spec = make_spec([among(name, [0, 1], 0, [1]) for name in "abcde"])
    campaign = Campaign(spec, dict.fromkeys("abcde"))
    for _ in range(3):
        campaign.play(VerdictKind.INCONCLUSIVE, 0.015)
    assert campaign.proposed() == {"a": 1, "b": 1, "c": 1}


def test_a_pool_that_stays_undecided_takes_in_later_small_gains() -> None:
    campaign = Campaign(THREE, dict.fromkeys("abc"))
    campaign.play(VerdictKind.INCONCLUSIVE, 0.015)
    campaign.play(VerdictKind.REJECT, -0.05)
    campaign.play(VerdictKind.INCONCLUSIVE, 0.015)
    assert campaign.play(VerdictKind.INCONCLUSIVE, 0.03) == {"a": 1, "c": 1}
    campaign.experiments[1] = campaign.experiments[1].model_copy(
        update={
            "verdict": Verdict(kind=VerdictKind.INCONCLUSIVE, reasons=("r",)),
            "effects": (effect(1.01, 0.99, 1.03),),
        }
    )
    assert campaign.proposed() == {"a": 1, "c": 1, "b": 1}


def test_the_last_experiment_goes_to_the_pool() -> None:
    campaign = Campaign(THREE, dict.fromkeys("abc"))
    campaign.play(VerdictKind.INCONCLUSIVE, 0.015)
    campaign.play(VerdictKind.INCONCLUSIVE, 0.015)
    assert campaign.proposed(left=2) == {"c": 1}
    assert campaign.proposed(left=1) == {"a": 1, "b": 1}


def test_a_failed_value_is_tried_once_more_beside_other_values() -> None:
    campaign = Campaign(make_spec([among("a", [0, 1], 0, [1]), among("b", [0, 1], 0, [1])]), {"a": 0, "b": 0})
    assert campaign.play(VerdictKind.INCONCLUSIVE, 0.003) == {"a": 1}
    assert campaign.play(VerdictKind.ACCEPT, 0.1) == {"b": 1}
    assert campaign.play(VerdictKind.INCONCLUSIVE, 0.003) == {"a": 1}
    assert isinstance(steps_only(campaign), Stop)


def test_what_broke_a_gate_is_not_tried_again_although_it_was_faster() -> None:
    campaign = Campaign(make_spec([among("a", [0, 1], 0, [1]), among("b", [0, 1], 0, [1])]), {"a": 0, "b": 0})
    campaign.play(VerdictKind.REJECT, 0.2)
    campaign.play(VerdictKind.ACCEPT, 0.1)
    assert isinstance(steps_only(campaign), Stop)


def test_an_acceptance_that_was_not_confirmed_counts_as_undecided() -> None:
    campaign = Campaign(THREE, dict.fromkeys("abc"))
    campaign.play(VerdictKind.INCONCLUSIVE, 0.015)
    campaign.play(VerdictKind.INCONCLUSIVE, 0.03)
    accepted = Verdict(kind=VerdictKind.ACCEPT, reasons=("r",))
    campaign.experiments[1] = campaign.experiments[1].model_copy(update={"verdict": accepted})
    assert campaign.proposed(left=1) == {"b": 1, "a": 1}


def test_an_absent_knob_equals_the_engines_default() -> None:
    spec = make_spec([whole("threads", "cores", ["cores", "cores/2"])], [DEFAULTS])
    assert Campaign(spec, {"threads": None}).proposed() == {"threads": 2}
    assert Campaign(spec, {"threads": 4}).proposed() == {"threads": 2}
    assert Campaign(spec, {"threads": 4}, cores=1).proposed() == {"threads": None}


def test_true_and_one_are_different_values() -> None:
    campaign = Campaign(make_spec([among("mode", [True, 1], 1, [1])]), {"mode": 1})
    assert campaign.proposed() == {"mode": True}


def test_what_the_platform_failed_on_is_tried_once_more_and_then_left() -> None:
    campaign = Campaign(THREE, dict.fromkeys("abc"))
    first = campaign.proposed()
    for _ in range(2):
        assert campaign.proposed() == first
        proposal = Proposal(hypothesis=Hypothesis(claim="c"), change=Change(knobs=first))
        campaign.record(proposal, None, None, State.FAILED)
    assert campaign.proposed() == {"b": 1}


def test_a_former_value_that_no_signal_names_does_not_break_the_search() -> None:
    campaign = Campaign(THREE, dict.fromkeys("abc"))
    campaign.play(VerdictKind.ACCEPT, 0.1)
    campaign.experiments[0] = campaign.experiments[0].model_copy(update={"signals": ()})
    assert campaign.proposed() == {"b": 1}


@pytest.mark.parametrize("experiment", ["patch", "unknown knob"])
def test_changes_that_are_none_of_its_own_are_left_aside(experiment: str) -> None:
    campaign = Campaign(THREE, dict.fromkeys("abc"))
    change = Change(patch="--- a\n") if experiment == "patch" else Change(knobs={"gone": 1})
    campaign.record(Proposal(hypothesis=Hypothesis(claim="c"), change=change), VerdictKind.REJECT, effect(0.9, 0.8, 1))
    assert campaign.proposed() == {"a": 1}


def test_a_target_without_knobs_ends_with_what_to_do() -> None:
    spec = SPEC.model_copy(update={"knobs": (), "moves": (), "controls": ()})
    action = SearchPlanner().next_action(Campaign(spec, {}).context())
    assert isinstance(action, Stop)
    assert "--planner llm or script:FILE" in action.reason


def test_the_seed_orders_knobs_that_nothing_else_orders() -> None:
    spec = make_spec([among(name, [0, 1, 2], 0, []) for name in "abcdef"])
    firsts = {tuple(Campaign(spec, dict.fromkeys("abcdef")).proposed(seed=seed)) for seed in range(30)}
    assert len(firsts) > 3


@pytest.mark.parametrize(
    ("text", "cores", "value"),
    [
        ("cores", 4, 4), ("cores/2", 5, 2), ("cores-1", 4, 3), ("cores * 2", 3, 6), ("cores+1", 1, 2),
        ("cores-8", 4, 1), ("cores/0", 4, 4), ("cores**9", 4, "cores**9"), ("cores/two", 4, "cores/two"),
        ("core", 4, "core"), (7, 4, 7),
    ],
)  # fmt: skip
def test_a_value_is_sized_for_the_machine(text: Scalar, cores: int, value: Scalar) -> None:
    (knob,) = make_spec([whole("threads", None, [])]).knobs
    assert knob.resolve(text, cores) == value


def test_a_word_among_the_choices_is_never_sized() -> None:
    (knob,) = make_spec([among("pin", ["cores", "sockets"], "cores", [])]).knobs
    assert knob.resolve("cores", 4) == "cores"


@pytest.mark.parametrize(
    ("suggest", "move", "problem"),
    [
        (["cores", 99], {"threads": 1}, "suggest: threads = 99 is outside 1..32"),
        (["coresss"], {"threads": 1}, "suggest: threads = 'coresss' is not a whole number"),
        ([], {"thread": "cores"}, "move m: unknown knob 'thread'"),
        ([], {"threads": 99}, "move m: threads = 99 is outside 1..32"),
        ([], {}, "at least 1 item"),
    ],
)
def test_suggestions_and_moves_are_checked_when_the_target_is_read(
    suggest: list[Scalar], move: dict[str, Scalar], problem: str
) -> None:
    moves: list[dict[str, object]] = [{"name": "m", "description": "", "knobs": move}]
    with pytest.raises(ValueError, match=problem):
        make_spec([whole("threads", None, suggest)], moves=moves)
