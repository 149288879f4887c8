"""Runtime events by arm, and how a trouble in one arm, the other or both becomes a signal."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from feedback.criteria import Criteria
from feedback.observations import Observation, RuntimeEvent
from feedback.signals import Cause, Evidence, Level, Location, ProcessLocation, Quantity, Signal

MAX_EVIDENCE = 5
CLEARLY_MORE = 1.5
"""How much more of a trouble in the candidate than in the baseline is the change's doing: counts of the same load
scatter by tens of percent from run to run."""


class Trouble(NamedTuple):
    """What is wrong in one arm."""

    said: str
    """The conclusion, without saying which arm."""
    amount: float
    """How bad, to hold the arms against each other."""
    level: Level
    events: Sequence[RuntimeEvent]
    """What it was derived from."""
    measured: tuple[Quantity, ...] = ()
    expected: tuple[Quantity, ...] = ()
    places: tuple[Location, ...] = ()
    causes: tuple[Cause, ...] = ()
    next: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()


class Arm:
    """The runtime events of one arm in one stage."""

    def __init__(self, name: str, events: list[RuntimeEvent]) -> None:
        self.name = name
        self.events = events

    def of(self, *names: str) -> list[RuntimeEvent]:
        """Events of these names. Where a server counted something and its log told it too, the count is taken."""
        found: list[RuntimeEvent] = []
        for name in names:
            mine = [e for e in self.events if e.name == name]
            counted = [e for e in mine if e.source == "metrics"]
            found += counted or mine
        return found

    def total(self, *names: str) -> float:
        """How often, or how much, all together; 0 where nothing was said of it."""
        return sum(e.count for e in self.of(*names))

    def peak(self, *names: str) -> float | None:
        """The largest value of a gauge."""
        return max((e.count for e in self.events if e.name in names), default=None)

    def setting(self, name: str) -> tuple[str, str] | None:
        """Knob and value of a launch parameter, as the engine states it; None if it doesn't."""
        said = next((e.message for e in self.events if e.name == f"setting_{name}"), "")
        knob, equals, value = said.partition(" = ")
        return (knob, value) if equals else None

    def whole(self, name: str) -> int | None:
        """A launch parameter that is a whole number."""
        found = self.setting(name)
        return int(found[1]) if found and found[1].isdecimal() and len(found[1]) < 10 else None


def arms(observations: Sequence[Observation], criteria: Criteria, *sources: str) -> dict[str, Arm]:
    """The arms of the stage that events of these sources were read of. Events with odd numbers are left out."""
    by_arm: dict[str, list[RuntimeEvent]] = {}
    for o in observations:
        if isinstance(o, RuntimeEvent) and o.stage == criteria.stage and o.source in sources and _is_sane(o):
            by_arm.setdefault(o.arm, []).append(o)
    return {name: Arm(name, events) for name, events in by_arm.items()}


def _is_sane(event: RuntimeEvent) -> bool:
    return all(value is None or 0 <= value < 1e18 for value in (event.count, event.duration_s)) and (
        event.at_s is None or math.isfinite(event.at_s)
    )


def signals(
    rule_id: str, criteria: Criteria, there: dict[str, Arm], look: Callable[[Arm], Trouble | None]
) -> list[Signal]:
    """What `look` finds in the arms. In both alike it is not the change's doing: a note."""
    found = {name: look(arm) for name, arm in there.items()}
    candidate, baseline = found.get("candidate"), found.get("baseline")
    if len(there) == 1:
        return [made(rule_id, criteria, trouble, name) for name, trouble in found.items() if trouble]
    if candidate and not baseline:
        return [made(rule_id, criteria, candidate, "candidate", after="; not in the baseline")]
    if candidate and baseline:
        if candidate.amount > CLEARLY_MORE * baseline.amount:
            return [made(rule_id, criteria, candidate, "candidate", after=f"; in the baseline: {baseline.said}")]
        shared = candidate._replace(level="note")
        return [made(rule_id, criteria, shared, "candidate", "baseline", before="both arms, so not the change: ")]
    if baseline:
        gone = baseline._replace(level="note", causes=(), next=())
        return [made(rule_id, criteria, gone, "baseline", before="no longer in the candidate: ")]
    return []


def made(rule_id: str, criteria: Criteria, trouble: Trouble, *names: str, before: str = "", after: str = "") -> Signal:
    """The signal of a trouble in these arms."""
    blamed = criteria.changed if names == ("candidate",) and after else ()
    places = (*trouble.places, *blamed, *(ProcessLocation(arm=name, role="server") for name in names))
    return Signal(
        rule_id=rule_id, level=trouble.level, finding="observed", message=f"{before}{trouble.said}{after}"[:400],
        locations=places, measured=trouble.measured, expected=trouble.expected, causes=trouble.causes,
        next=trouble.next, caveats=trouble.caveats, evidence=evidence(trouble.events),
    )  # fmt: skip


def evidence(events: Sequence[RuntimeEvent]) -> tuple[Evidence, ...]:
    """Where the first few of these events stand."""
    found = []
    for event in events:
        if (place := event.place) is not None:
            detail = event.message or f"{event.name} = {event.count:g}"
            found.append(Evidence(artefact=place.file, line=place.line, query=place.query, detail=detail[:240]))
    return tuple(dict.fromkeys(found))[:MAX_EVIDENCE]
