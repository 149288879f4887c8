"""Experiments conducted with real workers, where what happens between the stages matters."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from toy_campaign import make_target

from feedback.verdict import VerdictKind
from infra_agent.bench import Site
from infra_agent.domain import Change, Experiment, Hypothesis, Proposal, State
from infra_agent.experiment import UNCONFIRMED, conduct
from infra_agent.lab import Lab
from infra_agent.target import load_target
from sandboxes.bubblewrap import probe_host
from sandboxes.workspace import Repository

pytestmark = pytest.mark.skipif(not probe_host().available, reason="this host refuses a sandbox")


def test_time_that_ends_before_the_confirmation_leaves_the_first_measurement_to_see(tmp_path: Path) -> None:
    source = make_target(tmp_path / "toy")
    spec, _ = load_target(source)
    repository, base, _ = Repository.create(tmp_path / "repo", source, spec.hidden)
    said: list[str] = []
    deadline_s = 0.0

    def say(text: str) -> None:
        said.append(text)
        if "confirming" in text:
            time.sleep(max(0.0, deadline_s - time.monotonic()))

    lab = Lab(Site(spec, repository, {}), tmp_path / "runs", None, say)
    experiment = Experiment(
        id="exp_1", campaign_id="c", number=1, role="change", state=State.RUNNING, parent_commit=base,
        proposal=Proposal(hypothesis=Hypothesis(claim="one copy"), change=Change(knobs={"copies": 1})),
    )  # fmt: skip
    for _ in range(4):  # work that is 16 times less may stay undecided while the machine is busy, but not forever
        deadline_s = time.monotonic() + 30.0
        outcome = conduct(lab._replace(deadline_s=deadline_s), experiment)
        if any("confirming" in text for text in said):
            break
    assert any("confirming" in text for text in said)
    assert outcome.verdict.kind is VerdictKind.INCONCLUSIVE
    assert outcome.verdict.reasons == (UNCONFIRMED,)
    assert not outcome.confirmed
    (effect,) = outcome.effects
    assert effect.improvement_interval[0] > 0.3
