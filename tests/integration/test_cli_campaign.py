"""Whole campaigns through the command line, in processes of their own: results, resumes, interruptions.

Most use a toy target that takes a second a measurement: a worker whose launch file says how often it does its
work. The slow ones take the scripted campaign on tinyserve through a kill -9.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest
from toy_campaign import ROOT, SCRIPT, TARGET, WORKER, Cli, Done, git, make_target

from sandboxes.bubblewrap import probe_host

_UNAVAILABLE = 'sandboxes.bubblewrap.SandboxUnavailable("no namespaces here")'

pytestmark = pytest.mark.skipif(not probe_host().available, reason="this host refuses a sandbox")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Cli, Path, Done]:
    """A campaign on the toy target that ended with an accepted change."""
    directory = tmp_path_factory.mktemp("finished")
    cli, target = Cli(directory / "home", directory), make_target(directory / "toy")
    return cli, target, cli("run", str(target), "--planner", "script:scripts/all.toml", "--json")


def test_a_campaign_ends_with_an_accepted_change_and_its_interval(finished: tuple[Cli, Path, Done]) -> None:
    _, _, done = finished
    assert done.code == 0, done.err
    report = done.json
    outcomes = [t["outcome"] for t in report["tried"]]
    assert outcomes[:2] == ["reject", "reject"]
    assert "99 is outside 1..64" in report["tried"][1]["reason"]  # an impossible value is data
    assert outcomes[2] == "accept"
    assert report["tried"][2]["confirmed"]
    effect = report["comparisons"][0]["effect"]
    assert 0 < effect["ratio_lo"] < effect["ratio_hi"] < 0.5
    assert report["knobs"] == [{"name": "copies", "was": 16, "now": 1, "engine_default": 2}]
    assert [c["against"] for c in report["comparisons"]] == ["the original launch.toml", "engine-defaults"]


def test_progress_goes_to_stderr_in_plain_lines(finished: tuple[Cli, Path, Done]) -> None:
    _, _, done = finished
    assert len(done.out.splitlines()) == 1
    assert "experiment 1 of 20: Twice as many copies are faster" in done.err
    assert re.search(r"^\[ +\d+ s\] experiment 3: accept, confirmed", done.err, flags=re.MULTILINE)
    assert "\x1b" not in done.err


def test_show_and_list_tell_of_it(finished: tuple[Cli, Path, Done]) -> None:
    cli, target, done = finished
    shown = cli("show", "latest")
    assert shown.code == 0
    assert "time saved against the original launch.toml, confirmed" in " ".join(shown.out.split())
    assert "copies  16 -> 1" in shown.out
    assert f"--patch | git -C {target} apply" in shown.out
    assert cli("show", done.json["campaign"][:9], "--json").json == done.json
    (row,) = cli("list", "--json").json["campaigns"]
    assert (row["campaign"], row["n_accepted"], row["state"]) == (done.json["campaign"], 1, "complete")
    assert done.json["campaign"] in cli("list").out


def test_the_patch_applies_with_git(finished: tuple[Cli, Path, Done], tmp_path: Path) -> None:
    cli, target, _ = finished
    copy = tmp_path / "copy"
    shutil.copytree(target, copy)
    patch = cli("show", "latest", "--patch")
    assert patch.code == 0
    assert patch.out.startswith("diff --git")
    git(copy, "apply", stdin=patch.out)
    assert (copy / "launch.toml").read_text() == "# how often\ncopies = 1\n"


def test_the_patch_is_json_too(finished: tuple[Cli, Path, Done]) -> None:
    cli, _, done = finished
    shown = cli("show", "latest", "--patch", "--json")
    assert shown.code == 0
    assert shown.json["campaign"] == done.json["campaign"]
    assert shown.json["patch"] == cli("show", "latest", "--patch").out


def test_a_reader_that_goes_away_is_no_error_message(finished: tuple[Cli, Path, Done]) -> None:
    cli, _, _ = finished
    with cli.started("show", "latest") as running:
        assert running.process.stdout is not None
        assert running.process.stderr is not None
        running.process.stdout.close()
        said = running.process.stderr.read()
        assert running.process.wait(timeout=60) == 141
    assert said == ""


def test_a_complete_campaign_is_not_resumed_but_can_be_extended(finished: tuple[Cli, Path, Done]) -> None:
    cli, _, done = finished
    name = done.json["campaign"]
    before = cli.experiments(name)
    again = cli("run", "--resume", name, "--json")
    assert again.code == 2
    assert f"infra-agent show {name}" in again.json["error"]["message"]
    assert cli("run", "--resume", name, "--experiments", "2").code == 2
    extended = cli("run", "--resume", name, "--experiments", "25", "--json")  # the script has no more to say
    assert extended.code == 0
    assert cli.experiments(name) == before


def test_a_result_of_nothing_accepted_is_3_when_the_budget_ended_it(cli: Cli, toy: Path) -> None:
    done = cli("run", str(toy), "--planner", "script:scripts/all.toml", "--experiments", "1")
    assert done.code == 3, done.err
    joined = " ".join(done.out.split())
    assert "Nothing better than the original launch.toml was found in 1 change" in joined
    assert "the one that was measured is worse" in joined
    assert "--experiments 11" in done.out
    patch = cli("show", "latest", "--patch")
    assert (patch.code, patch.out) == (3, "")
    assert "no patch" in patch.err
    as_json = cli("show", "latest", "--patch", "--json")
    assert (as_json.code, as_json.json["patch"]) == (3, "")
    resumed = cli("run", "--resume", "latest", "--experiments", "3", "--json")
    assert resumed.code == 0
    assert resumed.json["n_accepted"] == 1


def test_a_planner_that_finds_nothing_and_stops_is_done(cli: Cli, tmp_path: Path) -> None:
    worse = '[[propose]]\nclaim = "Worse"\nknobs = { copies = 8 }\n'
    target = make_target(tmp_path / "toy", script=worse, copies=1)
    done = cli("run", str(target), "--planner", "script:scripts/all.toml", "--json")
    assert done.code == 0, done.err
    assert done.json["n_accepted"] == 0
    assert "proposals of all.toml were tried" in done.json["stop_reason"]


def test_the_search_planner_is_the_default_for_a_target_with_knobs(cli: Cli, toy: Path) -> None:
    done = cli("run", str(toy), "--experiments", "1", "--json")
    assert done.json["planner"] == "search", done.err
    (tried,) = done.json["tried"]
    assert tried["claim"] == "The control arm engine-defaults beats the inherited configuration"
    if done.code == 0:  # on a machine that is busy with other work the gain may stay undecided
        assert done.json["headline"].endswith("The result is the control arm engine-defaults itself.")
    else:
        assert (done.code, tried["outcome"]) == (3, "inconclusive"), done.err


def test_a_search_without_knobs_is_refused_before_anything_is_measured(cli: Cli, tmp_path: Path) -> None:
    head, _, rest = TARGET.partition("[launch_file]")
    bare = make_target(tmp_path / "bare", head + rest[rest.index("[[probes]]") :])
    done = cli("run", str(bare), "--planner", "search")
    assert done.code == 2
    assert "declares no knobs" in done.err
    assert cli("list", "--json").json == {"campaigns": []}


def test_a_dirty_git_tree_is_refused_and_loses_nothing(cli: Cli, toy: Path) -> None:
    mine = "# how often\ncopies = 16\n# my note\n"
    (toy / "launch.toml").write_text(mine)
    done = cli("run", str(toy), "--planner", "script:scripts/all.toml")
    assert done.code == 2
    assert "uncommitted changes" in done.err
    assert "launch.toml" in done.err
    assert (toy / "launch.toml").read_text() == mine
    assert cli("list", "--json").json == {"campaigns": []}


def test_a_script_that_cannot_be_used_is_refused_before_anything_is_measured(cli: Cli, toy: Path) -> None:
    script = toy.parent / "mine.toml"
    script.write_text(SCRIPT.replace("copies = 1 }", "copeis = 1 }"))
    done = cli("run", str(toy), "--planner", "script:mine.toml")
    assert done.code == 2
    assert "mine.toml:8: entry 3: unknown knob 'copeis'; this target's knobs are: copies" in done.err
    (toy.parent / "empty.patch").write_text("\n")
    script.write_text('[[propose]]\nclaim = "c"\npatch = "empty.patch"\n')
    done = cli("run", str(toy), "--planner", "script:mine.toml")
    assert (done.code, "entry 1: its patch is empty" in done.err) == (2, True)
    assert cli("list", "--json").json == {"campaigns": []}
    assert list((cli.home / "campaigns").glob("*")) == []


def test_a_target_that_fails_by_itself_fails_the_campaign_for_good(cli: Cli, toy: Path) -> None:
    (toy / "worker.py").write_text("raise SystemExit('broken on its own')\n")
    git(toy, "commit", "--quiet", "-a", "-m", "break it")
    done = cli("run", str(toy), "--planner", "search", "--json")
    assert done.code == 6
    assert done.json["error"]["type"] == "BaselineFailed"
    said = done.json["error"]["message"]
    assert "the unchanged target fails" in said
    assert f"then start a new campaign: `infra-agent run {toy} --planner search`" in said
    (logs,) = re.findall(r"logs are in (\S+)", said)
    assert "broken on its own" in (Path(logs) / "run.json").read_text()

    (row,) = cli("list", "--json").json["campaigns"]
    assert row["state"] == "failed"
    assert logs in row["stop_reason"]
    assert "the unchanged target fails" in cli("list").out
    shown = cli("show", "--json").json
    assert (shown["state"], shown["stop_reason"]) == ("failed", row["stop_reason"])
    assert [c.partition("  #")[0] for c in shown["next"]] == [f"infra-agent run {toy} --planner search"]
    assert [e.state.value for e in cli.experiments()] == ["failed"]

    git(toy, "revert", "--no-edit", "HEAD")
    for arguments in (["--resume", "latest"], ["--resume", "latest", "--experiments", "30"]):
        again = cli("run", *arguments)
        assert again.code == 2
        assert "a resume is bound to the commit that it was started from" in again.err
        assert f"infra-agent run {toy} --planner search" in again.err
    assert cli("list", "--json").json["campaigns"] == [row]


def test_a_host_without_a_sandbox_is_a_platform_failure(cli: Cli, toy: Path) -> None:
    broken = f"sandboxes.bubblewrap.usable_tools = lambda: (_ for _ in ()).throw({_UNAVAILABLE})"
    start = f"import sandboxes.bubblewrap\n{broken}\nfrom infra_agent.cli import main\nmain()"
    done = subprocess.run(
        [sys.executable, "-c", start, "run", str(toy), "--planner", "script:scripts/all.toml", "--json"],
        cwd=cli.cwd, env=cli.env({}), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 5, done.stderr
    assert "infra-agent run --resume" in json.loads(done.stdout)["error"]["message"]
    (row,) = cli("list", "--json").json["campaigns"]
    assert (row["state"], row["stop_reason"]) == ("stopped", "no namespaces here")
    resumed = cli("run", "--resume", "latest", "--experiments", "1", "--json")  # a lower total is refused
    assert resumed.code == 2
    assert cli("list", "--json").json["campaigns"] == [row]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_campaign_exits_with_130_and_resumes(cli: Cli, toy: Path, number: signal.Signals) -> None:
    with cli.started("run", str(toy), "--planner", "script:scripts/all.toml", "--json") as running:
        running.until(r"experiment 3 of 20")
        running.until("bench")
        done = running.end(number)
    assert done.code == 130
    assert re.search(r"interrupted; continue with `infra-agent run --resume cmp_\w+`", done.err)
    assert done.json["exit_code"] == 130
    (row,) = cli("list", "--json").json["campaigns"]
    assert (row["state"], row["stop_reason"]) == ("stopped", "interrupted")
    before = cli.experiments()
    resumed = cli("run", "--resume", "latest", "--json")
    assert resumed.code == 0, resumed.err
    assert (resumed.json["state"], resumed.json["stop_reason"]) == (
        "complete",
        "all 3 proposals of all.toml were tried",
    )
    assert resumed.json["n_accepted"] == 1
    assert cli.experiments()[:3] == before[:3]


def test_two_processes_never_run_one_campaign(cli: Cli, toy: Path) -> None:
    with cli.started("run", str(toy), "--planner", "script:scripts/all.toml") as running:
        running.until(r"experiment 1 of")
        second = cli("run", "--resume", "latest")
        assert second.code == 2
        assert f"is being run by process {running.process.pid}" in second.err
        assert cli("run", "--resume", "latest", "--experiments", "50").code == 2
        assert cli("show", "--json").json["state"] == "running"
        running.end(signal.SIGTERM)


def test_a_fresh_calibration_forgets_the_earlier_pairs(cli: Cli, toy: Path) -> None:
    assert cli("calibrate", str(toy), "--pairs", "3", "--json").json["n_units"] == 3
    fresh = cli("calibrate", str(toy), "--pairs", "2", "--fresh", "--json")
    assert fresh.code == 0, fresh.err
    assert "3 A/A pairs measured earlier are forgotten" in fresh.err
    assert fresh.json["n_units"] == 2
    assert fresh.json["n_begun"] >= 2
    assert fresh.json["go_on"] == f"infra-agent calibrate {toy} --pairs 28"


def test_a_worker_that_proves_nothing_of_its_work_is_told_of(cli: Cli, toy: Path) -> None:
    (toy / "worker.py").write_text(WORKER.replace("check=[x]", "check=[]"))
    git(toy, "commit", "--quiet", "-a", "-m", "no proof")
    done = cli("run", str(toy), "--planner", "script:scripts/all.toml", "--experiments", "1", "--json")
    assert done.code == 3, done.err
    assert any("nothing proves that both arms did the same work" in w for w in done.json["warnings"])
    checks = {c["name"]: c for c in cli("doctor", "--json").json["checks"]}
    assert checks["same work, toy"]["status"] == "warning"


def test_a_killed_campaign_is_known_as_interrupted_and_a_resume_needs_neither_script_nor_leftovers(
    cli: Cli, tmp_path: Path
) -> None:
    target, temporary = make_target(tmp_path / "toy"), tmp_path / "tmp"
    shutil.copy(target / "scripts" / "all.toml", tmp_path / "mine.toml")
    temporary.mkdir()
    with cli.started("run", str(target), "--planner", "script:mine.toml", TMPDIR=str(temporary)) as running:
        running.until(r"experiment 3 of 20")
        running.until("bench")
        running.end(signal.SIGKILL)
    assert len(list(temporary.iterdir())) == 1
    (row,) = cli("list", "--json").json["campaigns"]
    assert (row["state"], row["stop_reason"]) == ("interrupted", "")
    assert "interrupted: no process runs it" in cli("show").out
    (tmp_path / "mine.toml").write_text("changed since")
    resumed = cli("run", "--resume", "latest", "--json")
    assert resumed.code == 0, resumed.err
    assert (resumed.json["state"], resumed.json["n_accepted"]) == ("complete", 1)
    assert list(temporary.iterdir()) == []


KILLED_WHILE_IT_THINKS = """
import os, signal, sys, time
from infra_agent import commands
from infra_agent.request import request
from infra_agent.settings import load_settings


class Thinking:
    def next_action(self, context):
        time.sleep(6)
        os.kill(os.getpid(), signal.SIGKILL)


settings = load_settings()
campaign = commands.start(settings, request(settings, sys.argv[1], "script:scripts/all.toml"))
commands.run(settings, campaign.id, lambda event: None, lambda text: None, Thinking())
"""


def test_the_wall_time_of_a_killed_run_counts_against_the_budget(cli: Cli, toy: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED_WHILE_IT_THINKS, str(toy)], env=cli.env({}), check=False)
    assert done.returncode == -signal.SIGKILL
    stored_s = cli("show", "--json").json["use"]["elapsed_s"]
    resumed = cli("run", "--resume", "latest", "--minutes", str((stored_s + 6) / 60), "--json")
    assert "budget" in resumed.json["stop_reason"]
    assert resumed.json["n_changes"] == 0
    assert resumed.json["use"]["elapsed_s"] >= stored_s + 6
    assert not list(cli.home.glob("campaigns/*/run.pulse"))


def test_a_model_that_is_down_stops_the_campaign_resumably(cli: Cli, toy: Path) -> None:
    model = {"INFRA_AGENT_MODEL": "m", "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}
    done = cli("run", str(toy), "--planner", "llm", "--json", **model)
    assert done.code == 4
    assert re.search(r"Continue with `infra-agent run --resume cmp_\w+`", done.json["error"]["message"])
    (row,) = cli("list", "--json").json["campaigns"]
    assert row["state"] == "stopped"
    assert row["stop_reason"].startswith("the model endpoint http://127.0.0.1:9/v1/ can't be used")
    assert cli("run", "--resume", "latest", "--experiments", "30").code == 2  # without the settings of a model
    assert cli("list", "--json").json["campaigns"] == [row]


def test_a_time_budget_that_ends_while_a_model_thinks_ends_the_campaign(cli: Cli, toy: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        model = {"INFRA_AGENT_MODEL": "m", "OPENAI_BASE_URL": f"http://127.0.0.1:{silent.getsockname()[1]}/v1"}
        done = cli("run", str(toy), "--planner", "llm", "--minutes", "0.15", "--json", **model)
    assert done.code == 3, done.err
    assert done.json["state"] == "complete"
    assert "the budget of 0.15 minutes ended while the planner was at work" in done.json["stop_reason"]


COUNTED = """
import collections, json, sys
from pathlib import Path
from sqlalchemy import Engine, event
from infra_agent import commands
from infra_agent.request import request
from infra_agent.settings import load_settings

counts, marks = collections.Counter(), []
event.listen(Engine, "begin", lambda connection: counts.update(["transactions"]))
event.listen(Engine, "before_cursor_execute", lambda *given: counts.update(["statements"]))
sys.addaudithook(lambda name, given: counts.update([str(given[0])]) if name == "subprocess.Popen" else None)


def watch(told):
    if told.type == "experiment_finished":
        marks.append(collections.Counter(counts))


settings = load_settings()
campaign = commands.start(settings, request(settings, sys.argv[1], "script:scripts/all.toml"))
commands.run(settings, campaign.id, watch, lambda text: None)
for before, after in zip(marks, marks[1:]):
    print(json.dumps(after - before))
"""


def test_an_experiment_costs_few_transactions_and_processes(cli: Cli, tmp_path: Path) -> None:
    changes = "".join(f'[[propose]]\nclaim = "c"\nknobs = {{ copies = {16 + n} }}\n' for n in range(1, 5))
    target = make_target(tmp_path / "toy", TARGET.replace("[6, 12]", "[3]"), changes)
    done = subprocess.run(
        [sys.executable, "-c", COUNTED, str(target)],
        cwd=cli.cwd, env=cli.env({}), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    counted = [json.loads(line) for line in done.stdout.splitlines()][:4]
    assert [found["transactions"] for found in counted] == [2] * 4  # before it runs and after
    assert [found["git"] for found in counted] == [2] * 4  # the candidate's commit and its diff
    assert len({found["statements"] for found in counted}) == 1  # not more with a longer journal


@pytest.mark.slow
def test_calibration_is_stored_and_used(cli: Cli, toy: Path) -> None:
    few = cli("calibrate", str(toy), "--pairs", "6", "--json")
    assert few.code == 0, few.err
    assert (few.json["n_units"], few.json["floor"]) == (6, None)
    enough = cli("calibrate", str(toy), "--pairs", "24", "--json")
    assert enough.code == 0, enough.err
    assert enough.json["n_units"] == 30
    assert 0 < enough.json["floor"] < enough.json["minimum_detectable_effect"]
    assert "24 of 24 pairs measured and stored" in enough.err
    done = cli("run", str(toy), "--planner", "script:scripts/all.toml", "--experiments", "1", "--json")
    assert done.json["noise"]["is_measured"]
    assert done.json["noise"]["floor"] == pytest.approx(enough.json["floor"], rel=0.5)
    assert not list((cli.home / "campaigns").glob("cal_*"))


def test_a_live_line_is_shown_on_a_terminal(cli: Cli, toy: Path) -> None:
    leader, follower = os.openpty()
    with os.fdopen(leader, "rb", buffering=0) as terminal:
        process = subprocess.Popen(
            cli.command(["run", str(toy), "--planner", "script:scripts/all.toml", "--experiments", "1"]),
            cwd=cli.cwd, env=cli.env({"TERM": "xterm", "NO_COLOR": "1"}), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=follower,
        )  # fmt: skip
        os.close(follower)
        said = _read_all(terminal)
        assert process.wait(timeout=60) == 3
    assert "0/1" in said
    assert "experiment 1 of 1: Twice as many copies are faster" in said
    assert "experiment 1: reject" in said
    assert not re.search(r"\x1b\[[\d;]*3\dm", said)  # NO_COLOR


def _read_all(terminal: IO[bytes]) -> str:
    """Everything until the other end is closed, which a terminal says with an error."""
    said = b""
    with contextlib.suppress(OSError):
        while chunk := terminal.read(4096):
            said += chunk
    return said.decode()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None or shutil.which("make") is None, reason="needs cc and make")
def test_a_killed_tinyserve_campaign_resumes_and_gives_the_three_verdicts(cli: Cli, tmp_path: Path) -> None:
    with cli.started("run", "tinyserve", "--planner", "script:scripts/hoist.toml", "--minutes", "8") as running:
        running.until(r"experiment 1: reject")
        running.until("kda_microbench")
        running.end(signal.SIGKILL)
    before = cli.experiments()
    assert [e.state.value for e in before] == ["complete", "pruned", "running"]
    resumed = cli("run", "--resume", "latest", "--json")
    assert resumed.code == 0, resumed.err
    after = cli.experiments()
    assert after[:2] == before[:2]  # started_at and finished_at among it
    finished = [int(str(e.data["number"])) for e in cli.events() if e.type == "experiment_finished"]
    assert finished == sorted(set(finished)), "an experiment was finished twice"

    wrong, neutral, right = resumed.json["tried"]
    assert wrong["outcome"] == "reject"
    assert "kda_parity" in wrong["reason"]
    assert neutral["outcome"] in ("reject", "inconclusive")
    assert (right["outcome"], right["confirmed"]) == ("accept", True)
    low = 1 - resumed.json["comparisons"][0]["effect"]["ratio_hi"]
    assert low > 0.02

    kernels = tmp_path / "tree" / "kernels"
    shutil.copytree(ROOT / "targets" / "tinyserve" / "kernels", kernels)
    git(kernels.parent, "init", "--quiet", ".")
    git(kernels.parent, "apply", stdin=cli("show", "latest", "--patch").out)
    assert "kda_load_token" in (kernels / "kda_decode.c").read_text()
