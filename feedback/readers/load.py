"""Measurement files of a load probe: bursts of requests against both arms' servers, one JSON line a burst.

Metric names and definitions are those of `vllm bench serve`, a burst being the whole run, with these
differences, so that no refused, short or late answer can make a score better:

* Only complete answers are credited with tokens, and goodput is over offered requests.
* A burst with a failed request is charged its whole time limit as duration, and a failed request has the
  time limit as each of its latencies and gaps between tokens. A burst without any complete answer counts as
  one token and one request in the time limit, and one without any good request as half a good one (a logarithm
  needs something above zero).
* An answer a few tokens short of what was offered is credited with what it has, and its end-to-end latency is
  extrapolated to the offered length at its own pace.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from feedback.observations import Measurement, Observation
from feedback.readers import Unreadable, slices
from feedback.readers.slices import lines, pair_events

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]


class _Fields(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _Params(_Fields):
    timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    ttft_slo_ms: float | None = None
    tpot_slo_ms: float | None = None


class _Request(_Fields):
    prompt_tokens_expected: Count
    offered_output_tokens: Annotated[int, Field(ge=1)]
    output_tokens: Count
    ttft_s: Seconds | None
    itls_s: tuple[Seconds, ...]
    e2el_s: Seconds | None
    ok: bool

    @model_validator(mode="after")
    def _complete(self) -> _Request:
        if self.ok and (self.ttft_s is None or self.e2el_s is None or self.e2el_s < self.ttft_s):
            raise ValueError("a complete answer needs ttft_s and, not below it, e2el_s")
        if self.output_tokens > self.offered_output_tokens:
            raise ValueError("more output tokens than were offered")
        return self


class _Burst(_Fields):
    duration_s: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    params: _Params
    requests: Annotated[tuple[_Request, ...], Field(min_length=1)]


def fits(path: Path, head: bytes) -> bool:
    return slices.fits(path, head) and b'"requests"' in head and b'"timeout_s"' in head


def read(path: Path, probe: str, stage: str) -> list[Observation]:
    """Metrics of every burst in the file, and events for its disturbed pairs; other lines are ignored.

    Raises Unreadable with the line for a truncated or malformed one, OSError if the file can't be read.
    """
    found: list[Observation] = []
    for number, line in lines(path):
        try:
            if line.get("type") == "slice":
                found += _measurements(line, probe, stage)
            elif line.get("type") == "pair":
                found += pair_events(line, probe, stage)
        except (KeyError, TypeError, ValueError) as error:
            raise Unreadable(path, number, f"not a burst: {error}") from error
    return found


def _measurements(line: dict[str, Any], probe: str, stage: str) -> list[Measurement]:
    place: dict[str, Any] = {name: line[name] for name in ("arm", "pair", "block", "position", "disturbed")}
    place |= {name: line[name] for name in ("paired", "case") if name in line}
    return [
        Measurement(probe=probe, stage=stage, metric=metric, value=value, **place)
        for metric, value in metrics(line["record"]).items()
    ]


def metrics(record: dict[str, Any]) -> dict[str, float]:
    """Metrics of one burst record by name. Raises pydantic.ValidationError (a ValueError) if it is none.

    Throughputs are per second; `request_goodput` is good requests per second and `goodput_share` their share
    of the offered ones. Latencies are in milliseconds; those of gaps between tokens are missing when every
    request asked for one token only.
    """
    burst = _Burst.model_validate(record)
    complete = [request for request in burst.requests if request.ok]
    n_failed = len(burst.requests) - len(complete)
    limit_s = burst.params.timeout_s
    charged_s = max(burst.duration_s, limit_s) if n_failed else burst.duration_s
    tokens = sum(request.output_tokens for request in complete)
    requests = sum(request.output_tokens / request.offered_output_tokens for request in complete)
    prompt_tokens = sum(request.prompt_tokens_expected for request in complete)
    n_good = sum(_is_good(request, burst.params) for request in complete) or 0.5
    found = {
        "request_throughput": (requests if complete else 1.0) / charged_s,
        "output_throughput": max(tokens, 1) / charged_s,
        "total_token_throughput": max(tokens + prompt_tokens, 1) / charged_s,
        "request_goodput": n_good / charged_s,
        "goodput_share": n_good / len(burst.requests),
        "completed": float(len(complete)),
        "failed": float(n_failed),
    }
    lost = [limit_s] * n_failed
    lost_gaps = [limit_s] * sum(max(1, r.offered_output_tokens - 1) for r in burst.requests if not r.ok)
    found |= _summary("ttft", [request.ttft_s or 0.0 for request in complete] + lost)
    found |= _summary("tpot", [tpot for r in complete if (tpot := _tpot_s(r)) is not None] + lost)
    found |= _summary("itl", [gap for request in complete for gap in request.itls_s] + lost_gaps)
    found |= _summary("e2el", [_full_e2el_s(request) for request in complete] + lost)
    return found


def _summary(name: str, values_s: Sequence[float]) -> dict[str, float]:
    """Mean, median and 99th percentile in milliseconds, as `vllm bench serve` reports them."""
    if not values_s:
        return {}
    values_ms = np.asarray(values_s, dtype=np.float64) * 1e3
    return {
        f"mean_{name}_ms": float(values_ms.mean()),
        f"median_{name}_ms": float(np.median(values_ms)),
        f"p99_{name}_ms": float(np.percentile(values_ms, 99)),
    }


def _tpot_s(request: _Request) -> float | None:
    """Time per output token after the first one; None for a single token."""
    if request.output_tokens < 2 or request.ttft_s is None or request.e2el_s is None:
        return None
    return (request.e2el_s - request.ttft_s) / (request.output_tokens - 1)


def _full_e2el_s(request: _Request) -> float:
    """End-to-end latency at the request's own pace, had it been answered to its full offered length."""
    missing = request.offered_output_tokens - request.output_tokens
    return (request.e2el_s or 0.0) + missing * (_tpot_s(request) or 0.0)


def _is_good(request: _Request, params: _Params) -> bool:
    """Whether a complete answer kept both service level objectives."""
    tpot_s = _tpot_s(request)
    return _within(request.ttft_s, params.ttft_slo_ms) and _within(tpot_s, params.tpot_slo_ms)


def _within(value_s: float | None, limit_ms: float | None) -> bool:
    return limit_ms is None or value_s is None or value_s * 1e3 <= limit_ms


def failures(records: Iterable[dict[str, Any]]) -> dict[str, int]:
    """How often each kind of failure stands in burst records: a count for the digest."""
    counts: dict[str, int] = {}
    for record in records:
        for request in record.get("requests", ()):
            if kind := request.get("failure"):
                counts[str(kind)] = counts.get(str(kind), 0) + 1
    return counts
