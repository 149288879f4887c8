"""One chat completion from an OpenAI-compatible endpoint: its price, time limits, retries, errors that say what to do.

The only home of the `openai` package and of the HTTP errors that it lets through. Returns the body as it came,
so that it can be journalled word for word. The key appears nowhere but in the request's header.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

import httpx2
import openai
from openai import OpenAI

from infra_agent.domain import now
from infra_agent.errors import ModelUnavailable, WrongUse
from infra_agent.planner import TimeUp
from infra_agent.planner.answer import declined
from infra_agent.planner.fence import SECRET_CHARACTERS, neutral
from infra_agent.planner.manner import refused
from infra_agent.planner.spending import Purse
from infra_agent.settings import Settings

MAX_BODY_BYTES = 8 << 20
OR_SEARCH = "or use --planner search, which needs no model"


class Patience(NamedTuple):
    """How long an endpoint is waited for."""

    call_s: float = 600.0
    """One call, from the request to the last byte of the answer: a model that reasons on a slow machine takes long."""
    connect_s: float = 10.0
    tries: int = 3
    backoff_s: float = 1.0
    """Before the second try; doubled for each further one."""
    total_wait_s: float = 30.0
    """All waiting between the tries of one call together."""


CLOCK_S = 0.05
"""A timeout this close before a deadline is that deadline's: clocks and timers are no finer."""
MAX_SAID_CHARACTERS = 1_000
"""Kept of what an endpoint says why it refuses."""
MAY_HAVE_WORKED = (408, 502, 504)
"""What a gateway answers for a model that took too long: it may have been at work. Other errors cost nothing."""
_NEVER_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.UnsupportedProtocol)


class Answered(NamedTuple):
    """A body and how long it took."""

    body: str
    duration_s: float


class _TryAgain(Exception):
    """The endpoint may answer when asked again."""

    def __init__(self, cause: str, after_s: float | None = None) -> None:
        super().__init__(cause)
        self.after_s = after_s


class _Declined(Exception):
    """The endpoint can't be asked in this manner, but may be in another."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(said)
        self.status = status
        self.said = said


class _TooSlow(Exception):
    """The answer was still coming when its time was over."""


class Endpoint:
    """The endpoint that the settings name. Nothing is sent before its cost is reserved in the purse: each try of a
    request by itself, for each may cost."""

    def __init__(self, settings: Settings, patience: Patience, purse: Purse) -> None:
        self._purse = purse
        self._model = settings.model
        self._key = settings.openai_api_key
        self._patience = patience
        if not (self._key.isascii() and self._key.isprintable()):
            raise WrongUse("OPENAI_API_KEY holds characters that no key has; set it again")
        try:
            self._client = OpenAI(
                api_key=settings.openai_api_key or "none",
                base_url=settings.openai_base_url or None,
                max_retries=0,
            )
        except httpx2.InvalidURL as error:
            raise WrongUse(f"OPENAI_BASE_URL is no URL: {error}") from error
        url = self._client.base_url
        if url.scheme not in ("http", "https"):
            raise WrongUse("OPENAI_BASE_URL must begin with http:// or https://; mend it or unset it")
        self.address = str(url.copy_with(username=None, password=None, query=None, fragment=None))

    def complete(
        self, request: dict[str, Any], check: Callable[[str], object], deadline_s: float = math.inf
    ) -> Answered:
        """The body of the answer to a chat completion request, once `check` finds no fault with it; or, as
        `answer.declined` writes it, the endpoint's refusal of the manner in which it was asked.

        A busy, failing or unreachable endpoint and a body that `check` raises ValueError for are tried again.
        Raises ModelUnavailable with the endpoint, the cause and what to do, and TimeUp when no answer is there by
        `deadline_s`, a time.monotonic(). Raises BudgetSpent when the purse does not hold what a try may cost.
        """
        started = time.monotonic()
        waited = 0.0
        for attempt in range(1, self._patience.tries + 1):
            try:
                body = self._hide(self._paid(request, deadline_s))
                self._check(body, check)
                return Answered(body, time.monotonic() - started)
            except _Declined as no:
                return Answered(declined(no.status, no.said), time.monotonic() - started)
            except _TryAgain as failure:
                wait_s = self._patience.backoff_s * 2 ** (attempt - 1)
                wait_s = wait_s if failure.after_s is None else failure.after_s
                waited += wait_s
                if time.monotonic() + wait_s >= deadline_s:
                    raise TimeUp from failure
                if attempt == self._patience.tries or waited > self._patience.total_wait_s:
                    asks = f" It asks to wait {failure.after_s:.0f} s." if failure.after_s else ""
                    raise self._unavailable(f"{failure} (tried {attempt} times).{asks}") from failure
            time.sleep(wait_s)
        raise AssertionError("a try either returns or raises")

    def _check(self, body: str, check: Callable[[str], object]) -> None:
        try:
            check(body)
        except ValueError as error:
            raise _TryAgain(f"what it answered is no chat completion: {error}") from error

    def _paid(self, request: dict[str, Any], deadline_s: float) -> str:
        """One try, reserved before it goes out and settled after. What a refusal surely did not cost is given back."""
        if time.monotonic() >= deadline_s:
            raise TimeUp
        reservation, sent = self._purse.reserve(request)
        try:
            body = self._once(sent, deadline_s)
        except (_TryAgain, _Declined, ModelUnavailable, TimeUp) as failure:
            if _was_not_taken(failure):
                self._purse.release(reservation)
            raise
        self._purse.settle(reservation, body)
        return body

    def _once(self, request: dict[str, Any], deadline_s: float) -> str:
        limit_s = min(self._patience.call_s, deadline_s - time.monotonic())
        if limit_s <= 0:
            raise TimeUp
        ends_s = time.monotonic() + limit_s
        timeout = httpx2.Timeout(limit_s, connect=min(self._patience.connect_s, limit_s))
        create = self._client.chat.completions.with_streaming_response.create
        try:
            with create(**request, timeout=timeout) as response:
                return self._body(response.iter_bytes(), ends_s)
        except (_TooSlow, openai.APITimeoutError, httpx2.TimeoutException) as error:
            if time.monotonic() > deadline_s - CLOCK_S:
                raise TimeUp from error
            raise self._unavailable(
                f"it did not answer within {self._patience.call_s:g} s. Use a faster model,"
            ) from error
        except openai.APIConnectionError as error:
            raise _TryAgain(f"it can't be reached: {error.__cause__ or error}") from error
        except httpx2.HTTPError as error:
            raise _TryAgain(f"the connection broke: {error}") from error
        except openai.APIStatusError as error:
            raise self._refused(error, request) from None  # its text may repeat the key; ours does not

    def _body(self, chunks: Any, ends_s: float) -> str:
        parts: list[bytes] = []
        size = 0
        for chunk in chunks:
            parts.append(chunk)
            size += len(chunk)
            if size > MAX_BODY_BYTES:
                raise self._unavailable(f"its answer is longer than {MAX_BODY_BYTES >> 20} MiB.")
            if time.monotonic() > ends_s:  # an endpoint that keeps sending blanks is slow too
                raise _TooSlow
        return b"".join(parts).decode("utf-8", "replace")

    def _refused(self, error: openai.APIStatusError, request: dict[str, Any]) -> Exception:
        """What an HTTP status means, and what to do about it."""
        status, words = error.status_code, self._said(error)
        if refused(status, words, request):
            return _Declined(status, words)
        said = f"HTTP {status}: {words[:300]}"
        if status in (401, 403):
            return self._unavailable(f"it refuses the key ({said}). Set OPENAI_API_KEY,")
        if status == 404:
            return self._unavailable(
                f"it knows no model {self._model!r}, or has no chat completions at this address ({said}). "
                "Check INFRA_AGENT_MODEL and that OPENAI_BASE_URL is the part before /chat/completions,"
            )
        if status == 429 and error.code == "insufficient_quota":
            return self._unavailable(f"its quota is used up ({said}). Add credit, use another endpoint,")
        if status in (408, 409, 429) or status >= 500:
            return _TryAgain(said, _retry_after(error.response.headers))
        return self._unavailable(f"it refuses the request ({said}). Try another model,")

    def _said(self, error: openai.APIStatusError) -> str:
        """The endpoint's words, and what it says beside them: codes, and numbers such as the size of its window."""
        body: object = error.body
        words = str(error.message)
        if isinstance(body, dict) and body.get("message"):
            fields = ((k, v) for k, v in body.items() if k != "message" and isinstance(v, str | int) and v != "")
            beside = ", ".join(f"{name}: {value}" for name, value in fields)
        else:
            beside = body if isinstance(body, str) else json.dumps(body) if body else ""
        words += f" ({beside})" if beside else ""
        return self._hide(" ".join(neutral(words).split()))[:MAX_SAID_CHARACTERS]

    def _unavailable(self, cause: str) -> ModelUnavailable:
        remedy = OR_SEARCH if cause.endswith(",") else f"Try again later, {OR_SEARCH}"
        return ModelUnavailable(self._hide(f"the model endpoint {self.address} can't be used: {cause} {remedy}."))

    def _hide(self, text: str) -> str:
        # A short key is a dummy of a local endpoint; replacing it would garble ordinary words of an answer.
        return text.replace(self._key, "***") if len(self._key) >= SECRET_CHARACTERS else text


def _was_not_taken(failure: BaseException) -> bool:
    """Whether a request surely cost nothing: it never left, or was refused by its status. What timed out or broke off
    may have been answered, and stays reserved."""
    cause = failure.__context__
    if isinstance(cause, httpx2.HTTPError):
        return isinstance(cause, _NEVER_SENT)
    if (status := getattr(cause, "status_code", None)) is not None:
        return status not in MAY_HAVE_WORKED
    return isinstance(getattr(cause, "__cause__", None), _NEVER_SENT)


def _retry_after(headers: Any) -> float | None:
    """Seconds that the endpoint asks to wait, from its Retry-After header, if it says so."""
    value = headers.get("retry-after")
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(value) - now()).total_seconds())
    except (TypeError, ValueError):
        return None
