"""Probes that leave files: run only when asked, read into signals and evidence; what is no good is a finding."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from test_investigated_campaigns import TINYSERVE, Listed, desk_of
from toy_campaign import TARGET, Cli, git, make_target

from feedback.signals import Signal
from feedback.verdict import VerdictKind
from infra_agent.domain import Experiment, State
from infra_agent.loop import run_campaign
from infra_agent.planner import Investigate, Stop
from infra_agent.planner.forms import ReadEvidence
from infra_agent.planner.reading import Reader
from infra_agent.settings import load_settings
from infra_agent.store import open_store
from sandboxes.bubblewrap import probe_host

pytestmark = pytest.mark.skipif(not probe_host().available, reason="this host refuses a sandbox")

TRACE = """
[[probes]]
name = "trace"
kind = "trace"
method = "command"
command = ["{python}", "trace_work.py", "{param:calls}", "{param:how}"]
params = { calls = 3, how = "sound" }
reports = [{ path = "/scratch/made/trace.json", format = "chrome_trace", limit_bytes = 100000 }]
[[probes]]
name = "asked-tests"
kind = "correctness"
method = "command"
when = "asked"
command = ["{python}", "trace_work.py", "2", "junit"]
reports = [{ path = "/tree/results.xml", format = "junit" }]
"""
TRACED = """
import json, os, pathlib, sys

calls, how = int(sys.argv[1]), sys.argv[2]
out = pathlib.Path("/scratch/made/trace.json")
out.parent.mkdir(exist_ok=True)
events = [{"ph": "X", "cat": "python_function", "name": "outer", "ts": 0, "dur": 1000 * calls, "pid": 1, "tid": 1}]
events += [{"ph": "X", "cat": "native", "name": "inner_kernel", "ts": 1000 * n, "dur": 750, "pid": 1, "tid": 1}
           for n in range(calls)]
text = json.dumps({"traceEvents": events})
if how in ("sound", "failing"):
    out.write_text(text)
elif how == "broken":
    out.write_text("{'traceEvents': 7")
elif how == "large":
    out.write_text(text + " " * 200_000)
elif how == "link":
    out.symlink_to("/etc/passwd")
elif how == "linked-directory":
    other = pathlib.Path("/scratch/other")
    other.mkdir()
    (other / "trace.json").write_text(text)
    out.parent.rmdir()
    out.parent.symlink_to(other)
elif how == "pipe":
    os.mkfifo(out)
elif how == "junit":
    case = '<testcase name="adds"><failure message="2 + 2 is 5"/></testcase>'
    pathlib.Path("/tree/results.xml").write_text(f'<testsuite name="s"><testcase name="counts"/>{case}</testsuite>')
sys.exit(how in ("failing", "failing-with-nothing"))
"""
ASKS = """
[[propose]]
claim = "One copy is enough"
knobs = { copies = 1 }
[[investigate]]
question = "Where does the time go?"
probe = "trace"
params = { how = ["sound", "missing", "broken", "large", "link", "pipe", "linked-directory"] }
[[investigate]]
question = "Does it grow?"
probe = "trace"
params = { calls = [2, 8] }
[[investigate]]
question = "What do the tests say?"
probe = "asked-tests"
[[investigate]]
question = "Where does it fail?"
probe = "trace"
params = { how = ["failing"] }
[[propose]]
claim = "Twice as many do as well"
knobs = { copies = 2 }
probe = "trace"
predicted = { metric = "slice_time_s", direction = "down", low = 0.1 }
"""


def target_of(directory: Path, script: str = ASKS) -> Path:
    """The toy with a probe that traces it."""
    toy = make_target(directory, TARGET + TRACE, script)
    (toy / "trace_work.py").write_text(TRACED)
    git(toy, "add", ".")
    git(toy, "commit", "--quiet", "-m", "trace")
    return toy


def of(experiment: Experiment, rule_id: str) -> list[Signal]:
    return [s for s in experiment.signals if s.rule_id == rule_id]


def test_a_probe_that_waits_runs_when_asked_and_its_files_become_signals(tmp_path: Path) -> None:
    toy, cli = target_of(tmp_path / "toy"), Cli(tmp_path / "home", tmp_path)
    done = cli("run", str(toy), "--planner", "script:scripts/all.toml", "--json")
    assert done.code == 0, done.err
    asked = [e for e in cli.experiments() if e.role == "investigation"]
    assert [e.state for e in asked] == [State.COMPLETE] * 4, done.err
    hows, grows, tests, failing = asked

    # What is sound is told as time by name; whatever is not is told of its own condition, and is no failure of ours.
    (sound,) = of(hows, "utilization.own_time")
    assert "at calls=3 how=sound" in sound.message
    assert "inner_kernel 75.0 % in 3, outer 25.0 % in 1" in sound.message
    assert sound.measured[0].value == pytest.approx(3 * 750e-6)
    lost = {s.message.split("how=")[1].split(":")[0]: s.message for s in of(hows, "correctness.report")}
    assert "No such file" in lost["missing"]  # although the same sandbox had a sound one before
    assert "trace.json" in lost["broken"]
    assert "larger than 100000 bytes" in lost["large"]
    assert "symbolic link" in lost["link"]
    assert "not a regular file" in lost["pipe"]
    assert "cannot be read" in lost["linked-directory"]
    assert len(lost) == 6
    assert "root:" not in str(hows.signals)

    assert [("calls=2" in s.message, "calls=8" in s.message) for s in of(grows, "utilization.own_time")] == [
        (True, False), (False, True)
    ]  # fmt: skip
    (failed,) = of(tests, "correctness.test_fail")
    assert "1 of 3 failed" in failed.message  # two tests of the report, and the command itself
    assert "2 + 2 is 5" in failed.message
    assert of(failing, "utilization.own_time")  # what a command leaves before it fails is evidence, too
    assert of(failing, "correctness.test_fail")

    # In the ordinary course it never runs; named to answer, it runs in both arms, and informs.
    runs = {p.name: p for p in (cli.home / "campaigns").glob("*/runs/*")}
    first, second = (e for e in cli.experiments() if e.role == "change")
    assert not [p for p in runs[first.id].iterdir() if "trace" in p.name]
    assert {p.name for p in runs[second.id].iterdir() if "trace" in p.name} == {
        f"screen-trace-{arm}-0-trace.json" for arm in ("baseline", "candidate")
    }
    arms = [s.message.split(":")[0] for s in of(second, "utilization.own_time")]
    assert sorted(arms) == ["trace, baseline", "trace, candidate"]
    assert second.verdict is not None
    assert second.verdict.kind is not VerdictKind.INVALID
    assert "screen: trace" in done.err
    settings = load_settings({"INFRA_AGENT_HOME": str(cli.home)})
    with open_store(settings.database_url) as store, store.transaction(read_only=True) as ledger:
        kept = [(a.format, a.arm) for a in ledger.artefacts(grows.id)]
    assert kept == [("chrome_trace", "candidate")] * 2


def test_what_a_probe_left_is_read_as_evidence(tmp_path: Path) -> None:
    ask = Investigate(question="Where?", probe="trace", params={"calls": (4,)})
    planner = Listed([ask, Stop(reason="enough")])
    (desk,) = desk_of(tmp_path / "home", target_of(tmp_path / "toy"), planner)
    assert run_campaign(desk) == ("planner", "enough")
    (asked,) = [e for e in desk.journal().finished if e.role == "investigation"]
    (found,) = of(asked, "utilization.own_time")
    told = Reader(planner.shown[-1]).read_evidence(ReadEvidence(id=found.fingerprint))
    assert "the longest of 4: inner_kernel" in told
    assert "0.000 ms +4.000 ms outer" in told


def test_what_only_informs_ends_no_campaign_even_where_the_baseline_fails_it(tmp_path: Path) -> None:
    toy = target_of(tmp_path / "toy", '[[propose]]\nclaim = "One is enough"\nknobs = { copies = 1 }\nprobe = "trace"\n')
    text = (toy / "target.toml").read_text().replace('how = "sound"', 'how = "failing-with-nothing"')
    (toy / "target.toml").write_text(text)
    git(toy, "commit", "--quiet", "--all", "-m", "it fails")
    cli = Cli(tmp_path / "home", tmp_path)
    done = cli("run", str(toy), "--planner", "script:scripts/all.toml", "--json")
    assert done.code == 0, done.err
    (tried,) = (e for e in cli.experiments() if e.role == "change")
    assert (tried.state, tried.verdict and tried.verdict.kind) == (State.COMPLETE, VerdictKind.ACCEPT)


@pytest.mark.slow
def test_tinyserve_tells_where_a_decode_spends_its_time(tmp_path: Path) -> None:
    copy = tmp_path / "tinyserve"
    shutil.copytree(TINYSERVE, copy, ignore=shutil.ignore_patterns("build", "__pycache__"))
    git(copy, "init", "--quiet", ".")
    git(copy, "add", ".")
    git(copy, "commit", "--quiet", "-m", "tinyserve")
    ask = Investigate(question="How much is Python's?", probe="decode_trace", params={"batch": (1, 16)})
    planner = Listed([ask, Stop(reason="enough")])
    (desk,) = desk_of(tmp_path / "home", copy, planner)
    run_campaign(desk)
    (asked,) = [e for e in desk.journal().finished if e.role == "investigation"]
    found = of(asked, "utilization.own_time")
    assert len(found) == 2
    for signal in found:
        names = [q.name.split(" (")[0] for q in signal.measured]
        assert names[0] == "KernelDecoder.step"
        assert {"decode step", "Inputs.load"} <= set(names)
        assert "in 64 intervals" in signal.measured[0].unit
