"""Several files a side: which are repetitions of one measurement, and which are measurements of their own."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from feedback.comparison import compare
from feedback.signals import Signal

RMS_NORM = Path(__file__).parents[1] / "data" / "pytest_benchmark" / "rms_norm.json"
N_RUNS = 6


def bench(path: Path, factor: float) -> None:
    """The recorded run with its first case slower by a factor: one process, whatever its rounds."""
    data = json.loads(RMS_NORM.read_text())
    first = data["benchmarks"][0]["stats"]
    first["data"] = [value * factor for value in first["data"]]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data))


def hyperfine(path: Path, commands: dict[str, float]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    results = [
        {"command": name, "stddev": 0.001, "times": [t * (1 + 0.002 * n) for n in range(8)], "exit_codes": [0] * 8}
        for name, t in commands.items()
    ]
    path.write_text(json.dumps({"results": results}))
    return path


def sides(tmp_path: Path, before: Sequence[str], after: Sequence[str]) -> tuple[Path, Path]:
    for n, name in enumerate(before):
        bench(tmp_path / "a" / name, 1 + 0.003 * n)
    for n, name in enumerate(after):
        bench(tmp_path / "b" / name, 2 + 0.003 * n)
    return tmp_path / "a", tmp_path / "b"


def slower(signals: Sequence[Signal]) -> list[Signal]:
    return [s for s in signals if s.rule_id == "performance.case_delta" and s.finding == "worse"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([f"run{n}.json" for n in range(N_RUNS)], [f"run{n}.json" for n in range(N_RUNS)]),
        ([f"{n}/bench.json" for n in range(1, N_RUNS + 1)], [f"{n}/bench.json" for n in range(1, N_RUNS + 1)]),
        ([f"a-2026113{n}.json" for n in range(N_RUNS)], [f"a-2026114{n}.json" for n in range(N_RUNS)]),
        ([f"old_{c}.json" for c in "abcdef"], [f"new_{c}.json" for c in "ghijkl"]),
    ],
)
def test_repetitions_on_a_side_are_units_of_one_measurement(
    tmp_path: Path, before: list[str], after: list[str]
) -> None:
    found = compare(*sides(tmp_path, before, after))
    (signal,) = slower(found.signals)
    assert signal.effect is not None
    assert signal.effect.n_units == N_RUNS
    assert signal.effect.improvement == pytest.approx(-1, abs=0.02)
    assert not found.unmatched
    assert len({f.probe for f in found.read}) == 1


@pytest.mark.parametrize(
    "names",
    [
        ["fp16.json", "int8.json"],
        ["batch1.json", "batch2.json"],
        ["n1024.json", "n4096.json"],
        ["rank0.json", "rank1.json"],
    ],
)
def test_names_that_say_a_condition_are_measurements_of_their_own(tmp_path: Path, names: list[str]) -> None:
    found = compare(*sides(tmp_path, names, names))
    assert {f.probe for f in found.read} == set(names)


def test_unequal_numbers_of_repetitions_pool(tmp_path: Path) -> None:
    names = [f"run{n}.json" for n in range(6)]
    (signal,) = slower(compare(*sides(tmp_path, names, [*names[:2], *names[3:]])).signals)
    assert signal.effect is not None
    assert signal.effect.n_units == 5


def test_fresh_processes_of_several_files_keep_apart(tmp_path: Path) -> None:
    for n in range(3):
        hyperfine(tmp_path / "a" / f"run{n}.json", {"./p": 1.0})
        hyperfine(tmp_path / "b" / f"run{n}.json", {"./p": 1.5})
    (signal,) = slower(compare(tmp_path / "a", tmp_path / "b").signals)
    assert signal.effect is not None
    assert signal.effect.n_units == 24


def test_one_command_on_each_side_is_one_case_whatever_its_name(tmp_path: Path) -> None:
    old, new = hyperfine(tmp_path / "o.json", {"./old": 1.0}), hyperfine(tmp_path / "n.json", {"./new": 0.7})
    (signal,) = compare(old, new).signals
    assert signal.finding == "better"
    assert "./old -> ./new" in signal.message


def written(path: Path, at_s: float) -> None:
    os.utime(path, (at_s, at_s))


def by_turns(tmp_path: Path, order: str, apart_s: float) -> tuple[Path, Path]:
    """Recorded runs 8 % apart in all cases, written in that order."""
    data = json.loads(RMS_NORM.read_text())
    count = {"a": 0, "b": 0}
    for n, side in enumerate(order):
        path = tmp_path / side / f"run{count[side]}.json"
        path.parent.mkdir(exist_ok=True)
        factor = (1.08 if side == "b" else 1.0) * (1 + 0.001 * (n % 3))
        for one in data["benchmarks"]:
            one["stats"]["data"] = [factor * float(len(one["name"]))] * 5
        path.write_text(json.dumps(data))
        written(path, 1.7e9 + n * apart_s)
        count[side] += 1
    return tmp_path / "a", tmp_path / "b"


@pytest.mark.parametrize("order", ["abbaabba", "abababab", "ababbaba"])
def test_runs_written_by_turns_are_no_machine_state(tmp_path: Path, order: str) -> None:
    signals = compare(*by_turns(tmp_path, order, apart_s=2.0)).signals
    found = slower(signals)
    assert len(found) > 1
    assert not any(s.caveats for s in found)
    assert all(s.effect is not None and s.effect.n_units == 4 for s in found)


@pytest.mark.parametrize(("order", "apart_s"), [("aaaabbbb", 2.0), ("aabbbbaa", 2.0), ("abbaabba", 0.001)])
def test_runs_one_side_after_the_other_may_be_the_machine(tmp_path: Path, order: str, apart_s: float) -> None:
    signals = compare(*by_turns(tmp_path, order, apart_s)).signals
    assert not slower(signals)
    whole = next(s for s in signals if s.rule_id == "performance.bench_table")
    assert whole.finding == "inconclusive"
    assert "in turn" in whole.next[0]


def test_the_second_of_two_commands_is_compared_with_the_first(tmp_path: Path) -> None:
    both = hyperfine(tmp_path / "both.json", {"./old": 1.0, "./new": 0.5})
    found = compare(both)
    (signal,) = [s for s in found.signals if s.rule_id == "performance.case_delta"]
    assert signal.finding == "better"
    assert "./old -> ./new" in signal.message
    assert not found.uncompared


def test_three_commands_of_a_file_stay_side_by_side(tmp_path: Path) -> None:
    found = compare(hyperfine(tmp_path / "three.json", {"./a": 1.0, "./b": 0.5, "./c": 0.7}))
    assert "nothing was compared" in found.uncompared
