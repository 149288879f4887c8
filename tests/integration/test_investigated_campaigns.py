"""Investigations, hypotheses that their own probe refutes, second-best lines and stacks, on real workers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from toy_campaign import WORKER, git, make_target

from feedback.signals import Effect, Signal
from feedback.verdict import Verdict, VerdictKind
from infra_agent import commands
from infra_agent.bench import Site
from infra_agent.desk import Desk
from infra_agent.domain import Budget, CampaignSpec, Change, Experiment, Hypothesis, Prediction, Proposal, State
from infra_agent.experiment import conduct, make_candidate
from infra_agent.journal import Journal
from infra_agent.lab import Lab
from infra_agent.loop import context, run_campaign
from infra_agent.planner import Action, Context, Investigate, Propose, Stop
from infra_agent.planner.prompt import campaign as prompt_of
from infra_agent.planner.tools import answer
from infra_agent.policy import SECOND_BEST_EVERY
from infra_agent.settings import load_settings
from infra_agent.store import open_store
from infra_agent.target import load_target
from sandboxes.bubblewrap import probe_host
from sandboxes.workspace import Repository

ROOT = Path(__file__).resolve().parents[2]
TINYSERVE = ROOT / "targets" / "tinyserve"

pytestmark = pytest.mark.skipif(not probe_host().available, reason="this host refuses a sandbox")


class Listed:
    """A planner that does what a list says, and keeps what it was shown."""

    def __init__(self, actions: Sequence[Action]) -> None:
        self.actions = list(actions)
        self.shown: list[Context] = []

    def next_action(self, context: Context) -> Action:
        """The next of the list."""
        self.shown.append(context)
        return self.actions.pop(0)


def desk_of(home: Path, target: Path, planner: Listed, experiments: int = 8) -> Iterator[Desk]:
    """A campaign's desk with this planner instead of the one that it was started with."""
    settings = load_settings({"INFRA_AGENT_HOME": str(home)})
    script = home / "noop.toml"
    home.mkdir(exist_ok=True)
    (home / "x.patch").write_text("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n")
    script.write_text('[[propose]]\nclaim = "nothing"\npatch = "x.patch"\n')
    campaign = commands.start(
        settings, CampaignSpec(target=str(target), planner=f"script:{script}", budget=Budget(experiments=experiments))
    )
    with open_store(settings.database_url) as store:
        desk = commands.make_desk(settings, campaign, store, lambda event: None, lambda text: None, time.monotonic())
        yield desk._replace(planner=planner)


@pytest.mark.slow
def test_questions_about_the_parent_are_answered_with_numbers_by_condition(tmp_path: Path) -> None:
    planner = Listed(
        [
            Investigate(question="Does it scale with the batch?", probe="kda_microbench", params={"batch": (1, 8)}),
            Investigate(question="Where do the instructions go?", probe="kda_instructions"),
            Investigate(question="Does a large key fit?", probe="kda_microbench", params={"k": (100_000,)}),
            Stop(reason="enough"),
        ]
    )
    (desk,) = desk_of(tmp_path / "home", TINYSERVE, planner)
    assert run_campaign(desk) == ("planner", "enough")
    journal = desk.journal()
    asked = [e for e in journal.experiments if e.role == "investigation"]
    assert [e.state for e in asked] == [State.COMPLETE, State.COMPLETE, State.PRUNED]
    assert journal.number_of_changes == 0
    assert sum(e.alpha for e in asked) == 0
    batch = next(s for s in asked[0].signals if s.rule_id == "performance.measured")
    assert [q.name for q in batch.measured] == [
        f"time_s of batch={n} heads=8 k=128 v=128" for n in (1, 8)
    ]  # fmt: skip
    one, eight = (q.value for q in batch.measured)
    assert 3 < eight / one < 25
    hot = next(s for s in asked[1].signals if s.subject == "kda_instructions functions")
    assert "kda_decode_program" in hot.message
    (failed,) = [s for s in asked[2].signals if s.rule_id == "correctness.not_measured"]
    assert "k=100000" in failed.message
    assert "refuses" in failed.message
    # What is told: numbers with their condition, in the answer, in the journal and in the next context.
    assert "batch=8" in answer(asked[0])
    assert "#1 asked kda_microbench: Does it scale" in journal.render()
    assert [c.investigations_left for c in planner.shown] == [6, 5, 4, 3]
    assert planner.shown[-1].journal.before_step().number_of_changes == 0
    assert len(planner.shown[-1].journal.step_investigations) == 3


@pytest.mark.slow
def test_a_hypothesis_that_its_own_cheap_probe_refutes_is_not_measured_further(tmp_path: Path) -> None:
    def proposed(low: float) -> Propose:
        hypothesis = Hypothesis(
            claim="Far fewer instructions", predicted=Prediction(metric="instructions", direction="down", low=low)
        )
        change = Change(patch=(TINYSERVE / "scripts" / "neutral.patch").read_text())
        return Propose(proposal=Proposal(hypothesis=hypothesis, change=change, probe="kda_instructions"))

    planner = Listed([proposed(0.2), Stop(reason="enough")])
    (desk,) = desk_of(tmp_path / "home", TINYSERVE, planner)
    run_campaign(desk)
    (tried,) = [e for e in desk.journal().finished if e.role == "change"]
    assert (tried.state, tried.verdict and tried.verdict.kind) == (State.PRUNED, VerdictKind.REJECT)
    assert tried.verdict is not None
    assert tried.verdict.reasons[0].startswith("kda_instructions refutes it: instructions down 20 % or more: refuted")
    left_behind = {path.name for path in (desk.lab.runs / tried.id).iterdir()}
    assert not any("kda_microbench" in name for name in left_behind)
    assert "refuted" in desk.journal().render()


def undecided(number: int, gain: float, **place: str) -> Experiment:
    """A change whose measurement left the question open."""
    effect = Effect(
        metric="slice_time_s", direction="minimize", baseline=1.0, measured=1 - gain, ratio=1 - gain,
        ratio_lo=1 - gain - 0.05, ratio_hi=1 - gain + 0.05, confidence=0.95, method="t", n_units=5, n_observations=20,
        floor=0.02, floor_known=True,
    )  # fmt: skip
    return Experiment(
        id=f"exp_{number}", campaign_id="c", number=number, role="change", state=State.COMPLETE, effects=(effect,),
        proposal=Proposal(hypothesis=Hypothesis(claim="c"), change=Change(knobs={"extra": number})),
        verdict=Verdict(kind=VerdictKind.INCONCLUSIVE, reasons=("r",)), **place,
    )  # fmt: skip


TWO_KNOBS = WORKER.replace(
    'copies = tomllib.load(file).get("copies", 2)', 'data = tomllib.load(file); copies = data["copies"] + data["extra"]'
)
EXTRA = """
[[knobs]]
name = "extra"
description = "More of the same work"
key = "extra"
minimum = 0
maximum = 64
"""


@pytest.fixture
def two_knobs(tmp_path: Path) -> Path:
    """A target whose work is the sum of two knobs: 8 + 8 at first."""
    target = make_target(tmp_path / "toy")
    text = (target / "target.toml").read_text().replace("slice_target_s = 0.004", "slice_target_s = 0.02")
    (target / "target.toml").write_text(text.replace("[[controls]]", EXTRA + "[[controls]]", 1).split("[[controls]]")[0]
                                        + "[[probes]]" + text.split("[[probes]]")[1])  # fmt: skip
    (target / "worker.py").write_text(TWO_KNOBS)
    (target / "launch.toml").write_text("copies = 8\nextra = 8\n")
    git(target, "commit", "--quiet", "--all", "-m", "two knobs")
    return target


@pytest.mark.slow
def test_a_stack_is_measured_as_a_stack_and_each_layer_by_leaving_it_out(tmp_path: Path, two_knobs: Path) -> None:
    def proposed(**knobs: int) -> Propose:
        return Propose(proposal=Proposal(hypothesis=Hypothesis(claim="less work"), change=Change(knobs=dict(knobs))))

    planner = Listed([proposed(extra=0), proposed(copies=4), Stop(reason="enough")])
    (desk,) = desk_of(tmp_path / "home", two_knobs, planner)
    run_campaign(desk)
    journal = desk.journal()
    assert [e.proposal.change.knobs for e in journal.stack] == [{"extra": 0}, {"copies": 4}]
    (whole,) = [e for e in journal.finished if e.role == "final"]
    shares = {e.proposal.hypothesis.claim: e for e in journal.finished if e.role == "layer"}
    assert set(shares) == {"#1", "#2"}
    # 16 units of work became 4; without the first change it would be 12, without the second 8.
    for experiment, gain in ((whole, 1 - 4 / 16), (shares["#1"], 1 - 4 / 12), (shares["#2"], 1 - 4 / 8)):
        (effect,) = [e for e in experiment.effects if e.metric == "slice_time_s"]
        assert effect.improvement == pytest.approx(gain, abs=0.2)
    assert shares["#1"].effects[0].improvement > shares["#2"].effects[0].improvement


@pytest.mark.slow
def test_a_second_best_line_is_measured_against_the_best(tmp_path: Path, two_knobs: Path) -> None:
    spec, _ = load_target(two_knobs)
    repository, base, _ = Repository.create(tmp_path / "repo", two_knobs, spec.hidden)
    lab = Lab(Site(spec, repository, {}), tmp_path / "runs", None, lambda text: None)

    def experiment(number: int, parent: str, against: str | None, **knobs: int) -> Experiment:
        proposal = Proposal(hypothesis=Hypothesis(claim="c"), change=Change(knobs=dict(knobs)))
        return Experiment(
            id=f"exp_{number}", campaign_id="c", number=number, role="change", state=State.RUNNING,
            parent_commit=parent, against=against, proposal=proposal,
        )  # fmt: skip

    slower = conduct(lab, experiment(1, base, None, extra=9))
    assert slower.commit is not None
    both = conduct(lab, experiment(2, slower.commit, base, copies=1))
    (effect,) = [e for e in both.effects if e.metric == "slice_time_s"]
    assert effect.improvement == pytest.approx(1 - 10 / 16, abs=0.2)  # against 8 + 8, not against 8 + 9


def test_a_planner_is_told_on_which_line_a_step_builds(tmp_path: Path, two_knobs: Path) -> None:
    (desk,) = desk_of(tmp_path / "home", two_knobs, Listed([]))
    spec = desk.campaign.spec.model_copy(update={"planner": "external"})
    desk = desk._replace(campaign=desk.campaign.model_copy(update={"spec": spec}))
    base = desk.campaign.base_commit
    made = make_candidate(desk.lab, base, Proposal(hypothesis=Hypothesis(claim="c"), change=Change(knobs={"extra": 7})))
    assert not isinstance(made, Signal)
    tries = [undecided(1, 0.03, parent_commit=base, commit=made.commit)]
    tries += [undecided(n, -0.1, parent_commit=base, commit=base) for n in range(2, SECOND_BEST_EVERY)]
    told = context(desk, Journal(experiments=tuple(tries)))
    assert told.line.startswith("This step builds on #1, a second-best line: undecided, about +3.0%")
    assert (told.parent_commit, told.knobs["extra"]) == (made.commit, 7)
    assert told.line in prompt_of(told, 1000, 100, 1000)
    first = context(desk, Journal(experiments=tuple(tries[:1])))
    assert (first.line, first.parent_commit) == ("", base)
