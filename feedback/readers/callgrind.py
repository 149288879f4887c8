"""Totals of a callgrind.out file: instructions executed, which don't depend on what else the machine does."""

from __future__ import annotations

import re
from pathlib import Path

from feedback.observations import Measurement
from feedback.readers import Unreadable
from sandboxes.results import ArmName

_TOTALS = re.compile(r"^(?:summary|totals):\s+(\d+)", re.MULTILINE)
_TAIL_BYTES = 1 << 16


def read(path: Path, probe: str, stage: str, arm: ArmName) -> list[Measurement]:
    """One Measurement `instructions`. Raises Unreadable when the file holds no totals (valgrind was cut off)."""
    with path.open("rb") as file:
        head = file.read(_TAIL_BYTES)
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        tail = file.read()
    if b"events: Ir" not in head:
        raise Unreadable(path, 1, "not a callgrind file that counts instructions (no `events: Ir`)")
    totals = _TOTALS.findall((head + b"\n" + tail).decode("ascii", "replace"))
    if not totals:
        raise Unreadable(path, 1, "no totals; valgrind did not finish")
    return [Measurement(probe=probe, metric="instructions", value=int(totals[-1]), arm=arm, stage=stage)]
