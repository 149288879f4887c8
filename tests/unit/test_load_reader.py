"""The load reader: vLLM's definitions, and that nothing refused, short or late can make a score better."""

from __future__ import annotations

import copy
import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedback.observations import Measurement, RuntimeEvent
from feedback.readers import Unreadable
from feedback.readers.load import metrics, read

DATA = Path(__file__).resolve().parents[1] / "data" / "llamacpp"
HIGHER_IS_BETTER = {
    "request_throughput",
    "output_throughput",
    "total_token_throughput",
    "request_goodput",
    "goodput_share",
    "completed",
}


def request(ttft_s: float = 0.1, gaps_s: tuple[float, ...] = (0.02, 0.04), **changes: Any) -> dict[str, Any]:
    n = len(gaps_s) + 1
    return {
        "prompt_tokens_expected": 50,
        "offered_output_tokens": n,
        "output_tokens": n,
        "ttft_s": ttft_s,
        "itls_s": list(gaps_s),
        "e2el_s": ttft_s + sum(gaps_s),
        "ok": True,
        **changes,
    }


def failed(kind: str = "refused", **changes: Any) -> dict[str, Any]:
    nothing = {"ok": False, "failure": kind, "ttft_s": None, "itls_s": [], "e2el_s": None, "output_tokens": 0}
    return {**request(), **nothing, **changes}


def burst(*requests: dict[str, Any], duration_s: float = 0.5, **params: Any) -> dict[str, Any]:
    return {
        "duration_s": duration_s,
        "client_cpu_s": 0.01,
        "params": {"streams": len(requests), "output_tokens": 3, "timeout_s": 30.0, **params},
        "requests": list(requests),
    }


def line(record: dict[str, Any], **changes: Any) -> dict[str, Any]:
    place = {"arm": "candidate", "pair": 2, "block": 1, "position": 3, "seed": 7, "disturbed": True}
    return {"type": "slice", **place, "record": record, **changes}


def write(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in lines), encoding="utf-8")
    return path


def test_throughput_and_latencies_are_those_of_vllm() -> None:
    found = metrics(burst(request(0.1, (0.02, 0.04)), request(0.3, (0.01, 0.01)), duration_s=0.5))

    assert found["request_throughput"] == pytest.approx(4)
    assert found["output_throughput"] == pytest.approx(12)
    assert found["total_token_throughput"] == pytest.approx((6 + 100) / 0.5)
    assert found["median_ttft_ms"] == pytest.approx(200)
    assert found["mean_ttft_ms"] == pytest.approx(200)
    assert found["p99_ttft_ms"] == pytest.approx(float(np.percentile([100, 300], 99)))
    assert found["median_tpot_ms"] == pytest.approx((30 + 10) / 2)  # (e2el - ttft) / (n - 1)
    assert found["p99_itl_ms"] == pytest.approx(float(np.percentile([20, 40, 10, 10], 99)))
    assert found["median_itl_ms"] == pytest.approx(15)
    assert found["median_e2el_ms"] == pytest.approx((160 + 320) / 2)
    assert found["completed"] == 2
    assert found["failed"] == 0


def test_goodput_is_over_offered_requests() -> None:
    slow = request(0.3, (0.01, 0.01))
    found = metrics(burst(request(0.1), slow, duration_s=0.5, ttft_slo_ms=200.0))
    assert found["request_goodput"] == pytest.approx(1 / 0.5)
    assert found["goodput_share"] == pytest.approx(0.5)

    dragging = request(0.1, (0.2, 0.2))
    found = metrics(burst(request(0.1), dragging, failed(), failed(), ttft_slo_ms=200.0, tpot_slo_ms=100.0))
    assert found["goodput_share"] == pytest.approx(0.25)


def test_without_objectives_every_complete_answer_is_good() -> None:
    assert metrics(burst(request(), request()))["goodput_share"] == 1


def test_single_token_answers_have_no_gaps_between_tokens() -> None:
    found = metrics(burst(request(0.1, ())))
    assert "median_tpot_ms" not in found
    assert "median_itl_ms" not in found
    assert found["median_e2el_ms"] == pytest.approx(100)


def test_failed_request_is_charged_the_whole_time_limit() -> None:
    # One of two is refused at once and the other one then runs alone and fast: that must not pay.
    found = metrics(burst(request(0.01, (0.01, 0.01)), failed(), duration_s=0.03))
    assert found["output_throughput"] == pytest.approx(3 / 30)
    assert found["p99_ttft_ms"] == pytest.approx(float(np.percentile([10, 30_000], 99)))
    assert found["failed"] == 1


def test_burst_without_any_complete_answer_has_scores_above_zero_and_below_any_other() -> None:
    worst_complete = metrics(burst(request(1.0, (14.0, 14.0)), duration_s=30.0))
    found = metrics(burst(failed(), failed("short", output_tokens=2)))
    for name in ("request_throughput", "output_throughput", "request_goodput"):
        assert 0 < found[name] <= worst_complete[name]
    assert found["completed"] == 0


def test_short_but_complete_answer_gains_nothing_by_ending_early() -> None:
    # The same pace to 20 tokens and to 18 of 20.
    whole = request(0.1, (0.02,) * 19)
    early = {**request(0.1, (0.02,) * 17), "offered_output_tokens": 20}
    a = metrics(burst(whole, duration_s=0.48))
    b = metrics(burst(early, duration_s=0.44))
    assert b["median_e2el_ms"] == pytest.approx(a["median_e2el_ms"])
    assert b["request_throughput"] <= a["request_throughput"]
    assert b["output_throughput"] <= a["output_throughput"]


@pytest.mark.parametrize("seed", range(40))
def test_failing_any_requests_never_improves_any_metric(seed: int) -> None:
    rng = random.Random(seed)
    n = rng.randint(1, 6)
    requests = [request(rng.uniform(0.01, 2), tuple(rng.uniform(0.001, 1) for _ in range(7))) for _ in range(n)]
    duration_s = max(r["e2el_s"] for r in requests) + 0.01
    whole = metrics(burst(*requests, duration_s=duration_s, ttft_slo_ms=500.0))
    lost = failed(rng.choice(["refused", "short", "timeout"]), offered_output_tokens=8)
    broken = [lost if rng.random() < 0.5 else r for r in requests]
    # What is left may even be answered faster than before.
    faster = duration_s * rng.uniform(0.1, 1.0)
    if all(r["ok"] for r in broken):
        broken[0] = lost
    found = metrics(burst(*broken, duration_s=faster, ttft_slo_ms=500.0))
    for name, value in whole.items():
        if name == "failed":
            continue
        if name in HIGHER_IS_BETTER:
            assert found[name] <= value, name
        else:
            assert found[name] >= value, name


def test_measurements_carry_their_place_in_the_schedule(tmp_path: Path) -> None:
    path = write(tmp_path / "load.jsonl", line(burst(request())))
    found = read(path, "load", "confirm")
    by_metric = {o.metric: o for o in found if isinstance(o, Measurement)}
    assert len(by_metric) == len(found) == 19
    assert by_metric["output_throughput"] == Measurement(
        probe="load", metric="output_throughput", value=6.0, arm="candidate", stage="confirm",
        pair=2, block=1, position=3, disturbed=True,
    )  # fmt: skip


def test_pairs_become_events_and_other_lines_are_ignored(tmp_path: Path) -> None:
    contention = {"foreign_cpu_share": 0.5, "steal_share": 0.1}
    pair = {"type": "pair", "disturbed": True, "kept": False, "contention": contention}
    found = read(write(tmp_path / "load.jsonl", {"type": "note"}, pair), "load", "screen")
    assert [type(o) for o in found] == [RuntimeEvent]


def test_truncated_last_line_is_located(tmp_path: Path) -> None:
    path = write(tmp_path / "load.jsonl", line(burst(request())), line(burst(request())))
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(Unreadable, match=r"load\.jsonl, line 2: not JSON") as caught:
        read(path, "load", "screen")
    assert (caught.value.path, caught.value.line) == (path, 2)


def _without(name: str) -> dict[str, Any]:
    entry = line(burst(request()))
    del entry[name]
    return entry


def _with(**changes: Any) -> dict[str, Any]:
    entry = copy.deepcopy(line(burst(request())))
    entry["record"].update(changes)
    return entry


@pytest.mark.parametrize(
    "broken",
    [
        _without("record"),
        _without("pair"),
        line(burst(request()), arm="third"),
        _with(duration_s=0),
        _with(duration_s=-1.0),
        _with(duration_s=math.nan),
        _with(duration_s="soon"),
        _with(requests=[]),
        _with(requests=[request(ttft_s=math.inf)]),
        _with(requests=[{**request(), "e2el_s": 0.01}]),
        _with(requests=[{**request(), "ttft_s": None}]),
        _with(requests=[{**request(), "output_tokens": 4}]),
        _with(requests=[{**request(), "itls_s": [-0.1]}]),
        _with(requests=[{**request(), "offered_output_tokens": 0}]),
        _with(params={"timeout_s": 0}),
    ],
)
def test_malformed_burst_is_located(tmp_path: Path, broken: dict[str, Any]) -> None:
    path = write(tmp_path / "load.jsonl", line(burst(request())), broken)
    with pytest.raises(Unreadable, match="line 2"):
        read(path, "load", "screen")


def test_recorded_bursts_of_a_real_server_are_read() -> None:
    found = [o for o in read(DATA / "load.jsonl", "load", "screen") if isinstance(o, Measurement)]
    values = {(o.arm, o.position, o.metric): o.value for o in found}
    assert values["baseline", 0, "completed"] == 4
    assert 1 < values["baseline", 0, "output_throughput"] < 1000
    # In the third burst two requests overran the context that they shared, and the last one had it alone.
    assert (values["candidate", 2, "completed"], values["candidate", 2, "failed"]) == (1, 2)
    assert values["candidate", 2, "output_throughput"] < values["baseline", 0, "output_throughput"] / 5
