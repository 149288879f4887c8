"""Facts read from a probe's output, before anything is concluded from them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from sandboxes.results import ArmName, Record

Scalar = str | int | float | bool


class Measurement(Record):
    """One number with its place in the measuring schedule."""

    kind: Literal["measurement"] = "measurement"
    probe: str
    metric: str
    """`slice_time_s`, `instructions`, or a metric name of `vllm bench serve`."""
    value: float
    arm: ArmName
    stage: str = "screen"
    pair: int = 0
    """Which fresh process pair: the statistical unit."""
    block: int = 0
    """Which A B B A (or B A A B) block inside the pair."""
    position: int = 0
    """0..3 inside the block."""
    disturbed: bool = False
    """Whether this pair was contended and repeated; kept as a record, never used as a unit."""


class TestOutcome(Record):
    """One test or check: passed, failed or errored."""

    kind: Literal["test"] = "test"
    probe: str
    name: str
    outcome: Literal["passed", "failed", "error"]
    message: str = ""
    arm: ArmName = "candidate"
    stage: str = "screen"


class ParityPoint(Record):
    """How far one output of an arm is from the truth (or from the baseline) under one condition."""

    kind: Literal["parity"] = "parity"
    probe: str
    case: dict[str, Scalar]
    """The condition: shape, seed, text."""
    tensor: str
    measure: str
    """`rms_ratio`, `max_abs`, `mean_abs_logprob_delta`, `top1_disagreement`."""
    value: float
    tolerance: float
    arm: ArmName = "candidate"
    stage: str = "screen"


class RuntimeEvent(Record):
    """Something that the running system said or counted."""

    kind: Literal["event"] = "event"
    probe: str
    source: str
    """`engine_log`, `metrics`, `process`, `contention`, `check`."""
    name: str
    level: Literal["error", "warning", "note"] = "note"
    message: str = ""
    count: float = 1
    arm: ArmName = "candidate"
    stage: str = "screen"


Observation = Annotated[Measurement | TestOutcome | ParityPoint | RuntimeEvent, Field(discriminator="kind")]
