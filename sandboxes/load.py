"""The load client: bursts of streamed chat completions against a sandboxed server, from outside its sandbox.

Clock and token counts are ours; what the server says of itself (`server`) is kept apart for cross-checks and
never enters a result. Prompts are drawn by the slice's seed, so that both arms get the same work. An answer
that is refused, short, broken or late is recorded as what it is and credited with no token.
"""

from __future__ import annotations

import http.client
import itertools
import json
import random
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from sandboxes.results import Record
from sandboxes.sockets import SocketConnection, post
from sandboxes.tokens import TokenCounter

COMPLETE_SHARE = 0.9
"""An answer with fewer of the offered tokens than this is short. It is not 1, because the model may spell a
word with other tokens than our tokenizer would; then our count is a little lower than its own."""
LINE_LIMIT_BYTES = 1 << 20
ABORT_GRACE_S = 2.0

Failure = Literal["refused", "short", "broken", "flooded", "timeout"]


class Traffic(Record):
    """The fixed prompts of a target, and how many tokens its chat template adds to each."""

    template_tokens: int = Field(ge=0)
    prompts: tuple[str, ...] = Field(min_length=1)
    """User messages. `{number}` is replaced by six digits drawn by the seed, so that no two requests are
    equal and a prompt cache can't answer them from memory."""

    @classmethod
    def load(cls, path: Path) -> Traffic:
        """Read a JSON file. Raises OSError or pydantic.ValidationError."""
        return cls.model_validate_json(path.read_bytes())


class BurstParams(Record):
    """What one burst offers."""

    streams: int = Field(ge=1, le=256)
    """Requests at once: each stream sends one."""
    output_tokens: int = Field(ge=1, le=4096)
    """Tokens asked of each request; stop tokens are ignored."""
    timeout_s: float = Field(default=30.0, gt=0)
    """Time limit of the whole burst."""
    arrivals_s: tuple[float, ...] = ()
    """When each stream sends, from the start of the burst; the last value counts for all streams after it."""
    cache_prompt: bool | None = None
    """Whether the server may reuse a cached prefix; None leaves it to the server's own setting."""
    ttft_slo_ms: float | None = None
    """Time to first token that a request must keep to count as good; None asks for nothing."""
    tpot_slo_ms: float | None = None
    """Time per output token after the first that a request must keep to count as good."""


class RequestOutcome(Record):
    """One offered request and what came back. Times are seconds from the moment before it was sent."""

    prompt_tokens_expected: int
    """Our count of the message and the chat template."""
    offered_output_tokens: int
    output_tokens: int
    """Our count of the received text, at most what was offered; credited only if the answer is complete."""
    ttft_s: float | None
    itls_s: tuple[float, ...]
    """Gaps between the arrivals of pieces of text."""
    e2el_s: float | None
    """When the last piece of text came."""
    ok: bool
    failure: Failure | None = None
    error: str = ""
    finish_reason: str | None = None
    server: dict[str, float] = Field(default_factory=dict)
    """The server's own timings: a claim of the candidate."""


class Burst(Record):
    """One burst, as one JSON line of a measurement file."""

    duration_s: float
    """From before the first request was sent until the last answer had ended."""
    client_cpu_s: float
    """Processor time that this client spent on the burst: it shares the machine with the server."""
    params: BurstParams
    requests: tuple[RequestOutcome, ...]

    def to_line(self) -> str:
        """One JSON line, without its newline."""
        return self.model_dump_json()

    @classmethod
    def from_line(cls, line: str | bytes) -> Burst:
        """Read a line back. Raises pydantic.ValidationError."""
        return cls.model_validate_json(line)


def draw_prompts(prompts: Sequence[str], n: int, seed: int, use: int = 0) -> list[str]:
    """`n` prompts for a seed. `use` counts repeated draws of one seed: each goes on where the last one ended in
    the seed's order of all prompts and has other numbers, so that it can't be answered from a cache."""
    order = random.Random(f"prompts/{seed}").sample(prompts, len(prompts))
    chosen = [order[i % len(order)] for i in range(use * n, (use + 1) * n)]
    numbers = random.Random(f"numbers/{seed}/{use}")
    return [text.replace("{number}", str(numbers.randrange(100_000, 1_000_000))) for text in chosen]


def burst(
    socket: Path, prompts: Sequence[str], params: BurstParams, counter: TokenCounter, template_tokens: int = 0
) -> Burst:
    """Send one request a prompt, each on its own connection and thread, and wait for all of them or the time
    limit. Failures of the server are outcomes; nothing is raised for them."""
    cpu_s = time.process_time()
    started_ns = time.perf_counter_ns()
    streams = [_Stream(socket, prompt, params, i) for i, prompt in enumerate(prompts)]
    for stream in streams:
        stream.begin(started_ns)
    deadline = time.monotonic() + params.timeout_s
    for stream in streams:
        stream.thread.join(max(0.0, deadline - time.monotonic()))
    for stream in streams:
        stream.end()
    duration_s = (time.perf_counter_ns() - started_ns) / 1e9
    cpu_s = time.process_time() - cpu_s
    outcomes = tuple(stream.outcome(counter, template_tokens) for stream in streams)
    return Burst(duration_s=duration_s, client_cpu_s=cpu_s, params=params, requests=outcomes)


class _Stream:
    """One request on its own thread. Only its thread writes the fields until it has been joined."""

    def __init__(self, socket: Path, prompt: str, params: BurstParams, index: int) -> None:
        self._prompt = prompt
        self._params = params
        arrivals = params.arrivals_s
        self._arrival_s = arrivals[min(index, len(arrivals) - 1)] if arrivals else 0.0
        self._connection = SocketConnection(socket, params.timeout_s)
        self._late = threading.Event()
        self._is_whole = False
        self._failure: Failure | None = None
        self._error = ""
        self._sent_ns = 0
        self._arrivals_ns: list[int] = []
        self._texts: list[str] = []
        self._finish_reason: str | None = None
        self._server: dict[str, float] = {}
        self.thread = threading.Thread(target=self._run, name=f"stream-{index}", daemon=True)

    def begin(self, started_ns: int) -> None:
        """Start the thread; it sends at its arrival time."""
        self._started_ns = started_ns
        self.thread.start()

    def end(self) -> None:
        """Cut the request off if it still runs."""
        if self.thread.is_alive():
            self._late.set()
            self._connection.abort()
            self.thread.join(ABORT_GRACE_S)

    def _run(self) -> None:
        wait_s = self._arrival_s - (time.perf_counter_ns() - self._started_ns) / 1e9
        if wait_s > 0 and self._late.wait(wait_s):
            return
        self._sent_ns = time.perf_counter_ns()
        try:
            self._request()
        except TimeoutError:
            self._fail("timeout", "no byte within the time limit")
        except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
            self._fail("broken", f"{type(error).__name__}: {error}")
        finally:
            self._connection.close()

    def _fail(self, failure: Failure, error: str) -> None:
        """Note what went wrong; what came first is the cause."""
        if self._failure is None:
            self._failure, self._error = failure, error[:300]

    def _request(self) -> None:
        params = self._params
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": self._prompt}],
            "max_tokens": params.output_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
        }
        if params.cache_prompt is not None:
            body["cache_prompt"] = params.cache_prompt
        with post(self._connection, "/v1/chat/completions", body) as response:
            if response.status != http.client.OK:
                self._fail("refused", f"HTTP {response.status}: {_error_message(response.read(4096))}")
                return
            most = 8 * params.output_tokens + 64
            for _ in range(most):
                line = response.readline(LINE_LIMIT_BYTES)
                if line.startswith(b"data: [DONE]"):
                    self._is_whole = True
                    return
                if not line:
                    self._fail("broken", "the stream ended without its end mark")
                    return
                if line.startswith(b"data:"):
                    self._event(line[5:])
                elif line.startswith(b"error:"):
                    self._fail("refused", _error_message(line[6:]))
            self._fail("flooded", f"more than {most} lines")

    def _event(self, data: bytes) -> None:
        """Take in one event of the stream. Raises ValueError for what is none."""
        now_ns = time.perf_counter_ns()
        event = _mapping(json.loads(data))
        if "error" in event:
            self._fail("refused", _error_message(data))
        choices = event.get("choices") or ()
        for choice in map(_mapping, choices if isinstance(choices, list) else [choices]):
            text = _mapping(choice.get("delta") or {}).get("content")
            if isinstance(text, str) and text:
                self._arrivals_ns.append(now_ns)
                self._texts.append(text)
            reason = choice.get("finish_reason")
            if isinstance(reason, str):
                self._finish_reason = reason[:40]
        timings = event.get("timings")
        if isinstance(timings, dict):
            numbers = [(str(k)[:40], v) for k, v in timings.items() if _is_number(v)]
            self._server = {key: float(value) for key, value in numbers[:32]}

    def outcome(self, counter: TokenCounter, template_tokens: int) -> RequestOutcome:
        """What became of the request. Called after the thread was joined."""
        offered = self._params.output_tokens
        failure, error = self._failure, self._error
        if self._late.is_set():
            failure, error = "timeout", f"not complete within {self._params.timeout_s:g} s"
        elif failure is None and not self._is_whole:
            failure, error = "broken", "the answer was not taken in to its end"
        times, texts = list(self._arrivals_ns), "".join(list(self._texts))
        # A token of text has at most a few dozen letters: don't tokenize what a flood sent beyond that.
        n_tokens = min(counter.count(texts[: offered * 200]), offered)
        if failure is None and n_tokens < COMPLETE_SHARE * offered:
            failure, error = "short", f"{n_tokens} of {offered} tokens"
        return RequestOutcome(
            prompt_tokens_expected=counter.count(self._prompt) + template_tokens,
            offered_output_tokens=offered,
            output_tokens=n_tokens,
            ttft_s=(times[0] - self._sent_ns) / 1e9 if times else None,
            itls_s=tuple((b - a) / 1e9 for a, b in itertools.pairwise(times)),
            e2el_s=(times[-1] - self._sent_ns) / 1e9 if times else None,
            ok=failure is None, failure=failure, error=error,
            finish_reason=self._finish_reason, server=self._server,
        )  # fmt: skip


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) < 1e15


def _mapping(value: object) -> dict[str, Any]:
    """`value` if it is a JSON object. Raises ValueError if not."""
    if not isinstance(value, dict):
        raise ValueError(f"not a JSON object: {value!r:.80}")
    return value


def _error_message(data: bytes) -> str:
    """The message of an OpenAI-style error body, else its text."""
    try:
        message = json.loads(data)["error"]["message"]
    except (ValueError, KeyError, TypeError, RecursionError):
        message = data.decode("utf-8", "replace")
    return " ".join(str(message).split())[:300]
