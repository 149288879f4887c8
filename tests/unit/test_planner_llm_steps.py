"""A step with investigations: taken up again after each, it costs exactly one call of the model a turn, and a resume
costs none, whatever the journal has learned meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from planning import FAST, context, make_planner, proposal, stopped

from feedback.signals import ParamLocation, Signal
from feedback.verdict import Verdict, VerdictKind
from infra_agent.domain import Change, Experiment, Hypothesis, Proposal, State
from infra_agent.errors import ModelUnavailable
from infra_agent.investigation import MAX_INVESTIGATIONS
from infra_agent.planner import Action, Context, Investigate, Propose
from infra_agent.planner.calls import CallsInMemory
from infra_agent.planner.llm import LlmPlanner
from infra_agent.planner.testing import Raw, ScriptedEndpoint, called, failed, written

JOURNAL = ("read_journal", {})


def asking(question: str) -> tuple[str, dict[str, Any]]:
    return "investigate", {"question": question, "probe": "bench"}


def signal(message: str) -> Signal:
    """All of these are one signal as far as its fingerprint goes."""
    return Signal(
        rule_id="performance.bench_delta", level="warning", finding="observed", message=message,
        locations=(ParamLocation(name="threads", value=16),),
    )  # fmt: skip


def found(number: int, role: str, message: str) -> Experiment:
    asked = Proposal(hypothesis=Hypothesis(claim=message, question=message), change=Change(), probe="bench")
    return Experiment.model_validate(
        {
            "id": f"e{number}", "campaign_id": "c", "number": number, "role": role, "state": State.COMPLETE,
            "parent_commit": "base", "signals": (signal(message[:400]),),
            "proposal": asked,
            "verdict": Verdict(kind=VerdictKind.INCONCLUSIVE, reasons=(message,)),
        }
    )  # fmt: skip


BEFORE = (found(0, "baseline", "the baseline"), found(1, "change", "an earlier change"))


def step(planner: LlmPlanner, tree: Path) -> tuple[Action, list[Investigate], list[Experiment]]:
    """What the loop does with a planner until it ends its step: each investigation is measured and journalled."""
    done = list(BEFORE)
    asked: list[Investigate] = []
    while isinstance(action := planner.next_action(seen(tree, done)), Investigate):
        asked.append(action)
        done.append(found(len(done), "investigation", f"answer to {action.question}"))
    return action, asked, done


def seen(tree: Path, done: list[Experiment]) -> Context:
    """The context as the loop makes it; what it says of time and of investigations differs each time."""
    left = MAX_INVESTIGATIONS - (len(done) - len(BEFORE))
    varying = {"investigations_left": left, "seconds_left": 1000.0 + left}
    return context(tree, *done, digest="the digest").model_copy(update=varying)


TURNS = [
    called(JOURNAL, ("read_evidence", {"id": f"#1/{signal('').fingerprint}"})),
    called(("read_file", {"path": "launch.toml"}), asking("first?")),
    called(JOURNAL),
    called(asking("second?"), asking("third?")),
    called(("read_evidence", {"id": f"#1/{signal('').fingerprint}"}), ("read_journal", {"number": 3})),
    called(proposal(edits=[FAST], evidence=["#2", f"#1/{signal('').fingerprint}"])),
]


def test_a_step_costs_one_call_a_turn_and_its_repetition_none(endpoint: ScriptedEndpoint, tree: Path) -> None:
    calls = CallsInMemory("c")
    endpoint.answers = [*TURNS]
    action, asked, done = step(make_planner(endpoint, calls), tree)
    assert isinstance(action, Propose)
    assert [investigation.question for investigation in asked] == ["first?", "second?", "third?"]
    assert len(endpoint.requests) == len(calls.calls) == len(TURNS)
    results = endpoint.results()
    assert any("answer to first?" in r for r in results)
    for there in range(len(BEFORE), len(done) + 1):  # killed at any moment and taken up by a new process
        again = make_planner(endpoint, calls).next_action(seen(tree, done[:there]))
        index = there - len(BEFORE)
        assert again == (asked[index] if index < len(asked) else action)
    assert len(endpoint.requests) == len(TURNS)


def test_until_it_is_asked_nothing_knows_an_answer(endpoint: ScriptedEndpoint, tree: Path) -> None:
    endpoint.answers = [*TURNS]
    step(make_planner(endpoint), tree)
    journal, evidence, _, first, later = endpoint.results()[:5]
    assert "an earlier change" in journal
    assert "first?" not in journal
    assert "first?" not in evidence
    assert "answer to first?" in first
    assert "#2 asked bench: answer to first?" in later  # the same call, but there is something new to know


def test_the_opening_is_the_same_in_all_calls_of_a_step(endpoint: ScriptedEndpoint, tree: Path) -> None:
    endpoint.answers = [*TURNS]
    step(make_planner(endpoint), tree)
    openings = [request["messages"][:2] for request in endpoint.requests]
    assert all(opening == openings[0] for opening in openings)
    assert f"Investigations in this step: {MAX_INVESTIGATIONS}" in openings[0][1]["content"]


def test_the_next_step_is_told_of_what_was_asked(endpoint: ScriptedEndpoint, tree: Path) -> None:
    endpoint.answers = [*TURNS]
    _, _, done = step(make_planner(endpoint), tree)
    endpoint.answers = [called(stopped("done"))]
    make_planner(endpoint).next_action(seen(tree, [*done, found(len(done), "change", "the change")]))
    text = endpoint.requests[-1]["messages"][1]["content"]
    assert "#3 asked bench: answer to second?" in text
    assert "the change" in text


def test_investigations_that_are_used_up_are_refused_in_every_repetition(
    endpoint: ScriptedEndpoint, tree: Path
) -> None:
    calls = CallsInMemory("c")
    questions = [called(asking(f"{n}?")) for n in range(MAX_INVESTIGATIONS + 1)]
    endpoint.answers = [*questions, called(proposal(knobs={"threads": 2}))]
    action, asked, done = step(make_planner(endpoint, calls), tree)
    assert isinstance(action, Propose)
    assert len(asked) == MAX_INVESTIGATIONS
    assert "investigations are used up" in endpoint.results()[-1]
    assert make_planner(endpoint, calls).next_action(seen(tree, done)) == action
    assert len(endpoint.requests) == MAX_INVESTIGATIONS + 2


@pytest.mark.parametrize(
    "refusal",
    [failed(400, "maximum context length is 30000 tokens"), failed(400, "tools are not supported")],
    ids=["window", "tools"],
)
def test_a_refusal_in_the_middle_is_repeated_at_the_same_place(
    endpoint: ScriptedEndpoint, tree: Path, refusal: Raw
) -> None:
    calls = CallsInMemory("c")
    ends = written(*stopped("done")) if b"tools" in refusal.body else called(stopped("done"))
    asks = written(*asking("second?")) if b"tools" in refusal.body else called(asking("second?"))
    endpoint.answers = [called(asking("first?")), refusal, asks, ends]
    action, asked, done = step(make_planner(endpoint, calls), tree)
    assert len(asked) == 2
    assert len(endpoint.requests) == 4
    for there in range(len(BEFORE), len(done) + 1):
        make_planner(endpoint, calls).next_action(seen(tree, done[:there]))
    assert make_planner(endpoint, calls).next_action(seen(tree, done)) == action
    assert len(endpoint.requests) == 4


def test_an_investigation_asked_again_is_a_repetition_and_no_measurement(
    endpoint: ScriptedEndpoint, tree: Path
) -> None:
    calls = CallsInMemory("c")
    endpoint.answers = [called(asking("same?"))] * 3
    with pytest.raises(ModelUnavailable, match="the same call again and again: investigate"):
        step(make_planner(endpoint, calls), tree)
    assert len(calls.calls) == 3


def test_the_answer_to_an_investigation_is_found_in_the_journal_once_it_is_left_out(
    endpoint: ScriptedEndpoint, tree: Path
) -> None:
    (tree / "long.c").write_text("int x = f(1); // why\n" * 400)
    reads = [called(("read_file", {"path": "long.c", "start": n})) for n in range(1, 16)]
    endpoint.answers = [called(asking(f"first? {'why ' * 200}")), *reads, called(stopped("done"))]
    planner = make_planner(endpoint, context=16_384)
    step(planner, tree)
    assert endpoint.results()[0].endswith('read_journal with {"number": 2} shows it]')
