"""Probes of a target: what each method of measuring needs to be told. Data; runs nothing."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from feedback.observations import Scalar
from infra_agent.fields import Blocks, Command, Count, Few, InsidePath, Looks, Name, Positive, Seconds
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


class CommandProbe(_Probe):
    """A command that must succeed in each arm, such as a build or a test suite."""

    method: Literal["command"]
    command: Command
    timeout_s: Seconds = 120.0


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
