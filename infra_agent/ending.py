"""How a run of a campaign ends before its time: stopped, so that it can be resumed, or failed for good."""

from __future__ import annotations

from contextlib import suppress

from infra_agent.bench import BaselineFailed
from infra_agent.domain import Campaign, CampaignState, State, now
from infra_agent.errors import InfraAgentError, PlatformFailed, StoreUnavailable, WrongUse
from infra_agent.journal import Journal
from infra_agent.report import words
from infra_agent.store import Store
from sandboxes.sandbox import SandboxError


def closed(campaign: Campaign, state: CampaignState, reason: str, elapsed_s: float) -> Campaign:
    """The campaign's record at the end of a run; one that was stopped, or waits, is not finished."""
    finished_at = None if state in (CampaignState.STOPPED, CampaignState.WAITING) else now()
    return campaign.model_copy(
        update={"state": state, "stop_reason": reason, "finished_at": finished_at, "elapsed_s": elapsed_s}
    )


def reopened(campaign: Campaign) -> Campaign:
    """The campaign's record while a run of it goes on."""
    return campaign.model_copy(update={"state": CampaignState.RUNNING, "stop_reason": "", "finished_at": None})


def refuse_failed(campaign: Campaign) -> None:
    """Raises WrongUse for a campaign that failed for good."""
    if campaign.state is CampaignState.FAILED:
        raise WrongUse(
            f"campaign {campaign.id} failed because the unchanged target does, and a resume is bound to the commit "
            f"that it was started from. {_start_anew(campaign)}\nWhat went wrong: {campaign.stop_reason}"
        )


def refuse_ended(campaign: Campaign) -> None:
    """Raises WrongUse for a campaign that failed for good or is complete."""
    refuse_failed(campaign)
    if campaign.state is CampaignState.COMPLETE:
        raise WrongUse(
            f"campaign {campaign.id} is complete; see it with `infra-agent show {campaign.id}`, or go on "
            f"with a larger budget: `infra-agent run --resume {campaign.id} --experiments "
            f"{campaign.spec.budget.experiments + 10}`"
        )


def keep_end(store: Store, campaign: Campaign, error: BaseException, elapsed_s: float) -> Campaign:
    """Store that an error ended the run, and why; returns the campaign as stored.

    Failed for good is one whose baseline was never measured. A baseline that fails only later was sound before, so
    such a campaign can be resumed. Where the store itself is the failure, the campaign's lock tells later on.
    """
    reason = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error) or type(error).__name__
    ended = closed(campaign, CampaignState.STOPPED, reason, elapsed_s)
    with suppress(StoreUnavailable), store.transaction() as ledger:
        journal = Journal(experiments=ledger.experiments(campaign.id))
        if isinstance(error, BaselineFailed) and not journal.finished:
            ended = closed(campaign, CampaignState.FAILED, reason, elapsed_s)
            for cut_off in journal.unfinished:
                ledger.update_experiment(cut_off.model_copy(update={"state": State.FAILED, "finished_at": now()}))
        ledger.update_campaign(ended)
        ledger.add_event(campaign.id, f"campaign_{ended.state.value}", {"reason": reason})
    return ended


def explained(error: InfraAgentError | SandboxError, ended: Campaign) -> InfraAgentError:
    """The same error with what to do next."""
    kind = PlatformFailed if isinstance(error, SandboxError) else type(error)
    if ended.state is CampaignState.FAILED:
        return kind(f"{error}\n{_start_anew(ended)}")
    unharmed = "Nothing was recorded against a change. " if issubclass(kind, PlatformFailed) else ""
    return kind(f"{error}\n{unharmed}Continue with `infra-agent run --resume {ended.id}`.")


def _start_anew(campaign: Campaign) -> str:
    command = words.run_command(campaign.spec.target, campaign.spec.planner)
    return f"Mend the target, then start a new campaign: `{command}`."
