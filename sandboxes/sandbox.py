"""The Sandbox protocol: one place where a candidate's commands run, walled off from everything else.

A command that fails is an `ExecResult`; a `SandboxError` means that the sandbox itself failed, and must
never be shown to a planner as evidence about a candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from pydantic import Field

from sandboxes.results import ExecResult, Record

LONGEST_S = 31_536_000.0
"""A year: no time limit needs more, and far larger ones overflow the system's clocks."""


class SandboxError(Exception):
    """The sandbox failed; this says nothing about the candidate."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())


class SandboxUnavailable(SandboxError):
    """No sandbox can be opened on this host."""


class ProcessFailed(Exception):
    """A started process of a candidate ended, fell silent or broke its protocol: data, not a platform failure."""

    def __init__(self, result: ExecResult, during: str) -> None:
        super().__init__(f"{during}: {result.describe()}")
        self.result = result
        self.during = during


class Mount(Record):
    """A host path shown read-only inside the sandbox."""

    host: Path
    inside: str


class Limits(Record):
    """What one sandbox may use. Every limit ends the whole process tree with a typed `Ending`."""

    memory_bytes: int = Field(default=4 << 30, gt=0)
    """Resident memory of the process tree together."""
    processes: int = Field(default=128, gt=0)
    """Processes and threads of the tree together."""
    open_files: int = Field(default=1024, gt=0)
    file_bytes: int = Field(default=1 << 30, gt=0)
    """Largest file that may be written, and the size of the private /tmp."""
    output_bytes: int = Field(default=16 << 20, gt=0)
    """stdout and stderr together; more ends the command with `output`."""
    timeout_s: float = Field(default=120.0, gt=0, le=LONGEST_S)
    """Default time limit of one command."""


class SandboxSpec(Record):
    """How to open one sandbox. There is no field for network access: there is none."""

    tree: Path
    """Host directory shown read-write as /tree, the working directory of every command."""
    scratch: Path
    """Host directory shown read-write as /scratch: sockets and artefacts. Keep its path short (Unix sockets)."""
    mounts: tuple[Mount, ...] = ()
    env: dict[str, str] = {}
    """The whole environment beside PATH, HOME and LANG: nothing is inherited."""
    limits: Limits = Limits()
    cpus: tuple[int, ...] = ()
    """CPUs the tree is pinned to; empty means all."""


class Process(Protocol):
    """A started process in a sandbox with its standard input and output as pipes."""

    def write_line(self, line: bytes) -> None:
        """Send one line (newline added). Raises ProcessFailed if the process is gone."""

    def read_line(self, timeout_s: float) -> bytes:
        """Receive one line without its newline. Raises ProcessFailed when none comes in time or it ended."""

    def pids(self) -> list[int]:
        """Host pids of the process tree, the sandbox's own helper processes included."""

    def ended(self) -> ExecResult | None:
        """The result if the process has ended, else None."""

    def stop(self) -> ExecResult:
        """End the whole tree now and return what happened. Safe to call twice."""


class Sandbox(Protocol):
    """Runs commands of one candidate: no network, a read-only system, an empty environment and hard limits."""

    spec: SandboxSpec

    def exec(
        self,
        command: Sequence[str],
        *,
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        log: Path | None = None,
    ) -> ExecResult:
        """Run a command to its end or its limit; its output is also appended to `log`, a host file, if given.
        Raises SandboxError only when the sandbox itself fails."""

    def start(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        interactive: bool = True,
        log: Path | None = None,
    ) -> Process:
        """Start a long-lived process. An interactive one (a slice worker) answers on its standard output; of
        another (a server) that is collected like its standard error. What is collected is also appended to
        `log`, a host file, if given. There is no time limit. Raises SandboxError as `exec` does."""

    def read_file(self, path: str, limit_bytes: int = 1 << 24) -> bytes:
        """Read a regular file of /tree or /scratch by its inside path; links are never followed outside.
        Raises FileNotFoundError if it is absent, not regular or larger than the limit."""

    def write_file(self, path: str, data: bytes) -> None:
        """Write a file below /tree or /scratch by its inside path, making directories as needed."""

    def close(self) -> None:
        """End everything that still runs and release the sandbox. Safe to call twice."""


def open_sandbox(kind: str, spec: SandboxSpec) -> Sandbox:
    """Open a sandbox by the name of its kind. Raises SandboxError for an unknown kind, SandboxUnavailable if
    this host cannot make one."""
    # Imported here, because every kind imports this module.
    from sandboxes.bubblewrap import BubblewrapSandbox

    kinds: dict[str, Callable[[SandboxSpec], Sandbox]] = {"bubblewrap": BubblewrapSandbox}
    if kind not in kinds:
        raise SandboxError(f"unknown kind of sandbox `{kind}`; known: {', '.join(sorted(kinds))}")
    return kinds[kind](spec)
