"""A control arm: uniform random allowed assignments of the knobs, each from the original's values, never twice.

What a planner gains over this at an equal budget is what its choices are worth.
"""

from __future__ import annotations

import random

from feedback.observations import Scalar
from infra_agent.domain import Change, Hypothesis, Prediction, Proposal
from infra_agent.knobs import Knob
from infra_agent.planner import Action, Context, Propose, Stop
from infra_agent.planner.response import scaled
from infra_agent.planner.trials import Knobs, Trials, read_trials

DRAWS = 10_000
"""Assignments drawn in one step before the space counts as used up."""


class RandomPlanner:
    """Draws from one stream that the campaign's seed fixes: the n-th assignment doesn't depend on any result."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed

    def next_action(self, context: Context) -> Action:
        """The first assignment of the stream that is allowed and was not measured."""
        original = context.at_original()
        spec, trials = original.spec, read_trials(original)
        if not spec.knobs:
            return Stop(reason="the target declares no knobs to draw; use --planner llm or script:FILE")
        stream = random.Random(self._seed)
        for _ in range(DRAWS):
            knobs = {knob.name: drawn(knob, original.knobs.get(knob.name), stream) for knob in spec.knobs}
            changed = _difference(knobs, original.knobs, trials)
            if changed and spec.refusal({**original.knobs, **changed}) is None and not trials.is_measured(knobs):
                return Propose(proposal=_proposal(changed, original), parent=original.parent_commit)
        return Stop(reason=f"{DRAWS} random assignments held none that is allowed and was not measured")


def drawn(knob: Knob, original: Scalar | None, stream: random.Random) -> Scalar | None:
    """A value of the knob's domain: each choice alike, a whole number evenly on a logarithmic scale. The original's
    value is as likely as any choice, or one in eight among whole numbers."""
    if knob.choices:
        return stream.choice(knob.choices)
    if stream.random() < 1 / 8:
        return original
    low, high = knob.minimum or 0, knob.maximum or 0
    return scaled(stream.uniform(0, 1), low, high)


def _difference(knobs: Knobs, original: Knobs, trials: Trials) -> Knobs:
    return {name: value for name, value in knobs.items() if not trials.same(name, value, original.get(name))}


def _proposal(changed: Knobs, context: Context) -> Proposal:
    objective = context.spec.objective
    direction = "up" if objective.direction == "maximize" else "down"
    return Proposal(
        hypothesis=Hypothesis(
            claim=f"A random assignment is better than the original: {', '.join(changed)}",
            mechanism="None: drawn at random, as a control arm.",
            location=", ".join(changed),
            question=f"Does {objective.metric} go {direction} by at least {objective.min_effect:.1%}?",
            predicted=Prediction(metric=objective.metric, direction=direction, low=objective.min_effect),
            falsifier=f"The whole interval of the gain in {objective.metric} lies below {objective.min_effect:.1%}.",
        ),
        change=Change(knobs=changed),
    )
