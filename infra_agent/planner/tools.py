"""The tools that a planner works with: look, investigate the parent, then propose or stop.

Whatever is wrong with a call comes back as text that can be acted on; nothing here runs anything of the target.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import JsonValue, ValidationError

from feedback.digest import count_tokens, render
from feedback.observations import Scalar
from feedback.ranking import rank
from infra_agent.citation import prefix
from infra_agent.domain import Change, Experiment, Hypothesis, Proposal
from infra_agent.investigation import InvestigationRefused, points
from infra_agent.planner import Action, Context, Investigate, Propose, Stop
from infra_agent.planner.discipline import objection, unexplained
from infra_agent.planner.edits import EditRefused, make_patch
from infra_agent.planner.fence import fence
from infra_agent.planner.forms import TOOLS, AmendProposal, AskProbe, ProposeChange, StopPlanning, function, problems
from infra_agent.planner.reading import Reader
from infra_agent.planner.tree import NotReadable, Tree

ANSWER_TOKENS = 1500


class ToolRefused(Exception):
    """A call that can't be carried out; the message is for whoever made it."""


class Toolbox:
    """Carries out a planner's calls in one context. One that begins the step's conversation anew, as a model does,
    finds the answers of its questions in the step's investigations; one that `knows` them has them, and asks others.
    `refused` are the arguments of a proposal that was sent back before."""

    def __init__(self, context: Context, knows: bool = False, refused: Mapping[str, JsonValue] | None = None) -> None:
        self._proposed = dict(refused or {})
        self._done = () if knows else context.journal.step_investigations
        self._context = context if knows else context.model_copy(update={"journal": context.journal.before_step()})
        self._tree = Tree(context.parent_tree, context.spec)
        self._answered = 0
        self._reader = Reader(self._context)
        self._work: dict[str, Callable[[Any], str | Action]] = {
            **self._reader.tools(),
            "investigate": self._investigate,
            "propose": self._propose,
            "amend": self._amend,
            "stop": self._stop,
        }

    def definitions(self) -> list[dict[str, object]]:
        """The tools in the form that chat completions take."""
        return [{"type": "function", "function": function(name, TOOLS[name])} for name in self._work]

    def call(self, name: str, arguments: str) -> str | Action:
        """Carry out one call: text for the caller, or the action that ends the step or asks for a measurement.
        Raises ToolRefused."""
        if name not in self._work:
            raise ToolRefused(f"there is no tool {name[:60]!r}; there are: {', '.join(self._work)}")
        if name == "propose":
            self._proposed = _read(arguments)
        return self._carry_out(name, arguments)

    def _carry_out(self, name: str, arguments: str) -> str | Action:
        try:
            given = TOOLS[name].model_validate_json(arguments or "{}")
        except ValidationError as error:
            raise ToolRefused(f"the arguments of {name} are wrong: {problems(error)}") from error
        try:
            return self._work[name](given)
        except (NotReadable, EditRefused, InvestigationRefused) as error:
            raise ToolRefused(str(error)) from error

    def _investigate(self, given: AskProbe) -> str | Action:
        """The answer, where this step asked before; else the question goes out. The n-th question of a step is
        answered by its n-th investigation, so a step that is taken up again finds its answers. Until a question is
        asked, nothing here knows its answer: every call must say then what it said at first."""
        points(self._context.spec, given.probe, given.params)
        if self._answered < len(self._done):
            found = self._done[self._answered]
            self._answered += 1
            self._context = self._context.model_copy(update={"journal": self._context.journal.updated(found)})
            self._reader.see(self._context)
            return answer(found)
        if not self._context.investigations_left:
            raise ToolRefused("this step's investigations are used up: propose or stop")
        return Investigate(question=given.question, probe=given.probe, params=given.params)

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
        proposal = Proposal(hypothesis=Hypothesis.model_validate(stated), change=change, probe=given.probe)
        if reason := objection(proposal, tuple(dict.fromkeys(e.path for e in given.edits)), context):
            raise ToolRefused(reason)
        return Propose(proposal=proposal)

    def _amend(self, given: AmendProposal) -> str | Action:
        if not self._proposed:
            raise ToolRefused("no proposal was refused in this step that could be amended: use propose")
        self._proposed |= given.changes
        return self._carry_out("propose", json.dumps(self._proposed))

    def _whole(self, name: str, value: Scalar | None) -> Scalar | None:
        """Models write 2.0 for 2; a knob of whole numbers takes it so."""
        knob = self._context.spec.knob(name)
        is_whole = isinstance(value, float) and value.is_integer()
        return int(value) if knob and not knob.choices and is_whole and value is not None else value

    def _stop(self, given: StopPlanning) -> Action:
        if silent := unexplained(self._context, given.left):
            raise ToolRefused(
                f"{self._context.experiments_left} experiments are left and nothing was tried in: "
                f"{', '.join(silent)}. Try one, or stop with a reason for each in `left`"
            )
        reasons = "".join(f"; {family}: {why}" for family, why in given.left.items())
        return Stop(reason=(given.reason + reasons)[:4000])


def _read(arguments: str) -> dict[str, JsonValue]:
    """Arguments as they were written, if they are a JSON object."""
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def answer(experiment: Experiment) -> str:
    """What an investigation found, quoted: each signal in full, as far as the budget goes."""
    lines: list[str] = []
    left = ANSWER_TOKENS
    for signal in rank(experiment.signals):
        said = render(signal, prefix(experiment))
        if (cost := count_tokens(said)) > left:
            said, cost = f"... [{prefix(experiment)}{signal.fingerprint}] {signal.rule_id}: ask for it", 24
        lines.append(said)
        left -= cost
    found = "\n".join(lines) or "the probe ran and nothing stood out"
    return fence(found, f"investigation #{experiment.number}", 12_000)


def _same(a: Scalar | None, b: Scalar | None) -> bool:
    return type(a) is type(b) and a == b
