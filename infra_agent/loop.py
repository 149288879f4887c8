"""The algorithm: choose a parent, ask the planner, measure, judge, remember, repeat. Reads top to bottom.

Everything is stored before it is acted on, so a run that is killed at any moment resumes without repeating a
finished experiment.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from feedback.digest import digest
from feedback.signals import Signal
from infra_agent import experiment as experiments
from infra_agent import host, policy
from infra_agent.domain import (
    Campaign,
    CampaignState,
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
from infra_agent.experiment import Lab
from infra_agent.journal import Journal
from infra_agent.launch import read_knobs
from infra_agent.planner import Context, Planner, Propose, Stop
from infra_agent.store import ArtefactFiles, Store, new_id

BASELINE_PAIRS = 3
"""A/A pairs at the start: they say whether the machine is quiet. A noise floor takes at least 30."""
BASELINE_SHARE = 0.2
"""Part of the time budget that they may take."""
DIGEST_EXPERIMENTS = 3
BUDGET = "budget"
PLANNER = "planner"


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

    def elapsed_s(self) -> float:
        """Wall time over all runs of the campaign."""
        return self.campaign.elapsed_s + time.monotonic() - self.started_s

    def journal(self) -> Journal:
        """Everything tried so far."""
        with self.store.transaction(read_only=True) as ledger:
            return Journal(experiments=ledger.experiments(self.campaign.id))

    def tell(self, type: str, **data: object) -> None:
        """Append to the campaign's log and to whoever watches."""
        with self.store.transaction() as ledger:
            event = ledger.add_event(self.campaign.id, type, data)
        self.on_event(event)


def run_campaign(desk: Desk) -> tuple[str, str]:
    """Run the campaign to its end; returns who ended it (`budget` or `planner`) and why.

    Raises ModelUnavailable, BaselineFailed, SandboxError and StoreUnavailable; after any of them the campaign
    can be resumed.
    """
    for cut_off in desk.journal().unfinished:
        _conduct(desk, cut_off)
    if not desk.journal().finished:
        _own(
            desk,
            "baseline",
            "the baseline against itself",
            desk.campaign.base_commit,
            desk.campaign.base_commit,
        )
    while True:
        journal = desk.journal()
        if reason := policy.stop_reason(journal, desk.campaign.spec, desk.elapsed_s()):
            ended = BUDGET
            break
        parent = policy.choose_parent(journal, desk.campaign.base_commit)
        action = desk.planner.next_action(_context(desk, journal, parent))
        if isinstance(action, Stop):
            ended, reason = PLANNER, action.reason
            break
        _conduct(desk, _propose(desk, journal, parent, action))
    _conclude(desk)
    return ended, reason


def _context(desk: Desk, journal: Journal, parent: str) -> Context:
    """What the planner is shown."""
    tree = desk.lab.runs.parent / "trees" / parent
    if not tree.exists():
        desk.lab.site.repository.checkout(parent, tree)
    latest = [e for e in journal.finished if e.role == "change"][-DIGEST_EXPERIMENTS:]
    return Context(
        spec=desk.lab.spec,
        journal=journal,
        parent_commit=parent,
        parent_tree=tree,
        knobs=read_knobs(tree, desk.lab.spec),
        cores=len(host.cpus()),
        digest="\n\n".join(f"experiment {e.number}:\n{digest(e.signals, 600)}" for e in latest),
        experiments_left=desk.campaign.spec.budget.experiments - journal.number_of_changes,
        seconds_left=policy.seconds_left(desk.campaign.spec, desk.elapsed_s()),
    )


def _propose(desk: Desk, journal: Journal, parent: str, action: Propose) -> Experiment:
    """Store a proposal as an experiment before anything runs."""
    experiment = Experiment(
        id=new_id("exp"),
        campaign_id=desk.campaign.id,
        number=len(journal.experiments),
        role="change",
        state=State.WAITING,
        proposal=action.proposal,
        parent_commit=parent,
        alpha=policy.error_share(journal, desk.campaign.spec),
    )
    with desk.store.transaction() as ledger:
        ledger.add_experiment(experiment)
    return experiment


def _own(desk: Desk, role: Role, claim: str, baseline: str, candidate: str) -> None:
    """One of the campaign's own measurements, stored like any experiment."""
    experiment = Experiment(
        id=new_id("exp"),
        campaign_id=desk.campaign.id,
        number=len(desk.journal().experiments),
        role=role,
        state=State.WAITING,
        proposal=Proposal(hypothesis=Hypothesis(claim=claim), change=Change()),
        parent_commit=baseline,
        commit=candidate,
    )
    with desk.store.transaction() as ledger:
        ledger.add_experiment(experiment)
    _conduct(desk, experiment)


def _conduct(desk: Desk, experiment: Experiment) -> None:
    """Conduct one experiment and store its outcome with everything it left behind."""
    running = experiment.model_copy(update={"state": State.RUNNING, "started_at": now()})
    with desk.store.transaction() as ledger:
        ledger.update_experiment(running)
    desk.tell(
        "experiment_started",
        experiment=running.id,
        number=running.number,
        role=running.role,
        claim=running.proposal.hypothesis.claim,
        knobs=running.proposal.change.knobs,
    )
    outcome = _measured(desk, running, desk.journal())
    finished = running.model_copy(
        update={
            **{name: getattr(outcome, name) for name in Outcome.model_fields if name in Experiment.model_fields},
            "finished_at": now(),
        }
    )
    kept = [desk.artefacts.keep(desk.lab.runs / running.id, a) for a in outcome.artefacts]
    with desk.store.transaction() as ledger:
        ledger.finish_experiment(finished, outcome.samples, kept)
        ledger.update_campaign(desk.campaign.model_copy(update={"elapsed_s": desk.elapsed_s()}))
        units = experiments.noise_units(desk.lab, outcome, desk.campaign.host_fingerprint)
        if running.role == "baseline" and units is not None:
            ledger.add_noise_units(units)
    desk.tell(
        "experiment_finished",
        experiment=finished.id,
        number=finished.number,
        role=finished.role,
        verdict=outcome.verdict.kind.value,
        reasons=list(outcome.verdict.reasons),
        confirmed=outcome.confirmed,
    )


def _measured(desk: Desk, experiment: Experiment, journal: Journal) -> Outcome:
    """Conduct an experiment by its role, within its part of the time that is left."""
    left = policy.seconds_left(desk.campaign.spec, desk.elapsed_s())
    baseline, candidate = experiment.parent_commit, experiment.commit or experiment.parent_commit
    match experiment.role:
        case "change":
            if (seen := _seen_before(journal, experiment)) is not None:
                return seen
            original = next((e for e in journal.finished if e.role == "baseline"), None)
            lab = desk.lab.with_reference(original)
            return experiments.conduct(_until(lab, left, policy.conclusion_s(journal)), experiment)
        case "baseline":
            lab = _until(desk.lab, left, 0).within(BASELINE_SHARE)
            return experiments.compare(lab, experiment, baseline, candidate, BASELINE_PAIRS)
        case "final" | "control":
            return experiments.compare(_until(desk.lab, left, 0), experiment, baseline, candidate)


def _until(lab: Lab, left_s: float | None, reserve_s: float) -> Lab:
    """The lab with a deadline when `left_s` seconds less a reserve are over."""
    return lab if left_s is None else lab._replace(deadline_s=time.monotonic() + max(0.0, left_s - reserve_s))


def _seen_before(journal: Journal, experiment: Experiment) -> Outcome | None:
    """The refusal of a change that was measured before on the same parent: it costs nothing."""
    before = Journal(experiments=tuple(e for e in journal.finished if e.number < experiment.number))
    seen = before.seen(experiment.proposal.change.fingerprint, experiment.parent_commit)
    return experiments.refused_as_seen(experiment, seen) if seen else None


def _conclude(desk: Desk) -> None:
    """State the result against the original and against every control arm, with fresh processes."""
    journal = desk.journal()
    base, best = desk.campaign.base_commit, journal.best_commit(desk.campaign.base_commit)
    done = {(e.role, e.parent_commit, e.commit) for e in journal.finished}
    own: list[tuple[Role, str, str]] = []
    if len(journal.accepted) > 1:
        own.append(("final", "the result against the original", base))
    own += [("control", name, commit) for name, commit in control_commits(desk.lab, base).items()]
    trees = desk.lab.site.repository
    for role, claim, against in own:
        if trees.tree(against) == trees.tree(best) or (role, against, best) in done:
            continue
        left = policy.seconds_left(desk.campaign.spec, desk.elapsed_s())
        if left is not None and left <= 0:
            desk.tell("skipped", what=claim, reason="the time budget is used up")
            continue
        _own(desk, role, claim, against, best)


def control_commits(lab: Lab, base: str) -> dict[str, str]:
    """The commit of each control arm: the target with that arm's knobs and every other knob unset."""
    commits = {}
    for control in lab.spec.controls:
        knobs = {knob.name: control.knobs.get(knob.name) for knob in lab.spec.knobs}
        proposal = Proposal(hypothesis=Hypothesis(claim=control.name), change=Change(knobs=knobs))
        made = experiments.make_candidate(lab, base, proposal)
        commits[control.name] = base if isinstance(made, Signal) else made.commit
    return commits


def close(campaign: Campaign, state: CampaignState, reason: str, elapsed_s: float) -> Campaign:
    """The campaign's record at its end."""
    return campaign.model_copy(
        update={"state": state, "stop_reason": reason, "finished_at": now(), "elapsed_s": elapsed_s}
    )
