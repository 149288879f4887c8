"""What to build on, when to stop, and how much of the error budget an experiment may spend. Pure functions."""

from __future__ import annotations

import math
from statistics import median

from feedback.verdict import VerdictKind
from infra_agent.domain import COMBINATION, CampaignSpec, Experiment
from infra_agent.journal import Journal, log_gain

SCREEN_ALPHA = 0.05
"""False-accept probability of a first measurement. Cheap, because a confirmation with fresh processes and fresh
seeds must also pass: both together err with the product of the two."""
MAX_CONFIRM_ALPHA = 0.05
PLANNED_SHARE = 0.8
"""Part of the error budget that the planned experiments share; the rest is for extensions of the campaign."""
MIN_CONCLUSION_S = 45.0
"""Least wall time kept back for the final measurement against the original and the control arms, but ..."""
CONCLUSION_SHARE = 0.15
"""... no larger part of a small time budget than this."""


def choose_parent(journal: Journal, base_commit: str) -> str:
    """The commit that the next change builds on: the last accepted and confirmed one."""
    return journal.best_commit(base_commit)


SECOND_BEST_EVERY = 6
"""So often a change builds on the most promising undecided one instead: two steps may pay off only together."""
EXPLORERS = ("llm", "external")
"""Planners that see on what they build. A script was written for one line, and a search pools small gains itself."""


def second_best(journal: Journal, base_commit: str, planner: str) -> Experiment | None:
    """The undecided change that the next one builds on, measured against the best commit; mostly none."""
    if planner not in EXPLORERS or journal.number_of_changes % SECOND_BEST_EVERY != SECOND_BEST_EVERY - 1:
        return None
    best = journal.best_commit(base_commit)
    used = {e.parent_commit for e in journal.experiments if e.role == "change"}
    open_ones = [
        (gain, e.number, e)
        for e in journal.finished
        if e.role == "change" and e.baseline == best and e.commit and e.commit not in used
        and e.verdict is not None and e.verdict.kind is VerdictKind.INCONCLUSIVE
        and (gain := journal.improvement(e)) > 0
    ]  # fmt: skip
    return max(open_ones)[2] if open_ones else None


CONTROL_ARMS = ("random", "best-of-n")
"""Planners whose changes all build on the original: the best one is their result."""


def beside_the_result(journal: Journal, planner: str) -> tuple[Experiment, ...]:
    """The accepted changes that were measured against the same commit as one of the result and so are not in it, the
    largest gain first: each may still gain on top of the result. Without those that were tried there."""
    stack = journal.stack
    top = stack[-1].commit if stack else None
    combined = (e for e in journal.experiments if e.proposal.planner == COMBINATION and e.parent_commit == top)
    tried = {e.proposal.hypothesis.evidence[:1] for e in combined}
    below = {e.baseline for e in stack}
    found = [
        e for e in journal.accepted
        if e.baseline in below and e not in stack and (f"#{e.number}",) not in tried
        and (e.proposal.planner or planner) not in CONTROL_ARMS
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda e: (-log_gain(e), e.number)))


def stop_reason(journal: Journal, spec: CampaignSpec, elapsed_s: float, accelerators: int = 0) -> str | None:
    """Why no further change may be measured, or None. Never starts what the time left surely can't finish.
    `accelerators` are those that the target needs."""
    if journal.number_of_changes >= spec.budget.experiments:
        return f"the budget of {spec.budget.experiments} experiments is used up"
    if (left := seconds_left(spec, elapsed_s)) is not None:
        needed = conclusion_s(journal, spec) + expected_cost_s(journal) * (len(journal.waiting) + 0.5)
        if left < needed and journal.number_of_changes:
            return f"the budget of {minutes(spec)} is nearly used up ({left:.0f} s left)"
        if left <= 0:
            return "the time budget is used up"
    if (left := sandbox_seconds_left(journal, spec, accelerators)) is not None:
        needed = sandbox_conclusion_s(journal) + expected_cost_s(journal) * (len(journal.waiting) + 1)
        if left <= 0 or (left < needed and journal.number_of_changes):
            return (
                f"the budget of {spec.budget.accelerator_s:g} accelerator-seconds is used up "
                f"({accelerators * journal.sandbox_s:.0f} used, the next change and the conclusion may take "
                f"{accelerators * needed:.0f})"
            )
    return None


def sandbox_seconds_left(journal: Journal, spec: CampaignSpec, accelerators: int) -> float | None:
    """Sandboxed wall time that the budget of accelerator-seconds still allows, or None without one."""
    if spec.budget.accelerator_s is None or accelerators == 0:
        return None
    return spec.budget.accelerator_s / accelerators - journal.sandbox_s


def is_out_of_accelerators(journal: Journal, spec: CampaignSpec, accelerators: int) -> bool:
    """Whether nothing is left of the budget of accelerator-seconds."""
    left = sandbox_seconds_left(journal, spec, accelerators)
    return left is not None and left <= 0


def measuring_s(
    journal: Journal, spec: CampaignSpec, elapsed_s: float, accelerators: int, concludes: bool = True
) -> float | None:
    """Wall time that the next measurement may take, or None without a limit: what the budgets of time and of
    accelerator-seconds leave, without what the conclusion needs unless it `concludes`. Those that run at once share
    what is left of accelerators."""
    time_left, sandbox_left = seconds_left(spec, elapsed_s), sandbox_seconds_left(journal, spec, accelerators)
    if not concludes:
        time_left = None if time_left is None else time_left - conclusion_s(journal, spec)
        sandbox_left = None if sandbox_left is None else sandbox_left - sandbox_conclusion_s(journal)
    if sandbox_left is not None:
        sandbox_left /= max(1, len(journal.unfinished))
    limits = [left for left in (time_left, sandbox_left) if left is not None]
    return max(0.0, min(limits)) if limits else None


def sandbox_conclusion_s(journal: Journal) -> float:
    """Sandboxed time to keep back for the conclusion: what the baseline took against itself."""
    return max((e.sandbox_s for e in journal.finished if e.role == "baseline"), default=0.0)


def minutes(spec: CampaignSpec) -> str:
    """The time budget in words, such as `1 minute`."""
    given = spec.budget.minutes or 0.0
    return f"{given:g} minute{'' if given == 1 else 's'}"


def is_spent(reason: str) -> bool:
    """Whether a campaign's reason to end is one of `stop_reason`, and not a planner's."""
    return reason.startswith(("the budget of ", "the time budget "))


def seconds_left(spec: CampaignSpec, elapsed_s: float) -> float | None:
    """Wall time left, or None without a limit."""
    return None if spec.budget.minutes is None else spec.budget.minutes * 60 - elapsed_s


def planning_s(journal: Journal, spec: CampaignSpec, elapsed_s: float) -> float | None:
    """Wall time that the planner may take for its next action, or None without a limit: all but what the
    conclusion needs, once there is something to conclude."""
    if (left := seconds_left(spec, elapsed_s)) is None:
        return None
    return max(0.0, left - (conclusion_s(journal, spec) if journal.number_of_changes else 0.0))


def conclusion_s(journal: Journal, spec: CampaignSpec) -> float:
    """Wall time to keep back for the conclusion: about what the baseline took against itself."""
    least = min(MIN_CONCLUSION_S, CONCLUSION_SHARE * 60 * (spec.budget.minutes or math.inf))
    return max(least, *(e.sandbox_s for e in journal.finished if e.role == "baseline"), 0.0)


def expected_cost_s(journal: Journal) -> float:
    """What an experiment of this campaign costs, judged by those before."""
    costs = [e.sandbox_s for e in journal.finished if e.role == "change" and e.sandbox_s > 1]
    return median(costs) if costs else 0.0


def error_share(journal: Journal, spec: CampaignSpec) -> float:
    """The next experiment's share of the campaign's error budget.

    All shares ever given add up to less than the budget: the planned experiments share 80 % evenly; should the
    campaign be extended, each extension shares 80 % of what is left.
    """
    changes = [e for e in journal.experiments if e.role == "change"]
    spent = sum(e.alpha for e in changes)
    ahead = max(1, spec.budget.experiments - len(changes))
    within_plan = PLANNED_SHARE * spec.error_budget / spec.budget.experiments
    if all(abs(e.alpha - within_plan) < 1e-12 for e in changes):
        return within_plan
    return PLANNED_SHARE * max(0.0, spec.error_budget - spent) / ahead


def confirm_alpha(share: float) -> float:
    """False-accept probability that the confirmation may have, given the experiment's share."""
    return min(MAX_CONFIRM_ALPHA, share / SCREEN_ALPHA)
