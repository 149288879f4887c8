"""Several planners share one budget: a bandit on confirmed gain per cost says who proposes next.

Everything follows from the journal. A planner that has nothing to propose leaves; that it left is read off the
journal too, for whoever proposed instead was only asked after it. While proposals wait to be measured none leaves:
their outcomes may give it something to propose.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from infra_agent.gains import Point, follow
from infra_agent.journal import Journal
from infra_agent.planner import Action, Context, Investigate, Planner, Propose, Stop

CURIOSITY = 0.5
"""Weight of what is not known yet of a planner against what it has gained."""
LEAST_COST_S = 1.0
"""An experiment costs at least this, also one that was refused before any sandbox."""


class PortfolioPlanner:
    """Asks its members in the bandit's order and takes the first proposal or question."""

    def __init__(self, members: Mapping[str, Planner]) -> None:
        self._members = dict(members)
        self._reasons: dict[str, str] = {}

    def next_action(self, context: Context) -> Action:
        """The action of the member whose turn it is, under its name; Stop with each one's reason when all stopped."""
        journal = context.journal.before_step()
        left = departed(journal, tuple(self._members))
        stopped: dict[str, str] = {}
        for name in order(journal, [n for n in self._members if n not in left and n not in self._reasons]):
            action = self._members[name].next_action(context)
            if not isinstance(action, Stop):
                return _signed(action, name)
            stopped[name] = action.reason
            if not journal.unfinished:
                self._reasons[name] = action.reason
        said = {n: stopped.get(n) or self._reasons.get(n) or f"left before experiment {left[n]}" for n in self._members}
        return Stop(reason="every planner stopped: " + "; ".join(f"{name}: {why}" for name, why in said.items()))


def _signed(action: Investigate | Propose, name: str) -> Action:
    if isinstance(action, Investigate):
        return action.model_copy(update={"planner": name})
    return action.model_copy(update={"proposal": action.proposal.model_copy(update={"planner": name})})


def order(journal: Journal, members: Sequence[str]) -> list[str]:
    """The members by whose turn it is: those that never proposed as they are listed, then by the upper confidence
    bound of their confirmed gain an experiment, over their mean cost.

    A gain is how far an experiment raised the best confirmed result, as a part of the largest such step so far.
    """
    points, measured = follow(journal), {e.number for e in journal.finished}
    steps = {name: [p for p in points if p.planner == name and p.role == "change"] for name in members}
    total = sum(map(len, steps.values()))
    largest = max((p.raised for p in points), default=0.0) or 1.0
    # What waits to be measured has cost nothing yet; it is taken to cost what others do.
    done_by_all = sum(p.number in measured for name in members for p in steps[name])
    mean_s = sum(_cost_s(points, name) for name in members if steps[name]) / max(1, done_by_all) or LEAST_COST_S

    def bound(name: str) -> float:
        mine = steps[name]
        gained = sum(p.raised for p in mine) / largest / len(mine)
        unknown = CURIOSITY * math.sqrt(math.log(total) / len(mine))
        done = sum(p.number in measured for p in mine)
        return (gained + unknown) / (_cost_s(points, name) / done if done else mean_s)

    new = [name for name in members if not steps[name]]
    known = [name for name in members if steps[name]]
    return [*new, *sorted(known, key=bound, reverse=True)]


def departed(journal: Journal, members: Sequence[str]) -> dict[str, int]:
    """Who left, and the number of the experiment before which it did: at each step of the past, those whose turn
    came before the one that proposed."""
    left: dict[str, int] = {}
    seen = -1
    for experiment in (e for e in journal.experiments if e.role == "change"):
        before = Journal(
            experiments=tuple(e for e in journal.when_proposed(experiment).experiments if e.number <= seen)
        )
        asked = order(before, [m for m in members if m not in left])
        if experiment.proposal.planner in asked and not before.unfinished:
            left |= dict.fromkeys(asked[: asked.index(experiment.proposal.planner)], experiment.number)
        seen = experiment.number
    return left


def _cost_s(points: Sequence[Point], name: str) -> float:
    """Sandboxed and model time of a member's experiments, its investigations among them."""
    mine = [p for p in points if p.planner == name]
    least = LEAST_COST_S * sum(p.role == "change" for p in mine)
    return max(least, sum(p.sandbox_s + p.model_s for p in mine))
