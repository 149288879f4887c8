"""pytest-benchmark: `pytest --benchmark-json=FILE`. Tried with pytest-benchmark 5.3.
https://pytest-benchmark.readthedocs.io/en/latest/

The rounds of a benchmark share one process, so a file is one unit, however many rounds it has.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from feedback.observations import Measurement, Scalar, Source
from feedback.readers import Unreadable
from feedback.readers.documents import Fields, Positive, document, has, scalars, shown
from sandboxes.results import ArmName

COUNTED = ("flops", "bytes")
"""What `extra_info` may say of the work of one call."""


class _Stats(Fields):
    data: tuple[Positive, ...] = ()


class _Benchmark(Fields):
    fullname: str
    params: dict[str, Any] | None = None
    extra_info: dict[str, Any] = {}
    stats: _Stats


class _File(Fields):
    benchmarks: tuple[_Benchmark, ...]


def fits(path: Path, head: bytes) -> bool:
    return head.lstrip()[:1] == b"{" and has(head, b"machine_info", b"commit_info")


def read(path: Path, probe: str, stage: str, arm: ArmName) -> list[Measurement]:
    """`time_s` of every round (the mean of its iterations), and `flops` and `bytes` where `extra_info` says them.

    Raises Unreadable, also for a file without raw rounds, which allows no statement about noise; OSError when it
    can't be read.
    """
    found: list[Measurement] = []
    for i, benchmark in enumerate(document(path, _File).benchmarks):
        case: dict[str, Scalar] = {"benchmark": shown(benchmark.fullname), **scalars(benchmark.params or {})}
        place = f"/benchmarks/{i}"
        if not benchmark.stats.data:
            raise Unreadable(path, 0, f"{place} has no raw rounds; write the file with --benchmark-json")
        found += [
            Measurement(
                probe=probe, metric="time_s", value=value, arm=arm, stage=stage, block=n, paired=False, case=case,
                source=Source(file=path.name, query=f"{place}/stats/data/{n}"),
            )
            for n, value in enumerate(benchmark.stats.data)
        ]  # fmt: skip
        counted = scalars(benchmark.extra_info)
        found += [
            Measurement(
                probe=probe, metric=name, value=float(counted[name]), arm=arm, stage=stage, paired=False, case=case,
                source=Source(file=path.name, query=f"{place}/extra_info/{name}"),
            )
            for name in COUNTED
            if isinstance(counted.get(name), int | float)
        ]  # fmt: skip
    return found
