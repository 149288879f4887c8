"""A signal's id in a campaign: it names its experiment, and one that may mean several signals is not guessed at."""

from __future__ import annotations

from typing import Any

import pytest
from planning import context, make_tree

from feedback.signals import CodeLocation, Signal
from infra_agent.citation import Cited, ambiguity, cited, prefix
from infra_agent.domain import Change, Experiment, Hypothesis, Proposal, State
from infra_agent.planner import Context
from infra_agent.planner.evidence import doubt
from infra_agent.planner.forms import ReadEvidence
from infra_agent.planner.reading import Reader
from infra_agent.planner.tree import NotReadable


def signal(rule: str = "performance.bench_delta", file: str = "kernels/step.c", message: str = "faster") -> Signal:
    return Signal(
        rule_id=rule, level="note", finding="observed", message=message, locations=(CodeLocation(file=file),)
    )  # fmt: skip


def experiment(number: int, *signals: Signal, **more: Any) -> Experiment:
    return Experiment.model_validate(
        {
            "id": f"e{number}", "campaign_id": "c", "number": number, "role": "change", "state": State.COMPLETE,
            "parent_commit": "base", "signals": signals,
            "proposal": Proposal(hypothesis=Hypothesis(claim="c"), change=Change()), **more,
        }
    )  # fmt: skip


GAIN, OTHER = signal(), signal("performance.instructions", message="less work")
HIDDEN = signal("correctness.hidden_probe", message="failed")
THREE, FIVE = experiment(3, GAIN, OTHER, HIDDEN), experiment(5, signal(message="faster still"), role="investigation")


@pytest.fixture
def at(tmp_path: Any) -> Context:
    return context(make_tree(tmp_path), THREE, FIVE)


def read(at: Context, id: str) -> str:
    return Reader(at).read_evidence(ReadEvidence(id=id))


def test_an_id_names_its_experiment() -> None:
    assert prefix(THREE) == "#3/"
    assert Cited(THREE, GAIN).id == f"#3/{GAIN.fingerprint}"
    for given in (f"#3/{GAIN.fingerprint}", f"[#3/{GAIN.fingerprint[:5]}]", f" #3/{GAIN.fingerprint} "):
        assert cited((THREE, FIVE), given) == (Cited(THREE, GAIN),)


def test_a_bare_fingerprint_means_one_signal_or_is_ambiguous() -> None:
    assert cited((THREE, FIVE), OTHER.fingerprint) == (Cited(THREE, OTHER),)
    both = cited((THREE, FIVE), GAIN.fingerprint)
    assert [c.experiment.number for c in both] == [5, 3]
    assert cited((THREE, FIVE), f"#4/{GAIN.fingerprint}") == ()
    assert cited((THREE, FIVE), GAIN.fingerprint[:3]) == ()
    said = ambiguity(GAIN.fingerprint, both)
    assert said == (
        f"{GAIN.fingerprint} may mean 2 signals, say which: #5/{GAIN.fingerprint} (performance.bench_delta of the "
        f"investigation), #3/{GAIN.fingerprint} (performance.bench_delta of a change)"
    )


def test_evidence_that_may_mean_several_signals_is_sent_back_with_them(at: Context) -> None:
    assert (
        doubt(
            [
                OTHER.fingerprint,
                f"#5/{GAIN.fingerprint}",
                "threads",
                "kernels/step.c:2",
                "/tree/kernels/step.c:3",
                "#3",
            ],
            at,
        )
        is None
    )
    said = doubt([GAIN.fingerprint[:6]], at)
    assert said is not None
    assert f"#3/{GAIN.fingerprint}" in said
    assert f"#5/{GAIN.fingerprint}" in said


@pytest.mark.parametrize(
    ("given", "near"),
    [
        (f"#3/{FIVE.id}", f"#3, #3/{GAIN.fingerprint}"),
        ("#3/0123456789ab", f"#3/{GAIN.fingerprint}"),
        (GAIN.fingerprint[:-1] + "x", GAIN.fingerprint),
        ("the instructions", "#5/"),
        ("instructions", f"#3/{OTHER.fingerprint} (performance.instructions)"),
        ("kernels/step.c:99", "kernels/step.c:1 (it has 6 lines)"),
        ("step.c:2", "kernels/step.c:1"),
        ("thread", "threads"),
        ("#9", f"#5/{GAIN.fingerprint} (performance.bench_delta)"),
        ("kqrstuvgghij", "#5"),  # the mark of a quotation
    ],
)
def test_what_is_no_evidence_is_sent_back_with_the_kinds_and_what_is_near(at: Context, given: str, near: str) -> None:
    said = doubt(["#3", given], at)
    assert said is not None
    assert said.startswith(f"no such evidence: {given}. May be cited: ")
    assert "path:line" in said
    assert near in said.partition("For example ")[2]
    assert HIDDEN.fingerprint not in said
    assert len(said) < 900


def test_in_a_campaign_without_signals_there_is_still_something_to_cite(tmp_path: Any) -> None:
    said = doubt(["0123456789ab"], context(make_tree(tmp_path)))
    assert said is not None
    assert said.partition("For example ")[2].startswith("threads, ")
    assert "answers.json" not in said


def test_the_evidence_that_is_read_is_that_of_the_experiment_that_the_id_names(at: Context) -> None:
    assert "faster still" in read(at, f"#5/{GAIN.fingerprint}")
    assert f"[#3/{GAIN.fingerprint}]" in read(at, f"#3/{GAIN.fingerprint}")
    assert "less work" in read(at, OTHER.fingerprint)
    with pytest.raises(NotReadable, match=f"say which: #5/{GAIN.fingerprint}.*#3/{GAIN.fingerprint}"):
        read(at, GAIN.fingerprint)
    with pytest.raises(NotReadable, match=f"for example, #3/{GAIN.fingerprint}.*#3/{OTHER.fingerprint}"):
        read(at, "#3")
    with pytest.raises(NotReadable, match=f"for example, #5/{GAIN.fingerprint}"):
        read(at, "#7/0123456789ab")
    with pytest.raises(NotReadable, match="nothing is told"):
        read(at, f"#3/{HIDDEN.fingerprint}")
