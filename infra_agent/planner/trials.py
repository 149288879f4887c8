"""What the journal says about knob values: which assignments were measured, and what came of them.

Assignments are compared as the engine sees them: an absent knob equals one set to the engine's default.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import NamedTuple

from feedback.observations import Scalar
from feedback.signals import Effect, ParamLocation
from feedback.verdict import VerdictKind
from infra_agent.domain import Experiment, State
from infra_agent.journal import Journal
from infra_agent.planner import Context
from infra_agent.target import TargetSpec

Knobs = dict[str, Scalar | None]
Seen = tuple[str, Scalar | None]
Identity = tuple[Seen, ...]
UNKNOWN = "(value not recorded)"
"""Stands for a former value that no signal of the accepted change names; equals no value of any domain."""
FAILURES_ALLOWED = 2
"""After the platform failed this often on an assignment, it counts as measured."""


class Gain(NamedTuple):
    """An effect on the objective as a log-ratio in the wanted direction, with its interval."""

    estimate: float
    low: float
    high: float


class Trial(NamedTuple):
    """One change of knobs and what came of it."""

    changed: Knobs
    """What was set, and to what."""
    before: Knobs
    """The same knobs' values in the parent."""
    knobs: Knobs
    """All knobs' values in the candidate."""
    verdict: VerdictKind | None
    gain: Gain | None
    """Effect on the objective; None if it was not measured."""
    items: frozenset[tuple[str, Seen]]
    """The change as the engine sees it."""
    is_current: bool
    """Whether its result is what the next change applies to."""
    level: float | None
    """Its result's estimated log-gain over the commit that the next change applies to; None if it was not measured,
    or against a parent that no measurement ties to that commit."""
    is_within_noise: bool
    """Whether the estimated effect is smaller than the noise floor that it was held against."""
    broken: frozenset[str]
    """`gate`, `guardrail`: what was found violated."""
    mechanism: str
    """Why it was proposed, as its hypothesis says."""

    @property
    def broke_a_rule(self) -> bool:
        """Whether a gate or guardrail was found violated, or a clear gain was rejected."""
        is_fast = self.verdict is VerdictKind.REJECT and self.gain is not None and self.gain.low > 0
        return is_fast or bool(self.broken) or self.verdict is VerdictKind.INVALID


class Trials:
    """The journal's changes of knobs in order, without those that the platform failed on."""

    def __init__(self, spec: TargetSpec, journal: Journal, here: Here, cores: int) -> None:
        self._spec = spec
        self._knobs = {knob.name: knob for knob in spec.knobs}
        self._cores = cores
        self.here = here
        changes = [e for e in journal.experiments if _is_knob_change(e)]
        at = _assignments(journal, here)
        levels = _levels(journal, here.commit, spec)
        trials = [(e.state, self._trial(e, at, levels, here.commit)) for e in changes]
        self.all: tuple[Trial, ...] = tuple(trial for state, trial in trials if state is not State.FAILED)
        mine = {e.number for e in journal.stack}
        self._accepted = tuple(t for e, (_, t) in zip(changes, trials, strict=True) if e.number in mine)
        self._measured = {self.identity(knobs) for knobs in (*at.values(), *(t.knobs for t in self.all))}
        failures = Counter(self.identity(trial.knobs) for state, trial in trials if state is State.FAILED)
        self._measured |= {identity for identity, n in failures.items() if n >= FAILURES_ALLOWED}

    def is_measured(self, knobs: Knobs) -> bool:
        """Whether this assignment of all knobs, or one the engine can't tell from it, was measured."""
        return self.identity(knobs) in self._measured

    def of(self, changed: Knobs) -> list[Trial]:
        """The trials of exactly this change, whatever their parent."""
        wanted = self.items(changed)
        return [trial for trial in self.all if trial.items == wanted]

    def promising(self, least: float) -> list[tuple[float, Trial]]:
        """Undecided trials with an estimated gain of at least `least`, the largest first; without those that
        were measured together with others since."""
        found = []
        for i, trial in enumerate(self.all):
            together = any(trial.items < later.items for later in self.all[i + 1 :])
            is_undecided = trial.verdict is VerdictKind.INCONCLUSIVE and not together
            if is_undecided and trial.gain is not None and trial.gain.estimate >= least:
                found.append((trial.gain.estimate, trial))
        return sorted(found, key=lambda pair: -pair[0])

    def left_behind(self) -> list[frozenset[tuple[str, Seen]]]:
        """The values that each accepted change on the way to the parent moved away from."""
        return [self.items(trial.before) for trial in self._accepted]

    def same(self, name: str, a: Scalar | None, b: Scalar | None) -> bool:
        """Whether two values of a knob are one to the engine."""
        return self._seen(name, a) == self._seen(name, b)

    def effective(self, name: str, value: Scalar | None) -> Scalar | None:
        """The value that is in force when a knob is set so: sized for this machine, and the engine's default,
        where the target tells it, for an absent one."""
        knob = self._knobs[name]
        return knob.resolve(knob.engine_default if value is None else value, self._cores)

    def identity(self, knobs: Knobs) -> Identity:
        """What the engine sees of an assignment."""
        return tuple(self._seen(name, knobs.get(name)) for name in self._knobs)

    def items(self, changed: Knobs) -> frozenset[tuple[str, Seen]]:
        """What the engine sees of a change."""
        return frozenset((name, self._seen(name, value)) for name, value in changed.items())

    def _seen(self, name: str, value: Scalar | None) -> Seen:
        """With its type: 1 and true are different values."""
        effective = self.effective(name, value)
        return (type(effective).__name__, effective)

    def _trial(self, experiment: Experiment, at: dict[str, Knobs], levels: dict[str, float], current: str) -> Trial:
        unknown: Knobs = dict.fromkeys(self._knobs, UNKNOWN)
        changed = {n: v for n, v in experiment.proposal.change.knobs.items() if n in self._knobs}
        knobs = {**at.get(experiment.parent_commit, unknown), **changed}
        against = at.get(experiment.baseline, unknown)
        if experiment.against:  # then the effect is that of everything that tells the two apart
            changed = {n: v for n, v in knobs.items() if not self.same(n, v, against.get(n))}
        gain, level = _gain(experiment, self._spec), levels.get(experiment.baseline)
        effect = _effect(experiment, self._spec)
        broken = {s.role for s in experiment.signals if s.role in ("gate", "guardrail") and s.finding == "violates"}
        return Trial(
            changed=changed,
            before={name: against.get(name) for name in changed},
            knobs=knobs,
            verdict=_verdict(experiment),
            gain=gain,
            items=self.items(changed),
            is_current=experiment.commit == current,
            level=None if gain is None or level is None else level + gain.estimate,
            is_within_noise=gain is not None and effect is not None and abs(gain.estimate) <= math.log1p(effect.floor),
            broken=frozenset(broken),
            mechanism=experiment.proposal.hypothesis.mechanism,
        )


class Here(NamedTuple):
    """Where the next change applies."""

    commit: str
    knobs: Knobs
    """All knobs' values there."""


def read_trials(context: Context) -> Trials:
    """The trials that a planner is shown."""
    return Trials(context.spec, context.journal, Here(context.parent_commit, dict(context.knobs)), context.cores)


def _verdict(experiment: Experiment) -> VerdictKind | None:
    """An acceptance that was not confirmed leaves the question open."""
    kind = experiment.verdict.kind if experiment.verdict else None
    return VerdictKind.INCONCLUSIVE if kind is VerdictKind.ACCEPT and not experiment.confirmed else kind


def _is_knob_change(experiment: Experiment) -> bool:
    change = experiment.proposal.change
    return experiment.role == "change" and bool(change.knobs) and not change.patch


def _assignments(journal: Journal, here: Here) -> dict[str, Knobs]:
    """All knobs' values at every commit that hangs together with the current parent."""
    at: dict[str, Knobs] = {here.commit: dict(here.knobs)}
    changes = [e for e in journal.experiments if e.role == "change" and e.state is not State.FAILED]
    edges = [(e, e.commit) for e in changes if e.commit]
    grown = True
    while grown:
        grown = False
        for edge, commit in edges:
            if edge.parent_commit in at and commit not in at:
                at[commit] = {**at[edge.parent_commit], **edge.proposal.change.knobs}
                grown = True
            elif commit in at and edge.parent_commit not in at:
                at[edge.parent_commit] = {**at[commit], **_before(edge)}
                grown = True
    return at


def _before(experiment: Experiment) -> Knobs:
    """What the changed knobs were in the parent, from the places that the experiment's signals name."""
    places = [p for s in experiment.signals for p in s.locations if isinstance(p, ParamLocation)]
    was: Knobs = {place.name: place.was for place in places}
    return {name: was.get(name, UNKNOWN) for name in experiment.proposal.change.knobs}


def _levels(journal: Journal, current: str, spec: TargetSpec) -> dict[str, float]:
    """The estimated log-gain over the current parent of every commit that measurements tie to it, as far as it is
    one of knobs: a change of code counts nothing, and one of both ties nothing."""
    found = [(e, e.commit, _gain(e, spec)) for e in journal.experiments if e.role == "change"]
    edges = [
        (e.baseline, commit, 0.0 if e.proposal.change.patch else gain.estimate)
        for e, commit, gain in found
        if commit and gain and not (e.proposal.change.patch and e.proposal.change.knobs)
    ]
    levels = {current: 0.0}
    grown = True
    while grown:
        grown = False
        for parent, commit, gain in edges:
            if parent in levels and commit not in levels:
                levels[commit] = levels[parent] + gain
                grown = True
            elif commit in levels and parent not in levels:
                levels[parent] = levels[commit] - gain
                grown = True
    return levels


def _gain(experiment: Experiment, spec: TargetSpec) -> Gain | None:
    effect = _effect(experiment, spec)
    if effect is None:
        return None
    ratio, low, high = (math.log(r) for r in (effect.ratio, effect.ratio_lo, effect.ratio_hi))
    return Gain(ratio, low, high) if effect.direction == "maximize" else Gain(-ratio, -high, -low)


def _effect(experiment: Experiment, spec: TargetSpec) -> Effect | None:
    """On the objective, if it was measured and is a number that can be used."""
    effect = next((e for e in experiment.effects if e.metric == spec.objective.metric), None)
    return effect if effect is not None and _is_usable(effect) else None


def _is_usable(effect: Effect) -> bool:
    return all(math.isfinite(r) and r > 0 for r in (effect.ratio, effect.ratio_lo, effect.ratio_hi))
