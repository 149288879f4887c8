"""What a report says of the use of budgets."""

from __future__ import annotations

import json
from typing import Any

import pytest
from test_report import WON, accepted, baseline, effect, report

from infra_agent.domain import Budget, CampaignSpec, ModelUse
from infra_agent.report import Report, Result, build, render_text
from infra_agent.report.budgets import accelerator_use, model_use, raise_budget

USED = ModelUse(
    n_calls=12, n_open=1, n_estimated=3, prompt_tokens=90_000, cached_tokens=40_000, completion_tokens=8_000,
    estimated_tokens=30_000, nanodollars=123_456_789,
)  # fmt: skip


def used(models: ModelUse = USED, stop_reason: str = "all was tried", **budget: Any) -> Report:
    spec = CampaignSpec(target="/r", planner="llm", budget=Budget(**budget))
    return report(accepted(1, effect(1.9, 0.1)), result=WON._replace(models=models), spec=spec, stop_reason=stop_reason)


def test_the_use_of_models_is_stated_beside_their_budgets_with_what_is_estimated() -> None:
    said = (
        "Models: 12 calls, 98000 of 200000 tokens (90000 of prompts, 40000 of them cached; 8000 of answers), "
        "0.1235 of 2.5 dollars. 3 calls with 30000 tokens are estimated, from above: of 1 no answer was recorded and "
        "for 2 the endpoint told no usage."
    )
    found = used(tokens=200_000, dollars=2.5)
    assert model_use(found) == said
    assert said in " ".join(render_text(found).split())
    use = json.loads(found.model_dump_json())["use"]
    assert (use["tokens"], use["dollars"], use["unanswered_calls"]) == (98_000, 0.123456789, 1)
    assert (use["experiments"], use["elapsed_s"], use["accelerator_s"]) == (1, 200.0, 0.0)


@pytest.mark.parametrize(
    ("models", "budget", "said"),
    [
        (ModelUse(), {}, ""),
        (ModelUse(), {"tokens": 5}, "Models: 0 calls, 0 of 5 tokens (0 of prompts; 0 of answers), 0.0000 dollars."),
        (
            ModelUse(n_calls=1, n_unpriced=1, prompt_tokens=7, completion_tokens=1), {},
            "Models: 1 call, 8 tokens (7 of prompts; 1 of answers), at a price that is not known.",
        ),
        (
            ModelUse(n_calls=2, n_unpriced=1, prompt_tokens=7, completion_tokens=1, nanodollars=10**9), {},
            "Models: 2 calls, 8 tokens (7 of prompts; 1 of answers), 1.0000 dollars without 1 call of unknown price.",
        ),
    ],
)  # fmt: skip
def test_nothing_is_said_of_models_that_were_not_asked_and_no_price_is_made_up(
    models: ModelUse, budget: dict[str, Any], said: str
) -> None:
    assert model_use(used(models, **budget)) == said
    assert ("Models:" in render_text(used(models, **budget))) is bool(said)


def test_accelerators_are_told_of_where_a_target_needs_them() -> None:
    plain = used()
    assert accelerator_use(plain) == ""
    assert "ccelerator" not in render_text(plain)
    use = plain.use.model_copy(update={"accelerators": 2, "accelerator_s": 480.4})
    limited = plain.model_copy(update={"use": use, "budget": Budget(accelerator_s=3600)})
    assert accelerator_use(limited) == (
        "Accelerators: 480 of 3600 accelerator-seconds (2 accelerators while the sandbox works)."
    )


@pytest.mark.parametrize(
    ("reason", "budget", "option"),
    [
        ("the budget of 98000 tokens is used up (1 used, ...)", {"tokens": 98_000}, "--tokens 196000"),
        ("the budget of 50000 tokens is used up (98000 used, ...)", {"tokens": 50_000}, "--tokens 196000"),
        ("the budget of 0.5 dollars is used up (...)", {"dollars": 0.5}, "--dollars 1"),
        ("the budget of 60 accelerator-seconds is used up", {"accelerator_s": 60}, "--accelerator-seconds 120"),
        ("the budget of 4 minutes is nearly used up (20 s left)", {"minutes": 4, "tokens": 10**6}, None),
        ("the model asked about the budget of 4 tokens here", {"tokens": 4}, None),
    ],
)
def test_the_next_command_raises_the_budget_that_ended_the_campaign(
    reason: str, budget: dict[str, Any], option: str | None
) -> None:
    found = used(stop_reason=reason, experiments=50, **budget)
    assert raise_budget(found) == option
    suggested = [line for line in found.next if "--resume" in line]
    assert suggested == ([f"infra-agent run --resume cmp_1 {option}  # search on"] if option else suggested)


def test_a_budget_that_was_exceeded_is_warned_of_and_others_are_not() -> None:
    fine = used(tokens=98_000, dollars=0.123456789)
    assert not any("more than the budget" in warning for warning in fine.warnings)
    (tokens,) = [w for w in used(tokens=97_000).warnings if "more than the budget" in w]
    assert tokens.startswith("1000 tokens more than the budget were used")
    (dollars,) = [w for w in used(dollars=0.1).warnings if "more than the budget" in w]
    assert dollars.startswith("0.0234568 dollars more than the budget were used")


def test_accelerator_seconds_count_the_campaigns_own_measurements_and_killed_attempts() -> None:
    from test_report import SPEC, Campaign, CampaignState, Journal

    campaign = Campaign(
        id="c", spec=CampaignSpec(target="/r", budget=Budget(accelerator_s=100.0)), target_name="t", target_toml="",
        source_commit="s", base_commit="base", host_fingerprint="h", state=CampaignState.COMPLETE,
    )  # fmt: skip
    own = baseline().model_copy(update={"sandbox_s": 10.0})
    change = accepted(1, effect(0.5, 0.1)).model_copy(update={"sandbox_s": 20.0, "lost_s": 5.0})
    spec = SPEC.model_copy(update={"accelerators": 3})
    found = build(campaign, spec, Journal(experiments=(own, change)), Result())
    assert found.use.accelerator_s == 105.0
    assert any(w.startswith("5 accelerator-seconds more than the budget") for w in found.warnings)
