"""Serving benchmarks of four tools under one set of names, and failures that are never hidden in a median."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from feedback.observations import Measurement, RuntimeEvent
from feedback.readers import Unreadable, aiperf, guidellm, sglang_bench, vllm_bench
from feedback.readers.serving import tpot_s

DATA = Path(__file__).resolve().parents[1] / "data"
AS = ("load", "screen", "candidate")
SUMMARY = {"request_throughput", "output_throughput", "total_token_throughput", "completed"} | {
    f"{which}_{name}_ms" for which in ("mean", "median", "p99") for name in ("ttft", "tpot", "e2el")
}
Found = list[Measurement | RuntimeEvent]


def values(found: Found, metric: str, unit: int = 0) -> list[float]:
    return [m.value for m in found if isinstance(m, Measurement) and m.metric == metric and m.pair == unit]


def failures(found: Found) -> list[tuple[str, float, str]]:
    return [(e.name, e.count, e.message) for e in found if isinstance(e, RuntimeEvent)]


def test_vllm_detailed_run_agrees_with_its_own_summary() -> None:
    found = vllm_bench.read(DATA / "vllm_bench" / "detailed.json", *AS)
    metrics = {m.metric for m in found if isinstance(m, Measurement)}
    assert metrics >= SUMMARY | {"mean_itl_ms", "failed"}
    assert "p50_ttft_ms" not in metrics
    for name in ("ttft", "tpot", "e2el"):
        each = values(found, f"{name}_ms")
        assert len(each) == 21
        assert median(each) == pytest.approx(values(found, f"median_{name}_ms")[0], rel=1e-6)
    assert max(values(found, "max_itl_ms")) > 50  # a stall of one request, which no median shows
    assert failures(found) == [("request_failed", 3, "3 of 24 requests failed: Service Unavailable")]
    first = found[0]
    assert isinstance(first, Measurement)
    assert first.case == {"num_prompts": 24, "request_rate": 20.0, "burstiness": 1.0, "max_concurrency": 4}
    of_requests = [m for m in found if isinstance(m, Measurement) and m.metric == "ttft_ms"]
    assert [m.block for m in of_requests] == [i for i in range(24) if i not in (5, 12, 19)]


def test_vllm_summary_alone(tmp_path: Path) -> None:
    path = DATA / "vllm_bench" / "summary.json"
    found = vllm_bench.read(path, *AS)
    assert failures(found) == []
    assert values(found, "ttft_ms") == []
    assert len(values(found, "request_goodput")) == 1
    appended = tmp_path / "appended.json"
    appended.write_text(path.read_text() + "\n" + path.read_text())
    assert {m.pair for m in vllm_bench.read(appended, *AS) if isinstance(m, Measurement)} == {0, 1}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"errors": ["", "x"]}, "errors has 2 requests"),
        ({"ttfts": [-1.0]}, "ttfts/0"),
        ({"ttfts": "fast"}, "ttfts"),
        ({"completed": None}, "completed"),
        ({"itls": [[0.1, float("nan")]]}, "itls/0/1"),
    ],
)
def test_vllm_arrays_that_do_not_fit(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps(json.loads((DATA / "vllm_bench" / "detailed.json").read_text()) | changes))
    with pytest.raises(Unreadable, match=said) as raised:
        vllm_bench.read(path, *AS)
    assert raised.value.line in (0, 1)


def test_vllm_failures_without_details_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps(json.loads((DATA / "vllm_bench" / "summary.json").read_text()) | {"failed": 4}))
    assert failures(vllm_bench.read(path, *AS)) == [("request_failed", 4, "4 of 20 requests failed")]


def test_sglang_lines_are_runs_under_the_same_names() -> None:
    found = sglang_bench.read(DATA / "sglang_bench" / "two_runs.jsonl", *AS)
    metrics = {m.metric for m in found if isinstance(m, Measurement)}
    assert metrics >= SUMMARY
    assert "median_e2e_latency_ms" not in metrics
    for name in ("ttft", "tpot", "e2el"):
        each = values(found, f"{name}_ms")
        assert len(each) == 14
        assert median(each) == pytest.approx(values(found, f"median_{name}_ms")[0], rel=0.02)
        assert values(found, f"{name}_ms", unit=1) == []
        assert len(values(found, f"median_{name}_ms", unit=1)) == 1
    ((name, count, message),) = failures(found)
    assert (name, count) == ("request_failed", 2)
    assert "queue is full" in message
    first = found[0]
    assert isinstance(first, Measurement)
    assert first.case["request_rate"] == "inf"


def test_guidellm_latencies_have_the_names_of_what_they_are() -> None:
    found = guidellm.read(DATA / "guidellm" / "concurrent.json", *AS)
    assert {m.metric for m in found if isinstance(m, Measurement)} >= SUMMARY | {"failed"}
    for name in ("ttft", "tpot", "e2el"):
        each = values(found, f"{name}_ms")
        assert len(each) == 14
        assert sum(each) / 14 == pytest.approx(values(found, f"mean_{name}_ms")[0], rel=1e-6)
    assert values(found, "request_throughput")[0] == pytest.approx(14.13, abs=0.01)
    ((_, count, message),) = failures(found)
    assert count == 2
    assert "503 Service Unavailable" in message
    first = found[0]
    assert isinstance(first, Measurement)
    assert first.case == {"type_": "concurrent", "max_concurrency": 4, "streams": 4}


def test_aiperf_exports_agree() -> None:
    folder = DATA / "aiperf"
    table = aiperf.read(folder / "profile_export_aiperf.csv", *AS)
    summary = aiperf.read(folder / "profile_export_aiperf.json", *AS)
    records = aiperf.read(folder / "profile_export.jsonl", *AS)
    metrics = {m.metric for m in summary if isinstance(m, Measurement)}
    assert metrics >= SUMMARY | {"failed", "p99_itl_ms"}
    assert {m.metric for m in table if isinstance(m, Measurement)} == metrics
    for metric in metrics:
        assert values(table, metric)[0] == pytest.approx(values(summary, metric)[0], abs=0.006)
    for name in ("ttft", "tpot", "e2el"):
        assert len(values(records, f"{name}_ms")) == 14
        assert median(values(records, f"{name}_ms")) == pytest.approx(values(summary, f"median_{name}_ms")[0])
    for found in (table, summary, records):
        ((_, count, message),) = failures(found)
        assert (count, message[:24]) == (2, "2 of 16 requests failed" + message[23:24])
    assert "503 Service Unavailable" in failures(records)[0][2]


def test_aiperf_warmup_requests_are_marked(tmp_path: Path) -> None:
    path = tmp_path / "profile_export.jsonl"
    first, *rest = (DATA / "aiperf" / "profile_export.jsonl").read_text().splitlines()[1:5]
    path.write_text("\n".join([first.replace('"benchmark_phase":"profiling"', '"benchmark_phase":"warmup"'), *rest]))
    marked = [m.warmup for m in aiperf.read(path, *AS) if isinstance(m, Measurement) and m.metric == "ttft_ms"]
    assert sorted(marked) == [False, False, False, True]


def test_time_per_output_token() -> None:
    assert tpot_s(0.1, 0.5, 5) == pytest.approx(0.1)
    assert tpot_s(0.1, 0.1, 1) is None
    assert tpot_s(0.5, 0.1, 5) is None
