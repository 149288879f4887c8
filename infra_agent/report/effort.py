"""What each planner of a campaign spent, and what came of it. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from infra_agent.domain import Campaign
from infra_agent.gains import Point, as_improvement, follow
from infra_agent.journal import Journal
from infra_agent.report.facts import PlannerShare
from infra_agent.target import TargetSpec

ASK_A_MODEL = ("llm", "best-of-n")
"""Kinds of planners that ask the campaign's model."""


class CallUse(NamedTuple):
    """What one call of a model took."""

    created_at: datetime
    tokens: int
    duration_s: float


def shares(
    campaign: Campaign, spec: TargetSpec, journal: Journal, calls: Sequence[CallUse]
) -> tuple[PlannerShare, ...]:
    """One entry a planner, in the order in which they first proposed; those that never did come by name."""
    points = [p for p in follow(journal) if p.role != "baseline"]
    kind = campaign.spec.planner.partition(":")[0]
    names = list(dict.fromkeys(p.planner or kind for p in points))
    names += [n for n in campaign.spec.planner.partition(":")[2].split(",") if kind == "portfolio" and n not in names]
    tokens = _tokens(journal, calls, kind)
    names += [n for n in sorted(tokens) if n not in names]
    return tuple(_share([p for p in points if (p.planner or kind) == n], n, tokens[n], spec) for n in names if n)


def _share(points: Sequence[Point], name: str, tokens: int, spec: TargetSpec) -> PlannerShare:
    return PlannerShare(
        planner=name,
        n_experiments=sum(p.role == "change" for p in points),
        n_investigations=sum(p.role == "investigation" for p in points),
        n_accepted=sum(p.is_accepted for p in points),
        sandbox_s=sum(p.sandbox_s for p in points),
        model_s=sum(p.model_s for p in points),
        tokens=tokens,
        gain=as_improvement(sum(p.raised for p in points), spec.objective.direction),
    )


def _tokens(journal: Journal, calls: Sequence[CallUse], kind: str) -> Counter[str]:
    """Tokens by planner. A call is that of the planner whose experiment came next; where that one asks no model, the
    call ended with a stop, and is that of the one that does."""
    proposed = [e for e in journal.experiments if e.is_asked]
    ends = [e.created_at for e in proposed]
    asking = [e.proposal.planner for e in proposed if e.proposal.planner in ASK_A_MODEL]
    spent: Counter[str] = Counter()
    for call in calls:
        place = bisect_left(ends, call.created_at)
        name = proposed[place].proposal.planner if place < len(proposed) else ""
        if kind == "portfolio":
            spent[name if name in ASK_A_MODEL else (asking[-1] if asking else ASK_A_MODEL[0])] += call.tokens
        else:
            spent[kind] += call.tokens
    return spent
