"""Rules on what went on around the numbers: crashes, engine messages, contention."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from feedback.criteria import Criteria
from feedback.observations import Observation, RuntimeEvent
from feedback.rules import rule
from feedback.rules.arms import evidence
from feedback.rules.stability_engine import OWNED
from feedback.signals import CodeLocation, HostLocation, ProcessLocation, Signal

SAID = ("engine_log", "metrics", "warnings", "events")
"""Sources of what a system says of itself."""


@rule(
    "stability.tool_error",
    says="the candidate crashed, hung, hit a limit or refused to start",
    needs="steps of a run",
)
def tool_error(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """The candidate's process crashed, hung, hit a limit or refused to start."""
    return [
        Signal(
            rule_id="stability.tool_error",
            level="error",
            finding="violates",
            role="gate",
            message=f"{o.probe}: {o.message}"[:400],
            locations=(*criteria.changed, ProcessLocation(arm=o.arm, role=o.probe)),
        )
        for o in observations
        if isinstance(o, RuntimeEvent) and o.source == "process" and o.arm == "candidate" and o.stage == criteria.stage
    ]


@rule(
    "stability.env_contention",
    says="others used the measured CPUs while pairs were measured",
    needs="pair records",
)
def env_contention(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """Pairs that others disturbed: how many were measured again, and how many had to be kept."""
    events = [
        o
        for o in observations
        if isinstance(o, RuntimeEvent) and o.source == "contention" and o.stage == criteria.stage
    ]
    counts = Counter(e.name for e in events)
    repeated, kept = counts["disturbed_pair_repeated"], counts["disturbed_pair_kept"]
    if not repeated and not kept:
        return []
    worst = next(e.message for e in events if e.name != "quiet_pair")
    return [
        Signal(
            rule_id="stability.env_contention",
            level="warning" if kept else "note",
            finding="observed",
            message=f"{repeated} disturbed pair(s) measured again, {kept} kept because the machine stayed busy; "
            f"for example {worst}",
            locations=(HostLocation(),),
            next=("measure on a quieter machine for a narrower interval",) if kept else (),
        )
    ]


@rule(
    "stability.runtime_event",
    says="the engine logged or counted something more often in the candidate than in the baseline",
    needs="engine logs, Prometheus scrapes, Python's warnings, our own events",
)
def runtime_event(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """What the engine logged or counted in the candidate's arm and not as often in the baseline's, beside what
    rules of its own speak of."""
    totals: dict[tuple[str, str], Counter[str]] = {}
    first: dict[tuple[str, str], RuntimeEvent] = {}
    told: set[tuple[str, str]] = set()
    for o in observations:
        if isinstance(o, RuntimeEvent) and o.source in SAID and o.stage == criteria.stage:
            name = f"{o.name} at {o.message.partition(': ')[0]}" if o.source == "warnings" else o.name
            totals.setdefault((o.probe, name), Counter())[o.arm] += o.count  # type: ignore[assignment]
            if o.arm == "baseline":
                told.add((o.probe, o.source))
            elif o.level != "note":
                first.setdefault((o.probe, name), o)
    signals = []
    several = len({event.place.file if event.place else "" for event in first.values()}) > 1
    for (probe, name), event in first.items():
        by_arm = totals[probe, name]
        if event.name in OWNED or by_arm["candidate"] <= by_arm["baseline"]:
            continue
        # Of a file that the baseline hasn't got nothing is known, not that it counted none.
        is_compared = (probe, event.source) in told
        role = f"server {event.place.file}" if several and event.place else "server"
        against = f" in the candidate, {by_arm['baseline']:g}x in the baseline" if is_compared else ""
        signals.append(
            Signal(
                rule_id="stability.runtime_event",
                level=event.level,
                finding="observed",
                message=f"{probe}: {name} {by_arm['candidate']:g}x{against}: {event.message}"[:400],
                locations=(*_raised(event), *criteria.changed, ProcessLocation(arm="candidate", role=role)),
                evidence=evidence([event]),
            )
        )
    return signals


def _raised(event: RuntimeEvent) -> tuple[CodeLocation, ...]:
    """Where in the source a warning was raised."""
    file, colon, line = event.message.partition(": ")[0].rpartition(":")
    is_place = event.source == "warnings" and colon and line.isdecimal() and len(line) < 8
    return (CodeLocation(file=file, line=int(line)),) if is_place else ()
