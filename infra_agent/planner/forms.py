"""The tools' arguments, as records whose docstrings are what a model or another agent is told of them."""

from __future__ import annotations

from typing import Any

from pydantic import Field, JsonValue, ValidationError

from feedback.observations import Scalar
from infra_agent.domain import Prediction
from infra_agent.fields import LeverFamily
from infra_agent.planner.edits import Edit
from sandboxes.results import Record


class ListFiles(Record):
    """List the files of the target whose path or name matches a glob."""

    glob: str = "*"
    """For example *.py, kernels/* or **/*.c"""


class ReadFile(Record):
    """Read a file of the target by lines."""

    path: str
    start: int = Field(default=1, ge=1)
    """First line, from 1."""
    end: int | None = Field(default=None, ge=1)
    """Last line; at most 400 lines are shown at once."""


class SearchCode(Record):
    """Find a literal text (no regular expression) in the target's files."""

    text: str = Field(min_length=2, max_length=200)
    glob: str = "*"


class ReadHistory(Record):
    """Read the target's git history up to the commit that this campaign started from: a list of commits, or one."""

    commit: str = Field(default="", max_length=64)
    """Show this commit with its diff; empty lists commits."""
    path: str = Field(default="", max_length=300)
    """Only what touches this file or directory."""


class ReadJournal(Record):
    """Read what this campaign tried and what came of it, with more entries than the opening shows; or one entry
    whole, with its claim, its change and its signals."""

    number: int | None = Field(default=None, ge=0)
    """The number of one experiment."""


class ReadEvidence(Record):
    """Read the evidence behind a signal: the lines of a log, the slice of a trace, the failing case, the table."""

    id: str = Field(min_length=2, max_length=80)
    """The signal's id with its experiment, such as #3/af6f474eec03, in brackets in front of it."""


class AskProbe(Record):
    """Run a probe on the unchanged parent to answer a question before anything is changed. Costs time and no
    experiment. With several values of a parameter, each combination is measured (8 at most)."""

    question: str = Field(min_length=1, max_length=1000)
    """What you want to know, and what you will do with either answer."""
    probe: str
    params: dict[str, tuple[Scalar, ...]] = Field(default_factory=dict)
    """Parameter -> values, for example {"batch": [1, 4, 16]}; left out, the probe's own."""


class ProposeChange(Record):
    """End this step with a change to measure, and the hypothesis that it tests."""

    claim: str = Field(min_length=1, max_length=1000)
    """What will happen, in one sentence."""
    mechanism: str = Field(min_length=1, max_length=2000)
    """Why it will happen."""
    location: str = Field(min_length=1, max_length=300)
    """Where the effect arises: file:symbol, or the knob's name."""
    question: str = Field(min_length=1, max_length=1000)
    """The question that the measurement answers."""
    evidence: tuple[str, ...] = Field(min_length=1, max_length=20)
    """What the claim rests on: ids of signals such as #3/af6f474eec03, #N for an experiment, path:line for code, a
    knob's name."""
    falsifier: str = Field(min_length=1, max_length=1000)
    """What result would refute the claim."""
    predicted: Prediction
    """Expected relative change of a metric; 0.1 means 10 %."""
    lever_family: LeverFamily
    """What the change pulls at."""
    probe: str = ""
    """Probe that answers the question; empty means the objective's."""
    knobs: dict[str, Scalar | None] = Field(default_factory=dict)
    """Knob name -> new value; null leaves it to the engine's default."""
    edits: tuple[Edit, ...] = Field(default=(), max_length=50)
    """Edits of editable files, made one after another."""


class AmendProposal(Record):
    """Make the proposal that was refused last again, with only these fields of it changed: no need to send the rest."""

    changes: dict[str, JsonValue] = Field(min_length=1)
    """Arguments of propose, for example {"evidence": ["#3"]}; each takes the place of the whole field."""


class StopPlanning(Record):
    """End the campaign: nothing more is worth measuring."""

    reason: str = Field(min_length=1, max_length=2000)
    """What was covered, what was not, and why to stop."""
    left: dict[str, str] = Field(default_factory=dict)
    """For each lever family that was not tried: why not."""


TOOLS: dict[str, type[Record]] = {
    "list_files": ListFiles,
    "read_file": ReadFile,
    "search_code": SearchCode,
    "read_history": ReadHistory,
    "read_journal": ReadJournal,
    "read_evidence": ReadEvidence,
    "investigate": AskProbe,
    "propose": ProposeChange,
    "amend": AmendProposal,
    "stop": StopPlanning,
}
"""The arguments of each tool of a planner."""


def problems(error: ValidationError) -> str:
    """What is wrong with arguments, for whoever wrote them."""
    found = [f"{'.'.join(map(str, e['loc'])) or 'they'}: {e['msg']}" for e in error.errors(include_url=False)[:5]]
    return "; ".join(found)


def function(name: str, form: type[Record]) -> dict[str, object]:
    """A tool as chat completions take it."""
    return {"name": name, "description": " ".join((form.__doc__ or "").split()), "parameters": schema(form)}


def schema(form: type[Record]) -> dict[str, Any]:
    """The JSON schema of a tool's arguments without references and titles, which not every server takes."""
    whole = form.model_json_schema()
    definitions = whole.pop("$defs", {})

    def plain(node: Any) -> Any:
        if isinstance(node, list):
            return [plain(item) for item in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            target = definitions[node["$ref"].rsplit("/", 1)[-1]]
            node = {**target, **{k: v for k, v in node.items() if k != "$ref"}}
        return {k: plain(v) for k, v in node.items() if k != "title" or not isinstance(v, str)}

    parameters: dict[str, Any] = plain({k: v for k, v in whole.items() if k != "description"})
    return parameters
