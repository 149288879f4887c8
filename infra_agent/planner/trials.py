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

    @property
    def broke_a_rule(self) -> bool:
        """Whether it was rejected although it is a clear gain: a gate or guardrail was broken."""
        return self.verdict is VerdictKind.REJECT and self.gain is not None and self.gain.low > 0


class Trials:
    """The journal's changes of knobs in order, without those that the platform failed on."""

    def __init__(self, context: Context) -> None:
        self._spec = context.spec
        self._knobs = {knob.name: knob for knob in context.spec.knobs}
        self._cores = context.cores
        at = _assignments(context)
        changes = [e for e in context.journal.experiments if _is_knob_change(e)]
        trials = [(e.state, self._trial(e, at, context.parent_commit)) for e in changes]
        self.all: tuple[Trial, ...] = tuple(trial for state, trial in trials if state is not State.FAILED)
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
        """The values that each accepted change moved away from."""
        return [self.items(trial.before) for trial in self.all if trial.verdict is VerdictKind.ACCEPT]

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

    def _trial(self, experiment: Experiment, at: dict[str, Knobs], current: str) -> Trial:
        changed = {n: v for n, v in experiment.proposal.change.knobs.items() if n in self._knobs}
        parent = at.get(experiment.parent_commit, dict.fromkeys(self._knobs, UNKNOWN))
        return Trial(
            changed=changed,
            before={name: parent.get(name) for name in changed},
            knobs={**parent, **changed},
            verdict=_verdict(experiment),
            gain=_gain(experiment, self._spec),
            items=self.items(changed),
            is_current=experiment.commit == current,
        )


def _verdict(experiment: Experiment) -> VerdictKind | None:
    """An acceptance that was not confirmed leaves the question open."""
    kind = experiment.verdict.kind if experiment.verdict else None
    return VerdictKind.INCONCLUSIVE if kind is VerdictKind.ACCEPT and not experiment.confirmed else kind


def _is_knob_change(experiment: Experiment) -> bool:
    change = experiment.proposal.change
    return experiment.role == "change" and bool(change.knobs) and not change.patch


def _assignments(context: Context) -> dict[str, Knobs]:
    """All knobs' values at every commit that hangs together with the current parent."""
    at: dict[str, Knobs] = {context.parent_commit: dict(context.knobs)}
    changes = [e for e in context.journal.experiments if e.role == "change" and e.state is not State.FAILED]
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


def _gain(experiment: Experiment, spec: TargetSpec) -> Gain | None:
    effect = next((e for e in experiment.effects if e.metric == spec.objective.metric), None)
    if effect is None or not _is_usable(effect):
        return None
    ratio, low, high = (math.log(r) for r in (effect.ratio, effect.ratio_lo, effect.ratio_hi))
    return Gain(ratio, low, high) if effect.direction == "maximize" else Gain(-ratio, -high, -low)


def _is_usable(effect: Effect) -> bool:
    return all(math.isfinite(r) and r > 0 for r in (effect.ratio, effect.ratio_lo, effect.ratio_hi))
