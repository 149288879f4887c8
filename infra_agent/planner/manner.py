"""How a model is asked: with tools or as JSON, with which limit of its answer, within which window. And what an
endpoint's refusal means for that: the next manner that may work. Pure.

Endpoints say what they can't do in an HTTP error with free words; the patterns are those of OpenAI, OpenRouter, vLLM,
SGLang, llama.cpp and Ollama. What fits none of them is no matter of manner.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from typing import Literal, NamedTuple

Form = Literal["tools", "json_schema", "json_object", "text"]
FORMS: tuple[Form, ...] = ("tools", "json_schema", "json_object", "text")
LIMITS = ("max_tokens", "max_completion_tokens", "")
"""Names of the field that limits an answer; empty: none is sent."""
MAX_ANSWER_TOKENS = 16_384
LEAST_WINDOW = 1_024

Reason = Literal["context", "limit", "format", "tools"]


class Manner(NamedTuple):
    """One way of asking. Each field only ever moves down its list."""

    form: Form
    limit: str
    window: int
    """Tokens of the whole request with its answer."""

    @property
    def answer_tokens(self) -> int:
        """What is kept free for the answer: at most a quarter of the window."""
        return min(MAX_ANSWER_TOKENS, self.window // 4)

    def without(self, reason: Reason, said: str = "") -> Manner | None:
        """The next manner after an endpoint refused this one for `reason`; None if there is none."""
        match reason:
            case "context":
                window = next((w for w in windows(self.window)[1:] if w <= (stated_window(said) or w)), None)
                return self._replace(window=window) if window else None
            case "limit":
                return self._replace(limit=LIMITS[LIMITS.index(self.limit) + 1])
            case "tools" | "format":
                return self._replace(form=FORMS[FORMS.index(self.form) + 1])


def first(window: int) -> Manner:
    """How an endpoint is asked of which nothing is known."""
    return Manner(FORMS[0], LIMITS[0], window)


def every(window: int) -> Iterator[Manner]:
    """All manners, those first that are tried first."""
    return (Manner(*fields) for fields in product(FORMS, LIMITS, windows(window)))


def windows(window: int) -> list[int]:
    """The window and its halves. Only these are used, so that a resumed campaign can find how it was asked."""
    found = [window]
    while found[-1] // 2 >= LEAST_WINDOW:
        found.append(found[-1] // 2)
    return found


_STATUSES = (400, 404, 405, 413, 415, 422, 500, 501)
"""Those with which endpoints refuse what they can't do; 500 is llama.cpp's and Ollama's."""
_CONTEXT = re.compile(
    r"context[ _](?:length|size|window)|exceed_context|maximum (?:model|context|input|prompt) length|max_model_len"
    r"|longer than the (?:model|maximum)|(?:prompt|input) is too (?:long|large)|prompt exceeds"
    r"|too many (?:input )?tokens"
    r"|input tokens? exceed|token count[^.]{0,40}exceeds|reduce the length",
    re.IGNORECASE,
)
_LIMIT = re.compile(r"max_(?:completion_)?tokens", re.IGNORECASE)
_FORMAT = re.compile(
    r"response.?format|json.?schema|json.?object|json.?mode|structured.?output|guided|grammar|schema", re.IGNORECASE
)
_TOOLS = re.compile(r"\btools?\b|tool.?(?:choice|call|use)|function.?call|--jinja", re.IGNORECASE)
_UNABLE = re.compile(
    r"support|requires?\b|enabled?\b|unknown|unrecogni[sz]ed|unexpected|not (?:permitted|allowed|implemented|available)"
    r"|forbidden|invalid (?:parameter|argument|field)|extra",
    re.IGNORECASE,
)
_STATED = (
    re.compile(r"n_ctx\W{0,4}(\d{3,8})"),
    re.compile(
        r"(?:context (?:length|size|window)|model length|tokens allowed|limit)\D{0,24}?(\d{3,8})", re.IGNORECASE
    ),
    re.compile(r"> ?(\d{3,8}) maximum|(\d{3,8}) (?:tokens )?maximum", re.IGNORECASE),
)


def refused(status: int, said: str, asked: dict[str, object]) -> Reason | None:
    """What of the request `asked` an endpoint can't do, from its status and words; None if it is something else."""
    if status not in _STATUSES:
        return None
    if status == 413 or _CONTEXT.search(said):
        return "context"
    if _LIMIT.search(said) and any(name in asked for name in LIMITS if name):
        return "limit"
    if _FORMAT.search(said) and "response_format" in asked:
        return "format"
    if _TOOLS.search(said) and _UNABLE.search(said) and "tools" in asked:
        return "tools"
    return None


def stated_window(said: str) -> int | None:
    """The window that a refusal names, in tokens, if it does."""
    for pattern in _STATED:
        if match := pattern.search(said):
            return int(next(group for group in match.groups() if group))
    return None
