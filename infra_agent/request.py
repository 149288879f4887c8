"""From what a user asks for, defaults included, to a CampaignSpec."""

from __future__ import annotations

from pydantic import ValidationError

from infra_agent.catalogue import find_target
from infra_agent.domain import Budget, CampaignSpec
from infra_agent.errors import WrongUse
from infra_agent.settings import Settings
from infra_agent.target import load_target


def request(
    settings: Settings,
    target: str,
    planner: str | None = None,
    experiments: int | None = None,
    minutes: float | None = None,
    seed: int | None = None,
    tokens: int | None = None,
    dollars: float | None = None,
    accelerator_s: float | None = None,
    parallel: int | None = None,
) -> CampaignSpec:
    """A campaign on a target; None means the default. Raises WrongUse, TargetInvalid."""
    limits = {
        "experiments": experiments, "minutes": minutes, "tokens": tokens, "dollars": dollars,
        "accelerator_s": accelerator_s,
    }  # fmt: skip
    budget = {name: v for name, v in limits.items() if v is not None}
    given = {"planner": planner or default_planner(settings, target), "seed": seed or 0, "parallel": parallel or 1}
    try:
        return CampaignSpec.model_validate({"target": target, "budget": Budget.model_validate(budget), **given})
    except ValidationError as error:
        problems = [f"{e['loc'][-1]}: {e['msg'].removeprefix('Value error, ')}" for e in error.errors()]
        raise WrongUse("\n".join(problems)) from error


def default_planner(settings: Settings, target: str) -> str:
    """The planner for a target when none is named: a model if one is set, else a search over its knobs.

    Raises TargetInvalid, and WrongUse when neither is possible.
    """
    if settings.has_model:
        return "llm"
    spec, _ = load_target(find_target(target))
    if spec.knobs:
        return "search"
    raise WrongUse(
        f"target {spec.name} declares no knobs to search, and no model is set. Set INFRA_AGENT_MODEL and "
        "OPENAI_API_KEY (or OPENAI_BASE_URL) for --planner llm, or give --planner script:FILE with proposals"
    )


def check_parallel(spec: CampaignSpec) -> None:
    """Raises WrongUse where a planner that proposes one change at a time is asked for several."""
    if spec.parallel > 1 and spec.planner == "external":
        raise WrongUse(
            "an external planner proposes one change at a time and sees its outcome before the next; leave --parallel "
            "out"
        )
