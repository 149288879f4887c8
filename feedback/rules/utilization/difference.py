"""Where the candidate spends its time otherwise than the baseline: by line of a profile, by name in a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from feedback.criteria import Criteria
from feedback.intervals import Ints, nest
from feedback.observations import Observation
from feedback.rules import rule
from feedback.rules.utilization import arms, profiles, timeline
from feedback.rules.utilization.arms import Pair, percent
from feedback.signals import CodeLocation, Evidence, KernelLocation, Location, Quantity, Signal, ThreadLocation
from feedback.spans import Frame, Spans, Stacks
from feedback.stats import log_change, share_change

MIN_SAMPLES = 200
MIN_CHANGE = 0.02
"""Of all samples or of all time: below it a difference isn't worth a line even if it is real."""
ALPHA = 0.05
MAX_LISTED = 6
SAME_LINES = 0.5
"""Part of a function's samples that must lie on lines seen in both arms: else the file was edited and its lines moved,
and only the function as a whole compares."""

MIN_CALLS = 20
CHUNKS = 10
"""Calls of one name are cut into so many runs in time; their medians are the units, for neighbours are alike."""
MIN_RATIO = 1.2
"""Change of a call's length, beyond that of all calls together, that is more than two runs on a busy machine differ."""
MIN_CALLS_CHANGE = 0.1


class Moved(NamedTuple):
    """One place whose share changed."""

    place: str
    location: Location
    before: float
    after: float
    lo: float
    hi: float
    """The change of the share, with its interval."""
    said: str = ""


@rule(
    "utilization.profile_diff",
    says="which lines (of a profile) or operators and kernels (of a trace) take another share of the time",
    needs="sampling profiles or traces of both arms",
)
def profile_diff(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """One signal a probe with the places whose share changed for sure, largest first; silent if none did."""
    signals = []
    for profile in arms.pairs(observations, criteria, Stacks):
        signals += _of_profiles(profile)
    for trace in arms.pairs(observations, criteria, Spans):
        signals += _of_traces(trace)
    return signals


def _of_profiles(pair: Pair[Stacks]) -> list[Signal]:
    if pair.baseline is None or pair.candidate is None:
        return []
    if pair.baseline.only_gil != pair.candidate.only_gil:
        return [_abstained(pair, "one was recorded of GIL holders only, the other of all threads")]
    before, after = (_counted(profiles.working(stacks)) for stacks in (pair.baseline, pair.candidate))
    if before is None or after is None:
        return [
            _abstained(pair, f"weights in {pair.candidate.unit} can't be counted as samples, so there is no interval")
        ]
    n0, n1 = sum(before.values()), sum(after.values())
    if min(n0, n1) < MIN_SAMPLES:
        return [_abstained(pair, f"{n0:.0f} and {n1:.0f} samples of working threads; {MIN_SAMPLES} are needed")]
    before, after = _comparable(before, after)
    moved = [_place(leaf, *change) for leaf, change in _changes(before, after).items()]
    what = "GIL samples" if pair.candidate.only_gil else "samples"
    return _signal(pair, moved, f"{what} of working threads", (n0, n1), "weight by (thread, innermost file:line)")


Change = tuple[float, float, float, float]
"""Share before, share after, and the interval of their difference."""


def _changes(before: dict[profiles.Leaf, float], after: dict[profiles.Leaf, float]) -> dict[profiles.Leaf, Change]:
    """The places that take another share of all samples, and also of the samples outside those that changed more:
    when one line vanishes, every other one's share grows, and nothing happened to them."""
    n0, n1 = sum(before.values()), sum(after.values())
    places = sorted({p for counts in (before, after) for p, k in counts.items() if k >= 5}, key=str)
    tail = ALPHA / 2 / max(1, len(places))
    changes: dict[profiles.Leaf, Change] = {}
    for leaf in places:
        k0, k1 = before.get(leaf, 0.0), after.get(leaf, 0.0)
        lo, hi = share_change((k0, n0), (k1, n1), tail)
        if (lo > 0 or hi < 0) and abs(k1 / n1 - k0 / n0) >= MIN_CHANGE:
            changes[leaf] = (k0 / n0, k1 / n1, lo, hi)
    kept: dict[profiles.Leaf, Change] = {}
    for leaf, change in sorted(changes.items(), key=lambda item: -abs(item[1][1] - item[1][0])):
        k0, k1 = before.get(leaf, 0.0), after.get(leaf, 0.0)
        lo, hi = share_change((k0, n0), (k1, n1), tail)
        if lo > 0 or hi < 0:
            kept[leaf] = change
            n0, n1 = n0 - k0, n1 - k1
    return kept


def _place(leaf: profiles.Leaf, before: float, after: float, lo: float, hi: float) -> Moved:
    frame = leaf.frame
    location = CodeLocation(file=frame.file or "native", line=frame.line, symbol=frame.function)
    return Moved(f"{leaf.thread} {leaf.place}", location, before, after, lo, hi)


def _counted(stacks: Stacks) -> dict[profiles.Leaf, float] | None:
    n = profiles.counts(stacks)
    return None if n is None else profiles.leaves(replace(stacks, weight=n, unit="samples"))


def _comparable(
    before: dict[profiles.Leaf, float], after: dict[profiles.Leaf, float]
) -> tuple[dict[profiles.Leaf, float], dict[profiles.Leaf, float]]:
    """The same counts with lines left out of functions whose lines moved, and with threads merged that can't be told
    apart by name."""
    threads = [{leaf.thread for leaf in counts} for counts in (before, after)]
    if not threads[0] & threads[1] or profiles.NAMELESS in threads[0] ^ threads[1]:
        before, after = _merged(before), _merged(after)
    functions: dict[tuple[str, str], list[float]] = {}
    for mine, other in ((before, after), (after, before)):
        seen = {(leaf.frame.file, leaf.frame.function) for leaf in other}
        for leaf, k in mine.items():
            key = (leaf.frame.file, leaf.frame.function)
            if key in seen:
                sums = functions.setdefault(key, [0.0, 0.0])
                sums[0] += k
                sums[1] += k if leaf in other else 0.0
    edited = {key for key, (all_of, same) in functions.items() if same < SAME_LINES * all_of}
    return _without_lines(before, edited), _without_lines(after, edited)


def _merged(counts: dict[profiles.Leaf, float]) -> dict[profiles.Leaf, float]:
    found: dict[profiles.Leaf, float] = {}
    for leaf, k in counts.items():
        key = profiles.Leaf("all threads", leaf.frame)
        found[key] = found.get(key, 0.0) + k
    return found


def _without_lines(counts: dict[profiles.Leaf, float], edited: set[tuple[str, str]]) -> dict[profiles.Leaf, float]:
    found: dict[profiles.Leaf, float] = {}
    for leaf, k in counts.items():
        frame = leaf.frame
        if (frame.file, frame.function) in edited:
            leaf = profiles.Leaf(leaf.thread, Frame(frame.function, frame.file))
        found[leaf] = found.get(leaf, 0.0) + k
    return found


class _Names(NamedTuple):
    """A trace's own time by name."""

    time: dict[str, float]
    rows: dict[str, Ints]
    own_ns: Ints
    steps: int


def _of_traces(pair: Pair[Spans]) -> list[Signal]:
    """Names whose share of all own time changed, and of which either the number of calls changed or the length of a
    call beyond what all others did: a slower machine makes everything slower and changes no share."""
    if pair.baseline is None or pair.candidate is None:
        return []
    signals = []
    for what, categories in (("kernels", timeline.DEVICE_WORK), ("operators", ("cpu_op", *timeline.RUNTIME))):
        before, after = _names(pair.baseline, categories), _names(pair.candidate, categories)
        n = [sum(len(rows) for rows in names.rows.values()) for names in (before, after)]
        if min(n) < MIN_CALLS:
            continue
        moved = _moved(before, after)
        signals += _signal(
            pair, moved, f"own time of {what}", (n[0], n[1]), f"own time by name; {', '.join(categories)}"
        )
    return signals


def _names(spans: Spans, categories: Sequence[str]) -> _Names:
    rows = np.flatnonzero(timeline.is_a(spans, *categories))
    own = np.zeros(len(spans), np.int64)
    if len(rows):
        own[rows] = nest(spans.start_ns[rows], spans.end_ns[rows], spans.track[rows]).self_ns
    order = rows[np.argsort(spans.name[rows], kind="stable")]
    groups = np.split(order, np.flatnonzero(np.diff(spans.name[order])) + 1) if len(order) else []
    by_name = {spans.names[spans.name[g[0]]]: g for g in groups}
    return _Names({name: float(own[g].sum()) for name, g in by_name.items()}, by_name, own, len(timeline.steps(spans)))


def _moved(before: _Names, after: _Names) -> list[Moved]:
    t0, t1 = sum(before.time.values()), sum(after.time.values())
    if t0 <= 0 or t1 <= 0:
        return []
    both = before.rows.keys() & after.rows.keys()
    general = _general_change(before, after, both)
    large = [
        name for name in before.time.keys() | after.time.keys()
        if abs(after.time.get(name, 0.0) / t1 - before.time.get(name, 0.0) / t0) >= MIN_CHANGE
    ]  # fmt: skip
    found = []
    for name in sorted(large):
        share0, share1 = before.time.get(name, 0.0) / t0, after.time.get(name, 0.0) / t1
        n0, n1 = len(before.rows.get(name, ())), len(after.rows.get(name, ()))
        per_step = before.steps and after.steps
        calls0, calls1 = (n0 / before.steps, n1 / after.steps) if per_step else (float(n0), float(n1))
        said = f"{calls0:.4g} -> {calls1:.4g} calls{' a step' if per_step else ''}"
        change = _length_change(before, after, name, len(large)) if name in both else None
        if max(n0, n1) < MIN_CALLS or (n0 and n1 and abs(calls1 / calls0 - 1) < MIN_CALLS_CHANGE):
            # The same calls: only a length that changed beyond all others', for sure, is a finding.
            if change is None or max(n0, n1) < MIN_CALLS:
                continue
            lo, hi = change[1] - general, change[2] - general
            if not (lo > 0 or hi < 0) or abs(change[0] - general) < np.log(MIN_RATIO):
                continue
            said = f"a call {np.exp(change[0]):.2f}x as long (all calls: {np.exp(general):.2f}x)"
        delta = share1 - share0
        found.append(Moved(name, KernelLocation(name=name), share0, share1, delta, delta, said))
    return found


def _general_change(before: _Names, after: _Names, both: set[str]) -> float:
    """How much longer calls are in general: the median over names of the change of the median length."""
    changes = []
    for name in both:
        a, b = (names.own_ns[names.rows[name]] for names in (before, after))
        middle0, middle1 = float(np.median(a)), float(np.median(b))
        if min(len(a), len(b)) >= MIN_CALLS and middle0 > 0 and middle1 > 0:
            changes.append(np.log(middle1 / middle0))
    return float(np.median(changes)) if changes else 0.0


def _length_change(before: _Names, after: _Names, name: str, n_tests: int) -> tuple[float, float, float] | None:
    """Change of ln(own time of a call) with its interval."""
    found = log_change(_units(before, name), _units(after, name), ALPHA / 2 / max(1, n_tests))
    return None if found is None else (found.mean, found.lo, found.hi)


def _units(names: _Names, name: str) -> npt.NDArray[np.float64]:
    lengths = names.own_ns[names.rows[name]]
    chunks = np.array_split(lengths, min(CHUNKS, max(1, len(lengths))))
    return np.array([float(np.median(c)) for c in chunks if len(c)])


def _signal(
    pair: Pair[Spans] | Pair[Stacks], moved: list[Moved], of: str, n: tuple[float, float], query: str
) -> list[Signal]:
    if not moved or pair.baseline is None or pair.candidate is None:
        return []
    moved = sorted(moved, key=lambda m: -abs(m.after - m.before))
    top = moved[0]
    more = f"; {len(moved) - 1} more changed" if len(moved) > 1 else ""
    said = f" ({top.said})" if top.said else ""
    shown = moved[:MAX_LISTED]
    return [
        Signal(
            rule_id="utilization.profile_diff", level="note", finding="observed",
            message=f"{top.place[:120]}: {percent(top.before)} -> {percent(top.after)} of the {of}{said}{more}"[:400],
            locations=tuple(m.location for m in shown),
            measured=tuple(
                Quantity(name=m.place[:160], value=m.after, unit="share" + (f"; {m.said}" if m.said else ""),
                         lo=max(0.0, m.before + m.lo) if m.lo != m.hi else None,
                         hi=min(1.0, m.before + m.hi) if m.lo != m.hi else None)
                for m in shown
            ),
            expected=tuple(Quantity(name=m.place[:160], value=m.before, unit="share") for m in shown),
            caveats=("shares say where the time goes, not whether the whole is faster",
                     "one process an arm: differences between processes add to the interval"),
            next=("measure the objective in pairs; if it moved, this is where",),
            evidence=tuple(
                Evidence(artefact=o.file, detail=f"n = {k:.0f}", query=query)
                for o, k in ((pair.baseline, n[0]), (pair.candidate, n[1]))
            ),
        )
    ]  # fmt: skip


def _abstained(pair: Pair[Stacks], reason: str) -> Signal:
    stacks = pair.present[0]
    return Signal(
        rule_id="utilization.profile_diff", level="note", finding="abstained", reason=reason,
        message=f"profiles not compared: {reason}"[:400],
        locations=(ThreadLocation(process=stacks.probe, name=profiles.thread_name((stacks.threads or ("",))[0])),),
        next=("record both arms alike, longer or at a higher rate",),
        evidence=tuple(Evidence(artefact=o.file) for o in pair.present),
    )  # fmt: skip
