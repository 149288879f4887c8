"""Which measurements of the parent an investigation asks for: a probe with chosen values of its parameters.

Reads only the target; runs nothing. The same check serves whoever proposes and the experiment that carries it out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import product
from typing import NamedTuple

from feedback.observations import Scalar
from infra_agent.target import (
    CommandProbe,
    EventsProbe,
    LoadProbe,
    LogprobsProbe,
    OutputsProbe,
    Probe,
    SlicesProbe,
    TargetSpec,
)

MAX_INVESTIGATIONS = 6
"""In one step. They cost time, but none of the error budget: nothing is accepted by them."""
MAX_POINTS = 8
MAX_STREAMS = 64
MAX_OUTPUT_TOKENS = 512
MAX_NUMBER = 1 << 24
"""Of a worker's own parameters: a mistyped size must not fill the memory."""

_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,+-]{0,63}")
"""What may be put into a command: one plain word, which no shell and no program takes for anything else."""

Params = Mapping[str, Sequence[Scalar]]


class InvestigationRefused(Exception):
    """An investigation that can't be made; the message says why and what can be asked."""


class Point(NamedTuple):
    """One measurement: the probe with its parameters set, and what was set."""

    probe: Probe
    case: dict[str, Scalar]


def parameters(probe: Probe) -> dict[str, Scalar | None]:
    """The parameters of a probe that may be chosen, with their values now (None where it depends on the case)."""
    match probe:
        case SlicesProbe() | CommandProbe():
            return dict(probe.params)
        case LoadProbe():
            return {"streams": probe.streams, "output_tokens": probe.output_tokens}
        case OutputsProbe():
            return dict.fromkeys(dict.fromkeys(name for case in probe.cases for name in case))
        case _:
            return {}


def points(spec: TargetSpec, name: str, params: Params) -> list[Point]:
    """Every combination of the parameters' values, at most MAX_POINTS. Raises InvestigationRefused."""
    probe = _askable(spec, name)
    known = parameters(probe)
    for parameter, values in params.items():
        if parameter not in known:
            there = ", ".join(known) or "none"
            raise InvestigationRefused(f"probe {name} has no parameter {parameter!r}; it has: {there}")
        if not values:
            raise InvestigationRefused(f"give {parameter} at least one value")
        for value in values:
            _fit(name, parameter, value, known[parameter])
            if isinstance(probe, CommandProbe) and isinstance(value, str) and not _WORD.fullmatch(value):
                raise InvestigationRefused(f"{parameter} of probe {name} goes into a command: give one plain word")
    combined = [dict(zip(params, values, strict=True)) for values in product(*params.values())]
    if len(combined) > MAX_POINTS:
        raise InvestigationRefused(
            f"these are {len(combined)} measurements; at most {MAX_POINTS} at once: give fewer values"
        )
    return [_point(probe, chosen) for chosen in combined]


def _askable(spec: TargetSpec, name: str) -> Probe:
    askable = {p.name: p for p in spec.shown_probes if not isinstance(p, EventsProbe | LogprobsProbe)}
    if name not in askable:
        raise InvestigationRefused(f"no probe {name!r} can be run on the parent; there are: {', '.join(askable)}")
    return askable[name]


def _fit(probe: str, name: str, value: Scalar, now: Scalar | None) -> None:
    limits = {"streams": MAX_STREAMS, "output_tokens": MAX_OUTPUT_TOKENS}
    number = isinstance(value, int | float) and not isinstance(value, bool)
    wanted = isinstance(now, int | float) and not isinstance(now, bool)
    if now is not None and (number != wanted or (not number and type(value) is not type(now))):
        raise InvestigationRefused(f"{name} of probe {probe} is {now!r}; {value!r} is of another kind")
    if number and not 0 < float(value) <= limits.get(name, MAX_NUMBER):
        raise InvestigationRefused(f"{name} must lie above 0 and not above {limits.get(name, MAX_NUMBER)}")
    if isinstance(now, int) and not isinstance(now, bool) and not isinstance(value, int):
        raise InvestigationRefused(f"{name} must be a whole number")


def _point(probe: Probe, chosen: dict[str, Scalar]) -> Point:
    match probe:
        case SlicesProbe() | CommandProbe():
            params = {**probe.params, **chosen}
            return Point(probe.model_copy(update={"params": params}), params)
        case LoadProbe():
            shape = {"streams": probe.streams, "output_tokens": probe.output_tokens, **chosen}
            return Point(probe.model_copy(update=shape), shape)
        case OutputsProbe() if chosen:
            like = next((case for case in probe.cases if set(chosen) <= set(case)), probe.cases[0])
            case = {**like, **chosen}
            return Point(probe.model_copy(update={"cases": (case,)}), case)
        case _:
            return Point(probe, {})
