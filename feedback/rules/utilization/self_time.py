"""Own time by name in two traces: which operators and kernels take another share, and why."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from feedback.intervals import Ints, nest
from feedback.rules.utilization import timeline
from feedback.spans import Spans
from feedback.stats import Interval, log_change

MIN_CHANGE = 0.02
"""Of all own time: below it a difference isn't worth a line even if it is real."""
MIN_CALLS = 20
MIN_CALLS_CHANGE = 0.1
ALPHA = 0.05
CHUNKS = 10


class Kind(NamedTuple):
    """What is compared with its like, and when the length of a call is news."""

    what: str
    categories: tuple[str, ...]
    chunk: int
    """Calls of a name in a run of neighbours, at least; the runs' medians are the units."""
    ratio: float
    """Change of a call's length, beyond that of calls in general, from which it counts."""


KINDS = (
    Kind("kernels", timeline.DEVICE_WORK, 5, 1.2),
    # A host's calls are pre-empted, and two processes of one program lay out their memory differently.
    Kind("operators", ("cpu_op", *timeline.RUNTIME), 20, 2.0),
)


class Change(NamedTuple):
    """A name whose share of own time changed."""

    name: str
    before: float
    after: float
    said: str
    """Whether there are more calls, or longer ones."""


class _Names(NamedTuple):
    """A trace's own time by name."""

    rows: dict[str, Ints]
    own_ns: npt.NDArray[np.float64]
    time: dict[str, float]
    steps: int

    @property
    def n(self) -> int:
        return sum(len(rows) for rows in self.rows.values())

    def calls(self, name: str) -> int:
        return len(self.rows.get(name, ()))


def changes(before: Spans, after: Spans, kind: Kind) -> tuple[list[Change], tuple[int, int]]:
    """Names whose share changed together with the number of calls, or with their length beyond what calls in general
    did; and how many calls were compared. A slower machine lengthens everything and changes no share."""
    one, other = _names(before, kind), _names(after, kind)
    n = one.n, other.n
    total0, total1 = sum(one.time.values()), sum(other.time.values())
    if min(n) < MIN_CALLS or total0 <= 0 or total1 <= 0:
        return [], n
    shares = {
        name: (one.time.get(name, 0.0) / total0, other.time.get(name, 0.0) / total1)
        for name in one.time.keys() | other.time.keys()
    }
    large = sorted(name for name, (a, b) in shares.items() if abs(b - a) >= MIN_CHANGE)
    length, calls = _in_general(one, other)
    found = []
    for name in large:
        n0, n1 = one.calls(name), other.calls(name)
        if n0 and abs(n1 / (n0 * calls) - 1) < MIN_CALLS_CHANGE:
            said = _length(one, other, name, length, kind, len(large))
        else:  # Other calls than before: their lengths don't compare.
            said = _calls(one, other, name, calls, shares[name][1] > shares[name][0])
        if said:
            found.append(Change(name, *shares[name], said))
    return found, n


def _names(spans: Spans, kind: Kind) -> _Names:
    rows = np.flatnonzero(timeline.is_a(spans, *kind.categories))
    own = np.zeros(len(spans))
    if len(rows):
        own[rows] = nest(spans.start_ns[rows], spans.end_ns[rows], spans.track[rows]).self_ns
    order = rows[np.argsort(spans.name[rows], kind="stable")]
    groups = np.split(order, np.flatnonzero(np.diff(spans.name[order])) + 1) if len(order) else []
    by_name = {spans.names[spans.name[g[0]]]: g for g in groups}
    time = {name: float(own[g].sum()) for name, g in by_name.items()}
    return _Names(by_name, own, time, len(timeline.steps(spans)))


def _in_general(before: _Names, after: _Names) -> tuple[float, float]:
    """By how much a call's length changed in general (a logarithm), and the number of calls (a factor): medians over
    names; per step where there are steps."""
    lengths, numbers = [], []
    for name in before.rows.keys() & after.rows.keys():
        a, b = (names.own_ns[names.rows[name]] for names in (before, after))
        if min(len(a), len(b)) >= MIN_CALLS:
            numbers.append(len(b) / len(a))
            if (middle := float(np.median(a))) > 0 and (now := float(np.median(b))) > 0:
                lengths.append(math.log(now / middle))
    steps = after.steps / before.steps if before.steps and after.steps else None
    return float(np.median(lengths)) if lengths else 0.0, steps or (float(np.median(numbers)) if numbers else 1.0)


def _calls(before: _Names, after: _Names, name: str, factor: float, more: bool) -> str:
    """What to say of another number of calls that goes with another share; empty if there is none."""
    n0, n1 = before.calls(name), after.calls(name)
    if max(n0, n1) < MIN_CALLS or (n1 > n0 * factor) is not more:
        return ""
    if before.steps and after.steps:
        return f"{n0 / before.steps:.4g} -> {n1 / after.steps:.4g} calls a step"
    return f"{n0} -> {n1} calls" + (f"; others {factor:.2f}x" if abs(factor - 1) >= MIN_CALLS_CHANGE else "")


def _length(before: _Names, after: _Names, name: str, general: float, kind: Kind, n_tests: int) -> str:
    """What to say of calls that are longer or shorter than those in general became; empty if not surely so."""
    change = _change(before, after, name, kind.chunk, n_tests)
    if change is None or change.lo <= general <= change.hi or abs(change.mean - general) < math.log(kind.ratio):
        return ""
    return f"a call {math.exp(change.mean):.2f}x as long; calls in general {math.exp(general):.2f}x"


def _change(before: _Names, after: _Names, name: str, chunk: int, n_tests: int) -> Interval | None:
    """Change of ln(own time of a call), over runs of neighbouring calls."""
    runs = []
    for names in (before, after):
        lengths = names.own_ns[names.rows[name]]
        n = min(CHUNKS, len(lengths) // chunk)
        runs.append(np.array([float(np.median(part)) for part in np.array_split(lengths, n)]) if n else np.empty(0))
    return log_change(runs[0], runs[1], ALPHA / 2 / n_tests)


def query(kind: Kind) -> str:
    """What gets the numbers out of the trace again."""
    return f"own time by name; category in ({', '.join(kind.categories)})"
