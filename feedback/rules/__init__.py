"""Rules, one family a file: each turns observations into signals, and says of itself what it is for.

A rule is a function (observations, criteria) -> list[Signal]. It returns signals, nothing (it looked and all is
well), or an abstention with a reason when it could not look; it never raises on odd data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from feedback.criteria import Criteria
from feedback.observations import Observation
from feedback.signals import Signal

Derive = Callable[[Sequence[Observation], Criteria], list[Signal]]


class Rule(NamedTuple):
    """A rule with what `docs/signals.md` says of it."""

    derive: Derive
    ids: tuple[str, ...]
    """The rule ids of the signals that it makes: family.rule."""
    says: str
    """What such a signal says, in one sentence."""
    needs: str
    """What it is derived from."""

    def __call__(self, observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
        return self.derive(observations, criteria)

    @property
    def family(self) -> str:
        """correctness, parity, performance, utilization, stability or integrity."""
        return self.ids[0].partition(".")[0]


def rule(*ids: str, says: str, needs: str) -> Callable[[Derive], Rule]:
    """Make a function a rule. `ids` are the rule ids of its signals."""

    def made(derive: Derive) -> Rule:
        return Rule(derive, ids, says, needs)

    return made
