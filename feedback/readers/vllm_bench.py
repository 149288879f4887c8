"""`vllm bench serve --save-result`, one JSON object a run; `--append-result` adds further lines.

Tried with vLLM 0.32. `--save-detailed` adds each request, which is what allows more than a look at summaries.
https://docs.vllm.ai/en/latest/cli/bench/serve/
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from feedback.observations import Measurement, RuntimeEvent, Scalar, Source
from feedback.readers import Unreadable
from feedback.readers.documents import Count, Fields, Positive, has, lines, scalars, valid
from feedback.readers.serving import Request, Runs, tpot_s
from sandboxes.results import ArmName

COUNTS = ("request_throughput", "request_goodput", "output_throughput", "total_token_throughput", "completed", "failed")
LOAD = ("num_prompts", "request_rate", "burstiness", "max_concurrency")
"""What was offered: runs compare only under the same."""
_SUMMARY = re.compile(r"^(mean|median|p(?!50_)\d{1,2}(\.\d+)?)_(ttft|tpot|itl|e2el)_ms$")


class Result(Fields):
    """One run, by the names that vLLM and SGLang share; times of requests are in seconds."""

    completed: Count
    failed: Count | None = None
    request_throughput: Positive | None
    output_lens: list[Count] = []
    ttfts: list[Positive] = []
    itls: list[list[Positive]] = []
    latencies: list[Positive] = []
    errors: list[str] = []


def fits(path: Path, head: bytes) -> bool:
    return head.lstrip()[:1] == b"{" and has(head, b"tokenizer_id", b"num_prompts", b"burstiness")


def read(path: Path, probe: str, stage: str, arm: ArmName) -> list[Measurement | RuntimeEvent]:
    """Metrics of every run and, of a detailed one, of every request that succeeded. Raises Unreadable with the
    line, OSError when it can't be read."""
    runs = Runs(path, probe, stage, arm)
    for number, line in lines(path):
        result = valid(Result, line, path, number)
        said = scalars(line, skip=[name for name in line if name not in LOAD])
        summary = {name: line[name] for name in line if name in COUNTS or _SUMMARY.match(name)}
        add(runs, result, summary, said, number)
    if not runs.found:
        raise Unreadable(path, 0, "no run in it")
    return runs.found


def add(runs: Runs, result: Result, summary: dict[str, object], case: dict[str, Scalar], number: int) -> None:
    """One line of a results file. Raises Unreadable when the arrays of a detailed run don't fit together."""
    source = Source(file=runs.path.name, line=number)
    n = len(result.ttfts)
    for name in ("itls", "output_lens", "errors", "latencies"):
        if n and getattr(result, name) and len(getattr(result, name)) != n:
            raise Unreadable(runs.path, number, f"{name} has {len(getattr(result, name))} requests, ttfts {n}")
    metrics = {k: float(v) for k, v in summary.items() if isinstance(v, int | float) and abs(v) < 1e300}
    runs.add(metrics, [r for i in range(n) if (r := _request(result, i)) is not None], case, source)
    reasons = Counter(error for error in result.errors if error)
    n_failed = sum(reasons.values())
    if (result.failed or 0) > n_failed:
        reasons[""] += (result.failed or 0) - n_failed
    runs.failed(reasons, result.completed + sum(reasons.values()), source)


def _request(result: Result, i: int) -> Request | None:
    """Request `i`; None if it failed."""
    if (result.errors and result.errors[i]) or not result.ttfts[i]:
        return None
    gaps = result.itls[i] if result.itls else []
    ttft_s = result.ttfts[i]
    e2el_s = result.latencies[i] if result.latencies else ttft_s + sum(gaps) if result.itls else None
    n_tokens = result.output_lens[i] if result.output_lens else len(gaps) + 1
    return Request(
        place=i,
        ttft_s=ttft_s,
        e2el_s=e2el_s,
        tpot_s=None if e2el_s is None else tpot_s(ttft_s, e2el_s, n_tokens),
        max_itl_s=max(gaps, default=None),
    )
