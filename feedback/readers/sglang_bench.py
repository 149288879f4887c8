"""SGLang's `python -m sglang.bench_serving --output-file FILE`: one JSON line a run, appended to the file.

Tried with SGLang 0.5.23. `--output-details` adds each request. What is called e2e_latency here is vLLM's e2el.
https://docs.sglang.io/developer_guide/bench_serving.html
"""

from __future__ import annotations

import re
from pathlib import Path

from feedback.observations import Measurement, RuntimeEvent
from feedback.readers import Unreadable, vllm_bench
from feedback.readers.documents import has, lines, scalars, valid
from feedback.readers.serving import Runs
from sandboxes.results import ArmName

LOAD = (
    "dataset_name", "request_rate", "max_concurrency", "random_input_len", "random_output_len", "random_range_ratio",
    "sharegpt_output_len",
)  # fmt: skip
METRICS = {
    "request_throughput": "request_throughput",
    "output_throughput": "output_throughput",
    "total_throughput": "total_token_throughput",
    "completed": "completed",
    "accept_length": "accept_length",
}
_SUMMARY = re.compile(r"^(mean|median|p\d{1,2})_(ttft|tpot|itl|e2e_latency)_ms$")


def fits(path: Path, head: bytes) -> bool:
    return head.lstrip()[:1] == b"{" and has(head, b"random_range_ratio", b"sharegpt_output_len", b"backend")


def read(path: Path, probe: str, stage: str, arm: ArmName) -> list[Measurement | RuntimeEvent]:
    """Metrics of every run and, of a detailed one, of every request that succeeded. Raises Unreadable with the
    line, OSError when it can't be read."""
    runs = Runs(path, probe, stage, arm)
    for number, line in lines(path):
        result = valid(vllm_bench.Result, line, path, number)
        summary = {METRICS[name]: line[name] for name in line if name in METRICS}
        summary |= {name.replace("e2e_latency", "e2el"): line[name] for name in line if _SUMMARY.match(name)}
        case = scalars(line, skip=[name for name in line if name not in LOAD])
        vllm_bench.add(runs, result, summary, case, number)
    if not runs.found:
        raise Unreadable(path, 0, "no run in it")
    return runs.found
