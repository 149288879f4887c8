"""Which signals tell of the current parent, and which of a playbook's patterns they fit. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from feedback.observations import Scalar
from feedback.signals import (
    CodeLocation,
    InputLocation,
    KernelLocation,
    Location,
    ParamLocation,
    ProcessLocation,
    RegionLocation,
    Signal,
    ThreadLocation,
)
from infra_agent.citation import HIDDEN, Cited
from infra_agent.domain import Experiment
from infra_agent.planner import Context
from infra_agent.planner.rulebook import Growth, When

GONE = "no longer "
"""How a signal begins that tells of the baseline alone, see `feedback.rules.arms`."""
BOTH = ("both arms, so not the change: ", "the workload, not a bug: ")
ALSO_BASELINE = re.compile(r"; as in the baseline|, as in the baseline|not this change's doing")
_OWN = ("baseline", "final", "layer", "control")


class Fact(NamedTuple):
    """A knob in force beside what it is held against."""

    knob: str
    value: Scalar | None
    limit: Scalar | None


def of_parent(context: Context) -> list[Signal]:
    """The signals that tell of the current parent, latest first, one of each fingerprint: those of investigations of
    it, of the campaign's own measurements of it, of the change that led to it, and, of changes that were tried on it,
    those that say it is the same in both arms."""
    return [found.signal for found in _told(context).values()]


def ids_of_parent(context: Context) -> dict[str, str]:
    """Fingerprint -> id in the campaign of each of these signals."""
    return {fingerprint: found.id for fingerprint, found in _told(context).items()}


def _told(context: Context) -> dict[str, Cited]:
    found: dict[str, Cited] = {}
    for experiment in reversed(context.journal.finished):
        for signal in experiment.signals:
            if _tells_of(experiment, signal, context.parent_commit):
                found.setdefault(signal.fingerprint, Cited(experiment, signal))
    return found


def _tells_of(experiment: Experiment, signal: Signal, commit: str) -> bool:
    if signal.rule_id == HIDDEN:
        return False
    gone = signal.message.startswith((GONE, "no longer in"))
    if experiment.role == "investigation":
        return experiment.parent_commit == commit and not gone
    if experiment.role in _OWN or experiment.commit == commit:
        return experiment.commit == commit and not gone
    if experiment.role == "change" and experiment.parent_commit == commit:
        return signal.message.startswith(BOTH) or ALSO_BASELINE.search(signal.message) is not None
    return False


def says_nothing(signal: Signal) -> bool:
    """Whether a signal only says that all is as it should be, or what the objective's arms look like."""
    return signal.finding in ("same", "holds", "abstained") or signal.rule_id in (
        "performance.bench_delta", "performance.guardrail", "performance.instructions", "performance.question",
        "integrity.work_unproven",
        "stability.server_difference", "stability.config_difference",
    )  # fmt: skip


def fits(when: When, signal: Signal) -> bool:
    """Whether a signal fits all that a pattern says of signals; never where the pattern has no rule."""
    if when.rule is None or re.fullmatch(when.rule, signal.rule_id) is None:
        return False
    if signal.message.startswith(GONE):
        return False
    causes = " ".join(c.text for c in signal.causes if c.support != "weak")
    return (
        (not when.finding or signal.finding in when.finding)
        and (not when.level or signal.level in when.level)
        and _has(when.message, signal.message)
        and not (when.unless and _has(when.unless, signal.message))
        and _has(when.cause, causes)
        and _has(when.place, " ".join(name(place) for place in signal.locations))
        and _has(when.subject, signal.subject)
        and _measures(when, signal)
        and (when.growth is None or _grows(when.growth, signal))
    )


def _has(pattern: str | None, text: str) -> bool:
    return pattern is None or re.search(pattern, text, re.IGNORECASE) is not None


def _measures(when: When, signal: Signal) -> bool:
    if when.quantity is None:
        return True
    named = [q.value for q in signal.measured if re.search(when.quantity, q.name, re.IGNORECASE)]
    if not named:
        return False
    total = sum(q.value for q in signal.measured)
    if when.share is not None and not (total > 0 and sum(named) >= when.share * total):
        return False
    return (when.least is None or max(named) >= when.least) and (when.most is None or min(named) <= when.most)


def _grows(growth: Growth, signal: Signal) -> bool:
    points = sorted(_points(growth.parameter, signal))
    if len(points) < 2 or not (points[0][0] > 0 and points[0][1] > 0):
        return False
    ratio = points[-1][1] / points[0][1]
    if growth.by_parameter:
        ratio /= points[-1][0] / points[0][0]
    return (growth.least is None or ratio >= growth.least) and (growth.most is None or ratio <= growth.most)


def _points(parameter: str, signal: Signal) -> Iterator[tuple[float, float]]:
    """(parameter, value) of each quantity whose name says at which value of the parameter it was measured."""
    for quantity in signal.measured:
        if found := re.search(rf"\b(?:{parameter})=(\d+(?:\.\d+)?)", quantity.name, re.IGNORECASE):
            yield float(found[found.lastindex or 1]), quantity.value


def name(place: Location) -> str:
    """What a place is called, without line numbers and values."""
    match place:
        case CodeLocation():
            return " ".join(filter(None, (place.symbol, place.file)))
        case ParamLocation() | KernelLocation():
            return place.name
        case ThreadLocation():
            return f"{place.process}/{place.name}"
        case ProcessLocation():
            return place.role
        case RegionLocation():
            return f"{place.tensor} {place.region}"
        case InputLocation():
            return " ".join(f"{k}={v}" for k, v in place.condition.items())
        case _:
            return ""


def spot(place: Location) -> str:
    """A place for people: `decode_step (recompile.py:3)`."""
    if isinstance(place, CodeLocation) and place.line is not None:
        return f"{place.symbol} ({place.file}:{place.line})" if place.symbol else f"{place.file}:{place.line}"
    if isinstance(place, CodeLocation) and place.symbol:
        return f"{place.symbol} ({place.file})"
    return name(place)
