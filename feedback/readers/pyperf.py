"""pyperf: `python bench.py -o FILE.json`. Tried with pyperf 2.11, format version 1.0.
https://pyperf.readthedocs.io/en/latest/api.html#pyperf-json-format

Each run is a fresh process and so a unit; its values are rounds. Runs that only calibrate have no values.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from feedback.observations import Measurement, RuntimeEvent, Scalar, Source
from feedback.readers import Unreadable
from feedback.readers.documents import Fields, Positive, document, has, scalars, shown
from sandboxes.results import ArmName

METRICS = {"second": "time_s", "byte": "memory_bytes", "integer": "value"}
"""Metric by pyperf's unit."""


class _Run(Fields):
    metadata: dict[str, Any] = {}
    values: tuple[Positive, ...] = ()
    warmups: tuple[Annotated[tuple[int, Positive], Field(strict=False)], ...] = ()


class _Benchmark(Fields):
    metadata: dict[str, Any] = {}
    runs: tuple[_Run, ...]


class _Suite(Fields):
    version: str
    metadata: dict[str, Any] = {}
    benchmarks: tuple[_Benchmark, ...]


def fits(path: Path, head: bytes) -> bool:
    is_suite = head.lstrip()[:1] == b"{" and has(head, b"benchmarks", b"runs", b"metadata")
    return is_suite and (has(head, b"values") or has(head, b"warmups"))


def read(path: Path, probe: str, stage: str, arm: ArmName) -> list[Measurement | RuntimeEvent]:
    """Every value, and the warm-ups marked as such, by benchmark; the highest load average that a run saw as an
    event. Raises Unreadable with the place, OSError when it can't be read."""
    suite = document(path, _Suite)
    found: list[Measurement | RuntimeEvent] = []
    for i, benchmark in enumerate(suite.benchmarks):
        metadata = {**suite.metadata, **benchmark.metadata}
        metric = METRICS.get(shown(metadata.get("unit", "second")))
        if metric is None:
            raise Unreadable(path, 0, f"/benchmarks/{i}: unknown unit {shown(metadata['unit'], 40)!r}")
        case: dict[str, Scalar] = {"benchmark": shown(metadata.get("name", "unnamed"))}
        case |= scalars(metadata.get("params", {})) if isinstance(metadata.get("params"), dict) else {}
        measured = [(k, run) for k, run in enumerate(benchmark.runs) if run.values]
        for unit, (k, run) in enumerate(measured):
            rounds = [(f"warmups/{n}/1", value, True) for n, (_, value) in enumerate(run.warmups)]
            rounds += [(f"values/{n}", value, False) for n, value in enumerate(run.values)]
            found += [
                Measurement(
                    probe=probe, metric=metric, value=value, arm=arm, stage=stage, pair=unit, block=block,
                    paired=False, case=case, warmup=warmup,
                    source=Source(file=path.name, query=f"/benchmarks/{i}/runs/{k}/{place}"),
                )
                for block, (place, value, warmup) in enumerate(rounds)
            ]  # fmt: skip
    return found + _load(suite, path, probe, stage, arm)


def _load(suite: _Suite, path: Path, probe: str, stage: str, arm: ArmName) -> list[RuntimeEvent]:
    runs = [run for benchmark in suite.benchmarks for run in benchmark.runs]
    loads = [load for run in runs if isinstance(load := run.metadata.get("load_avg_1min"), int | float)]
    loads = [float(load) for load in loads if 0 <= load < 1e6]
    if not loads:
        return []
    n_cpus = suite.metadata.get("cpu_count")
    busy = isinstance(n_cpus, int) and max(loads) > n_cpus
    return [
        RuntimeEvent(
            probe=probe, source="host", name="load_average", level="warning" if busy else "note",
            message=f"up to {max(loads):g} runnable tasks" + (f" on {n_cpus} CPUs" if busy else ""),
            count=max(loads), arm=arm, stage=stage,
            place=Source(file=path.name, query="/benchmarks/*/runs/*/metadata/load_avg_1min"),
        )
    ]  # fmt: skip
