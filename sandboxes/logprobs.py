"""Teacher-forced log-probabilities of fixed texts from a sandboxed llama.cpp server, one position a request.

Each request gives the server the first tokens of a text and asks how likely each next token is. The prefix
comes from the server's cache, so a step costs a few tokens only, and what a changed cache does to the answers
shows. The tokens are ours; the server never sees which one is the true one.
"""

from __future__ import annotations

import http.client
import json
import math
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pydantic import Field

from sandboxes.results import Record
from sandboxes.sockets import ask
from sandboxes.tokens import TokenCounter


class ScoreParams(Record):
    """Which positions are asked, and how."""

    first: int = Field(default=8, ge=1)
    """First scored position of a text, counted in tokens."""
    stride: int = Field(default=3, ge=1)
    """Distance between scored positions: each request computes that many tokens."""
    n_probs: int = Field(default=256, ge=1, le=4096)
    """How many of the likeliest tokens the server lists."""
    timeout_s: float = Field(default=120.0, gt=0)
    """Time limit of all texts together."""
    concurrency: int = Field(default=1, ge=1, le=64)
    """Texts in flight at once. More than one makes an arm's own results vary with the order of arrival."""


class Position(Record):
    """The true next token at one place of a text."""

    position: int
    """How many tokens stand before it."""
    token: int
    logprob: float | None
    """Natural logarithm of its probability; an upper bound if censored; None if the server refused."""
    censored: bool = False
    """Whether the token is not among those that were listed."""
    top1: int | None = None
    """The likeliest token."""
    error: str = ""


class TextScore(Record):
    """All scored positions of one text."""

    text: str
    positions: tuple[Position, ...]


class ScoringFailed(Exception):
    """The server did not answer a scoring request, or not in time."""


def score(socket: Path, texts: Mapping[str, str], counter: TokenCounter, params: ScoreParams) -> list[TextScore]:
    """Score each text, in the mapping's order. Raises ScoringFailed when the server is gone, talks nonsense
    or is too slow; an answer that refuses (a prompt beyond its context) is recorded in its position."""
    deadline = time.monotonic() + params.timeout_s

    def one(item: tuple[str, str]) -> TextScore:
        name, text = item
        ids = counter.encode(text)
        places = range(params.first, len(ids), params.stride)
        positions = tuple(_position(socket, ids, place, params, deadline) for place in places)
        return TextScore(text=name, positions=positions)

    if params.concurrency == 1:
        return [one(item) for item in texts.items()]
    with ThreadPoolExecutor(params.concurrency, "score") as pool:
        return list(pool.map(one, texts.items()))


def _position(socket: Path, ids: list[int], place: int, params: ScoreParams, deadline: float) -> Position:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise ScoringFailed(f"not scored within {params.timeout_s:g} s")
    body = {
        "prompt": ids[:place],
        "n_predict": 1,
        "n_probs": params.n_probs,
        "temperature": 0,
        "cache_prompt": True,
    }
    true = ids[place]
    try:
        status, data = ask(socket, "/completion", body, timeout_s=left_s)
        answer = json.loads(data)
        if status != http.client.OK:
            reason = f"HTTP {status}: {answer['error']['message']}"[:300]
            return Position(position=place, token=true, logprob=None, error=reason)
        listed = _listed(answer)
    except (OSError, http.client.HTTPException) as error:
        raise ScoringFailed(f"position {place}: {type(error).__name__}: {error}") from error
    except (ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError) as error:
        raise ScoringFailed(f"position {place}: not an answer with probabilities ({error!r:.200})") from error
    by_token = dict(listed)
    return Position(
        position=place,
        token=true,
        logprob=by_token.get(true, min(by_token.values())),
        censored=true not in by_token,
        top1=listed[0][0],
    )


def _listed(answer: dict[str, Any]) -> list[tuple[int, float]]:
    """Token ids with their log-probabilities, likeliest first."""
    entries = answer["completion_probabilities"][0]["top_logprobs"]
    listed = [(int(entry["id"]), float(entry["logprob"])) for entry in entries]
    if not listed or not all(math.isfinite(logprob) for _, logprob in listed):
        raise ValueError("no tokens, or probabilities that are no numbers")
    return sorted(listed, key=lambda entry: -entry[1])
