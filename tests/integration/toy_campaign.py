"""A toy target that takes a second a measurement, a worker whose launch file says how often it does its work, and the
command line as a process of its own to run campaigns on it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from infra_agent import commands
from infra_agent.domain import Event, Experiment
from infra_agent.settings import load_settings
from infra_agent.store import open_store

ROOT = Path(__file__).resolve().parents[2]
TOP = """
schema = 1
name = "toy"
description = "A worker that does its work several times over"
editable = ["launch.toml"]
hidden = ["scripts"]
[objective]
metric = "slice_time_s"
direction = "minimize"
probe = "bench"
min_effect = 0.05
[launch_file]
path = "launch.toml"
"""
KNOBS = """
[[knobs]]
name = "copies"
description = "How often the work is done"
key = "copies"
minimum = 1
maximum = 64
engine_default = 2
[[controls]]
name = "engine-defaults"
description = "Everything left to the engine"
"""
BENCH = """
[[probes]]
name = "bench"
kind = "microbench"
method = "slices"
worker = ["{python}", "worker.py"]
slice_target_s = 0.004
looks = [6, 12]
blocks = 2
budget_s = 60
default_margin = 0.05
"""
TARGET = TOP + KNOBS + BENCH
WORKER = """
import json, os, random, tomllib

requests, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.dup2(2, 1)
with open("launch.toml", "rb") as file:
    copies = tomllib.load(file).get("copies", 2)


def reply(**message):
    print(json.dumps(message), file=replies, flush=True)


reply(ready=True, protocol=1)
for line in requests:
    request = json.loads(line)
    for _ in range(copies):
        x = random.Random(request["seed"]).random()
        for _ in range(request["params"]["repeat"] * 50):
            x = 3.9 * x * (1.0 - x)
    reply(slice=request["slice"], check=[x])
"""
SCRIPT = """
[[propose]]
claim = "Twice as many copies are faster"
knobs = { copies = 32 }
[[propose]]
claim = "Very many copies are faster still"
knobs = { copies = 99 }
[[propose]]
claim = "One copy is enough"
knobs = { copies = 1 }
"""


class Done(NamedTuple):
    """A command that ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The last line of stdout."""
        return json.loads(self.out.splitlines()[-1])


class Cli(NamedTuple):
    """The command line with a home of its own."""

    home: Path
    cwd: Path

    def __call__(self, *arguments: str, **env: str) -> Done:
        done = subprocess.run(
            self.command(arguments), cwd=self.cwd, env=self.env(env), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=500, check=False,
        )  # fmt: skip
        return Done(done.returncode, done.stdout, done.stderr)

    @staticmethod
    def command(arguments: Sequence[str]) -> list[str]:
        """A job in the background of a shell ignores Ctrl-C, so the test says that this one does not."""
        start = (
            "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
            "from infra_agent.cli import main; main()"
        )
        return [sys.executable, "-c", start, *arguments]

    def env(self, more: dict[str, str]) -> dict[str, str]:
        plain = {k: v for k, v in os.environ.items() if not k.startswith(("OPENAI_", "INFRA_AGENT_"))}
        return {**plain, "INFRA_AGENT_HOME": str(self.home), "PYTHONPATH": str(ROOT), **more}

    @contextlib.contextmanager
    def started(self, *arguments: str, **env: str) -> Iterator[Running]:
        with subprocess.Popen(
            self.command(arguments), cwd=self.cwd, env=self.env(env), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            try:
                yield Running(process)
            finally:
                process.kill()

    def experiments(self, campaign: str = "latest") -> tuple[Experiment, ...]:
        _, journal = commands.campaign(load_settings({"INFRA_AGENT_HOME": str(self.home)}), campaign)
        return journal.experiments

    def changes(self, campaign: str = "latest") -> list[Experiment]:
        return [e for e in self.experiments(campaign) if e.role == "change"]

    def events(self) -> list[Event]:
        settings = load_settings({"INFRA_AGENT_HOME": str(self.home)})
        with open_store(settings.database_url) as store, store.transaction(read_only=True) as ledger:
            return list(ledger.events(ledger.campaign("latest").id))


class Running(NamedTuple):
    """A campaign that runs."""

    process: subprocess.Popen[str]

    def until(self, pattern: str, within_s: float = 240) -> str:
        """Read what it says until a line matches; returns everything read."""
        assert self.process.stderr is not None
        said, deadline = "", time.monotonic() + within_s
        for line in self.process.stderr:
            said += line
            if re.search(pattern, line):
                return said
            assert time.monotonic() < deadline, said
        raise AssertionError(f"it ended before {pattern!r}:\n{said}")

    def end(self, number: signal.Signals) -> Done:
        """Send a signal; checks that nothing which it started survives."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=60)
        _, alive = psutil.wait_procs(children, timeout=15)
        assert alive == []
        return Done(self.process.returncode, out, err)


def git(directory: Path, *arguments: str, stdin: str = "") -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=directory, input=stdin, capture_output=True, text=True, check=True
    )
    return done.stdout


def make_target(
    directory: Path,
    target: str = TARGET,
    script: str = SCRIPT,
    copies: int = 16,
    worker: str = WORKER,
    launch: str = "",
) -> Path:
    """The toy target under git; `launch` is more of its launch file."""
    (directory / "scripts").mkdir(parents=True)
    (directory / "target.toml").write_text(target)
    (directory / "worker.py").write_text(worker)
    (directory / "launch.toml").write_text(f"# how often\ncopies = {copies}\n{launch}")
    (directory / "scripts" / "all.toml").write_text(script)
    git(directory, "init", "--quiet", ".")
    git(directory, "add", ".")
    git(directory, "commit", "--quiet", "-m", "toy")
    return directory
