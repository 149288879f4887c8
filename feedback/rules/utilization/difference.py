"""Where the candidate spends its time otherwise than the baseline: by line of a profile, by name in a trace."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from feedback.criteria import Criteria
from feedback.observations import Observation
from feedback.rules import rule
from feedback.rules.utilization import arms, profiles, self_time
from feedback.rules.utilization.arms import Pair, percent
from feedback.signals import CodeLocation, Evidence, KernelLocation, Location, Quantity, Signal, ThreadLocation
from feedback.spans import Frame, Spans, Stacks
from feedback.stats import Interval, odds_change

MIN_SAMPLES = 200
MIN_CHANGE = 0.02
"""Of all samples: below it a difference isn't worth a line even if it is real."""
ALPHA = 0.05
MAX_LISTED = 6
SAME_LINES = 0.5
"""Part of a function's samples that must lie on lines seen in both arms: else the file was edited and its lines moved,
and only the function as a whole compares."""


class Moved(NamedTuple):
    """One place whose share changed."""

    place: str
    location: Location
    before: float
    after: float
    interval: tuple[float, float] | None
    """Of `after`, if `before` were exact."""
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
"""Share before, share after, and the interval of their difference in log-odds, around it."""


def _changes(before: dict[profiles.Leaf, float], after: dict[profiles.Leaf, float]) -> dict[profiles.Leaf, Change]:
    """The places that take another share of all samples, and also of the samples outside those that changed more:
    when one line vanishes, every other one's share grows, and nothing happened to them."""
    n0, n1 = sum(before.values()), sum(after.values())
    places = sorted({p for counts in (before, after) for p, k in counts.items() if k >= 5}, key=str)
    tail = ALPHA / 2 / max(1, len(places))

    def surely(leaf: profiles.Leaf) -> Interval | None:
        found = odds_change((before.get(leaf, 0.0), n0), (after.get(leaf, 0.0), n1), tail)
        return found if found.lo > 0 or found.hi < 0 else None

    changes: dict[profiles.Leaf, Change] = {}
    for leaf in places:
        share0, share1 = before.get(leaf, 0.0) / n0, after.get(leaf, 0.0) / n1
        if abs(share1 - share0) >= MIN_CHANGE and (found := surely(leaf)):
            changes[leaf] = (share0, share1, found.lo - found.mean, found.hi - found.mean)
    kept: dict[profiles.Leaf, Change] = {}
    for leaf, change in sorted(changes.items(), key=lambda item: -abs(item[1][1] - item[1][0])):
        if surely(leaf):
            kept[leaf] = change
            n0, n1 = n0 - before.get(leaf, 0.0), n1 - after.get(leaf, 0.0)
    return kept


def _place(leaf: profiles.Leaf, before: float, after: float, lo: float, hi: float) -> Moved:
    frame = leaf.frame
    odds = max(after, 1e-4) / max(1 - after, 1e-4)
    lo, hi = (odds * math.exp(by) / (1 + odds * math.exp(by)) for by in (lo, hi))
    location = CodeLocation(file=frame.file or "native", line=frame.line, symbol=frame.function)
    return Moved(f"{leaf.thread} {leaf.place}", location, before, after, (lo, hi))


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


def _of_traces(pair: Pair[Spans]) -> list[Signal]:
    if pair.baseline is None or pair.candidate is None:
        return []
    signals = []
    for kind in self_time.KINDS:
        found, n = self_time.changes(pair.baseline, pair.candidate, kind)
        moved = [Moved(c.name, KernelLocation(name=c.name), c.before, c.after, None, c.said) for c in found]
        signals += _signal(pair, moved, f"own time of {kind.what}", n, self_time.query(kind))
    return signals


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
                Quantity(name=m.place[:160], value=m.after, unit=_unit(m),
                         lo=m.interval[0] if m.interval else None, hi=m.interval[1] if m.interval else None)
                for m in shown
            ),
            expected=tuple(Quantity(name=m.place[:160], value=m.before, unit="share") for m in shown),
            caveats=("shares say where the time goes, not whether the whole is faster",
                     "one process an arm: what moves again in a second recording of both is sure"),
            next=("measure the objective in pairs; if it moved, this is where",),
            evidence=tuple(
                Evidence(artefact=o.file, detail=f"n = {k:.0f}", query=query)
                for o, k in ((pair.baseline, n[0]), (pair.candidate, n[1]))
            ),
        )
    ]  # fmt: skip


def _unit(moved: Moved) -> str:
    """What the interval is of: the same share has a narrower one inside its own process (`utilization.gil`)."""
    level = f", {1 - ALPHA:.0%} over all places against another process" if moved.interval else ""
    return f"share{level}" + (f"; {moved.said}" if moved.said else "")


def _abstained(pair: Pair[Stacks], reason: str) -> Signal:
    stacks = pair.present[0]
    return Signal(
        rule_id="utilization.profile_diff", level="note", finding="abstained", reason=reason,
        message=f"profiles not compared: {reason}"[:400],
        locations=(ThreadLocation(process=stacks.probe, name=profiles.thread_name((stacks.threads or ("",))[0])),),
        next=("record both arms alike, longer or at a higher rate",),
        evidence=tuple(Evidence(artefact=o.file) for o in pair.present),
    )  # fmt: skip
