"""The algorithm: choose a parent, ask the planner, measure, judge, remember, repeat. Reads top to bottom.

Everything is stored before it is acted on, so a run that is killed at any moment resumes without repeating a
finished experiment.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from feedback.digest import digest
from feedback.ranking import rank
from infra_agent import host, lessons, policy
from infra_agent.batch import conduct_all
from infra_agent.citation import prefix
from infra_agent.conclusion import conclude
from infra_agent.desk import Desk, conduct, keep_waiting, measure, with_lost_time
from infra_agent.domain import Change, Experiment, Hypothesis, Proposal, Role, State
from infra_agent.investigation import MAX_INVESTIGATIONS
from infra_agent.journal import Journal
from infra_agent.launch import read_knobs
from infra_agent.layers import on_top
from infra_agent.planner import BudgetSpent, Context, Investigate, Propose, Stop, Waiting
from infra_agent.store import new_id
from sandboxes.git import WorkspaceError

DIGEST_EXPERIMENTS = 3
BUDGET = "budget"
PLANNER = "planner"
WAITING = "waiting"


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
    base = desk.campaign.base_commit
    journal = with_lost_time(desk, desk.journal())
    if journal.unfinished and desk.is_out_of_accelerators(journal):
        return Ended(BUDGET, desk.stop_reason(journal) or "")
    # What only waits may still get company.
    if cut_off := [e for e in journal.unfinished if e.state is State.RUNNING]:
        journal = conduct_all(desk, journal, cut_off)
    if not journal.finished:
        journal = measure(desk, journal, "baseline", "the baseline against itself", base, base)
    while not isinstance(went := step(desk, journal), Ended):
        journal = went
    if went.by != WAITING:
        conclude(desk, journal)
    return went


def step(desk: Desk, journal: Journal) -> Journal | Ended:
    """One turn of the loop: ask what comes next and conduct it, changes once as many wait as are measured at once, or
    no more come; the journal with the outcome, or why there is none."""
    asked: Experiment | Ended | None = None
    if len(journal.waiting) < desk.campaign.spec.parallel:
        asked = _combination(desk, journal) or _asked(desk, journal)
    if isinstance(asked, Experiment):
        if asked.role != "change" or desk.campaign.spec.parallel == 1:
            return conduct(desk, journal, asked)
        return keep_waiting(desk, journal, asked)
    if journal.waiting:
        return conduct_all(desk, journal, journal.waiting)
    assert asked is not None  # nothing waits, so something was asked
    return asked


def _asked(desk: Desk, journal: Journal) -> Experiment | Ended:
    """Choose a parent and ask the planner: the experiment that it wants, or why there is none."""
    if reason := desk.stop_reason(journal):
        return Ended(BUDGET, reason)
    asked_s = time.monotonic()
    try:
        action = desk.planner.next_action(context(desk, journal))
    except BudgetSpent as spent:
        ended = f"the budget of {policy.minutes(desk.campaign.spec)} ended while the planner was at work"
        return Ended(BUDGET, str(spent) or ended)
    except Waiting as waiting:
        return Ended(WAITING, str(waiting))
    if isinstance(action, Stop):
        return Ended(PLANNER, action.reason)
    # A model may think for minutes.
    if reason := desk.stop_reason(journal):
        return Ended(BUDGET, reason)
    thought_s = time.monotonic() - asked_s
    parent, best = _parent(desk, journal), journal.best_commit(desk.campaign.base_commit)
    return _next(desk, journal, parent, best, action, thought_s)


def _combination(desk: Desk, journal: Journal) -> Experiment | None:
    """A change that was accepted beside the result, to be measured on top of it; None where there is none."""
    if desk.stop_reason(journal):
        return None
    for beside in policy.beside_the_result(journal, desk.campaign.spec.planner):
        if proposal := on_top(desk.lab, journal.stack, beside):
            best = journal.best_commit(desk.campaign.base_commit)
            return _next(desk, journal, best, best, Propose(proposal=proposal), 0.0)
    return None


def _parent(desk: Desk, journal: Journal) -> str:
    """The commit that the next change builds on."""
    base = desk.campaign.base_commit
    second = policy.second_best(journal, base, desk.campaign.spec.planner)
    return (second.commit if second else None) or policy.choose_parent(journal, base)


def _line(desk: Desk, journal: Journal) -> str:
    """What a planner is told of a second-best line, and of what was accepted and is not in what it builds on."""
    beside = policy.beside_the_result(journal, desk.campaign.spec.planner)
    names = ", ".join(f"#{e.number}" for e in beside)
    left_out = (
        f"Accepted beside the result and not in it, since it does not combine by itself: {names}." if names else ""
    )
    second = policy.second_best(journal, desk.campaign.base_commit, desk.campaign.spec.planner)
    if second is None:
        return left_out
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
        machine=host.facts(),
        digest="\n\n".join(f"experiment {e.number}:\n{digest(rank(e.signals), 600, prefix(e))}" for e in latest),
        experiments_left=desk.campaign.spec.budget.experiments - journal.number_of_changes,
        minutes=desk.campaign.spec.budget.minutes,
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
