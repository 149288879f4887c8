"""Several proposals at once, on a toy with two knobs that gain independently and a check that takes its time: what runs
side by side and what alone, what is combined, and what an interruption in the middle leaves."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from toy_campaign import BENCH, TOP, WORKER, Cli, git, make_target

from infra_agent import commands, experiment as experiments, probes
from infra_agent.domain import COMBINATION, Budget, CampaignSpec, Experiment, State
from infra_agent.errors import ModelUnavailable
from infra_agent.planner import Action, Context
from infra_agent.planner.scripted import ScriptedPlanner, read_script
from infra_agent.settings import Settings, load_settings
from infra_agent.target import load_target
from sandboxes.bubblewrap import probe_host
from sandboxes.sandbox import SandboxError

TARGET = (
    TOP
    + """
[[knobs]]
name = "copies"
description = "How often the work is done"
key = "copies"
minimum = 1
maximum = 64
[[knobs]]
name = "rounds"
description = "How often that is done"
key = "rounds"
minimum = 1
maximum = 8
[[probes]]
name = "check"
kind = "correctness"
method = "command"
command = ["{python}", "-c", "import time; time.sleep(0.5)"]
cost_s = 0.5
"""
    + BENCH.replace("[6, 12]", "[6, 12, 20]")
)
TWO_KNOBS = WORKER.replace(
    'copies = tomllib.load(file).get("copies", 2)',
    'data = tomllib.load(file); copies = data["copies"] * data["rounds"]',
)
SCRIPT = """
[[propose]]
claim = "A quarter of the copies is enough"
knobs = { copies = 4 }
[[propose]]
claim = "Half of the rounds is enough"
knobs = { rounds = 4 }
[[propose]]
claim = "More copies are faster"
knobs = { copies = 32 }
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not probe_host().available, reason="this host refuses a sandbox"),
]


class Toy(NamedTuple):
    """A campaign's target and settings, run in this process."""

    settings: Settings
    target: Path

    def start(self, parallel: int = 2, n: int = 4) -> str:
        planner = f"script:{self.target}/scripts/all.toml"
        budget = Budget(experiments=n)
        spec = CampaignSpec(target=str(self.target), planner=planner, budget=budget, parallel=parallel)
        return commands.start(self.settings, spec).id

    def run(self, campaign: str, planner: Any = None) -> commands.Ran:
        return commands.run(self.settings, campaign, lambda event: None, lambda text: None, planner)

    def changes(self, campaign: str) -> list[Experiment]:
        _, journal = commands.campaign(self.settings, campaign)
        return [e for e in journal.experiments if e.role == "change"]

    def scripted(self) -> ScriptedPlanner:
        spec, _ = load_target(self.target)
        return ScriptedPlanner("all.toml", read_script(self.target / "scripts" / "all.toml", spec))


def make_toy(directory: Path, script: str = SCRIPT) -> Path:
    return make_target(directory, TARGET, script, worker=TWO_KNOBS, launch="rounds = 8\n")


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    return Toy(load_settings({"INFRA_AGENT_HOME": str(tmp_path / "home")}), make_toy(tmp_path / "toy"))


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float, float]]:
    """When probes really ran: name, start, end."""
    found: list[tuple[str, float, float]] = []

    @contextmanager
    def noted(name: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            found.append((name, started, time.monotonic()))

    really = {name: getattr(probes, name) for name in ("_measure", "_run_command")}

    def watched(name: str) -> Any:
        def call(*args: Any) -> Any:
            with noted(name):
                return really[name](*args)

        return call

    for name in really:
        monkeypatch.setattr(probes, name, watched(name))
    return found


def overlap(a: tuple[str, float, float], b: tuple[str, float, float]) -> bool:
    return a is not b and a[1] < b[2] and b[1] < a[2]


def test_checks_run_side_by_side_timed_work_alone_and_two_gains_become_one_stack(
    toy: Toy, spans: list[tuple[str, float, float]], tmp_path: Path
) -> None:
    campaign = toy.start(n=5)
    ran = toy.run(campaign)
    assert ran.campaign.stop_reason == "all 3 proposals of all.toml were tried"

    changes = toy.changes(campaign)
    assert len(changes) == 4, [e.verdict for e in changes]
    first, second, combined, worse = changes
    assert first.proposal.change.knobs == {"copies": 4}
    assert second.proposal.change.knobs == {"rounds": 4}
    assert first.confirmed
    assert second.confirmed
    assert first.parent_commit == second.parent_commit == ran.campaign.base_commit

    assert combined.proposal.planner == COMBINATION
    assert combined.parent_commit == first.commit  # the larger gain
    assert combined.proposal.change.knobs == {"rounds": 4}
    assert combined.proposal.hypothesis.evidence == ("#2", "#1")
    assert combined.confirmed
    # What the planner proposed next joined it: both were measured against the better one.
    assert worse.parent_commit == first.commit
    assert not worse.confirmed

    assert [e.number for e in ran.journal.stack] == [first.number, combined.number]
    assert {e.proposal.hypothesis.claim for e in ran.journal.finished if e.role == "layer"} == {"#1", "#3"}

    commands_, timed = ([s for s in spans if s[0] == name] for name in ("_run_command", "_measure"))
    assert any(overlap(a, b) for a in commands_ for b in commands_)
    assert not [s for s in timed if any(overlap(s, other) for other in spans)]

    files = commands.export(toy.settings, campaign, tmp_path / "session")
    script = next(f for f in files if f.name == "script.toml").read_text()
    assert script.count("[[propose]]") == 3
    assert "on top of it" not in script


def test_two_that_set_one_knob_are_not_combined(toy: Toy) -> None:
    both = SCRIPT.replace("knobs = { rounds = 4 }", "knobs = { copies = 8 }").split("[[propose]]")[:3]
    (toy.target / "scripts" / "all.toml").write_text("[[propose]]".join(both))
    git(toy.target, "commit", "--quiet", "-a", "-m", "one knob")
    campaign = toy.start()
    ran = toy.run(campaign)
    assert [e.confirmed for e in toy.changes(campaign)] == [True, True]
    assert [e.proposal.change.knobs for e in ran.journal.stack] == [{"copies": 4}]


class Down(NamedTuple):
    """A planner whose model can't be reached after its first proposal."""

    planner: ScriptedPlanner

    def next_action(self, context: Context) -> Action:
        if context.journal.waiting:
            raise ModelUnavailable("gone")
        return self.planner.next_action(context)


def test_a_resume_goes_on_gathering_where_the_planner_failed(toy: Toy) -> None:
    campaign = toy.start()
    with pytest.raises(ModelUnavailable):
        toy.run(campaign, Down(toy.scripted()))
    (waiting,) = toy.changes(campaign)
    assert waiting.state is State.WAITING
    toy.run(campaign)
    first, second, *_ = toy.changes(campaign)
    assert first.id == waiting.id
    assert second.parent_commit == first.parent_commit  # it joined the one that waited


def test_a_platform_failure_of_one_leaves_what_the_others_measured(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    campaign = toy.start()
    really = experiments.conduct

    def fails(lab: Any, experiment: Experiment) -> Any:
        if experiment.proposal.change.knobs == {"copies": 4}:
            raise SandboxError("the host is broken")
        return really(lab, experiment)

    monkeypatch.setattr(experiments, "conduct", fails)
    with pytest.raises(Exception, match="the host is broken") as failure:
        toy.run(campaign)
    assert "Nothing was recorded against a change" in str(failure.value)
    first, second = toy.changes(campaign)
    assert first.state is State.RUNNING
    assert first.verdict is None
    assert second.confirmed
    monkeypatch.undo()
    toy.run(campaign)
    assert toy.changes(campaign)[0].confirmed
    assert toy.changes(campaign)[1] == second


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interruption_ends_all_and_a_resume_measures_all_of_them(tmp_path: Path, number: signal.Signals) -> None:
    cli, target = Cli(tmp_path / "home", tmp_path), make_toy(tmp_path / "toy")
    script = f"script:{target}/scripts/all.toml"
    with cli.started("run", str(target), "--planner", script, "--parallel", "3", "--experiments", "3") as running:
        said = running.until(r"#3 screen: check|#1 screen: bench")
        done = running.end(number)
    assert re.search("proposed: A quarter of the copies", said)
    interrupted = [e for e in cli.experiments() if e.role == "change"]
    assert [(e.state, e.verdict) for e in interrupted] == [(State.RUNNING, None)] * 3
    if number is signal.SIGINT:
        assert done.code == 130
    resumed = cli("run", "--resume", "latest", "--json")
    assert resumed.code == 0, resumed.err
    changes = [e for e in cli.experiments() if e.role == "change"]
    assert [e.id for e in changes] == [e.id for e in interrupted]
    assert [e.confirmed for e in changes] == [True, True, False]
    assert not list((tmp_path / "home" / "campaigns").glob("*/temporary"))


def test_who_drives_from_outside_proposes_one_at_a_time(tmp_path: Path) -> None:
    cli, target = Cli(tmp_path / "home", tmp_path), make_toy(tmp_path / "toy")
    refused = cli("run", str(target), "--planner", "external", "--parallel", "2")
    assert refused.code == 2
    assert "leave --parallel out" in refused.err
    assert cli("run", str(target), "--parallel", "0").code == 2
