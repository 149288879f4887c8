"""What observations say in themselves, by kind and before anything is concluded: the text of `feedback read`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from statistics import median
from typing import Any, TypeVar

import numpy as np

from feedback.digest import number
from feedback.observations import Measurement, Observation, ParityPoint, RuntimeEvent, TestOutcome
from feedback.rules.cases import text
from feedback.spans import Spans, Stacks
from feedback.wording import count, plain

MAX_LINES = 20
"""Lines a kind; the rest is counted."""
_LEVELS = {"error": 0, "warning": 1, "note": 2}

MAX_CASES = 8
"""Cases of a metric that get a line each."""
_SECONDS = ((" s", 1.0), (" ms", 1e-3), (" us", 1e-6), (" ns", 1e-9))

T = TypeVar("T")


def lines(observations: Iterable[Observation]) -> list[str]:
    """At most `MAX_LINES` lines a kind."""
    by_type: dict[type[Any], list[Any]] = {}
    for o in observations:
        by_type.setdefault(type(o), []).append(o)
    ways: tuple[tuple[type[Any], Callable[[list[Any]], list[str]]], ...] = (
        (TestOutcome, _tests), (ParityPoint, _parity), (Measurement, _measurements), (RuntimeEvent, _events),
        (Spans, _spans), (Stacks, _stacks),
    )  # fmt: skip
    found = []
    for kind, say in ways:
        said = [plain(line) for line in say(by_type.get(kind, []))]
        found += said[:MAX_LINES]
        if len(said) > MAX_LINES:
            found.append(f"and {len(said) - MAX_LINES} more such lines")
    return found


def _groups(values: Iterable[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    groups: dict[Hashable, list[T]] = {}
    for value in values:
        groups.setdefault(key(value), []).append(value)
    return list(groups.values())


def _tests(outcomes: Sequence[TestOutcome]) -> list[str]:
    found = []
    for group in _groups(outcomes, lambda o: (o.probe, o.arm)):
        counts = ", ".join(f"{n} {outcome}" for outcome, n in Counter(o.outcome for o in group).items())
        bad = next((o for o in group if o.outcome in ("failed", "error")), None)
        first = f"; first {bad.name}: {bad.message[:120]}" if bad else ""
        found.append(f"tests of {group[0].probe} ({group[0].arm}): {counts}{first}")
    return found


def _parity(points: Sequence[ParityPoint]) -> list[str]:
    found = []
    for group in _groups(points, lambda o: (o.probe, o.arm, o.tensor, o.measure, o.reference)):
        worst = max(group, key=lambda o: o.value)
        allowed = "" if worst.tolerance is None else f", allowed {number(worst.tolerance)}"
        found.append(
            f"parity of {worst.probe} ({worst.arm}): {worst.tensor} {worst.measure} against {worst.reference}, "
            f"{len(group)} points, worst {number(worst.value)}{allowed}"
        )
    return found


def _measurements(measurements: Sequence[Measurement]) -> list[str]:
    found = []
    for group in _groups(measurements, lambda o: (o.probe, o.metric, o.arm, tuple(sorted(o.case)))):
        cases = _groups(group, lambda o: tuple(sorted(o.case.items())))
        said = f"{group[0].metric} of {group[0].probe} ({group[0].arm})"
        if len(cases) == 1:
            found.append(f"{said}: {_values(group)}")
            continue
        found.append(f"{said}: {len(group)} values, {len(cases)} cases of {', '.join(sorted(group[0].case))}")
        found += [f"  {text(of[0].case)}: {_values(of)}" for of in cases[:MAX_CASES]]
        if len(cases) > MAX_CASES:
            found.append(f"  and {len(cases) - MAX_CASES} more cases")
    return found


def _values(of_case: Sequence[Measurement]) -> str:
    """`10 values, 5 processes, median 1.2 ms, 1.1..1.3 ms`: of one case only, others are other numbers."""
    n = len({o.pair for o in of_case})
    said = f"{count(len(of_case), 'value')}, {n} process{'es' if n > 1 else ''}"
    values = [o.value for o in of_case if not o.warmup]
    if not values:
        return said
    unit, size = _unit(of_case[0].metric, median(values))
    middle, least, most = (number(value / size) for value in (median(values), min(values), max(values)))
    return f"{said}, median {middle}{unit}, {least}..{most}{unit}" if len(values) > 1 else f"{said}: {middle}{unit}"


def _unit(metric: str, value: float) -> tuple[str, float]:
    """In which unit a value reads well, and how large that is in the metric's own, by the metric's name."""
    if metric.endswith("_per_s"):
        return " /s", 1.0
    if metric.endswith("_s"):
        return next(((unit, size) for unit, size in _SECONDS if value >= size), _SECONDS[-1])
    return next(((f" {unit}", 1.0) for unit in ("ms", "us", "ns", "bytes") if metric.endswith(f"_{unit}")), ("", 1.0))


def _events(events: Sequence[RuntimeEvent]) -> list[str]:
    groups = _groups(events, lambda o: (o.probe, o.arm, o.source, o.name))
    found = []
    for group in sorted(groups, key=lambda g: _LEVELS[g[0].level]):
        o = group[0]
        count = number(sum(e.count for e in group))
        said = f": {o.message[:120]}" if o.message else ""
        found.append(f"{o.level} {o.source} {o.name} of {o.probe} ({o.arm}): {count}{said}")
    return found


def _spans(traces: Sequence[Spans]) -> list[str]:
    found = []
    for o in traces:
        if not len(o):
            found.append(f"trace {o.file} ({o.arm}): no interval")
            continue
        length = (int(o.end_ns.max()) - int(o.start_ns.min())) / 1e6
        counts = np.bincount(o.category, minlength=len(o.categories))
        top = ", ".join(f"{counts[n]} {o.categories[n]}" for n in np.argsort(-counts, kind="stable")[:5] if counts[n])
        lost = f"; {o.lost} lost" if o.lost else ""
        found.append(
            f"trace {o.file} ({o.arm}): {len(o)} intervals on {len(o.tracks)} tracks in {length:.4g} ms: {top}{lost}"
        )
        found += [f"trace {o.file} ({o.arm}): {note}" for note in o.notes]
    return found


def _stacks(profiles: Sequence[Stacks]) -> list[str]:
    found = []
    for o in profiles:
        gil = ", only with the GIL" if o.only_gil else ""
        total = number(float(o.weight.sum()))
        found.append(
            f"profile {o.file} ({o.arm}): {total} {o.unit} in {len(o.stacks)} stacks of {len(o.threads)} threads{gil}"
        )
        found += [f"profile {o.file} ({o.arm}): {note}" for note in o.notes]
    return found
