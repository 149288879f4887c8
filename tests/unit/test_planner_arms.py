"""The control arms: random assignments, and independent samples of a model."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from simulation import INHERITED, SPEC, Campaign, among, effect, make_spec, whole

from feedback.verdict import VerdictKind
from infra_agent.domain import CampaignSpec, Change, Experiment, Hypothesis, Proposal, State
from infra_agent.errors import WrongUse
from infra_agent.journal import Journal
from infra_agent.planner import Action, Context, Investigate, Propose, Stop
from infra_agent.planner.best_of_n import ATTEMPTS, BestOfNPlanner
from infra_agent.planner.build import build_planner
from infra_agent.planner.chance import RandomPlanner
from infra_agent.planner.prompt import DIGEST_TOKENS, JOURNAL_TOKENS, LESSONS_TOKENS, campaign
from infra_agent.planner.trials import read_trials
from infra_agent.settings import load_settings


def draws(campaign: Campaign, number: int, seed: int, kind: VerdictKind) -> list[Change]:
    """The next proposals of `random`, each given the same outcome."""
    found = []
    for _ in range(number):
        action = RandomPlanner(seed).next_action(campaign.context())
        assert isinstance(action, Propose), action
        assert action.parent == "base"
        gain = 0.2 if kind is VerdictKind.ACCEPT else -0.2
        campaign.record(action.proposal, kind, effect(1 + gain, 0.99 + gain, 1.01 + gain), parent=action.parent)
        found.append(action.proposal.change)
    return found


def test_random_never_learns_from_a_result_and_always_starts_from_the_original() -> None:
    worse, better = Campaign(SPEC, INHERITED), Campaign(SPEC, INHERITED)
    assert draws(worse, 12, 3, VerdictKind.REJECT) == draws(better, 12, 3, VerdictKind.ACCEPT)
    assert better.knobs != INHERITED  # although another parent was there
    assert {e.parent_commit for e in better.experiments} == {"base"}


def test_random_is_allowed_new_as_the_engine_sees_it_and_fixed_by_the_seed() -> None:
    campaign = Campaign(SPEC, INHERITED)
    changes = draws(campaign, 60, 7, VerdictKind.REJECT)
    trials = read_trials(campaign.context())
    identities = Counter(trials.identity({**INHERITED, **c.knobs}) for c in changes)
    assert max(identities.values()) == 1
    assert trials.identity(INHERITED) not in identities
    assert all(SPEC.refusal({**INHERITED, **c.knobs}) is None for c in changes)
    assert changes != draws(Campaign(SPEC, INHERITED), 60, 8, VerdictKind.REJECT)
    assert changes == draws(Campaign(SPEC, INHERITED), 60, 7, VerdictKind.REJECT)


def test_random_reaches_the_whole_domain_evenly() -> None:
    campaign = Campaign(SPEC, INHERITED)
    changes = draws(campaign, 80, 1, VerdictKind.REJECT)
    flash = Counter(str(c.knobs.get("flash", "auto")) for c in changes)
    assert set(flash) == {"auto", "on", "off"}
    assert max(flash.values()) < 5 * min(flash.values())  # off is not allowed beside a quantized cache
    threads = [int(str(c.knobs["threads"])) for c in changes if "threads" in c.knobs]
    assert min(threads) <= 2
    assert max(threads) >= 24
    assert sum(t <= 5 for t in threads) > len(threads) / 4  # on a logarithmic scale


def test_random_stops_when_everything_was_measured_and_without_knobs() -> None:
    campaign = Campaign(make_spec([among("a", [0, 1], 0, []), among("b", [0, 1], 0, [])]), {"a": 0, "b": 0})
    assert len(draws(campaign, 3, 0, VerdictKind.REJECT)) == 3
    action = RandomPlanner(0).next_action(campaign.context())
    assert isinstance(action, Stop)
    bare = SPEC.model_copy(update={"knobs": (), "moves": (), "controls": ()})
    action = RandomPlanner(0).next_action(Campaign(bare, {}).context())
    assert isinstance(action, Stop)
    assert "--planner llm" in action.reason


class Recorder:
    """A planner that is asked and says what it was told to."""

    def __init__(self, *answers: Action) -> None:
        self.answers = list(answers)
        self.seen: list[Context] = []

    def next_action(self, context: Context) -> Action:
        self.seen.append(context)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


IDEA = Propose(proposal=Proposal(hypothesis=Hypothesis(claim="c"), change=Change(knobs={"threads": 4})))


def campaign_text(context: Context) -> str:
    """What a model is told, with as much of the journal and the signals as fits anywhere."""
    return campaign(context, JOURNAL_TOKENS, LESSONS_TOKENS, DIGEST_TOKENS)


def after_results() -> Context:
    """A context with a baseline, an accepted change whose result is the parent, and an investigation since."""
    campaign = Campaign(SPEC, INHERITED)
    campaign.record(IDEA.proposal, None, None)
    base = campaign.experiments.pop().model_copy(update={"role": "baseline", "commit": "base"})
    campaign.experiments.append(base)
    campaign.record(IDEA.proposal, VerdictKind.ACCEPT, effect(1.2, 1.1, 1.3))
    asked = base.model_copy(update={"id": "i", "number": 2, "role": "investigation", "state": State.COMPLETE})
    campaign.experiments.append(asked)
    context = campaign.context().model_copy(
        update={"digest": "secret result", "lessons": "a secret", "investigations_left": 2}
    )
    assert context.parent_commit == "commit1"
    return context


def test_a_sample_sees_the_original_and_no_result_of_the_campaign() -> None:
    model = Recorder(IDEA)
    action = BestOfNPlanner(model).next_action(after_results())
    assert isinstance(action, Propose)
    assert action.parent == "base"
    (seen,) = model.seen
    assert seen.parent_commit == "base"
    assert seen.knobs == INHERITED
    assert [e.role for e in seen.journal.experiments] == ["baseline", "investigation"]
    assert seen.journal.number_of_changes == 0
    assert seen.digest == ""
    assert seen.experiments_left == 1
    assert "secret" not in campaign_text(seen)


def test_each_sample_asks_differently_and_a_resume_asks_the_same() -> None:
    model = Recorder(IDEA)
    planner, context = BestOfNPlanner(model), after_results()
    planner.next_action(context)
    planner.next_action(context)
    more = Experiment.model_validate({**context.journal.experiments[1].model_dump(), "id": "x", "number": 3})
    planner.next_action(context.model_copy(update={"journal": context.journal.updated(more)}))
    first, again, second = map(campaign_text, model.seen)
    assert first == again
    assert "independent sample 2.1" in first
    assert "independent sample 3.1" in second
    assert "independent sample" not in campaign_text(context)


def test_a_sample_that_stops_is_drawn_again_without_investigations_and_not_for_ever() -> None:
    model = Recorder(Stop(reason="no idea"), IDEA)
    assert isinstance(BestOfNPlanner(model).next_action(after_results()), Propose)
    first, second = model.seen
    assert (first.sample, second.sample) == ("2.1", "2.2")
    assert first.investigations_left == 2
    assert second.investigations_left == 0
    assert [e.role for e in second.journal.experiments] == ["baseline"]
    stopped = BestOfNPlanner(Recorder(Stop(reason="no idea"))).next_action(after_results())
    assert isinstance(stopped, Stop)
    assert f"{ATTEMPTS} independent samples in a row proposed nothing" in stopped.reason
    assert "no idea" in stopped.reason


def test_a_sample_investigates_the_original() -> None:
    action = BestOfNPlanner(Recorder(Investigate(question="q", probe="load"))).next_action(after_results())
    assert isinstance(action, Investigate)
    assert action.parent == "base"


def test_the_best_of_changes_made_beside_each_other_wins_and_not_the_last() -> None:
    campaign = Campaign(SPEC, INHERITED)
    for gain, threads in ((0.1, 4), (0.3, 3), (0.2, 2)):
        proposal = Proposal(hypothesis=Hypothesis(claim="c"), change=Change(knobs={"threads": threads}))
        campaign.record(proposal, VerdictKind.ACCEPT, effect(1 + gain, 0.99 + gain, 1.01 + gain), parent="base")
    journal: Journal = campaign.journal()
    assert journal.best_commit("base") == "commit1"
    assert campaign.knobs["threads"] == 3
    onward = Proposal(hypothesis=Hypothesis(claim="c"), change=Change(knobs={"parallel": 4}))
    campaign.record(onward, VerdictKind.ACCEPT, effect(1.15, 1.1, 1.2), parent="commit2")  # 1.2 * 1.15 > 1.3
    assert campaign.journal().best_commit("base") == "commit3"
    assert [e.commit for e in campaign.journal().stack] == ["commit2", "commit3"]


def test_best_of_n_needs_a_model_and_says_so(tmp_path: Path) -> None:
    settings = load_settings({"INFRA_AGENT_HOME": str(tmp_path)})
    with pytest.raises(WrongUse, match="--planner best-of-n needs a model"):
        build_planner(CampaignSpec(target="t", planner="best-of-n"), settings)


def test_a_range_that_includes_zero_and_less_is_drawn_from() -> None:
    spec = make_spec([{**whole("spin", 0, [], top=1_000_000), "minimum": -8}])
    changes = draws(Campaign(spec, {"spin": 0}), 30, 0, VerdictKind.REJECT)
    values = [int(str(c.knobs["spin"])) for c in changes]
    assert min(values) < 0 < max(values)
    assert all(-8 <= v <= 1_000_000 for v in values)
