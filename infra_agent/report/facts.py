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
    planner: str = ""
    """Who proposed it, where several share the campaign."""
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


class PlannerShare(Record):
    """What one planner of a campaign spent, and what came of it."""

    planner: str
    n_experiments: int
    """Changes that it proposed."""
    n_investigations: int
    n_accepted: int
    sandbox_s: float
    model_s: float
    """Wall time that it took to plan."""
    tokens: int
    """Of models: prompts and completions together."""
    gain: float
    """By how much its changes raised the best confirmed result, on the scale of the gains, one after the other."""


class KnobEffect(Record):
    """What the campaign learned of one knob."""

    name: str
    share: float | None
    """Its part of the differences that the knobs explain, by the method of KnobEffects; None where it says nothing."""
    n_steps: int
    """Measured changes of this knob alone."""
    n_trials: int
    """Measured changes that it is part of."""
    best: tuple[float, float, float] | None
    """The largest gain of a step of this knob alone, with its interval's ends, as a relative gain."""
    worst: tuple[float, float, float] | None
    """The largest loss."""
    is_noise: bool
    """Steps of this knob alone were measured, and none left the noise floor."""


class KnobEffects(Record):
    """Which knob explained how much of the measured differences."""

    method: Literal["single steps", "PED-ANOVA", ""]
    """`single steps`: squared spreads between a knob's best and worst value with everything else alike. `PED-ANOVA`:
    Optuna's, over assignments of all knobs. Empty: nothing can be said yet."""
    n_trials: int
    """Assignments that were measured."""
    caveat: str
    knobs: tuple[KnobEffect, ...]


class Use(Record):
    """What a campaign has used of its budgets so far; the limits stand in `budget`."""

    experiments: int
    elapsed_s: float
    model_calls: int
    """Requests that an endpoint took, or may have taken."""
    unanswered_calls: int
    """Of these, those whose answer was lost or is under way: they count with what was reserved for them."""
    estimated_calls: int
    """Those whose tokens no endpoint has counted, the unanswered ones included."""
    tokens: int
    """Prompts and completions."""
    prompt_tokens: int
    cached_tokens: int
    """Of the prompts."""
    completion_tokens: int
    estimated_tokens: int
    """Of all tokens, those that are our estimate, from above."""
    dollars: float | None
    """Of the calls whose price is known; None if there are calls and none has a price."""
    unpriced_calls: int
    accelerators: int
    """That the target needs."""
    accelerator_s: float
    """Sandboxed time multiplied with them, attempts that were killed included."""


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
    shares: tuple[PlannerShare, ...]
    """Of each planner, where several share the campaign; else of the one."""
    knob_effects: KnobEffects | None
    """None where no change of knobs was measured."""
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
    use: Use
    n_changes: int
    n_accepted: int
    n_in_result: int
    """Accepted changes that the result is made of; fewer where some were made beside each other."""
    created_at: datetime
    elapsed_s: float
    sandbox_s: float
    patch: str
    next: tuple[str, ...]
    """Commands to type next, the most useful first, each with a comment that says what it does."""
