"""Measurement files of slice workers: what is read, what is unreadable, and what no answer can break."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from feedback.observations import Measurement, Observation, ParityPoint, RuntimeEvent
from feedback.readers import Unreadable
from feedback.readers.slices import read
from feedback.stats import paired_units

T = TypeVar("T")
Writer = Callable[..., Path]


def slice_line(arm: str = "baseline", position: int = 0, **fields: Any) -> dict[str, Any]:
    record = {"slice": 1, "duration_s": 0.012, "check": [1.0, 2.0]} | fields.pop("record", {})
    known = {"type": "slice", "arm": arm, "pair": 0, "block": 0, "position": position, "seed": 7, "disturbed": False}
    return known | {"record": record} | fields


def pair_line(**fields: Any) -> dict[str, Any]:
    contention = {"foreign_cpu_share": 0.4, "steal_share": 0.02, "run_queue": 3.0}
    known = {"type": "pair", "pair": 0, "disturbed": False, "kept": True, "contention": contention}
    return known | {"first_arm": "baseline", "duration_s": 1.0} | fields


def block(*checks: Any, **fields: Any) -> list[dict[str, Any]]:
    """A block B A A B with its two seeds; `checks` are the answers in that order."""
    arms = ("candidate", "baseline", "baseline", "candidate")
    return [
        slice_line(arm, position, seed=position // 2, record={"check": check}, **fields)
        for position, (arm, check) in enumerate(zip(arms, checks, strict=True))
    ]


@pytest.fixture
def written(tmp_path: Path) -> Writer:
    def write(*lines: dict[str, Any] | str) -> Path:
        path = tmp_path / "screen-bench.jsonl"
        path.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines))
        return path

    return write


def of_type(kind: type[T], observations: list[Observation]) -> list[T]:
    return [o for o in observations if isinstance(o, kind)]


def check_of(path: Path) -> ParityPoint:
    (point,) = of_type(ParityPoint, read(path, "bench", "screen"))
    return point


def test_slices_become_measurements(written: Writer) -> None:
    path = written(slice_line("candidate", 2, pair=3, block=5, disturbed=True, record={"duration_s": 0.5}))
    (measurement,) = of_type(Measurement, read(path, "bench", "confirm"))
    assert measurement == Measurement(
        probe="bench", metric="slice_time_s", value=0.5, arm="candidate", stage="confirm", pair=3, block=5,
        position=2, disturbed=True,
    )  # fmt: skip


def test_whole_pair_becomes_a_unit(written: Writer) -> None:
    lines = block([1.0], [1.0], [1.0], [1.0])
    for line in lines:
        line["record"]["duration_s"] = 0.02 if line["arm"] == "candidate" else 0.01
    found = read(written(*lines, pair_line()), "bench", "screen")
    units = paired_units(of_type(Measurement, found), "slice_time_s")
    assert units.values == pytest.approx((math.log(2.0),))


def test_lines_of_other_types_are_ignored(written: Writer) -> None:
    assert read(written({"type": "note"}, {}), "bench", "screen") == []


@pytest.mark.parametrize(
    ("fields", "name", "level"),
    [
        ({}, "quiet_pair", "note"),
        ({"disturbed": True, "kept": False}, "disturbed_pair_repeated", "warning"),
        ({"disturbed": True, "kept": True}, "disturbed_pair_kept", "warning"),
    ],
)
def test_pairs_become_events(written: Writer, fields: dict[str, Any], name: str, level: str) -> None:
    (event,) = of_type(RuntimeEvent, read(written(pair_line(**fields)), "bench", "screen"))
    assert (event.source, event.name, event.level) == ("contention", name, level)
    assert event.message == ("" if name == "quiet_pair" else "foreign CPU 40%, steal 2%")


def test_file_without_lines_holds_nothing(written: Writer) -> None:
    assert read(written(), "bench", "screen") == []


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ('{"type": "slice", "arm": "basel', "not JSON"),
        ("", "not JSON"),
        ("[1, 2]", "not a JSON object"),
        ("\x00\x01", "not JSON"),
        ("[" * 100_000, "not JSON"),
        (json.dumps({"type": "slice"}), "not a measurement"),
        (json.dumps(slice_line(arm="third")), "not a measurement"),
        (json.dumps(slice_line(pair="one")), "not a measurement"),
        (json.dumps(slice_line() | {"record": []}), "not a measurement"),
        (json.dumps(slice_line() | {"record": None}), "not a measurement"),
        (json.dumps(slice_line(record={"duration_s": "fast"})), "not a measurement"),
        (json.dumps(pair_line(disturbed=True, contention={})), "not a measurement"),
        (json.dumps({"type": "pair"}), "not a measurement"),
    ],
)
def test_broken_line_is_named(written: Writer, broken: str, reason: str) -> None:
    with pytest.raises(Unreadable, match=reason) as caught:
        read(written(slice_line(), broken, slice_line()), "bench", "screen")
    assert caught.value.line == 2
    assert str(caught.value).startswith("screen-bench.jsonl, line 2: ")
    assert len(str(caught.value)) <= 500


# Agreement of the arms.


def test_equal_checksums_agree(written: Writer) -> None:
    path = written(*block([1.0, -3], [1.0, -3], [9.0, 0.0], [9.0, 0]))
    point = check_of(path)
    assert (point.tensor, point.measure, point.value, point.tolerance) == ("check", "relative_difference", 0.0, 1e-4)
    assert point.case == {"blocks": 1}


def test_largest_relative_difference_counts(written: Writer) -> None:
    first = block([1.001, 5.0], [1.0, 5.0], [7.0, 5.0], [7.0, 5.0])
    second = block([1.0, 5.0], [1.0, 5.0], [7.0, 5.0], [7.0, 4.0], block=1)
    point = check_of(written(*first, *second))
    assert point.value == pytest.approx(0.2)
    assert point.case == {"blocks": 2}


def test_slices_of_different_seeds_are_not_compared(written: Writer) -> None:
    assert check_of(written(*block([1.0], [1.0], [2.0], [2.0]))).value == 0.0
    assert check_of(written(*block([2.0], [1.0], [2.0], [1.0]))).value == 0.5


def test_baseline_that_disagrees_with_itself_is_seen(written: Writer) -> None:
    lines = [
        slice_line("baseline", 0),
        slice_line("baseline", 1, record={"check": [1.5, 2.0]}),
        slice_line("candidate"),
    ]
    assert check_of(written(*lines)).value > 0.3


@pytest.mark.parametrize(
    "answer",
    [
        None, [], [1.0], [1.0, 2.0, 3.0], "1.0 2.0", {"0": 1.0}, [1.0, "2.0"], [1.0, None], [1.0, [2.0]],
        [1.0, math.nan], [1.0, math.inf], [1.0, 10**400], 5,
    ],
)  # fmt: skip
@pytest.mark.parametrize("arm", ["candidate", "baseline"])
def test_answer_that_can_not_be_compared_is_infinitely_wrong(written: Writer, answer: Any, arm: str) -> None:
    good = [1.0, 2.0]
    lines = block(good, good, good, good)
    for line in lines:
        if line["arm"] == arm and line["seed"] == 0:
            line["record"]["check"] = answer
    assert check_of(written(*lines)).value == math.inf


def test_infinities_that_look_equal_do_not_agree(written: Writer) -> None:
    assert check_of(written(*block(*[[math.inf]] * 4))).value == math.inf


def test_arm_that_is_missing_does_not_agree(written: Writer) -> None:
    assert check_of(written(slice_line("baseline"))).value == math.inf


def test_workers_without_checksums_are_not_compared(written: Writer) -> None:
    for check in (None, []):
        found = read(written(*block(*[check] * 4)), "bench", "screen")
        assert of_type(ParityPoint, found) == []
        (event,) = of_type(RuntimeEvent, found)
        assert (event.source, event.name, event.arm, event.level) == ("check", "no_check", "baseline", "note")


def test_workers_with_checksums_have_no_such_event(written: Writer) -> None:
    assert of_type(RuntimeEvent, read(written(*block(*[[1.0]] * 4)), "bench", "screen")) == []


def test_tolerance_of_the_lines_comes_before_the_callers(written: Writer) -> None:
    path = written(*[line | {"check_tolerance": 0.01} for line in block(*[[1.0]] * 4)])
    assert check_of(path).tolerance == 0.01
    (point,) = of_type(ParityPoint, read(written(*block(*[[1.0]] * 4)), "bench", "screen", 0.5))
    assert point.tolerance == 0.5
