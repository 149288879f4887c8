"""A candidate that hangs, exits, forks, floods, fills memory or ignores signals costs its experiment, no more."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

from infra_agent import commands
from infra_agent.domain import Budget, CampaignSpec
from infra_agent.settings import load_settings

TARGET = """
schema = 1
name = "misbehaving"
description = "a worker that does what its launch file says"
editable = ["work.toml"]
[objective]
metric = "slice_time_s"
direction = "minimize"
probe = "slices"
min_effect = 0.02
[launch_file]
path = "work.toml"
[limits]
memory_bytes = 300000000
processes = 24
output_bytes = 1000000
[[knobs]]
name = "mode"
key = "mode"
description = "how the worker behaves"
choices = ["good", "hang", "exit", "fork", "flood", "memory", "deaf", "daemon", "crash", "garbage"]
[[knobs]]
name = "units"
key = "units"
description = "units of work"
minimum = 1
maximum = 100000
[[probes]]
name = "slices"
kind = "microbench"
method = "slices"
worker = ["{python}", "-S", "worker.py"]
slice_target_s = 0.005
slice_timeout_s = 3
looks = [4, 8, 16]
blocks = 3
"""
WORKER = """
import json, os, signal, sys, time, tomllib
work = tomllib.loads(open("work.toml").read())
MARK = "mark-of-a-misbehaving-candidate"
print(json.dumps({"ready": True, "protocol": 1}), flush=True)
def misbehave(mode):
    if mode == "hang":
        time.sleep(600)
    if mode == "exit":
        os._exit(3)
    if mode == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if mode == "garbage":
        print("not json", flush=True)
    if mode == "fork":
        while True:
            try:
                os.fork()
            except OSError:
                pass
    if mode == "flood":
        while True:
            sys.stderr.write("x" * 65536)
    if mode == "memory":
        hoard = []
        while True:
            hoard.append(bytearray(b"x") * 10_000_000)
    if mode == "deaf":
        for number in range(1, 65):
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):
                pass
        time.sleep(600)
    if mode == "daemon":
        if os.fork() == 0:
            os.setsid()
            os.execv(sys.executable, [sys.executable, "-S", "-c", "import time; time.sleep(600)", MARK])
        os._exit(0)
for line in sys.stdin:
    request = json.loads(line)
    misbehave(work["mode"])
    x = request["seed"] % 7
    for _ in range(request["params"].get("repeat", 1) * work["units"]):
        x = (x * 31 + 7) % 1009
    print(json.dumps({"slice": request["slice"]}), flush=True)
"""
MODES = {
    "hang": "did not finish within its time limit",
    "exit": "exited with status 3",
    "fork": "",  # the kernel refuses, the watchdog counts, or the slice is late: any of them ends it
    "flood": "wrote more output than its limit",
    "memory": "exceeded its memory limit",
    "deaf": "did not finish within its time limit",
    "daemon": "exited with status 0",
    "crash": "signal 11",
    "garbage": "no JSON",
}


@pytest.fixture
def target(tmp_path: Path) -> Path:
    directory = tmp_path / "target"
    directory.mkdir()
    (directory / "target.toml").write_text(TARGET)
    (directory / "worker.py").write_text(WORKER)
    (directory / "work.toml").write_text('mode = "good"\nunits = 1000\n')
    return directory


@pytest.mark.parametrize("mode", MODES)
def test_campaign_goes_on_after_a_candidate_that(mode: str, target: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.toml"
    script.write_text(
        f'[[propose]]\nclaim = "{mode}"\nknobs = {{ mode = "{mode}" }}\n\n'
        '[[propose]]\nclaim = "a fifth of the work"\nknobs = { units = 200 }\n'
    )
    settings = load_settings({"INFRA_AGENT_HOME": str(tmp_path / "home")})
    spec = CampaignSpec(target=str(target), planner=f"script:{script}", budget=Budget(experiments=2))
    campaign = commands.start(settings, spec)
    started = time.monotonic()
    ran = commands.run(settings, campaign.id, lambda event: None, lambda line: None)
    assert time.monotonic() - started < 90  # far above what it takes: only a hang would get there

    bad, good = (e for e in ran.journal.experiments if e.role == "change")
    assert bad.verdict is not None
    assert bad.verdict.kind.value == "reject"
    assert MODES[mode] in bad.verdict.reasons[0]
    assert any(s.rule_id == "stability.tool_error" for s in bad.signals)
    assert good.verdict is not None
    assert good.verdict.kind.value == "accept"
    assert good.confirmed
    assert not [p for p in psutil.process_iter(["cmdline"]) if "mark-of-a-misbehaving" in str(p.info["cmdline"])]
