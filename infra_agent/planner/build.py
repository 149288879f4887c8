"""From a planner's kind to the planner."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from infra_agent.domain import CampaignSpec
from infra_agent.errors import WrongUse
from infra_agent.planner import Planner
from infra_agent.planner.calls import CallsInMemory, ModelJournal
from infra_agent.planner.scripted import ScriptedPlanner
from infra_agent.planner.search import SearchPlanner
from infra_agent.settings import Settings

SCRIPT = "script:"


def build_planner(spec: CampaignSpec, settings: Settings, calls: ModelJournal | None) -> Planner:
    """The planner that `spec` names; `calls` is where its model calls are journalled, None if nothing will be
    planned. Contacts no endpoint.

    Raises WrongUse for an unknown kind, a script that can't be used and a model that is not configured.
    """
    kind = "script" if spec.planner.startswith(SCRIPT) else spec.planner
    if kind not in KINDS:
        raise WrongUse(f"unknown planner {spec.planner!r}; use {', '.join(KINDS)} (script:FILE)")
    return KINDS[kind](spec, settings, CallsInMemory() if calls is None else calls)


def _search(spec: CampaignSpec, settings: Settings, calls: ModelJournal) -> Planner:
    return SearchPlanner(spec.seed)


def _script(spec: CampaignSpec, settings: Settings, calls: ModelJournal) -> Planner:
    return ScriptedPlanner(Path(spec.planner.removeprefix(SCRIPT)).expanduser())


def _llm(spec: CampaignSpec, settings: Settings, calls: ModelJournal) -> Planner:
    if not settings.has_model:
        raise WrongUse(
            "--planner llm needs a model: set INFRA_AGENT_MODEL, and OPENAI_API_KEY or OPENAI_BASE_URL "
            "(any OpenAI-compatible endpoint); or use --planner search, which needs none"
        )
    # Importing the model's client takes longer than most commands; only this planner pays for it.
    from infra_agent.planner.llm import LlmPlanner

    return LlmPlanner(settings, calls)


KINDS: dict[str, Callable[[CampaignSpec, Settings, ModelJournal], Planner]] = {
    "llm": _llm,
    "search": _search,
    "script": _script,
}
