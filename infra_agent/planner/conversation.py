"""One step's conversation, and the request that it makes in a manner of asking: the same conversation can be sent with
tools or as JSON, and within any window that holds its opening and its latest turn.

What does not fit goes from the oldest turn on: each result becomes a line that says what stood there and how to get it
again. That happens in large bites, because every change of the beginning costs the endpoint's cache of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from feedback.digest import count_tokens
from feedback.ranking import rank
from infra_agent.citation import Cited
from infra_agent.planner import Context
from infra_agent.planner.answer import Call
from infra_agent.planner.fence import cut, hide, inert
from infra_agent.planner.manner import Manner
from infra_agent.planner.prompt import TooLarge, opening
from infra_agent.planner.shapes import call_schema, described

OPENING_SHARE = 0.7
"""Of the window without the answer that the opening may take."""
MESSAGE_TOKENS = 8
"""What a chat template adds to a message."""
AFTER_CUT = 0.7
"""Part of the room that is filled after old turns were cut."""
RESULTS_SHARE = 0.7
TEXT_SHARE = 0.2
"""Of the room beside the opening that one turn's results, and its own words, may take."""
SHORT_CHARACTERS = 400
"""What is kept of the words, the arguments and the results of an old turn."""
WAIT = "Refused: you asked the parent something in the same answer; see what it says, then make this call again."
TOO_MANY = "Refused: too many calls in one answer; make this one again."
NOT_DONE = (WAIT, TOO_MANY)
"""Results of calls that were put off and may be made again."""
_NAME = re.compile(r"[^A-Za-z0-9_-]")
CITED, CITED_SIGNALS = 40, 10
"""Experiments, signals, and signals of one experiment that a schema lets a proposal cite."""
_INVESTIGATION = re.compile(r'<quoted mark="[g-v]+" source="investigation #(\d+)"')

Message = dict[str, Any]
_tokens = lru_cache(maxsize=1024)(count_tokens)
"""The same texts are counted for every request of a step."""


@dataclass(frozen=True)
class Turn:
    """One answer of the model and what came of it."""

    text: str
    calls: tuple[Call, ...] = ()
    results: list[str] = field(default_factory=list)
    """One for each call."""
    remark: list[str] = field(default_factory=list)
    """What else the model is told after it."""


class Conversation:
    """What was said in this step, with the opening in front. `secret` values stand in no request."""

    def __init__(self, context: Context, tools: Sequence[dict[str, Any]], secret: Sequence[str] = ()) -> None:
        self.turns: list[Turn] = []
        self._context = context
        self._tools = list(tools)
        self._secret = tuple(secret)
        self._left_out = 0
        self._openings: dict[tuple[bool, int], list[Message]] = {}

    def request(self, model: str, manner: Manner, only: Container[str] = ()) -> Message:
        """The chat completion request that goes on from here. With `only`, a schema admits no other tool than these.
        Raises TooLarge."""
        beginning = self._opening(manner)
        request: Message = {"model": model, "messages": [*beginning, *self._said(beginning, manner)]}
        if manner.limit:
            request[manner.limit] = manner.answer_tokens
        if manner.form == "tools":
            request["tools"] = self._tools
        elif manner.form != "text":
            request["response_format"] = self._format(manner, only)
        return request

    def beginning(self, model: str, manner: Manner) -> Message:
        """The request that this step began with if it was asked in this manner. Raises TooLarge."""
        return self._bare().request(model, manner)

    def answers(self, signature: str) -> set[str]:
        """What this very call was answered, as far as that still stands in what is sent."""
        pairs = (pair for turn in self.turns[self._left_out :] for pair in zip(turn.calls, turn.results, strict=True))
        return {result for call, result in pairs if call.signature == signature and result not in NOT_DONE}

    def _bare(self) -> Conversation:
        bare = Conversation(self._context, self._tools, self._secret)
        bare._openings = self._openings
        return bare

    def _opening(self, manner: Manner) -> list[Message]:
        as_json = manner.form != "tools"
        if (as_json, manner.window) not in self._openings:
            room = int((manner.window - manner.answer_tokens - self._overhead(manner)) * OPENING_SHARE)
            told = opening(self._context, room, manner.window, described(self._tools) if as_json else "")
            made: list[Message] = [{**message, "content": hide(message["content"], self._secret)} for message in told]
            self._openings[as_json, manner.window] = made
        return self._openings[as_json, manner.window]

    def _overhead(self, manner: Manner) -> int:
        """Tokens that are sent beside the messages: servers write tools into the prompt. A schema is only held to."""
        return _tokens(json.dumps(self._tools)) if manner.form == "tools" else 0

    def _format(self, manner: Manner, only: Container[str]) -> Message:
        if manner.form == "json_object":
            return {"type": "json_object"}
        schema = call_schema(self._tools, self._context.spec, self._evidence(), only)
        return {"type": "json_schema", "json_schema": {"name": "tool_call", "schema": schema}}

    def _evidence(self) -> list[str]:
        """What of the journal a proposal may cite: what was there when the step began, and what was asked since."""
        past = self._context.journal.before_step().finished
        asked = (_INVESTIGATION.match(result) for turn in self.turns for result in turn.results)
        numbers = [f"#{e.number}" for e in past] + [f"#{match[1]}" for match in asked if match]
        signals = [Cited(e, s).id for e in reversed(past) for s in rank(e.signals)[:CITED_SIGNALS]]
        return [*numbers[-CITED:], *signals[:CITED]]

    def _said(self, beginning: list[Message], manner: Manner) -> list[Message]:
        """The turns as messages, the oldest ones shortened until all of it fits."""
        room = manner.window - manner.answer_tokens - self._overhead(manner) - _size(beginning)
        if self._size(room, manner) > room:
            while self._left_out < len(self.turns) - 1 and self._size(room, manner) > room * AFTER_CUT:
                self._left_out += 1
        if self.turns and (n := self._size(room, manner)) > room:
            raise TooLarge(f"this turn alone takes {n} tokens beside the opening, of {room}")
        return self._messages(room, manner)

    def _size(self, room: int, manner: Manner) -> int:
        return _size(self._messages(room, manner))

    def _messages(self, room: int, manner: Manner) -> list[Message]:
        messages: list[Message] = []
        used: set[str] = set()
        for number, turn in enumerate(self.turns):
            shown = _shortened(turn) if number < self._left_out else _bounded(turn, room)
            messages += _as_tools(shown, number, used) if manner.form == "tools" else _as_json(shown)
        return [{**m, "content": hide(m["content"], self._secret)} for m in messages]


def _as_tools(turn: Turn, number: int, used: set[str]) -> list[Message]:
    """A turn with its calls and their answers as messages of their own."""
    if not turn.calls:
        return _as_json(turn)
    ids = [_fresh_id(call.id, f"call_{number}_{i}", used) for i, call in enumerate(turn.calls)]
    calls = [
        {
            "id": name,
            "type": "function",
            # Servers refuse a conversation with a name or arguments that no call may have.
            "function": {"name": _named(call), "arguments": _valid(call)},
        }
        for name, call in zip(ids, turn.calls, strict=True)
    ]
    results = [*turn.results]
    # In the last result and not in a message of its own: some chat templates know no user's word after a tool's.
    results[-1] = "\n\n".join([results[-1], *turn.remark])
    said: Message = {"role": "assistant", "content": turn.text, "tool_calls": calls}
    answers = zip(ids, results, strict=True)
    return [said, *({"role": "tool", "tool_call_id": name, "content": result} for name, result in answers)]


def _as_json(turn: Turn) -> list[Message]:
    """A turn as what the model wrote, and one message with all that came of it."""
    written = [f'{{"tool":"{_named(call)}","arguments":{_valid(call)}}}' for call in turn.calls]
    answers = [f"{_named(call)}: {result}" for call, result in zip(turn.calls, turn.results, strict=True)]
    return [
        {"role": "assistant", "content": "\n".join(written) if written else turn.text or "(nothing)"},
        {"role": "user", "content": "\n\n".join([*answers, *turn.remark])},
    ]


def _bounded(turn: Turn, room: int) -> Turn:
    """A turn no part of which takes more than its share of the room."""
    each = int(room * RESULTS_SHARE) // max(len(turn.results), 1)
    words = int(room * TEXT_SHARE)
    calls = tuple(call if _tokens(call.function.text) <= words else _emptied(call) for call in turn.calls)
    return Turn(_fit(turn.text, words), calls, [_fit(result, each) for result in turn.results], turn.remark)


def _shortened(turn: Turn) -> Turn:
    """An old turn: what was asked, and a line for each answer."""
    pairs = zip(turn.calls, turn.results, strict=True)
    results = [_left_out(call, result) if len(result) > SHORT_CHARACTERS else result for call, result in pairs]
    calls = tuple(call if len(call.function.text) <= SHORT_CHARACTERS else _emptied(call) for call in turn.calls)
    return Turn(cut(turn.text, SHORT_CHARACTERS), calls, results, turn.remark)


def _left_out(call: Call, result: str) -> str:
    n = _tokens(result)
    if match := _INVESTIGATION.match(result):
        again = f'read_journal with {{"number": {match[1]}}} shows it'
    else:
        again = "make the same call again if you need it"
    return f"[{n} tokens were left out here to save room: {again}]"


def _emptied(call: Call) -> Call:
    """A call whose long arguments are gone; they were carried out or refused, and nothing reads them again."""
    text = json.dumps({"left_out": f"{len(call.function.text)} characters"})
    return call.model_copy(update={"function": call.function.model_copy(update={"arguments": text})})


def _fit(text: str, tokens: int) -> str:
    limit = len(text)
    while limit and (n := _tokens(cut(text, limit))) > max(tokens, 40):
        limit = min(limit - 1, limit * max(tokens, 40) // n)
    return cut(text, limit)


def _named(call: Call) -> str:
    return _NAME.sub("_", call.function.name)[:64] or "unnamed"


def _valid(call: Call) -> str:
    """The arguments as a JSON object, whatever the model wrote."""
    read = call.arguments
    return "{}" if read is None else inert(json.dumps(read))


def _fresh_id(given: str | None, made: str, used: set[str]) -> str:
    name = given if given and given not in used else made
    used.add(name)
    return name


def _size(messages: list[Message]) -> int:
    """Tokens of messages with their calls, from above."""
    calls = (call["function"] for m in messages for call in m.get("tool_calls", ()))
    texts = [str(m["content"]) for m in messages] + [f"{f['name']} {f['arguments']}" for f in calls]
    return sum(map(_tokens, texts)) + MESSAGE_TOKENS * len(texts)
