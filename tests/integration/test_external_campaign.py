"""Campaigns that someone outside plans, through the command line: asked and told, cut off, replayed."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from toy_campaign import Cli, Done, make_target

from infra_agent import commands
from infra_agent.domain import Experiment, State
from infra_agent.settings import load_settings
from sandboxes.bubblewrap import probe_host

pytestmark = pytest.mark.skipif(not probe_host().available, reason="this host refuses a sandbox")

STOP = {
    "tool": "stop",
    "arguments": {"reason": "enough was learned", "left": {"launch parameters": "one knob is all"}},
}


def propose(copies: int, claim: str = "Fewer copies are less work") -> dict[str, Any]:
    return {
        "tool": "propose",
        "arguments": {
            "claim": claim, "mechanism": "Each copy does the work again.", "location": "copies",
            "question": "Is it faster?", "evidence": ["copies"], "falsifier": "The time stays.",
            "predicted": {"metric": "slice_time_s", "direction": "down", "low": 0.2, "high": 0.95},
            "lever_family": "launch parameters", "knobs": {"copies": copies},
        },
    }  # fmt: skip


ASK = {"tool": "investigate", "arguments": {"question": "How long does a slice take?", "probe": "bench"}}


class Outside:
    """Someone who plans a campaign of the toy target."""

    def __init__(self, directory: Path, target: Path) -> None:
        self.cli, self.directory, self.target = Cli(directory / "home", directory), directory, target

    def start(self, *budget: str) -> Done:
        started = self.cli("run", str(self.target), "--planner", "external", *budget, "--json")
        assert started.code == 0, started.err
        return started

    def file(self, *calls: dict[str, Any]) -> str:
        path = self.directory / "calls.json"
        path.write_text(json.dumps(calls[0] if len(calls) == 1 else calls))
        return str(path)

    def tell(self, *calls: dict[str, Any]) -> Done:
        return self.cli("tell", "latest", self.file(*calls), "--json")

    def numbered(self) -> list[tuple[int, str, State]]:
        return [(e.number, e.role, e.state) for e in self.cli.experiments()]

    def elapsed_s(self) -> float:
        settings = load_settings({"INFRA_AGENT_HOME": str(self.cli.home)})
        return commands.campaign(settings, "latest")[0].elapsed_s


class Begun(NamedTuple):
    """A campaign that waits for its first call."""

    outside: Outside
    report: Any


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Begun:
    directory = tmp_path_factory.mktemp("begun")
    outside = Outside(directory, make_target(directory / "toy"))
    return Begun(outside, outside.start().json)


@pytest.fixture
def outside(begun: Begun, tmp_path: Path) -> Outside:
    """A copy of it."""
    shutil.copytree(begun.outside.cli.home, tmp_path / "home", symlinks=True)
    return Outside(tmp_path, begun.outside.target)


def test_it_waits_with_a_baseline_and_says_how_to_be_driven(begun: Begun, outside: Outside) -> None:
    report = begun.report
    assert report["state"] == "waiting"
    assert [e.role for e in outside.cli.experiments()] == ["baseline"]
    assert any(f"infra-agent ask {report['campaign']}" in line for line in report["next"])
    assert any(f"infra-agent tell {report['campaign']} FILE" in line for line in report["next"])
    assert [row["state"] for row in outside.cli("list", "--json").json["campaigns"]] == ["waiting"]
    shown = outside.cli("show", "latest")
    assert "waiting for its planner" in shown.out
    resumed = outside.cli("run", "--resume", "latest", "--json")  # nothing to take up: it waits on
    assert (resumed.code, resumed.json["state"], len(outside.cli.experiments())) == (0, "waiting", 1)


def test_ask_shows_what_a_planner_is_shown(outside: Outside) -> None:
    asked = outside.cli("ask", "--json")
    assert asked.code == 0
    told = asked.json
    assert {tool["function"]["name"] for tool in told["tools"]} >= {"read_file", "investigate", "propose", "stop"}
    for part in ("# Target: toy", "copies [launch parameters]: 16", "Left: 20 experiments, 6 investigations"):
        assert part in told["text"], part
    assert "You never measure and never judge" in told["instructions"]
    assert str(outside.directory) not in told["text"]
    assert "infra-agent tell" in outside.cli("ask").out


def test_a_whole_session_and_its_replay(outside: Outside, tmp_path: Path) -> None:
    read = outside.tell({"tool": "read_file", "arguments": {"path": "worker.py"}})
    assert (read.code, "tomllib" in read.json["answers"][0]["answer"]) == (0, True)
    asked = outside.tell(ASK)
    assert (asked.code, asked.json["answers"][0]["experiment"]) == (0, 1), asked.err
    assert "performance.measured" in asked.json["text"]
    worse = outside.tell(propose(32, "More copies are faster"))
    assert (worse.code, worse.json["answers"][0]["verdict"]) == (0, "reject")
    assert "prediction: slice_time_s down 20 % to 95 %: refuted" in worse.json["text"]
    refused = outside.tell(propose(32, "More copies are faster"))
    assert refused.code == 2
    assert "was tried as experiment 2 (reject)" in refused.json["text"]
    better = outside.tell({"tool": "read_journal", "arguments": {}}, propose(1))
    assert (better.code, better.json["state"]) == (0, "waiting")
    assert better.json["answers"][1]["confirmed"]
    assert "Left: 18 experiments, 6 investigations in this step" in better.json["text"]
    stopped = outside.tell(STOP)
    assert (stopped.code, stopped.json["state"], stopped.json["ended_by"]) == (0, "complete", "planner")
    assert [c["against"] for c in stopped.json["report"]["comparisons"]][1:] == ["engine-defaults"]
    assert outside.tell(ASK).code == outside.cli("ask").code == 2
    before = proposals(outside.cli.experiments())

    exported = outside.cli("export", "latest", "-o", str(tmp_path / "out"), "--json")
    assert exported.code == 0, exported.err
    transcript = (tmp_path / "out" / "transcript.md").read_text()
    for part in ("### propose (refused)", "was tried as experiment 2", "How long does a slice take?", "**reject**"):
        assert part in transcript, part
    for path in (tmp_path / "out").iterdir():
        assert str(outside.directory) not in path.read_text()
        assert str(Path(sys.prefix)) not in path.read_text()

    script = f"script:{tmp_path / 'out' / 'script.toml'}"
    replay = outside.cli("run", str(outside.target), "--planner", script, "--json")
    assert replay.code == 0, replay.err
    assert proposals(outside.cli.experiments()) == before
    assert [t["outcome"] for t in replay.json["tried"]] == ["reject", "accept"]


def proposals(experiments: tuple[Experiment, ...]) -> list[tuple[str, Any]]:
    """What was asked for, in order."""
    return [(e.role, e.proposal) for e in experiments if e.role in ("change", "investigation")]


def test_a_refusal_costs_nothing_and_is_2(outside: Outside) -> None:
    before, spent = outside.numbered(), outside.elapsed_s()
    told = outside.tell(propose(99))
    assert told.code == 2
    assert "99 is outside 1..64" in told.json["text"]
    assert outside.tell({"tool": "nonsense"}).code == 2
    assert outside.tell({"tool": "investigate", "arguments": {"question": "?", "probe": "none"}}).code == 2
    plain = outside.cli("tell", "latest", outside.file(propose(99)))
    assert plain.out.startswith("propose: Refused: copies = 99 is outside 1..64")
    assert (outside.numbered(), outside.elapsed_s()) == (before, spent)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'{"tool": 3}'])
def test_a_broken_file_is_wrong_use(outside: Outside, content: bytes) -> None:
    path = outside.directory / "broken.json"
    path.write_bytes(content)
    done = outside.cli("tell", "latest", str(path), "--json")
    assert done.code == 2
    assert "broken.json" in done.json["error"]["message"]
    missing = outside.cli("tell", "latest", "no-such-file")
    assert missing.code == 2
    assert "no-such-file" in missing.err


def test_the_budget_ends_it_as_it_ends_any_campaign(tmp_path: Path) -> None:
    outside = Outside(tmp_path, make_target(tmp_path / "toy"))
    outside.start("--experiments", "1")
    told = outside.tell(propose(32), propose(1))
    assert (told.code, told.json["state"], told.json["ended_by"]) == (2, "complete", "budget")
    assert [a["refused"] for a in told.json["answers"]] == [False, True]
    assert "the budget of 1 experiments is used up" in told.json["answers"][1]["answer"]
    extended = outside.cli("run", "--resume", "latest", "--experiments", "2", "--json")
    assert extended.json["state"] == "waiting"
    last = outside.tell(propose(48))
    assert (last.code, last.json["ended_by"]) == (3, "budget")
    assert last.json["report"]["n_accepted"] == 0


def test_only_an_external_campaign_is_told(tmp_path: Path) -> None:
    cli, target = Cli(tmp_path / "home", tmp_path), make_target(tmp_path / "toy")
    assert cli("run", str(target), "--planner", "script:scripts/all.toml", "--experiments", "1").code == 3
    for command in (["ask"], ["tell", "latest", "-"]):
        done = cli(*command)
        assert done.code == 2
    assert "is planned by script; only one that was started with --planner external" in cli("ask").err


@pytest.mark.parametrize("then", ["ask", "tell", "again", "resume"])
def test_a_kill_during_a_tell_is_taken_up_and_nothing_is_paid_twice(outside: Outside, then: str) -> None:
    with outside.cli.started("tell", "latest", outside.file(propose(1))) as running:
        running.until("experiment 1 of 20")
        running.until("screen: bench")
        running.end(signal.SIGKILL)
    assert outside.numbered()[-1] == (1, "change", State.RUNNING)
    if then == "ask":
        asked = outside.cli("ask", "--json")
        assert asked.code == 0, asked.err
        assert "taken up: propose: experiment #1: accept, confirmed" in asked.err
        assert "#1 accept" in asked.json["text"]
    elif then == "tell":  # something else: it comes after
        told = outside.tell({"tool": "read_journal", "arguments": {"number": 1}})
        assert [a["tool"] for a in told.json["answers"]] == ["propose", "read_journal"]
    elif then == "again":
        told = outside.tell(propose(1))
        assert told.code == 0, told.out
        assert [(a["experiment"], a["confirmed"]) for a in told.json["answers"]] == [(1, True)]
    else:
        resumed = outside.cli("run", "--resume", "latest", "--json")
        assert resumed.json["n_accepted"] == 1, resumed.out
    assert outside.numbered() == [(0, "baseline", State.COMPLETE), (1, "change", State.COMPLETE)]
    refused = outside.tell(propose(1))
    assert "this changes nothing" in refused.json["text"]
    assert len(outside.cli.experiments()) == 2


def test_a_kill_in_the_conclusion_is_taken_up_to_the_end(outside: Outside) -> None:
    assert outside.tell(propose(4)).json["answers"][0]["confirmed"]
    with outside.cli.started("tell", "latest", outside.file(STOP)) as running:
        running.until("against the control arm")
        running.end(signal.SIGKILL)
    asked = outside.cli("ask")
    assert asked.code == 2
    assert "is complete" in asked.err
    shown = outside.cli("show", "latest", "--json").json
    assert (shown["state"], shown["stop_reason"]) == (
        "complete",
        "enough was learned; launch parameters: one knob is all",
    )
    assert outside.numbered()[-1] == (2, "control", State.COMPLETE)
    assert len(outside.numbered()) == 3


def test_ctrl_c_during_a_tell_leaves_it_to_be_taken_up(outside: Outside) -> None:
    with outside.cli.started("tell", "latest", outside.file(propose(1))) as running:
        running.until("screen: bench")
        done = running.end(signal.SIGINT)
    assert done.code == 130
    assert "infra-agent ask cmp_" in done.err
    assert outside.cli("list", "--json").json["campaigns"][0]["state"] == "stopped"
    assert outside.tell(propose(1)).json["answers"][0]["confirmed"]


def test_two_tells_at_once(outside: Outside) -> None:
    """The second is refused, by the lock and not by chance; who only reads is not in the way."""
    with outside.cli.started("tell", "latest", outside.file(propose(1)), "--json") as running:
        running.until("screen: bench")
        running.process.send_signal(signal.SIGSTOP)
        try:
            second = outside.tell(ASK)
            read = outside.tell({"tool": "list_files", "arguments": {}})
            asked = outside.cli("ask")
        finally:
            running.process.send_signal(signal.SIGCONT)
        out, _ = running.process.communicate(timeout=120)
    assert second.code == asked.code == 2
    assert f"is being run by process {running.process.pid}" in second.json["error"]["message"]
    assert f"is being run by process {running.process.pid}" in asked.err
    assert (read.code, "worker.py" in read.json["text"]) == (0, True)
    assert json.loads(out.splitlines()[-1])["answers"][0]["experiment"] == 1
    assert [n for n, _, _ in outside.numbered()] == [0, 1]
