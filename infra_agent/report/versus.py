"""What one planner gained over another at equal budgets: two campaigns on the same original, host and objective.

Equal are the number of experiments, the wall time and the sandboxed time that either spent; the smaller of the two is
the budget. A gain within a budget is that of the best change confirmed by then, over the original: confirmed effects
along its line of changes, multiplied.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from feedback.signals import Direction, Effect
from feedback.wording import count
from infra_agent.domain import Campaign, CampaignState
from infra_agent.errors import WrongUse
from infra_agent.gains import Measure, as_improvement, best_within, follow, spent
from infra_agent.journal import Journal
from infra_agent.report import words
from infra_agent.report.text import duration, wrap
from infra_agent.target import TargetSpec
from sandboxes.results import Record

MEASURES: tuple[Measure, ...] = ("experiments", "wall_s", "sandbox_s")
ALONE = (
    "One campaign of each is one draw: with other seeds either may come out ahead. Two planners are told apart by "
    "several campaigns of each."
)


class Side(NamedTuple):
    """One campaign with what the comparison needs."""

    campaign: Campaign
    spec: TargetSpec
    journal: Journal
    original: str
    """Identity of the original's content."""


class Spent(Record):
    """What a campaign spent on finding its result, and its result."""

    campaign: str
    planner: str
    seed: int
    state: CampaignState
    n_experiments: int
    n_accepted: int
    wall_s: float
    """Of its baseline, investigations and changes, planning included; without the final measurements."""
    sandbox_s: float
    gain: float
    """Best confirmed gain over the original, as in EqualBudget."""
    measured: Effect | None
    """The result measured as a whole against the original, where that was done."""


class EqualBudget(Record):
    """Both campaigns' gains within one budget."""

    measure: Measure
    limit: float
    """Experiments or seconds: the smaller of what the two spent."""
    gain: float
    """Best confirmed gain over the original that the first campaign had within that, as a fraction."""
    against_gain: float
    """The second's."""
    advantage: float
    """How much better the first one's best is than the second one's, as a fraction."""


class Versus(Record):
    """Two campaigns side by side. `infra-agent show CAMPAIGN --against CAMPAIGN2 --json` prints it."""

    target: str
    metric: str
    direction: Direction
    campaign: Spent
    against: Spent
    at_equal: tuple[EqualBudget, ...]
    caveats: tuple[str, ...]


def compare(first: Side, second: Side) -> Versus:
    """The first campaign held against the second. Raises WrongUse where they don't measure the same."""
    if reason := _refusal(first, second):
        raise WrongUse(
            f"{first.campaign.id} can't be held against {second.campaign.id}: {reason}; compare campaigns on one "
            "target, host and objective, such as two planners started one after the other"
        )
    ours, theirs = (follow(s.journal) for s in (first, second))
    direction = first.spec.objective.direction
    at_equal = []
    for measure in MEASURES:
        limit = min(spent(ours, measure), spent(theirs, measure))
        a, b = best_within(ours, measure, limit), best_within(theirs, measure, limit)
        at_equal.append(
            EqualBudget(
                measure=measure, limit=limit, gain=as_improvement(a, direction),
                against_gain=as_improvement(b, direction), advantage=as_improvement(a - b, direction),
            )
        )  # fmt: skip
    return Versus(
        target=first.campaign.target_name, metric=first.spec.objective.metric, direction=direction,
        campaign=_spent(first), against=_spent(second), at_equal=tuple(at_equal), caveats=_caveats(first, second),
    )  # fmt: skip


def _refusal(first: Side, second: Side) -> str | None:
    """Why two campaigns don't measure the same, or None if they do."""
    a, b = first.campaign, second.campaign
    if a.id == b.id:
        return "they are one campaign"
    if a.target_name != b.target_name:
        return f"their targets differ ({a.target_name}, {b.target_name})"
    if a.host_fingerprint != b.host_fingerprint:
        return f"they ran on different hosts ({a.host_fingerprint}, {b.host_fingerprint})"
    ours, theirs = first.spec.objective, second.spec.objective
    if (ours.metric, ours.direction) != (theirs.metric, theirs.direction):
        return f"their objectives differ ({ours.direction} {ours.metric}, {theirs.direction} {theirs.metric})"
    if first.spec.noise_probe != second.spec.noise_probe:
        return f"their objective's probe measures differently ({first.spec.noise_probe}, {second.spec.noise_probe})"
    if first.original != second.original:
        return "the target's files differed at their starts, so their originals do too"
    return None


def _spent(side: Side) -> Spent:
    campaign, journal = side.campaign, side.journal
    points = follow(journal)
    best = journal.best_commit(campaign.base_commit)
    stated = [e for e in journal.finished if e.role == "final" and e.commit == best]
    if not stated and len(journal.accepted) == 1:
        stated = list(journal.accepted)
    signals = [s for s in stated[-1].signals if s.role == "objective"] if stated else []
    return Spent(
        campaign=campaign.id, planner=campaign.spec.planner, seed=campaign.spec.seed, state=campaign.state,
        n_experiments=journal.number_of_changes, n_accepted=len(journal.accepted),
        wall_s=spent(points, "wall_s"), sandbox_s=spent(points, "sandbox_s"),
        gain=as_improvement(best_within(points, "experiments", math.inf), side.spec.objective.direction),
        measured=signals[0].effect if signals else None,
    )  # fmt: skip


def _caveats(first: Side, second: Side) -> tuple[str, ...]:
    unfinished = [s.campaign.id for s in (first, second) if s.campaign.state is not CampaignState.COMPLETE]
    said = [f"Not complete: {', '.join(unfinished)}." if unfinished else ""]
    differing = [
        name
        for name, of in _CONDITIONS
        if of(first) != of(second)
    ]  # fmt: skip
    said.append(f"Beside the planner, these differ: {', '.join(differing)}." if differing else "")
    return tuple(filter(None, (*said, ALONE)))


_CONDITIONS: tuple[tuple[str, Callable[[Side], object]], ...] = (
    ("smallest gain worth having", lambda side: side.spec.objective.min_effect),
    ("guardrails", lambda side: side.spec.guardrails),
    ("gates", lambda side: tuple(p.name for p in side.spec.probes if p.gate)),
    ("knobs", lambda side: side.spec.knobs),
    (
        "error budget an experiment",
        lambda side: side.campaign.spec.error_budget / side.campaign.spec.budget.experiments,
    ),
)
"""What makes a campaign's task harder or easier without making its numbers wrong."""


def render_versus(versus: Versus, width: int = 100) -> str:
    """The comparison as text, at most `width` columns wide."""
    ours, theirs = versus.campaign, versus.against
    lines = wrap(f"{versus.target}: {_name(ours)} against {_name(theirs)}", width, "", "  ")
    lines += ["", f"Best confirmed gain over the original ({words.meaning(versus.metric, versus.direction)})"]
    rows = [("at equal", "budget", ours.planner, theirs.planner, "advantage"), *map(_row, versus.at_equal)]
    columns = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines += [
        "  " + "  ".join(f"{cell:<{size}}" for cell, size in zip(row, columns, strict=True)).rstrip() for row in rows
    ]
    lines += ["", "The campaigns"]
    for side in (ours, theirs):
        lines += wrap(_said(side), width, f"  {side.campaign}  ", "    ")
    lines.append("")
    for caveat in versus.caveats:
        lines += wrap(caveat, width, "  ", "  ")
    return "\n".join(lines) + "\n"


def _name(side: Spent) -> str:
    return f"{side.planner} (campaign {side.campaign}, seed {side.seed})"


def _row(equal: EqualBudget) -> tuple[str, ...]:
    what = {"experiments": "experiments", "wall_s": "wall time", "sandbox_s": "sandboxed time"}[equal.measure]
    limit = f"{equal.limit:.0f}" if equal.measure == "experiments" else duration(equal.limit)
    return (what, limit, *(words.percent(g) for g in (equal.gain, equal.against_gain, equal.advantage)))


def _said(side: Spent) -> str:
    whole = f"; as a whole measured {words.gain(side.measured)}" if side.measured else ""
    return (
        f"{side.planner}: {count(side.n_experiments, 'experiment')}, {side.n_accepted} accepted, "
        f"{duration(side.wall_s)} of which {duration(side.sandbox_s)} sandboxed; confirmed {words.percent(side.gain)}"
        f"{whole}"
    )
