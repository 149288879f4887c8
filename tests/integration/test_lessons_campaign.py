"""Lessons through the command line: a real campaign leaves them, the next one is told, a person corrects them."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_campaign import Cli, Done

from infra_agent import commands
from infra_agent.domain import Budget, CampaignSpec
from infra_agent.settings import load_settings
from infra_agent.store import open_store
from sandboxes.bubblewrap import probe_host

pytestmark = pytest.mark.skipif(not probe_host().available, reason="this host refuses a sandbox")


def done(found: Done, code: int = 0) -> Done:
    assert found.code == code, found.err
    return found


def test_what_a_campaign_learned_is_told_to_the_next_and_corrected_by_a_person(cli: Cli, toy: Path) -> None:
    assert done(cli("lessons", "--json")).json == {"lessons": []}
    done(cli("run", str(toy), "--planner", "script:scripts/all.toml", "--json"))
    lessons = done(cli("lessons", "--target", "toy", "--json")).json["lessons"]
    # The second proposal is refused before anything runs: it teaches nothing.
    assert [(one["changed"], one["verdict"], one["confirmed"]) for one in lessons] == [
        ({"copies": 1}, "accept", True), ({"copies": 32}, "reject", False),
    ]  # fmt: skip
    assert all(one["target_name"] == "toy" and one["gain"] is not None for one in lessons)
    won, lost = (one["id"] for one in lessons)

    settings = load_settings({"INFRA_AGENT_HOME": str(cli.home)})
    again = commands.start(settings, CampaignSpec(target=str(toy), planner="search", budget=Budget(experiments=1)))
    assert "copies" in done(cli("lessons", "show", won)).out
    done(cli("lessons", "edit", lost, "--text", "slow on purpose", "--by", "ada"))
    shown = done(cli("lessons", "show", lost)).out
    assert "slow on purpose" in shown
    assert "ada on 2" in shown
    done(cli("lessons", "delete", won))
    assert [one["id"] for one in done(cli("lessons", "--json")).json["lessons"]] == [lost]
    with open_store(settings.database_url) as store, store.transaction(read_only=True) as ledger:
        told = ledger.told_lessons(again.id)
    assert [(one.id, one.text) for one in told] == [(won, ""), (lost, "")]

    wrong = done(cli("lessons", "delete", won, "--json"), 2)
    assert wrong.json["error"]["type"] == "NotFound"
    assert "`infra-agent lessons` lists" in wrong.json["error"]["message"]
    assert done(cli("lessons", "edit", lost, "--text", " "), 2).err.count("--text is empty") == 1
    assert "stand after it" in done(cli("lessons", "--json", "show", lost), 2).err


def test_the_playbook_plans_a_real_campaign_and_says_what_it_lacks(cli: Cli, toy: Path) -> None:
    """Its one knob is called like nothing that the playbook knows, so it looks and stops with reasons."""
    found = done(cli("run", str(toy), "--planner", "playbook", "--experiments", "3", "--json")).json
    assert found["ended_by"] == "planner"
    reason = found["stop_reason"]
    assert "the playbook has no move left after 0 changes" in reason
    assert "evidence that no probe of this target gives" in reason
    assert "launch parameters" not in reason.partition("not tried")[2] or "no rule called for it" in reason
