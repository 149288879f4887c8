"""Both arms of one stage of an experiment: fresh trees, fresh sandboxes, fresh seeds, and what they left behind.

A Bench owns the sandboxes and the records; what a probe does with them stands in `probes`.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from feedback.observations import Scalar
from infra_agent import packages
from infra_agent.errors import InfraAgentError
from infra_agent.halt import Halt
from infra_agent.target import Probe, TargetSpec
from infra_agent.turns import Turns
from sandboxes.results import ArmName, Artefact, Record, Run, Step, StepResult
from sandboxes.sandbox import ProcessFailed, Sandbox, SandboxSpec, open_sandbox
from sandboxes.workspace import Repository

ARMS: tuple[ArmName, ...] = ("baseline", "candidate")


class BaselineFailed(InfraAgentError):
    """The baseline itself fails a probe, so no change can be measured against it."""

    exit_code = 6


class CandidateFailed(Exception):
    """The candidate failed a probe; the run holds what happened."""


MACHINE = Turns()
NEVER = Halt()


class Site(NamedTuple):
    """What every probe of a campaign needs to know."""

    spec: TargetSpec
    repository: Repository
    package_directories: Mapping[str, Path]
    parity_reference: Path | None = None
    """Teacher-forced scores of the campaign's original, measured twice in its baseline run."""
    sandbox_kind: str = "bubblewrap"
    turns: Turns = MACHINE
    """Shared by all experiments that run at once on this machine."""
    halt: Halt = NEVER
    """Ends them all."""


class Stage(Record):
    """Which measurement of an experiment this is, and of which commits."""

    name: str
    baseline: str
    candidate: str
    seed: int
    pairs: int | None = None
    """Measure exactly this many pairs; None lets the probe's looks decide."""
    may_give_up: bool = True
    """Whether it may end once a gain that counts has become improbable; a comparison that is reported for its
    interval goes on."""
    investigates: bool = False
    """Whether only the parent is looked at, under conditions of somebody's choice: its failure is an answer then."""


class Bench:
    """Both arms of one stage, open from the first probe to the last. Use as a context manager."""

    def __init__(
        self,
        site: Site,
        stage: Stage,
        run_directory: Path,
        seconds_left: Callable[[], float | None] = lambda: None,
    ) -> None:
        self.site = site
        self.seconds_left = seconds_left
        self.stage = stage
        self.arms = ("candidate",) if stage.investigates else ARMS
        """The arms that a probe runs which does not need both."""
        self.point: int | None = None
        """Which point of an investigation is measured."""
        self.case: dict[str, Scalar] = {}
        """What was chosen at that point."""
        self.run_directory = run_directory
        self.steps: list[StepResult] = []
        self.artefacts: list[Artefact] = []
        self.sandbox_s = 0.0
        """Wall time spent waiting for sandboxed work."""
        self.rng = random.Random(stage.seed)
        self._stack = ExitStack()
        self._sandboxes: dict[tuple[str, tuple[int, ...]], Sandbox] = {}

    def __enter__(self) -> Bench:
        self.run_directory.mkdir(parents=True, exist_ok=True)
        # Unix socket paths end at about 100 bytes, so this must not lie deep in the home.
        self.root = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="ia-")))
        self.root.chmod(0o755)
        self._stack.enter_context(self.site.halt.ending(self._end_sandboxes))
        try:
            for arm, commit in (("baseline", self.stage.baseline), ("candidate", self.stage.candidate)):
                self.site.repository.checkout(commit, self.root / arm)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def _end_sandboxes(self) -> None:
        for sandbox in tuple(self._sandboxes.values()):
            sandbox.close()

    def record(self) -> Run:
        """Everything so far as a Run."""
        return Run(directory=self.run_directory, steps=tuple(self.steps), artefacts=tuple(self.artefacts))

    def sandbox(self, owner: str, cpus: tuple[int, ...] = ()) -> Sandbox:
        """The sandbox of an arm, or of the oracle (a pristine copy of the base that no candidate touches)."""
        self.site.halt.check()
        key = (owner, cpus)
        if key not in self._sandboxes:
            tree = self.root / owner
            if not tree.exists():
                self.site.repository.checkout(self.stage.baseline, tree)
            scratch = self.root / f"{owner}-{len(self._sandboxes)}"
            scratch.mkdir()
            spec = self.site.spec
            path = ":".join(f"{packages.INSIDE}/{name}" for name in self.site.package_directories)
            sandbox = open_sandbox(
                self.site.sandbox_kind,
                SandboxSpec(
                    tree=tree,
                    scratch=scratch,
                    mounts=packages.mounts(dict(self.site.package_directories)),
                    env={
                        **spec.env,
                        **({"PYTHONPATH": path} if path else {}),
                        "PYTHONDONTWRITEBYTECODE": "1",
                    },
                    limits=spec.limits,
                    cpus=cpus,
                ),
            )
            self._stack.callback(sandbox.close)
            self._sandboxes[key] = sandbox
        return self._sandboxes[key]

    def expand(self, command: Sequence[str], inside: bool = True) -> tuple[str, ...]:
        """Fill in placeholders: {python}, {package:NAME}, {socket}; as seen inside the sandbox or on the host."""
        values = {"{python}": sys.executable}
        if self.site.spec.server is not None:
            values["{socket}"] = f"/scratch/{self.site.spec.server.socket}"
        for name, directory in self.site.package_directories.items():
            values[f"{{package:{name}}}"] = f"{packages.INSIDE}/{name}" if inside else str(directory)
        expanded = []
        for part in command:
            for placeholder, value in values.items():
                part = part.replace(placeholder, value)
            expanded.append(part)
        return tuple(expanded)

    @contextmanager
    def failing(self, arm: ArmName, probe: Probe) -> Iterator[None]:
        """Turn a failed process of an arm into that arm's failure."""
        try:
            yield
        except ProcessFailed as failure:
            self.failed(arm, probe, failure)

    def failed(self, arm: ArmName, probe: Probe, failure: ProcessFailed) -> NoReturn:
        """Record a failed process and end the stage. Raises Halted if it was ended from outside."""
        self.site.halt.check()
        step = Step(name=probe.name, command=failure.result.command, timeout_s=0)
        self.steps.append(
            StepResult(step=step, result=failure.result, arm=arm, stage=self.stage.name, during=failure.during)
        )
        self.fail(arm, f"{probe.name}: {failure}")

    def fail(self, arm: ArmName, message: str) -> NoReturn:
        """End the stage: the candidate's failure is data, the baseline's is not. Raises Halted as `failed` does."""
        self.site.halt.check()
        if self.stage.investigates or (arm == "candidate" and self.stage.candidate != self.stage.baseline):
            raise CandidateFailed(message)
        self.record().save()  # what the failed process said
        raise BaselineFailed(
            f"the unchanged target fails: {message}\nRun the command by hand in the target's directory and mend it; "
            f"logs are in {self.run_directory}"
        )

    @contextmanager
    def sandboxed(self) -> Iterator[None]:
        """Count the time inside as sandboxed work."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.sandbox_s += time.monotonic() - started

    def file(self, probe: Probe, rest: str) -> str:
        """Name of a file of this stage and probe in the run directory."""
        name = f"{self.stage.name}-{probe.name}" + ("" if self.point is None else f"-{self.point}")
        return f"{name}-{rest}" if "." in rest else f"{name}.{rest}"

    def append(self, name: str, lines: Sequence[Mapping[str, Any]]) -> None:
        """Add JSON lines to a file of the run. A run that is cut off is measured anew, so nothing waits for the
        disk here; what is kept of a finished one does."""
        with (self.run_directory / name).open("a", encoding="utf-8") as file:
            for line in lines:
                file.write(json.dumps(line) + "\n")

    def keep(self, name: str, format: str, probe: Probe, arm: ArmName | None = None) -> None:
        """List a file of the run as an artefact of a probe."""
        self.artefacts.append(Artefact(path=name, format=format, probe=probe.name, arm=arm, stage=self.stage.name))
