"""Where experiments are conducted: stored before they run, and with everything that they left behind after.

So a run that is killed at any moment resumes without repeating a finished one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import NamedTuple

from infra_agent import experiment as experiments, lessons, policy
from infra_agent.budgets import with_running_time
from infra_agent.domain import (
    Campaign,
    Change,
    Event,
    Experiment,
    Hypothesis,
    Outcome,
    Proposal,
    Role,
    State,
    now,
)
from infra_agent.journal import Journal
from infra_agent.lab import Lab
from infra_agent.lessons import Lesson
from infra_agent.noise import noise_units
from infra_agent.planner import Planner
from infra_agent.pulse import beating, pulse_file
from infra_agent.store import ArtefactFiles, Store, new_id

BASELINE_PAIRS = 3
"""A/A pairs at the start: they say whether the machine is quiet. A noise floor takes at least 30."""
BASELINE_SHARE = 0.2
"""Part of the time budget that they may take."""


class Desk(NamedTuple):
    """What running a campaign needs: the campaign's memory, its planner, its lab, and who wants to know."""

    campaign: Campaign
    store: Store
    artefacts: ArtefactFiles
    planner: Planner
    lab: Lab
    on_event: Callable[[Event], None]
    started_s: float
    """time.monotonic() at the start of this run."""
    lessons: tuple[Lesson, ...] = ()
    """What the campaign was told of when it began."""

    def elapsed_s(self) -> float:
        """Wall time over all runs of the campaign."""
        return self.campaign.elapsed_s + time.monotonic() - self.started_s

    def journal(self) -> Journal:
        """Everything tried so far, as stored."""
        with self.store.transaction(read_only=True) as ledger:
            return Journal(experiments=ledger.experiments(self.campaign.id))

    def tell(self, type: str, **data: object) -> None:
        """Append to the campaign's log and to whoever watches."""
        with self.store.transaction() as ledger:
            event = ledger.add_event(self.campaign.id, type, data)
        self.on_event(event)

    def stop_reason(self, journal: Journal) -> str | None:
        """Why no further change may begin: a budget that is used up; None while there is room."""
        return policy.stop_reason(journal, self.campaign.spec, self.elapsed_s(), self.lab.spec.accelerators)

    def measuring_s(self, journal: Journal, concludes: bool = True) -> float | None:
        """Seconds that the next measurement may take, or None without a limit; without what the conclusion needs
        unless it `concludes`."""
        spec, accelerators = self.campaign.spec, self.lab.spec.accelerators
        return policy.measuring_s(journal, spec, self.elapsed_s(), accelerators, concludes)

    def is_out_of_accelerators(self, journal: Journal) -> bool:
        """Whether nothing is left of the budget of accelerator-seconds."""
        return policy.is_out_of_accelerators(journal, self.campaign.spec, self.lab.spec.accelerators)


def with_lost_time(desk: Desk, journal: Journal) -> Journal:
    """The journal with what killed attempts took of accelerators, as far as that was not counted yet."""
    counted = with_running_time(journal, desk.lab.runs)
    for cut_off in counted.unfinished:
        if cut_off not in journal.experiments:
            with desk.store.transaction() as ledger:
                ledger.update_experiment(cut_off)
            pulse_file(desk.lab.runs, cut_off.id).unlink()
    return counted


def measure(desk: Desk, journal: Journal, role: Role, claim: str, baseline: str, candidate: str) -> Journal:
    """Conduct one of the campaign's own measurements, stored like any experiment; returns the journal with it."""
    experiment = Experiment(
        id=new_id("exp"),
        campaign_id=desk.campaign.id,
        number=len(journal.experiments),
        role=role,
        state=State.WAITING,
        proposal=Proposal(hypothesis=Hypothesis(claim=claim), change=Change()),
        parent_commit=baseline,
        commit=candidate,
    )
    return conduct(desk, journal, experiment)


def keep_waiting(desk: Desk, journal: Journal, experiment: Experiment) -> Journal:
    """Store a change that is conducted together with others later; returns the journal with it."""
    with desk.store.transaction() as ledger:
        ledger.add_experiment(experiment)
        event = ledger.add_event(desk.campaign.id, "experiment_waiting", _beginning(experiment))
        stored = ledger.experiment(experiment.id)
    desk.on_event(event)
    return journal.updated(stored)


def conduct(desk: Desk, journal: Journal, experiment: Experiment) -> Journal:
    """Conduct one experiment, new, waiting or cut off, and store its outcome with everything it left behind; returns
    the journal with it. One transaction before anything runs and one after: nothing is acted on before it is stored.
    Raises Halted if it was ended from outside; then nothing is stored."""
    running = experiment.model_copy(update={"state": State.RUNNING, "started_at": now()})
    with desk.store.transaction() as ledger:
        if experiment in journal.experiments:
            ledger.update_experiment(running)
        else:
            ledger.add_experiment(running)
        event = ledger.add_event(desk.campaign.id, "experiment_started", _beginning(running))
    desk.on_event(event)
    pulse = pulse_file(desk.lab.runs, running.id)
    with beating(pulse) if desk.lab.spec.accelerators else nullcontext():
        outcome = _measured(desk, running, journal.updated(running))
    desk.lab.site.halt.check()
    finished = running.model_copy(
        update={
            **{name: getattr(outcome, name) for name in Outcome.model_fields if name in Experiment.model_fields},
            "finished_at": now(),
        }
    )
    kept = [desk.artefacts.keep(desk.lab.runs / running.id, a) for a in outcome.artefacts]
    is_baseline = running.role == "baseline"
    units = noise_units(desk.lab, outcome, desk.campaign.host_fingerprint) if is_baseline else None
    lesson = lessons.learned(new_id("les"), desk.campaign, desk.lab.spec, finished, journal)
    with desk.store.transaction() as ledger:
        ledger.finish_experiment(finished, outcome.samples, kept)
        ledger.update_campaign(desk.campaign.model_copy(update={"elapsed_s": desk.elapsed_s()}))
        if units is not None:
            ledger.add_noise_units(units)
        if lesson is not None:
            ledger.add_lesson(lesson)
        event = ledger.add_event(desk.campaign.id, "experiment_finished", _ending(finished, outcome))
        # As a resume will read it: the planner must be shown the same then, to find the answers that it paid for.
        stored = ledger.experiment(finished.id)
    pulse.unlink(missing_ok=True)
    desk.on_event(event)
    return journal.updated(stored)


def _beginning(experiment: Experiment) -> dict[str, object]:
    proposal = experiment.proposal
    return {
        "experiment": experiment.id, "number": experiment.number, "role": experiment.role,
        "claim": proposal.hypothesis.claim, "knobs": proposal.change.knobs,
    }  # fmt: skip


def _ending(experiment: Experiment, outcome: Outcome) -> dict[str, object]:
    return {
        "experiment": experiment.id, "number": experiment.number, "role": experiment.role,
        "verdict": outcome.verdict.kind.value, "reasons": list(outcome.verdict.reasons),
        "confirmed": outcome.confirmed,
    }  # fmt: skip


def _measured(desk: Desk, experiment: Experiment, journal: Journal) -> Outcome:
    """Conduct an experiment by its role, within its part of the time that is left."""
    left, before_conclusion = desk.measuring_s(journal), desk.measuring_s(journal, concludes=False)
    baseline, candidate = experiment.parent_commit, experiment.commit or experiment.parent_commit
    match experiment.role:
        case "change":
            if (seen := _seen_before(journal, experiment)) is not None:
                return seen
            original = next((e for e in journal.finished if e.role == "baseline"), None)
            lab = desk.lab.with_reference(original)
            return experiments.conduct(_until(lab, before_conclusion), experiment)
        case "investigation":
            return experiments.investigate(_until(desk.lab, before_conclusion), experiment)
        case "baseline":
            lab = _until(desk.lab, left).within(BASELINE_SHARE)
            return experiments.compare(lab, experiment, baseline, candidate, BASELINE_PAIRS)
        case "final" | "control" | "layer":
            return experiments.compare(_until(desk.lab, left), experiment, baseline, candidate)


def _until(lab: Lab, left_s: float | None) -> Lab:
    """The lab with a deadline when `left_s` seconds are over."""
    return lab if left_s is None else lab._replace(deadline_s=time.monotonic() + left_s)


def _seen_before(journal: Journal, experiment: Experiment) -> Outcome | None:
    """The refusal of a change that an earlier experiment measures on the same parent: it costs nothing."""
    before = Journal(experiments=tuple(e for e in journal.experiments if e.number < experiment.number))
    seen = before.seen(experiment.proposal.change.fingerprint, experiment.parent_commit)
    return experiments.refused_as_seen(experiment, seen) if seen else None
