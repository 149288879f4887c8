"""Outputs beside an oracle's: the error is computed here, and anything odd is infinitely wrong."""

from __future__ import annotations

import base64
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedback.observations import ParityPoint
from feedback.readers import Unreadable
from feedback.readers.outputs import decode, read, rms_ratio

TRUTH = np.array([[3.0, -4.0], [0.0, 5.0]])


def array(values: Any, dtype: str = "float64") -> dict[str, Any]:
    data = np.asarray(values, dtype={"float32": "<f4", "float64": "<f8"}[dtype])
    return {"dtype": dtype, "shape": list(data.shape), "data": base64.b64encode(data.tobytes()).decode()}


def line(outputs: Any, truth: Any = None, **fields: Any) -> dict[str, Any]:
    known = {"case": {"batch": 2}, "seed": 41, "arm": "candidate", "tolerance": 2e-6, "outputs": outputs}
    return known | {"truth": {"o": array(TRUTH)} if truth is None else truth} | fields


def write(directory: Path, *lines: Any) -> Path:
    path = directory / "screen-parity.jsonl"
    path.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines))
    return path


def test_each_output_becomes_a_point(tmp_path: Path) -> None:
    truth = {"state": array([1.0, 1.0]), "o": array(TRUTH)}
    outputs = {"o": array(TRUTH), "state": array([1.1, 1.1]), "extra": array([9.0])}
    points = read(write(tmp_path, line(outputs, truth, arm="baseline")), "parity", "confirm")
    assert [type(p) for p in points] == [ParityPoint, ParityPoint]
    first, second = points
    assert first == ParityPoint(
        probe="parity", case={"batch": 2, "seed": 41}, tensor="o", measure="rms_ratio", value=0.0, tolerance=2e-6,
        arm="baseline", stage="confirm",
    )  # fmt: skip
    assert isinstance(second, ParityPoint)
    assert (second.tensor, second.value) == ("state", pytest.approx(0.1))


def test_error_is_relative_to_the_truth(tmp_path: Path) -> None:
    assert rms_ratio(array(TRUTH * 1.01), TRUTH) == pytest.approx(0.01)
    assert rms_ratio(array(TRUTH * 1e9 * 1.01), TRUTH * 1e9) == pytest.approx(0.01)
    assert rms_ratio(array(np.zeros((2, 2))), TRUTH) == pytest.approx(1.0)
    assert rms_ratio(array(TRUTH, "float32"), TRUTH) == 0.0
    rounded = np.array([1 / 3, 2 / 3])
    assert 0 < rms_ratio(array(rounded, "float32"), rounded) < 1e-7


def test_truth_of_zeros_is_met_only_by_zeros() -> None:
    zeros = np.zeros(3)
    assert rms_ratio(array(zeros), zeros) == 0.0
    assert rms_ratio(array([0.0, 0.0, 1e-9]), zeros) > 1e200


SIGNALLING = {"dtype": "float32", "shape": [2, 2], "data": base64.b64encode(b"\x01\x00\xa0\x7f" * 4).decode()}
ODD_ARRAYS = [
    None,
    {},
    [],
    "text",
    7,
    array(TRUTH.ravel()),
    array(TRUTH[:1]),
    array([[3.0, -4.0], [0.0, math.nan]]),
    array([[3.0, -4.0], [0.0, math.inf]]),
    array(TRUTH) | {"dtype": "float16"},
    array(TRUTH) | {"dtype": "float32"},
    array(TRUTH) | {"dtype": ["float64"]},
    array(TRUTH) | {"dtype": "object"},
    array(TRUTH) | {"shape": [10**30]},
    array(TRUTH) | {"shape": [-1, 10**19]},
    array(TRUTH) | {"shape": "2,2"},
    array(TRUTH) | {"shape": [2, 2.0]},
    array(TRUTH) | {"shape": None},
    array(TRUTH) | {"data": "not base64!"},
    array(TRUTH) | {"data": "ünïcode"},
    array(TRUTH) | {"data": array(TRUTH)["data"][:-4]},
    array(TRUTH) | {"data": ""},
    array(TRUTH) | {"data": 5},
    SIGNALLING,
]


@pytest.mark.parametrize("odd", ODD_ARRAYS)
def test_output_that_can_not_be_compared_is_infinitely_wrong(tmp_path: Path, odd: Any) -> None:
    assert rms_ratio(odd, TRUTH) == math.inf
    (point,) = read(write(tmp_path, line({"o": odd})), "parity", "screen")
    assert isinstance(point, ParityPoint)
    assert point.value == math.inf


@pytest.mark.parametrize("outputs", [None, {}, [], "o", {"other": array(TRUTH)}])
def test_missing_output_is_infinitely_wrong(tmp_path: Path, outputs: Any) -> None:
    (point,) = read(write(tmp_path, line(outputs)), "parity", "screen")
    assert isinstance(point, ParityPoint)
    assert point.value == math.inf


def test_enormous_but_finite_output_is_wrong_without_a_warning() -> None:
    assert rms_ratio(array(np.full((2, 2), 1e300)), TRUTH) == math.inf


def test_signalling_nan_is_decoded_without_a_warning() -> None:
    assert np.isnan(decode(SIGNALLING)).all()


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ('{"case": ', "not JSON"),
        ({"case": {}}, "not an outputs line"),
        (line({}, truth={"o": {"dtype": "float64"}}), "not an array"),
        (line({}, truth={"o": array([math.nan])}), "the oracle's values are empty or not finite"),
        (line({}, truth={"o": array([])}), "the oracle's values are empty or not finite"),
        (line({}, truth=5), "not an outputs line"),
        (line({}, case=5), "not an outputs line"),
        (line({}, tolerance="small"), "not an outputs line"),
        (line({}, arm="third"), "not an outputs line"),
    ],
)
def test_broken_line_is_named(tmp_path: Path, broken: Any, reason: str) -> None:
    path = write(tmp_path, line({"o": array(TRUTH)}), broken)
    with pytest.raises(Unreadable, match=reason) as caught:
        read(path, "parity", "screen")
    assert caught.value.line == 2
    assert caught.value.path == path


def test_order_of_bytes_and_rows_is_fixed() -> None:
    values = decode(array([[1.0, 2.0], [3.0, 4.0]], "float32"))
    assert values.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert values.dtype == np.float64
