"""The command line without a campaign: usage, messages, exit codes, JSON, and the edge that turns failures into
them."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from feedback.observations import RuntimeEvent
from infra_agent import commands, doctor, overview
from infra_agent.bench import BaselineFailed
from infra_agent.catalogue import check_needs, find_script, find_target
from infra_agent.cli.edge import execute
from infra_agent.domain import Budget, CampaignSpec, Event
from infra_agent.errors import ModelUnavailable, NotFound, StoreUnavailable, TargetInvalid, WrongUse
from infra_agent.progress import Progress
from infra_agent.request import request
from infra_agent.scaffold import init
from infra_agent.settings import Settings, load_settings
from infra_agent.target import load_target
from sandboxes.sandbox import SandboxUnavailable

Out = pytest.CaptureFixture[str]
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("INFRA_AGENT_DATABASE_URL", "INFRA_AGENT_MODEL", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("INFRA_AGENT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def last_line(out: str) -> Any:
    return json.loads(out.splitlines()[-1])


def failing_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(settings: Settings) -> Any:
        raise error

    monkeypatch.setattr(commands, "campaigns", fail)


def test_version_and_help(capsys: Out) -> None:
    assert execute(["--version"]) == 0
    assert capsys.readouterr().out.startswith("infra-agent ")
    assert execute(["--help"]) == 0
    said = capsys.readouterr().out
    for code in ("0 ", "2 ", "3 ", "4 ", "5 ", "6 ", "130 "):
        assert re.search(rf"^ +{code} +\w", said, flags=re.MULTILINE)


def test_no_command_prints_help_and_is_wrong_use(capsys: Out) -> None:
    assert execute([]) == 2
    assert "Usage: infra-agent" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["bogus"],
        ["run"],
        ["run", "nowhere"],
        ["run", "x", "--experiments", "0"],
        ["run", "x", "--experiments", "many"],
        ["run", "x", "--minutes", "-1"],
        ["run", "x", "--minutes", "inf"],
        ["run", "x", "--tokens", "0"],
        ["run", "x", "--tokens", "1.5"],
        ["run", "x", "--dollars", "0"],
        ["run", "x", "--dollars", "-1"],
        ["run", "x", "--dollars", "inf"],
        ["run", "tinyserve", "--planner", "search", "--dollars", "nan"],
        ["run", "tinyserve", "--planner", "search", "--tokens", "9999999999999999"],
        ["run", "tinyserve", "--planner", "search", "--accelerator-seconds", "nan"],
        ["run", "x", "--accelerator-seconds", "0"],
        ["run", "x", "--resume", "latest"],
        ["run", "--resume", "latest", "--planner", "search"],
        ["run", "--resume", "cmp_none"],
        ["run", "--nonsense"],
        ["show", "cmp_none"],
        ["calibrate", "nowhere"],
        ["run", ""],
        ["run", "~nosuchuser/x"],
        ["run", "a" * 5000],
        ["run", "tinyserve", "--planner", "script:~nosuchuser/x"],
        ["show", "\udcff"],
        ["calibrate", "tinyserve", "--pairs", "0"],
        ["init", "/nowhere/at/all"],
    ],
)
def test_wrong_use_exits_with_2_and_says_what_to_do(arguments: list[str], capsys: Out) -> None:
    assert execute(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("infra-agent: ")
    assert "Traceback" not in captured.err


def test_errors_are_json_too(capsys: Out) -> None:
    assert execute(["run", "nowhere", "--json"]) == 2
    captured = capsys.readouterr()
    assert last_line(captured.out)["exit_code"] == 2
    assert last_line(captured.out)["error"]["type"] == "WrongUse"
    assert "llamacpp, tinyserve" in last_line(captured.out)["error"]["message"]
    assert execute(["run", "--json", "--nonsense"]) == 2
    assert last_line(capsys.readouterr().out)["error"]["type"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (WrongUse("so"), 2),
        (TargetInvalid("so"), 2),
        (NotFound("so"), 2),
        (ModelUnavailable("so"), 4),
        (StoreUnavailable("so"), 5),
        (SandboxUnavailable("so"), 5),
        (BaselineFailed("so"), 6),
        (KeyboardInterrupt(), 130),
    ],
)
def test_each_kind_of_failure_has_its_exit_code(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    failing_with(error, monkeypatch)
    assert execute(["list", "--json"]) == code
    captured = capsys.readouterr()
    assert last_line(captured.out)["exit_code"] == code
    assert captured.err == f"infra-agent: {'interrupted' if code == 130 else 'so'}\n"


def test_an_unexpected_error_is_one_message_and_a_saved_traceback(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    failing_with(ZeroDivisionError("by nothing"), monkeypatch)
    assert execute(["list"]) == 1
    said = capsys.readouterr().err
    assert "unexpected ZeroDivisionError: by nothing" in said
    assert "Traceback" not in said
    (saved,) = (home / "errors").iterdir()
    assert str(saved) in said
    assert "ZeroDivisionError" in saved.read_text()


def test_a_broken_pipe_that_is_not_the_outputs_is_not_kept_quiet(monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    failing_with(BrokenPipeError(errno.EPIPE, "a worker's pipe"), monkeypatch)
    assert execute(["list"]) == 1
    assert "unexpected BrokenPipeError" in capsys.readouterr().err


def test_a_traceback_that_cannot_be_saved_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("INFRA_AGENT_HOME", str(tmp_path / "file"))
    failing_with(ZeroDivisionError("by nothing"), monkeypatch)
    assert execute(["list"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_home_that_cannot_be_used_is_a_platform_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("INFRA_AGENT_HOME", str(tmp_path / "file" / "home"))
    assert execute(["list", "--json"]) == 5
    assert "choose another path" in last_line(capsys.readouterr().out)["error"]["message"]


def test_list_without_campaigns_says_how_to_start_one(capsys: Out) -> None:
    assert execute(["list"]) == 0
    assert "infra-agent run TARGET" in capsys.readouterr().out
    assert execute(["list", "--json"]) == 0
    assert last_line(capsys.readouterr().out) == {"campaigns": []}


def test_init_and_then_a_malformed_target_names_file_and_line(tmp_path: Path, capsys: Out) -> None:
    assert execute(["init", str(tmp_path)]) == 0
    path = tmp_path / "target.toml"
    text = path.read_text().replace("min_effect = 0.02", "min_effect = 7")
    path.write_text(text)
    line = next(n for n, found in enumerate(text.splitlines(), 1) if found.startswith("min_effect"))
    capsys.readouterr()
    assert execute(["run", str(tmp_path)]) == 2
    assert f"{path}:{line}: objective.min_effect" in capsys.readouterr().err
    path.write_text("schema = = 1\n")
    assert execute(["run", str(tmp_path)]) == 2
    assert "line 1" in capsys.readouterr().err


def test_a_missing_target_toml_points_to_init(tmp_path: Path, capsys: Out) -> None:
    assert execute(["run", str(tmp_path)]) == 2
    assert f"infra-agent init {tmp_path}" in capsys.readouterr().err


def test_a_missing_script_is_wrong_use_before_anything_is_stored(capsys: Out) -> None:
    assert execute(["run", "tinyserve", "--planner", "script:none.toml"]) == 2
    assert "none.toml does not exist" in capsys.readouterr().err
    assert execute(["list", "--json"]) == 0
    assert last_line(capsys.readouterr().out) == {"campaigns": []}


def test_a_missing_compiler_is_named_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    script = "script:scripts/hoist.toml"
    assert execute(["run", "tinyserve", "--planner", script]) == 2
    said = capsys.readouterr().err
    assert "needs cc, make on the PATH" in said
    assert "build-essential" in said


def test_without_a_model_and_knobs_the_planner_must_be_named(tmp_path: Path, capsys: Out) -> None:
    init(tmp_path)
    assert execute(["run", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "INFRA_AGENT_MODEL" in said
    assert "script:FILE" in said
    assert execute(["run", str(tmp_path), "--planner", "magic"]) == 2
    assert "unknown planner 'magic'; use llm, search, playbook, random" in capsys.readouterr().err
    assert execute(["run", str(tmp_path), "--planner", "llm"]) == 2
    assert "OPENAI_API_KEY" in capsys.readouterr().err


def test_the_default_planner_is_a_model_if_there_is_one_else_a_search(home: Path) -> None:
    plain = load_settings({"INFRA_AGENT_HOME": str(home)})
    model = load_settings(
        {"INFRA_AGENT_HOME": str(home), "INFRA_AGENT_MODEL": "m", "OPENAI_BASE_URL": "http://localhost:1"}
    )
    assert request(plain, "llamacpp").planner == "search"
    assert request(model, "llamacpp").planner == "llm"
    assert request(model, "llamacpp", "search", 3, 2.5, 7) == CampaignSpec(
        target="llamacpp", planner="search", budget=Budget(experiments=3, minutes=2.5), seed=7
    )


def test_a_script_is_found_here_or_below_the_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = find_target("tinyserve")
    monkeypatch.chdir(tmp_path)
    below = target / "scripts" / "hoist.toml"
    assert find_script("script:scripts/hoist.toml", target) == f"script:{below}"
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "hoist.toml").touch()
    assert find_script("script:scripts/hoist.toml", target) == f"script:{tmp_path / 'scripts' / 'hoist.toml'}"
    assert find_script("search", target) == "search"


def test_doctor_says_whether_campaigns_can_run(capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    code = execute(["doctor", "--json"])
    found = last_line(capsys.readouterr().out)
    checks = {check["name"]: check for check in found["checks"]}
    assert code == (0 if found["can_run"] else 5)
    assert {"sandbox", "git", "cc", "machine", "home", "database", "model endpoint"} <= set(checks)
    assert checks["model endpoint"]["status"] == "absent"
    assert checks["noise, tinyserve"]["detail"].startswith("0 of 30")


def test_doctor_sends_nobody_into_a_campaign_on_a_busy_machine() -> None:
    calm = doctor.Check(name=doctor.LOAD, status="ok", detail="0.1")
    busy = calm.model_copy(update={"status": "warning", "remedy": "end other work"})
    said = doctor.as_text(doctor.Diagnosis(can_run=True, checks=(busy,)), 80)
    assert "but the machine is busy now. End other work first" in " ".join(said.split())
    assert "Campaigns can run here. Try" in doctor.as_text(doctor.Diagnosis(can_run=True, checks=(calm,)), 80)


def test_doctor_fails_without_git(tmp_path: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert execute(["doctor"]) == 5
    said = capsys.readouterr().out
    assert re.search(r"failed +git", said)
    assert "Campaigns can't run here" in said


def test_doctor_reports_an_endpoint_that_is_down(capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFRA_AGENT_MODEL", "m")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    execute(["doctor", "--json"])
    captured = capsys.readouterr()
    checks = {check["name"]: check for check in last_line(captured.out)["checks"]}
    assert checks["model endpoint"]["status"] == "warning"
    assert "127.0.0.1:9" in checks["model endpoint"]["detail"]
    assert "sk-secret" not in captured.out + captured.err


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"object": "list", "data": [{"id": "m", "object": "model", "created": 0, "owned_by": "x"}]}, "offers m"),
        ({"object": "list", "data": []}, "m is not among its 0 models"),
        (None, "answers, but lists no models"),
    ],
)
def test_doctor_asks_the_endpoint_for_its_models(
    body: dict[str, object] | None, said: str, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Models(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = json.dumps(body or {}).encode()
            self.send_response(200 if body is not None and self.path == "/v1/models" else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Models) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("INFRA_AGENT_MODEL", "m")
        monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{server.server_port}/v1")
        execute(["doctor", "--json"])
        server.shutdown()
    checks = {check["name"]: check for check in last_line(capsys.readouterr().out)["checks"]}
    assert checks["model endpoint"]["status"] == "ok"
    assert said in checks["model endpoint"]["detail"]


def told(units: Sequence[float], *events: str, given: str = "tinyserve", min_effect: float = 0.02) -> str:
    """What is said of a calibration that found these units, in one line."""
    return " ".join(overview.calibration_text(calibrated(units, *events, given=given, min_effect=min_effect)).split())


def calibrated(
    units: Sequence[float], *events: str, given: str = "tinyserve", min_effect: float = 0.02
) -> overview.CalibrationFacts:
    spec = load_target(find_target("tinyserve"))[0]
    spec = spec.model_copy(update={"objective": spec.objective.model_copy(update={"min_effect": min_effect})})
    seen = (
        RuntimeEvent(
            probe="kda_microbench", source="contention", name=name, level="note" if name == "quiet_pair" else "warning",
            message="" if name == "quiet_pair" else "foreign CPU 53%, steal 0%",
        )
        for name in events
    )  # fmt: skip
    return overview.calibration(commands.Calibration(spec, given, tuple(units), tuple(seen)))


def quiet(sd: float, n: int = 30) -> list[float]:
    """Units that scatter by about `sd` around zero."""
    return [sd * 1.4 * math.sin(1.7 * i) for i in range(n)]


def test_few_pairs_give_a_provisional_spread_and_the_command_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    spec = load_target(find_target("tinyserve"))[0]

    def few(settings: Settings, target: str, pairs: int, fresh: bool, say: Any) -> commands.Calibration:
        return commands.Calibration(spec, target, tuple(quiet(0.04, pairs)), ())

    monkeypatch.setattr(commands, "calibrate", few)
    assert execute(["calibrate", "my target", "--pairs", "10"]) == 0
    out = capsys.readouterr().out
    assert "Provisional: one pair scatters by 3.94 %" in out
    assert out.endswith("\n  infra-agent calibrate 'my target' --pairs 20\n")
    assert "oise floor:" not in out
    assert execute(["calibrate", "tinyserve", "--pairs", "10", "--json"]) == 0
    found = last_line(capsys.readouterr().out)
    assert (found["n_units"], found["is_provisional"], found["floor"]) == (10, True, None)
    assert found["unit_sd"] > 0


def test_a_single_pair_says_nothing_of_spread() -> None:
    assert "scatters" not in told([0.01])
    assert "--pairs 29" in told([0.01])


def test_a_calibration_states_whether_the_machine_can_decide_what_the_target_asks_for() -> None:
    good = calibrated(quiet(0.003))
    assert good.can_decide
    assert good.floor is not None
    assert good.minimum_detectable_effect is not None
    assert good.floor < good.min_effect < good.minimum_detectable_effect < 0.025
    assert "quiet enough for the 2.0 % that the target asks for" in told(quiet(0.003))
    noisy = told(quiet(0.08))
    assert "This machine can't decide the 2.0 % that the target asks for; it finds " in noisy
    assert "--fresh" in noisy
    assert "larger min_effect" in noisy
    assert "can't decide" not in told(quiet(0.08), min_effect=0.5)


def test_a_bias_between_identical_arms_is_a_gain_of_one_of_them() -> None:
    found = calibrated([0.02 + u for u in quiet(0.01)])
    assert not found.is_calibrated
    assert found.bias == pytest.approx(-0.02, abs=0.004)  # the second arm took longer
    assert found.bias_interval is not None
    assert found.bias_interval[0] < found.bias < found.bias_interval[1] < 0
    assert "That is a bias" in told([0.02 + u for u in quiet(0.01)])


def test_a_calibration_says_when_the_machine_was_busy() -> None:
    kept, repeated, calm = "disturbed_pair_kept", "disturbed_pair_repeated", "quiet_pair"
    busy = told(quiet(0.01), kept, kept, repeated, calm)
    assert "The machine was busy: of 4 pairs 2 were disturbed by other work and kept, 1 disturbed pair measured" in busy
    assert "foreign CPU 53%" in busy
    assert "Other work got in the way now and then: 1 disturbed pair" in told(quiet(0.01), repeated, calm)
    assert "busy" not in told(quiet(0.003), calm, calm)


def test_needs_that_are_met_raise_nothing() -> None:
    check_needs(load_target(find_target("tinyserve"))[0].model_copy(update={"needs": ("sh",)}))


def event(kind: str, **data: object) -> Event:
    return Event(campaign_id="cmp_1", type=kind, data=data)


def test_progress_counts_changes_and_says_what_runs() -> None:
    now = 100.0
    progress = Progress(Budget(experiments=5, minutes=2), changes=1, elapsed_s=30, clock=lambda: now)
    assert progress.event(event("experiment_started", role="baseline", claim="x")) == (
        "measuring the baseline against itself"
    )
    aa = "slice_time_s +0.1% [-0.5%, +0.6%]: no gain worth having (asked: 2.0%)"
    finished = event("experiment_finished", role="baseline", verdict="reject", reasons=[aa])
    assert progress.event(finished) == "done: slice_time_s +0.1% [-0.5%, +0.6%]"
    started = event("experiment_started", role="change", claim="two\x1b[31m threads\nare better")
    assert progress.event(started) == "experiment 2 of 5: two[31m threads are better"
    assert progress.remark("confirm: load") == "  confirm: load"
    assert progress.now().endswith("· confirm: load")
    assert progress.used() == "30 s of 2 min"
    done = event("experiment_finished", role="change", verdict="accept", reasons=["+12%"], confirmed=True)
    assert progress.event(done) == "experiment 2: accept, confirmed: +12%"
    assert progress.changes == 2
    assert progress.event(event("campaign_finished")) == ""
    assert "skipped: engine-defaults" in progress.event(event("skipped", what="engine-defaults", reason="time"))


def test_output_that_cannot_be_encoded_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii", errors="replace"))
    monkeypatch.setattr(commands, "campaigns", lambda settings: ())
    assert execute(["list"]) == 0
    assert b"No campaigns yet" in raw.getvalue()


# Input that is wrong and environments that are broken.


KNOB = """
[launch_file]
path = "launch.toml"
[[knobs]]
name = "n"
description = "How many"
key = "n"
choices = [1, 2]
"""


def toy(directory: Path) -> Path:
    """A valid target under no version control, with a script of one proposal."""
    directory.mkdir()
    init(directory)
    path = directory / "target.toml"
    text = path.read_text().replace('editable = ["src"]', 'editable = ["src", "launch.toml"]')
    path.write_text(f"{text}\n{KNOB}")
    (directory / "launch.toml").write_text("n = 1\n")
    (directory / "src").mkdir()
    (directory / "src" / "a.txt").write_text("a\n")
    (directory / "p.patch").write_text("--- a/src/a.txt\n+++ b/src/a.txt\n@@ -1 +1 @@\n-a\n+b\n")
    (directory / "script.toml").write_text('[[propose]]\nclaim = "b"\npatch = "p.patch"\n')
    return directory


def started(directory: Path) -> str:
    """A campaign on `toy` that is stored and has not run."""
    spec = CampaignSpec(target=str(toy(directory)), planner="script:script.toml")
    return commands.start(load_settings(), spec).id


@pytest.mark.parametrize("place", ["file", "file/home"])
@pytest.mark.parametrize("command", ["run", "calibrate", "list", "show"])
def test_a_home_that_is_a_file_is_a_platform_failure(
    tmp_path: Path, place: str, command: str, monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("INFRA_AGENT_HOME", str(tmp_path / place))
    target = [str(toy(tmp_path / "toy"))] if command in ("run", "calibrate") else []
    planner = ["--planner", "script:script.toml"] if command == "run" else []
    assert execute([command, *target, *planner]) == 5
    said = capsys.readouterr().err
    assert said.startswith(f"infra-agent: {tmp_path}/file")
    assert "choose another path" in said


@pytest.mark.parametrize("command", [["list"], ["doctor"], ["show"], ["run", "tinyserve"]])
def test_a_home_of_nobody_is_wrong_use(command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    monkeypatch.setenv("INFRA_AGENT_HOME", "~nosuchuser")
    assert execute(command) == 2
    assert capsys.readouterr().err.startswith("infra-agent: INFRA_AGENT_HOME=~nosuchuser: ")


def test_a_system_that_refuses_is_no_fault_of_ours(monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    failing_with(OSError(errno.ENOSPC, "No space left on device", "/full/file"), monkeypatch)
    assert execute(["list", "--json"]) == 5
    message = last_line(capsys.readouterr().out)["error"]["message"]
    assert message.startswith("/full/file: the disk is full; free some space")


def test_without_git_nothing_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    target = toy(tmp_path / "toy")
    monkeypatch.setenv("PATH", str(tmp_path))
    for command in (["run", str(target), "--planner", "script:script.toml"], ["calibrate", str(target)]):
        assert execute(command) == 2
        assert "apt-get install git" in capsys.readouterr().err


def test_a_source_that_cannot_be_taken_over_is_wrong_use(tmp_path: Path, capsys: Out) -> None:
    target = toy(tmp_path / "toy")
    os.mkfifo(target / "pipe")
    for command in (["run", str(target), "--planner", "script:script.toml"], ["calibrate", str(target)]):
        assert execute(command) == 2
        assert f"{target}/pipe can't be read (it is not a regular file)" in capsys.readouterr().err


def test_a_lost_repository_ends_the_campaign_and_not_what_is_known(tmp_path: Path, home: Path, capsys: Out) -> None:
    campaign = started(tmp_path / "toy")
    shutil.rmtree(home / "campaigns" / campaign)
    assert execute(["show", "--json"]) == 0
    report = last_line(capsys.readouterr().out)
    assert report["campaign"] == campaign
    assert "repository is gone or damaged" in report["warnings"][-1]
    assert execute(["list"]) == 0
    capsys.readouterr()
    for _ in range(2):
        assert execute(["run", "--resume", campaign]) == 5
        assert "can't be resumed: start anew with `infra-agent run" in capsys.readouterr().err


def test_the_name_of_a_target_leads_to_its_campaigns(tmp_path: Path, capsys: Out) -> None:
    campaign = started(tmp_path / "toy")
    for command in (["show", "toy"], ["show", str(tmp_path / "toy")], ["run", "--resume", "toy"]):
        assert execute(command) == 2
        assert f"`infra-agent show {campaign}`" in capsys.readouterr().err


def test_init_says_in_json_what_it_wrote(tmp_path: Path, capsys: Out) -> None:
    assert execute(["init", str(tmp_path), "--json"]) == 0
    found = last_line(capsys.readouterr().out)
    assert found["path"] == str(tmp_path / "target.toml")
    assert found["commands"][1] == f"infra-agent run {tmp_path}"
    assert execute(["init", str(tmp_path), "--json"]) == 2
    assert last_line(capsys.readouterr().out)["exit_code"] == 2


@pytest.mark.parametrize(
    ("arguments", "redirected", "code"),
    [
        ("list", ">&-", 141),
        ("list", "2>&-", 0),
        ("list", "<&- >&- 2>&-", 141),
        ("list", ">/dev/full", 5),
        ("list --json", ">/dev/full", 5),
        ("list", "2>/dev/full", 0),
        ("--help", ">/dev/full", 5),
        ("--help", "| true; exit ${PIPESTATUS[0]}", 141),
        ("show nothing", ">/dev/full 2>/dev/full", 2),
    ],
)
def test_an_output_that_cannot_be_written_is_no_traceback(arguments: str, redirected: str, code: int) -> None:
    command = f"{sys.executable} -m infra_agent.cli {arguments} {redirected}"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_ctrl_c_before_the_command_has_begun_is_quiet() -> None:
    """The signal comes while the first import of the edge is under way."""
    program = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'infra_agent.cli.edge': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from infra_agent.cli import main\n"
        "main()\n"
    )
    command = [sys.executable, "-c", program, "list", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert done.stderr == "infra-agent: interrupted\n"
    assert last_line(done.stdout)["exit_code"] == 130
