"""The end of a campaign: its result against the original and every control arm, and what each layer is worth."""

from __future__ import annotations

from feedback.signals import Signal
from infra_agent import policy
from infra_agent.desk import Desk, measure
from infra_agent.domain import Change, Hypothesis, Proposal, Role
from infra_agent.experiment import make_candidate
from infra_agent.journal import Journal
from infra_agent.lab import Lab
from infra_agent.layers import MAX_LAYERS, without


def conclude(desk: Desk, journal: Journal) -> None:
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
        if desk.measuring_s(journal) == 0:
            desk.tell("skipped", what=claim, reason=_spent(desk, journal))
            continue
        journal = measure(desk, journal, role, claim, against, best)
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
        left = desk.measuring_s(journal)
        if left is not None and left < policy.expected_cost_s(journal) / 2:
            desk.tell("skipped", what=f"the share of {name}", reason=_spent(desk, journal))
            continue
        journal = measure(desk, journal, "layer", name, rest, best)


def control_commits(lab: Lab, base: str) -> dict[str, str]:
    """The commit of each control arm: the target with that arm's knobs and every other knob unset."""
    commits = {}
    for control in lab.spec.controls:
        knobs = {knob.name: control.knobs.get(knob.name) for knob in lab.spec.knobs}
        proposal = Proposal(hypothesis=Hypothesis(claim=control.name), change=Change(knobs=knobs))
        made = make_candidate(lab, base, proposal)
        commits[control.name] = base if isinstance(made, Signal) else made.commit
    return commits
