"""Facts read from a probe's output, before anything is concluded from them."""

from __future__ import annotations

from typing import Literal

from feedback.spans import Spans, Stacks
from sandboxes.results import ArmName, Record

Scalar = str | int | float | bool


class Source(Record):
    """Where in a file a fact stands, so that it can be looked up again."""

    file: str
    """Name of the file, as given to the reader."""
    line: int | None = None
    """Counted from 1."""
    byte_start: int | None = None
    byte_end: int | None = None
    query: str = ""
    """What gets the number out of the file: a JSON pointer, an SQL query, a metric's name."""


class Measurement(Record):
    """One number with its place in the measuring schedule."""

    kind: Literal["measurement"] = "measurement"
    probe: str
    metric: str
    """`slice_time_s`, `instructions`, or a metric name of `vllm bench serve`. The unit stands in the name."""
    value: float
    arm: ArmName
    stage: str = "screen"
    pair: int = 0
    """Which fresh process pair, or which fresh process of an unpaired measurement: the statistical unit."""
    block: int = 0
    """Which A B B A (or B A A B) block inside the pair; the round inside a process of an unpaired one."""
    position: int = 0
    """0..3 inside the block."""
    disturbed: bool = False
    """Whether this pair was contended and repeated; kept as a record, never used as a unit."""
    paired: bool = True
    """Whether the arms were interleaved; False for a file that holds one arm alone."""
    in_turn: bool = False
    """Whether unpaired processes of both arms took turns, so that what drifts meets both."""
    case: dict[str, Scalar] = {}
    """What was measured: the benchmark's name under `benchmark`, its shapes and parameters, `function`."""
    warmup: bool = False
    """Whether the tool itself calls it a warm-up."""
    code: str = ""
    """Where the measured code stands, as `file:line` or a file, if the tool says so."""
    source: Source | None = None


class TestOutcome(Record):
    """One test or check: passed, failed or errored."""

    kind: Literal["test"] = "test"
    probe: str
    name: str
    outcome: Literal["passed", "failed", "error", "skipped"]
    message: str = ""
    arm: ArmName = "candidate"
    stage: str = "screen"
    file: str = ""
    """Where it fails first, or where it is defined; empty if the format doesn't say."""
    line: int | None = None
    duration_s: float | None = None
    attempt: int = 0
    """Which run of the same test, from 0."""
    source: Source | None = None


class ParityPoint(Record):
    """How far one output of an arm is from the truth (or from the baseline) under one condition."""

    kind: Literal["parity"] = "parity"
    probe: str
    case: dict[str, Scalar]
    """The condition: shapes (`T`, `K`, ...), seed, text, `dtype`, `partition` (1 = unpartitioned), `batch`,
    `region` (such as `rank 1`), `index` (first index of the region)."""
    tensor: str
    measure: str
    """`rms_ratio`, `max_abs`, `mean_abs_logprob_delta`, `top1_disagreement`."""
    value: float
    tolerance: float | None
    """Largest allowed value; None where the file states none."""
    reference: Literal["golden", "unpartitioned", "baseline"] = "golden"
    """What the value is a distance from."""
    arm: ArmName = "candidate"
    stage: str = "screen"
    source: Source | None = None


class RuntimeEvent(Record):
    """Something that the running system said or counted."""

    kind: Literal["event"] = "event"
    probe: str
    source: str
    """`engine_log`, `metrics`, `process`, `contention`, `check`, `host` (facts about the machine), `load` (a load
    client), `gc`, `warnings`, `jit`, `cgroup`, `events`, `report` (a file that a
    probe was to leave and that is missing or unreadable)."""
    name: str
    level: Literal["error", "warning", "note"] = "note"
    message: str = ""
    count: float = 1
    """How often; for a gauge or a counter, its value."""
    at_s: float | None = None
    """When, in seconds on the file's own clock; None if it doesn't say or it stands for several."""
    duration_s: float | None = None
    arm: ArmName = "candidate"
    stage: str = "screen"
    place: Source | None = None


Observation = Measurement | TestOutcome | ParityPoint | RuntimeEvent | Spans | Stacks
