"""What a recording is made from: all that a campaign stored."""

from __future__ import annotations

from typing import NamedTuple

from infra_agent.domain import Campaign, Event, Experiment, ModelCall
from infra_agent.journal import Journal
from infra_agent.report import Report


class Session(NamedTuple):
    """A campaign with everything that was said in it."""

    campaign: Campaign
    journal: Journal
    report: Report
    events: tuple[Event, ...]
    calls: tuple[ModelCall, ...]
    """Of a model, if one planned."""

    @property
    def proposed(self) -> tuple[Experiment, ...]:
        """What its planner asked for, in order: changes and investigations, whatever came of them."""
        return tuple(e for e in self.journal.experiments if e.is_asked)


def patch_name(experiment: Experiment) -> str:
    """The file that holds an experiment's patch."""
    return f"{experiment.number:02d}.patch"
