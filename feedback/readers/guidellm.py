"""guidellm: the JSON report of `guidellm run` (formerly `guidellm benchmark`). Tried with guidellm 0.8.1.
https://github.com/vllm-project/guidellm

What it calls inter_token_latency is (last token - first) / (tokens - 1), which is vLLM's TPOT; its own
time_per_output_token counts the first token in and is left out. Requests stand in the order in which they ended.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from feedback.observations import Measurement, RuntimeEvent, Scalar, Source
from feedback.readers.documents import Fields, Positive, document, has, scalars, shown
from feedback.readers.serving import Request, Runs
from sandboxes.results import ArmName

THROUGHPUTS = {
    "requests_per_second": "request_throughput",
    "output_tokens_per_second": "output_throughput",
    "tokens_per_second": "total_token_throughput",
}
LATENCIES = {"time_to_first_token_ms": ("ttft", 1.0), "inter_token_latency_ms": ("tpot", 1.0),
             "request_latency": ("e2el", 1e3)}  # fmt: skip
"""Name and factor to milliseconds."""
_NOT_LOAD = ("worker_count", "rampup_duration", "random_seed")


class _Percentiles(Fields):
    p90: Positive | None = None
    p99: Positive | None = None


class _Summary(Fields):
    mean: Positive | None = None
    median: Positive | None = None
    percentiles: _Percentiles = _Percentiles()


class _Statuses(Fields):
    successful: _Summary | None = None


class _Request(Fields):
    time_to_first_token_ms: Positive | None = None
    inter_token_latency_ms: Positive | None = None
    request_latency: Positive | None = None
    info: Any = None


class _Requests(Fields):
    successful: tuple[_Request, ...] | None = ()
    errored: tuple[_Request, ...] | None = ()


class _Config(Fields):
    strategy: dict[str, Any] = {}


class _Benchmark(Fields):
    config: _Config | None = None
    args: _Config | None = None
    metrics: dict[str, Any]
    requests: _Requests = _Requests()


class _Report(Fields):
    benchmarks: tuple[_Benchmark, ...]


def fits(path: Path, head: bytes) -> bool:
    """Reports before version 0.4 don't name the tool."""
    return head.lstrip()[:1] == b"{" and (
        has(head, b"guidellm_version") or has(head, b"benchmarks", b"type_", b"strategy")
    )


def read(path: Path, probe: str, stage: str, arm: ArmName) -> list[Measurement | RuntimeEvent]:
    """Metrics of every benchmark of the report and of each request that succeeded. Raises Unreadable with the
    place, OSError when it can't be read."""
    runs = Runs(path, probe, stage, arm)
    for i, benchmark in enumerate(document(path, _Report).benchmarks):
        source = Source(file=path.name, query=f"/benchmarks/{i}")
        good, bad = benchmark.requests.successful or (), benchmark.requests.errored or ()
        config = benchmark.config or benchmark.args or _Config()
        case: dict[str, Scalar] = scalars(config.strategy, skip=_NOT_LOAD)
        counts = {"completed": float(len(good)), "failed": float(len(bad))}
        runs.add({**_metrics(benchmark), **counts}, [_request(n, r) for n, r in enumerate(good)], case, source)
        runs.failed(Counter(_why(request.info) for request in bad), len(good) + len(bad), source)
    return runs.found


def _metrics(benchmark: _Benchmark) -> dict[str, float]:
    found: dict[str, float | None] = {}
    for theirs, ours in THROUGHPUTS.items():
        if (summary := _summary(benchmark.metrics.get(theirs))) is not None:
            found[ours] = summary.mean
    for theirs, (name, factor) in LATENCIES.items():
        if (summary := _summary(benchmark.metrics.get(theirs))) is not None:
            values = {"mean": summary.mean, "median": summary.median, "p90": summary.percentiles.p90,
                      "p99": summary.percentiles.p99}  # fmt: skip
            found |= {f"{which}_{name}_ms": None if v is None else v * factor for which, v in values.items()}
    return {name: value for name, value in found.items() if value is not None}


def _summary(value: Any) -> _Summary | None:
    """The summary over requests that succeeded; None where there is none that can be read."""
    try:
        return _Statuses.model_validate(value).successful
    except ValueError:
        return None


def _request(index: int, request: _Request) -> Request:
    def seconds(value_ms: float | None) -> float | None:
        return None if value_ms is None else value_ms / 1e3

    return Request(
        index, seconds(request.time_to_first_token_ms), request.request_latency, seconds(request.inter_token_latency_ms)
    )


def _why(info: Any) -> str:
    return shown(info.get("error") or "") if isinstance(info, dict) else ""
