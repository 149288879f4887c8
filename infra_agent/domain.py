"""What a campaign is made of. Frozen models; a change of state is a new record.

States of an experiment follow Optuna: waiting, running, complete, pruned, failed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Literal

from pydantic import Field, field_validator

from feedback.observations import Measurement, Scalar
from feedback.signals import Direction, Effect, Signal
from feedback.verdict import Verdict
from sandboxes.results import Artefact, Record


def now() -> datetime:
    """The current time in UTC."""
    return datetime.now(UTC)


class Prediction(Record):
    """The effect a hypothesis predicts, as a relative change."""

    metric: str
    direction: Literal["up", "down"]
    low: float = 0.0
    """Smallest relative change that would confirm it; 0.1 means 10 %."""
    high: float | None = None


class Hypothesis(Record):
    """A claim with its mechanism, place, question, evidence and predicted effect."""

    claim: str = Field(min_length=1, max_length=2000)
    mechanism: str = ""
    location: str = ""
    """Where it acts: file:symbol, or the knob's name."""
    question: str = ""
    lever_family: str = "launch parameters"
    predicted: Prediction | None = None
    falsifier: str = ""
    evidence: tuple[str, ...] = ()
    """What it rests on: ids of signals, `#3` for an experiment, `path:line` for code."""


class Change(Record):
    """A code patch (unified diff against the parent), knob values, or both. A knob set to None is removed from
    the launch file, which leaves it to the engine's default."""

    patch: str = ""
    knobs: dict[str, Scalar | None] = {}

    @property
    def fingerprint(self) -> str:
        """Identity of the change as proposed."""
        text = json.dumps([self.patch.strip(), sorted(self.knobs.items())], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class Proposal(Record):
    """A hypothesis, the change that tests it and the probe that answers its question. An investigation has no
    change: it runs the probe on the parent."""

    hypothesis: Hypothesis
    change: Change
    probe: str = ""
    """Name of the probe that answers the question; empty means the objective's probe."""
    params: dict[str, tuple[Scalar, ...]] = {}
    """Of an investigation: the values that the probe's parameters take, every combination of them."""
    planner: str = ""
    """Which planner proposed it, where several share a campaign; COMBINATION where the campaign itself did."""


COMBINATION = "combination"
"""Proposes, of two changes accepted beside each other, the one on top of the other."""


class State(StrEnum):
    """State of an experiment."""

    WAITING = "waiting"
    RUNNING = "running"
    COMPLETE = "complete"
    PRUNED = "pruned"
    """Ended early: a cheaper probe had already answered."""
    FAILED = "failed"
    """The platform failed; says nothing about the change."""

    @property
    def is_finished(self) -> bool:
        """Whether the experiment has its outcome and is never run again."""
        return self in (State.COMPLETE, State.PRUNED)


Role = Literal["baseline", "investigation", "change", "final", "control", "layer"]


class Experiment(Record):
    """One change measured against its parent, an investigation of the parent, or one of the campaign's own
    measurements: the baseline against itself, the final result against the original, against a control arm, and
    against itself without one of its layers."""

    id: str
    campaign_id: str
    number: int
    """Order inside the campaign, from 0 (the baseline)."""
    role: Role
    state: State
    proposal: Proposal
    parent_commit: str
    """Commit of the campaign's own repository that the change applies to."""
    against: str | None = None
    """Commit that it is measured against, where that is not the parent: a second-best line must beat the best one."""
    commit: str | None = None
    """Commit with the change applied; None while it does not apply."""
    patch: str = ""
    """Unified diff parent..commit, as git says."""
    alpha: float = 0.05
    """Share of the campaign's error budget that this experiment may spend."""
    verdict: Verdict | None = None
    signals: tuple[Signal, ...] = ()
    effects: tuple[Effect, ...] = ()
    """Confirmed effects if it was confirmed, else those of the screening."""
    confirmed: bool = False
    run_directory: str = ""
    created_at: datetime = Field(default_factory=now)
    started_at: datetime | None = None
    finished_at: datetime | None = None
    sandbox_s: float = 0.0
    """Wall time spent in sandboxed work."""
    lost_s: float = 0.0
    """Wall time of earlier attempts that were killed; counted only where the target needs accelerators."""
    model_s: float = 0.0
    """Wall time that the planner took before this experiment: nearly all of it is its model's."""

    @property
    def is_asked(self) -> bool:
        """Whether a planner asked for it: a change or an investigation, and not the campaign itself."""
        return self.role in ("change", "investigation") and self.proposal.planner != COMBINATION

    @property
    def baseline(self) -> str:
        """The commit that it is measured against."""
        return self.against or self.parent_commit


class Outcome(Record):
    """What conducting an experiment yields, before it is stored."""

    state: State
    commit: str | None
    patch: str
    verdict: Verdict
    signals: tuple[Signal, ...]
    effects: tuple[Effect, ...]
    confirmed: bool
    run_directory: str
    artefacts: tuple[Artefact, ...] = ()
    samples: tuple[Measurement, ...] = ()
    sandbox_s: float = 0.0


class Budget(Record):
    """Hard limits of a campaign."""

    experiments: int = Field(default=20, ge=1, le=10_000)
    minutes: float | None = Field(default=None, gt=0, le=1_000_000)
    tokens: int | None = Field(default=None, ge=1, le=10**12)
    """Of models: prompts and completions together."""
    dollars: float | None = Field(default=None, ge=1e-9, le=1e6, allow_inf_nan=False)
    """For models, by the price table."""
    accelerator_s: float | None = Field(default=None, gt=0, le=1e12, allow_inf_nan=False)
    """Sandboxed time multiplied with the accelerators that the target needs."""


PLANNERS = ("llm", "search", "playbook", "random", "best-of-n", "portfolio", "external")
"""Kinds of planners; `script:FILE`, and `portfolio:KIND,KIND` with a choice of its own, name what they take."""
PORTFOLIO = "portfolio:"
UNSHARED = ("portfolio", "external")
"""Kinds that can't be part of a portfolio."""


def planner_refusal(planner: str) -> str | None:
    """Why this names no planner, or None if it does."""
    members = planner.removeprefix(PORTFOLIO).split(",") if planner.startswith(PORTFOLIO) else []
    shared = [kind for kind in PLANNERS if kind not in UNSHARED]
    for member in members:
        if member not in shared or members.count(member) > 1:
            return f"a portfolio takes some of {', '.join(shared)}, each once; {member!r} is not right in {planner!r}"
    if members or planner in PLANNERS or planner.startswith("script:"):
        return None
    return f"unknown planner {planner!r}; use {', '.join(PLANNERS)}, portfolio:KIND,KIND or script:FILE"


class CampaignSpec(Record):
    """What a user asks for."""

    target: str
    """Path of the target as given, or the name of a shipped target."""
    planner: str = "search"
    """One of PLANNERS, portfolio:KIND,KIND or script:FILE."""
    budget: Budget = Budget()
    seed: int = 0
    parallel: int = Field(default=1, ge=1, le=64)
    """So many changes are proposed before they are measured, at once as far as nothing is timed."""
    error_budget: float = Field(default=0.05, gt=0, lt=1)
    """Probability of any false accept over the whole campaign."""

    @field_validator("planner")
    @classmethod
    def _known(cls, planner: str) -> str:
        if reason := planner_refusal(planner):
            raise ValueError(reason)
        return planner


class CampaignState(StrEnum):
    """State of a campaign."""

    RUNNING = "running"
    WAITING = "waiting"
    """Someone outside plans it, and has not said yet what to do next; nothing runs."""
    COMPLETE = "complete"
    STOPPED = "stopped"
    """A platform, a model or a person ended the run; it can be resumed."""
    FAILED = "failed"
    """The unchanged target fails, so nothing can be measured against it; a resume would find the same commit."""
    INTERRUPTED = "interrupted"
    """Stored as running, but no process runs it; it can be resumed. Found out by its lock and never stored."""


class Campaign(Record):
    """One optimization effort on a target at a commit."""

    id: str
    spec: CampaignSpec
    target_name: str
    target_toml: str
    """The text of target.toml as validated at the start; a resume uses this one."""
    source_commit: str
    """Commit of the user's repository, or the content hash where there is none."""
    base_commit: str
    """First commit of the campaign's own, history-free repository."""
    host_fingerprint: str
    script: tuple[Proposal, ...] = ()
    """The proposals of a `script:` planner as read at the start; a resume uses these."""
    state: CampaignState = CampaignState.RUNNING
    stop_reason: str = ""
    created_at: datetime = Field(default_factory=now)
    finished_at: datetime | None = None
    elapsed_s: float = 0.0
    """Wall time spent over all its runs, resumes included."""


class ModelCall(Record):
    """One request to a model and its answer, journalled before the answer is acted on."""

    campaign_id: str
    request_hash: str
    """SHA-256 of the full request."""
    model: str
    request: str
    """The request as JSON."""
    response: str
    """The response as JSON."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    duration_s: float = 0.0
    created_at: datetime = Field(default_factory=now)


NANODOLLARS = 1_000_000_000
"""In a dollar. Costs are whole nanodollars, rounded up, so that sums are exact and never too small."""


class Reservation(Record):
    """What one request to a model may cost, stored before it goes out; later, what it did cost.

    `prompt_tokens`, `cached_tokens`, `completion_tokens` and `nanodollars` are what counts against the budgets now: the
    estimate from above while it is open, the endpoint's own count once it is settled, nothing once it is released.
    """

    id: int = 0
    """Given by the store."""
    campaign_id: str
    request_hash: str
    """That of the model call, if the answer was recorded; a request that was tried again has several reservations."""
    model: str
    state: Literal["open", "settled", "released"] = "open"
    """Open: it is under way, or its answer was lost. Released: the endpoint never took it, or refused it."""
    reserved_prompt_tokens: int
    reserved_completion_tokens: int
    prompt_tokens: int
    cached_tokens: int = 0
    """Of the prompt, those that the endpoint had cached."""
    completion_tokens: int
    nanodollars: int | None = None
    """None where no price is known."""
    is_estimated: bool = True
    """Whether the tokens are ours: the endpoint has not counted them."""
    created_at: datetime = Field(default_factory=now)


class ModelUse(Record):
    """What the calls of a campaign's models add up to, lost ones and those under way with their reservation."""

    n_calls: int = 0
    """Requests that an endpoint took, or may have taken."""
    n_open: int = 0
    """Of these, those without an answer."""
    n_estimated: int = 0
    """Those whose tokens no endpoint has counted, the open ones included."""
    n_unpriced: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    estimated_tokens: int = 0
    """Prompt and completion tokens of the estimated calls."""
    unpriced_prompt_tokens: int = 0
    unpriced_completion_tokens: int = 0
    nanodollars: int = 0
    """Of the calls that have a price."""

    @property
    def tokens(self) -> int:
        """Prompts and completions together."""
        return self.prompt_tokens + self.completion_tokens

    @property
    def dollars(self) -> float:
        """Of the calls that have a price."""
        return self.nanodollars / NANODOLLARS

    @classmethod
    def total(cls, reservations: Iterable[Reservation]) -> ModelUse:
        """The sum over reservations of any state."""
        counted = [r for r in reservations if r.state != "released"]
        estimated = [r for r in counted if r.is_estimated]
        unpriced = [r for r in counted if r.nanodollars is None]
        return cls(
            n_calls=len(counted), n_open=sum(r.state == "open" for r in counted), n_estimated=len(estimated),
            n_unpriced=len(unpriced),
            prompt_tokens=sum(r.prompt_tokens for r in counted),
            cached_tokens=sum(r.cached_tokens for r in counted),
            completion_tokens=sum(r.completion_tokens for r in counted),
            estimated_tokens=sum(r.prompt_tokens + r.completion_tokens for r in estimated),
            unpriced_prompt_tokens=sum(r.prompt_tokens for r in unpriced),
            unpriced_completion_tokens=sum(r.completion_tokens for r in unpriced),
            nanodollars=sum(r.nanodollars or 0 for r in counted),
        )  # fmt: skip


class NoiseUnits(Record):
    """A/A units of one probe and metric on one host: what no change looks like there."""

    host_fingerprint: str
    target_name: str
    probe: str
    metric: str
    direction: Direction
    units: tuple[float, ...]
    """Pair medians of block log-ratios, baseline against itself."""
    measured_at: datetime = Field(default_factory=now)


class Event(Record):
    """One line of a campaign's log."""

    id: int = 0
    campaign_id: str
    type: str
    data: dict[str, object] = {}
    created_at: datetime = Field(default_factory=now)
