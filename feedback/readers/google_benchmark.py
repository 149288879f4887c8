"""Google Benchmark: `--benchmark_format=json` or `--benchmark_out=FILE`. Tried with the C++ library 1.7.1 and the
Python package 1.9.5. https://github.com/google/benchmark/blob/main/docs/user_guide.md#output-formats

Repetitions share one process, so a file is one unit. Aggregates (mean, median, `_BigO`, `_RMS`) are skipped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict

from feedback.observations import Measurement, RuntimeEvent, Scalar, Source, TestOutcome
from feedback.readers.documents import Count, Fields, Positive, document, has, shown
from sandboxes.results import ArmName

SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
RATES = ("bytes_per_second", "items_per_second")
"""Counters of the library itself. What a counter of a benchmark's own means, and its unit, isn't in the file."""


class _Row(Fields):
    model_config = ConfigDict(frozen=True, extra="allow")

    name: str
    run_name: str | None = None
    run_type: str = "iteration"
    repetition_index: Count | None = None
    real_time: Positive | None = None
    cpu_time: Positive | None = None
    time_unit: Literal["ns", "us", "ms", "s"] = "ns"
    error_occurred: bool = False
    error_message: str = ""
    skipped: bool = False
    skip_message: str = ""


class _Context(Fields):
    num_cpus: Count | None = None
    cpu_scaling_enabled: bool = False
    aslr_enabled: bool = False
    load_avg: tuple[Positive, ...] = ()
    library_build_type: str = ""


class _File(Fields):
    context: _Context
    benchmarks: tuple[_Row, ...]


def fits(path: Path, head: bytes) -> bool:
    return head.lstrip()[:1] == b"{" and has(head, b"context", b"num_cpus", b"benchmarks")


def read(path: Path, probe: str, stage: str, arm: ArmName) -> list[Measurement | TestOutcome | RuntimeEvent]:
    """`time_s` and `cpu_time_s` of each repetition, rates that the library counted, benchmarks that gave up as
    outcomes, and what the context says of a noisy machine as events. Raises Unreadable with the place, OSError
    when it can't be read."""
    file = document(path, _File)
    found: list[Measurement | TestOutcome | RuntimeEvent] = []
    seen: dict[str, int] = {}
    for i, row in enumerate(file.benchmarks):
        if row.run_type != "iteration":
            continue
        name = shown(row.run_name or row.name)
        place = Source(file=path.name, query=f"/benchmarks/{i}")
        if row.error_occurred or row.skipped:
            found.append(
                TestOutcome(
                    probe=probe, name=name, outcome="error" if row.error_occurred else "skipped", arm=arm,
                    message=shown(row.error_message or row.skip_message), stage=stage,
                    attempt=row.repetition_index or 0, source=place,
                )
            )  # fmt: skip
            continue
        block = seen[name] = seen.get(name, -1) + 1
        found += [
            Measurement(
                probe=probe, metric=metric, value=value, arm=arm, stage=stage, block=block, paired=False,
                case={"benchmark": name}, source=place,
            )
            for metric, value in _values(row).items()
        ]  # fmt: skip
    return [*found, *_facts(file.context, path, probe, stage, arm)]


def _values(row: _Row) -> dict[str, float]:
    scale = SECONDS[row.time_unit]
    found: dict[str, float] = {}
    if row.real_time is not None:
        found["time_s"] = row.real_time * scale
    if row.cpu_time is not None:
        found["cpu_time_s"] = row.cpu_time * scale
    extra: dict[str, Any] = row.model_extra or {}
    found |= {name: float(extra[name]) for name in RATES if _is_rate(extra.get(name))}
    return found


def _is_rate(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e30


def _facts(context: _Context, path: Path, probe: str, stage: str, arm: ArmName) -> list[RuntimeEvent]:
    facts: list[tuple[str, bool, float, str]] = []
    if context.cpu_scaling_enabled:
        facts.append(("cpu_scaling_enabled", True, 1, "CPU frequency scaling is on: times are noisy"))
    if context.aslr_enabled:
        facts.append(("aslr_enabled", False, 1, "address space layout is random: times vary between processes"))
    if context.load_avg:
        load = context.load_avg[0]
        busy = context.num_cpus is not None and load > context.num_cpus
        cpus: Scalar = context.num_cpus if context.num_cpus is not None else "?"
        facts.append(("load_average", busy, load, f"{load:g} runnable tasks on {cpus} CPUs as it began"))
    if context.library_build_type == "debug":
        facts.append(("debug_build", False, 1, "the benchmark library is a debug build: very short times are too long"))
    return [
        RuntimeEvent(
            probe=probe, source="host", name=name, level="warning" if bad else "note", message=message,
            count=count, arm=arm, stage=stage, place=Source(file=path.name, query=f"/context/{name}"),
        )
        for name, bad, count, message in facts
    ]  # fmt: skip
