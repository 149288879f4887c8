"""A planner that asks a language model, over any OpenAI-compatible endpoint: a plain tool-calling loop.

Each step starts afresh from the context, so the journal is all that the model remembers; every answer is journalled
before it is acted on, so a resumed campaign pays for none twice. An investigation interrupts a step: when its answer is
in the journal, the step's conversation is repeated from the recorded calls and goes on from there.
"""

from __future__ import annotations

import json
import math
import time
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from infra_agent.domain import ModelCall
from infra_agent.errors import ModelUnavailable
from infra_agent.planner import Action, Context
from infra_agent.planner.calls import ModelJournal, canonical, request_hash
from infra_agent.planner.endpoint import Endpoint, Patience
from infra_agent.planner.prompt import opening, prompt
from infra_agent.planner.tools import Toolbox, ToolRefused
from infra_agent.settings import Settings

MAX_TURNS = 24
"""Answers of the model in one step."""
LAST_TURNS = 4
"""From here on the model is told how many turns are left."""
MAX_INVALID = 6
"""Answers in a row without a single call that could be carried out."""
MAX_CALLS = 8
"""Tool calls that are carried out in one answer."""
MAX_CONTENT_CHARACTERS = 8_000
"""Of an answer's own text that is kept for the following turns."""


class _Lenient(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Function(_Lenient):
    """The tool and its arguments as the model wrote them."""

    name: str = ""
    arguments: str | dict[str, Any] | None = None

    @property
    def text(self) -> str:
        """The arguments as JSON text; some servers send them parsed."""
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments or {})


class Call(_Lenient):
    """One tool call of an answer."""

    id: str | None = None
    function: Function = Function()


class Message(_Lenient):
    """What the model said."""

    content: str | None = None
    tool_calls: tuple[Call, ...] | None = None


class Choice(_Lenient):
    """One answer."""

    message: Message


class Usage(_Lenient):
    """Tokens that the endpoint counted."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class Answer(_Lenient):
    """A chat completion, as far as it is used."""

    choices: tuple[Choice, ...]
    usage: Usage | None = None


class LlmPlanner:
    """Plans with the model that `settings` name.

    `next_action` raises ModelUnavailable when the endpoint can't be used, and when the model answers nonsense or
    comes to no proposal within its turns; TimeUp when it has no answer within the context's time.
    """

    def __init__(self, settings: Settings, calls: ModelJournal, patience: Patience | None = None) -> None:
        self._model = settings.model
        self._calls = calls
        self._endpoint = Endpoint(settings, patience or Patience())

    def next_action(self, context: Context) -> Action:
        """Let the model read until it proposes or stops."""
        deadline_s = math.inf if context.seconds_left is None else time.monotonic() + context.seconds_left
        toolbox = Toolbox(context)
        tools = toolbox.definitions()
        messages = opening(context)
        invalid, reminded = 0, False
        for turn in range(MAX_TURNS):
            message = self._ask({"model": self._model, "messages": messages, "tools": tools}, deadline_s)
            calls = (message.tool_calls or ())[:MAX_CALLS]
            messages.append(_said(message, calls, turn))
            if not calls:
                if reminded:
                    raise self._nonsense("it answers without calling a tool, although it was reminded")
                messages.append({"role": "user", "content": prompt("reminder")})
                reminded = True
                continue
            reminded, understood = False, False
            for number, call in enumerate(calls):
                try:
                    result = toolbox.call(call.function.name, call.function.text)
                    understood = True
                except ToolRefused as error:
                    result = f"Refused: {error}"
                if not isinstance(result, str):
                    return result  # an investigation too: the next call comes here again, for free, with its answer
                messages.append({"role": "tool", "tool_call_id": _id(call, turn, number), "content": result})
            invalid = 0 if understood else invalid + 1
            if invalid >= MAX_INVALID:
                raise self._nonsense(f"{invalid} answers in a row could not be carried out; the last: {result}")
            _count_down(messages, turn)
        raise self._nonsense(f"it came to no proposal in {MAX_TURNS} turns")

    def _ask(self, request: dict[str, Any], deadline_s: float) -> Message:
        """The model's answer to this request: the recorded one if there is one."""
        digest = request_hash(request)
        call = self._calls.recall(digest)
        if call is None:
            body, duration_s = self._endpoint.complete(request, check=_parsed, deadline_s=deadline_s)
            usage = _parsed(body).usage or Usage()
            call = ModelCall(
                campaign_id=self._calls.campaign_id,
                request_hash=digest,
                model=self._model,
                request=canonical(request),
                response=body,
                prompt_tokens=usage.prompt_tokens,
                completion_tokens=usage.completion_tokens,
                duration_s=duration_s,
            )
            self._calls.record(call)
        return _parsed(call.response).choices[0].message

    def _nonsense(self, what: str) -> ModelUnavailable:
        return ModelUnavailable(
            f"the model {self._model} answers nonsense: {what[:400]}. "
            "Try another model (INFRA_AGENT_MODEL) or --planner search."
        )


def _parsed(body: str) -> Answer:
    """Raises ValueError saying what is wrong with a body that is no chat completion with an answer in it."""
    try:
        answer = Answer.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{place + ': ' if place else ''}{first['msg']}") from error
    if not answer.choices:
        raise ValueError("`choices` is empty")
    return answer


def _said(message: Message, calls: tuple[Call, ...], turn: int) -> dict[str, object]:
    """The answer as it goes back to the model."""
    content = (message.content or "")[:MAX_CONTENT_CHARACTERS]
    said: dict[str, object] = {"role": "assistant", "content": content}
    if calls:
        said["tool_calls"] = [
            {
                "id": _id(call, turn, number),
                "type": "function",
                "function": {"name": call.function.name, "arguments": call.function.text},
            }
            for number, call in enumerate(calls)
        ]
    return said


def _id(call: Call, turn: int, number: int) -> str:
    return call.id or f"call_{turn}_{number}"


def _count_down(messages: list[dict[str, object]], turn: int) -> None:
    left = MAX_TURNS - turn - 1
    if 0 < left <= LAST_TURNS:
        messages.append({"role": "user", "content": f"{left} turns are left in this step: propose or stop."})
