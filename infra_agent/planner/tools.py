"""The tools that a model plans with: look at the parent's tree and the journal, then propose or stop.

Each tool's arguments are a record whose docstrings are what the language model is told. Whatever is wrong
with a call comes back to it as text that it can act on; nothing here runs anything of the target.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import Field, ValidationError

from feedback.observations import Scalar
from infra_agent.domain import Change, Hypothesis, Prediction, Proposal
from infra_agent.planner import Action, Context, Propose, Stop
from infra_agent.planner.edits import Edit, EditRefused, make_patch
from infra_agent.planner.fence import fence
from infra_agent.planner.prompt import journal
from infra_agent.planner.tree import NotReadable, Tree
from sandboxes.results import Record

MAX_LISTED = 200
MAX_LINES = 400
MAX_HITS = 60
MAX_HIT_CHARACTERS = 200
MAX_SEARCHED_BYTES = 32 << 20
JOURNAL_LINES = 200


class ToolRefused(Exception):
    """A call that can't be carried out; the message is for the model."""


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


class ReadJournal(Record):
    """Read what this campaign tried and what came of it, with more entries than the opening shows."""


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
    falsifier: str = Field(min_length=1, max_length=1000)
    """What result would refute the claim."""
    predicted: Prediction
    """Expected relative change of a metric; 0.1 means 10 %."""
    lever_family: str = Field(default="launch parameters", max_length=100)
    """For example launch parameters, batching and scheduling, memory and cache, kernels, precision."""
    probe: str = ""
    """Probe that answers the question; empty means the objective's."""
    knobs: dict[str, Scalar | None] = Field(default_factory=dict)
    """Knob name -> new value; null leaves it to the engine's default."""
    edits: tuple[Edit, ...] = Field(default=(), max_length=50)
    """Edits of editable files, made one after another."""


class StopPlanning(Record):
    """End the campaign: nothing more is worth measuring."""

    reason: str = Field(min_length=1, max_length=2000)
    """What was covered, what was not, and why to stop."""


class Toolbox:
    """Carries out a model's calls in one context."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._tree = Tree(context.parent_tree, context.spec)
        self._tools: dict[str, tuple[type[Record], Callable[[Any], str | Action]]] = {
            "list_files": (ListFiles, self._list_files),
            "read_file": (ReadFile, self._read_file),
            "search_code": (SearchCode, self._search_code),
            "read_journal": (ReadJournal, self._read_journal),
            "propose": (ProposeChange, self._propose),
            "stop": (StopPlanning, self._stop),
        }

    def definitions(self) -> list[dict[str, object]]:
        """The tools in the form that chat completions take."""
        return [{"type": "function", "function": _function(name, form)} for name, (form, _) in self._tools.items()]

    def call(self, name: str, arguments: str) -> str | Action:
        """Carry out one call: text for the model, or the action that ends the step. Raises ToolRefused."""
        if name not in self._tools:
            raise ToolRefused(f"there is no tool {name[:60]!r}; there are: {', '.join(self._tools)}")
        form, work = self._tools[name]
        try:
            given = form.model_validate_json(arguments or "{}")
        except ValidationError as error:
            raise ToolRefused(f"the arguments of {name} are wrong: {_problems(error)}") from error
        try:
            return work(given)
        except (NotReadable, EditRefused) as error:
            raise ToolRefused(str(error)) from error

    def _list_files(self, given: ListFiles) -> str:
        found = [str(path) for path in self._tree.files(given.glob)]
        if len(found) > MAX_LISTED:
            found[MAX_LISTED:] = [f"... and {len(found) - MAX_LISTED} more; use a narrower glob"]
        return fence("\n".join(found) or "no file matches", f"files matching {given.glob}", 16_000)

    def _read_file(self, given: ReadFile) -> str:
        lines = self._tree.text(given.path).split("\n")
        last = min(given.end or len(lines), given.start + MAX_LINES - 1, len(lines))
        if given.start > len(lines):
            raise ToolRefused(f"{given.path} has {len(lines)} lines")
        text = "\n".join(lines[given.start - 1 : last])
        return fence(text, f"{given.path}, lines {given.start} to {last} of {len(lines)}", 16_000)

    def _search_code(self, given: SearchCode) -> str:
        hits: list[str] = []
        searched = 0
        for path in self._tree.files(given.glob):
            try:
                text = self._tree.text(str(path))
            except NotReadable:  # too large or not text: nothing to search in
                continue
            searched += len(text)
            for number, line in enumerate(text.splitlines(), 1) if given.text in text else ():
                if given.text in line:
                    hits.append(f"{path}:{number}: {line.strip()[:MAX_HIT_CHARACTERS]}")
            if len(hits) >= MAX_HITS or searched > MAX_SEARCHED_BYTES:
                hits = [*hits[:MAX_HITS], "... there may be more; search for a longer text or in fewer files"]
                break
        return fence("\n".join(hits) or "not found", f"search for {given.text}", 16_000)

    def _read_journal(self, given: ReadJournal) -> str:
        return journal(self._context, JOURNAL_LINES)

    def _propose(self, given: ProposeChange) -> Action:
        spec, context = self._context.spec, self._context
        probes = [probe.name for probe in spec.shown_probes]
        if given.probe and given.probe not in probes:
            raise ToolRefused(f"unknown probe {given.probe!r}; there are: {', '.join(probes)}")
        knobs = {name: self._whole(name, value) for name, value in given.knobs.items()}
        if reason := spec.refusal({**context.knobs, **knobs}):
            raise ToolRefused(reason)
        knobs = {name: value for name, value in knobs.items() if not _same(value, context.knobs.get(name))}
        change = Change(patch=make_patch(self._tree, spec, given.edits), knobs=knobs)
        if not change.patch and not change.knobs:
            raise ToolRefused("this changes nothing: no edits, and the knobs have these values already")
        if seen := context.journal.seen(change.fingerprint, context.parent_commit, change.patch):
            came = seen.verdict.kind.value if seen.verdict else seen.state.value
            raise ToolRefused(f"this change was tried as experiment {seen.number} ({came}); propose another")
        stated = {name: getattr(given, name) for name in Hypothesis.model_fields}
        hypothesis = Hypothesis.model_validate(stated)
        return Propose(proposal=Proposal(hypothesis=hypothesis, change=change, probe=given.probe))

    def _whole(self, name: str, value: Scalar | None) -> Scalar | None:
        """Models write 2.0 for 2; a knob of whole numbers takes it so."""
        knob = self._context.spec.knob(name)
        is_whole = isinstance(value, float) and value.is_integer()
        return int(value) if knob and not knob.choices and is_whole and value is not None else value

    def _stop(self, given: StopPlanning) -> Action:
        return Stop(reason=given.reason)


def _same(a: Scalar | None, b: Scalar | None) -> bool:
    return type(a) is type(b) and a == b


def _problems(error: ValidationError) -> str:
    found = [f"{'.'.join(map(str, e['loc'])) or 'they'}: {e['msg']}" for e in error.errors(include_url=False)[:5]]
    return "; ".join(found)


def _function(name: str, form: type[Record]) -> dict[str, object]:
    return {"name": name, "description": form.__doc__, "parameters": _plain_schema(form)}


def _plain_schema(form: type[Record]) -> dict[str, Any]:
    """The JSON schema of a tool's arguments without references and titles, which not every server takes."""
    schema = form.model_json_schema()
    definitions = schema.pop("$defs", {})

    def plain(node: Any) -> Any:
        if isinstance(node, list):
            return [plain(item) for item in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            target = definitions[node["$ref"].rsplit("/", 1)[-1]]
            node = {**target, **{k: v for k, v in node.items() if k != "$ref"}}
        return {k: plain(v) for k, v in node.items() if k != "title" or not isinstance(v, str)}

    parameters: dict[str, Any] = plain({k: v for k, v in schema.items() if k != "description"})
    return parameters
