"""How a campaign went: what each experiment cost, and the best confirmed gain over the original after it. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Literal, NamedTuple

from feedback.signals import Direction
from infra_agent.domain import Experiment, Role
from infra_agent.journal import Journal

Measure = Literal["experiments", "wall_s", "sandbox_s"]
SPENT: tuple[Role, ...] = ("baseline", "investigation", "change")
"""Roles whose cost is that of finding the result; the rest only states it."""


class Point(NamedTuple):
    """One experiment's cost and what it brought."""

    number: int
    role: Role
    planner: str
    """Who proposed it, where several share the campaign."""
    is_accepted: bool
    sandbox_s: float
    model_s: float
    wall_s: float
    """From its start to its end, with what the planner took before it; without the time that ones before it ran too."""
    best: float
    """Best confirmed log-gain over the original after it."""
    raised: float
    """By how much it raised that."""


def follow(journal: Journal) -> tuple[Point, ...]:
    """The experiments that the search spent, in order."""
    levels, accepted = journal.confirmed_gains(), {e.number for e in journal.accepted}
    spent = [e for e in journal.experiments if e.role in SPENT]
    reached = [levels.get(e.commit or "", 0.0) if e.number in accepted else 0.0 for e in spent]
    best = list(accumulate(reached, max, initial=0.0))
    walls = _walls_s(spent)
    return tuple(
        Point(
            number=e.number, role=e.role, planner=e.proposal.planner, is_accepted=e.number in accepted,
            sandbox_s=e.sandbox_s, model_s=e.model_s, wall_s=wall_s + e.model_s, best=after, raised=after - before,
        )
        for e, wall_s, before, after in zip(spent, walls, best[:-1], best[1:], strict=True)
    )  # fmt: skip


def _walls_s(experiments: Sequence[Experiment]) -> list[float]:
    """What each one added to the wall time: of those that ran at once, only what others had not taken before."""
    walls, latest = [], None
    for experiment in experiments:
        start, end = experiment.started_at, experiment.finished_at
        if start is None or end is None:
            walls.append(0.0)
            continue
        walls.append(max(0.0, (end - (max(start, latest) if latest else start)).total_seconds()))
        latest = max(end, latest) if latest else end
    return walls


def spent(points: Iterable[Point], measure: Measure) -> float:
    """What experiments cost together, by a measure."""
    return sum(cost(point, measure) for point in points)


def cost(point: Point, measure: Measure) -> float:
    """What one experiment cost; of the count only changes are."""
    match measure:
        case "experiments":
            return float(point.role == "change")
        case "wall_s":
            return point.wall_s
        case "sandbox_s":
            return point.sandbox_s


def best_within(points: Sequence[Point], measure: Measure, limit: float) -> float:
    """The best confirmed log-gain that was reached within a budget; 0 where nothing was."""
    used = accumulate(cost(point, measure) for point in points)
    return max((p.best for p, so_far in zip(points, used, strict=True) if so_far <= limit + 1e-9), default=0.0)


def as_improvement(log_gain: float, direction: Direction) -> float:
    """A log-gain as a fraction: more of the metric, or the part of it that is saved."""
    return math.expm1(log_gain) if direction == "maximize" else -math.expm1(-log_gain)
