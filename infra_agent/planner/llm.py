"""A planner that asks a language model, over any OpenAI-compatible endpoint: a plain tool-calling loop.

Each step starts afresh from the context, so the journal is all that the model remembers; every answer is journalled
before it is acted on, so a resumed campaign pays for none twice. An investigation interrupts a step: when its answer
is in the journal, the step's conversation is repeated from the recorded calls and goes on from there. An endpoint's
refusal of the way it was asked is journalled like an answer, so that the repetition takes the same turns.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from feedback.digest import count_tokens
from infra_agent.domain import Budget, ModelCall
from infra_agent.errors import ModelUnavailable
from infra_agent.planner import Action, Context
from infra_agent.planner.answer import Answer, Call, Trouble, Usage, completion, read, refusal
from infra_agent.planner.calls import ModelJournal, canonical, request_hash
from infra_agent.planner.conversation import TOO_MANY, WAIT, Conversation, Turn
from infra_agent.planner.endpoint import Endpoint, Patience
from infra_agent.planner.fence import neutral, secrets
from infra_agent.planner.manner import Manner, every, first, refused
from infra_agent.planner.prompt import TooLarge, prompt
from infra_agent.planner.spending import BookInMemory, Purse
from infra_agent.planner.tools import Toolbox, ToolRefused
from infra_agent.settings import Settings

MAX_TURNS = 24
"""Answers of the model in one step."""
LAST_TURNS = 4
"""From here on the model is told how many turns are left."""
MAX_CALLS = 8
"""Tool calls that are carried out in one answer."""
MAX_INVALID = 6
"""Answers without a single call that could be carried out, before one with such a call."""
MAX_UNCALLED = {True: 2, False: 3}
"""Answers without any call: with tools, then as JSON."""
MAX_CUT_OFF = 3
MAX_REFUSED = 2
MAX_REPEATED = 2
MAX_CONTENT_CHARACTERS = 8_000
"""Of an answer's own text that is kept for the following turns."""
LAST = ("propose", "stop")
"""What is left to call where a schema can hold a model to ending its step."""
ENDS = (*LAST, "amend")


class LlmPlanner:
    """Plans with the model that `settings` name.

    `next_action` raises ModelUnavailable when the endpoint can't be used, and when the model answers nonsense or
    comes to no proposal within its turns; TimeUp when it has no answer within the context's time, and BudgetSpent when
    the purse does not hold what the next call may cost. `say` is told once of whatever a person should know of how the
    endpoint is used.
    """

    def __init__(
        self,
        settings: Settings,
        calls: ModelJournal,
        patience: Patience | None = None,
        say: Callable[[str], None] = lambda _: None,
        purse: Purse | None = None,
    ) -> None:
        self._model = settings.model
        self._calls = calls
        purse = purse or Purse(settings, Budget(), BookInMemory(), calls.campaign_id)
        self._endpoint = Endpoint(settings, patience or Patience(), purse)
        self._secret = secrets(os.environ, settings.openai_api_key)
        self._window = settings.model_context
        self._manner = first(settings.model_context)
        self._say = say
        self._told: set[str] = set()

    def next_action(self, context: Context) -> Action:
        """Let the model read until it proposes or stops."""
        deadline_s = math.inf if context.seconds_left is None else time.monotonic() + context.seconds_left
        toolbox = Toolbox(context)
        talk = Conversation(context, toolbox.definitions(), self._secret)
        manner = self._first_manner(talk)
        faults: Counter[str] = Counter()
        for turn in range(MAX_TURNS):
            only = LAST if faults["repeated"] or turn == MAX_TURNS - 1 else ()  # where a schema can hold a model to it
            answer, manner = self._answer(talk, manner, only, deadline_s)
            results: list[str] = []
            remarks: list[str] = []
            if answer.trouble:
                manner = self._put_right(answer, manner, faults)
                remarks.append(_remark(answer.trouble, manner))
            else:
                outcome = self._carry_out(answer.calls, talk, toolbox, faults)
                if not isinstance(outcome, list):
                    return outcome  # an investigation too: the next call comes here again, for free, with its answer
                results = outcome
            left = MAX_TURNS - turn - 1
            if 0 < left <= LAST_TURNS:
                remarks.append(f"{left} turns are left in this step: propose or stop.")
            talk.turns.append(Turn(neutral(answer.text)[:MAX_CONTENT_CHARACTERS], answer.calls, results, remarks))
        raise self._nonsense(f"it came to no proposal in {MAX_TURNS} turns")

    def _carry_out(
        self, calls: Sequence[Call], talk: Conversation, toolbox: Toolbox, faults: Counter[str]
    ) -> Action | list[str]:
        """What each call gives, or the action that one of them is. A proposal comes before what is read beside it,
        but not before the answer to what is asked beside it."""
        asks = any(call.function.name == "investigate" for call in calls)
        results: dict[int, str] = {}
        done = repeated = 0
        said: set[str] = set()
        for number in sorted(range(len(calls)), key=lambda n: calls[n].function.name not in ENDS):
            call = calls[number]
            before = talk.answers(call.signature)
            if number >= MAX_CALLS:
                results[number] = TOO_MANY
            elif asks and call.function.name in ENDS:
                results[number] = WAIT
            elif call.signature in said or (before and call.function.name == "investigate"):
                results[number] = prompt("repeated")
                repeated += 1
            else:
                said.add(call.signature)
                outcome, is_done = _outcome(toolbox, call)
                if not isinstance(outcome, str):
                    return outcome
                is_old = outcome in before  # a call made again may also have something new to tell
                results[number] = prompt("repeated") if is_old else outcome
                repeated += is_old
                done += is_done and not is_old
        answers = [results[number] for number in range(len(calls))]
        if done:
            faults.clear()
        elif repeated:
            self._count(
                faults, "repeated", MAX_REPEATED, f"it makes the same call again and again: {calls[0].signature}"
            )
        else:
            self._count(faults, "invalid", MAX_INVALID, f"its answers can't be carried out; the last: {answers[-1]}")
        return answers

    def _put_right(self, answer: Answer, manner: Manner, faults: Counter[str]) -> Manner:
        """How to ask after an answer of which nothing can be carried out. Raises ModelUnavailable after too many."""
        match answer.trouble:
            case "refused":
                self._count(
                    faults, "refused", MAX_REFUSED, f"it refuses to go on: {neutral(answer.why)}", "is of no use"
                )
            case "cut off":
                what = f"its answers are longer than the {manner.answer_tokens} tokens that they may have"
                self._count(faults, "cut off", MAX_CUT_OFF, what, "is of no use")
            case _:
                with_tools = manner.form == "tools"
                faults["uncalled"] += 1
                if faults["uncalled"] >= MAX_UNCALLED[with_tools]:
                    if not with_tools:
                        raise self._nonsense("it answers without calling a tool, although it was reminded")
                    faults.clear()
                    return self._next(manner, "tools", "it answers without calling a tool, although it was reminded")
        return manner

    def _count(
        self, faults: Counter[str], kind: str, most: int, what: str, judgement: str = "answers nonsense"
    ) -> None:
        faults[kind] += 1
        if faults[kind] >= most:
            raise self._nonsense(what, judgement)

    def _answer(
        self, talk: Conversation, manner: Manner, only: Sequence[str], deadline_s: float
    ) -> tuple[Answer, Manner]:
        """The model's next answer, and the manner in which the endpoint took the question."""
        while True:
            try:
                request = talk.request(self._model, manner, only)
            except TooLarge as error:
                raise self._too_small(manner, str(error)) from error
            body = self._ask(request, deadline_s)
            no = refusal(body)
            if no is None:
                answer = read(body, as_json=manner.form != "tools")
                if answer.model not in ("", self._model):
                    self._tell(f"the endpoint answers for {self._model} as {neutral(answer.model)[:100]}")
                self._manner = manner
                return answer, manner
            reason = refused(no.status, no.said, request)
            if reason is None:
                raise ModelUnavailable(f"the model endpoint refuses the request (HTTP {no.status}: {no.said[:300]})")
            manner = self._next(manner, reason, no.said)

    def _next(self, manner: Manner, reason: Any, said: str) -> Manner:
        """The manner after this one, of which a person is told."""
        found = manner.without(reason, said)
        if found is None:
            raise self._too_small(manner, said[:300])
        why = " ".join(said.split())[:160]
        if reason == "context":
            self._tell(f"{self._model} has a smaller context window: going on with {found.window} tokens ({why})")
        elif reason == "tools":
            self._tell(f"{self._model} is asked for JSON instead of tool calls from here on ({why})")
        return found

    def _first_manner(self, talk: Conversation) -> Manner:
        """How this step is, or was, begun: as it was if its beginning stands in the journal of calls."""
        for manner in (self._manner, *every(self._window)):
            try:
                beginning = talk.beginning(self._model, manner)
            except TooLarge:
                continue
            if self._calls.recall(request_hash(beginning)) is not None:
                return manner
        return self._manner

    def _ask(self, request: dict[str, Any], deadline_s: float) -> str:
        """The body that answers this request: the recorded one if there is one. The only place where a call is made,
        and so where one is paid for."""
        digest = request_hash(request)
        if (known := self._calls.recall(digest)) is not None:
            return known.response
        body, duration_s = self._endpoint.complete(request, check=completion, deadline_s=deadline_s)
        usage = _usage(request, body)
        self._calls.record(
            ModelCall(
                campaign_id=self._calls.campaign_id,
                request_hash=digest,
                model=self._model,
                request=canonical(request),
                response=body,
                prompt_tokens=usage.prompt_tokens,
                completion_tokens=usage.completion_tokens,
                duration_s=duration_s,
            )
        )
        return body

    def _tell(self, what: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self._say(what)

    def _too_small(self, manner: Manner, why: str) -> ModelUnavailable:
        return ModelUnavailable(
            f"the context window of {self._model}, {manner.window} tokens, is too small for this campaign: {why}. "
            "Use a model with a larger one, set INFRA_AGENT_MODEL_CONTEXT if it has one, or use --planner search."
        )

    def _nonsense(self, what: str, judgement: str = "answers nonsense") -> ModelUnavailable:
        return ModelUnavailable(
            f"the model {self._model} {judgement}: {what[:400]}. "
            "Try another model (INFRA_AGENT_MODEL) or --planner search."
        )


def _outcome(toolbox: Toolbox, call: Call) -> tuple[str | Action, bool]:
    """What a call gives, and whether it was carried out."""
    try:
        return toolbox.call(call.function.name, call.function.text), True
    except ToolRefused as error:
        return f"Refused: {neutral(str(error))}", False


def _remark(trouble: Trouble, manner: Manner) -> str:
    """What the model is told of an answer of which nothing was carried out."""
    match trouble:
        case "cut off":
            return prompt("cut_off", tokens=manner.answer_tokens)
        case "refused":
            return prompt("refused")
        case _:
            return prompt("reminder" if manner.form == "tools" else "reminder_json")


def _usage(request: dict[str, Any], body: str) -> Usage:
    """Tokens of a call as the endpoint counted them. One that does not count is estimated from above: a budget must
    not end where nobody counts. What was refused costs nothing."""
    if refusal(body) is not None:
        return Usage()
    found = completion(body)
    if found.usage is not None and found.usage.prompt_tokens:
        return found.usage
    return Usage(prompt_tokens=count_tokens(canonical(request)), completion_tokens=count_tokens(body))
