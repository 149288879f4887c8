"""What an experiment is judged by: the objective, the guardrails, the error budget and the noise floor."""

from __future__ import annotations

from typing import Literal

from feedback.signals import Direction, Location
from feedback.stats import Rule
from sandboxes.results import Record


class MetricCriterion(Record):
    """One metric and what is asked of it."""

    metric: str
    direction: Direction
    probe: str
    min_effect: float = 0.0
    """For an objective: the smallest gain worth having, as a fraction."""
    max_regression: float = 0.0
    """For a guardrail: the largest loss that is tolerated, as a fraction."""
    side_by_side: bool = True
    """Whether the arms lived side by side; if not, fresh runs followed each other in the order A B B A."""


class Criteria(Record):
    """Everything `derive` needs to know beside the observations."""

    objective: MetricCriterion | None = None
    """None where two things are compared without a goal: then nothing has a role in a verdict."""
    guardrails: tuple[MetricCriterion, ...] = ()
    gates: tuple[str, ...] = ()
    """Names of the probes that a candidate must pass."""
    hidden: tuple[str, ...] = ()
    """Names of further such probes of which nothing is told but whether they passed."""
    alpha: float = 0.05
    looks: tuple[int, ...] = (5, 10, 20)
    floor: float = 0.02
    floor_known: bool = False
    floor_units: int | None = None
    """A/A pairs that are known of this host."""
    changed: tuple[Location, ...]
    """Where the change acts: its knobs and files."""
    stage: str = "screen"
    asked: MetricCriterion | None = None
    """The metric that a hypothesis predicts, and the probe that it named to answer."""
    question: str = ""
    """What an investigation of one arm asks; empty for a comparison."""

    @property
    def judged(self) -> tuple[MetricCriterion, ...]:
        """The metrics that decide: the objective, if there is one, and the guardrails."""
        return (*((self.objective,) if self.objective else ()), *self.guardrails)

    def role_of(self, probe: str) -> Literal["gate", "information"]:
        """Whether what a probe finds decides over the change, or only informs."""
        return "gate" if probe in self.gates else "information"

    def rule(self, criterion: MetricCriterion) -> Rule:
        """The acceptance rule for one metric."""
        return Rule(criterion.direction, self.looks, self.alpha, self.floor, criterion.min_effect)
