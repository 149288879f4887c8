"""What a planner is told of the machine, of the gain so far and of the time, and that a resume tells the same."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from planning import context

from feedback.signals import Effect
from feedback.verdict import Verdict, VerdictKind
from infra_agent import host
from infra_agent.domain import Change, Experiment, Hypothesis, Proposal, State
from infra_agent.planner.best_of_n import sample
from infra_agent.planner.prompt import campaign

START = datetime(2026, 1, 1, tzinfo=UTC)


def experiment(number: int, role: str, start_s: float, end_s: float, **more: Any) -> Experiment:
    fields: dict[str, Any] = {
        "id": f"e{number}", "campaign_id": "c", "number": number, "role": role, "state": State.COMPLETE,
        "parent_commit": "base", "started_at": START + timedelta(seconds=start_s),
        "finished_at": START + timedelta(seconds=end_s),
        "proposal": Proposal(hypothesis=Hypothesis(claim="c"), change=Change(knobs={"threads": number})),
    }  # fmt: skip
    return Experiment.model_validate(fields | more)


def accepted(number: int, start_s: float, parent: str, commit: str, ratio: float) -> Experiment:
    gained = Effect(
        metric="slice_time_s", direction="minimize", baseline=1.0, measured=ratio, ratio=ratio, ratio_lo=ratio,
        ratio_hi=ratio, confidence=0.95, method="t", n_units=5, n_observations=20, floor=0.02, floor_known=True,
    )  # fmt: skip
    return experiment(
        number, "change", start_s, start_s + 60, parent_commit=parent, commit=commit, confirmed=True, effects=(gained,),
        verdict=Verdict(kind=VerdictKind.ACCEPT, reasons=("r",)), model_s=30.0,
    )  # fmt: skip


BASELINE = experiment(0, "baseline", 0, 60, commit="base")
ONE, TWO = accepted(1, 100, "base", "one", 0.5), accepted(2, 200, "one", "two", 0.8)


def told(tree: Path, *experiments: Experiment, **more: Any) -> list[str]:
    shown = context(tree, *experiments).model_copy(update=more)
    return campaign(shown, 1000, 100, 1000).splitlines()


def test_the_machine_is_told_of_in_a_line(tree: Path) -> None:
    assert "Measuring machine: 2 cores; Ryzen; vector sets: avx2" in told(tree, machine="Ryzen;\nvector sets: avx2")
    assert "Measuring machine: 2 cores; nothing else is known of it" in told(tree)


def test_facts_of_this_machine_are_short_and_do_not_change() -> None:
    facts = host.facts()
    assert facts.startswith(f"{host.cpu_model()[:100]}; vector sets: ")
    assert "; caches of a CPU: " in facts
    assert "; compiler: " in facts
    assert "\n" not in facts
    assert len(facts) < 600
    host.facts.cache_clear()
    assert host.facts() == facts


def test_the_whole_gain_is_that_of_the_accepted_changes_together(tree: Path) -> None:
    assert "Confirmed gain when this step began: none" in told(tree, BASELINE)
    assert "Confirmed gain when this step began: slice_time_s +50.0% against the original, by #1" in told(
        tree, BASELINE, ONE
    )
    both = "slice_time_s +60.0% against the original, by #1, #2, each measured against the one before"
    assert f"Confirmed gain when this step began: {both}" in told(tree, BASELINE, ONE, TWO)


def test_the_time_is_that_of_the_journal_when_the_step_began(tree: Path) -> None:
    line = "Time since the campaign's start by then: about 4.0 minutes used, 6.0 left"
    assert line in told(tree, BASELINE, ONE, TWO, minutes=10.0)
    asked = experiment(3, "investigation", 300, 500)
    assert told(tree, BASELINE, ONE, TWO, asked, minutes=10.0) == told(tree, BASELINE, ONE, TWO, minutes=10.0)
    assert "Time since the campaign's start by then: about 1.0 minutes used" in told(tree, BASELINE)
    assert "Time since the campaign's start by then: about 4.0 minutes used, 0.0 left" in told(
        tree, BASELINE, ONE, TWO, minutes=3.0
    )


def test_an_independent_sample_is_told_nothing_of_the_campaign(tree: Path) -> None:
    shown = sample(context(tree, BASELINE, ONE, TWO).model_copy(update={"minutes": 10.0}), 3, 1)
    text = campaign(shown, 1000, 100, 1000)
    assert "Confirmed gain" not in text
    assert "minutes used" not in text


def test_what_a_slice_and_an_investigation_call_the_same_work_is_said(tree: Path) -> None:
    assert any("time_s of an investigation is that of a single repetition" in line for line in told(tree))
