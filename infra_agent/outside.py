"""A campaign that someone outside plans: ask what a planner is shown, tell what to do next. The CLI, the MCP server and
later the API call these, as they call `commands`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from infra_agent import commands, ending, loop
from infra_agent.commands import Say, Watch
from infra_agent.dialogue import Dialogue
from infra_agent.domain import Campaign
from infra_agent.errors import WrongUse
from infra_agent.journal import Journal
from infra_agent.planner import Context, external
from infra_agent.planner.external import Answer, Call, ExternalPlanner
from infra_agent.planner.tools import Toolbox
from infra_agent.settings import Settings
from infra_agent.store import Store, is_locked, open_store


class Asked(NamedTuple):
    """What an outside planner is shown."""

    campaign: Campaign
    text: str
    tools: list[dict[str, object]]
    """The tools with the schemas of their arguments, as chat completions take them."""
    answers: tuple[Answer, ...]
    """Of calls that a kill had cut off, and that were taken up first."""


def ask(settings: Settings, campaign_id: str, watch: Watch, say: Say) -> Asked:
    """What the planner of an `external` campaign is shown. What a kill cut off is carried out first.

    Raises WrongUse for a campaign of another planner, one that ended, and one with something to take up that another
    process runs; otherwise as `run`.
    """
    found = _outside(settings, campaign_id)
    answers: tuple[Answer, ...] = ()
    if not _is_settled(settings, found):
        answers = tell(settings, found.id, (), watch, say).answers
        found = _outside(settings, found.id)
    with open_store(settings.database_url) as store:
        context = _context(settings, found, store, say)
        return Asked(found, external.opening(context), Toolbox(context).definitions(), answers)


def opening(settings: Settings, campaign_id: str, say: Say) -> str:
    """What the planner of an `external` campaign is shown, whoever runs it meanwhile; nothing is taken up."""
    found = _outside(settings, campaign_id)
    with open_store(settings.database_url) as store:
        return external.opening(_context(settings, found, store, say))


class Told(NamedTuple):
    """What came of calls."""

    campaign: Campaign
    journal: Journal
    answers: tuple[Answer, ...]
    ended_by: str
    """budget or planner, if the campaign ended; waiting if it goes on."""
    left: str
    """What the budgets still allow; empty if the campaign ended."""


def tell(settings: Settings, campaign_id: str, calls: Sequence[Call], watch: Watch, say: Say) -> Told:
    """Carry out calls of the planner of an `external` campaign, in order: what reads at once, what acts as the loop
    does for any planner. What a kill cut off is carried out first. A call that can't be carried out is an answer.

    Raises WrongUse for a campaign of another planner, one that ended, and, unless all calls only read, one that
    another process runs; otherwise as `run`.
    """
    found = _outside(settings, campaign_id)
    if calls and not any(call.acts for call in calls) and _may_read(settings, found):
        return look(settings, found.id, calls, say)
    with open_store(settings.database_url) as store:
        planner = ExternalPlanner(calls, Dialogue(store, found.id))
        ran = commands.run(settings, found.id, watch, say, planner)
        goes_on = ran.ended_by == loop.WAITING
        left = external.left(_context(settings, ran.campaign, store, say)) if goes_on else ""
        return Told(ran.campaign, ran.journal, tuple(planner.answers), ran.ended_by, left)


def look(settings: Settings, campaign_id: str, calls: Sequence[Call], say: Say) -> Told:
    """Carry out calls that only read, whoever runs the campaign meanwhile; nothing is taken up. Raises WrongUse."""
    found = _outside(settings, campaign_id)
    with open_store(settings.database_url) as store:
        context = _context(settings, found, store, say)
        answers = external.read(context, calls, Dialogue(store, found.id))
        return Told(found, context.journal, answers, loop.WAITING, external.left(context))


def _outside(settings: Settings, campaign_id: str) -> Campaign:
    """A campaign that is planned outside and goes on. Raises WrongUse."""
    found, _ = commands.campaign(settings, campaign_id)
    if found.spec.planner != "external":
        raise WrongUse(
            f"campaign {found.id} is planned by {found.spec.planner.partition(':')[0]}; only one that was started with "
            f"--planner external is asked and told"
        )
    ending.refuse_ended(found)
    return found


def _is_settled(settings: Settings, found: Campaign) -> bool:
    """Whether nothing was cut off, and the baseline is measured."""
    with open_store(settings.database_url) as store:
        with store.transaction(read_only=True) as ledger:
            journal = Journal(experiments=ledger.experiments(found.id))
        return bool(journal.finished) and not journal.unfinished and Dialogue(store, found.id).open() is None


def _may_read(settings: Settings, found: Campaign) -> bool:
    """Whether a reader need not take anything up: nothing was cut off, or another process is at it."""
    return _is_settled(settings, found) or is_locked(commands.campaign_directory(settings, found.id), found.id)


def _context(settings: Settings, found: Campaign, store: Store, say: Say) -> Context:
    """What a planner is shown now."""
    desk = commands.make_desk(settings, found, store, lambda event: None, say, time.monotonic())
    return loop.context(desk, desk.journal())
