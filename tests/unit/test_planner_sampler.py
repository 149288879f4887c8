"""Joint changes by TPE, knobs that are only noise, and what each knob explains."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from collections import Counter

import pytest
from simulation import (
    INHERITED,
    SPEC,
    Campaign,
    Coupled,
    Interacting,
    Separable,
    among,
    effect,
    in_force,
    make_spec,
    measured,
    truth,
    whole,
)  # fmt: skip

from feedback.observations import Scalar
from feedback.signals import HostLocation, Signal
from feedback.verdict import VerdictKind
from infra_agent.domain import Change, Hypothesis, Proposal
from infra_agent.planner import Propose, Stop
from infra_agent.planner.importance import ENOUGH_TRIALS, importance
from infra_agent.planner.sampler import ASKS, axis, draw, ladder, make_study
from infra_agent.planner.search import PATIENCE, SAMPLED, SearchPlanner
from infra_agent.planner.trials import Knobs, read_trials
from infra_agent.target import TargetSpec

WORTH = math.log1p(0.02)


def tell(
    campaign: Campaign, change: Knobs | Proposal, gain: float, kind: VerdictKind | None = None, role: str = "",
    parent: str = "",
) -> None:  # fmt: skip
    """Measure a change by hand; `role` names a gate or guardrail that it broke."""
    broken = Signal.model_validate(
        {"rule_id": "t.b", "level": "error", "finding": "violates", "role": role, "message": "m",
         "locations": (HostLocation(),)}
    ) if role else None  # fmt: skip
    if not isinstance(change, Proposal):
        change = Proposal(hypothesis=Hypothesis(claim="c"), change=Change(knobs=change))
    kind = kind or (VerdictKind.INCONCLUSIVE if gain > 0 and not role else VerdictKind.REJECT)
    found = effect(1 + gain, 1 + gain - 0.004, 1 + gain + 0.004)
    campaign.record(change, kind, found, signals=(broken,) if broken else (), parent=parent)


def played(surface: Coupled | Interacting | Separable, experiments: int, seed: int) -> Campaign:
    """A simulated campaign of `search`."""

    noise, campaign = random.Random(seed), Campaign(SPEC, INHERITED)
    for _ in range(experiments):
        action = SearchPlanner(seed).next_action(campaign.context())
        if isinstance(action, Stop):
            break
        assert isinstance(action, Propose)
        gain = truth(surface, {**campaign.knobs, **action.proposal.change.knobs}) - truth(surface, campaign.knobs)
        campaign.record(action.proposal, *measured(gain, noise))
    return campaign


@pytest.mark.parametrize(
    ("low", "high", "values"),
    [(1, 4, [1, 2, 3, 4]), (1, 40, [1, 2, 3, 4, 6, 8, 12, 16, 32, 40]), (100, 101, [100, 101]), (5, 5, [5])],
)
def test_a_ladder_goes_from_the_least_to_the_greatest_value(low: int, high: int, values: list[int]) -> None:
    (knob,) = make_spec([{**whole("k", None, [], top=high), "minimum": low}]).knobs
    assert ladder(knob) == values


def test_a_ladder_crosses_zero_evenly() -> None:
    (knob,) = make_spec([{**whole("k", None, [], top=4), "minimum": -4}]).knobs
    assert ladder(knob) == [-4, -3, -2, -1, 0, 1, 2, 3, 4]


def test_an_axis_holds_what_was_measured_and_what_the_engine_chooses_itself() -> None:
    spec = make_spec([whole("known", "cores", [7]), whole("unknown", None, [7]), among("word", ["a", "b"], "a", [])])
    campaign = Campaign(spec, {"known": None, "unknown": None, "word": "a"})
    tell(campaign, {"known": 11}, -0.1)
    trials = read_trials(campaign.context())
    known, unknown, word = (axis(knob, trials, campaign.knobs[knob.name]) for knob in spec.knobs)
    assert known.is_ordered
    assert {4, 7, 11} <= set(known.values)
    assert None not in known.values  # the engine's default is 4 here
    assert not unknown.is_ordered
    assert None in unknown.values
    assert (word.is_ordered, word.values) == (False, ("a", "b"))


def test_true_and_one_have_places_of_their_own() -> None:
    spec = make_spec([among("mode", [True, 1, "on"], 1, [])])
    found = axis(spec.knobs[0], read_trials(Campaign(spec, {"mode": 1}).context()), 1)
    assert found.place(True) != found.place(1)
    assert found.place("off") is None


TWO = make_spec([among("a", list(range(12)), 0, []), among("b", list(range(12)), 0, [])])


def test_draws_follow_what_was_good_and_are_the_same_for_the_same_journal() -> None:
    campaign = Campaign(TWO, {"a": 0, "b": 0})
    for a in range(0, 12, 2):
        for b in range(0, 12, 3):
            tell(campaign, {"a": a, "b": b}, 0.3 if a >= 8 and b >= 6 else -0.2)
    trials = read_trials(campaign.context())
    axes = [axis(knob, trials, 0) for knob in TWO.knobs]
    first = list(draw(axes, campaign.knobs, trials, 5))
    assert first == list(draw(axes, campaign.knobs, trials, 5))
    assert first != list(draw(axes, campaign.knobs, trials, 6))
    assert len(first) == ASKS
    assert all(int(str(k["a"])) >= 7 and int(str(k["b"])) >= 5 for k in first[:1])
    assert len({tuple(k.values()) for k in first}) > ASKS / 4  # a draw that was not taken is not drawn on and on


def test_what_broke_a_gate_or_a_guardrail_is_infeasible_however_fast() -> None:
    campaign = Campaign(TWO, {"a": 0, "b": 0})
    for b in range(12):
        tell(campaign, {"a": 11, "b": b}, 0.5, role="guardrail")
        tell(campaign, {"a": 2, "b": b}, 0.02)
        tell(campaign, {"a": 6, "b": b}, -0.05)
    trials = read_trials(campaign.context())
    axes = [axis(knob, trials, 0) for knob in TWO.knobs]
    study = make_study(axes, trials, 0)
    assert study.best_trial.params["a"] == 2
    near = Counter(min((11, 2, 6), key=lambda peak: abs(peak - int(str(k["a"])))) for k in draw(axes, {}, trials, 0))
    assert near[2] > near[11]


def exhausted(spec: TargetSpec, knobs: Knobs) -> Campaign:
    """A campaign whose single steps are used up without a gain; `noise` knobs did nothing at all."""
    campaign = Campaign(spec, knobs)
    for _ in range(60):
        action = SearchPlanner(0, ("local",)).next_action(campaign.context())
        if isinstance(action, Stop):
            return campaign
        assert isinstance(action, Propose)
        idle = all(name.startswith("noise") for name in action.proposal.change.knobs)
        tell(campaign, action.proposal, 0.001 if idle else -0.05)
    raise AssertionError("the steps never end")


def joint(campaign: Campaign) -> list[dict[str, Scalar | None]]:
    """All further proposals, each measured as worse."""
    found = []
    while isinstance(action := SearchPlanner(0).next_action(campaign.context()), Propose):
        assert action.proposal.hypothesis.mechanism.startswith(SAMPLED)
        found.append(action.proposal.change.knobs)
        tell(campaign, action.proposal, -0.06)
        assert len(found) < 100
    return found


def test_a_knob_within_the_noise_floor_waits_until_the_others_are_explored() -> None:
    names = ("a", "b", "c", "noise")
    campaign = exhausted(make_spec([among(n, [0, 1, 2, 3], 0, [1]) for n in names]), dict.fromkeys(names, 0))
    found = joint(campaign)
    before, after = found[:PATIENCE], found[PATIENCE:]
    assert len(before) == PATIENCE
    assert not any("noise" in knobs for knobs in before)
    assert any("noise" in knobs for knobs in after)
    assert len(found) == 2 * PATIENCE


def test_joint_changes_are_of_several_knobs_allowed_and_never_measured_before() -> None:
    needs = [{"values": [2, 3], "requires": {"b": [1]}}]
    spec = make_spec([{**among("a", [0, 1, 2, 3], 0, [1]), "conditions": needs}, among("b", [0, 1, 2], 0, [1])])
    campaign = exhausted(spec, {"a": 0, "b": 0})
    found = joint(campaign)
    assert found
    assert all(len(knobs) == 2 and spec.refusal({"a": 0, "b": 0, **knobs}) is None for knobs in found)
    assert len({tuple(sorted(k.items(), key=str)) for k in found}) == len(found)


def test_no_joint_change_holds_a_value_that_broke_a_gate_by_itself() -> None:
    spec = make_spec([among(n, [0, 1, 2], 0, [1]) for n in "abc"])
    campaign = Campaign(spec, dict.fromkeys("abc", 0))
    tell(campaign, {"a": 1}, 0.3, role="gate")
    while isinstance(action := SearchPlanner(0).next_action(campaign.context()), Propose):
        if len(action.proposal.change.knobs) > 1:
            assert action.proposal.change.knobs.get("a") != 1
        tell(campaign, action.proposal, -0.05)
    assert isinstance(action, Stop)
    assert len(campaign.experiments) > 10


def test_an_acceptance_makes_it_patient_again() -> None:
    campaign = exhausted(make_spec([among(n, [0, 1, 2, 3], 0, [1]) for n in "abcd"]), dict.fromkeys("abcd", 0))
    for turn in range(PATIENCE):
        action = SearchPlanner(0).next_action(campaign.context())
        assert isinstance(action, Propose)
        kind = VerdictKind.ACCEPT if turn == PATIENCE - 1 else VerdictKind.REJECT
        tell(campaign, action.proposal, 0.2 if turn == PATIENCE - 1 else -0.06, kind)
    assert isinstance(SearchPlanner(0).next_action(campaign.context()), Propose)


def test_single_steps_say_what_a_knob_explains_and_noise_has_no_share() -> None:
    campaign = Campaign(SPEC, INHERITED)
    tell(campaign, {"threads": 4}, 0.3, VerdictKind.ACCEPT)
    tell(campaign, {"threads": 2}, -0.1)
    tell(campaign, {"poll": 0}, 0.06)
    tell(campaign, {"flash": "on"}, 0.004)
    tell(campaign, {"batch": 4096, "ubatch": 1024}, -0.2)
    found = {i.name: i for i in importance(SPEC, read_trials(campaign.context()), WORTH)}
    assert list(found)[:2] == ["threads", "poll"]
    assert sum(i.share or 0 for i in found.values()) == pytest.approx(1)
    assert found["threads"].spread == pytest.approx(math.log(1.3), abs=0.01)
    assert found["threads"].best is not None
    assert found["threads"].best.estimate == pytest.approx(math.log(1.3))
    assert found["flash"].is_noise
    assert found["flash"].share == 0
    assert (found["batch"].n_steps, found["batch"].n_trials) == (0, 1)
    assert all(i.ped_anova is None for i in found.values())


def test_with_enough_random_assignments_ped_anova_finds_the_knob_that_matters() -> None:
    spec = make_spec([among(n, list(range(8)), 0, []) for n in "abcd"])
    campaign = Campaign(spec, dict.fromkeys("abcd", 0))

    stream = random.Random(1)
    for number in range(ENOUGH_TRIALS + 10):
        knobs: Knobs = {n: stream.randrange(1, 8) for n in "abcd"}
        tell(campaign, knobs, 0.05 * int(str(knobs["b"])) - 0.2, parent="base")
        found = importance(spec, read_trials(campaign.context()), WORTH)
        assert (found[0].ped_anova is None) == (number + 1 < ENOUGH_TRIALS)
    assert found[0].name == "b"
    assert all(i.share is None for i in found)
    assert sum(i.ped_anova or 0 for i in found) == pytest.approx(1)


def test_in_campaigns_of_search_the_largest_share_is_that_of_a_knob_that_matters() -> None:
    right = 0
    for seed in range(6):
        surface = Separable(seed)
        campaign = played(surface, 25, seed)
        found = importance(SPEC, read_trials(campaign.context()), WORTH)
        reach = {}
        for knob in SPEC.knobs:
            values: list[float] = []
            for value in knob.choices or (1, 2, 4, 8, 16):
                values.append(surface.part(in_force([knob.name], {knob.name: value})))
            reach[knob.name] = max(values) - min(values)
        right += found[0].name in sorted(reach, key=lambda n: -reach[n])[:3]
    assert right >= 5


def test_optuna_is_loaded_only_when_it_draws() -> None:
    code = "import sys, infra_agent.planner.search, infra_agent.report; sys.exit('optuna' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
