"""Rules on cases, series, scaling, roofs and amounts of work: what makes each speak, and what must not."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from feedback.criteria import Criteria, MetricCriterion
from feedback.observations import Measurement, Source
from feedback.rules.derive import derive
from feedback.rules.performance import (
    by_case,
    drift,
    instructions,
    instructions_by_function,
    roofline,
    scaling,
    slow_starts,
)
from feedback.rules.performance.compared import direction_of
from feedback.signals import CodeLocation, InputLocation, Signal

PLAIN = Criteria(changed=(CodeLocation(file="kernel.py"),))
BARE = Criteria(changed=())


def measured(arm: str, value: float, case: dict[str, Any] | None = None, **fields: Any) -> Measurement:
    known: dict[str, Any] = {"probe": "bench", "metric": "time_s", "arm": arm, "value": value, "paired": False}
    known["source"] = Source(file=f"{arm}.json", query="/benchmarks/0")
    return Measurement.model_validate(known | {"case": case or {"benchmark": "attention"}} | fields)


def processes(
    arm: str, level: float, n: int, seed: int, spread: float = 0.02, rounds: int = 1, **fields: Any
) -> list[Measurement]:
    """Times of `n` fresh processes, each with a level of its own, and of the rounds in them."""
    rng = np.random.default_rng([seed, len(arm)])
    return [
        measured(arm, own * math.exp(rng.normal(0, spread / 4)), pair=pair, block=block, **fields)
        for pair in range(n)
        for own in [level * math.exp(rng.normal(0, spread))]
        for block in range(rounds)
    ]


def both(ratio: float, n: int = 8, seed: int = 0, **fields: Any) -> list[Measurement]:
    return [*processes("baseline", 0.01, n, seed, **fields), *processes("candidate", 0.01 * ratio, n, seed, **fields)]


def table(ratios: dict[int, float], axis: str = "batch", **fields: Any) -> list[Measurement]:
    return [
        m
        for size, ratio in ratios.items()
        for m in both(ratio, seed=size, case={"benchmark": "decode", axis: size}, **fields)
    ]


def of(signals: Sequence[Signal], rule_id: str) -> list[Signal]:
    return [s for s in signals if s.rule_id == f"performance.{rule_id}"]


def only(signals: Sequence[Signal]) -> Signal:
    assert len(signals) == 1, [s.message for s in signals]
    return signals[0]


# performance.case_delta and performance.bench_table


@pytest.mark.parametrize(("ratio", "finding", "level"), [(0.6, "better", "note"), (1.5, "worse", "warning")])
def test_case_that_changed_has_an_effect_with_an_interval(ratio: float, finding: str, level: str) -> None:
    signal = only(by_case(both(ratio), PLAIN))
    assert (signal.rule_id, signal.finding, signal.level) == ("performance.case_delta", finding, level)
    assert signal.effect is not None
    assert signal.effect.ratio_lo < ratio < signal.effect.ratio_hi
    assert signal.effect.n_units == 8
    assert signal.locations[0] == InputLocation(condition={"benchmark": "attention"})
    assert signal.evidence[0].artefact == "candidate.json"
    assert any("one after the other" in c for c in signal.caveats)
    assert signal.message.startswith("attention: time_s ")


@pytest.mark.parametrize("ratio", [1.0, 1.005])
def test_case_that_did_not_change_is_the_same(ratio: float) -> None:
    signal = only(by_case(both(ratio, n=20, spread=0.005), PLAIN))
    assert (signal.rule_id, signal.finding) == ("performance.bench_table", "same")


def test_rounds_of_one_process_decide_nothing_however_many() -> None:
    signal = only(by_case(both(0.5, n=1, rounds=200), PLAIN))
    assert (signal.finding, signal.effect) == ("inconclusive", None)
    assert "share one process" in signal.reason
    assert "5 fresh processes" in signal.next[0]


def test_two_processes_are_too_few() -> None:
    signal = only(by_case(both(0.5, n=2), PLAIN))
    assert signal.finding == "inconclusive"
    assert "2 fresh processes" in signal.reason


def test_one_arm_alone_is_not_compared() -> None:
    assert by_case(processes("candidate", 0.01, 8, 1), PLAIN) == []


def test_mean_that_hides_gains_and_losses_says_where_they_are() -> None:
    signals = by_case(table({1: 1.3, 2: 1.25, 4: 1.2, 32: 0.8, 64: 0.78, 128: 0.75}), PLAIN)
    assert len(of(signals, "case_delta")) == 6
    whole = only(of(signals, "bench_table"))
    assert "3 better, 3 worse of 6 cases; geometric mean x0.9" in whole.message
    assert "hides +" in whole.message
    assert "worse where batch<=4; better where batch>=32" in whole.message
    assert whole.locations[0].kind == "input"


def test_cases_without_a_common_condition_are_only_counted() -> None:
    signals = by_case(table({1: 1.3, 2: 0.8, 4: 1.25, 8: 0.7}), PLAIN)
    assert "where" not in only(of(signals, "bench_table")).message


def test_cases_that_all_moved_by_one_factor_are_the_machine_until_shown_otherwise() -> None:
    signals = by_case(table(dict.fromkeys((1, 2, 4, 8, 16), 1.08), spread=0.005), PLAIN)
    whole = only(signals)
    assert (whole.rule_id, whole.finding) == ("performance.bench_table", "inconclusive")
    assert "all moved together" in whole.message
    assert "another state" in whole.causes[0].text


@pytest.mark.parametrize("ratio", [0.85, 1.1])
def test_so_is_the_only_case_that_moved_by_as_little(ratio: float) -> None:
    signal = only(by_case(both(ratio), PLAIN))
    assert (signal.rule_id, signal.finding) == ("performance.bench_table", "inconclusive")
    assert "as when the machine's clock" in signal.message
    in_turn = [m.model_copy(update={"in_turn": True}) for m in both(ratio)]
    assert only(by_case(in_turn, PLAIN)).rule_id == "performance.case_delta"


def test_large_common_gain_is_no_machine_state() -> None:
    signals = by_case(table(dict.fromkeys((1, 2, 4, 8, 16), 0.5), spread=0.005), PLAIN)
    assert [s.finding for s in of(signals, "case_delta")] == ["better"] * 5


def test_many_changed_cases_are_counted_beyond_the_first() -> None:
    signals = by_case(table({size: 0.5 + size / 100 for size in range(1, 15)}), PLAIN)
    assert len(of(signals, "case_delta")) == 8
    assert "14 better of 14 cases" in only(of(signals, "bench_table")).message


def test_pairs_by_case_are_compared_as_pairs() -> None:
    rng = np.random.default_rng(3)
    found = []
    for pair in range(8):
        host = 0.01 * math.exp(rng.normal(0, 0.5))  # what the pair shares cancels
        for position, arm in enumerate(("baseline", "candidate", "candidate", "baseline")):
            value = host * (0.9 if arm == "candidate" else 1) * math.exp(rng.normal(0, 0.005))
            found.append(measured(arm, value, pair=pair, position=position, paired=True))
    signal = only(by_case(found, PLAIN))
    assert signal.finding == "better"
    assert signal.effect is not None
    assert signal.effect.ratio == pytest.approx(0.9, abs=0.01)
    assert signal.caveats == ()


def test_paired_slices_without_a_case_are_the_objectives_where_there_is_one() -> None:
    campaign = [m.model_copy(update={"case": {}, "paired": True}) for m in both(0.5)]
    objective = MetricCriterion(metric="time_s", direction="minimize", probe="bench")
    assert by_case(campaign, PLAIN.model_copy(update={"objective": objective})) == []
    assert by_case(campaign, PLAIN) != []


def test_throughput_is_better_when_it_rises() -> None:
    assert only(by_case(both(1.3, metric="output_throughput"), PLAIN)).finding == "better"


@pytest.mark.parametrize(
    ("metric", "direction"),
    [
        ("time_s", "minimize"), ("p99_ttft_ms", "minimize"), ("request_goodput", "maximize"),
        ("tokens_per_s", "maximize"), ("instructions", None), ("num_prompts", None),
    ],
)  # fmt: skip
def test_direction_follows_the_name(metric: str, direction: str | None) -> None:
    assert direction_of(metric) == direction


def test_declared_work_and_iterations_do_not_tell_cases_apart() -> None:
    found = [
        m.model_copy(update={"case": {"benchmark": "b", "iterations": i, "flops": 1e9}})
        for i, m in enumerate(both(0.7))
    ]
    assert only(by_case(found, PLAIN)).finding == "better"


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_impossible_value_decides_nothing(value: float) -> None:
    signal = only(by_case([*both(0.5), measured("candidate", value, pair=3)], PLAIN))
    assert signal.finding == "inconclusive"
    assert "it has no ratio" in signal.reason


def test_identical_arms_are_named_no_more_often_than_said() -> None:
    """At most alpha of the tables, each with 20 cases, may name anything; the floor makes it rarer."""
    loud = 0
    for seed in range(200):
        found = []
        for case in range(20):
            found += both(1.0, n=5, seed=seed * 100 + case, spread=0.05, case={"benchmark": "b", "n": case})
        loud += bool(of(by_case(found, PLAIN), "case_delta"))
    assert loud <= 0.05 * 200 + 3 * math.sqrt(200 * 0.05 * 0.95)


def test_load_test_that_ran_once_is_one_signal_however_many_metrics() -> None:
    metrics = ("median_ttft_ms", "p99_ttft_ms", "output_throughput", "mean_tpot_ms")
    found = [m for i, name in enumerate(metrics) for m in both(1 + i / 10, n=1, metric=name, case={"rate": 4})]
    signal = only(by_case(found, PLAIN))
    assert (signal.rule_id, signal.finding) == ("performance.bench_table", "inconclusive")
    assert signal.message.startswith("bench: 4 metrics undecided; largest changes")
    assert "share one process" in signal.reason


def test_rate_beside_its_own_time_is_not_told_twice() -> None:
    found = [
        *both(0.5),
        *(m.model_copy(update={"metric": "bytes_per_second", "value": 1 / m.value}) for m in both(0.5)),
    ]
    assert [s.effect.metric for s in by_case(found, PLAIN) if s.effect] == ["time_s"]
    assert only(by_case(found[16:], PLAIN)).finding == "better"


# performance.warm_up and performance.drift


def series(values: Sequence[float], arm: str = "baseline", pair: int = 0, **fields: Any) -> list[Measurement]:
    return [measured(arm, v, pair=pair, block=i, **fields) for i, v in enumerate(values)]


def noise(n: int, seed: int | list[int], spread: float = 0.02) -> list[float]:
    return list(0.01 * np.exp(np.random.default_rng(seed).normal(0, spread, n)))


def test_slow_first_rounds_of_one_process_are_told() -> None:
    signal = only(slow_starts(series([0.05, 0.03, 0.02, 0.015, *noise(30, 1)]), PLAIN))
    assert (signal.rule_id, signal.finding, signal.level) == ("performance.warm_up", "observed", "note")
    assert "first 4 rounds" in signal.message
    assert "drop the first 4 rounds" in signal.next[0]


def test_slow_first_round_of_most_processes_is_told() -> None:
    found = [m for pair in range(6) for m in series([0.02, *noise(15, pair)], pair=pair)]
    assert "first 1 round 1.99x" in only(slow_starts(found, PLAIN)).message


def test_slow_start_in_the_candidate_only_is_a_warning() -> None:
    found = [
        m
        for arm, first in (("baseline", 0.01), ("candidate", 0.03))
        for pair in range(6)
        for m in series([first, *noise(15, pair)], arm, pair)
    ]
    signal = only(slow_starts(found, PLAIN))
    assert signal.level == "warning"
    assert "in the candidate only" in signal.message


def test_one_slow_first_round_is_chance() -> None:
    assert slow_starts(series([0.02, *noise(30, 1)]), PLAIN) == []


def test_rounds_that_the_tool_calls_warm_up_are_left_out() -> None:
    rounds = [*series([0.05] * 5, warmup=True), *series(noise(30, 1))]
    assert slow_starts(rounds, PLAIN) == []


def test_change_of_level_in_the_baseline_is_placed() -> None:
    signal = only(drift(series([*noise(25, 1), *(1.1 * v for v in noise(25, 2))]), PLAIN))
    assert (signal.rule_id, signal.level) == ("performance.drift", "warning")
    assert "in the baseline changes level at value 2" in signal.message
    assert signal.measured[0].value == pytest.approx(1.1, abs=0.02)


def test_processes_that_get_slower_never_settle() -> None:
    found = [m for pair in range(40) for m in series([0.01 * (1 + pair / 80) * math.exp(0.01 * (pair % 3))], pair=pair)]
    assert "never settles" in only(drift(found, PLAIN)).message


def test_drift_of_interleaved_pairs_cancels_and_is_a_note() -> None:
    found = [
        measured(arm, level, pair=pair, position=i, paired=True, metric="slice_time_s", case={})
        for pair, level in enumerate([0.01] * 20 + [0.012] * 20)
        for i, arm in enumerate(("baseline", "candidate", "candidate", "baseline"))
    ]
    assert {s.level for s in drift(found, PLAIN)} == {"note"}


@pytest.mark.parametrize("values", [noise(100, 5), noise(19, 5), [0.01] * 50, [*noise(50, 3), 0.5]])
def test_settled_series_says_nothing(values: list[float]) -> None:
    assert drift(series(values), PLAIN) == []


def test_small_step_is_not_worth_a_word() -> None:
    assert drift(series([*noise(50, 1, 0.002), *(1.01 * v for v in noise(50, 2, 0.002))]), PLAIN) == []


@pytest.mark.parametrize("rule", [slow_starts, drift], ids=["warm_up", "drift"])
def test_identical_noise_starts_and_drifts_rarely(rule: Callable[[list[Measurement], Criteria], list[Signal]]) -> None:
    loud = 0
    for seed in range(200):
        found = [
            m
            for case in range(5)
            for arm in ("baseline", "candidate")
            for pair in range(3)
            for m in series(noise(24, [seed, case, len(arm), pair], 0.1), arm, pair, case={"n": case})
        ]
        loud += bool(rule(found, PLAIN))
    assert loud <= 0.01 * 200 + 3 * math.sqrt(200 * 0.01)


# performance.scaling


def curve(arm: str, of_size: Callable[[float], float], seed: int, spread: float = 0.01) -> list[Measurement]:
    rng = np.random.default_rng([seed, len(arm)])
    return [
        measured(arm, of_size(t) * math.exp(rng.normal(0, spread)), pair=pair, case={"benchmark": "scan", "T": t})
        for t in (512, 1024, 2048, 4096, 8192)
        for pair in range(3)
    ]


def test_exponent_that_changed_is_told_with_where_the_arms_are_equal() -> None:
    found = [*curve("baseline", lambda t: 1e-6 * t, 1), *curve("candidate", lambda t: 5e-10 * t**2, 1)]
    signal = only(scaling(found, PLAIN))
    assert (signal.rule_id, signal.level, signal.finding) == ("performance.scaling", "warning", "observed")
    assert "T^1.01 -> T^2.00" in signal.message
    assert "equal near T=2e+03" in signal.message
    assert signal.measured[0].lo is not None
    assert signal.measured[0].lo < 1 < (signal.measured[0].hi or 0)


def test_better_scaling_is_a_note() -> None:
    found = [*curve("baseline", lambda t: 5e-10 * t**2, 1), *curve("candidate", lambda t: 1e-6 * t, 1)]
    assert only(scaling(found, PLAIN)).level == "note"


@pytest.mark.parametrize("of_size", [lambda t: 1e-6 * t, lambda t: 0.01 + 1e-6 * t, lambda t: 0.01 * math.log(t)])
def test_curves_of_one_shape_say_nothing_however_bent(of_size: Callable[[float], float]) -> None:
    for seed in range(50):
        found = [*curve("baseline", of_size, seed), *curve("candidate", lambda t: 0.8 * of_size(t), seed + 1000)]
        assert scaling(found, PLAIN) == []


def test_single_arm_tells_its_exponent() -> None:
    signal = only(scaling(curve("candidate", lambda t: 1e-9 * t**2, 1), PLAIN))
    assert "grows as T^2.0" in signal.message
    assert signal.level == "note"


def test_three_sizes_are_no_scaling() -> None:
    found = [m for m in curve("candidate", lambda t: t, 1) if m.case["T"] != 512 and m.case["T"] != 8192]
    assert scaling(found, PLAIN) == []


@pytest.mark.parametrize("name", ["pp{}", "test_scan[{}-float32]", "BM_scan/{}"])
def test_sizes_in_the_benchmarks_names_are_one_scaling(name: str) -> None:
    found = [
        m.model_copy(
            update={"case": {"benchmark": name.format(m.case["T"])} | ({} if "/" in name else {"n": m.case["T"]})}
        )
        for m in curve("candidate", lambda t: 1e-9 * t**2, 1)
    ]
    assert "^2.0" in only(scaling(found, PLAIN)).message


def test_latency_of_requests_is_no_scaling_and_no_series() -> None:
    found = [m.model_copy(update={"metric": "ttft_ms"}) for m in curve("candidate", lambda t: t, 1)]
    assert scaling(found, PLAIN) == []
    assert drift([m.model_copy(update={"block": i, "pair": 0}) for i, m in enumerate(found * 4)], PLAIN) == []


# performance.roofline


def roofed(arm: str, time: float, **case: Any) -> Measurement:
    known = {"benchmark": "gemm", "flops": 1e9, "bytes": 1e7, "peak_flops_per_s": 1e11, "peak_bytes_per_s": 1e10}
    return measured(arm, time, case=known | case)


def test_headroom_is_held_against_the_limit_that_binds() -> None:
    signal = only(roofline([roofed("candidate", 0.04), roofed("baseline", 0.08)], PLAIN))
    assert "25% of the compute limit at gemm (at most 4x to gain)" in signal.message
    memory = only(roofline([roofed("candidate", 0.02, bytes=2e8)], PLAIN))
    assert "100% of the bandwidth limit" in memory.message


def test_nothing_is_left_to_gain_near_the_limit() -> None:
    signal = only(roofline([roofed("candidate", 0.0102)], PLAIN))
    assert "nothing left to gain" in signal.message
    assert signal.next == ()


def test_above_the_limit_is_uncalibrated_and_no_finding() -> None:
    signal = only(roofline([roofed("candidate", 0.004)], PLAIN))
    assert (signal.finding, signal.level) == ("abstained", "note")
    assert signal.reason.startswith("uncalibrated")


def test_peaks_may_be_measured_beside_and_the_largest_holds() -> None:
    peaks = [measured("candidate", v, metric="peak_flops_per_s") for v in (2e10, 1e11, 5e10)]
    case = measured("candidate", 0.04, case={"benchmark": "gemm", "flops": 1e9})
    assert "25% of the compute limit" in only(roofline([*peaks, case], PLAIN)).message


def test_work_may_be_measured_beside_the_time() -> None:
    case = {"benchmark": "gemm", "peak_flops_per_s": 1e11}
    found = [measured("candidate", 0.04, case=case), measured("candidate", 1e9, metric="flops", case=case)]
    assert "25% of the compute limit" in only(roofline(found, PLAIN)).message


@pytest.mark.parametrize("case", [{}, {"flops": 1e9}, {"flops": 0, "peak_flops_per_s": 1}, {"flops": "x"}])
def test_without_work_or_peaks_there_is_no_roof(case: dict[str, Any]) -> None:
    assert roofline([measured("candidate", 0.04, case={"benchmark": "g"} | case)], PLAIN) == []


# performance.instructions_by_function


def counted(arm: str, counts: dict[str, float]) -> list[Measurement]:
    return [
        measured(
            arm, n, metric="instructions", case={"function": f, "file": "decode.c"}, code=f"src/decode.c:4{len(arm)}"
        )
        for f, n in counts.items()
    ]


def test_functions_whose_work_changed_are_placed() -> None:
    before, after = {"norm": 5e6, "gate": 4e6, "dot": 1e6}, {"norm": 2e6, "gate": 4e6, "dot": 1.2e6}
    found = [*counted("baseline", before), *counted("candidate", after)]
    signal = only(instructions_by_function(found, PLAIN))
    assert signal.message == "bench: -28.00% instructions in all: norm -3e+06 (-60.0%), dot +2e+05 (+20.0%)"
    assert signal.locations[0] == CodeLocation(file="src/decode.c", line=49, symbol="norm")
    assert [(q.name, q.value) for q in signal.expected] == [("norm", 5e6), ("dot", 1e6)]
    assert instructions(found, PLAIN) == []  # the total is another rule's, of whole programs


def test_renamed_function_is_not_called_less_work() -> None:
    found = [*counted("baseline", {"a": 5e6, "old": 1e6}), *counted("candidate", {"a": 5e6, "new": 1e6})]
    signal = only(instructions_by_function(found, PLAIN))
    assert "old -1e+06 (gone)" in signal.message
    assert "new +1e+06 (new)" in signal.message
    assert "renamed" in signal.causes[0].text
    assert signal.causes[0].support == "moderate"


def test_counts_that_repeat_within_their_noise_say_nothing() -> None:
    found = [*counted("baseline", {"a": 5e6, "b": 3e3}), *counted("candidate", {"a": 5.001e6, "b": 6e3})]
    assert instructions_by_function(found, PLAIN) == []
    assert instructions_by_function(counted("candidate", {"a": 1.0}), PLAIN) == []


# All of them.


def test_signals_have_a_place_even_when_no_change_is_known() -> None:
    found = [*both(0.7), *table({1: 1.3, 2: 0.7}), *counted("baseline", {"a": 1e6}), *counted("candidate", {"a": 2e6})]
    signals = derive(found, BARE)
    assert len(signals) >= 4
    assert all(s.locations for s in signals)


def test_odd_measurements_never_raise() -> None:
    rng = np.random.default_rng(2)
    values = (0.0, -1.0, math.nan, math.inf, -math.inf, 5e-324, 1e-300, 1e308, 1.0, 0.5, 2.0)
    sizes: tuple[Any, ...] = (0, -1, 1, 2, 4, 8, 10**400, 1e308, 5e-324, math.nan, math.inf, True, "x", "4")
    metrics = ("time_s", "slice_time_s", "instructions", "process_cpu_s", "output_throughput", "distinct_checks", "?",
               "peak_flops_per_s", "time_per_s")  # fmt: skip
    names = ("T", "n", "flops", "bytes", "peak_flops_per_s", "iterations", "function", "line", "seeds", "benchmark")
    odd = [
        measured(
            str(rng.choice(["baseline", "candidate"])), float(rng.choice(values)), metric=str(rng.choice(metrics)),
            case={str(n): sizes[rng.integers(len(sizes))] for n in rng.choice(names, 2)},
            pair=int(rng.integers(5)), block=int(rng.integers(9)), paired=bool(rng.integers(2)),
        )
        for _ in range(4000)
    ]  # fmt: skip
    derive(odd, PLAIN)
    for _ in range(100):
        derive([odd[i] for i in rng.integers(0, len(odd), 40)], BARE)
    tiny = [*processes("baseline", 1e-300, 5, 1), *processes("candidate", 1e300, 5, 1)]
    derive([*tiny, *curve("baseline", lambda t: 1e-300 * t, 1), *curve("candidate", lambda t: 1e200 * t**20, 1)], BARE)
