"""What a campaign used of each budget: as facts, in sentences, and as warnings."""

from __future__ import annotations

import re

from feedback.wording import count
from infra_agent.domain import Budget, Campaign, ModelUse
from infra_agent.journal import Journal
from infra_agent.report.facts import Report, Use
from infra_agent.target import TargetSpec


def use_of(campaign: Campaign, spec: TargetSpec, journal: Journal, models: ModelUse) -> Use:
    """What a campaign has used."""
    is_priced = models.n_unpriced < models.n_calls or not models.n_calls
    return Use(
        experiments=journal.number_of_changes, elapsed_s=campaign.elapsed_s,
        model_calls=models.n_calls, unanswered_calls=models.n_open, estimated_calls=models.n_estimated,
        tokens=models.tokens, prompt_tokens=models.prompt_tokens, cached_tokens=models.cached_tokens,
        completion_tokens=models.completion_tokens, estimated_tokens=models.estimated_tokens,
        dollars=models.dollars if is_priced else None, unpriced_calls=models.n_unpriced,
        accelerators=spec.accelerators, accelerator_s=spec.accelerators * journal.sandbox_s,
    )  # fmt: skip


def model_use(report: Report) -> str:
    """What the models used, in sentences; empty without calls and without a budget for them."""
    use, budget = report.use, report.budget
    if not use.model_calls and budget.tokens is None and budget.dollars is None:
        return ""
    parts = [f"{use.prompt_tokens} of prompts", f"{use.completion_tokens} of answers"]
    if use.cached_tokens:
        parts[0] += f", {use.cached_tokens} of them cached"
    said = (
        f"Models: {count(use.model_calls, 'call')}, {use.tokens}{_of(budget.tokens)} tokens ({'; '.join(parts)}), "
        f"{_dollars(use, budget)}."
    )
    if use.estimated_calls:
        said += f" {count(use.estimated_calls, 'call')} with {use.estimated_tokens} tokens are estimated, from above"
        lost = f"of {use.unanswered_calls} no answer was recorded" if use.unanswered_calls else ""
        silent = use.estimated_calls - use.unanswered_calls
        told = f"for {silent} the endpoint told no usage" if silent else ""
        said += f": {' and '.join(filter(None, (lost, told)))}."
    return said


def accelerator_use(report: Report) -> str:
    """What was used of accelerators; empty where the target needs none."""
    use = report.use
    if not use.accelerators:
        return ""
    return (
        f"Accelerators: {use.accelerator_s:.0f}{_of(report.budget.accelerator_s)} accelerator-seconds "
        f"({count(use.accelerators, 'accelerator')} while the sandbox works)."
    )


def overdrawn(budget: Budget, use: Use) -> tuple[str, ...]:
    """Budgets that were exceeded, for an endpoint may count more than was reserved, and a measurement that runs is not
    cut in the middle of a step."""
    found = []
    if budget.tokens is not None and use.tokens > budget.tokens:
        found.append(
            f"{use.tokens - budget.tokens} tokens more than the budget were used: the endpoint counted more than the "
            "estimate from above that was reserved, or answered longer than it was allowed to."
        )
    if budget.dollars is not None and use.dollars is not None and use.dollars > budget.dollars:
        found.append(
            f"{use.dollars - budget.dollars:.6g} dollars more than the budget were used: the endpoint counted more "
            "tokens than were reserved."
        )
    if budget.accelerator_s is not None and use.accelerator_s > budget.accelerator_s:
        found.append(
            f"{use.accelerator_s - budget.accelerator_s:.0f} accelerator-seconds more than the budget were used: the "
            "step that ran when it ended was not cut short, so that no change is judged by that."
        )
    return tuple(found)


def raise_budget(report: Report) -> str | None:
    """The option that raises the budget which ended the campaign, or None if it was none of those here."""
    budget = report.budget
    ended = re.match(r"the budget of \S+ (tokens|dollars|accelerator-seconds) ", report.stop_reason)
    match ended[1] if ended else "":
        case "tokens" if budget.tokens is not None:
            return f"--tokens {2 * max(budget.tokens, report.use.tokens)}"
        case "dollars" if budget.dollars is not None:
            return f"--dollars {2 * max(budget.dollars, report.use.dollars or 0):.6g}"
        case "accelerator-seconds" if budget.accelerator_s is not None:
            return f"--accelerator-seconds {2 * max(budget.accelerator_s, report.use.accelerator_s):.6g}"
    return None


def _dollars(use: Use, budget: Budget) -> str:
    limit = f" of {budget.dollars:g}" if budget.dollars is not None else ""
    if use.dollars is None:
        return "at a price that is not known"
    said = f"{use.dollars:.4f}{limit} dollars"
    return f"{said} without {count(use.unpriced_calls, 'call')} of unknown price" if use.unpriced_calls else said


def _of(limit: float | None) -> str:
    return "" if limit is None else f" of {limit:.12g}"
