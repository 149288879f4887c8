"""Launch parameters of a target: their domains, and what is worth setting together. Data; sets nothing."""

from __future__ import annotations

import re

from pydantic import Field, model_validator

from feedback.observations import Scalar
from infra_agent.fields import Key, LeverFamily, Text
from sandboxes.results import Record

_SIZED = re.compile(r"^cores(?:\s*(?P<sign>[-+*/])\s*(?P<number>\d{1,4}))?$")


class Condition(Record):
    """Values of a knob that need other knobs to be set in certain ways."""

    values: tuple[Scalar, ...]
    """The values that need it."""
    requires: dict[str, tuple[Scalar, ...]]
    """Other knob's name -> values that it must have one of."""


class Knob(Record):
    """One launch parameter with its domain. Absent from the launch file means the engine's own default."""

    name: Text
    description: str
    key: Key
    """Where it stands in the launch file; dots lead into tables."""
    choices: tuple[Scalar, ...] = ()
    minimum: int | None = None
    maximum: int | None = None
    engine_default: Scalar | None = None
    """What the engine does when the knob is absent, for people to read."""
    suggest: tuple[Scalar, ...] = ()
    """Values worth trying first, best guess first; `cores` stands for this machine's CPU count, and
    `cores/2`, `cores-1`, `cores*2` and `cores+1` for what they say."""
    conditions: tuple[Condition, ...] = ()
    family: LeverFamily = "launch parameters"
    """What the knob pulls at."""

    @model_validator(mode="after")
    def _has_a_domain(self) -> Knob:
        if bool(self.choices) == (self.minimum is not None or self.maximum is not None):
            raise ValueError(f"knob {self.name}: give either `choices` or `minimum` and `maximum`")
        if not self.choices and (self.minimum is None or self.maximum is None or self.minimum > self.maximum):
            raise ValueError(f"knob {self.name}: `minimum` and `maximum` must both be given, in order")
        for value in self.suggest:
            if not self.is_sized(value) and (reason := self.refusal(value, {})):
                raise ValueError(f"suggest: {reason}")
        return self

    def is_sized(self, value: Scalar | None) -> bool:
        """Whether `value` depends on the machine: `cores`, `cores/2` and so on, for a whole-number knob."""
        return not self.choices and isinstance(value, str) and _SIZED.match(value) is not None

    def resolve(self, value: Scalar | None, cores: int) -> Scalar | None:
        """`value` on a machine with that many CPUs; a division rounds down, nothing goes below 1."""
        match = _SIZED.match(value) if self.is_sized(value) and isinstance(value, str) else None
        if match is None:
            return value
        number = int(match["number"] or 1)
        sized = {"/": cores // max(number, 1), "*": cores * number, "-": cores - number, "+": cores + number}
        return max(1, sized[match["sign"]] if match["sign"] else cores)

    def refusal(self, value: Scalar | None, others: dict[str, Scalar | None]) -> str | None:
        """Why `value` is not allowed beside the other knobs' values, or None if it is."""
        if value is None:
            return None
        if self.choices:
            if not any(value == c and type(value) is type(c) for c in self.choices):
                return f"{self.name} = {value!r} is not one of {', '.join(map(repr, self.choices))}"
        elif not isinstance(value, int) or isinstance(value, bool):
            return f"{self.name} = {value!r} is not a whole number"
        elif self.minimum is not None and self.maximum is not None and not self.minimum <= value <= self.maximum:
            return f"{self.name} = {value} is outside {self.minimum}..{self.maximum}"
        for condition in self.conditions:
            if value in condition.values:
                for other, allowed in condition.requires.items():
                    if others.get(other) is not None and others[other] not in allowed:
                        return f"{self.name} = {value!r} needs {other} to be one of {allowed}"
        return None


class Control(Record):
    """A configuration that every result is also held against, so that nothing is won over a straw man."""

    name: Text
    description: str
    knobs: dict[str, Scalar] = {}
    """Values of the knobs that this arm sets; every other knob is left to the engine."""


class Move(Record):
    """Knob values worth trying together, because one without the other says little."""

    name: Text
    description: str
    knobs: dict[str, Scalar] = Field(min_length=1)
    """Knob -> value; `cores` and its like as in a knob's `suggest`."""
