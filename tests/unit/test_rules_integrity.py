"""Rules on whether numbers mean what they seem to: what makes each speak, and what must not."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedback.criteria import Criteria
from feedback.observations import Measurement, ParityPoint
from feedback.readers import slices
from feedback.rules.integrity import constant_output, impossible_speed, measures_nothing, moved_work
from feedback.signals import CodeLocation, Signal
from feedback.verdict import VerdictKind, judge

PLAIN = Criteria(changed=(CodeLocation(file="kernel.py"),))
ARMS = ("baseline", "candidate", "candidate", "baseline")


def measured(arm: str, value: float, metric: str = "time_s", **fields: Any) -> Measurement:
    known: dict[str, Any] = {"probe": "bench", "metric": metric, "arm": arm, "value": value, "paired": False}
    return Measurement.model_validate(known | fields)


def only(signals: Sequence[Signal]) -> Signal:
    assert len(signals) == 1, [s.message for s in signals]
    return signals[0]


# integrity.constant_output


def varied(baseline: int, candidate: int, seeds: int = 20) -> list[Measurement]:
    arms = (("baseline", baseline), ("candidate", candidate))
    return [measured(arm, n, "distinct_checks", case={"seeds": seeds}) for arm, n in arms]


def test_candidate_whose_outputs_became_constant_is_invalid() -> None:
    signal = only(constant_output(varied(20, 1), PLAIN))
    assert (signal.rule_id, signal.finding, signal.level) == ("integrity.constant_output", "violates", "error")
    assert "in the candidate, not in the baseline" in signal.message
    assert judge([signal]).kind is VerdictKind.INVALID


def test_check_that_never_varies_is_a_warning_about_the_check() -> None:
    signal = only(constant_output(varied(1, 1), PLAIN))
    assert (signal.finding, signal.level) == ("observed", "warning")
    assert judge([signal]).kind is not VerdictKind.INVALID


@pytest.mark.parametrize("found", [varied(20, 20), varied(20, 19), varied(1, 20), varied(1, 1, seeds=2), []])
def test_outputs_that_vary_say_nothing(found: list[Measurement]) -> None:
    assert constant_output(found, PLAIN) == []


def test_checksums_of_slices_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "slices.jsonl"
    lines = [
        {
            "type": "slice", "arm": arm, "pair": seed, "block": 0, "position": i, "seed": seed, "disturbed": False,
            "record": {"duration_s": 0.01, "check": [1.0 if arm == "candidate" else float(seed)]},
        }
        for seed in range(5)
        for i, arm in enumerate(ARMS)
    ]  # fmt: skip
    path.write_text("\n".join(map(json.dumps, lines)))
    signal = only(constant_output(slices.read(path, "bench", "screen"), PLAIN))
    assert "the checksum of all 5 seeds is the same in the candidate" in signal.message


def errors(values: Sequence[float]) -> list[ParityPoint]:
    return [
        ParityPoint(probe="p", case={"T": 64, "seed": s}, tensor="o", measure="rms_ratio", value=v, tolerance=1.0)
        for s, v in enumerate(values)
    ]


def test_error_that_is_the_same_to_the_last_bit_for_all_seeds_is_suspect() -> None:
    signal = only(constant_output(errors([1.2345678e-3] * 5), PLAIN))
    assert signal.level == "warning"
    assert "for all 5 seeds, to the last bit" in signal.message


@pytest.mark.parametrize("values", [[0.0] * 5, [1.0] * 5, [1e-3] * 3, [1e-3, 1.1e-3, 1e-3, 1e-3], [math.inf] * 5])
def test_errors_that_vary_or_are_exact_say_nothing(values: list[float]) -> None:
    assert constant_output(errors(values), PLAIN) == []


# integrity.impossible_speed


def test_slices_below_the_clocks_resolution_are_told() -> None:
    found = [measured("candidate", 2e-7, "slice_time_s"), measured("baseline", 1e-2, "slice_time_s")]
    signal = only(impossible_speed(found, PLAIN))
    assert (signal.rule_id, signal.finding) == ("integrity.impossible_speed", "observed")
    assert "1 times below 1e-06 s, such as 2e-07 s in the candidate" in signal.message


def test_short_times_of_many_iterations_are_possible() -> None:
    assert impossible_speed([measured("candidate", 2e-9, case={"iterations": 10**6})], PLAIN) == []
    assert impossible_speed([measured("candidate", 2e-9, case={})], PLAIN) == []
    assert len(impossible_speed([measured("candidate", 2e-9, case={"iterations": 10})], PLAIN)) == 1


def roofed(arm: str, time: float) -> Measurement:
    return measured(arm, time, case={"benchmark": "gemm", "flops": 1e9, "peak_flops_per_s": 1e11})


def test_candidate_above_a_limit_that_the_baseline_keeps_is_invalid() -> None:
    signal = only(impossible_speed([roofed("baseline", 0.02), roofed("candidate", 0.005)], PLAIN))
    assert (signal.finding, signal.level) == ("violates", "error")
    assert "gemm runs at 200% of the compute limit" in signal.message
    assert judge([signal]).kind is VerdictKind.INVALID


@pytest.mark.parametrize(("before", "after"), [(0.005, 0.004), (0.02, 0.011), (0.02, 0.0098), (None, 0.005)])
def test_wrong_peaks_or_possible_speeds_say_nothing(before: float | None, after: float) -> None:
    known = [] if before is None else [roofed("baseline", before)]
    assert impossible_speed([*known, roofed("candidate", after)], PLAIN) == []


# integrity.moved_work


def pairs(slice_s: float, process_s: float, n: int = 8, spread: float = 0.02) -> list[Measurement]:
    """Pairs of processes of 10 slices: the baseline's take 10 ms each and 0.5 s in all."""
    rng = np.random.default_rng(6)
    found = []
    for pair in range(n):
        for arm, each, whole in (("baseline", 0.01, 0.5), ("candidate", slice_s, process_s)):
            found += [
                measured(arm, each * math.exp(rng.normal(0, spread)), "slice_time_s", pair=pair, block=b, paired=True)
                for b in range(10)
            ]
            found.append(measured(arm, whole * math.exp(rng.normal(0, spread / 20)), "process_cpu_s", pair=pair))
    return found


def test_gain_that_the_process_does_not_keep_may_have_moved() -> None:
    signal = only(moved_work(pairs(0.005, 0.5), PLAIN))
    assert (signal.rule_id, signal.level, signal.finding) == ("integrity.moved_work", "warning", "observed")
    assert "slices take 50% less, but the process saves only" in signal.message
    assert "moved" in signal.causes[0].text


@pytest.mark.parametrize(("slice_s", "process_s"), [(0.005, 0.45), (0.01, 0.5), (0.012, 0.55), (0.005, 0.40)])
def test_gain_that_the_process_keeps_says_nothing(slice_s: float, process_s: float) -> None:
    assert moved_work(pairs(slice_s, process_s), PLAIN) == []


def test_few_pairs_say_nothing_of_moved_work() -> None:
    assert moved_work(pairs(0.005, 0.5, n=4), PLAIN) == []


def test_less_time_for_the_same_instructions_is_noted() -> None:
    found = [m for m in pairs(0.005, 0.5) if m.metric == "slice_time_s"]
    counts = [measured(arm, 1e7, "instructions", probe="count") for arm in ("baseline", "candidate")]
    signal = only(moved_work([*found, *counts], PLAIN))
    assert signal.level == "note"
    assert "same number of executed instructions" in signal.message
    assert "caches" in signal.causes[0].text
    fewer = [counts[0], measured("candidate", 6e6, "instructions")]
    assert moved_work([*found, *fewer], PLAIN) == []


# integrity.measures_nothing


def curve(arm: str, slope: float, axis: str = "T", sizes: Sequence[int] = (64, 256, 1024, 4096)) -> list[Measurement]:
    rng = np.random.default_rng([len(arm), round(slope * 10)])
    return [
        measured(arm, 1e-3 * t**slope * math.exp(rng.normal(0, 0.003)), case={"benchmark": "b", axis: t}) for t in sizes
    ]


def test_time_that_does_not_depend_on_its_size_measures_nothing() -> None:
    signal = only(measures_nothing([*curve("baseline", 0), *curve("candidate", 0)], PLAIN))
    assert (signal.rule_id, signal.level, signal.finding) == ("integrity.measures_nothing", "warning", "observed")
    assert "takes as long at T=64 as at 4096" in signal.message


def test_time_that_stopped_depending_on_its_size_is_said_to() -> None:
    signal = only(measures_nothing([*curve("baseline", 1), *curve("candidate", 0)], PLAIN))
    assert "unlike in the baseline" in signal.message


@pytest.mark.parametrize(
    "found",
    [
        [*curve("baseline", 1), *curve("candidate", 1)],
        curve("candidate", 0.3),
        [*curve("baseline", 0), *curve("candidate", 1)],
        curve("candidate", 0, axis="block_size_hint"),
        curve("candidate", 0, sizes=(100, 110, 120, 130)),
    ],
    ids=["grows", "grows slowly", "mended", "not a size", "narrow"],
)  # fmt: skip
def test_times_that_grow_or_can_not_say_nothing(found: list[Measurement]) -> None:
    assert measures_nothing(found, PLAIN) == []


def test_hardly_any_instructions_measure_nothing() -> None:
    signal = only(measures_nothing([measured("candidate", 120, "instructions")], PLAIN))
    assert "120 instructions executed in all" in signal.message
    assert measures_nothing([measured("candidate", 1e6, "instructions")], PLAIN) == []
    assert measures_nothing([measured("candidate", 12, "instructions", case={"function": "f"})], PLAIN) == []
