"""Where the time of one trace or profile goes, for somebody who asked: own time by name, most first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from feedback.criteria import Criteria
from feedback.intervals import Bools, Ints, nest
from feedback.observations import Observation
from feedback.rules import rule
from feedback.rules.cases import text, where
from feedback.rules.utilization import arms, profiles, timeline
from feedback.rules.utilization.arms import percent
from feedback.signals import CodeLocation, Evidence, InputLocation, KernelLocation, Quantity, Signal
from feedback.spans import Spans, Stacks

MAX_SHOWN = 12
MAX_TOLD = 6
MAX_PLACES = 3


class Name(NamedTuple):
    """All intervals of one name on one side of a trace."""

    name: str
    own_s: float
    rows: Ints


@rule(
    "utilization.own_time",
    says="where the time of a trace or a profile goes: own time by name, or samples by line",
    needs="an investigation, or the probe that a hypothesis names, that leaves a trace or a profile",
)
def own_time(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """One signal a profile, and one for the threads and one for the devices of a trace; of each arm that there is."""
    signals: list[Signal] = []
    for o in observations:
        if not isinstance(o, Spans | Stacks) or o.stage != criteria.stage or not arms.is_sane(o):
            continue
        if not criteria.question and (criteria.asked is None or criteria.asked.probe != o.probe):
            continue
        if isinstance(o, Stacks):
            signals += _of_profile(o, criteria)
        else:
            host = timeline.on_host(o)
            device = np.array([t.kind == "device" for t in o.tracks] or [False])[o.track]
            annotated = timeline.is_a(o, "gpu_user_annotation")  # they lie over the kernels that they name
            signals += _of_trace(o, host, "threads", criteria) + _of_trace(o, device & ~annotated, "devices", criteria)
    return signals


def _of_trace(spans: Spans, some: Bools, what: str, criteria: Criteria) -> list[Signal]:
    names = _names(spans, np.flatnonzero(some))
    total = sum(n.own_s for n in names)
    if total <= 0:
        return []
    said = ", ".join(f"{n.name[:60]} {percent(n.own_s / total)} in {len(n.rows)}" for n in names[:MAX_TOLD])
    measured = tuple(Quantity(name=n.name[:160], value=n.own_s, unit=f"s of own time in {len(n.rows)} intervals")
                     for n in names[:MAX_SHOWN])  # fmt: skip
    places = [KernelLocation(name=n.name[:200]) for n in names[:MAX_PLACES]]
    return [_signal(spans, what, f"own time on {what} {total:.4g} s: {said}", measured, places,
                    tuple(_longest(spans, n) for n in names[:MAX_PLACES]), criteria)]  # fmt: skip


def _names(spans: Spans, rows: Ints) -> list[Name]:
    """The names among these intervals, most own time first."""
    if not len(rows):
        return []
    own = nest(spans.start_ns[rows], spans.end_ns[rows], spans.track[rows]).self_ns
    sums = np.bincount(spans.name[rows], own.astype(np.float64), len(spans.names))
    top = [int(n) for n in np.argsort(-sums, kind="stable")[:MAX_SHOWN] if sums[n] > 0]
    rest = float(sums.sum() - sums[top].sum())
    found = [Name(spans.names[n], float(sums[n]) / 1e9, rows[spans.name[rows] == n]) for n in top]
    shown = np.isin(spans.name[rows], top)
    return [*found, Name("everything else", rest / 1e9, rows[~shown])] if rest > 0 else found


def _longest(spans: Spans, name: Name) -> Evidence:
    """The longest interval of a name: what happens inside it can be looked up."""
    length = spans.end_ns[name.rows] - spans.start_ns[name.rows]
    row = int(name.rows[int(np.argmax(length))])
    (found,) = timeline.evidence(
        spans, f"the longest of {len(name.rows)}: {name.name[:120]}", int(spans.start_ns[row]), int(spans.end_ns[row]),
        "own time by name",
    )  # fmt: skip
    return found


def _of_profile(stacks: Stacks, criteria: Criteria) -> list[Signal]:
    leaves = list(profiles.leaves(stacks).items())
    total = sum(weight for _, weight in leaves)
    if total <= 0:
        return []
    said = ", ".join(f"{leaf.place} {percent(weight / total)}" for leaf, weight in leaves[:MAX_TOLD])
    measured = tuple(Quantity(name=f"{leaf.thread} {leaf.place}"[:160], value=weight, unit=stacks.unit)
                     for leaf, weight in leaves[:MAX_SHOWN])  # fmt: skip
    places = [CodeLocation(file=leaf.frame.file or "native", line=leaf.frame.line, symbol=leaf.frame.function[:200])
              for leaf, _ in leaves[:MAX_PLACES]]  # fmt: skip
    held = " of GIL holders" if stacks.only_gil else ""
    evidence = (Evidence(artefact=stacks.file, query="weight by (thread, innermost file:line)"),)
    return [_signal(stacks, f"profile{held}", f"{total:.6g} {stacks.unit}{held}, every thread: {said}", measured,
                    places, evidence, criteria)]  # fmt: skip


def _signal(
    of: Spans | Stacks,
    what: str,
    said: str,
    measured: tuple[Quantity, ...],
    places: Sequence[KernelLocation | CodeLocation],
    evidence: tuple[Evidence, ...],
    criteria: Criteria,
) -> Signal:
    at = f" at {text(of.case)}" if of.case else ""
    arm = "" if criteria.question else f", {of.arm}"
    condition = (InputLocation(condition=dict(of.case)),) if of.case else ()
    lost = (f"{of.lost} intervals or samples are not in it",) if of.lost else ()
    return Signal(
        rule_id="utilization.own_time", level="note", finding="observed", subject=f"{of.arm} {of.file} {what}",
        message=f"{of.probe}{arm}{at}: {said}"[:400], measured=measured,
        locations=where(criteria, of.probe, *places, *condition), evidence=evidence,
        caveats=("recording costs time: shares tell more than seconds", *lost, *of.notes[:2]),
    )  # fmt: skip
