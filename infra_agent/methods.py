"""Probes of a target: what each method of measuring needs to be told. Data; runs nothing."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from feedback.observations import Scalar
from feedback.readers import formats
from infra_agent.fields import Blocks, Command, Count, Few, InsidePath, LeftPath, Looks, Name, Positive, Seconds
from sandboxes.results import Record
from sandboxes.sandbox import LONGEST_S


class _Probe(Record):
    name: Name
    kind: Literal["build", "correctness", "parity", "microbench", "load", "trace", "events"]
    description: str = ""
    covers: tuple[str, ...] = ()
    """Paths or knobs whose effect this probe can see."""
    cost_s: float = Field(default=1.0, ge=0, le=LONGEST_S)
    """About how long one run takes, for the order and the planner."""
    gate: bool = False
    """Whether a candidate that fails it is rejected."""
    hidden: bool = False
    """Whether planners never see it: it runs in confirmations only, and all that is told of it is pass or fail."""
    when: Literal["always", "asked"] = "always"
    """`asked`: never in the ordinary course of an experiment. Of the kind `trace` every probe is so."""

    @property
    def waits(self) -> bool:
        """Whether it runs only when an investigation asks for it, or a hypothesis names it to answer."""
        return self.when == "asked" or self.kind == "trace"


_BOTH_ARMS = ("load", "slices", "outputs", "logprobs")
"""Formats of our own probes, which hold both arms: no command of one arm may write them."""


def _foreign(name: str) -> str:
    known = [f.name for f in formats.FORMATS if f.name not in _BOTH_ARMS]
    if name not in known:
        raise ValueError(f"unknown format {name!r}; known are: {', '.join(known)}")
    return name


class Report(Record):
    """A file that a command leaves in its sandbox, and what reads it."""

    path: LeftPath
    format: Annotated[str, AfterValidator(_foreign)]
    """As docs/feedback.md names it, such as `chrome_trace` or `collapsed`."""
    limit_bytes: int = Field(default=64 << 20, gt=0, le=512 << 20)
    """Larger than this it is not taken."""


class CommandProbe(_Probe):
    """A command that must succeed in each arm, such as a build or a test suite, and the files that it leaves."""

    method: Literal["command"]
    command: Command
    params: dict[str, Scalar] = {}
    """What stands for `{param:NAME}` in the command, unless an investigation chooses other values."""
    reports: tuple[Report, ...] = Field(default=(), max_length=16)
    timeout_s: Seconds = 120.0

    @model_validator(mode="after")
    def _consistent(self) -> CommandProbe:
        paths = [r.path for r in self.reports]
        if twice := next((p for p in paths if paths.count(p) > 1), None):
            raise ValueError(f"report {twice} is declared twice")
        if unused := next((n for n in self.params if not any(place(n) in part for part in self.command)), None):
            raise ValueError(f"its command does not use the parameter {unused!r}: write {place(unused)} in it")
        return self

    @property
    def filled(self) -> Command:
        """The command with its parameters in their places."""
        parts = list(self.command)
        for name, value in self.params.items():
            said = str(value).lower() if isinstance(value, bool) else str(value)
            parts = [part.replace(place(name), said) for part in parts]
        return tuple(parts)


def place(parameter: str) -> str:
    """Where a parameter belongs in a command."""
    return f"{{param:{parameter}}}"


class OutputsProbe(_Probe):
    """A worker's outputs against an oracle's, by case; the oracle runs apart from the candidate."""

    method: Literal["outputs"]
    worker: Command
    oracle: Command
    cases: tuple[dict[str, Scalar], ...] = Field(min_length=1)
    tolerance: Positive
    """Largest allowed relative RMS error against the oracle."""
    timeout_s: Seconds = 60.0


class SlicesProbe(_Probe):
    """Interleaved slices of fixed work in worker processes: metric `slice_time_s`."""

    method: Literal["slices"]
    worker: Command
    params: dict[str, Scalar] = {}
    slice_target_s: Seconds = 0.012
    slice_timeout_s: Seconds = 20.0
    looks: Looks = (5, 10, 20, 40)
    blocks: Blocks = 14
    pinned: bool = True
    """Pin both arms to the same CPU."""
    side_by_side: bool = True
    """Whether both arms can live at once; if not, fresh runs follow each other in the order A B B A."""
    max_repeats: Few = 5
    """Disturbed pairs that are measured again before contention is taken as this host's condition."""
    check_tolerance: Positive = 1e-4
    """Largest relative difference between the arms' checksums of the same slice."""
    default_margin: float = Field(default=0.02, ge=0, lt=1)
    """Noise floor that is assumed until it has been measured on this host."""
    budget_s: Seconds = 120.0


class CallgrindProbe(_Probe):
    """Instructions executed, counted by valgrind: repeatable, blind to caches and waiting."""

    method: Literal["callgrind"]
    command: Command
    toggle: str = ""
    """Function whose instructions alone are counted."""
    timeout_s: Seconds = 120.0


class LoadProbe(_Probe):
    """Streamed chat completions against both arms' servers, bursts alternating between them."""

    method: Literal["load"]
    traffic: InsidePath
    """File with the prompts, in the target."""
    tokenizer: str
    """GGUF whose vocabulary counts the tokens on our side; placeholders allowed."""
    streams: Count = 4
    output_tokens: Count = 12
    slice_timeout_s: Seconds = 60.0
    ttft_slo_ms: Positive = 2000.0
    tpot_slo_ms: Positive = 200.0
    looks: Looks = (3, 5, 10)
    blocks: Blocks = 3
    side_by_side: bool = True
    """Whether both arms' servers can live at once; if not (one accelerator, one fixed port), fresh servers follow
    each other in the order A B B A."""
    warmup_slices: Few = 1
    max_repeats: Few = 1
    """Disturbed pairs that are measured again; a pair of servers is dear."""
    default_margin: float = Field(default=0.03, ge=0, lt=1)
    budget_s: Seconds = 240.0


class LogprobsProbe(_Probe):
    """Teacher-forced log-probabilities of fixed texts, candidate against baseline."""

    method: Literal["logprobs"]
    texts: InsidePath
    tokenizer: str
    margin: Positive = 0.075
    """Mean |delta log-probability| tolerated beyond the baseline's own A/A spread, in nats."""
    timeout_s: Seconds = 60.0


class EventsProbe(_Probe):
    """What the server logged and counted while another probe ran."""

    method: Literal["events"]
    during: str
    """Name of the load probe whose servers are watched."""


Probe = Annotated[
    CommandProbe | OutputsProbe | SlicesProbe | CallgrindProbe | LoadProbe | LogprobsProbe | EventsProbe,
    Field(discriminator="method"),
]
PairedProbe = SlicesProbe | LoadProbe
