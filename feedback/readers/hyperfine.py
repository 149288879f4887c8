"""hyperfine: `hyperfine --export-json FILE`. Tried with hyperfine 1.15. https://github.com/sharkdp/hyperfine

Each time is that of a fresh process, so each is a unit. Give commands of two arms the same name (`-n`), or they
don't compare.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from feedback.observations import Measurement, RuntimeEvent, Scalar, Source
from feedback.readers.documents import Fields, Positive, document, has, scalars, shown
from sandboxes.results import ArmName


class _Result(Fields):
    command: str
    times: tuple[Positive, ...]
    exit_codes: tuple[int | None, ...] = ()
    parameters: dict[str, Any] = {}


class _File(Fields):
    results: tuple[_Result, ...]


def fits(path: Path, head: bytes) -> bool:
    return head.lstrip()[:1] == b"{" and has(head, b"results", b"command", b"times", b"stddev")


def read(path: Path, probe: str, stage: str, arm: ArmName) -> list[Measurement | RuntimeEvent]:
    """`time_s` of each run of each command; runs that failed as one event a command, without their times. Raises
    Unreadable with the place, OSError when it can't be read."""
    found: list[Measurement | RuntimeEvent] = []
    for i, result in enumerate(document(path, _File).results):
        name = shown(result.command)
        case: dict[str, Scalar] = {"benchmark": name, **scalars(result.parameters)}
        failed = {n for n, code in enumerate(result.exit_codes) if code != 0}
        found += [
            Measurement(
                probe=probe, metric="time_s", value=value, arm=arm, stage=stage, pair=n, paired=False, case=case,
                source=Source(file=path.name, query=f"/results/{i}/times/{n}"),
            )
            for n, value in enumerate(result.times)
            if n not in failed
        ]  # fmt: skip
        if failed:
            found.append(
                RuntimeEvent(
                    probe=probe, source="process", name="exit_status", level="error", count=len(failed), arm=arm,
                    message=f"{len(failed)} of {len(result.times)} runs failed: {name}", stage=stage,
                    place=Source(file=path.name, query=f"/results/{i}/exit_codes"),
                )
            )  # fmt: skip
    return found
