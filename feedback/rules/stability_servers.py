"""Rules that hold the servers of the two arms side by side: cache in use, settings in effect, work and rates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from feedback.criteria import Criteria
from feedback.observations import Observation, RuntimeEvent
from feedback.rules import rule
from feedback.rules.arms import Arm, Trouble, evidence, servers, signals
from feedback.rules.stability_engine import FULL
from feedback.signals import Cause, ParamLocation, Quantity, Signal

MIN_CHANGE = 0.2
"""Of a count or rate of two single servers: smaller ones come and go from run to run."""
SIZED = {"kv_tokens": 0.02}
"""Settings that the engine works out from free memory, and by how much they scatter from start to start."""
MAX_NAMED = 6


@rule(
    "stability.kv_cache_usage",
    says="the KV cache was full while the engine served, and whether it was in the baseline",
    needs="engine logs with periodic lines, or a scrape under load",
)
def kv_cache_usage(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """A full cache holds requests back. Alone it is a note: an engine under all the load that it takes fills it."""
    found = []
    for there in servers(observations, criteria, "engine_log", "metrics"):
        found += signals("stability.kv_cache_usage", criteria, [there], partial(_full, there=there))
    return found


def _full(arm: Arm, there: dict[str, Arm]) -> Trouble | None:
    samples = [e for e in arm.events if e.name == "kv_cache_usage"]
    full = [e for e in samples if e.count >= FULL]
    if not full:
        return None
    waiting = arm.peak("waiting_requests") or 0.0
    other = there.get("baseline") if arm.name == "candidate" else None
    size = arm.setting("kv_blocks") or arm.setting("kv_tokens") or arm.setting("kv_cells")
    was = next((was for was in _settings(other) if size and was[0] == size[0]), None) if other else None
    before = (other.peak("kv_cache_usage") if other else None) or 0.0
    said = f"the KV cache was full ({max(e.count for e in full):.0%}) in {len(full)} of {len(samples)} samples"
    said += (f", up to {waiting:g} requests waited" if waiting else "") + (f" ({size[0]} {size[1]})" if size else "")
    return Trouble(
        said=said, amount=len(full) / len(samples), level="warning" if len(there) > 1 else "note", events=full,
        measured=(Quantity(name="kv_cache_usage", value=max(e.count for e in full)),),
        expected=(Quantity(name="kv_cache_usage", value=before, hi=FULL),),
        places=(ParamLocation(name=size[0], value=size[1], was=was[1] if was else None),) if size else (),
        causes=(
            Cause(
                text="the KV cache holds fewer tokens than the running requests grow to",
                support="strong" if was and size and was[1] != size[1] else "moderate",
                refutable_by="the same load with twice the KV cache fills it as well",
            ),
        ),
        next=("run the same load with twice the KV cache, or half the running requests: it must stay below full",),
    )  # fmt: skip


@rule(
    "stability.config_difference",
    says="settings in effect differ between the arms' servers, beside those that the change names",
    needs="engine logs of both arms",
)
def config_difference(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """One note a server with what its engine says of its settings in the arms; silent where they agree."""
    asked = {place.name.rpartition(".")[2] for place in criteria.changed if isinstance(place, ParamLocation)}
    found = []
    for there in servers(observations, criteria, "engine_log", "metrics"):
        if len(there) < 2:
            continue
        before, after = (dict(_settings(there[name])) for name in ("baseline", "candidate"))
        sized = {
            knob for arm in there.values() for name, by in SIZED.items() if (knob := (arm.setting(name) or ("",))[0])
        }
        differ = [
            (knob, before[knob], after[knob])
            for knob in before
            if knob in after and knob not in asked and not _is_alike(before[knob], after[knob], knob in sized)
        ]
        if differ:
            found.append(_differing(there, differ, criteria))
    return found


def _settings(arm: Arm) -> list[tuple[str, str]]:
    """Knobs and values as the engine states them."""
    parts = (e.message.partition(" = ") for e in arm.events if e.name.startswith("setting_"))
    return [(knob, value) for knob, equals, value in parts if equals]


def _is_alike(before: str, after: str, is_sized: bool) -> bool:
    digits = [text.replace(",", "")[:18] for text in (before, after)]
    if not is_sized or not all(text.isdecimal() for text in digits):
        return before == after
    a, b = map(int, digits)
    return abs(b - a) <= SIZED["kv_tokens"] * max(a, b)


def _differing(there: dict[str, Arm], differ: Sequence[tuple[str, str, str]], criteria: Criteria) -> Signal:
    more = f" and {len(differ) - MAX_NAMED} more" if len(differ) > MAX_NAMED else ""
    shown = differ[:MAX_NAMED]
    said = ", ".join(f"{knob} {was[:60]} -> {now[:60]}" for knob, was, now in shown)
    knobs = {knob for knob, *_ in shown}
    events = [
        e for name in ("candidate", "baseline") for e in there[name].events
        if e.name.startswith("setting_") and e.message.partition(" = ")[0] in knobs
    ]  # fmt: skip
    return Signal(
        rule_id="stability.config_difference", level="note", finding="observed",
        message=f"the arms' servers run with other settings: {said}{more}"[:400],
        locations=(*(ParamLocation(name=knob, value=now[:200], was=was[:200]) for knob, was, now in shown),
                   there["candidate"].place),
        caveats=("whatever differs between the arms may come from these settings, not from the code",),
        next=("if these are not the change under test, start both arms with the same settings and compare again",),
        evidence=evidence(events),
    )  # fmt: skip


class Figure(NamedTuple):
    """A number of a server that tells what it did."""

    name: str
    unit: str
    of: Callable[[Arm], tuple[float, list[RuntimeEvent]] | None]
    is_work: bool = False
    """Whether it is how much was done, which both arms should do alike, and not how fast."""


def _count(*names: str) -> Callable[[Arm], tuple[float, list[RuntimeEvent]] | None]:
    def of(arm: Arm) -> tuple[float, list[RuntimeEvent]] | None:
        found = arm.of(*names)
        return (sum(e.count for e in found), found) if found else None

    return of


def _rate(tokens: str, seconds: str) -> Callable[[Arm], tuple[float, list[RuntimeEvent]] | None]:
    def of(arm: Arm) -> tuple[float, list[RuntimeEvent]] | None:
        n, spent = arm.total(tokens), arm.total(seconds)
        return (n / spent, [*arm.of(tokens), *arm.of(seconds)]) if n > 0 and spent > 0 else None

    return of


def _highest(name: str) -> Callable[[Arm], tuple[float, list[RuntimeEvent]] | None]:
    """What the server reached: many of the periodic lines also average over idle time, the highest least so."""

    def of(arm: Arm) -> tuple[float, list[RuntimeEvent]] | None:
        found = [e for e in arm.of(name) if e.source == "engine_log" and e.count > 0]
        top = max(found, key=lambda e: e.count, default=None)
        return (top.count, [top]) if top else None

    return of


FIGURES = (
    Figure("finished requests", "", _count("finished_requests"), is_work=True),
    Figure("output tokens", "", _count("output_tokens"), is_work=True),
    Figure("cached prompt tokens", "", _count("cached_prompt_tokens"), is_work=True),
    Figure("highest output rate in the log", "tokens/s", _highest("output_tokens_per_s")),
    Figure("output rate of a request", "tokens/s", _rate("output_tokens", "output_s")),
    Figure("prompt rate of a request", "tokens/s", _rate("prompt_tokens", "prompt_s")),
)


@rule(
    "stability.server_difference",
    says="what the arms' servers counted or logged differs: tokens, requests, cache hits, rates",
    needs="Prometheus scrapes or engine logs of both arms",
)
def server_difference(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """One note a server with the figures that changed by a fifth or more. Rates only where nothing is judged: there
    the measured ones count, which have an interval."""
    found = []
    for there in servers(observations, criteria, "engine_log", "metrics"):
        if len(there) < 2:
            continue
        moved = []
        for figure in FIGURES:
            before, after = figure.of(there["baseline"]), figure.of(there["candidate"])
            if not before or not after or (criteria.judged and not figure.is_work):
                continue
            if abs(after[0] - before[0]) >= MIN_CHANGE * max(before[0], after[0]) > 0:
                moved.append((figure, before, after))
        if moved:
            found.append(_moved(there["candidate"], moved))
    return found


Seen = tuple[float, list[RuntimeEvent]]


def _moved(arm: Arm, moved: Sequence[tuple[Figure, Seen, Seen]]) -> Signal:
    said = ", ".join(f"{f.name} {a[0]:.4g} -> {b[0]:.4g}{' ' + f.unit if f.unit else ''}" for f, a, b in moved)
    other_work = any(f.is_work and f.name != "cached prompt tokens" for f, *_ in moved)
    caveats = ["one server an arm: no interval, and rates of two servers differ by chance too"]
    if other_work:
        caveats.insert(0, "the arms did different amounts of work: their times and rates don't compare")
    return Signal(
        rule_id="stability.server_difference", level="note", finding="observed",
        message=f"the arms' servers differ: {said}"[:400], locations=(arm.place,),
        measured=tuple(Quantity(name=f.name, value=b[0], unit=f.unit) for f, _, b in moved),
        expected=tuple(Quantity(name=f.name, value=a[0], unit=f.unit) for f, a, _ in moved),
        caveats=tuple(caveats),
        next=("send both arms the same requests with fixed output lengths, then compare again",) if other_work
        else ("measure both with a load client, five fresh servers an arm",),
        evidence=evidence([e for _, a, b in moved for e in (*b[1][:1], *a[1][:1])]),
    )  # fmt: skip
