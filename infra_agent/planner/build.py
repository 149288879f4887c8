"""From a planner's kind to the planner."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from infra_agent.domain import CampaignSpec, Proposal
from infra_agent.errors import WrongUse
from infra_agent.planner import Planner
from infra_agent.planner.calls import CallsInMemory, ModelJournal
from infra_agent.planner.external import ExternalPlanner
from infra_agent.planner.scripted import ScriptedPlanner, read_script
from infra_agent.planner.search import SearchPlanner
from infra_agent.settings import Settings
from infra_agent.target import TargetSpec

SCRIPT = "script:"


class Material(NamedTuple):
    """What a planner is made from, beside what the user asked for."""

    settings: Settings
    calls: ModelJournal
    """Where calls of a model are journalled."""
    script: tuple[Proposal, ...]


def scripted_proposals(planner: str, target: TargetSpec) -> tuple[Proposal, ...]:
    """The proposals of a `script:FILE`; none for any other planner. Raises WrongUse as `read_script` does."""
    if not planner.startswith(SCRIPT):
        return ()
    return read_script(Path(planner.removeprefix(SCRIPT)).expanduser(), target)


def build_planner(
    spec: CampaignSpec, settings: Settings, script: tuple[Proposal, ...] = (), calls: ModelJournal | None = None
) -> Planner:
    """The planner that `spec` names. `script` is what `scripted_proposals` gave at the start of the campaign;
    `calls` is where model calls are journalled, None if nothing will be planned. Contacts no endpoint.

    Raises WrongUse for an unknown kind, a campaign without its script and a model that is not configured.
    """
    kind = "script" if spec.planner.startswith(SCRIPT) else spec.planner
    if kind not in KINDS:
        raise WrongUse(f"unknown planner {spec.planner!r}; use {', '.join(KINDS)} (script:FILE)")
    return KINDS[kind](spec, Material(settings, CallsInMemory() if calls is None else calls, script))


def _search(spec: CampaignSpec, material: Material) -> Planner:
    return SearchPlanner(spec.seed)


def _external(spec: CampaignSpec, material: Material) -> Planner:
    return ExternalPlanner()


def _script(spec: CampaignSpec, material: Material) -> Planner:
    if not material.script:
        raise WrongUse(
            "this campaign was started by an earlier version, which did not keep its script; start a new one"
        )
    return ScriptedPlanner(Path(spec.planner.removeprefix(SCRIPT)).name, material.script)


def _llm(spec: CampaignSpec, material: Material) -> Planner:
    settings = material.settings
    if not settings.has_model:
        raise WrongUse(
            "--planner llm needs a model: set INFRA_AGENT_MODEL, and OPENAI_API_KEY or OPENAI_BASE_URL "
            "(any OpenAI-compatible endpoint); or use --planner search, which needs none"
        )
    # Importing the model's client takes longer than most commands; only this planner pays for it.
    from infra_agent.planner.llm import LlmPlanner

    return LlmPlanner(settings, material.calls)


KINDS: dict[str, Callable[[CampaignSpec, Material], Planner]] = {
    "llm": _llm,
    "search": _search,
    "external": _external,
    "script": _script,
}
