"""The Signal: a derived, located statement with effect, interval, evidence, causes and next experiments.

OpenTelemetry calls traces, metrics and logs "signals"; here the word means the derived statement. A signal
without a location, or one that says better or worse without an interval, is refused at construction.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from feedback.observations import Scalar
from feedback.wording import printable
from sandboxes.results import Record

Finding = Literal["better", "worse", "same", "inconclusive", "violates", "holds", "observed", "abstained"]
Level = Literal["error", "warning", "note"]
Quality = Literal["ok", "underpowered", "contended", "uncalibrated"]
Direction = Literal["maximize", "minimize"]


class CodeLocation(Record):
    """A place in the target's source."""

    kind: Literal["code"] = "code"
    file: str
    line: int | None = None
    symbol: str | None = None


class ParamLocation(Record):
    """A launch parameter and what it was changed from and to."""

    kind: Literal["param"] = "param"
    name: str
    value: Scalar | None = None
    was: Scalar | None = None


class InputLocation(Record):
    """An input condition: shape, seed, workload."""

    kind: Literal["input"] = "input"
    condition: dict[str, Scalar]


class ProcessLocation(Record):
    """A process of the run, by arm and role."""

    kind: Literal["process"] = "process"
    arm: str
    role: str


class HostLocation(Record):
    """The machine that the run happened on, or some of its CPUs."""

    kind: Literal["host"] = "host"
    cpus: tuple[int, ...] = ()


class KernelLocation(Record):
    """A device kernel, or a compiled function that plays its part on a CPU."""

    kind: Literal["kernel"] = "kernel"
    name: str
    source: str = ""
    """file:line, where known."""


class ThreadLocation(Record):
    """A thread of a process, or a queue of a device."""

    kind: Literal["thread"] = "thread"
    process: str
    name: str
    tid: int | None = None


class IntervalLocation(Record):
    """A stretch of a trace."""

    kind: Literal["interval"] = "interval"
    track: str
    start_ns: int
    end_ns: int
    clock: str = "unknown"
    n: int = 1
    """How many stretches this one stands for."""


class RegionLocation(Record):
    """A part of a tensor."""

    kind: Literal["region"] = "region"
    tensor: str
    region: str = ""
    """Such as `rank 1` or `chunk 17`."""
    index: int | None = None
    """First index that is beyond the budget."""


Location = Annotated[
    CodeLocation
    | ParamLocation
    | InputLocation
    | ProcessLocation
    | HostLocation
    | KernelLocation
    | ThreadLocation
    | IntervalLocation
    | RegionLocation,
    Field(discriminator="kind"),
]


class Quantity(Record):
    """A number that was measured or expected, with its unit and how sure it is."""

    name: str
    value: float
    unit: str = ""
    lo: float | None = None
    hi: float | None = None


def as_gain(speedup: float, direction: Direction) -> float:
    """A threshold of the acceptance rule, on the scale on which gains are reported: both are fractions, but the
    rule's are of speed (it works on ln(1 + x)), and 25 % more speed is 20 % of the time saved."""
    return speedup if direction == "maximize" else speedup / (1 + speedup)


def as_loss(margin: float, direction: Direction) -> float:
    """A tolerated loss of the acceptance rule, on the scale on which losses are reported: 25 % more time is a loss
    of 25 % of the time, or of 20 % of the throughput."""
    return margin if direction == "minimize" else margin / (1 + margin)


class Effect(Record):
    """Candidate against baseline on one metric, as a ratio with an interval over fresh pairs."""

    metric: str
    direction: Direction
    baseline: float
    """Median of the baseline arm's values, in the metric's unit."""
    measured: float
    """Median of the candidate arm's values."""
    ratio: float
    """candidate / baseline, from the mean over pairs of the pair medians of block log-ratios."""
    ratio_lo: float
    ratio_hi: float
    confidence: float
    method: str
    n_units: int
    n_observations: int
    floor: float
    """Noise floor of this probe on this host that the effect was judged by, as a fraction of speed (`floor_gain` is
    the same on the scale of `improvement`); `floor_known` says whether it was measured."""
    floor_known: bool
    floor_units: int | None = None
    """A/A pairs that were known of this host when the effect was judged; None where that was not kept."""
    quality: Quality = "ok"

    @property
    def improvement(self) -> float:
        """Relative gain in the wanted direction; negative is a loss. Throughput +0.20, or time saved 0.20."""
        return self.ratio - 1 if self.direction == "maximize" else 1 - self.ratio

    @property
    def floor_gain(self) -> float:
        """The noise floor on the scale of `improvement`."""
        return as_gain(self.floor, self.direction)

    @property
    def improvement_interval(self) -> tuple[float, float]:
        """The interval of `improvement`, low end first."""
        if self.direction == "maximize":
            return self.ratio_lo - 1, self.ratio_hi - 1
        return 1 - self.ratio_hi, 1 - self.ratio_lo


class Evidence(Record):
    """Where the numbers behind a signal lie."""

    artefact: str
    """Name of the file."""
    detail: str = ""
    """What to look at in it, in words."""
    line: int | None = None
    byte_start: int | None = None
    byte_end: int | None = None
    start_ns: int | None = None
    end_ns: int | None = None
    query: str = ""
    """What gets the number out of the file again."""


class Cause(Record):
    """A possible cause, with how much it would explain and what would refute it. Only rules make causes."""

    text: str
    support: Literal["weak", "moderate", "strong"] = "moderate"
    explains: float | None = None
    """Share of the effect that it would explain, 0..1, where it can be computed."""
    refutable_by: str = ""


class Signal(Record):
    """One located statement that steers the next step."""

    rule_id: str
    """family.rule, for example `performance.bench_delta`."""
    level: Level
    finding: Finding
    message: str = Field(max_length=400)
    locations: tuple[Location, ...] = Field(min_length=1)
    effect: Effect | None = None
    measured: tuple[Quantity, ...] = ()
    expected: tuple[Quantity, ...] = ()
    """What was expected instead, by the same names as in `measured`."""
    reason: str = ""
    """Why, when inconclusive or abstained."""
    causes: tuple[Cause, ...] = ()
    """Most likely first."""
    caveats: tuple[str, ...] = ()
    """What would make it wrong."""
    next: tuple[str, ...] = ()
    """Cheapest first."""
    evidence: tuple[Evidence, ...] = ()
    role: Literal["objective", "guardrail", "gate", "information"] = "information"
    """What the verdict uses it for."""
    subject: str = ""
    """What tells it from others that its rule makes at the same places, such as the metric: part of its identity."""

    @field_validator("message", "reason", mode="before")
    @classmethod
    def _printable(cls, text: object) -> object:
        """Messages quote what programs said; nothing in them may steer a terminal or a page."""
        return printable(text) if isinstance(text, str) else text

    @model_validator(mode="after")
    def _complete(self) -> Signal:
        if self.finding in ("better", "worse") and self.effect is None:
            raise ValueError(f"{self.rule_id}: `{self.finding}` needs an effect with an interval")
        if self.finding in ("inconclusive", "abstained") and not self.reason:
            raise ValueError(f"{self.rule_id}: `{self.finding}` needs a reason")
        if any(c.support == "strong" and c.explains is not None and c.explains < 0.5 for c in self.causes):
            raise ValueError(f"{self.rule_id}: a strong cause explains at least half of the effect")
        return self

    @property
    def fingerprint(self) -> str:
        """Identity across runs: the rule, its subject and its places, without values, times, thread ids and seeds."""
        passing = {"value", "was", "start_ns", "end_ns", "tid", "n"}
        places = [{"kind": p.kind, **p.model_dump(exclude=passing, exclude_defaults=True)} for p in self.locations]
        for place in places:
            if isinstance(condition := place.get("condition"), dict):
                condition.pop("seed", None)
        about = [self.subject] if self.subject else []
        text = json.dumps([self.rule_id, places, *about], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:12]
