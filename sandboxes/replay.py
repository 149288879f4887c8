"""A sandbox that answers from a record instead of running anything: for tests and demonstrations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from sandboxes.process import SandboxedProcess
from sandboxes.results import ExecResult
from sandboxes.sandbox import SandboxError, SandboxSpec


class ReplaySandbox:
    """Answers commands from recorded results; a Sandbox.

    The results of one command are given in the order they were recorded, the last one again and again.
    """

    def __init__(
        self,
        spec: SandboxSpec,
        recorded: Iterable[tuple[Sequence[str], ExecResult]],
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        """`files` maps inside paths (/tree/a, /scratch/b or a, which lies in /tree) to contents."""
        self.spec = spec
        self.asked: list[tuple[str, ...]] = []
        """Every command that was asked for, in order."""
        self._results: dict[tuple[str, ...], list[ExecResult]] = {}
        for command, result in recorded:
            self._results.setdefault(tuple(command), []).append(result)
        self._files = {_inside(path): data for path, data in (files or {}).items()}

    def exec(
        self,
        command: Sequence[str],
        *,
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        log: Path | None = None,
    ) -> ExecResult:
        """Give the recorded result. Raises SandboxError if there is none: that the record is incomplete says
        nothing about a candidate."""
        self.asked.append(tuple(command))
        results = self._results.get(tuple(command))
        if results is None:
            raise SandboxError(f"the record has no result of `{' '.join(command)}`")
        return results.pop(0) if len(results) > 1 else results[0]

    def start(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        interactive: bool = True,
        log: Path | None = None,
    ) -> SandboxedProcess:
        """Raises SandboxError: a conversation cannot be replayed."""
        raise SandboxError(f"a replay cannot start `{' '.join(command)}`")

    def read_file(self, path: str, limit_bytes: int = 1 << 24) -> bytes:
        """Read a recorded or written file. Raises FileNotFoundError if it is absent or too large."""
        data = self._files.get(_inside(path))
        if data is None or len(data) > limit_bytes:
            raise FileNotFoundError(f"absent or larger than {limit_bytes} bytes: {path}")
        return data

    def write_file(self, path: str, data: bytes) -> None:
        """Remember a file."""
        self._files[_inside(path)] = data

    def close(self) -> None:
        """Nothing runs, nothing is released."""


def _inside(path: str) -> PurePosixPath:
    return PurePosixPath("/tree") / path
