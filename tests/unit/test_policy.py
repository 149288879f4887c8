"""When a campaign stops, what it builds on, and that its error budget is never overspent."""

from __future__ import annotations

import random
from typing import Any

import pytest

from feedback.signals import Effect
from feedback.verdict import Verdict, VerdictKind
from infra_agent.domain import COMBINATION, Budget, CampaignSpec, Change, Experiment, Hypothesis, Proposal, State
from infra_agent.journal import Journal
from infra_agent.policy import (
    MAX_CONFIRM_ALPHA,
    MIN_CONCLUSION_S,
    PLANNED_SHARE,
    SCREEN_ALPHA,
    SECOND_BEST_EVERY,
    beside_the_result,
    choose_parent,
    conclusion_s,
    confirm_alpha,
    error_share,
    expected_cost_s,
    is_out_of_accelerators,
    is_spent,
    measuring_s,
    planning_s,
    sandbox_seconds_left,
    second_best,
    seconds_left,
    stop_reason,
)


def make_spec(experiments: int = 20, minutes: float | None = None, error_budget: float = 0.05) -> CampaignSpec:
    budget = Budget(experiments=experiments, minutes=minutes)
    return CampaignSpec(target="t", budget=budget, error_budget=error_budget)


def experiment(number: int, kind: VerdictKind | None = VerdictKind.REJECT, **fields: Any) -> Experiment:
    known: dict[str, Any] = {
        "id": f"exp_{number}", "campaign_id": "c", "number": number, "role": "change", "state": State.COMPLETE,
        "proposal": Proposal(hypothesis=Hypothesis(claim="c"), change=Change()), "parent_commit": "base",
        "commit": f"commit{number}", "verdict": Verdict(kind=kind, reasons=("r",)) if kind else None,
        "confirmed": kind is VerdictKind.ACCEPT,
    }  # fmt: skip
    return Experiment.model_validate(known | fields)


def journal(*experiments: Experiment) -> Journal:
    return Journal(experiments=experiments)


# What to build on.


def test_first_change_builds_on_the_base() -> None:
    assert choose_parent(journal(experiment(0, None, role="baseline")), "base") == "base"


def test_change_builds_on_the_last_one_that_was_confirmed() -> None:
    accepted = experiment(1, VerdictKind.ACCEPT)
    unconfirmed = experiment(3, VerdictKind.ACCEPT, confirmed=False)
    assert choose_parent(journal(accepted, experiment(2), unconfirmed), "base") == "commit1"
    assert choose_parent(journal(accepted, experiment(4, VerdictKind.ACCEPT)), "base") == "commit4"


# What was accepted beside the result.


def gained(number: int, ratio: float, **fields: Any) -> Experiment:
    effect = Effect(
        metric="output_throughput", direction="maximize", baseline=100.0, measured=100.0 * ratio, ratio=ratio,
        ratio_lo=ratio, ratio_hi=ratio, confidence=0.95, method="t", n_units=6, n_observations=48, floor=0.01,
        floor_known=True,
    )  # fmt: skip
    return experiment(number, VerdictKind.ACCEPT, effects=(effect,), **fields)


def combination(number: int, of: int, parent: str, kind: VerdictKind | None) -> Experiment:
    hypothesis = Hypothesis(claim="c", evidence=(f"#{of}", "#1"))
    made = Proposal(hypothesis=hypothesis, change=Change(), planner=COMBINATION)
    return experiment(number, kind, proposal=made, parent_commit=parent)


def test_what_was_accepted_against_the_same_commit_as_the_result_is_beside_it() -> None:
    best, small, large = gained(1, 1.5), gained(2, 1.1), gained(3, 1.2)
    assert beside_the_result(journal(best), "search") == ()
    assert beside_the_result(journal(best, small, large), "search") == (large, small)
    assert beside_the_result(journal(best, small, large), "random") == ()  # of a control arm the best one is the result
    own = large.proposal.model_copy(update={"planner": "best-of-n"})
    assert beside_the_result(journal(best, small, gained(3, 1.2, proposal=own)), "portfolio") == (small,)


def test_a_combination_is_tried_once_on_each_result() -> None:
    best, other = gained(1, 1.5), gained(2, 1.1)
    tried = combination(3, 2, "commit1", VerdictKind.REJECT)
    assert beside_the_result(journal(best, other, tried), "search") == ()
    waiting = tried.model_copy(update={"state": State.WAITING, "verdict": None})
    assert beside_the_result(journal(best, other, waiting), "search") == ()
    further = gained(4, 1.3, parent_commit="commit1")
    assert beside_the_result(journal(best, other, tried, further), "search") == (other,)


# When to stop.


def test_campaign_stops_when_its_experiments_are_used_up() -> None:
    own = experiment(0, None, role="baseline")
    assert stop_reason(journal(own, experiment(1)), make_spec(2), 0.0) is None
    said = stop_reason(journal(own, experiment(1), experiment(2)), make_spec(2), 0.0)
    assert said == "the budget of 2 experiments is used up"


def test_experiment_that_the_platform_failed_is_counted() -> None:
    assert stop_reason(journal(experiment(1, None, state=State.FAILED)), make_spec(1), 0.0) is not None


def test_time_is_kept_for_those_that_wait_to_be_measured() -> None:
    done = [experiment(n, sandbox_s=60.0) for n in (1, 2, 3)]
    waiting = [experiment(n, None, state=State.WAITING) for n in (4, 5)]
    elapsed_s = 600 - MIN_CONCLUSION_S - 2 * 60 - 20
    assert stop_reason(journal(*done), make_spec(minutes=10), elapsed_s) is None
    assert stop_reason(journal(*done, *waiting), make_spec(minutes=10), elapsed_s) is not None


def test_those_that_run_at_once_share_what_is_left_of_accelerators() -> None:
    spec = CampaignSpec(target="t", budget=Budget(accelerator_s=400.0))
    running = [experiment(n, None, state=State.RUNNING) for n in (1, 2, 3, 4)]
    assert measuring_s(journal(running[0]), spec, 0.0, 2) == 200.0
    assert measuring_s(journal(*running), spec, 0.0, 2) == 50.0


def test_campaign_stops_before_what_it_can_not_finish() -> None:
    done = journal(*(experiment(n, sandbox_s=60.0) for n in (1, 2, 3)))
    needed = MIN_CONCLUSION_S + 30.0
    assert stop_reason(done, make_spec(minutes=10), 600 - needed - 1) is None
    said = stop_reason(done, make_spec(minutes=10), 600 - needed + 1)
    assert said is not None
    assert "10 minutes is nearly used up (74 s left)" in said


def test_time_kept_back_for_the_conclusion_follows_the_baseline() -> None:
    long = make_spec(minutes=60)
    quick = journal(experiment(0, None, role="baseline", sandbox_s=5.0))
    assert conclusion_s(journal(), make_spec()) == MIN_CONCLUSION_S
    assert conclusion_s(quick, long) == MIN_CONCLUSION_S
    assert conclusion_s(quick, make_spec(minutes=1)) == pytest.approx(9.0)  # not most of a short campaign
    slow = experiment(0, None, role="baseline", sandbox_s=200.0)
    assert conclusion_s(journal(slow, experiment(1, sandbox_s=900.0)), long) == 200.0
    done = journal(slow, experiment(1, sandbox_s=100.0))
    assert stop_reason(done, make_spec(minutes=10), 600 - 251) is None
    assert stop_reason(done, make_spec(minutes=10), 600 - 249) is not None


def test_short_campaign_still_tries_its_first_change() -> None:
    assert stop_reason(journal(), make_spec(minutes=1), 30.0) is None
    assert stop_reason(journal(), make_spec(minutes=1), 61.0) == "the time budget is used up"


def test_campaign_without_a_time_limit_never_runs_out_of_time() -> None:
    assert seconds_left(make_spec(), 1e9) is None
    assert stop_reason(journal(experiment(1)), make_spec(), 1e9) is None
    assert seconds_left(make_spec(minutes=2), 30.0) == pytest.approx(90.0)


def test_cost_is_the_median_of_what_was_measured() -> None:
    measured = [experiment(n, sandbox_s=s) for n, s in enumerate((10.0, 90.0, 20.0))]
    refused = experiment(7, sandbox_s=0.0)
    own = experiment(8, sandbox_s=500.0, role="baseline")
    running = experiment(9, None, sandbox_s=900.0, state=State.RUNNING)
    assert expected_cost_s(journal(*measured, refused, own, running)) == 20.0
    assert expected_cost_s(journal(refused)) == 0.0


# Accelerator-seconds.


def accelerated(accelerator_s: float, minutes: float | None = None) -> CampaignSpec:
    return CampaignSpec(target="t", budget=Budget(accelerator_s=accelerator_s, minutes=minutes))


def test_accelerator_seconds_are_sandboxed_time_times_accelerators_killed_attempts_included() -> None:
    done = journal(experiment(0, None, role="baseline", sandbox_s=10.0), experiment(1, sandbox_s=20.0, lost_s=5.0))
    assert sandbox_seconds_left(done, accelerated(400.0), 4) == pytest.approx(65.0)
    assert sandbox_seconds_left(done, accelerated(400.0), 0) is None  # refused at the start
    assert sandbox_seconds_left(done, make_spec(), 4) is None
    assert not is_out_of_accelerators(done, accelerated(141.0), 4)
    assert is_out_of_accelerators(done, accelerated(140.0), 4)


def test_a_change_is_begun_only_if_what_it_should_cost_and_the_conclusion_fit() -> None:
    own = experiment(0, None, role="baseline", sandbox_s=10.0)
    assert stop_reason(journal(own), accelerated(21.0), 0.0, 2) is None  # the first one is tried whatever it costs
    assert stop_reason(journal(own), accelerated(20.0), 0.0, 2) is not None
    done = journal(own, experiment(1, sandbox_s=30.0))
    needed = 2 * (40.0 + 10.0 + 30.0)  # used, the conclusion, a change like the one before
    assert stop_reason(done, accelerated(needed), 1e9, 2) is None
    said = stop_reason(done, accelerated(needed - 1), 1e9, 2)
    assert said == (
        "the budget of 159 accelerator-seconds is used up (80 used, the next change and the conclusion may take 80)"
    )
    assert is_spent(said)


def test_a_measurement_is_bound_by_the_scarcer_of_time_and_accelerators() -> None:
    own = experiment(0, None, role="baseline", sandbox_s=50.0)
    assert measuring_s(journal(own), make_spec(), 1e9, 2) is None
    assert measuring_s(journal(own), make_spec(minutes=10), 100.0, 2) == 500.0
    assert measuring_s(journal(own), accelerated(400.0), 1e9, 2) == 150.0
    assert measuring_s(journal(own), accelerated(400.0, minutes=10), 100.0, 2) == 150.0
    assert measuring_s(journal(own), accelerated(400.0, minutes=10), 500.0, 2) == 100.0
    assert measuring_s(journal(own), accelerated(400.0, minutes=10), 100.0, 2, concludes=False) == 100.0
    assert measuring_s(journal(own), make_spec(minutes=10), 100.0, 2, concludes=False) == 450.0
    assert measuring_s(journal(own), accelerated(90.0), 0.0, 2) == 0.0


# The error budget.


def spend(spec: CampaignSpec, journal_before: Journal, n: int) -> Journal:
    """The journal after `n` more changes at the shares that the policy gives them."""
    experiments = list(journal_before.experiments)
    for _ in range(n):
        share = error_share(Journal(experiments=tuple(experiments)), spec)
        experiments.append(experiment(len(experiments), alpha=share))
    return Journal(experiments=tuple(experiments))


def spent(of: Journal) -> float:
    return sum(e.alpha for e in of.experiments)


@pytest.mark.parametrize("n", [1, 2, 20, 500])
def test_planned_experiments_share_the_planned_part_evenly(n: int) -> None:
    done = spend(make_spec(n), journal(), n)
    assert [e.alpha for e in done.experiments] == pytest.approx([PLANNED_SHARE * 0.05 / n] * n)
    assert spent(done) == pytest.approx(0.04)


def test_own_measurements_spend_nothing() -> None:
    own = experiment(0, None, role="baseline", alpha=0.05)
    assert error_share(journal(own), make_spec(10)) == pytest.approx(0.004)


def test_extension_lives_on_what_is_left() -> None:
    done = spend(make_spec(20), journal(), 20)
    extended = spend(make_spec(40), done, 20)
    assert spent(extended) < 0.05
    assert spent(extended) == pytest.approx(0.048, abs=0.0021)
    assert all(e.alpha > 0 for e in extended.experiments)


def test_extension_that_gives_the_planned_share_by_chance_does_not_overspend() -> None:
    """20 planned, one more of 100, then 400 planned: the last share equals that of the new plan."""
    done = spend(make_spec(100), spend(make_spec(20), journal(), 20), 1)
    assert done.experiments[-1].alpha == pytest.approx(PLANNED_SHARE * 0.05 / 400)
    assert spent(spend(make_spec(400), done, 379)) < 0.05


def test_no_history_of_plans_overspends_the_budget() -> None:
    rng = random.Random(3)
    for _ in range(100):
        error_budget = rng.choice([0.01, 0.05, 0.2])
        history = journal()
        for _ in range(rng.randrange(1, 6)):
            planned = rng.randrange(1, 60)
            more = max(0, min(planned - len(history.experiments), rng.randrange(0, 40)))
            history = spend(make_spec(planned, error_budget=error_budget), history, more)
        assert spent(history) <= error_budget


def test_screening_and_confirmation_together_err_no_more_than_the_share() -> None:
    for share in (1e-6, 0.0008, 0.002, 0.0025, 0.04):
        alpha = confirm_alpha(share)
        assert 0 < alpha <= MAX_CONFIRM_ALPHA
        assert SCREEN_ALPHA * alpha <= share * (1 + 1e-9)
    assert confirm_alpha(0.0008) == pytest.approx(0.016)


def test_planning_leaves_time_for_the_conclusion_once_there_is_something_to_conclude() -> None:
    none_yet = journal(experiment(0, None, role="baseline", sandbox_s=80.0))
    assert planning_s(none_yet, make_spec(), 1e9) is None
    assert planning_s(none_yet, make_spec(minutes=2), 90.0) == 30.0
    tried = none_yet.updated(experiment(1))
    assert planning_s(tried, make_spec(minutes=2), 10.0) == 30.0
    assert planning_s(tried, make_spec(minutes=2), 90.0) == 0.0


# Lines that are not the best.


def gain(estimate: float) -> tuple[Effect, ...]:
    return (
        Effect(
            metric="output_throughput", direction="maximize", baseline=1.0, measured=1 + estimate, ratio=1 + estimate,
            ratio_lo=1 + estimate - 0.01, ratio_hi=1 + estimate + 0.01, confidence=0.95, method="t", n_units=5,
            n_observations=20, floor=0.02, floor_known=True,
        ),
    )  # fmt: skip


def undecided(number: int, estimate: float, **fields: Any) -> Experiment:
    return experiment(number, VerdictKind.INCONCLUSIVE, effects=gain(estimate), **fields)


def lines(*found: Experiment) -> tuple[Experiment, ...]:
    """These changes, and as many further ones as bring the turn of a second-best line."""
    fill = range(100, 100 + SECOND_BEST_EVERY - 1 - len(found))
    return (*found, *(experiment(n) for n in fill))


def test_now_and_then_a_change_builds_on_the_most_promising_undecided_one() -> None:
    found = journal(*lines(undecided(1, 0.01), undecided(2, 0.03), undecided(3, -0.02)))
    second = second_best(found, "base", "llm")
    assert second is not None
    assert second.number == 2
    assert second_best(found, "base", "search") is None
    assert second_best(found, "base", "script:x.toml") is None
    assert second_best(journal(*found.experiments, experiment(200)), "base", "llm") is None


def test_a_line_is_taken_up_once_and_only_beside_the_best() -> None:
    first = undecided(1, 0.03)
    assert second_best(journal(*lines(first, experiment(2, parent_commit="commit1"))), "base", "llm") is None
    won = experiment(2, VerdictKind.ACCEPT, effects=gain(0.1))
    assert second_best(journal(*lines(first, won)), "base", "llm") is None
    assert second_best(journal(*lines(experiment(1))), "base", "llm") is None


def test_of_two_accepted_against_one_commit_the_larger_gain_is_the_result() -> None:
    small, large = (experiment(n, VerdictKind.ACCEPT, effects=gain(g)) for n, g in ((1, 0.05), (2, 0.2)))
    later = experiment(3, VerdictKind.ACCEPT, effects=gain(0.03), parent_commit="commit2")
    other = experiment(4, VerdictKind.ACCEPT, effects=gain(0.1), parent_commit="commit1")
    found = journal(large, small, later, other)
    assert [e.number for e in found.stack] == [2, 3]
    assert choose_parent(found, "base") == "commit3"
    larger = other.model_copy(update={"effects": gain(0.5)})  # 1.05 * 1.5 is more than 1.2 * 1.03
    assert [e.number for e in journal(large, small, later, larger).stack] == [1, 4]


def test_a_change_of_a_second_best_line_counts_against_what_it_was_measured_against() -> None:
    won = experiment(1, VerdictKind.ACCEPT, effects=gain(0.05))
    line = undecided(2, 0.01, parent_commit="commit1")
    both = experiment(3, VerdictKind.ACCEPT, effects=gain(0.1), parent_commit="commit2", against="commit1")
    assert [e.number for e in journal(won, line, both).stack] == [1, 3]
