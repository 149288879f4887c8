"""Tables of Triton's `perf_report`: `bench.run(save_path=DIRECTORY)` writes NAME.csv. Tried with Triton 3.8.
https://triton-lang.org/main/python-api/triton.testing.html

Columns are the shapes and, one a provider, what `do_bench` found, named `provider (unit)`. It is the median over
many calls in one process, so each number stands alone and a file is one unit.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

from feedback.observations import Measurement, Scalar, Source
from feedback.readers import Unreadable
from feedback.readers.documents import rows, shown
from sandboxes.results import ArmName

METRICS = {
    "s": "time_s",
    "ms": "time_ms",
    "us": "time_us",
    "gb/s": "bandwidth_gb_per_s",
    "tb/s": "bandwidth_tb_per_s",
    "gflops": "gflops_per_s",
    "gflop/s": "gflops_per_s",
    "tflops": "tflops_per_s",
    "tflop/s": "tflops_per_s",
}
"""Metric by the unit that the table says, in lower case; a table that says none has the metric `value`."""
_COLUMN = re.compile(r"^(?P<provider>.+) \((?P<unit>[^()]*)\)$")
_NUMBER = re.compile(r"^(-?[\d.]+(e[-+]?\d+)?|nan)?$", re.IGNORECASE)


def fits(path: Path, head: bytes) -> bool:
    """A CSV that ends in columns with units over rows of numbers."""
    table = head.decode("utf-8", "replace").splitlines()
    if len(table) < 2 or not path.name.endswith(".csv"):
        return False
    header, first = table[0].split(","), table[1].split(",")
    has_units = len(header) > 1 and _COLUMN.match(header[-1]) is not None and _COLUMN.match(header[0]) is None
    return has_units and len(first) == len(header) and all(_NUMBER.match(cell) for cell in first[1:])


def read(path: Path, probe: str, stage: str, arm: ArmName) -> list[Measurement]:
    """One number a shape and provider; empty cells and NaN (a provider that can't do the shape) are left out.
    Raises Unreadable with the line, OSError when it can't be read."""
    found: list[Measurement] = []
    header: list[str] = []
    for number, row in rows(path):
        if not header:
            header = row
            measured = [i for i, name in enumerate(header) if _COLUMN.match(name)]
            if not measured:
                raise Unreadable(path, number, "no column is named `provider (unit)`")
            continue
        if len(row) != len(header):
            raise Unreadable(path, number, f"{len(row)} cells under {len(header)} columns")
        shape = {shown(name, 60): _typed(row[i]) for i, name in enumerate(header) if i not in measured}
        for i in measured:
            value = _value(path, number, row[i])
            if value is not None:
                provider, metric = _column(header[i])
                found.append(
                    Measurement(
                        probe=probe, metric=metric, value=value, arm=arm, stage=stage, paired=False,
                        case={"benchmark": provider, **shape},
                        source=Source(file=path.name, line=number, query=shown(header[i])),
                    )
                )  # fmt: skip
    return found


def _column(name: str) -> tuple[str, str]:
    column = _COLUMN.match(name)
    assert column is not None
    return shown(column["provider"]), METRICS.get(column["unit"].strip().lower(), "value")


def _value(path: Path, number: int, cell: str) -> float | None:
    try:
        value = float(cell) if cell.strip() else math.nan
    except ValueError as error:
        raise Unreadable(path, number, f"not a number: {shown(cell, 40)}") from error
    if math.isnan(value):
        return None
    if not 0 <= value < math.inf:
        raise Unreadable(path, number, f"not a time or a rate: {value}")
    return value


def _typed(cell: str) -> Scalar:
    """A shape as a number: the tool writes 64 as 64.000000."""
    try:
        value = float(cell)
    except ValueError:
        return shown(cell)
    return int(value) if value.is_integer() and abs(value) < 1 << 53 else shown(cell)
