"""Stacks of accepted changes: one that was accepted beside the result on top of it, and the result taken apart, without
one of its layers. Both are measured like anything else; nothing is added up."""

from __future__ import annotations

from collections.abc import Sequence

from feedback.signals import Signal
from infra_agent.domain import COMBINATION, Change, Experiment, Hypothesis, Prediction, Proposal
from infra_agent.experiment import make_candidate
from infra_agent.lab import Lab

MAX_LAYERS = 8
"""Each one costs a whole measurement."""


def _whole(lab: Lab, experiment: Experiment) -> Proposal:
    """A change as it was measured: one of a second-best line brings with it what it was built on."""
    if experiment.against is None or experiment.commit is None:
        return experiment.proposal
    patch = lab.site.repository.diff(experiment.against, experiment.commit)
    return experiment.proposal.model_copy(update={"change": Change(patch=patch)})


def without(lab: Lab, base: str, accepted: Sequence[Experiment], left_out: Experiment) -> str | None:
    """The commit with every accepted change but one, made again in their order; None where a later change needs the
    one that is left out."""
    commit = base
    for experiment in accepted:
        if experiment.number == left_out.number:
            continue
        made = make_candidate(lab, commit, _whole(lab, experiment))
        if isinstance(made, Signal):
            return None
        commit = made.commit
    return commit


def on_top(lab: Lab, stack: Sequence[Experiment], beside: Experiment) -> Proposal | None:
    """What adds a change that was accepted beside the result to it; None where both set one knob, or where it does not
    apply to the result's code."""
    top, objective = stack[-1], lab.spec.objective
    proposal = _whole(lab, beside)
    taken = {name for layer in stack for name in layer.proposal.change.knobs}
    if top.commit is None or taken & set(proposal.change.knobs):
        return None
    if isinstance(make_candidate(lab, top.commit, proposal), Signal):
        return None
    direction = "up" if objective.direction == "maximize" else "down"
    hypothesis = Hypothesis(
        claim=f"What #{beside.number} gained beside #{top.number} it gains on top of it, too",
        mechanism=proposal.hypothesis.mechanism,
        location=proposal.hypothesis.location,
        question=f"Does {objective.metric} go {direction} once more when #{beside.number} joins #{top.number}?",
        lever_family=proposal.hypothesis.lever_family,
        predicted=Prediction(metric=objective.metric, direction=direction, low=objective.min_effect),
        falsifier="Both act on the same cost, so that together they gain no more than one of them.",
        evidence=(f"#{beside.number}", f"#{top.number}"),
    )
    return Proposal(hypothesis=hypothesis, change=proposal.change, planner=COMBINATION)
