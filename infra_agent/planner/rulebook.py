"""The playbook as data: which signals call for which change, read from `playbook.toml` and checked. Decides nothing."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.resources import files
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from feedback.observations import Scalar
from feedback.signals import Finding, Level
from infra_agent.fields import LeverFamily, Text
from sandboxes.results import Record

BOOK = "playbook.toml"


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
    return pattern


Pattern = Annotated[str, AfterValidator(_compiles)]
"""A regular expression that is searched for, whatever the case."""


Evidence = Literal["knobs", "tests", "outputs", "counts", "times", "load", "events", "trace", "profile"]
"""Knobs in force; outcomes of tests; outputs held against golden ones; instruction counts; times over sizes; a load;
logs and counters of servers and of the host; traces of threads or devices; sampling profiles."""


class Lever(Record):
    """Something that engines name differently: the names that knobs have for it."""

    says: Text
    names: tuple[Pattern, ...] = Field(min_length=1)
    """Each must fit a knob's whole name; `-` counts as `_`, leading dashes don't count."""


class Transform(Record):
    """A mechanical change of source text around a function that a count has found: nothing but text is known."""

    says: Text
    suffixes: tuple[str, ...]
    machines: tuple[str, ...] = ()
    """Of `platform.machine()`; any if empty."""
    before_function: Text
    """Text that is written on a line of its own before the function's definition."""
    unless: Pattern
    """Not where the file has this already."""
    unless_header: Pattern = r"(?!)"
    """Not where this stands before the function's name."""


class Growth(Record):
    """How a quantity differs between the smallest and the largest value of a parameter in one signal."""

    parameter: Pattern
    least: float | None = None
    """Least ratio of the values, of largest to smallest parameter."""
    most: float | None = None
    by_parameter: bool = False
    """Whether the ratio is first divided by that of the parameter: 1 is then growth in proportion."""


class When(Record):
    """What must be there, all of it. With `rule`: a signal of the current parent. With `lever`: a knob's value."""

    rule: Pattern | None = None
    """Fits the whole rule id."""
    finding: tuple[Finding, ...] = ()
    level: tuple[Level, ...] = ()
    message: Pattern | None = None
    unless: Pattern | None = None
    """Not when the message has this."""
    cause: Pattern | None = None
    """In the text of a cause that is more than a weak guess."""
    place: Pattern | None = None
    """In the name of a place: function, thread, parameter, file."""
    subject: Pattern | None = None
    quantity: Pattern | None = None
    """Name of a measured quantity with `least` or `most`."""
    least: float | None = None
    most: float | None = None
    share: float | None = None
    """Least share of all measured quantities that those of that name have together."""
    growth: Growth | None = None
    lever: str | None = None
    """A knob of this lever is declared ..."""
    above: Scalar | None = None
    """... and in force above this: a number, `cores` or `streams`;"""
    below: Scalar | None = None
    among: tuple[Scalar, ...] = ()
    """... or in force with one of these values."""

    @model_validator(mode="after")
    def _is_something(self) -> When:
        if self.rule is None and self.lever is None:
            raise ValueError("give a `rule` or a `lever`")
        if self.lever is not None and self.above is None and self.below is None and not self.among:
            raise ValueError("a `lever` needs `above`, `below` or `among`")
        return self


class Move(Record):
    """A knob of a lever, and where it goes."""

    lever: str
    how: Literal["set", "double", "halve", "suggested", "next"]
    """`set` to the first of `to` that the knob may have; `suggested`: the target's own next suggestion; `next`: the
    nearest of `to` that stands after the value in force, in that order."""
    to: tuple[Scalar, ...] = ()
    """Values; `cores` and `streams` are sized for machine and load, `measured:NAME` and `expected:NAME` are
    quantities of the signal."""
    only: Literal["up", "down"] | None = None
    """Not where the number would go the other way."""
    optional: bool = False
    """Left out where the target has no such knob, if another move of the step can be made."""

    @model_validator(mode="after")
    def _has_values(self) -> Move:
        if (self.how in ("set", "next")) != bool(self.to):
            raise ValueError("`to` belongs to `set` and `next`, and they need it")
        return self


class Ask(Record):
    """A measurement of the parent that would tell more: a probe of a method, its parameters over some sizes."""

    method: Literal["callgrind", "slices", "load", "outputs", "reports"]
    """`reports` is a command that leaves files of known formats and runs only when it is asked."""
    question: Text
    parameter: Pattern | None = None
    """The first parameter of that name takes `factors` times its value; the probe is not asked without one."""
    factors: tuple[float, ...] = ()


class Step(Record):
    """One thing to do; the steps of a rule are tried in order, each once. Exactly one of these is given."""

    moves: tuple[Move, ...] = ()
    ask: Ask | None = None
    transform: str = ""
    code: str = ""
    """What a person or another planner should change, and where; {message}, {places} and {hot} are filled in."""

    @model_validator(mode="after")
    def _is_one(self) -> Step:
        if sum(map(bool, (self.moves, self.ask, self.transform, self.code))) != 1:
            raise ValueError("a step is one of `moves`, `ask`, `transform` and `code`")
        return self


class Rule(Record):
    """What an expert concludes from a signal, and does."""

    id: Text
    tier: int
    """Lower tiers first: correctness, machine, KV cache, ..., precision."""
    why: Text
    reference: Text
    """Where this is known from."""
    family: LeverFamily
    expect: tuple[float, float] | None = None
    """Predicted relative gain, from and to; None where only code would help."""
    predicts: Literal["objective", "instructions"] = "objective"
    """What gets better by that. Instructions are counted before anything is timed, where the target has such a probe:
    a prediction that they refute spares the rest."""
    falsifier: str = ""
    needs: tuple[Evidence, ...] = Field(min_length=1)
    """Any of these must have been looked at for it to fire."""
    when: tuple[When, ...] = Field(min_length=1)
    """Any of these."""
    do: tuple[Step, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _predicts(self) -> Rule:
        predicts = self.expect is not None and 0 <= self.expect[0] <= self.expect[1] and self.falsifier.strip()
        if any(step.moves or step.transform for step in self.do) and not predicts:
            raise ValueError(f"rule {self.id}: a change needs `expect` (from, to) and a `falsifier`")
        return self


class Playbook(Record):
    """All of it."""

    levers: dict[str, Lever]
    transforms: dict[str, Transform] = {}
    collect: tuple[Ask, ...]
    """What is asked where nothing is known yet."""
    rules: tuple[Rule, ...]

    @model_validator(mode="after")
    def _hangs_together(self) -> Playbook:
        ids = [rule.id for rule in self.rules]
        if len(set(ids)) != len(ids):
            raise ValueError("two rules have one id")
        for rule in self.rules:
            named = {m.lever for step in rule.do for m in step.moves} | {w.lever for w in rule.when if w.lever}
            if unknown := named - self.levers.keys():
                raise ValueError(f"rule {rule.id}: no lever {', '.join(sorted(unknown))}")
            if any(step.transform and step.transform not in self.transforms for step in rule.do):
                raise ValueError(f"rule {rule.id}: no such transform")
        return self


def parse(text: str) -> Playbook:
    """A playbook from TOML. Raises ValueError (of TOML or of pydantic) saying what is wrong."""
    return Playbook.model_validate(tomllib.loads(text))


@cache
def shipped() -> Playbook:
    """The playbook of this package."""
    return parse((files("infra_agent.planner") / BOOK).read_text(encoding="utf-8"))
