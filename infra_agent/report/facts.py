"""The records of a report. `infra-agent run --json` and `show --json` print a Report."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from feedback.observations import Scalar
from feedback.signals import Direction, Effect
from infra_agent.domain import Budget, CampaignState
from infra_agent.forecast import Forecast
from sandboxes.results import Record


class Held(Record):
    """What was found of a guardrail or gate."""

    role: Literal["guardrail", "gate"]
    finding: str
    message: str
    effect: Effect | None = None
    max_regression: float | None = None
    """Largest tolerated loss of a guardrail, as a fraction, on the scale of the effect's losses."""


class Comparison(Record):
    """The result held against the original or a control arm."""

    against: str
    kind: Literal["original", "control"]
    description: str = ""
    is_identical: bool = False
    """The result and this arm are the same configuration, so there was nothing to measure."""
    finding: str = ""
    """better, worse, same or inconclusive; empty when it was not measured."""
    effect: Effect | None = None
    experiment: int | None = None
    confirmed: bool = False
    """Measured by a first accept and a confirmation with fresh processes and seeds."""
    broken: tuple[Held, ...] = ()
    """Guardrails that are violated or undecided against this arm; none means that all hold."""
    reason: str = ""


class Layer(Record):
    """One accepted change of several, and what the result would lose without it."""

    number: int
    change: str
    finding: str = ""
    """better, worse, same or inconclusive; empty when it was not measured."""
    effect: Effect | None = None
    """The whole result against the result without this change."""


class KnobChange(Record):
    """A knob that the result sets differently than the original."""

    name: str
    was: Scalar | None
    """None: left to the engine."""
    now: Scalar | None
    engine_default: Scalar | None
    """What the engine does when it is left to it, as the target declares."""


class Tried(Record):
    """One change of the campaign and what came of it."""

    number: int
    change: str
    claim: str
    outcome: str
    """accept, reject, inconclusive, invalid, or the state of an unfinished one."""
    confirmed: bool
    effect: Effect | None
    """On the objective, against the parent; None when it was not measured."""
    reason: str
    sandbox_s: float
    forecast: Forecast | None = None
    """None where the hypothesis predicted nothing."""
    work: tuple[str, ...] = ()
    """What was counted of the work itself, which no other load disturbs: instructions executed, before and after."""


class Noise(Record):
    """How quiet this host is for the objective. Fractions are gains, on the scale of every other gain here."""

    floor: float
    """What the latest of the campaign's gains had to clear, as it was then."""
    is_measured: bool
    """Whether that floor was measured on this host or is the probe's default margin."""
    n_units: int | None
    """A/A pairs that were known of this host then; None where that was not kept."""
    earlier_floors: tuple[float, ...] = ()
    """Other floors that earlier numbers of the campaign were held against."""
    n_units_today: int = 0
    """A/A pairs known today."""
    floor_today: float | None = None
    """The floor that those make; None while they are too few."""
    minimum_detectable_effect: float | None = None
    """Smallest true gain that a first measurement calls better with 90 % probability, by what is known today."""
    is_biased: bool = False
    """Identical arms differ on this host, by what is known today; a floor measured here is raised by it."""


class Report(Record):
    """A campaign's result, finished or not."""

    campaign: str
    target: str
    directory: str
    planner: str
    state: CampaignState
    ended_by: Literal["budget", "planner"] | None
    """None while it is not complete."""
    stop_reason: str
    headline: str
    metric: str
    direction: Direction
    comparisons: tuple[Comparison, ...]
    layers: tuple[Layer, ...] = ()
    """Of a result of several changes: each one's share, found by leaving it out."""
    knobs: tuple[KnobChange, ...]
    files: tuple[str, ...]
    tried: tuple[Tried, ...]
    held: tuple[Held, ...]
    warnings: tuple[str, ...]
    baseline: Effect | None
    """The baseline against itself."""
    noise: Noise
    min_effect: float
    """Smallest gain that the target calls worth having, on the scale of the gains."""
    confidence: tuple[float, float] | None
    """Lowest and highest two-sided confidence of the intervals above."""
    method: str
    """How those intervals are made; empty without any."""
    error_budget: float
    error_spent: float
    budget: Budget
    n_changes: int
    n_accepted: int
    created_at: datetime
    elapsed_s: float
    sandbox_s: float
    patch: str
    next: tuple[str, ...]
    """Commands to type next, the most useful first, each with a comment that says what it does."""
