"""The algorithm: choose a parent, ask the planner, measure, judge, remember, repeat. Reads top to bottom.

Everything is stored before it is acted on, so a run that is killed at any moment resumes without repeating a
finished experiment.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

from feedback.digest import digest
from feedback.ranking import rank
from feedback.signals import Signal
from infra_agent import experiment as experiments, host, lessons, policy
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
from infra_agent.investigation import MAX_INVESTIGATIONS
from infra_agent.journal import Journal
from infra_agent.lab import Lab
from infra_agent.launch import read_knobs
from infra_agent.layers import MAX_LAYERS, without
from infra_agent.lessons import Lesson
from infra_agent.noise import noise_units
from infra_agent.planner import BudgetSpent, Context, Investigate, Planner, Propose, Stop, Waiting
from infra_agent.pulse import beating, pulse_file
from infra_agent.store import ArtefactFiles, Store, new_id
from sandboxes.workspace import WorkspaceError

BASELINE_PAIRS = 3
"""A/A pairs at the start: they say whether the machine is quiet. A noise floor takes at least 30."""
BASELINE_SHARE = 0.2
"""Part of the time budget that they may take."""
DIGEST_EXPERIMENTS = 3
BUDGET = "budget"
PLANNER = "planner"
WAITING = "waiting"


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


class Ended(NamedTuple):
    """Why no further step is taken."""

    by: str
    """`budget`, `planner`, or `waiting` for one that is asked outside and has not answered: the campaign goes on."""
    reason: str


def run_campaign(desk: Desk) -> Ended:
    """Run the campaign to its end, or until it waits for a planner outside; returns who ended it and why.

    Raises ModelUnavailable, BaselineFailed, SandboxError and StoreUnavailable. After any of them the campaign can be
    resumed, unless its very first baseline failed.
    """
    spec, base, accelerators = desk.campaign.spec, desk.campaign.base_commit, desk.lab.spec.accelerators
    journal = _with_lost_time(desk, desk.journal())
    if journal.unfinished and policy.is_out_of_accelerators(journal, spec, accelerators):
        return Ended(BUDGET, policy.stop_reason(journal, spec, desk.elapsed_s(), accelerators) or "")
    for cut_off in journal.unfinished:
        journal = _conduct(desk, journal, cut_off)
    if not journal.finished:
        journal = _own(desk, journal, "baseline", "the baseline against itself", base, base)
    while not isinstance(went := step(desk, journal), Ended):
        journal = went
    if went.by != WAITING:
        _conclude(desk, journal)
    return went


def _with_lost_time(desk: Desk, journal: Journal) -> Journal:
    """The journal with what killed attempts took of accelerators, as far as that was not counted yet."""
    counted = with_running_time(journal, desk.lab.runs)
    for cut_off in counted.unfinished:
        if cut_off not in journal.experiments:
            with desk.store.transaction() as ledger:
                ledger.update_experiment(cut_off)
            pulse_file(desk.lab.runs, cut_off.id).unlink()
    return counted


def step(desk: Desk, journal: Journal) -> Journal | Ended:
    """One turn of the loop: choose a parent, ask the planner, carry out what it asks for; the journal with the
    outcome, or why there is none."""
    spec, accelerators = desk.campaign.spec, desk.lab.spec.accelerators
    if reason := policy.stop_reason(journal, spec, desk.elapsed_s(), accelerators):
        return Ended(BUDGET, reason)
    asked_s = time.monotonic()
    try:
        action = desk.planner.next_action(context(desk, journal))
    except BudgetSpent as spent:
        ended = f"the budget of {policy.minutes(spec)} ended while the planner was at work"
        return Ended(BUDGET, str(spent) or ended)
    except Waiting as waiting:
        return Ended(WAITING, str(waiting))
    if isinstance(action, Stop):
        return Ended(PLANNER, action.reason)
    # A model may think for minutes.
    if reason := policy.stop_reason(journal, spec, desk.elapsed_s(), accelerators):
        return Ended(BUDGET, reason)
    thought_s = time.monotonic() - asked_s
    parent, best = _parent(desk, journal), journal.best_commit(desk.campaign.base_commit)
    return _conduct(desk, journal, _next(desk, journal, parent, best, action, thought_s))


def _parent(desk: Desk, journal: Journal) -> str:
    """The commit that the next change builds on."""
    base = desk.campaign.base_commit
    second = policy.second_best(journal, base, desk.campaign.spec.planner)
    return (second.commit if second else None) or policy.choose_parent(journal, base)


def _line(desk: Desk, journal: Journal) -> str:
    """What a planner is told of a second-best line; empty on the best one."""
    second = policy.second_best(journal, desk.campaign.base_commit, desk.campaign.spec.planner)
    if second is None:
        return ""
    gain = journal.improvement(second)
    return (
        f"This step builds on #{second.number}, a second-best line: undecided, about {gain:+.1%}. "
        "What you propose is measured together with it, against the best result."
    )


def context(desk: Desk, journal: Journal) -> Context:
    """What the planner is shown."""
    base, parent = desk.campaign.base_commit, _parent(desk, journal)
    tree, base_tree = _tree(desk, parent), _tree(desk, base)
    latest = [e for e in journal.finished if e.role == "change"][-DIGEST_EXPERIMENTS:]
    here = lessons.here(desk.lab.spec, desk.campaign.host_fingerprint)
    signals = [s for e in journal.before_step().finished for s in e.signals]  # so that a step is told one thing
    learned = lessons.recall(desk.lessons, here, signals)
    return Context(
        spec=desk.lab.spec,
        journal=journal,
        parent_commit=parent,
        parent_tree=tree,
        knobs=read_knobs(tree, desk.lab.spec),
        runs=desk.lab.runs,
        source=Path(desk.campaign.spec.target),
        source_commit=desk.campaign.source_commit,
        investigations_left=max(0, MAX_INVESTIGATIONS - len(journal.step_investigations)),
        cores=len(host.cpus()),
        digest="\n\n".join(f"experiment {e.number}:\n{digest(rank(e.signals), 600)}" for e in latest),
        experiments_left=desk.campaign.spec.budget.experiments - journal.number_of_changes,
        seconds_left=policy.planning_s(journal, desk.campaign.spec, desk.elapsed_s()),
        line=_line(desk, journal),
        base_commit=base,
        base_tree=base_tree,
        base_knobs=read_knobs(base_tree, desk.lab.spec),
        learned=learned,
        lessons=lessons.render(learned),
    )


def _tree(desk: Desk, commit: str) -> Path:
    """A checkout of a commit, to be read only."""
    tree = desk.lab.runs.parent / "trees" / commit
    if not tree.exists():
        try:
            desk.lab.site.repository.checkout(commit, tree)
        except WorkspaceError:
            if not tree.exists():  # else someone who only reads was as fast
                raise
    return tree


def _next(
    desk: Desk, journal: Journal, parent: str, best: str, action: Propose | Investigate, thought_s: float
) -> Experiment:
    """What a planner asked for, as the next experiment. Investigations accept nothing, so they risk nothing."""
    if isinstance(action, Propose):
        role: Role = "change"
        proposal, alpha = action.proposal, policy.error_share(journal, desk.campaign.spec)
    else:
        role, alpha = "investigation", 0.0
        asked = Hypothesis(claim=action.question, question=action.question)
        proposal = Proposal(
            hypothesis=asked, change=Change(), probe=action.probe, params=action.params, planner=action.planner
        )
    return Experiment(
        id=new_id("exp"),
        campaign_id=desk.campaign.id,
        number=len(journal.experiments),
        role=role,
        state=State.WAITING,
        proposal=proposal,
        parent_commit=action.parent or parent,
        # Where a planner chose the parent itself, as a control arm does, it is what the change is measured against.
        against=best if role == "change" and best != parent and not action.parent else None,
        alpha=alpha,
        model_s=thought_s,
    )


def _own(desk: Desk, journal: Journal, role: Role, claim: str, baseline: str, candidate: str) -> Journal:
    """Conduct one of the campaign's own measurements, stored like any experiment."""
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
    return _conduct(desk, journal, experiment)


def _conduct(desk: Desk, journal: Journal, experiment: Experiment) -> Journal:
    """Conduct one experiment, new or cut off, and store its outcome with everything it left behind; returns the
    journal with it. One transaction before anything runs and one after: nothing is acted on before it is stored."""
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
    spec, accelerators = desk.campaign.spec, desk.lab.spec.accelerators
    left = policy.measuring_s(journal, spec, desk.elapsed_s(), accelerators)
    before_conclusion = policy.measuring_s(journal, spec, desk.elapsed_s(), accelerators, concludes=False)
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
    """The refusal of a change that was measured before on the same parent: it costs nothing."""
    before = Journal(experiments=tuple(e for e in journal.finished if e.number < experiment.number))
    seen = before.seen(experiment.proposal.change.fingerprint, experiment.parent_commit)
    return experiments.refused_as_seen(experiment, seen) if seen else None


def _conclude(desk: Desk, journal: Journal) -> None:
    """State the result against the original and against every control arm, with fresh processes."""
    base, best = desk.campaign.base_commit, journal.best_commit(desk.campaign.base_commit)
    done = {(e.role, e.parent_commit, e.commit) for e in journal.finished}
    own: list[tuple[Role, str, str]] = []
    if len(journal.stack) > 1:
        own.append(("final", "the result against the original", base))
    own += [("control", name, commit) for name, commit in control_commits(desk.lab, base).items()]
    trees = desk.lab.site.repository
    for role, claim, against in own:
        if trees.tree(against) == trees.tree(best) or (role, against, best) in done:
            continue
        spec, accelerators = desk.campaign.spec, desk.lab.spec.accelerators
        if policy.measuring_s(journal, spec, desk.elapsed_s(), accelerators) == 0:
            desk.tell("skipped", what=claim, reason=_spent(desk, journal))
            continue
        journal = _own(desk, journal, role, claim, against, best)
    _take_apart(desk, journal, base, best)


def _spent(desk: Desk, journal: Journal) -> str:
    """Which budget has no more room for a measurement: the one that leaves less."""
    spec, accelerators = desk.campaign.spec, desk.lab.spec.accelerators
    time_left = policy.seconds_left(spec, desk.elapsed_s())
    sandbox_left = policy.sandbox_seconds_left(journal, spec, accelerators)
    is_time = sandbox_left is None or (time_left is not None and time_left < sandbox_left)
    return f"{'the time budget' if is_time else 'the budget of accelerator-seconds'} is used up"


def _take_apart(desk: Desk, journal: Journal, base: str, best: str) -> None:
    """Measure what each layer of a stack is worth: the result against the result without it."""
    layers, trees = journal.stack, desk.lab.site.repository
    for layer in layers[:MAX_LAYERS] if len(layers) > 1 else ():
        name = f"#{layer.number}"
        if any((e.role, e.proposal.hypothesis.claim, e.commit) == ("layer", name, best) for e in journal.finished):
            continue
        rest = without(desk.lab, base, layers, layer)
        if rest is None or trees.tree(rest) == trees.tree(best):
            why = "a later change needs it" if rest is None else "nothing of it is left in the result"
            desk.tell("skipped", what=f"the share of {name}", reason=why)
            continue
        left = policy.measuring_s(journal, desk.campaign.spec, desk.elapsed_s(), desk.lab.spec.accelerators)
        if left is not None and left < policy.expected_cost_s(journal) / 2:
            desk.tell("skipped", what=f"the share of {name}", reason=_spent(desk, journal))
            continue
        journal = _own(desk, journal, "layer", name, rest, best)


def control_commits(lab: Lab, base: str) -> dict[str, str]:
    """The commit of each control arm: the target with that arm's knobs and every other knob unset."""
    commits = {}
    for control in lab.spec.controls:
        knobs = {knob.name: control.knobs.get(knob.name) for knob in lab.spec.knobs}
        proposal = Proposal(hypothesis=Hypothesis(claim=control.name), change=Change(knobs=knobs))
        made = experiments.make_candidate(lab, base, proposal)
        commits[control.name] = base if isinstance(made, Signal) else made.commit
    return commits
