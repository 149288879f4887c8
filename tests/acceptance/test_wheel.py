"""A built wheel holds everything that is read at run time, and works from any directory."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEEDED = (
    "infra_agent/shipped_targets/llamacpp/target.toml",
    "infra_agent/shipped_targets/llamacpp/serve.py",
    "infra_agent/shipped_targets/tinyserve/kernels/kda_decode.c",
    "infra_agent/shipped_targets/tinyserve/scripts/hoist.toml",
    "infra_agent/templates/target.toml",
    "infra_agent/store/migrations/versions/",
    "infra_agent/planner/prompts/",
    "feedback/readers/engine_log.toml",
    "feedback/readers/prometheus.toml",
)


@pytest.mark.slow
def test_wheel_is_complete_and_runs_elsewhere(tmp_path: Path) -> None:
    source = tmp_path / "source"
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, check=True).stdout
    for name in listed.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path / "dist", source]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for needed in NEEDED:
        assert any(name.startswith(needed) for name in names), needed
    assert not [name for name in names if "__pycache__" in name or "/build/" in name or name.endswith(".so")]

    site = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", site, wheel]
    subprocess.run(command, check=True)
    env = {**os.environ, "PYTHONPATH": str(site), "INFRA_AGENT_HOME": str(tmp_path / "home"), "NO_COLOR": "1"}
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    command = [sys.executable, "-m", "infra_agent.cli", "run", "tinyserve", "--planner", "script:scripts/hoist.toml"]
    done = subprocess.run([*command, "--experiments", "1"], cwd=elsewhere, env=env, capture_output=True, text=True)
    assert done.returncode == 3, done.stderr  # the script's first proposal is wrong, and the budget ends there
    assert "kda_parity" in done.stdout
    assert str(site) in subprocess.run(
        [sys.executable, "-c", "import infra_agent; print(infra_agent.__file__)"],
        cwd=elsewhere, env=env, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
