"""Two campaigns side by side at equal budgets, who spent what, and what a campaign learned of each knob."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from simulation import INHERITED, SPEC, Campaign, effect

from feedback.verdict import VerdictKind
from infra_agent import domain
from infra_agent.domain import CampaignSpec, CampaignState, Change, Experiment, Hypothesis, Proposal
from infra_agent.errors import WrongUse
from infra_agent.gains import as_improvement, best_within, follow, spent
from infra_agent.journal import Journal
from infra_agent.planner.trials import Here
from infra_agent.report import CallUse, Side, Versus, compare, render_versus
from infra_agent.report.effort import shares
from infra_agent.report.learned import knob_effects

START = datetime(2026, 1, 1, tzinfo=UTC)


def played(*gains: float, planner: str = "search", sandbox_s: float = 10.0, **fields: Any) -> Side:
    """A campaign whose changes had these confirmed gains, one after the other; 0 is a rejection."""
    simulated = Campaign(SPEC, INHERITED)
    for number, gain in enumerate(gains, 1):
        change = Change(knobs={"threads": number})
        proposal = Proposal(hypothesis=Hypothesis(claim="c"), change=change)
        kind = VerdictKind.ACCEPT if gain else VerdictKind.REJECT
        simulated.record(proposal, kind, effect(1 + gain, 0.99 + gain, 1.01 + gain), sandbox_s=sandbox_s)
    timed = [
        e.model_copy(
            update={"started_at": start, "finished_at": start + timedelta(seconds=sandbox_s + 1), "model_s": 2.0}
        )
        for e in simulated.experiments
        if (start := START + timedelta(hours=e.number))
    ]
    campaign = domain.Campaign(
        id=f"cmp_{planner.replace(':', '_')}", spec=CampaignSpec(target="/t", planner=planner), target_name="t",
        target_toml="", source_commit="s", base_commit="base", host_fingerprint="h", state=CampaignState.COMPLETE,
    )  # fmt: skip
    journal = simulated.journal().model_copy(update={"experiments": tuple(timed)})
    return Side(campaign.model_copy(update=fields), SPEC, journal, "tree")


def test_gains_multiply_along_the_line_and_never_fall() -> None:
    points = follow(played(0.1, 0.0, 0.2).journal)
    assert [round(math.exp(p.best), 3) for p in points] == [1.1, 1.1, 1.32]
    assert [round(math.exp(p.raised), 3) for p in points] == [1.1, 1.0, 1.2]
    assert spent(points, "experiments") == 3
    assert spent(points, "sandbox_s") == 30
    assert spent(points, "wall_s") == 3 * (11 + 2)
    assert best_within(points, "experiments", 0) == 0.0
    assert math.exp(best_within(points, "experiments", 2)) == pytest.approx(1.1)


def test_time_that_ran_at_once_counts_once() -> None:
    first, second, third = played(0.1, 0.0, 0.2).journal.experiments
    at = [(0, 50), (0, 80), (10, 60)]  # started, ended

    def moved(experiment: domain.Experiment, times: tuple[int, int]) -> domain.Experiment:
        started_at, finished_at = (START + timedelta(seconds=s) for s in times)
        return experiment.model_copy(update={"started_at": started_at, "finished_at": finished_at, "model_s": 0.0})

    together = Journal(experiments=tuple(map(moved, (first, second, third), at)))
    assert [p.wall_s for p in follow(together)] == [50, 30, 0]


def test_a_gain_of_time_is_the_part_that_is_saved() -> None:
    assert as_improvement(math.log(1.25), "maximize") == pytest.approx(0.25)
    assert as_improvement(math.log(1.25), "minimize") == pytest.approx(0.2)


def test_the_clever_planner_is_held_against_the_control_at_equal_budgets() -> None:
    clever, chance = played(0.3, 0.1, sandbox_s=20.0), played(0.0, 0.1, 0.0, 0.2, planner="random", sandbox_s=5.0)
    found = compare(clever, chance)
    at = {equal.measure: equal for equal in found.at_equal}
    assert at["experiments"].limit == 2
    assert (at["experiments"].gain, at["experiments"].against_gain) == pytest.approx((0.43, 0.1))
    assert at["experiments"].advantage == pytest.approx(0.3)
    assert at["sandbox_s"].limit == 20  # of random's four experiments; one of search's fits into it
    assert (at["sandbox_s"].gain, at["sandbox_s"].against_gain) == pytest.approx((0.3, 0.32))
    assert at["sandbox_s"].advantage == pytest.approx(1.3 / 1.32 - 1)
    assert at["wall_s"].limit == pytest.approx(4 * 8)
    back = compare(chance, clever)
    assert back.at_equal[0].advantage == pytest.approx(1 / 1.3 - 1)


def test_the_text_says_all_of_it_and_that_one_campaign_is_one_draw() -> None:
    text = render_versus(compare(played(0.3, 0.1), played(0.0, 0.1, planner="random")))
    assert "search (campaign cmp_search, seed 0) against random (campaign cmp_random, seed 0)" in " ".join(text.split())
    rows = [line.split() for line in text.splitlines()]
    assert ["experiments", "2", "+43.0", "%", "+10.0", "%", "+30.0", "%"] in rows
    assert "One campaign of each is one draw" in text
    assert max(map(len, text.splitlines())) <= 100
    stated = json.loads(compare(played(0.3), played(0.1, planner="random")).model_dump_json())
    assert Versus.model_validate(stated).at_equal[0].gain == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"id": "cmp_search"}, "they are one campaign"),
        ({"target_name": "other"}, "their targets differ (t, other)"),
        ({"host_fingerprint": "g"}, "they ran on different hosts (h, g)"),
    ],
)
def test_what_does_not_measure_the_same_is_not_compared(change: dict[str, str], said: str) -> None:
    other = played(0.1, planner="random", **change)
    with pytest.raises(WrongUse) as refused:
        compare(played(0.1), other)
    assert said in str(refused.value)
    assert "two planners started one after the other" in str(refused.value)


def test_another_objective_probe_or_original_is_not_compared() -> None:
    other = played(0.1, planner="random")
    objective = SPEC.objective.model_copy(update={"metric": "request_throughput"})
    with pytest.raises(WrongUse, match=r"objectives differ \(maximize output_throughput, maximize request"):
        compare(played(0.1), other._replace(spec=SPEC.model_copy(update={"objective": objective})))
    probe = SPEC.probes[0].model_copy(update={"worker": ("false",)})
    with pytest.raises(WrongUse, match="probe measures differently"):
        compare(played(0.1), other._replace(spec=SPEC.model_copy(update={"probes": (probe,)})))
    with pytest.raises(WrongUse, match="files differed"):
        compare(played(0.1), other._replace(original="another tree"))


def test_what_made_the_task_another_is_said() -> None:
    spec = SPEC.model_copy(update={"knobs": SPEC.knobs[:-1]})
    found = compare(played(0.1), played(0.1, planner="random", state=CampaignState.STOPPED)._replace(spec=spec))
    assert "Not complete: cmp_random." in found.caveats
    assert "Beside the planner, these differ: knobs." in found.caveats


def by(planner: str, experiment: Experiment, **fields: Any) -> Experiment:
    proposal = experiment.proposal.model_copy(update={"planner": planner})
    return experiment.model_copy(update={"proposal": proposal, **fields})


def test_each_planner_of_a_portfolio_has_its_share() -> None:
    side = played(0.1, 0.0, 0.2, 0.0, planner="portfolio:search,random,llm")
    names = ("search", "random", "search", "llm")
    times = [START + timedelta(minutes=n) for n in range(4)]
    journal = side.journal.model_copy(
        update={
            "experiments": tuple(
                by(n, e, created_at=t) for n, e, t in zip(names, side.journal.experiments, times, strict=True)
            )
        }
    )
    calls = [CallUse(times[2] + timedelta(seconds=5), 900, 1.0), CallUse(times[1] - timedelta(seconds=5), 50, 1.0)]
    found = {share.planner: share for share in shares(side.campaign, SPEC, journal, calls)}
    assert list(found) == ["search", "random", "llm"]
    assert (found["search"].n_experiments, found["search"].n_accepted) == (2, 2)
    assert found["search"].gain == pytest.approx(0.32)
    assert (found["search"].sandbox_s, found["search"].model_s) == (20.0, 4.0)
    assert (found["random"].gain, found["random"].tokens) == (0.0, 0)  # it stopped llm's turn, and asks no model
    assert found["llm"].tokens == 950


def test_one_that_never_proposed_has_an_empty_share_and_its_tokens() -> None:
    side = played(0.1, planner="portfolio:search,llm")
    journal = side.journal.model_copy(update={"experiments": (by("search", side.journal.experiments[0]),)})
    found = shares(side.campaign, SPEC, journal, [CallUse(START, 70, 1.0)])
    assert [(s.planner, s.n_experiments, s.tokens) for s in found] == [("search", 1, 0), ("llm", 0, 70)]


def test_a_campaign_of_one_planner_is_all_its_own() -> None:
    side = played(0.1, 0.0)
    (share,) = shares(side.campaign, SPEC, side.journal, [])
    assert (share.planner, share.n_experiments, share.n_accepted) == ("search", 2, 1)


def test_too_few_measurements_are_called_that() -> None:
    simulated = Campaign(SPEC, INHERITED)
    assert knob_effects(SPEC, simulated.journal(), Here("base", INHERITED), 4) is None
    proposal = Proposal(hypothesis=Hypothesis(claim="c"), change=Change(knobs={"poll": 0}))
    simulated.record(proposal, VerdictKind.INCONCLUSIVE, effect(1.002, 0.99, 1.014))
    found = knob_effects(SPEC, simulated.journal(), Here("base", INHERITED), 4)
    assert found is not None
    assert found.method == ""
    assert "Too little was measured to say which knob matters" in found.caveat
    assert found.caveat.endswith("needs there are 1.")
    assert all(knob.share is None for knob in found.knobs)
    assert next(k for k in found.knobs if k.name == "poll").is_noise


def test_shares_of_knobs_say_what_they_rest_on() -> None:
    side = played(0.1, 0.2)
    found = knob_effects(SPEC, side.journal, Here("commit1", {**INHERITED, "threads": 2}), 4)
    assert found is not None
    assert found.method == "single steps"
    first = found.knobs[0]
    assert (first.name, first.share, first.n_steps) == ("threads", 1.0, 2)
    assert first.best is not None
    assert first.best == pytest.approx((0.2, 0.19, 0.21))
    assert "Never measured: " in found.caveat
