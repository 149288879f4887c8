"""The portfolio: who proposes next, who left, and that the journal alone decides it."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pydantic import ValidationError
from simulation import INHERITED, SPEC, Campaign, Interacting, effect, measured, truth

from feedback.verdict import Verdict, VerdictKind
from infra_agent.domain import PLANNERS, CampaignSpec, Change, Hypothesis, Proposal, State, planner_refusal
from infra_agent.planner import Action, Context, Investigate, Planner, Propose, Stop
from infra_agent.planner.build import KINDS, build_planner, portfolio_members
from infra_agent.planner.chance import RandomPlanner
from infra_agent.planner.portfolio import PortfolioPlanner, departed, order
from infra_agent.planner.search import SearchPlanner
from infra_agent.settings import load_settings


class Numbered:
    """Proposes so many changes, as the journal counts them, then stops."""

    def __init__(self, name: str, changes: int) -> None:
        self.name, self.changes, self.asked = name, changes, 0

    def next_action(self, context: Context) -> Action:
        self.asked += 1
        mine = sum(e.proposal.planner == self.name for e in context.journal.experiments)
        if mine >= self.changes:
            return Stop(reason=f"{self.name} has no more")
        change = Change(knobs={"threads": len(context.journal.experiments) + 1})
        return Propose(proposal=Proposal(hypothesis=Hypothesis(claim=self.name), change=change))


def step(campaign: Campaign, planner: Planner, gain: float = 0.0, sandbox_s: float = 10.0) -> str:
    """One experiment with that outcome; returns who proposed it."""
    action = planner.next_action(campaign.context())
    assert isinstance(action, Propose), action
    kind = VerdictKind.ACCEPT if gain > 0 else VerdictKind.REJECT
    found = effect(1 + gain, 0.995 + gain, 1.005 + gain)
    campaign.record(action.proposal, kind, found, parent=action.parent, sandbox_s=sandbox_s)
    return action.proposal.planner


def test_each_member_is_heard_once_in_order_then_the_one_that_gains_most() -> None:
    campaign = Campaign(SPEC, INHERITED)
    planner = PortfolioPlanner({"a": Numbered("a", 99), "b": Numbered("b", 99)})
    who: list[str] = []
    for _ in range(16):
        turn = order(campaign.journal(), ["a", "b"])[0]
        who.append(step(campaign, planner, 0.1 if turn == "b" and who.count("b") < 3 else 0.0))
    assert who[:5] == ["a", "b", "b", "b", "b"]
    assert who.count("b") > who.count("a") >= 3  # it is not given up for ever


def test_gain_counts_per_cost() -> None:
    campaign = Campaign(SPEC, INHERITED)
    planner = PortfolioPlanner({"dear": Numbered("dear", 99), "cheap": Numbered("cheap", 99)})
    who = []
    for _ in range(12):
        turn = order(campaign.journal(), ["dear", "cheap"])[0]
        who.append(step(campaign, planner, 0.05, 100.0 if turn == "dear" else 5.0))
    assert who.count("cheap") > who.count("dear") * 3


def test_a_gain_beside_the_best_counts_only_as_far_as_it_raises_it() -> None:
    campaign = Campaign(SPEC, INHERITED)

    def propose(name: str, threads: int, gain: float) -> None:
        change = Change(knobs={"threads": threads})
        proposal = Proposal(hypothesis=Hypothesis(claim="c"), change=change, planner=name)
        campaign.record(proposal, VerdictKind.ACCEPT, effect(1 + gain, 1 + gain, 1 + gain), parent="base")

    propose("a", 4, 0.3)
    propose("b", 3, 0.2)  # confirmed over the original, but no news
    assert order(campaign.journal(), ["b", "a"]) == ["a", "b"]


def test_one_that_stops_leaves_and_the_last_ends_the_campaign_with_every_reason() -> None:
    campaign = Campaign(SPEC, INHERITED)
    short, long = Numbered("short", 2), Numbered("long", 5)
    planner = PortfolioPlanner({"short": short, "long": long})
    for _ in range(7):
        step(campaign, planner)
    asked = short.asked
    action = planner.next_action(campaign.context())
    assert isinstance(action, Stop)
    assert "short: short has no more" in action.reason
    assert "long: long has no more" in action.reason
    assert short.asked - asked <= 1


def test_none_leaves_while_proposals_wait_to_be_measured() -> None:
    """It may have something to propose once it sees what became of them, and the journal says so later, too."""
    campaign = Campaign(SPEC, INHERITED)
    short, long = Numbered("short", 1), Numbered("long", 9)
    planner = PortfolioPlanner({"short": short, "long": long})
    start = datetime(2026, 1, 1, tzinfo=UTC)
    for n in range(3):  # all three are proposed before any is measured
        action = planner.next_action(campaign.context())
        assert isinstance(action, Propose)
        campaign.record(action.proposal, None, None, state=State.WAITING)
        proposed = campaign.experiments[-1].model_copy(update={"created_at": start + timedelta(seconds=n)})
        campaign.experiments[-1] = proposed
    assert [e.proposal.planner for e in campaign.experiments] == ["short", "long", "long"]
    verdict = Verdict(kind=VerdictKind.REJECT, reasons=("r",))
    ended = {"state": State.COMPLETE, "verdict": verdict, "finished_at": start + timedelta(minutes=1)}
    campaign.experiments = [e.model_copy(update=ended) for e in campaign.experiments]
    assert departed(campaign.journal(), ("short", "long")) == {}
    short.changes = 2  # the outcomes gave it an idea
    asked = short.asked
    order_now = order(campaign.journal(), ["short", "long"])
    action = planner.next_action(campaign.context())
    assert isinstance(action, Propose)
    assert action.proposal.planner == order_now[0]
    assert order_now[0] == "short"
    assert short.asked == asked + 1


def test_a_resumed_campaign_knows_from_the_journal_who_left() -> None:
    campaign = Campaign(SPEC, INHERITED)
    planner = PortfolioPlanner({"short": Numbered("short", 1), "long": Numbered("long", 9)})
    for _ in range(6):
        step(campaign, planner)
    gone = departed(campaign.journal(), ("short", "long"))
    assert list(gone) == ["short"]
    short, long = Numbered("short", 99), Numbered("long", 6)  # short would have new ideas by now
    resumed = PortfolioPlanner({"short": short, "long": long})
    action = resumed.next_action(campaign.context())
    assert isinstance(action, Propose)
    assert action.proposal.planner == "long"
    assert short.asked == 0
    step(campaign, resumed)
    action = resumed.next_action(campaign.context())
    assert isinstance(action, Stop)
    assert f"short: left before experiment {gone['short']}" in action.reason


def test_a_resume_at_any_moment_proposes_the_same() -> None:
    surface, campaign = Interacting(5), Campaign(SPEC, INHERITED)

    def fresh() -> PortfolioPlanner:
        return PortfolioPlanner({"search": SearchPlanner(5), "random": RandomPlanner(5)})

    draw, going = random.Random(5), fresh()
    names = []
    for _ in range(14):
        action = going.next_action(campaign.context())
        assert action == fresh().next_action(campaign.context())
        assert isinstance(action, Propose)
        names.append(action.proposal.planner)
        parent = campaign.at[action.parent or campaign.commit]
        gain = truth(surface, {**parent, **action.proposal.change.knobs}) - truth(surface, parent)
        campaign.record(action.proposal, *measured(gain, draw), parent=action.parent)
    assert set(names) == {"search", "random"}
    assert names.count("search") > names.count("random")


def test_who_asked_a_question_is_asked_again_when_its_answer_is_there() -> None:
    class Asking:
        def next_action(self, context: Context) -> Action:
            if context.journal.step_investigations:
                change = Change(knobs={"threads": 5})
                return Propose(proposal=Proposal(hypothesis=Hypothesis(claim="c"), change=change))
            return Investigate(question="q", probe="load")

    campaign = Campaign(SPEC, INHERITED)
    planner = PortfolioPlanner({"a": Numbered("a", 99), "asking": Asking()})
    step(campaign, planner)
    action = planner.next_action(campaign.context())
    assert isinstance(action, Investigate)
    assert action.planner == "asking"
    asked = campaign.experiments[0].model_copy(
        update={
            "id": "i", "number": 1, "role": "investigation", "sandbox_s": 1e6,
            "proposal": Proposal(hypothesis=Hypothesis(claim="q"), change=Change(), planner="asking"),
        }
    )  # fmt: skip
    campaign.experiments.append(asked)
    assert step(campaign, planner) == "asking"
    assert step(campaign, planner) == "a"  # now what the question cost counts


def test_the_members_are_named_or_all_that_need_nothing(tmp_path: Path) -> None:
    bare = load_settings({"INFRA_AGENT_HOME": str(tmp_path)})
    model = load_settings({"INFRA_AGENT_HOME": str(tmp_path), "INFRA_AGENT_MODEL": "m", "OPENAI_API_KEY": "k"})
    assert "llm" not in portfolio_members("portfolio", bare)
    assert portfolio_members("portfolio", bare)[0] == "search"
    assert "random" in portfolio_members("portfolio", bare)
    assert portfolio_members("portfolio", model)[-1] == "llm"
    assert portfolio_members("portfolio:random,search", bare) == ("random", "search")
    built = build_planner(CampaignSpec(target="t", planner="portfolio:random,search"), bare)
    assert isinstance(built, PortfolioPlanner)


@pytest.mark.parametrize(
    "planner",
    [
        "portfolio:",
        "portfolio:search,search",
        "portfolio:portfolio",
        "portfolio:magic",
        "portfolio:script:x",
        "magic",
        "",
    ],
)  # fmt: skip
def test_a_portfolio_of_what_is_none_is_refused_with_what_there_is(planner: str) -> None:
    with pytest.raises(ValidationError, match="llm, search"):
        CampaignSpec(target="t", planner=planner)


def test_every_kind_is_known_to_the_request_and_to_the_builder() -> None:

    assert set(KINDS) == {*PLANNERS, "script"}
    assert all(planner_refusal(kind) is None for kind in (*PLANNERS, "script:x.toml", "portfolio:search,random"))
