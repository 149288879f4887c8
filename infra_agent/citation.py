"""What a signal is called in a campaign: `#3/af6f474eec03`, its experiment's number and its fingerprint.

A fingerprint alone is the same wherever the same is said again, such as the gain of every change. So a planner is
always shown the whole id; a fingerprint, or its beginning, is understood where it can mean one signal only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from feedback.explanation import find
from feedback.ranking import rank
from feedback.signals import Signal
from infra_agent.domain import Experiment

HIDDEN = "correctness.hidden_probe"
"""The rule of which planners are told nothing but the outcome."""
MAX_NAMED = 6
"""Candidates that are named for an id that may mean several signals."""
_WHOLE = re.compile(r"#(\d{1,6})/(.*)", re.DOTALL)


class Cited(NamedTuple):
    """A signal with the experiment that it is of."""

    experiment: Experiment
    signal: Signal

    @property
    def id(self) -> str:
        """`#3/af6f474eec03`."""
        return f"{prefix(self.experiment)}{self.signal.fingerprint}"

    def __str__(self) -> str:
        return f"{self.id} ({self.signal.rule_id} of {_what(self.experiment)})"


def prefix(experiment: Experiment) -> str:
    """What stands before the fingerprints of an experiment's signals."""
    return f"#{experiment.number}/"


def bare(given: str) -> str:
    """An id without the brackets and spaces that it may be cited with."""
    return given.strip().strip("[]").strip()


def cited(experiments: Iterable[Experiment], given: str) -> tuple[Cited, ...]:
    """The signals of these experiments that an id may mean, the latest ones first: of `#3/af6f` those of that
    experiment, of `af6f` those of all. In the place of a fingerprint, or its beginning, a rule's name will do."""
    whole = _WHOLE.fullmatch(given := bare(given))
    wanted = whole[2] if whole else given
    found: dict[str, Cited] = {}
    for experiment in _latest_first(experiments):
        if whole is None or experiment.number == int(whole[1]):
            for signal in find(experiment.signals, wanted):
                one = Cited(experiment, signal)
                found.setdefault(one.id, one)
    return tuple(found.values())


def signals(experiments: Iterable[Experiment]) -> Iterator[Cited]:
    """What is worth citing, the latest experiments' first and of each the most useful first."""
    for experiment in _latest_first(experiments):
        yield from (Cited(experiment, s) for s in rank(experiment.signals) if s.rule_id != HIDDEN)


def ambiguity(given: str, found: tuple[Cited, ...]) -> str:
    """What is said of an id that may mean several signals."""
    named = ", ".join(map(str, found[:MAX_NAMED]))
    more = f" and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
    return f"{bare(given)[:80]} may mean {len(found)} signals, say which: {named}{more}"


def _latest_first(experiments: Iterable[Experiment]) -> list[Experiment]:
    return sorted(experiments, key=lambda e: -e.number)


def _what(experiment: Experiment) -> str:
    return "a change" if experiment.role == "change" else f"the {experiment.role}"
