"""Runtime events by arm, and how a trouble in one arm, the other or both becomes a signal."""

from __future__ import annotations

import math
import re
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
    """The runtime events of one server of one arm in one stage."""

    def __init__(self, name: str, events: list[RuntimeEvent], server: str = "") -> None:
        self.name = name
        self.events = events
        self.place = ProcessLocation(arm=name, role=f"server {server}".rstrip())

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


def servers(observations: Sequence[Observation], criteria: Criteria, *sources: str) -> list[dict[str, Arm]]:
    """The servers of the stage that events of these sources were read of, each by arm. Several logs (or scrapes) of
    an arm are of several servers, each with settings and counts of its own, which are compared with the other arm's
    of the same name; one log and one scrape are of one. Events with odd numbers are left out."""
    events = [
        o
        for o in observations
        if isinstance(o, RuntimeEvent) and o.stage == criteria.stage and o.source in sources and _is_sane(o)
    ]
    parts = _apart(events, "", (_of_probe, _of_file))
    workload = [e for e in events if e.source == "events"]
    found = []
    for server, mine in parts:
        if len(parts) > 1 and {e.source for e in mine} == {"events"}:
            continue
        names: dict[str, None] = dict.fromkeys(e.arm for e in mine)
        mine = [*(e for e in mine if e.source != "events"), *workload] if len(parts) > 1 else mine
        found.append({name: Arm(name, [e for e in mine if e.arm == name], server) for name in names})
    return found


def _apart(
    events: list[RuntimeEvent], server: str, keys: tuple[Callable[[RuntimeEvent], str], ...]
) -> list[tuple[str, list[RuntimeEvent]]]:
    """The events of each server with its name, which is empty where there is one."""
    files: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for e in events:
        if e.place:
            files.setdefault((e.arm, e.source), set()).add((e.probe, e.place.file))
    if not keys or all(len(of) == 1 for of in files.values()):
        return [(server, events)] if events else []
    groups: dict[str, list[RuntimeEvent]] = {}
    for e in events:
        groups.setdefault(keys[0](e), []).append(e)
    return [part for name, group in groups.items() for part in _apart(group, name, keys[1:])]


def _of_probe(event: RuntimeEvent) -> str:
    """A probe, or the name of a file without its ending: `a.log` and `a.prom` are of one server."""
    return re.sub(r"\.(?:log|txt|prom|metrics|jsonl?)$", "", event.probe)


def _of_file(event: RuntimeEvent) -> str:
    return event.place.file if event.place else ""


def _is_sane(event: RuntimeEvent) -> bool:
    return all(value is None or 0 <= value < 1e18 for value in (event.count, event.duration_s)) and (
        event.at_s is None or math.isfinite(event.at_s)
    )


def signals(
    rule_id: str, criteria: Criteria, of: Sequence[dict[str, Arm]], look: Callable[[Arm], Trouble | None]
) -> list[Signal]:
    """What `look` finds in each server. In both arms alike it is not the change's doing: a note."""
    return [signal for there in of for signal in _of_server(rule_id, criteria, there, look)]


def _of_server(
    rule_id: str, criteria: Criteria, there: dict[str, Arm], look: Callable[[Arm], Trouble | None]
) -> list[Signal]:
    found = {name: look(arm) for name, arm in there.items()}
    candidate, baseline = found.get("candidate"), found.get("baseline")
    if candidate and baseline:
        if candidate.amount > CLEARLY_MORE * baseline.amount:
            return [made(rule_id, criteria, candidate, there["candidate"], after=f"; in the baseline: {baseline.said}")]
        shared = candidate._replace(level="note")
        both = (there["candidate"], there["baseline"])
        return [made(rule_id, criteria, shared, *both, before="both arms, so not the change: ")]
    for name, trouble in found.items():
        if trouble is None:
            continue
        other = there.get("baseline" if name == "candidate" else "candidate")
        if other is None or not _tells(other, trouble):
            return [made(rule_id, criteria, trouble, there[name])]
        if name == "candidate":
            return [made(rule_id, criteria, trouble, there[name], after="; not in the baseline")]
        gone = trouble._replace(level="note", causes=(), next=())
        return [made(rule_id, criteria, gone, there[name], before="no longer in the candidate: ")]
    return []


def _tells(other: Arm, trouble: Trouble) -> bool:
    """Whether the other arm has a file that would tell of the trouble: what nobody could see isn't absent."""
    return not trouble.events or not {_teller(e) for e in trouble.events}.isdisjoint(map(_teller, other.events))


def _teller(event: RuntimeEvent) -> str:
    return "server" if event.source in ("engine_log", "metrics") else event.source


def made(rule_id: str, criteria: Criteria, trouble: Trouble, *of: Arm, before: str = "", after: str = "") -> Signal:
    """The signal of a trouble in these arms of a server."""
    blamed = criteria.changed if [arm.name for arm in of] == ["candidate"] and after else ()
    places = (*trouble.places, *blamed, *(arm.place for arm in of))
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
