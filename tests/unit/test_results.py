"""Records of what happened: what they say in a line, and that a run survives on disk."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from pydantic import ValidationError

from sandboxes.results import Artefact, Ending, ExecResult, Run, Step, StepResult, sha256_file


def result(ending: Ending = Ending.EXITED, returncode: int | None = 0, **fields: object) -> ExecResult:
    return ExecResult.model_validate(
        {"command": ("python", "worker.py"), "ending": ending, "returncode": returncode} | fields
    )


@pytest.mark.parametrize(
    ("ending", "returncode", "is_ok"),
    [
        (Ending.EXITED, 0, True),
        (Ending.EXITED, 1, False),
        (Ending.SIGNALLED, None, False),
        (Ending.TIMEOUT, None, False),
        (Ending.MEMORY, None, False),
        (Ending.PROCESSES, None, False),
        (Ending.OUTPUT, None, False),
        (Ending.STOPPED, None, False),
    ],
)
def test_only_status_zero_is_ok(ending: Ending, returncode: int | None, is_ok: bool) -> None:
    assert result(ending, returncode).ok is is_ok
    assert "`python worker.py` " in result(ending, returncode).describe()


def test_every_ending_is_described() -> None:
    texts = {result(ending, None).describe() for ending in Ending}
    assert len(texts) == len(Ending)


def test_last_line_that_was_said_is_told() -> None:
    assert result(returncode=1, stderr="a\nlast words\n \n").describe().endswith("status 1: last words")
    assert result(returncode=1, stdout="on stdout\n").describe().endswith("status 1: on stdout")
    assert result(returncode=1, stdout="out", stderr="err").describe().endswith(": err")
    assert result(returncode=1).describe().endswith("status 1")


def test_description_is_short() -> None:
    long = result(returncode=1, command=("x" * 900,), stderr="y" * 9000)
    assert len(long.describe()) < 500


def test_records_are_frozen_and_know_their_fields() -> None:
    with pytest.raises(ValidationError):
        result().returncode = 1  # type: ignore[misc]
    with pytest.raises(ValidationError, match="extra"):
        result(extra=1)
    with pytest.raises(ValidationError):
        Artefact.model_validate({"path": "a", "format": "text", "probe": "p", "arm": "third"})


def test_run_is_a_directory(tmp_path: Path) -> None:
    step = StepResult(step=Step(name="build", command=("make",), timeout_s=3.0), result=result(), arm="baseline")
    artefact = Artefact(path="a.jsonl", format="slices", probe="p", stage="confirm")
    run = Run(directory=tmp_path, steps=(step,), artefacts=(artefact,))
    run.save()
    assert Run.load(tmp_path) == run
    assert run.path(artefact) == tmp_path / "a.jsonl"
    moved = tmp_path.with_name("moved")
    tmp_path.rename(moved)
    assert Run.load(moved).steps == run.steps
    assert str(tmp_path) not in (moved / "run.json").read_text()


def test_directory_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Run.load(tmp_path)
    (tmp_path / "run.json").write_text('{"steps": [1]}')
    with pytest.raises(ValidationError):
        Run.load(tmp_path)


@pytest.mark.parametrize("size", [0, 1, 1 << 20, (1 << 20) + 1, 3 << 20])
def test_hash_of_a_file(tmp_path: Path, size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    (tmp_path / "f").write_bytes(data[:size])
    assert sha256_file(tmp_path / "f") == hashlib.sha256(data[:size]).hexdigest()
