"""From a playbook's moves to values of the target's knobs: which knob is meant, what is in force, where it goes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import product

from feedback.observations import Scalar
from feedback.signals import Signal
from infra_agent.planner import Context
from infra_agent.planner.rulebook import Move, Playbook, When
from infra_agent.planner.symptoms import Fact
from infra_agent.planner.trials import Knobs, Trials
from infra_agent.target import Knob, LoadProbe


class Dials:
    """The knobs of the target as the playbook knows them."""

    def __init__(self, context: Context, book: Playbook, trials: Trials) -> None:
        self._context = context
        self._book = book
        self._trials = trials
        self.cores = context.cores
        objective = context.spec.probe(context.spec.objective.probe)
        self.streams = objective.streams if isinstance(objective, LoadProbe) else None
        """Requests that the objective's load keeps going at once; None where there is no such load."""

    def knobs(self, lever: str) -> list[Knob]:
        """The knobs that have one of the lever's names."""
        patterns = self._book.levers[lever].names
        return [k for k in self._context.spec.knobs if any(re.fullmatch(p, _plain(k.name)) for p in patterns)]

    def in_force(self, knob: Knob) -> Scalar | None:
        """The value that the engine takes, as far as the target tells its default."""
        return self._trials.effective(knob.name, self._context.knobs.get(knob.name))

    def fact(self, when: When) -> Fact | None:
        """A knob in force that a pattern speaks of; None where there is none, or its value is not known."""
        for knob in self.knobs(when.lever) if when.lever else ():
            value = self.in_force(knob)
            if any(_same(value, v) for v in when.among):
                return Fact(knob.name, value, None)
            above, below = self._number(when.above), self._number(when.below)
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            if above is not None and value > above:
                return Fact(knob.name, value, above)
            if below is not None and value < below:
                return Fact(knob.name, value, below)
        return None

    def changes(self, moves: tuple[Move, ...], signal: Signal | None) -> Iterator[Knobs]:
        """The changes that these moves mean here, first choice first. A lever that several knobs have is moved with
        each in turn, alone, if it is the only move. None where a knob that is needed is missing."""
        options: list[list[tuple[str, Scalar]]] = []
        for move in moves:
            found = [(knob.name, v) for knob in self.knobs(move.lever) for v in self._values(knob, move, signal)]
            if len(moves) > 1:
                found = found[:1]
            if found:
                options.append(found)
            elif not move.optional and not (self.knobs(move.lever) and len(moves) > 1):
                return
        for chosen in product(*options) if options else ():
            yield dict(chosen)

    def missing(self, moves: tuple[Move, ...]) -> list[str]:
        """Levers of the moves that the target has no knob for, unless they are optional."""
        return [move.lever for move in moves if not move.optional and not self.knobs(move.lever)]

    def _values(self, knob: Knob, move: Move, signal: Signal | None) -> Iterator[Scalar]:
        now = self.in_force(knob)
        wanted: list[Scalar | None]
        match move.how:
            case "double" | "halve":
                wanted = self._scaled(knob, now, 2.0 if move.how == "double" else 0.5)
            case "suggested":
                wanted = [self._trials.effective(knob.name, v) for v in knob.suggest]
            case "set":
                sized = [self._sized(knob, v, signal) for v in move.to]
                wanted = [*[v for v in sized if v is not None and knob.refusal(v, {}) is None][:1]]
            case "next":
                wanted = [*move.to]
                here = next((n for n, v in enumerate(wanted) if _same(v, now)), None)
                wanted = [] if here is None else wanted[here + 1 :]
        for value in wanted:
            if value is None or self._trials.same(knob.name, value, now) or knob.refusal(value, {}) is not None:
                continue
            if move.only is None or _goes(move.only, now, value):
                yield value

    def _scaled(self, knob: Knob, now: Scalar | None, factor: float) -> list[Scalar | None]:
        if isinstance(now, bool) or not isinstance(now, int | float):
            return []
        if knob.choices:
            numbers = [c for c in knob.choices if isinstance(c, int | float) and not isinstance(c, bool)]
            further = [c for c in numbers if (c > now if factor > 1 else c < now)]
            return [min(further) if factor > 1 else max(further)] if further else []
        return [_within(knob, now * factor)]

    def _sized(self, knob: Knob, value: Scalar, signal: Signal | None) -> Scalar | None:
        """A value of a move on this machine, under this load and by this signal."""
        if isinstance(value, str) and (value in ("cores", "streams") or ":" in value):
            kind, _, name = value.partition(":")
            number = self._number(value) if not name else _quantity(signal, kind, name)
            return None if number is None or knob.choices else _within(knob, number)
        return value

    def _number(self, limit: Scalar | None) -> float | None:
        if limit == "cores":
            return self.cores
        if limit == "streams":
            return self.streams
        return limit if isinstance(limit, int | float) and not isinstance(limit, bool) else None


def _quantity(signal: Signal | None, kind: str, name: str) -> float | None:
    if signal is None or kind not in ("measured", "expected"):
        return None
    quantities = signal.measured if kind == "measured" else signal.expected
    return next((q.value for q in quantities if q.name == name and math.isfinite(q.value)), None)


def _goes(way: str, now: Scalar | None, value: Scalar) -> bool:
    """Whether a number moves this way; what is no number, or not known, may move."""
    if isinstance(now, int | float) and isinstance(value, int | float):
        return value > now if way == "up" else value < now
    return True


def _within(knob: Knob, number: float) -> int:
    least, most = knob.minimum or 0, knob.maximum if knob.maximum is not None else round(number)
    return max(least, min(most, math.floor(number)))


def _same(a: Scalar | None, b: Scalar | None) -> bool:
    return type(a) is type(b) and a == b


def _plain(name: str) -> str:
    return name.lower().lstrip("-").replace("-", "_").replace(".", "_")
