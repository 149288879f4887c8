"""A hidden probe in a real campaign: asked of what was accepted, and only pass or fail of it reaches anyone."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from toy_campaign import TARGET, Cli, make_target

from sandboxes.bubblewrap import probe_host

pytestmark = pytest.mark.skipif(not probe_host().available, reason="this host refuses a sandbox")

HIDDEN = """
[[probes]]
name = "answers"
kind = "correctness"
method = "command"
gate = true
hidden = true
command = ["{python}", "-c", '''
import sys, tomllib
with open("launch.toml", "rb") as file:
    copies = tomllib.load(file)["copies"]
sys.exit("fewer than two: XYZZY" if copies < 2 else 0)
''']
"""
SCRIPT = """
[[propose]]
claim = "One copy is enough"
knobs = { copies = 1 }
"""


def test_what_is_faster_but_fails_a_hidden_probe_is_rejected(tmp_path: Path) -> None:
    toy = make_target(tmp_path / "toy", TARGET + HIDDEN, SCRIPT)
    cli = Cli(tmp_path / "home", tmp_path)
    done = cli("run", str(toy), "--planner", "script:scripts/all.toml", "--json")
    (tried,) = done.json["tried"]
    assert tried["outcome"] == "reject", done.err
    assert "hidden probe answers: failed" in json.dumps(done.json)
    assert "confirm: answers" in done.err
    assert "XYZZY" not in done.out + done.err
    assert not done.json["patch"]
    repositories = list((cli.home / "campaigns").glob("*/repo"))
    tree = subprocess.run(
        ["git", "ls-tree", "-r", "--name-only", "--full-tree", *_commits(repositories[0])[:1]],
        cwd=repositories[0],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "worker.py" in tree
    assert "target.toml" not in tree  # a candidate would read there what the probe asks


def _commits(repository: Path) -> list[str]:
    refs = ["git", "for-each-ref", "--format=%(objectname)"]
    return subprocess.run(refs, cwd=repository, capture_output=True, text=True, check=True).stdout.split()


def test_a_planner_can_not_ask_for_a_hidden_probe(tmp_path: Path) -> None:
    script = SCRIPT + 'probe = "answers"\n'
    toy = make_target(tmp_path / "toy", TARGET + HIDDEN, script)
    done = Cli(tmp_path / "home", tmp_path)("run", str(toy), "--planner", "script:scripts/all.toml")
    assert done.code == 2
    assert "unknown probe 'answers'; known are: bench" in done.err
