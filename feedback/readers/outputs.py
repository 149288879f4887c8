"""Outputs of both arms beside an oracle's: JSON lines with base64 arrays, compared here and nowhere else.

A line: {"case": {...}, "seed": n, "arm": "candidate", "tolerance": t, "outputs": {name: array}, "truth":
{name: array}} with array = {"dtype": "float32"|"float64", "shape": [...], "data": base64 little-endian}.
"""

from __future__ import annotations

import base64
import binascii
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedback.observations import Observation, ParityPoint
from feedback.readers import Unreadable
from feedback.readers.slices import lines

_DTYPES = {"float32": "<f4", "float64": "<f8"}


def fits(path: Path, head: bytes) -> bool:
    """A long first line may end beyond the head, and with it `truth`."""
    return head.startswith(b'{"case":') and all(key in head for key in (b'"seed"', b'"arm"', b'"tolerance"'))


def read(path: Path, probe: str, stage: str) -> list[Observation]:
    """Relative RMS error of each output against the oracle's float64 values. Raises Unreadable only for a broken
    file; outputs that are missing, misshapen or not finite are infinitely wrong, which is data."""
    points: list[Observation] = []
    for number, line in lines(path):
        try:
            case, truth, outputs = line["case"], line["truth"], line["outputs"]
            for name in sorted(truth):
                value = rms_ratio(outputs.get(name) if isinstance(outputs, dict) else None, decode(truth[name]))
                points.append(
                    ParityPoint(
                        probe=probe,
                        case={**case, "seed": line["seed"]},
                        tensor=name,
                        measure="rms_ratio",
                        value=value,
                        tolerance=line["tolerance"],
                        arm=line["arm"],
                        stage=stage,
                    )
                )
        except (KeyError, TypeError, ValueError) as error:
            raise Unreadable(path, number, f"not an outputs line: {error}") from error
    return points


def decode(array: Any) -> NDArray[np.float64]:
    """A base64 array as float64. Raises ValueError when it is not one."""
    try:
        data = base64.b64decode(array["data"], validate=True)
        values = np.frombuffer(data, dtype=_DTYPES[array["dtype"]]).reshape(array["shape"])
    except (KeyError, TypeError, ValueError, OverflowError, binascii.Error) as error:
        raise ValueError(f"not an array: {error}") from error
    with np.errstate(all="ignore"):  # a signalling NaN of a candidate is data, not a warning
        return values.astype(np.float64)


def rms_ratio(array: Any, truth: NDArray[np.float64]) -> float:
    """RMS(output - truth) / RMS(truth); infinite when the output can't be compared. Raises ValueError when the
    truth is no truth: empty or not finite."""
    if truth.size == 0 or not np.isfinite(truth).all():
        raise ValueError("the oracle's values are empty or not finite")
    try:
        output = decode(array)
    except ValueError:
        return math.inf
    if output.shape != truth.shape or not np.isfinite(output).all():
        return math.inf
    with np.errstate(over="ignore"):
        scale = float(np.sqrt(np.mean(truth**2)))
        error = float(np.sqrt(np.mean((output - truth) ** 2)))
    return error / max(scale, 1e-300)
