"""What observations say in themselves, by kind and before anything is concluded: the text of `feedback read`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from statistics import median
from typing import Any, TypeVar

import numpy as np

from feedback.digest import number, plain
from feedback.observations import Measurement, Observation, ParityPoint, RuntimeEvent, TestOutcome
from feedback.spans import Spans, Stacks

MAX_LINES = 20
"""Lines a kind; the rest is counted."""
_LEVELS = {"error": 0, "warning": 1, "note": 2}

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
        values = [o.value for o in group if not o.warmup]
        cases = {tuple(o.case.items()) for o in group}
        processes = {o.pair for o in group}
        said = f"{group[0].metric} of {group[0].probe} ({group[0].arm}): {len(group)} values"
        said += f", {len(cases)} cases of {', '.join(sorted(group[0].case))}" if len(cases) > 1 else ""
        said += f", {len(processes)} processes"
        if values:
            middle, least, most = number(median(values)), number(min(values)), number(max(values))
            said += f", median {middle}, {least}..{most}"
        found.append(said)
    return found


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
