"""A whole run directory: each artefact to the reader of its format, each step to what it says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from feedback.observations import Observation, RuntimeEvent, TestOutcome
from feedback.readers import callgrind, engine_log, load, logprobs, outputs, prometheus, slices
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
    path, probe, stage = directory / artefact.path, artefact.probe, artefact.stage
    arm = artefact.arm or "candidate"
    found: Sequence[Observation]
    match artefact.format:
        case "slices":
            found = slices.read(path, probe, stage)
        case "outputs":
            found = outputs.read(path, probe, stage)
        case "load":
            found = load.read(path, probe, stage)
        case "logprobs":
            found = logprobs.read(path, probe, stage)
        case "callgrind":
            found = callgrind.read(path, probe, stage, arm)
        case "prometheus":
            found = prometheus.read(path, probe, stage, arm)
        case "engine_log":
            found = engine_log.read(path, probe, stage, arm)
        case _:
            found = ()
    return list(found)


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
