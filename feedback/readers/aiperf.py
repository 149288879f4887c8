"""AIPerf (the successor of genai-perf): profile_export_aiperf.json and .csv, which sum a run up, and
profile_export.jsonl, which has each request. Tried with AIPerf 0.13. https://github.com/ai-dynamo/aiperf

Its inter_token_latency is one number a request, (last token - first) / (tokens - 1), which is vLLM's TPOT; its
inter_chunk_latency is vLLM's ITL. The `adj_` metrics count failures in and are left out.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from feedback.observations import Measurement, RuntimeEvent, Scalar, Source
from feedback.readers import Unreadable
from feedback.readers.documents import Fields, document, has, lines, rows, scalars, shown, valid
from feedback.readers.serving import MAX_REQUESTS, Request, Runs
from sandboxes.results import ArmName

THROUGHPUTS = {
    "request_throughput": "request_throughput",
    "output_token_throughput": "output_throughput",
    "total_token_throughput": "total_token_throughput",
    "request_count": "completed",
    "error_request_count": "failed",
}
LATENCIES = {
    "time_to_first_token": "ttft",
    "inter_token_latency": "tpot",
    "inter_chunk_latency": "itl",
    "request_latency": "e2el",
}
STATISTICS = {"avg": "mean", "p50": "median", "p90": "p90", "p95": "p95", "p99": "p99"}
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}
_TITLE = re.compile(r"^(?P<name>[^()]+?) \((?P<unit>[^()]*)\)$")


class _Record(Fields):
    metadata: dict[str, Any]
    metrics: dict[str, Any] = {}
    error: Any = None


class _Export(Fields):
    model_config = ConfigDict(frozen=True, extra="allow")

    aiperf_version: str
    error_summary: Any = None
    input_config: dict[str, Any] | None = None


def fits(path: Path, head: bytes) -> bool:
    is_summary = head.lstrip()[:1] == b"{" and has(head, b"aiperf_version")
    return head.startswith(b"Metric,avg,") or is_summary or _has_records(head)


def _has_records(head: bytes) -> bool:
    """A line may be longer than the head: it has the time of every token."""
    return head.startswith(b'{"metadata":') and has(head, b"benchmark_phase")


def read(path: Path, probe: str, stage: str, arm: ArmName) -> list[Measurement | RuntimeEvent]:
    """Metrics of the run, or of each request. Raises Unreadable with line or place, OSError when it can't be read."""
    with path.open("rb") as file:
        head = file.read(1 << 16)
    runs = Runs(path, probe, stage, arm)
    if head.startswith(b"Metric,avg,"):
        _csv(path, runs)
    elif _has_records(head):
        _records(path, runs)
    else:
        _summaries(path, runs)
    return runs.found


def _summaries(path: Path, runs: Runs) -> None:
    export = document(path, _Export)
    said: dict[str, Any] = export.model_extra or {}
    source = Source(file=path.name)
    metrics: dict[str, float] = {}
    for name in (*THROUGHPUTS, *LATENCIES):
        if isinstance(said.get(name), dict):
            metrics |= _metrics(name, shown(said[name].get("unit")), said[name])
    phases = (export.input_config or {}).get("phases")
    main = [p for p in phases if isinstance(p, dict) and p.get("kind") != "warmup"] if isinstance(phases, list) else []
    case: dict[str, Scalar] = scalars(main[0], skip=("name", "kind")) if main else {}
    runs.add(metrics, [], case, source)
    errors = export.error_summary if isinstance(export.error_summary, list) else []
    reasons: Counter[str] = Counter()
    for error in errors:
        if isinstance(error, dict) and _is_count(error.get("count")):
            reasons[_why(error.get("error_details"))] += error["count"]
    runs.failed(reasons, int(metrics.get("completed", 0)) + sum(reasons.values()), source)


def _csv(path: Path, runs: Runs) -> None:
    """Two tables, `Metric,avg,...` by request and `Metric,Value` over the run; then others, which aren't read."""
    metrics: dict[str, float] = {}
    header: list[str] = []
    for number, row in rows(path):
        if row[0] == "Metric":
            header = row
            continue
        if len(row) != len(header):
            if row[0] == "Endpoint":
                break
            raise Unreadable(path, number, f"{len(row)} cells under {len(header)} columns")
        title = _TITLE.match(row[0])
        name = (title["name"] if title else row[0]).lower().replace(" ", "_")
        cells = {("avg" if k == "Value" else k): _number(cell) for k, cell in zip(header[1:], row[1:], strict=True)}
        metrics |= _metrics(name, title["unit"] if title else "", cells)
    source = Source(file=path.name)
    runs.add(metrics, [], {}, source)
    n_failed = int(metrics.get("failed", 0))
    runs.failed({"": n_failed}, int(metrics.get("completed", 0)) + n_failed, source)


def _metrics(name: str, unit: str, values: dict[str, Any]) -> dict[str, float]:
    if name in THROUGHPUTS:
        return {THROUGHPUTS[name]: float(values["avg"])} if _is_number(values.get("avg")) else {}
    if name not in LATENCIES or unit not in SECONDS:
        return {}
    factor = SECONDS[unit] * 1e3
    return {
        f"{ours}_{LATENCIES[name]}_ms": values[theirs] * factor
        for theirs, ours in STATISTICS.items()
        if _is_number(values.get(theirs))
    }


def _records(path: Path, runs: Runs) -> None:
    """Each request of the run, in the order of its sessions; warm-up requests are marked as such."""
    requests: dict[bool, list[Request]] = {False: [], True: []}
    reasons: Counter[str] = Counter()
    for index, (number, line) in enumerate(lines(path)):
        if index == MAX_REQUESTS:
            raise Unreadable(path, number, f"more than {MAX_REQUESTS} requests")
        record = valid(_Record, line, path, number)
        session: Any = record.metadata.get("session_num")
        place: int = session if _is_count(session) else index
        if record.error or record.metadata.get("was_cancelled"):
            reasons[_why(record.error) or "cancelled"] += 1
            continue
        gaps = record.metrics.get("inter_chunk_latency")
        known = {name: _seconds(record.metrics.get(name)) for name in LATENCIES if name != "inter_chunk_latency"}
        requests[record.metadata.get("benchmark_phase") == "warmup"].append(
            Request(
                place, known["time_to_first_token"], known["request_latency"], known["inter_token_latency"],
                max(_gaps_s(gaps), default=None),
            )
        )  # fmt: skip
    source = Source(file=path.name)
    for warmup, of_phase in requests.items():
        if of_phase:
            runs.add({}, of_phase, {}, source, warmup=warmup)
    runs.failed(reasons, sum(map(len, requests.values())) + sum(reasons.values()), source)


def _seconds(metric: Any) -> float | None:
    factor = _factor(metric)
    return metric["value"] * factor if factor is not None and _is_number(metric.get("value")) else None


def _gaps_s(metric: Any) -> list[float]:
    factor = _factor(metric)
    if factor is None or not isinstance(metric.get("value"), list):
        return []
    return [value * factor for value in metric["value"] if _is_number(value)]


def _factor(metric: Any) -> float | None:
    """From the metric's unit to seconds; None if it is no metric of time."""
    return SECONDS.get(shown(metric.get("unit"))) if isinstance(metric, dict) else None


def _why(error: Any) -> str:
    if not isinstance(error, dict):
        return shown(error or "")
    return shown(" ".join(shown(error[key]) for key in ("code", "type", "message") if error.get(key)))


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e300


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53
