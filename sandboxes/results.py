"""Frozen records of what happened in a sandbox. A Run is a directory on disk.

Nothing here interprets a result: a command that failed is a record like any other.
"""

from __future__ import annotations

import hashlib
import json
from enum import StrEnum
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

ArmName = Literal["baseline", "candidate"]


class Record(BaseModel):
    """A frozen record that refuses unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Ending(StrEnum):
    """How a sandboxed process tree came to its end."""

    EXITED = "exited"
    SIGNALLED = "signalled"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    PROCESSES = "processes"
    OUTPUT = "output"
    STOPPED = "stopped"


class ExecResult(Record):
    """What one command in a sandbox did. A failing command is an ordinary result."""

    command: tuple[str, ...]
    ending: Ending
    """`exited` ended by itself; `stopped` was ended by us on purpose; the others name the limit that was hit."""
    returncode: int | None
    """Exit status if the command ended by itself, else None."""
    signal: int | None = None
    """Signal number that ended it, if one did and no limit of ours was the reason."""
    stdout: str = ""
    """Decoded with replacement; cut head and tail when longer than the sandbox's limit."""
    stderr: str = ""
    output_bytes: int = 0
    """Bytes written to stdout and stderr together, kept or not."""
    duration_s: float = 0.0
    peak_memory_bytes: int | None = None
    """Largest resident memory of the process tree seen by the watchdog."""
    peak_processes: int | None = None

    @property
    def ok(self) -> bool:
        """Whether the command ended by itself with status 0."""
        return self.ending is Ending.EXITED and self.returncode == 0

    def describe(self) -> str:
        """One line for people and planners: how it ended and the last line it said."""
        how = {
            Ending.EXITED: f"exited with status {self.returncode}",
            Ending.SIGNALLED: f"was ended by signal {self.signal}",
            Ending.TIMEOUT: f"did not finish within its time limit ({self.duration_s:.1f} s)",
            Ending.MEMORY: "exceeded its memory limit",
            Ending.PROCESSES: "exceeded its process limit",
            Ending.OUTPUT: "wrote more output than its limit allows",
            Ending.STOPPED: "was stopped",
        }[self.ending]
        said = (self.stderr.strip() or self.stdout.strip()).splitlines()
        return f"`{' '.join(self.command)[:120]}` {how}" + (f": {said[-1].strip()[:300]}" if said else "")


class Artefact(Record):
    """A file of a Run, named by a path inside the run directory."""

    path: str
    format: str
    """Which reader understands it: slices, load, parity, checks, prometheus, engine_log, callgrind, text."""
    probe: str
    arm: ArmName | None = None
    stage: str = "screen"
    """screen or confirm: which measurement of the experiment made it."""
    case: dict[str, str | int | float | bool] = {}
    """Which parameters were chosen for the command that left it, where somebody chose."""
    lost: str = ""
    """Why there is no such file although it was promised; empty if there is one."""


class Step(Record):
    """One command of a Run."""

    name: str
    command: tuple[str, ...]
    timeout_s: float


class StepResult(Record):
    """A Step and what it did."""

    step: Step
    result: ExecResult
    arm: ArmName
    stage: str = "screen"
    during: str = ""
    """What was asked of a long-lived process when it failed; empty for a command that ran to its end."""


class Run(Record):
    """Everything one experiment left behind: a directory with `run.json` and the artefacts it lists."""

    directory: Path
    steps: tuple[StepResult, ...] = ()
    artefacts: tuple[Artefact, ...] = ()

    def path(self, artefact: Artefact) -> Path:
        """Where an artefact of this run lies on disk."""
        return self.directory / artefact.path

    def save(self) -> None:
        """Write `run.json`, so that the directory can be read later or elsewhere."""
        text = self.model_dump_json(indent=1, exclude={"directory"})
        (self.directory / "run.json").write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, directory: Path) -> Run:
        """Read a run directory back. Raises OSError or pydantic.ValidationError when it is not one."""
        data = json.loads((directory / "run.json").read_text(encoding="utf-8"))
        return cls.model_validate({**data, "directory": directory})


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
