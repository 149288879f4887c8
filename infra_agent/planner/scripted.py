"""A planner that asks and proposes what a TOML script says, in order: for demonstrations, replays and tests.

    [[propose]]
    claim = "Two threads decode faster than eight on two cores"
    mechanism = "..."                      # also: location, question, lever_family, falsifier, probe
    predicted = { metric = "output_throughput", direction = "up", low = 0.1 }
    patch = "fix.patch"                    # relative to the script
    knobs = { threads = 2 }
    unset = ["poll"]                       # leave these knobs to the engine's own default

    [[investigate]]                        # before the next change: run a probe on the parent
    question = "Does the step grow with the batch?"
    probe = "bench"
    params = { batch = [1, 4] }

The script is read once, at the start; the campaign keeps its proposals. Only the journal tells the position, so a
resumed campaign goes on where it was, whatever became of the file.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import Field, ValidationError, field_validator, model_validator

from feedback.observations import Scalar
from infra_agent.domain import Change, Hypothesis, Proposal
from infra_agent.errors import WrongUse
from infra_agent.investigation import InvestigationRefused, points
from infra_agent.places import line_of
from infra_agent.planner import Action, Context, Investigate, Propose, Stop
from infra_agent.target import TargetSpec
from sandboxes.results import Record

Loc = tuple[str, int]
"""Kind and position of an entry."""
_ENTRY = re.compile(r"^\s*\[\[\s*[\"']?(propose|investigate)[\"']?\s*\]\]", re.MULTILINE)


class Entry(Hypothesis):
    """One `[[propose]]` table: a hypothesis and the change that tests it."""

    patch: str = ""
    """File with a unified diff, relative to the script."""
    knobs: dict[str, Scalar] = Field(default_factory=dict)
    unset: tuple[str, ...] = ()
    """Knobs to remove from the launch file."""
    probe: str = ""

    @field_validator("knobs", mode="before")
    @classmethod
    def _plain(cls, knobs: object) -> object:
        for name, value in knobs.items() if isinstance(knobs, dict) else ():
            if not isinstance(value, str | int | float | bool):
                raise ValueError(f"{name} must be a plain value; to remove a knob use unset = [{name!r}]")
        return knobs

    @model_validator(mode="after")
    def _changes_something(self) -> Entry:
        if not (self.patch or self.knobs or self.unset):
            raise ValueError("changes nothing; give `patch`, `knobs` or `unset`")
        if both := [name for name in self.unset if name in self.knobs]:
            raise ValueError(f"{', '.join(both)} can't be both set and unset")
        return self


class Question(Record):
    """One `[[investigate]]` table: a probe to run on the parent, and what it is to answer."""

    question: str = Field(min_length=1, max_length=2000)
    probe: str
    params: dict[str, tuple[Scalar, ...]] = Field(default_factory=dict)


class Script(Record):
    """The contents of a script."""

    description: str = ""
    propose: tuple[Entry, ...] = ()
    investigate: tuple[Question, ...] = ()

    @model_validator(mode="after")
    def _says_something(self) -> Script:
        if not (self.propose or self.investigate):
            raise ValueError("it has no [[propose]] and no [[investigate]]")
        return self


class Line(NamedTuple):
    """One entry and where in the script it stands. An investigation is a proposal without a change."""

    where: str
    proposal: Proposal
    asks: bool = False
    """Whether it is an investigation."""


class ScriptedPlanner:
    """Asks and proposes the entries of a script one after another, then stops. `name` is the script's, for people."""

    def __init__(self, name: str, proposals: Sequence[Proposal]) -> None:
        self._name = name
        self._proposals = tuple(proposals)

    def next_action(self, context: Context) -> Action:
        """The first entry that no change or investigation of the journal stands for, finished or not."""
        position = sum(e.is_asked for e in context.journal.experiments)
        if position >= len(self._proposals):
            return Stop(reason=f"all {len(self._proposals)} proposals of {self._name} were tried")
        entry = self._proposals[position]
        if entry.change.patch or entry.change.knobs:
            return Propose(proposal=entry)
        return Investigate(question=entry.hypothesis.question, probe=entry.probe, params=entry.params)


def read_script(path: Path, spec: TargetSpec) -> tuple[Proposal, ...]:
    """The proposals of a script, the contents of its patches included.

    Raises WrongUse, naming file, line and entry, if the script or one of its patches can't be used, an entry
    changes nothing or names a knob or probe that the target does not have.
    """
    lines = _read(path)
    for line in lines:
        _check(line, spec)
    return tuple(line.proposal for line in lines)


def _read(path: Path) -> list[Line]:
    try:
        text = path.read_text(encoding="utf-8")
        script = Script.model_validate(tomllib.loads(text))
    except FileNotFoundError:
        raise WrongUse(f"{path} does not exist; give --planner script:FILE an existing script") from None
    except (OSError, UnicodeDecodeError) as error:
        raise WrongUse(f"{path} can't be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise WrongUse(f"{path}: not valid TOML: {error}") from error
    except ValidationError as error:
        problems = [_problem(path, text, e["loc"], e["msg"]) for e in error.errors(include_url=False)[:5]]
        raise WrongUse("\n".join(problems)) from error
    places: list[Loc] = [("propose", i) for i in range(len(script.propose))]
    places += [("investigate", i) for i in range(len(script.investigate))]
    if script.propose and script.investigate:
        places = _as_written(path, text, places)
    return [
        _line(path, text, i, script.propose[i]) if kind == "propose" else _asked(path, text, i, script.investigate[i])
        for kind, i in places
    ]


def _as_written(path: Path, text: str, places: list[Loc]) -> list[Loc]:
    """The entries in the order of their lines: TOML itself keeps none between tables of two names."""
    seen = Counter(match[1] for match in _ENTRY.finditer(text))
    if seen != Counter(kind for kind, _ in places):
        raise WrongUse(
            f"{path}: in which order things are proposed and investigated can't be told; begin each entry with a line "
            "[[propose]] or [[investigate]] of its own, and no line of a text so"
        )
    return sorted(places, key=lambda place: line_of(text, place) or 0)


def _asked(path: Path, text: str, index: int, entry: Question) -> Line:
    hypothesis = Hypothesis(claim=entry.question, question=entry.question)
    proposal = Proposal(hypothesis=hypothesis, change=Change(), probe=entry.probe, params=entry.params)
    return Line(_where(path, text, ("investigate", index)), proposal, asks=True)


def _problem(path: Path, text: str, loc: tuple[int | str, ...], message: str) -> str:
    return f"{_where(path, text, loc)}: {message.removeprefix('Value error, ')}"


def _where(path: Path, text: str, loc: tuple[int | str, ...]) -> str:
    line = line_of(text, loc)
    in_entry = len(loc) > 1 and isinstance(loc[1], int)
    kind = "question" if loc[:1] == ("investigate",) else "entry"
    place = f"{kind} {int(loc[1]) + 1}" if in_entry else "the script"
    field = ".".join(str(part) for part in (loc[2:] if in_entry else loc))
    return f"{path}{f':{line}' if line else ''}: {place}{f', {field}' if field else ''}"


def _line(path: Path, text: str, index: int, entry: Entry) -> Line:
    patch = ""
    if entry.patch:
        try:
            patch = (path.parent / entry.patch).read_bytes().decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            where = _where(path, text, ("propose", index, "patch"))
            raise WrongUse(f"{where}: {entry.patch} can't be read: {error}") from error
    hypothesis = Hypothesis.model_validate({name: getattr(entry, name) for name in Hypothesis.model_fields})
    change = Change(patch=patch, knobs={**entry.knobs, **dict.fromkeys(entry.unset)})
    proposal = Proposal(hypothesis=hypothesis, change=change, probe=entry.probe)
    return Line(_where(path, text, ("propose", index)), proposal)


def _check(line: Line, spec: TargetSpec) -> None:
    change = line.proposal.change
    if line.asks:
        try:
            points(spec, line.proposal.probe, line.proposal.params)
        except InvestigationRefused as error:
            raise WrongUse(f"{line.where}: {error}") from error
        return
    if not (change.patch.strip() or change.knobs):
        raise WrongUse(f"{line.where}: its patch is empty, so it changes nothing")
    for name in change.knobs:
        if spec.knob(name) is None:
            known = ", ".join(k.name for k in spec.knobs) or "none"
            raise WrongUse(f"{line.where}: unknown knob {name!r}; this target's knobs are: {known}")
    probes = [probe.name for probe in spec.shown_probes]
    if line.proposal.probe and line.proposal.probe not in probes:
        raise WrongUse(f"{line.where}: unknown probe {line.proposal.probe!r}; known are: {', '.join(probes)}")
