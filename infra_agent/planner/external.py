"""A planner outside: whoever asks what a planner is shown, and tells what to do next.

Carries out the calls that it was told with the tools of every other planner, so gates, budgets and refusals are the
same. An action is written down before it is acted on: one that a kill cut off is taken up first by whoever comes next,
and told again it is answered with what was measured already.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from typing import Annotated, NamedTuple, Protocol

from pydantic import Field, JsonValue, TypeAdapter, ValidationError

from feedback.digest import digest
from feedback.ranking import rank
from infra_agent import forecast
from infra_agent.citation import prefix
from infra_agent.domain import Experiment
from infra_agent.forecast import standing
from infra_agent.journal import Journal
from infra_agent.planner import Action, Context, Waiting
from infra_agent.planner.fence import fence, hide, secrets
from infra_agent.planner.forms import problems
from infra_agent.planner.prompt import DIGEST_TOKENS, JOURNAL_TOKENS, LESSONS_TOKENS, campaign
from infra_agent.planner.tools import Toolbox, ToolRefused, answer
from sandboxes.results import Record

MAX_CALLS = 50
ACTIONS = ("investigate", "propose", "amend", "stop")
"""The tools that do more than read."""
SIGNAL_TOKENS = 1500
ANSWER_CHARACTERS = 12_000
UNSEEN = "not carried out"
UNANSWERED = "it waits for its planner: someone outside says what to do next"


class Call(Record):
    """One call of a tool, as whoever plans writes it."""

    tool: str = Field(min_length=1, max_length=60)
    arguments: dict[str, JsonValue] = Field(default_factory=dict)

    @property
    def acts(self) -> bool:
        """Whether it may do more than read."""
        return self.tool in ACTIONS


_CALLS = TypeAdapter(Annotated[tuple[Call, ...], Field(min_length=1, max_length=MAX_CALLS)])


class Answer(Record):
    """What came of a call."""

    call: Call
    text: str
    refused: bool = False
    """It was not carried out, and cost nothing."""
    experiment: int | None = None
    """Number of the experiment that it led to."""


class Open(NamedTuple):
    """An action that was written down and has no answer yet."""

    call: Call
    number: int
    """That its experiment has, if it leads to one."""


class Memory(Protocol):
    """Keeps what was told and answered; when a method returns, that survives a crash."""

    def open(self) -> Open | None:
        """The action that was told last, if it was cut off before its answer."""

    def refused(self) -> dict[str, JsonValue]:
        """The arguments of the proposal that was refused last, as amended since; empty where none was, or one after it
        was not."""

    def told(self, call: Call, number: int) -> None:
        """An action is about to be taken; its experiment will have this number."""

    def answered(self, answer: Answer) -> None:
        """A call has its answer; one that acts is the action told last, if that is open."""


class Nothing:
    """A Memory of nothing, for a campaign that nobody told anything."""

    def open(self) -> Open | None:
        """None."""
        return None

    def refused(self) -> dict[str, JsonValue]:
        """Empty."""
        return {}

    def told(self, call: Call, number: int) -> None:
        """Forget it."""

    def answered(self, answer: Answer) -> None:
        """Forget it."""


class ExternalPlanner:
    """Carries out calls in order: what reads at once, what acts as the loop's next action. Then it waits.

    After a refusal only reading goes on: later actions may have counted on the refused one.
    """

    def __init__(self, calls: Sequence[Call] = (), memory: Memory | None = None) -> None:
        self._ahead = list(calls)
        self._memory: Memory = memory or Nothing()
        self._open = self._memory.open()
        self.answers: list[Answer] = []
        if self._open is not None and self._ahead and self._ahead[0] == self._open.call:
            del self._ahead[0]  # told again after it was cut off: one answer serves both

    def next_action(self, context: Context) -> Action:
        """The next action that was told. Raises Waiting when there is none."""
        self._settle(context.journal)
        toolbox = Toolbox(context, knows=True, refused=self._memory.refused())
        while (call := self._next()) is not None:
            try:
                came = toolbox.call(call.tool, json.dumps(call.arguments))
            except ToolRefused as error:
                self._close(Answer(call=call, text=f"Refused: {error}", refused=True))
                continue
            if isinstance(came, str):
                self._close(Answer(call=call, text=came))
                continue
            if self._open is None:
                self._open = Open(call, len(context.journal.experiments))
                self._memory.told(*self._open)
            return came
        raise Waiting(UNANSWERED)

    def finish(self, journal: Journal, ended: str) -> None:
        """Answer what is still open once the run is over; `ended` says why the campaign ended, empty if it goes on."""
        self._settle(journal)
        if self._open is not None and self._open.call.tool == "stop" and ended:
            self._close(Answer(call=self._open.call, text=f"the campaign ended: {ended}"))
        why = f"the campaign ended: {ended}" if ended else "the run ended"
        while (call := self._next()) is not None:
            self._close(Answer(call=call, text=f"{UNSEEN}: {why}", refused=True))

    def _next(self) -> Call | None:
        """What is open comes first; after a refusal, actions are sent back unseen."""
        if self._open is not None:
            return self._open.call
        while self._ahead:
            call = self._ahead.pop(0)
            refused = next((a for a in self.answers if a.refused), None)
            if not (refused and call.acts):
                return call
            self._close(Answer(call=call, text=f"{UNSEEN}: {refused.call.tool} was refused", refused=True))
        return None

    def _settle(self, journal: Journal) -> None:
        """Answer the open action, once its experiment has its outcome."""
        if self._open is None:
            return
        mine = [e for e in journal.finished if e.number == self._open.number]
        if mine and mine[0].role in ("change", "investigation"):
            self._close(Answer(call=self._open.call, text=outcome(mine[0]), experiment=mine[0].number))

    def _close(self, given: Answer) -> None:
        given = given.model_copy(update={"text": _clean(given.text)})
        self._memory.answered(given)
        self.answers.append(given)
        if self._open is not None and given.call == self._open.call:
            self._open = None


def refused_proposal(answers: Iterable[Answer]) -> dict[str, JsonValue]:
    """The arguments of the proposal that was refused last, as amended since; empty where none was, or one after it was
    not."""
    proposal: dict[str, JsonValue] = {}
    for call, text, is_refused in ((a.call, a.text, a.refused) for a in answers):
        given = call.arguments
        if call.tool not in ("propose", "amend") or text.startswith(UNSEEN):
            continue
        if call.tool == "amend":
            changes = given.get("changes")
            given = {**proposal, **changes} if proposal and isinstance(changes, dict) else proposal
        proposal = given if is_refused else {}
    return proposal


def read(context: Context, calls: Sequence[Call], memory: Memory) -> tuple[Answer, ...]:
    """Carry out calls that only read."""
    toolbox, answers = Toolbox(context, knows=True), []
    for call in calls:
        assert not call.acts
        try:
            came = Answer(call=call, text=str(toolbox.call(call.tool, json.dumps(call.arguments))))
        except ToolRefused as error:
            came = Answer(call=call, text=f"Refused: {error}", refused=True)
        came = came.model_copy(update={"text": _clean(came.text)})
        memory.answered(came)
        answers.append(came)
    return tuple(answers)


def read_calls(text: str) -> tuple[Call, ...]:
    """The calls in a JSON text: one object `{"tool": NAME, "arguments": {...}}`, or a list of them.

    Raises ValueError saying what is wrong with it.
    """
    given = text.strip()
    whole = given if given.startswith("[") else f"[{given}]"
    try:
        return _CALLS.validate_json(whole)
    except ValidationError as error:
        form = '{"tool": NAME, "arguments": {...}}, or a list of such calls'
        raise ValueError(f"{problems(error)}; give {form}") from error


def opening(context: Context) -> str:
    """All that a planner outside is shown: the campaign, what was found in this step, what is left."""
    found = [answer(e) for e in context.journal.step_investigations]
    parts = [campaign(context, JOURNAL_TOKENS, LESSONS_TOKENS, DIGEST_TOKENS).strip()]
    if found:
        parts.append("# Found in this step\n" + "\n\n".join(found))
    return _clean("\n\n".join([*parts, left(context)]))


def left(context: Context) -> str:
    """What the budgets still allow, in a line."""
    time = "no limit of wall time"
    if context.seconds_left is not None:
        time = f"{context.seconds_left / 60:.1f} minutes of measuring"
    return (
        f"Left: {context.experiments_left} experiments, {context.investigations_left} investigations in this step, "
        f"{time}."
    )


def outcome(experiment: Experiment) -> str:
    """What came of an action: of an investigation its answer, of a change the verdict and its signals; quoted."""
    if experiment.role == "investigation":
        return answer(experiment)
    verdict = experiment.verdict
    said = verdict.kind.value if verdict else experiment.state.value
    lines = [f"- {reason}" for reason in (verdict.reasons if verdict else ())]
    if found := standing(experiment):
        lines.append(f"prediction: {forecast.said(found)}")
    lines += ["signals:", digest(rank(experiment.signals), SIGNAL_TOKENS, prefix(experiment))]
    head = f"experiment #{experiment.number}: {said}{', confirmed' if experiment.confirmed else ''}"
    return f"{head}\n{fence(chr(10).join(lines), f'experiment #{experiment.number}', ANSWER_CHARACTERS)}"


def _clean(text: str) -> str:
    """Without the secrets of this environment: whoever plans may tell it to a model."""
    return hide(text, secrets(os.environ))
