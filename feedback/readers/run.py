"""A whole run directory: each artefact to the reader of its format, each step to what it says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from feedback.observations import Observation, RuntimeEvent, TestOutcome
from feedback.readers import formats
from sandboxes.results import Artefact, Run, StepResult


def read(run: Run) -> list[Observation]:
    """All observations of a run. Raises Unreadable with file and line when an artefact is broken, OSError
    when it is not there."""
    return [
        *steps(run.steps),
        *(o for artefact in run.artefacts for o in read_artefact(run.directory, artefact)),
    ]


def read_artefact(directory: Path, artefact: Artefact) -> list[Observation]:
    """The observations in one artefact. Formats that only people read give none."""
    format = formats.named(artefact.format)
    if format is None:
        return []
    path = directory / artefact.path
    return list(format.read(path, artefact.probe, artefact.stage, artefact.arm or "candidate"))


def steps(results: Sequence[StepResult]) -> list[Observation]:
    """Commands that ran to their end become test outcomes; processes that failed become events."""
    found: list[Observation] = []
    for s in results:
        said = s.result.describe()
        if s.during:
            found.append(
                RuntimeEvent(
                    probe=s.step.name,
                    source="process",
                    name=s.result.ending.value,
                    level="error",
                    message=f"{s.during}: {said}",
                    arm=s.arm,
                    stage=s.stage,
                )
            )
        else:
            found.append(
                TestOutcome(
                    probe=s.step.name,
                    name=s.step.name,
                    outcome="passed" if s.result.ok else "failed",
                    message="" if s.result.ok else said,
                    arm=s.arm,
                    stage=s.stage,
                )
            )
    return found
