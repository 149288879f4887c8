"""Rules on parity: recorded tables of emulated arithmetic that must speak, and those that must not."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedback.criteria import Criteria
from feedback.observations import ParityPoint, Source
from feedback.rules.cases import separating, times
from feedback.rules.derive import derive
from feedback.rules.parity import (
    boundary,
    breakdown,
    fingerprint,
    numeric_error,
    numeric_growth,
    relative_error,
    scale,
    split_mismatch,
    stale_buffer,
)
from feedback.rules.parity.relative import precision
from feedback.signals import InputLocation, RegionLocation, Signal

DATA = Path(__file__).parents[1] / "data" / "parity"
GATED = Criteria(changed=(), gates=("parity",))
SOUND = ("chain_fp32", "chain_tf32x3", "sum_fp32", "rank_tf32x3", "scale_right")


def table(name: str) -> list[ParityPoint]:
    """A recorded table as its reader would give it."""
    path = DATA / f"{name}.jsonl"
    points = []
    for n, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        row = json.loads(text)
        fields = {name: row.pop(name) for name in ("arm", "tensor", "measure", "value", "tolerance") if name in row}
        known: dict[str, Any] = {"probe": "parity", "tolerance": None, "source": Source(file=path.name, line=n)}
        points.append(ParityPoint.model_validate(known | fields | {"case": row}))
    return points


def point(value: float, arm: str = "candidate", **fields: Any) -> ParityPoint:
    known: dict[str, Any] = {"probe": "parity", "tensor": "o", "measure": "rms_ratio", "tolerance": None}
    known |= {"case": {"T": 64, "dtype": "float32"}}
    return ParityPoint.model_validate(known | {"value": value, "arm": arm} | fields)


def grown(
    slope: float, arm: str = "candidate", start: float = 1e-7, seed: int = 0, **case: Any
) -> Iterator[ParityPoint]:
    """Errors of a power law with the spread of seeds."""
    rng = np.random.default_rng([seed, len(arm), round(100 * slope)])
    for size in (64, 256, 1024, 4096, 16384):
        for s in (1, 2, 3):
            value = start * (size / 64) ** slope * math.exp(rng.normal(0, 0.05))
            yield point(value, arm, case={"T": size, "seed": s} | case, tolerance=1e-3)


def only(signals: Sequence[Signal]) -> Signal:
    assert len(signals) == 1, [s.message for s in signals]
    return signals[0]


def swapped(points: Sequence[ParityPoint]) -> list[ParityPoint]:
    """The same table with the defect in the baseline too."""
    mine = [p for p in points if p.arm == "candidate"]
    return [*mine, *(p.model_copy(update={"arm": "baseline"}) for p in mine)]


@pytest.mark.parametrize("name", SOUND)
def test_sound_arithmetic_is_only_held(name: str) -> None:
    assert {s.finding for s in derive(table(name), Criteria(changed=()))} <= {"holds"}


@pytest.mark.parametrize("path", sorted(DATA.glob("*.jsonl")), ids=lambda p: p.stem)
def test_identical_arms_differ_in_nothing(path: Path) -> None:
    """What both arms do is never the change's fault: no error beyond the file's own tolerance."""
    points = swapped(table(path.stem))
    blamed = [s for s in derive(points, GATED) if s.level == "error" and s.rule_id != "parity.numeric_error"]
    assert [s for s in blamed if not s.message.endswith("it is zero")] == []


# parity.relative_error


def test_relative_gate_catches_tf32_that_the_tolerance_passes() -> None:
    points = table("chain_tf32")
    assert only(numeric_error(points, GATED)).finding == "holds"  # 5.5e-3 of 8e-3
    signal = only(relative_error(points, GATED))
    assert (signal.rule_id, signal.finding, signal.level, signal.role) == (
        "parity.relative_error", "violates", "error", "gate",
    )  # fmt: skip
    assert "the baseline's 2.7e-06" in signal.message
    assert (
        "5 of 10 cases, all with partition>=4; 11.4 bits are right at chunks=4, 22.4 in the baseline" in signal.message
    )
    assert "TF32" in signal.causes[0].text
    assert "too wide to see this" in signal.caveats[0]
    assert signal.evidence[0].artefact == "chain_tf32.jsonl"
    assert signal.evidence[0].line is not None


@pytest.mark.parametrize(("name", "arithmetic"), [("chain_tf32", "TF32"), ("chain_bf16", "bf16"), ("sum_bf16", "bf16")])
def test_lost_bits_name_the_arithmetic(name: str, arithmetic: str) -> None:
    assert only(relative_error(table(name), GATED)).causes[0].text.startswith(arithmetic)


def test_error_of_a_few_rows_is_no_arithmetic() -> None:
    signal = only(relative_error(table("chunk_shifted"), GATED))
    assert "left out" in signal.causes[0].text
    assert "bits" not in signal.message


@pytest.mark.parametrize(("before", "after"), [(1e-7, 1.9e-7), (1e-7, 3e-7), (0.0, 2e-7), (1e-9, 3e-7), (3e-4, 5e-4)])
def test_reordered_sums_are_sound(before: float, after: float) -> None:
    """Twice the baseline, or a few roundings of the dtype, are no loss of precision."""
    assert relative_error([point(before, "baseline"), point(after)], GATED) == []


def test_long_reductions_may_round_more() -> None:
    case = {"K": 4096, "T": 64, "dtype": "float32"}
    sizes = [point(2e-7, "baseline", case=case | {"T": 1}), point(2e-7, case=case | {"T": 1})]
    grown_error = [point(2e-7, "baseline", case=case), point(5e-5, case=case)]
    assert relative_error([*sizes, *grown_error], GATED) == []
    assert relative_error([*sizes, point(2e-7, "baseline", case=case), point(1e-4, case=case)], GATED) != []


def test_somewhat_worse_within_tolerance_informs_but_decides_nothing() -> None:
    points = [point(3e-7, "baseline", tolerance=1e-5), point(3e-6, tolerance=1e-5)]
    signal = only(relative_error(points, GATED))
    assert (signal.level, signal.role) == ("warning", "information")


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_output_that_can_not_be_compared_is_worse_than_any_baseline(value: float) -> None:
    assert only(relative_error([point(1e-7, "baseline"), point(value)], GATED)).finding == "violates"


def test_without_a_baseline_nothing_is_relative() -> None:
    assert relative_error([point(1.0)], GATED) == []
    assert relative_error([point(math.inf, "baseline"), point(1.0)], GATED) == []


@pytest.mark.parametrize(
    ("bits", "name"),
    [
        ([22.5], "fp32"), ([11.5, 11.4], "TF32"), ([8.5], "bf16"), ([10.4], "fp16 (or TF32 over many steps)"),
        ([17.0], None), ([3.4, 3.4], None), ([3.4, 3.5, 3.3], "fp8 (e4m3)"), ([11.5, 17.0], None), ([0.0], None),
    ],
)  # fmt: skip
def test_precisions(bits: list[float], name: str | None) -> None:
    found = precision(bits)
    assert (found.name if found else None) == name


# parity.precision


def test_arithmetic_that_leaked_in_is_named_with_its_growth() -> None:
    signal = only(fingerprint(table("chain_tf32"), GATED))
    assert (signal.rule_id, signal.level) == ("parity.precision", "warning")
    assert (
        "S is right to 11.4 bits at chunks=4, which is TF32, not float32; it grows with exponent 0.4" in signal.message
    )
    assert "at every step of a chain" in signal.causes[0].text


def test_sum_in_few_bits_is_told_from_rounded_operands() -> None:
    assert "sums kept in bf16" in only(fingerprint(table("sum_bf16"), GATED)).causes[0].text
    rounded_once = [*grown(0.0, start=2.7e-3), *grown(0.0, "baseline")]
    assert "rounded to bf16 once" in only(fingerprint(rounded_once, GATED)).causes[0].text


def test_few_bits_in_both_arms_are_not_the_changes_doing() -> None:
    signal = only(fingerprint(swapped(table("chain_tf32")), GATED))
    assert signal.level == "note"
    assert "not this change's doing" in signal.message


def test_single_arm_is_described() -> None:
    points = [p for p in table("chain_tf32") if p.arm == "candidate"]
    assert only(fingerprint(points, GATED)).level == "note"


@pytest.mark.parametrize(
    ("dtype", "error"), [("bfloat16", 2.8e-3), ("float16", 7e-4), ("float32", 1e-7), ("fp8", 0.05), ("float64", 1e-16)]
)
def test_dtype_that_is_meant_has_its_own_bits(dtype: str, error: float) -> None:
    points = [*grown(0.0, start=error, dtype=dtype), *grown(0.0, "baseline", start=error, dtype=dtype)]
    assert fingerprint(points, GATED) == []


def test_bf16_under_a_float16_kernel_is_seen() -> None:
    points = [*grown(0.0, start=2.8e-3, dtype="float16"), *grown(0.0, "baseline", start=3e-4, dtype="float16")]
    assert "which is bf16, not float16" in only(fingerprint(points, GATED)).message


# parity.numeric_growth


def test_growth_is_extrapolated_to_the_stated_maximum() -> None:
    signal = only(numeric_growth(table("chain_tf32"), GATED))
    assert (signal.finding, signal.level, signal.role) == ("violates", "warning", "information")
    assert "square root" in signal.message
    assert "it reaches 0.024 at 16384, 0.008 is allowed" in signal.message
    assert "extrapolation" in signal.caveats[0]


def test_faster_growth_than_the_baselines_is_told() -> None:
    signal = only(numeric_growth([*grown(1.0), *grown(0.5, "baseline")], GATED))
    assert (signal.finding, signal.level) == ("observed", "warning")
    assert "grows linearly" in signal.message
    assert "the baseline's exponent is 0.49" in signal.message
    assert "bias" in signal.causes[0].text


@pytest.mark.parametrize("slope", [0.0, 0.5, 1.0])
def test_same_growth_says_nothing(slope: float) -> None:
    for seed in range(60):
        assert numeric_growth([*grown(slope, seed=seed), *grown(slope, "baseline", seed=seed + 500)], GATED) == []


def test_unstable_recurrence_is_told_even_without_a_baseline() -> None:
    sizes = (64, 128, 256, 512, 1024)
    unstable = [point(1e-7 * math.exp(t / 60), case={"T": t}) for t in sizes]
    signal = only(numeric_growth(unstable, GATED))
    assert "exponentially" in signal.message
    assert "unstable recurrence" in signal.causes[0].text


def test_unstable_in_both_arms_is_a_note() -> None:
    signal = only(numeric_growth([*grown(2.0), *grown(2.0, "baseline")], GATED))
    assert signal.level == "note"
    assert "the same in the baseline" in signal.message


def test_undecided_law_with_a_maximum_abstains() -> None:
    sizes = (100, 104, 108, 112)
    points = [point(1e-6 * t, case={"T": t, "T_max": 1e6}, tolerance=1e-1) for t in sizes]
    signal = only(numeric_growth(points, GATED))
    assert (signal.finding, signal.level) == ("abstained", "note")
    assert "fit the 4 sizes about equally well" in signal.reason


def test_three_sizes_have_no_growth() -> None:
    assert numeric_growth([point(1e-7 * t**3, case={"T": t}) for t in (1, 10, 100)], GATED) == []


# parity.partition_mismatch and parity.batch_mismatch


def test_split_that_rounds_more_than_unsplit_is_told() -> None:
    signal = only(split_mismatch(table("chain_tf32"), GATED))
    assert (signal.rule_id, signal.finding, signal.role) == ("parity.partition_mismatch", "violates", "gate")
    assert "partition=4 is 0.0055 off, 1970x the error with partition=1 (2.8e-06)" in signal.message
    assert "merge" in signal.causes[0].text


def test_count_of_the_whole_used_on_a_part_is_suspected_first() -> None:
    signal = only(split_mismatch(table("grouped_norm"), GATED))
    assert "world_size=4" in signal.message
    assert "of the whole is used on each part" in signal.causes[0].text


def test_distance_from_the_unsplit_result_comes_before_that_from_the_truth() -> None:
    case = {"T": 64, "dtype": "float32"}
    points = [
        point(2e-6, case=case | {"partition": 1}),
        point(2e-6, case=case | {"partition": 4}),
        point(5e-6, case=case | {"partition": 4}, reference="unpartitioned"),
    ]
    assert split_mismatch(points, GATED) == []
    assert len(split_mismatch([*points[:2], point(8e-6, case=points[2].case, reference="unpartitioned")], GATED)) == 1


def test_row_that_depends_on_its_batch_is_told() -> None:
    points = [point(1e-7 if b < 8 else 1e-4, case={"batch": b, "dtype": "float32"}) for b in (1, 2, 4, 8, 16)]
    signal = only(split_mismatch(points, GATED))
    assert signal.rule_id == "parity.batch_mismatch"
    assert "all with batch>=8" in signal.message


def test_split_that_was_as_bad_before_is_a_note() -> None:
    signal = only(split_mismatch(swapped(table("chain_tf32")), GATED))
    assert (signal.level, signal.finding) == ("note", "observed")
    assert "as in the baseline" in signal.message


def test_two_parts_from_a_zero_start_prove_nothing() -> None:
    points = [point(1e-7, case={"partition": n, "T": 64}) for n in (1, 2)]
    signal = only(split_mismatch(points, GATED))
    assert signal.finding == "abstained"
    assert "multiplies zero" in signal.reason
    assert split_mismatch([*points, point(1e-7, case={"partition": 4, "T": 64})], GATED) == []
    started = [p.model_copy(update={"case": p.case | {"initial_state": 1}}) for p in points]
    assert split_mismatch(started, GATED) == []


# parity.scale


@pytest.mark.parametrize(("name", "words"), [("scale_missing", "left out"), ("scale_twice", "applied twice")])
def test_norm_that_follows_the_scale_names_the_defect(name: str, words: str) -> None:
    signal = only(scale(table(name), GATED))
    assert (signal.rule_id, signal.finding, signal.role) == ("parity.scale", "violates", "gate")
    assert words in signal.causes[0].text


def scaled(values: Sequence[float], **case: Any) -> list[ParityPoint]:
    return [point(v, measure="scale_ratio", case={"n": i, **case}) for i, v in enumerate(values)]


def test_constant_factor_is_told_without_a_stated_scale() -> None:
    assert "x0.125 in every case" in only(scale(scaled([0.125, 0.1251, 0.1249]), GATED)).message


def test_sum_over_ranks_that_is_done_twice_is_named() -> None:
    points = [point(float(n), measure="scale_ratio", case={"tp": n}) for n in (1, 2, 4)]
    assert "a sum over ranks" in only(scale(points, GATED)).causes[0].text


@pytest.mark.parametrize("values", [[1.0, 1.0, 1.0], [1.02, 0.98, 1.04], [0.5, 0.9, 0.3], [0.5, 0.5], [math.nan] * 3])
def test_norms_that_agree_or_have_no_rule_say_nothing(values: list[float]) -> None:
    assert scale(scaled(values), GATED) == []


def test_error_of_exactly_one_is_a_zero_output() -> None:
    points = [point(1.0, case={"T": 64, "seed": s}) for s in (1, 2, 3)]
    assert only(scale(points, GATED)).message.endswith("in all 3 cases: it is zero")
    assert scale(points[:2], GATED) == []


# parity.stale_buffer


def test_error_from_the_second_call_on_is_a_stale_buffer() -> None:
    signal = only(stale_buffer(table("stale_calls"), GATED))
    assert (signal.rule_id, signal.finding) == ("parity.stale_buffer", "violates")
    assert "wrong only from a later call on" in signal.message
    assert "2 cases" in signal.message


def test_error_that_depends_on_the_case_before_is_told() -> None:
    points = [point(1e-2 if a == "T=4096" else 1e-7, case={"T": 64, "after": a}) for a in ("none", "T=32", "T=4096")]
    assert "only after T=4096" in only(stale_buffer(points, GATED)).message


@pytest.mark.parametrize("values", [(1e-7, 2e-7, 1e-7), (1e-2, 1e-2, 1e-2), (1e-2, 1e-7, 1e-7), (1e-7,)])
def test_calls_that_are_alike_say_nothing(values: tuple[float, ...]) -> None:
    assert stale_buffer([point(v, case={"T": 64, "call": i}) for i, v in enumerate(values)], GATED) == []


# parity.boundary


def test_error_that_enters_at_a_rank_is_placed_there() -> None:
    signal = only(boundary(table("rank_tf32"), GATED))
    assert signal.locations[0] == RegionLocation(tensor="S", region="rank 1", index=512)
    assert "stays up" in signal.message
    assert "merged" in signal.causes[0].text


def test_wrong_first_row_of_each_chunk_is_off_by_one() -> None:
    signal = only(boundary(table("chunk_shifted"), GATED))
    assert signal.locations[0] == RegionLocation(tensor="o", region="chunk 1", index=64)
    assert "falls back inside" in signal.message
    assert "off by one" in signal.causes[0].text


def test_errors_that_wander_have_no_boundary() -> None:
    for seed in range(100):
        rng = np.random.default_rng(seed)
        points = [
            point(1e-6 * math.exp(rng.normal(0, 0.7)), case={"T": 512, "chunk": 64, "index": i})
            for i in range(0, 512, 8)
        ]
        assert boundary(points, GATED) == []


def test_slow_growth_over_boundaries_has_none() -> None:
    points = [point(1e-6 * (1 + i), case={"T": 512, "partition": 4, "index": i}) for i in range(0, 512, 16)]
    assert boundary(points, GATED) == []


# parity.breakdown


@pytest.mark.parametrize(
    ("axis", "values", "broken", "said"),
    [
        ("dtype", ("float16", "float32", "bfloat16"), {"float16"}, "dtype=float16"),
        ("T", (64, 128, 256, 512), {256, 512}, "T>=256"),
        ("region", ("rank 0", "rank 1", "rank 2"), {"rank 1", "rank 2"}, "region=rank 1|rank 2"),
        ("partition", (1, 2, 4), {1}, "partition<=1"),
    ],
)  # fmt: skip
def test_violations_are_broken_down_by_what_they_share(
    axis: str, values: tuple[Any, ...], broken: set[Any], said: str
) -> None:
    points = [
        point(1e-2 if v in broken else 1e-7, case={axis: v, "seed": s}, tolerance=1e-3) for v in values for s in (1, 2)
    ]
    signal = only(breakdown(points, GATED))
    assert f"have {said}, none of the" in signal.message
    assert signal.locations[0] == InputLocation(condition={"where": said})


def test_violations_without_a_common_condition_are_not_broken_down() -> None:
    points = [point(1e-2 if t in (64, 256) else 1e-7, case={"T": t}, tolerance=1e-3) for t in (64, 128, 256, 512)]
    assert breakdown(points, GATED) == []
    assert breakdown([point(1.0, tolerance=1e-3)], GATED) == []


def test_condition_needs_two_of_each_side() -> None:
    assert separating([{"a": 1}], [{"a": 2}, {"a": 3}]) == ""
    assert separating([{"a": 1}, {"b": 1}], [{"a": 2}, {"a": 3}]) == ""
    assert separating([], []) == ""


# Identical arms.


@pytest.mark.parametrize("scale_of", [1e-7, 1e-4, 3e-3])
def test_tables_of_equally_good_arms_are_blamed_rarely(scale_of: float) -> None:
    """Whatever the size of the errors and however they spread: fewer than 1 in 20 tables of 12 cases."""
    blamed = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        points = [
            point(
                scale_of * (t / 64) ** 0.5 * math.exp(rng.normal(0, 0.4)), arm, tolerance=1.0,
                case={"T": t, "partition": n, "seed": s, "dtype": "float32"},
            )
            for t in (64, 256, 1024, 4096)
            for n in (1, 2, 4)
            for s in (1, 2, 3)
            for arm in ("baseline", "candidate")
        ]  # fmt: skip
        blamed += any(s.level != "note" for s in derive(points, GATED))
    assert blamed <= 10


# Odd data.


def test_odd_points_never_raise() -> None:
    values = (math.nan, math.inf, -math.inf, -1.0, 0.0, 1e-320, 1e308)
    cases: tuple[dict[str, Any], ...] = (
        {}, {"T": 0}, {"T": -1}, {"T": math.nan}, {"T": math.inf}, {"T": "x"}, {"T": True}, {"K": -4, "dtype": "?"},
        {"partition": 0}, {"partition": 4, "T": 1, "index": math.nan}, {"chunk": 64, "index": "x"}, {"scale": 0},
        {"call": "x"}, {"call": 0}, {"call": 1}, {"after": 3}, {"T_max": math.inf, "T": 4}, {"batch": math.inf},
        {"chunk": math.inf, "index": 3}, {"T": 64, "partition": math.inf, "index": math.inf},
    )  # fmt: skip
    points = [
        point(v, arm, case=c, measure=m, tolerance=t)
        for v in values
        for c in cases
        for arm in ("baseline", "candidate")
        for m in ("rms_ratio", "scale_ratio")
        for t in (None, 0.0, math.nan)
    ]
    assert derive(points, GATED)
    rng = np.random.default_rng(1)
    for _ in range(60):
        some = [points[i] for i in rng.choice(len(points), 12)]
        derive(some, GATED)


def test_ratios_are_written_without_exponent() -> None:
    assert [times(x) for x in (1.973, 31.26, 1974.0, 12_345.0, 2.5e7)] == [
        "1.97x",
        "31.3x",
        "1970x",
        "12300x",
        "2.5e+07x",
    ]


def test_right_bits_name_the_size_that_they_are_of() -> None:
    sizes = {8: 3e-3, 64: 9e-3, 256: 2e-2, 1024: 0.2}
    points = [point(error, case={"K": k}, arm="candidate") for k, error in sizes.items()]
    points += [point(1e-7 * k**0.5, case={"K": k}, arm="baseline") for k in sizes]
    message = only(relative_error(points, GATED)).message
    assert "at K=1024" in message
    assert "8.4 bits are right at K=8" in message
    for signal in fingerprint(points, GATED):
        assert "bits at K=8" in signal.message
        assert signal.measured[0].name == "right bits at K=8"


def test_extrapolated_error_has_a_range_only_if_laws_differ() -> None:
    points = [point(1e-6 * t, case={"T": t, "T_max": 1e6}, tolerance=1e-1) for t in (64, 128, 256, 512, 1024)]
    for signal in numeric_growth(points, GATED):
        for q in signal.measured:
            assert (q.lo is None) == (q.hi is None)
            assert q.lo is None or q.hi is None or (q.lo < q.hi and q.lo <= q.value <= q.hi)
