"""A stack of accepted changes taken apart: the result without one of its layers, to be measured against the whole."""

from __future__ import annotations

from collections.abc import Sequence

from feedback.signals import Signal
from infra_agent.domain import Change, Experiment, Proposal
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
