"""What a campaign learned of each knob. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from feedback.signals import Direction
from infra_agent.gains import as_improvement
from infra_agent.journal import Journal
from infra_agent.planner.importance import ENOUGH_TRIALS, Importance, importance, n_placed
from infra_agent.planner.trials import Gain, Here, Trials
from infra_agent.report.facts import KnobEffect, KnobEffects
from infra_agent.target import TargetSpec


def knob_effects(spec: TargetSpec, journal: Journal, here: Here, cores: int) -> KnobEffects | None:
    """Which knob explained how much, by single steps if any left the noise floor, else by PED-ANOVA if there are
    enough assignments: in simulated campaigns of `search` the former ranks knobs better, and `random` has no steps."""
    if not spec.knobs:
        return None
    trials = Trials(spec, journal, here, cores)
    found = importance(spec, trials, math.log1p(spec.objective.min_effect))
    if not any(i.n_trials for i in found):
        return None
    by_steps = any(i.share is not None for i in found)
    by_anova = not by_steps and any(i.ped_anova is not None for i in found)
    direction = spec.objective.direction
    return KnobEffects(
        method="single steps" if by_steps else "PED-ANOVA" if by_anova else "",
        n_trials=n_placed(trials),
        caveat=_caveat(found, n_placed(trials), by_steps, by_anova),
        knobs=tuple(_effect(i, i.share if by_steps else i.ped_anova, direction) for i in found),
    )


def _effect(found: Importance, share: float | None, direction: Direction) -> KnobEffect:
    return KnobEffect(
        name=found.name, share=share, n_steps=found.n_steps, n_trials=found.n_trials,
        best=_gain(found.best, direction), worst=_gain(found.worst, direction), is_noise=found.is_noise,
    )  # fmt: skip


def _gain(gain: Gain | None, direction: Direction) -> tuple[float, float, float] | None:
    if gain is None:
        return None
    estimate, low, high = (as_improvement(x, direction) for x in gain)
    return estimate, low, high


def _caveat(found: Sequence[Importance], n_trials: int, by_steps: bool, by_anova: bool) -> str:
    if by_steps:
        alone = [i.name for i in found if not i.n_steps and i.n_trials]
        never = [i.name for i in found if not i.n_trials]
        said = "Shares are of the squared spreads between each knob's best and worst value, everything else alike"
        said += (
            f", from {sum(i.n_steps for i in found)} steps of one knob each; what knobs do only together is not in it."
        )
        said += f" Changed only together with others, so without a share: {', '.join(alone)}." if alone else ""
        return said + (f" Never measured: {', '.join(never)}." if never else "")
    if by_anova:
        return (
            f"No knob was stepped alone, so this is PED-ANOVA over {n_trials} assignments: how unlike a knob's values "
            "are in the best quarter to those in all. It ranks knobs roughly, and says nothing of size."
        )
    return (
        f"Too little was measured to say which knob matters: no step of a single knob left the noise floor, and "
        f"of the {ENOUGH_TRIALS} measured assignments that a comparison of all of them needs there are {n_trials}."
    )
