"""Microbenchmarks: which process (the unit), which round in it, what was measured, and what was no measurement."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from statistics import median

import pytest

from feedback.observations import Measurement, Observation, RuntimeEvent
from feedback.readers import (
    Unreadable,
    google_benchmark,
    hyperfine,
    llama_bench,
    pyperf,
    pytest_benchmark,
    triton_table,
)

DATA = Path(__file__).resolve().parents[1] / "data"
AS = ("micro", "screen", "baseline")


def measured(found: list[Observation] | list[Measurement], metric: str = "time_s") -> list[Measurement]:
    return [o for o in found if isinstance(o, Measurement) and o.metric == metric]


def events(found: list[Observation]) -> dict[str, RuntimeEvent]:
    return {o.name: o for o in found if isinstance(o, RuntimeEvent)}


def units(found: list[Measurement]) -> dict[str, tuple[int, int]]:
    """Processes and values of each benchmark."""
    names = {str(m.case["benchmark"]) for m in found}
    of = {name: [m for m in found if m.case["benchmark"] == name] for name in names}
    return {name: (len({m.pair for m in ms}), len(ms)) for name, ms in of.items()}


def test_pytest_benchmark_rounds_are_one_unit() -> None:
    path = DATA / "pytest_benchmark" / "rms_norm.json"
    found = pytest_benchmark.read(path, *AS)
    times = measured(found)
    assert units(times) == {
        f"bench_norm.py::test_rms_norm[{dtype}-{width}]": (1, 20)
        for dtype in ("float32", "float64")
        for width in (64, 1024)
    }
    first = times[0]
    assert (first.paired, first.probe, first.arm) == (False, "micro", "baseline")
    assert first.case == {"benchmark": "bench_norm.py::test_rms_norm[float32-64]", "dtype": "float32", "width": 64}
    raw = json.loads(path.read_text())["benchmarks"][0]["stats"]
    assert [m.value for m in times[:20]] == raw["data"]
    assert median(m.value for m in times[:20]) == pytest.approx(raw["median"])
    assert [m.block for m in times[:20]] == list(range(20))
    assert [(m.value, m.case["width"]) for m in measured(found, "flops")][:2] == [(16384, 64), (262144, 1024)]
    assert first.source is not None
    assert first.source.query == "/benchmarks/0/stats/data/0"


def test_pytest_benchmark_without_raw_rounds_says_how_to_get_them(tmp_path: Path) -> None:
    value = json.loads((DATA / "pytest_benchmark" / "rms_norm.json").read_text())
    del value["benchmarks"][2]["stats"]["data"]
    path = tmp_path / "saved.json"
    path.write_text(json.dumps(value))
    with pytest.raises(Unreadable, match=r"/benchmarks/2 has no raw rounds; .*--benchmark-json"):
        pytest_benchmark.read(path, *AS)


def test_pyperf_runs_are_units_and_warmups_are_marked() -> None:
    path = DATA / "pyperf" / "rms_norm.json"
    found = pyperf.read(path, *AS)
    times = measured(found)
    assert units(times) == {f"rms_norm[width={width}]": (6, 24) for width in (64, 1024)}
    assert Counter(m.warmup for m in times) == {False: 36, True: 12}
    first = json.loads(path.read_text())["benchmarks"][0]["runs"][1]
    assert [m.value for m in times[:4]] == [first["warmups"][0][1], *first["values"]]
    assert [(m.pair, m.block, m.warmup) for m in times[:5]] == [
        (0, 0, True), (0, 1, False), (0, 2, False), (0, 3, False), (1, 0, True),
    ]  # fmt: skip
    busy = events(found)["load_average"]
    assert (busy.level, busy.count) == ("warning", 10.93)


def test_pyperf_names_a_unit_that_it_does_not_know(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    path.write_text('{"version": "1.0", "benchmarks": [{"metadata": {"unit": "furlong"}, "runs": []}]}')
    with pytest.raises(Unreadable, match="furlong"):
        pyperf.read(path, *AS)


def test_google_benchmark_skips_aggregates_and_tells_a_benchmark_that_gave_up() -> None:
    found = google_benchmark.read(DATA / "google_benchmark" / "repetitions.json", *AS)
    times = measured(found)
    names = {"rms_norm/64", "rms_norm/512", "rms_norm/4096", "threads/real_time/threads:2"}
    assert units(times) == dict.fromkeys(names, (1, 5))
    assert [m.block for m in times[:5]] == [0, 1, 2, 3, 4]
    assert times[0].value == pytest.approx(3.4637302608487892e-07)
    assert measured(found, "cpu_time_s")[0].value == pytest.approx(6.7657396289658436e-08)
    micros = next(m for m in times if m.case["benchmark"] == "threads/real_time/threads:2")
    assert micros.value == pytest.approx(1.0105151000004754e-09)
    gave_up = [o for o in found if o.kind == "test"]
    assert [(o.outcome, o.message, o.attempt) for o in gave_up] == [
        ("error", "no such instruction", i) for i in range(5)
    ]
    assert {name: event.level for name, event in events(found).items()} == {
        "load_average": "warning",
        "debug_build": "note",
    }


def test_google_benchmark_context_facts(tmp_path: Path) -> None:
    value = json.loads((DATA / "google_benchmark" / "single.json").read_text())
    value["context"] |= {
        "cpu_scaling_enabled": True,
        "aslr_enabled": True,
        "load_avg": [0.2],
        "library_build_type": "x",
    }
    path = tmp_path / "quiet.json"
    path.write_text(json.dumps(value))
    found = events(google_benchmark.read(path, *AS))
    levels = {"cpu_scaling_enabled": "warning", "aslr_enabled": "note", "load_average": "note"}
    assert {name: event.level for name, event in found.items()} == levels


def test_hyperfine_times_are_units() -> None:
    found = hyperfine.read(DATA / "hyperfine" / "seq.json", *AS)
    assert units(measured(found)) == {"seq 1000": (8, 8), "seq 100000": (8, 8)}
    assert measured(found)[0].value == 0.007876343000000001
    assert measured(found)[0].case == {"benchmark": "seq 1000", "n": "1000"}


def test_hyperfine_times_of_failed_runs_are_no_times() -> None:
    (event,) = hyperfine.read(DATA / "hyperfine" / "failing.json", *AS)
    assert isinstance(event, RuntimeEvent)
    assert (event.name, event.level, event.count) == ("exit_status", "error", 3)
    assert event.message == "3 of 3 runs failed: false"


def test_llama_bench_case_is_the_work_and_what_the_file_compares() -> None:
    found = llama_bench.read(DATA / "llama_bench" / "threads.json", *AS)
    assert Counter((str(m.case["benchmark"]), m.case["n_threads"]) for m in found) == {
        (name, threads): 3 for name in ("pp32", "tg8") for threads in (1, 2)
    }
    assert {name for m in found for name in m.case} == {
        "benchmark", "model_type", "n_prompt", "n_gen", "n_depth", "n_threads",
    }  # fmt: skip
    assert [m.value for m in found[:3]] == [0.460918207, 0.463947198, 0.403323199]
    assert {m.pair for m in found} == {0}
    (only,) = {str(m.case) for m in llama_bench.read(DATA / "llama_bench" / "prompt.jsonl", *AS)}
    assert "n_threads" not in only


def test_triton_table_has_its_unit_in_the_header(tmp_path: Path) -> None:
    found = triton_table.read(DATA / "triton_table" / "rms-norm.csv", *AS)
    assert {(str(m.case["benchmark"]), m.case["M"], m.case["N"]) for m in found} == {
        (provider, 64, n) for provider in ("NumPy", "einsum") for n in (64, 256, 1024)
    }
    assert {m.metric for m in found} == {"bandwidth_gb_per_s"}
    assert found[0].source is not None
    assert (found[0].value, found[0].source.line) == (2.003056, 2)
    path = tmp_path / "t.csv"
    path.write_text("N,A (ms),B (cups)\n64,0.5,\n128,nan,2\n")
    assert [(m.metric, m.value, m.case) for m in triton_table.read(path, *AS)] == [
        ("time_ms", 0.5, {"benchmark": "A", "N": 64}),
        ("value", 2.0, {"benchmark": "B", "N": 128}),
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [("N,A\n1,2\n", 1), ("N,A (ms)\n1,2,3\n", 2), ("N,A (ms)\n1,2\n2,fast\n", 3), ("N,A (ms)\n1,-2\n", 2)],
)
def test_triton_table_that_is_none_names_the_line(text: str, line: int, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(Unreadable) as raised:
        triton_table.read(path, *AS)
    assert raised.value.line == line
