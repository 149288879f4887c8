"""A replay answers what was recorded and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandboxes.replay import ReplaySandbox
from sandboxes.results import Ending, ExecResult
from sandboxes.sandbox import Sandbox, SandboxError, SandboxSpec

SPEC = SandboxSpec(tree=Path("/absent"), scratch=Path("/absent"))


def result(command: tuple[str, ...], returncode: int) -> ExecResult:
    return ExecResult(command=command, ending=Ending.EXITED, returncode=returncode)


def test_results_come_in_order_and_the_last_one_stays() -> None:
    make, test = ("make",), ("make", "test")
    recorded = [(make, result(make, 2)), (test, result(test, 1)), (make, result(make, 0))]
    sandbox: Sandbox = ReplaySandbox(SPEC, recorded)
    assert [sandbox.exec(["make"]).returncode for _ in range(3)] == [2, 0, 0]
    assert sandbox.exec(["make", "test"], timeout_s=1.0, env={"A": "b"}, stdin=b"x").returncode == 1


def test_unrecorded_command_is_a_failure_of_the_sandbox() -> None:
    sandbox = ReplaySandbox(SPEC, [(("make",), result(("make",), 0))])
    with pytest.raises(SandboxError, match="make test"):
        sandbox.exec(["make", "test"])
    with pytest.raises(SandboxError, match="cannot start"):
        sandbox.start(["make"])
    assert sandbox.asked == [("make", "test")]


def test_files_are_recorded_or_written() -> None:
    sandbox = ReplaySandbox(SPEC, [], files={"a": b"tree", "/scratch/b": b"scratch"})
    assert sandbox.read_file("/tree/a") == b"tree"
    assert sandbox.read_file("/scratch/b") == b"scratch"
    sandbox.write_file("c/d", b"new")
    assert sandbox.read_file("/tree/c/d") == b"new"
    for path, limit_bytes in (("absent", 10), ("a", 3)):
        with pytest.raises(FileNotFoundError):
            sandbox.read_file(path, limit_bytes)
    sandbox.close()
