"""A whole run directory: each artefact to the reader of its format, each step to what it says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from feedback.observations import Measurement, Observation, ParityPoint, RuntimeEvent, Scalar, Source, TestOutcome
from feedback.readers import Unreadable, formats
from feedback.spans import Spans, Stacks
from sandboxes.results import ArmName, Artefact, Run, StepResult


def read(run: Run) -> list[Observation]:
    """All observations of a run. Raises Unreadable with file and line when an artefact is broken, OSError
    when it is not there."""
    return [
        *steps(run.steps),
        *(o for artefact in run.artefacts for o in read_artefact(run.directory, artefact)),
    ]


def read_artefact(directory: Path, artefact: Artefact) -> list[Observation]:
    """The observations in one artefact. Formats that only people read give none. What one arm left behind speaks of
    that arm alone, and is an event where it is lost or can't be read. Raises Unreadable for one of both arms, which
    is our own, and OSError."""
    format = formats.named(artefact.format)
    if format is None:
        return []
    arm = artefact.arm
    if arm is None:
        return list(format.read(directory / artefact.path, artefact.probe, artefact.stage, "candidate"))
    if artefact.lost:
        return [_no_report(artefact, arm, "missing", artefact.lost)]
    try:
        found = format.read(directory / artefact.path, artefact.probe, artefact.stage, arm)
    except Unreadable as error:
        return [_no_report(artefact, arm, "unreadable", str(error))]
    return [_under(artefact.case, o) for o in found if o.arm == arm]


def _no_report(artefact: Artefact, arm: ArmName, name: str, message: str) -> RuntimeEvent:
    chosen = " ".join(f"{parameter}={value}" for parameter, value in artefact.case.items())
    message = f"at {chosen}: {message}" if chosen else message
    return RuntimeEvent(
        probe=artefact.probe, source="report", name=name, level="warning", message=message, arm=arm,
        stage=artefact.stage, place=Source(file=artefact.path),
    )  # fmt: skip


def _under(params: dict[str, Scalar], observation: Observation) -> Observation:
    """The same, measured under chosen parameters."""
    match observation:
        case Spans() | Stacks() if params:
            return replace(observation, case=params)
        case Measurement() | ParityPoint() if params:
            return observation.model_copy(update={"case": {**params, **observation.case}})
        case _:
            return observation


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
