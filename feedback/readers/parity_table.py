"""Parity tables, ours: points of shape x partition x dtype -> error, as CSV, JSON lines or one JSON document.

The columns stand in docs/formats.md. Every column that isn't named there is a part of the case.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ValidationError

from feedback.observations import ParityPoint, Scalar, Source
from feedback.readers import Unreadable
from feedback.readers.documents import Fields, Positive, first_object, lines, parsed, rows, scalars, shown, text, valid
from sandboxes.results import ArmName

MAX_POINTS = 1_000_000
COLUMNS = ("tensor", "measure", "value", "tolerance", "reference", "arm")


def _error(value: Any) -> Any:
    """An error that is not a number is infinitely large: an output with a NaN in it is wrong, not unreadable."""
    try:
        number = -1.0 if isinstance(value, bool) else float(value)
    except (TypeError, OverflowError) as error:
        raise ValueError("not a number") from error
    if number < 0:
        raise ValueError("an error is a number not below zero")
    return math.inf if math.isnan(number) else number


class _Point(Fields):
    measure: Annotated[str, BeforeValidator(lambda v: shown(v, 60) if isinstance(v, str) else v)]
    value: Annotated[float, BeforeValidator(_error)]
    tensor: Annotated[str, BeforeValidator(lambda v: shown(v, 60) if isinstance(v, str) else v)] = "output"
    tolerance: Positive | None = None
    reference: Literal["golden", "unpartitioned", "baseline"] = "golden"
    arm: ArmName | None = None


class _Document(Fields):
    parity: tuple[dict[str, Any], ...]


def fits(path: Path, head: bytes) -> bool:
    """A CSV whose header has `measure` and `value`, or JSON objects with both and without a name."""
    first = head.lstrip(b"\xef\xbb\xbf \t\r\n").split(b"\n", 1)[0].strip()
    if head.lstrip()[:1] == b"{":
        line = first_object(head)
        return {"measure", "value"} <= line.keys() or first.replace(b" ", b"").startswith(b'{"parity":[')
    return {b"measure", b"value"} <= {cell.strip(b'" ') for cell in first.split(b",")}


def read(path: Path, probe: str, stage: str, arm: ArmName) -> list[ParityPoint]:
    """One point a row. `arm` holds where the table doesn't say its own. Raises Unreadable with the line, OSError
    when it can't be read."""
    found: list[ParityPoint] = []
    for number, query, row in _table(path):
        if len(found) == MAX_POINTS:
            raise Unreadable(path, number, f"more than {MAX_POINTS} points")
        point = valid(_Point, {k: v for k, v in row.items() if k in COLUMNS and v is not None}, path, number)
        try:
            found.append(
                ParityPoint(
                    probe=probe, case=scalars(row, skip=COLUMNS), tensor=point.tensor, measure=point.measure,
                    value=point.value, tolerance=point.tolerance, reference=point.reference, arm=point.arm or arm,
                    stage=stage, source=Source(file=path.name, line=number or None, query=query),
                )
            )  # fmt: skip
        except ValidationError as error:
            raise Unreadable(path, number, f"not a parity point: {error.errors()[0]['msg']}") from error
    return found


def _table(path: Path) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Line, query and values of each row. A line of 0 stands for one that isn't known."""
    with path.open("rb") as file:
        begins = file.read(256).lstrip(b"\xef\xbb\xbf \t\r\n")
    if begins[:1] not in (b"{", b"["):
        yield from _csv(path)
    elif begins[:1] == b"[" or begins.replace(b" ", b"").replace(b"\n", b"").startswith(b'{"parity":['):
        whole = parsed(path, text(path))
        rows_ = valid(_Document, {"parity": whole} if isinstance(whole, list) else whole, path).parity
        prefix = "" if isinstance(whole, list) else "/parity"
        yield from ((0, f"{prefix}/{i}", row) for i, row in enumerate(rows_))
    else:
        for number, line in lines(path):
            if not isinstance(line, dict):
                raise Unreadable(path, number, "not a JSON object")
            yield number, "", line


def _csv(path: Path) -> Iterator[tuple[int, str, dict[str, Any]]]:
    header: list[str] | None = None
    for number, row in rows(path):
        if header is None:
            header = [name.strip() for name in row]
            continue
        if len(row) != len(header):
            raise Unreadable(path, number, f"{len(row)} cells under {len(header)} columns")
        cells = zip(header, (cell.strip() for cell in row), strict=True)
        yield number, "", {k: v if k in COLUMNS else _typed(v) for k, v in cells if v}


def _typed(cell: str) -> Scalar:
    """A cell as the number that it looks like; so `4096` of a CSV equals 4096 of JSON."""
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return cell
