"""`target.toml`: an inference stack's editable paths, knobs, probes, objective, guardrails and sandbox needs.

Reads and validates; runs nothing. Every error names the file and, where it can be told, the line.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError, model_validator

from feedback.observations import Scalar
from feedback.signals import Direction
from infra_agent.errors import TargetInvalid
from infra_agent.places import line_of
from sandboxes.contention import Limit
from sandboxes.results import Record
from sandboxes.runner import Schedule
from sandboxes.sandbox import Limits

FILE_NAME = "target.toml"
_SIZED = re.compile(r"^cores(?:\s*(?P<sign>[-+*/])\s*(?P<number>\d{1,4}))?$")


def _inside(path: str) -> str:
    if not path.strip() or PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
        raise ValueError(f"{path!r} must be relative to the target and stay inside it")
    return path


def _rising(looks: tuple[int, ...]) -> tuple[int, ...]:
    if not looks or looks[0] < 2 or any(b <= a for a, b in pairwise(looks)):
        raise ValueError("numbers of pairs to look at must rise, from at least 2")
    return looks


Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
"""What stands in file names too."""
InsidePath = Annotated[str, AfterValidator(_inside)]
Looks = Annotated[tuple[int, ...], AfterValidator(_rising)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


class Condition(Record):
    """Values of a knob that need other knobs to be set in certain ways."""

    values: tuple[Scalar, ...]
    """The values that need it."""
    requires: dict[str, tuple[Scalar, ...]]
    """Other knob's name -> values that it must have one of."""


class Knob(Record):
    """One launch parameter with its domain. Absent from the launch file means the engine's own default."""

    name: str
    description: str
    key: str
    """Where it stands in the launch file; dots lead into tables."""
    choices: tuple[Scalar, ...] = ()
    minimum: int | None = None
    maximum: int | None = None
    engine_default: Scalar | None = None
    """What the engine does when the knob is absent, for people to read."""
    suggest: tuple[Scalar, ...] = ()
    """Values worth trying first, best guess first; `cores` stands for this machine's CPU count, and
    `cores/2`, `cores-1`, `cores*2` and `cores+1` for what they say."""
    conditions: tuple[Condition, ...] = ()

    @model_validator(mode="after")
    def _has_a_domain(self) -> Knob:
        if bool(self.choices) == (self.minimum is not None or self.maximum is not None):
            raise ValueError(f"knob {self.name}: give either `choices` or `minimum` and `maximum`")
        if not self.choices and (self.minimum is None or self.maximum is None or self.minimum > self.maximum):
            raise ValueError(f"knob {self.name}: `minimum` and `maximum` must both be given, in order")
        for value in self.suggest:
            if not self.is_sized(value) and (reason := self.refusal(value, {})):
                raise ValueError(f"suggest: {reason}")
        return self

    def is_sized(self, value: Scalar | None) -> bool:
        """Whether `value` depends on the machine: `cores`, `cores/2` and so on, for a whole-number knob."""
        return not self.choices and isinstance(value, str) and _SIZED.match(value) is not None

    def resolve(self, value: Scalar | None, cores: int) -> Scalar | None:
        """`value` on a machine with that many CPUs; a division rounds down, nothing goes below 1."""
        match = _SIZED.match(value) if self.is_sized(value) and isinstance(value, str) else None
        if match is None:
            return value
        number = int(match["number"] or 1)
        sized = {"/": cores // max(number, 1), "*": cores * number, "-": cores - number, "+": cores + number}
        return max(1, sized[match["sign"]] if match["sign"] else cores)

    def refusal(self, value: Scalar | None, others: dict[str, Scalar | None]) -> str | None:
        """Why `value` is not allowed beside the other knobs' values, or None if it is."""
        if value is None:
            return None
        if self.choices:
            if not any(value == c and type(value) is type(c) for c in self.choices):
                return f"{self.name} = {value!r} is not one of {', '.join(map(repr, self.choices))}"
        elif not isinstance(value, int) or isinstance(value, bool):
            return f"{self.name} = {value!r} is not a whole number"
        elif self.minimum is not None and self.maximum is not None and not self.minimum <= value <= self.maximum:
            return f"{self.name} = {value} is outside {self.minimum}..{self.maximum}"
        for condition in self.conditions:
            if value in condition.values:
                for other, allowed in condition.requires.items():
                    if others.get(other) is not None and others[other] not in allowed:
                        return f"{self.name} = {value!r} needs {other} to be one of {allowed}"
        return None


class Control(Record):
    """A configuration that every result is also held against, so that nothing is won over a straw man."""

    name: str
    description: str
    knobs: dict[str, Scalar] = {}
    """Values of the knobs that this arm sets; every other knob is left to the engine."""


class Move(Record):
    """Knob values worth trying together, because one without the other says little."""

    name: str
    description: str
    knobs: dict[str, Scalar] = Field(min_length=1)
    """Knob -> value; `cores` and its like as in a knob's `suggest`."""


class Package(Record):
    """A Python package that the target's processes import, installed apart from infra-agent's environment."""

    name: Name
    requirement: str
    """Exact pip requirement; installed without its dependencies into infra-agent's home."""
    sha256: dict[str, str] = {}
    """Relative file -> expected SHA-256, checked after the download and before every use."""


class Objective(Record):
    """What is to become better."""

    metric: str
    direction: Direction
    probe: str
    min_effect: float = Field(default=0.02, ge=0, lt=1)
    """Smallest gain worth having, as a fraction."""


class Guardrail(Record):
    """A metric that must not become worse by more than a margin."""

    metric: str
    direction: Direction
    probe: str
    max_regression: float = Field(gt=0, lt=10)
    """Largest loss that is tolerated, as a fraction."""


class Server(Record):
    """How the target's server is started and reached, over a Unix socket in /scratch."""

    command: tuple[str, ...]
    socket: Name = "server.sock"
    ready_path: str = "/health"
    ready_timeout_s: Positive = 60.0


class _Probe(Record):
    name: Name
    kind: Literal["build", "correctness", "parity", "microbench", "load", "trace", "events"]
    description: str = ""
    covers: tuple[str, ...] = ()
    """Paths or knobs whose effect this probe can see."""
    cost_s: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """About how long one run takes, for the order and the planner."""
    gate: bool = False
    """Whether a candidate that fails it is rejected."""


class CommandProbe(_Probe):
    """A command that must succeed in each arm, such as a build or a test suite."""

    method: Literal["command"]
    command: tuple[str, ...]
    timeout_s: Positive = 120.0


class OutputsProbe(_Probe):
    """A worker's outputs against an oracle's, by case; the oracle runs apart from the candidate."""

    method: Literal["outputs"]
    worker: tuple[str, ...]
    oracle: tuple[str, ...]
    cases: tuple[dict[str, Scalar], ...] = Field(min_length=1)
    tolerance: float = Field(gt=0)
    """Largest allowed relative RMS error against the oracle."""
    timeout_s: Positive = 60.0


class SlicesProbe(_Probe):
    """Interleaved slices of fixed work in worker processes: metric `slice_time_s`."""

    method: Literal["slices"]
    worker: tuple[str, ...]
    params: dict[str, Scalar] = {}
    slice_target_s: Positive = 0.012
    slice_timeout_s: Positive = 20.0
    looks: Looks = (5, 10, 20, 40)
    blocks: Count = 7
    pinned: bool = True
    """Pin both arms to the same CPU."""
    side_by_side: bool = True
    """Whether both arms can live at once; if not, fresh runs follow each other in the order A B B A."""
    max_repeats: int = Field(default=5, ge=0)
    """Disturbed pairs that are measured again before contention is taken as this host's condition."""
    check_tolerance: Positive = 1e-4
    """Largest relative difference between the arms' checksums of the same slice."""
    default_margin: float = Field(default=0.02, ge=0, lt=1)
    """Noise floor that is assumed until it has been measured on this host."""
    budget_s: Positive = 120.0


class CallgrindProbe(_Probe):
    """Instructions executed, counted by valgrind: repeatable, blind to caches and waiting."""

    method: Literal["callgrind"]
    command: tuple[str, ...]
    toggle: str = ""
    """Function whose instructions alone are counted."""
    timeout_s: Positive = 120.0


class LoadProbe(_Probe):
    """Streamed chat completions against both arms' servers, bursts alternating between them."""

    method: Literal["load"]
    traffic: InsidePath
    """File with the prompts, in the target."""
    tokenizer: str
    """GGUF whose vocabulary counts the tokens on our side; placeholders allowed."""
    streams: Count = 4
    output_tokens: Count = 12
    slice_timeout_s: Positive = 60.0
    ttft_slo_ms: Positive = 2000.0
    tpot_slo_ms: Positive = 200.0
    looks: Looks = (3, 5, 10)
    blocks: Count = 3
    side_by_side: bool = True
    """Whether both arms' servers can live at once; if not (one accelerator, one fixed port), fresh servers follow
    each other in the order A B B A."""
    warmup_slices: int = Field(default=1, ge=0)
    max_repeats: int = Field(default=1, ge=0)
    """Disturbed pairs that are measured again; a pair of servers is dear."""
    default_margin: float = Field(default=0.03, ge=0, lt=1)
    budget_s: Positive = 240.0


class LogprobsProbe(_Probe):
    """Teacher-forced log-probabilities of fixed texts, candidate against baseline."""

    method: Literal["logprobs"]
    texts: InsidePath
    tokenizer: str
    margin: Positive = 0.075
    """Mean |delta log-probability| tolerated beyond the baseline's own A/A spread, in nats."""
    timeout_s: Positive = 60.0


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


class LaunchFile(Record):
    """The file of the target that holds the knobs' values."""

    path: str
    format: Literal["toml"] = "toml"


_NOT_MEASURING = {"description", "covers", "cost_s", "gate", "looks", "budget_s", "max_repeats", "default_margin"}
"""Fields of a probe that don't touch what one pair measures."""


class TargetSpec(Record):
    """The contents of target.toml."""

    schema_version: Literal[1] = Field(alias="schema")
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")
    description: str
    editable: tuple[InsidePath, ...]
    """Paths or globs that a change may touch; everything else is protected."""
    protected: tuple[InsidePath, ...] = ()
    """Paths or globs that no change may touch even where `editable` would match."""
    hidden: tuple[InsidePath, ...] = ()
    """Paths or globs that neither candidates nor planners ever see, such as known answers."""
    objective: Objective
    guardrails: tuple[Guardrail, ...] = ()
    launch_file: LaunchFile | None = None
    knobs: tuple[Knob, ...] = ()
    controls: tuple[Control, ...] = ()
    moves: tuple[Move, ...] = ()
    """Joint settings that a search tries before single knobs."""
    packages: tuple[Package, ...] = ()
    needs: tuple[str, ...] = ()
    """Programs that must be on the PATH, such as cc and make."""
    env: dict[str, str] = {}
    server: Server | None = None
    limits: Limits = Limits()
    contention: Limit = Limit()
    probes: tuple[Probe, ...]

    @model_validator(mode="after")
    def _consistent(self) -> TargetSpec:
        names = [p.name for p in self.probes]
        _unique("probe", names)
        _unique("package", [p.name for p in self.packages])
        objective = self.probe(self.objective.probe) if self.objective.probe in names else None
        if not isinstance(objective, PairedProbe):
            raise ValueError(f"objective: probe {self.objective.probe!r} is no probe with method slices or load")
        for guardrail in self.guardrails:
            if guardrail.probe != self.objective.probe:
                raise ValueError(f"guardrail {guardrail.metric}: must be measured by {self.objective.probe!r}")
        uses_server = any(isinstance(p, LoadProbe | LogprobsProbe) for p in self.probes)
        if uses_server and self.server is None:
            raise ValueError("probes with method load or logprobs need a [server]")
        for probe in self.probes:
            watched = self.probe(probe.during) if isinstance(probe, EventsProbe) and probe.during in names else None
            if isinstance(probe, EventsProbe) and not isinstance(watched, LoadProbe):
                raise ValueError(f"probe {probe.name}: during {probe.during!r} is no probe with method load")
        return self

    @model_validator(mode="after")
    def _knobs_exist(self) -> TargetSpec:
        names = [k.name for k in self.knobs]
        _unique("knob", names)
        if self.knobs and self.launch_file is None:
            raise ValueError("knobs need a [launch_file] that holds their values")
        for conditioned in self.knobs:
            for unknown in {other for c in conditioned.conditions for other in c.requires} - set(names):
                raise ValueError(f"knob {conditioned.name}: a condition requires {unknown!r}, which is no knob")
        for control in self.controls:
            if refusal := self.refusal(dict(control.knobs)):
                raise ValueError(f"control {control.name}: {refusal}")
        for move in self.moves:
            fixed = {n: v for n, v in move.knobs.items() if not ((knob := self.knob(n)) and knob.is_sized(v))}
            if refusal := self.refusal(dict(fixed)):
                raise ValueError(f"move {move.name}: {refusal}")
        return self

    def probe(self, name: str) -> Probe:
        """The probe of that name. Raises KeyError."""
        return {p.name: p for p in self.probes}[name]

    @property
    def noise_probe(self) -> str:
        """The objective's probe as A/A units are stored for it: its name and a digest of how it measures, for units
        of another worker, schedule or load say nothing of this one."""
        probe = self.probe(self.objective.probe)
        text = probe.model_dump_json(exclude=_NOT_MEASURING)
        return f"{probe.name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    def knob(self, name: str) -> Knob | None:
        """The knob of that name, if there is one."""
        return next((k for k in self.knobs if k.name == name), None)

    def refusal(self, values: dict[str, Scalar | None]) -> str | None:
        """Why these knob values can't be used together, or None if they can."""
        for name, value in values.items():
            knob = self.knob(name)
            if knob is None:
                known = ", ".join(k.name for k in self.knobs) or "none"
                return f"unknown knob {name!r}; this target's knobs are: {known}"
            if reason := knob.refusal(value, values):
                return reason
        return None


def schedule(spec: TargetSpec, probe: PairedProbe, cpus: tuple[int, ...]) -> Schedule:
    """The measuring schedule of a paired probe on these CPUs."""
    pinned = cpus if isinstance(probe, SlicesProbe) and probe.pinned else ()
    warmup = probe.warmup_slices if isinstance(probe, LoadProbe) else 2
    return Schedule(
        looks=probe.looks, blocks=probe.blocks, budget_s=probe.budget_s,
        warmup_slices=warmup, max_repeats=probe.max_repeats, cpus=pinned, limit=spec.contention,
        side_by_side=probe.side_by_side,
    )  # fmt: skip


def _unique(what: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{what} {name!r} is defined twice")


def parse_target(text: str, origin: str) -> TargetSpec:
    """Validate the text of a target.toml. Raises TargetInvalid naming `origin`, the line and what is wrong."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TargetInvalid(f"{origin}: not valid TOML: {error}") from error
    try:
        return TargetSpec.model_validate(data)
    except ValidationError as error:
        problems = [_problem(text, origin, e["loc"], e["msg"]) for e in error.errors(include_url=False)[:5]]
        raise TargetInvalid("\n".join(problems)) from error


def _problem(text: str, origin: str, loc: tuple[int | str, ...], message: str) -> str:
    if loc[:1] == ("probes",):
        loc = (*loc[:2], *loc[3:])  # the third part is the probe's method, which is no key
    line = line_of(text, loc)
    where = ".".join(str(part) for part in loc) or "the file as a whole"
    return f"{origin}{f':{line}' if line else ''}: {where}: {message.removeprefix('Value error, ')}"


def load_target(directory: Path) -> tuple[TargetSpec, str]:
    """Read and validate `directory`/target.toml; returns it with its text. Raises TargetInvalid."""
    path = directory / FILE_NAME
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise TargetInvalid(
            f"{path} does not exist; `infra-agent init {directory}` writes a commented one to start from"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise TargetInvalid(f"{path} can't be read: {error}") from error
    return parse_target(text, str(path)), text


def values_at(data: dict[str, Any], spec: TargetSpec) -> dict[str, Scalar | None]:
    """The knobs' values in a launch file's parsed contents; None where a knob is absent."""
    found: dict[str, Scalar | None] = {}
    for knob in spec.knobs:
        place: Any = data
        for part in knob.key.split("."):
            place = place.get(part) if isinstance(place, dict) else None
        found[knob.name] = place if isinstance(place, str | int | float | bool) else None
    return found
