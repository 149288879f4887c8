"""From a planner's kind to the planner."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from infra_agent.domain import PORTFOLIO, UNSHARED, CampaignSpec, Proposal, planner_refusal
from infra_agent.errors import WrongUse
from infra_agent.planner import Planner
from infra_agent.planner.best_of_n import BestOfNPlanner
from infra_agent.planner.calls import CallsInMemory, ModelJournal
from infra_agent.planner.chance import RandomPlanner
from infra_agent.planner.external import ExternalPlanner
from infra_agent.planner.portfolio import PortfolioPlanner
from infra_agent.planner.scripted import ScriptedPlanner, read_script
from infra_agent.planner.search import SearchPlanner
from infra_agent.planner.spending import BookInMemory, Purse, SpendingBook
from infra_agent.settings import Settings
from infra_agent.target import TargetSpec

SCRIPT = "script:"


class Material(NamedTuple):
    """What a planner is made from, beside what the user asked for."""

    settings: Settings
    calls: ModelJournal
    """Where calls of a model are journalled."""
    script: tuple[Proposal, ...]
    say: Callable[[str], None]
    """Told what a person should know of how a model's endpoint is used."""
    book: SpendingBook
    """Where what the calls cost is kept."""


def scripted_proposals(planner: str, target: TargetSpec) -> tuple[Proposal, ...]:
    """The proposals of a `script:FILE`; none for any other planner. Raises WrongUse as `read_script` does."""
    if not planner.startswith(SCRIPT):
        return ()
    return read_script(Path(planner.removeprefix(SCRIPT)).expanduser(), target)


def build_planner(
    spec: CampaignSpec,
    settings: Settings,
    script: tuple[Proposal, ...] = (),
    calls: ModelJournal | None = None,
    say: Callable[[str], None] = lambda _: None,
    book: SpendingBook | None = None,
) -> Planner:
    """The planner that `spec` names. `script` is what `scripted_proposals` gave at the start of the campaign;
    `calls` is where model calls are journalled and `book` where their cost is, None if nothing will be planned; `say`
    is told what a person should know of a model's endpoint. Contacts no endpoint.

    Raises WrongUse for an unknown kind, a campaign without its script, a model that is not configured, and a budget in
    dollars with a model whose price is not known.
    """
    kind = spec.planner.partition(":")[0]
    if reason := planner_refusal(spec.planner):
        raise WrongUse(reason)
    calls, book = CallsInMemory() if calls is None else calls, BookInMemory() if book is None else book
    return KINDS[kind](spec, Material(settings, calls, script, say, book))


def _search(spec: CampaignSpec, material: Material) -> Planner:
    return SearchPlanner(spec.seed)


def _playbook(spec: CampaignSpec, material: Material) -> Planner:
    from infra_agent.planner.playbook import PlaybookPlanner

    return PlaybookPlanner()


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
            f"--planner {spec.planner} needs a model: set INFRA_AGENT_MODEL, and OPENAI_API_KEY or OPENAI_BASE_URL "
            "(any OpenAI-compatible endpoint); or use --planner search, which needs none"
        )
    # Importing the model's client takes longer than most commands; only this planner pays for it.
    from infra_agent.planner.llm import LlmPlanner

    purse = Purse(settings, spec.budget, material.book, material.calls.campaign_id)
    return LlmPlanner(settings, material.calls, say=material.say, purse=purse)


def _random(spec: CampaignSpec, material: Material) -> Planner:
    return RandomPlanner(spec.seed)


def _best_of_n(spec: CampaignSpec, material: Material) -> Planner:
    return BestOfNPlanner(_llm(spec, material))


def _portfolio(spec: CampaignSpec, material: Material) -> Planner:
    members = portfolio_members(spec.planner, material.settings)
    return PortfolioPlanner({kind: KINDS[kind](spec, material) for kind in members})


def portfolio_members(planner: str, settings: Settings) -> tuple[str, ...]:
    """The kinds that share a campaign's budget: those that are named, else all that need nothing, and `llm` where a
    model is set."""
    if planner.startswith(PORTFOLIO):
        return tuple(planner.removeprefix(PORTFOLIO).split(","))
    wanted = ("search", "playbook", "random", *(("llm",) if settings.has_model else ()))
    return tuple(kind for kind in wanted if kind in KINDS and kind not in UNSHARED)


KINDS: dict[str, Callable[[CampaignSpec, Material], Planner]] = {
    "llm": _llm,
    "search": _search,
    "random": _random,
    "best-of-n": _best_of_n,
    "portfolio": _portfolio,
    "playbook": _playbook,
    "external": _external,
    "script": _script,
}
