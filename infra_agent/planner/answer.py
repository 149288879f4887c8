"""What an endpoint answered: a chat completion as far as it is used, or a refusal of the way it was asked. Pure.

Reasoning is neither kept nor sent back: what stands in fields of its own is not read, and `<think>` text is cut off.
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

Trouble = Literal["", "refused", "cut off", "empty", "no call"]

_CLOSED_THOUGHT = re.compile(r"\A.*</think(?:ing)?>", re.DOTALL)
_OPEN_THOUGHT = re.compile(r"<think(?:ing)?>.*\Z", re.DOTALL)
MAX_WRITTEN_CALLS = 8
"""Calls that are read from the text of one answer."""


class _Lenient(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Function(_Lenient):
    """The tool and its arguments as the model wrote them."""

    name: str = ""
    arguments: str | dict[str, Any] | None = None

    @field_validator("name", mode="before")
    @classmethod
    def _named(cls, name: object) -> object:
        return "" if name is None else name

    @property
    def text(self) -> str:
        """The arguments as JSON text; some servers send them parsed, or nothing for none."""
        given = self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments or {})
        return given.strip() or "{}"


class Call(_Lenient):
    """One tool call of an answer."""

    id: str | None = None
    function: Function = Function()

    @property
    def arguments(self) -> dict[str, Any] | None:
        """The arguments as an object; None where they are none. Servers refuse a conversation that holds others."""
        try:
            read = json.loads(self.function.text)
        except (ValueError, RecursionError):
            return None
        return read if isinstance(read, dict) else None

    @property
    def signature(self) -> str:
        """The same text for the same call, however its arguments are written."""
        read = self.arguments
        return f"{self.function.name} {self.function.text if read is None else json.dumps(read, sort_keys=True)}"


class Message(_Lenient):
    """What the model said."""

    content: str | None = None
    refusal: str | None = None
    tool_calls: tuple[Call, ...] | None = None
    function_call: Function | None = None
    """What `tool_calls` was called before there were several."""

    @field_validator("content", mode="before")
    @classmethod
    def _joined(cls, content: object) -> object:
        """Some servers answer in parts."""
        if not isinstance(content, list):
            return content
        parts = [part.get("text") if isinstance(part, dict) else part for part in content]
        return "".join(part for part in parts if isinstance(part, str))


class Choice(_Lenient):
    """One answer."""

    message: Message
    finish_reason: str | None = None


class Usage(_Lenient):
    """Tokens that the endpoint counted."""

    prompt_tokens: int = Field(default=0, ge=0)
    completion_tokens: int = Field(default=0, ge=0)

    @field_validator("*", mode="before")
    @classmethod
    def _counted(cls, tokens: object) -> object:
        return 0 if tokens is None else tokens


class Completion(_Lenient):
    """A chat completion, as far as it is used."""

    choices: tuple[Choice, ...] = Field(min_length=1)
    model: str | None = None
    usage: Usage | None = None


class Declined(_Lenient):
    """An endpoint's refusal of the way it was asked, with its status and words."""

    status: int
    said: str


class _Envelope(_Lenient):
    declined: Declined | None = None


class Answer(NamedTuple):
    """One answer of the model, in terms of what follows from it."""

    text: str
    calls: tuple[Call, ...]
    trouble: Trouble
    """Why nothing of it is carried out; empty if its calls are."""
    why: str = ""
    model: str = ""
    """The model that the endpoint says has answered."""


def declined(status: int, said: str) -> str:
    """A refusal in the form in which it is journalled in an answer's place."""
    return json.dumps({"declined": {"status": status, "said": said}})


def refusal(body: str) -> Declined | None:
    """The refusal that a journalled body is, if it is one."""
    return _Envelope.model_validate_json(body).declined


def completion(body: str) -> Completion:
    """Raises ValueError saying what is wrong with a body that is no chat completion with an answer in it."""
    try:
        found = Completion.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        said = _error(body)
        raise ValueError(said or f"{place + ': ' if place else ''}{first['msg']}") from error
    if found.choices[0].finish_reason == "error":
        raise ValueError("it broke off with an error")
    return found


def read(body: str, as_json: bool) -> Answer:
    """What a completion means. With `as_json` the text is where the calls stand."""
    whole = completion(body)
    choice = whole.choices[0]
    message = choice.message
    text = spoken(message.content or "")
    calls = message.tool_calls or ()
    if message.function_call and not calls:
        calls = (Call(function=message.function_call),)
    if as_json and not calls:
        calls = written(text)
    trouble: Trouble = ""
    why = ""
    if message.refusal or choice.finish_reason == "content_filter":
        trouble, why = "refused", message.refusal or "a content filter took the answer away"
    elif choice.finish_reason == "length":
        trouble = "cut off"
    elif not calls:
        trouble = "no call" if text else "empty"
    return Answer(text, () if trouble else calls, trouble, why, whole.model or "")


def spoken(content: str) -> str:
    """A content without the thoughts in front of it; one that was never closed goes whole."""
    return _OPEN_THOUGHT.sub("", _CLOSED_THOUGHT.sub("", content)).strip()


def written(text: str) -> tuple[Call, ...]:
    """The calls that a text holds as JSON objects of `tool` and `arguments`, whatever stands around them."""
    found: list[Call] = []
    decoder = json.JSONDecoder()
    start = text.find("{")
    while start >= 0 and len(found) < MAX_WRITTEN_CALLS:
        try:
            value, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            end, value = start + 1, None
        if call := _call(value):
            found.append(call)
        elif value is None and not found and text.count("{") > 200:
            break  # a long text full of braces is no answer
        start = text.find("{", end)
    return tuple(found)


def _call(value: object) -> Call | None:
    if not isinstance(value, dict):
        return None
    name = value.get("tool", value.get("name"))
    arguments = value.get("arguments", value.get("parameters", {}))
    if not isinstance(name, str) or not isinstance(arguments, dict | str):
        return None
    return Call(function=Function(name=name, arguments=arguments))


def _error(body: str) -> str:
    """What an endpoint that reports an error with HTTP 200 says."""
    try:
        error = json.loads(body)["error"]
        return f"it says: {error['message'] if isinstance(error, dict) else error}"[:300]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
