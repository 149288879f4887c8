"""How much of the measured differences each knob explains, from the journal alone.

Two answers. What single steps of a knob measured: the spread between its best and its worst value, everything else
alike, as far as it leaves the noise floor. And PED-ANOVA (Optuna's evaluator that needs no scikit-learn) over all
assignments: how unlike the values of the best quarter are to those of all, once there are enough of them.
"""

from __future__ import annotations

from typing import NamedTuple

from infra_agent.planner.response import Response, steps_of
from infra_agent.planner.sampler import axis, ped_anova
from infra_agent.planner.trials import Gain, Trials
from infra_agent.target import Knob, TargetSpec

ENOUGH_TRIALS = 20
"""Measured assignments that PED-ANOVA needs: a quarter of them are 5, the least that its authors advise."""
TOP = 0.25


class Importance(NamedTuple):
    """What a knob explains."""

    name: str
    n_steps: int
    """Measured changes of this knob alone."""
    n_trials: int
    """Measured changes that it is part of."""
    best: Gain | None
    """The largest gain that a step of this knob alone showed."""
    worst: Gain | None
    """The largest loss."""
    spread: float
    """Log-ratio between its best and its worst value; 0 while no step left the noise floor."""
    share: float | None
    """Its part of the squared spreads of all knobs; None while no knob has one."""
    is_noise: bool
    """Steps were measured, and none left the noise floor."""
    ped_anova: float | None
    """Its part of what PED-ANOVA explains; None with fewer than ENOUGH_TRIALS measured assignments."""


def importance(spec: TargetSpec, trials: Trials, worth: float) -> tuple[Importance, ...]:
    """Every knob of the target, the one with the largest share first. `worth`: the smallest gain worth having, as
    a log-ratio."""
    found = [_single(knob, trials, worth) for knob in spec.knobs]
    whole = sum(i.spread**2 for i in found)
    anova = _ped_anova(spec, trials)
    found = [
        i._replace(share=i.spread**2 / whole if whole else None, ped_anova=anova.get(i.name) if anova else None)
        for i in found
    ]
    return tuple(sorted(found, key=lambda i: (-(i.share or 0.0), -(i.ped_anova or 0.0), -i.n_trials)))


def n_placed(trials: Trials) -> int:
    """Measured assignments, each counted once."""
    return len({trials.identity(t.knobs) for t in trials.all if t.level is not None})


def _single(knob: Knob, trials: Trials, worth: float) -> Importance:
    steps = steps_of(knob, trials)
    response = Response(knob, trials.effective(knob.name, trials.here.knobs.get(knob.name)), steps, worth)
    reached = list(response.gains.values())
    effects = [step.gain for step in steps]
    return Importance(
        name=knob.name,
        n_steps=len(steps),
        n_trials=sum(knob.name in t.changed for t in trials.all if t.gain is not None),
        best=max((g for g in effects if g.estimate > 0), key=lambda g: g.estimate, default=None),
        worst=min((g for g in effects if g.estimate < 0), key=lambda g: g.estimate, default=None),
        spread=0.0 if response.is_noise or not steps else max(reached) - min(reached),
        share=None,
        is_noise=response.is_noise,
        ped_anova=None,
    )


def _ped_anova(spec: TargetSpec, trials: Trials) -> dict[str, float]:
    if n_placed(trials) < ENOUGH_TRIALS:
        return {}
    axes = [axis(knob, trials, trials.here.knobs.get(knob.name)) for knob in spec.knobs]
    return ped_anova(axes, trials, TOP)
