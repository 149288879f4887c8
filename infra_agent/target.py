"""`target.toml`: an inference stack's editable paths, knobs, probes, objective, guardrails and sandbox needs.

Reads and validates; runs nothing. Every error names the file and, where it can be told, the line.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from feedback.observations import Scalar
from feedback.signals import Direction
from infra_agent.errors import TargetInvalid
from infra_agent.fields import (
    Command,
    EnvironmentName,
    Few,
    InsidePath,
    LeverFamily,
    Name,
    Seconds,
    Text,
    Version,
)
from infra_agent.knobs import (
    Control,
    Knob as Knob,  # a part of a target, found here too
    Move,
)
from infra_agent.methods import (
    CallgrindProbe as CallgrindProbe,
    CommandProbe as CommandProbe,
    EventsProbe as EventsProbe,
    LoadProbe as LoadProbe,
    LogprobsProbe as LogprobsProbe,
    OutputsProbe as OutputsProbe,
    PairedProbe as PairedProbe,
    Probe as Probe,
    Report as Report,
    SlicesProbe as SlicesProbe,
    place as parameter_place,
)
from infra_agent.places import Place, line_of, unfit
from sandboxes.contention import Limit
from sandboxes.files import open_regular
from sandboxes.results import Record
from sandboxes.runner import Schedule
from sandboxes.sandbox import Limits
from sandboxes.workspace import matches

FILE_NAME = "target.toml"
MAX_BYTES = 1 << 20
_PLACEHOLDER = re.compile(r"(?<!\$)\{[a-z_]+(?::[^{}\s]*)?\}")


class Package(Record):
    """A Python package that the target's processes import, installed apart from infra-agent's environment."""

    name: Name
    requirement: Annotated[str, Field(pattern=r"^[^-\s]")]
    """Exact pip requirement, or the path of a wheel; installed without its dependencies into infra-agent's home."""
    sha256: dict[InsidePath, str] = {}
    """Relative file -> expected SHA-256, checked after the download and before every use."""


class Objective(Record):
    """What is to become better."""

    metric: Text
    direction: Direction
    probe: str
    min_effect: float = Field(default=0.02, ge=0, lt=1)
    """Smallest gain worth having, as a fraction."""


class Guardrail(Record):
    """A metric that must not become worse by more than a margin."""

    metric: Text
    direction: Direction
    probe: str
    max_regression: float = Field(gt=0, lt=10)
    """Largest loss that is tolerated, as a fraction."""


class Server(Record):
    """How the target's server is started and reached, over a Unix socket in /scratch."""

    command: Command
    socket: Name = "server.sock"
    ready_path: Annotated[str, Field(pattern=r"^/[!-~]*$")] = "/health"
    ready_timeout_s: Seconds = 60.0


class LaunchFile(Record):
    """The file of the target that holds the knobs' values."""

    path: InsidePath
    format: Literal["toml"] = "toml"


_NOT_MEASURING = {
    "description",
    "hidden",
    "covers",
    "cost_s",
    "gate",
    "looks",
    "budget_s",
    "max_repeats",
    "default_margin",
    "when",
}
"""Fields of a probe that don't touch what one pair measures."""


class TargetSpec(Record):
    """The contents of target.toml."""

    schema_version: Version = Field(alias="schema")
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")
    description: str
    editable: tuple[InsidePath, ...] = Field(min_length=1)
    """Paths or globs that a change may touch; everything else is protected."""
    protected: tuple[InsidePath, ...] = ()
    """Paths or globs that no change may touch even where `editable` would match."""
    hidden: tuple[InsidePath, ...] = ()
    """Paths or globs that neither candidates nor planners ever see, such as known answers."""
    objective: Objective
    guardrails: tuple[Guardrail, ...] = ()
    launch_file: LaunchFile | None = None
    knobs: tuple[Knob, ...] = ()
    levers: tuple[LeverFamily, ...] = ()
    """What changes of the code may pull at; kernels and host code if nothing is said."""
    controls: tuple[Control, ...] = ()
    moves: tuple[Move, ...] = ()
    """Joint settings that a search tries before single knobs."""
    packages: tuple[Package, ...] = ()
    needs: tuple[Text, ...] = ()
    """Programs that must be on the PATH, such as cc and make."""
    accelerators: Few = 0
    """How many GPUs or the like its sandboxed work keeps busy; for budgets in accelerator-seconds."""
    env: dict[EnvironmentName, str] = {}
    server: Server | None = None
    limits: Limits = Limits()
    contention: Limit = Limit()
    probes: tuple[Probe, ...]

    @model_validator(mode="after")
    def _consistent(self) -> TargetSpec:
        names = [p.name for p in self.probes]
        _unique("probe", names)
        _unique("package", [p.name for p in self.packages])
        _unique("control", [c.name for c in self.controls])
        _unique("move", [m.name for m in self.moves])
        objective = self.probe(self.objective.probe) if self.objective.probe in names else None
        if not isinstance(objective, PairedProbe):
            raise ValueError(f"objective: probe {self.objective.probe!r} is no probe with method slices or load")
        for guardrail in self.guardrails:
            if guardrail.probe != self.objective.probe:
                raise ValueError(f"guardrail {guardrail.metric}: must be measured by {self.objective.probe!r}")
        for probe in self.probes:
            if probe.hidden and not (probe.gate and isinstance(probe, CommandProbe | OutputsProbe)):
                raise ValueError(f"probe {probe.name}: only a gate with method command or outputs can be hidden")
        for probe in self.probes:
            if probe.waits and (where := self._needed(probe)):
                raise ValueError(f"probe {probe.name}: {where}; it can't wait to be asked, as `trace` and `asked` do")
        uses_server = any(isinstance(p, LoadProbe | LogprobsProbe) for p in self.probes)
        if uses_server and self.server is None:
            raise ValueError("probes with method load or logprobs need a [server]")
        for probe in self.probes:
            watched = self.probe(probe.during) if isinstance(probe, EventsProbe) and probe.during in names else None
            if isinstance(probe, EventsProbe) and not isinstance(watched, LoadProbe):
                raise ValueError(f"probe {probe.name}: during {probe.during!r} is no probe with method load")
        return self

    def _needed(self, probe: Probe) -> str:
        """Why a probe can't be one that runs only when asked; empty if it can."""
        if probe.gate or probe.hidden or probe.kind == "build":
            return "every experiment needs its builds and gates"
        if probe.name == self.objective.probe:
            return "every experiment needs the objective's probe"
        return f"nobody can ask for method {probe.method}" if isinstance(probe, LogprobsProbe | EventsProbe) else ""

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
    def unseen(self) -> tuple[str, ...]:
        """Paths and globs that the campaign's trees leave out: what is hidden, and what describes hidden probes."""
        return (*self.hidden, *(("target.toml",) if any(p.hidden for p in self.probes) else ()))

    @property
    def shown_probes(self) -> tuple[Probe, ...]:
        """The probes that planners may know."""
        return tuple(p for p in self.probes if not p.hidden)

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
    _refuse(text, origin, unfit(data, ()))
    try:
        # As JSON, where a strict reading takes lists and names of kinds, but no `true` for 1 and no "1".
        spec = TargetSpec.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        _refuse(text, origin, ((_place(e["loc"]), e["msg"]) for e in error.errors(include_url=False)))
        raise
    _refuse(text, origin, _contradictions(spec))
    return spec


def _refuse(text: str, origin: str, problems: Iterable[tuple[Place, str]]) -> None:
    """Raises TargetInvalid with the first problems, if there are any."""
    if said := [_problem(text, origin, place, message) for place, message in islice(problems, 5)]:
        raise TargetInvalid("\n".join(said))


def _place(loc: Place) -> Place:
    if loc[-1:] == ("[key]",):
        loc = loc[:-1]
    if loc[:1] == ("probes",):
        return (*loc[:2], *loc[3:])  # the third part is the probe's method, which is no key
    return loc


def _contradictions(spec: TargetSpec) -> Iterator[tuple[Place, str]]:
    """What is wrong between the parts of a target, each part being right by itself."""
    known = {"{python}", *(f"{{package:{p.name}}}" for p in spec.packages), *(["{socket}"] if spec.server else [])}
    for place, command, own in _commands(spec):
        here = known | own
        for unknown in (p for part in command for p in _PLACEHOLDER.findall(part) if p not in here):
            yield place, f"unknown placeholder {unknown}; known here are: {', '.join(sorted(here))}"
    keys: dict[str, str] = {}
    for n, knob in enumerate(spec.knobs):
        for key, other in keys.items():
            if f"{knob.key}.".startswith(f"{key}.") or key.startswith(f"{knob.key}."):
                yield (
                    ("knobs", n, "key"),
                    f"{knob.key!r} can't stand beside {key!r} of knob {other}",
                )
        keys[knob.key] = knob.name
    if spec.knobs and spec.launch_file is not None:
        path = PurePosixPath(spec.launch_file.path)
        if matches(path, spec.hidden):
            yield ("launch_file", "path"), f"{path} is hidden, so no knob could be set"
        elif not matches(path, spec.editable) or matches(path, spec.protected):
            yield ("launch_file", "path"), f"{path} is not editable, so no knob could be set; add it to `editable`"


def _commands(spec: TargetSpec) -> Iterator[tuple[Place, tuple[str, ...], set[str]]]:
    """Every command with its place and the placeholders that only it knows."""
    if spec.server:
        yield ("server", "command"), spec.server.command, set()
    for n, probe in enumerate(spec.probes):
        own = {parameter_place(name) for name in probe.params} if isinstance(probe, CommandProbe) else set()
        for name in ("command", "worker", "oracle", "tokenizer"):
            given = getattr(probe, name, ())
            yield ("probes", n, name), (given,) if isinstance(given, str) else given, own


def _problem(text: str, origin: str, loc: Place, message: str) -> str:
    line = line_of(text, loc)
    where = ".".join(str(part) for part in loc) or "the file as a whole"
    return f"{origin}{f':{line}' if line else ''}: {where}: {message.removeprefix('Value error, ')}"


def load_target(directory: Path) -> tuple[TargetSpec, str]:
    """Read and validate `directory`/target.toml; returns it with its text. Raises TargetInvalid."""
    path = directory / FILE_NAME
    try:
        with open_regular(path, follow_link=True) as file:
            text = file.read(MAX_BYTES + 1).decode("utf-8")
    except FileNotFoundError:
        init = f"infra-agent init {shlex.quote(str(directory))}"
        raise TargetInvalid(f"{path} does not exist; `{init}` writes a commented one to start from") from None
    except (OSError, UnicodeDecodeError) as error:
        raise TargetInvalid(f"{path} can't be read: {error}") from error
    if len(text) > MAX_BYTES:
        raise TargetInvalid(f"{path} is larger than {MAX_BYTES >> 20} MiB")
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
