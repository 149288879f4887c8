"""The planner outside: what it is told is carried out in order, written down before it acts, and taken up once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from feedback.verdict import Verdict, VerdictKind
from infra_agent.dialogue import Dialogue, exchanges
from infra_agent.domain import Campaign, CampaignSpec, Change, Experiment, Hypothesis, Proposal, Role, State
from infra_agent.journal import Journal
from infra_agent.planner import Context, Investigate, Propose, Stop, Waiting
from infra_agent.planner.external import Call, ExternalPlanner, Open, opening, read, read_calls
from infra_agent.planner.forms import TOOLS
from infra_agent.planner.tools import Toolbox
from infra_agent.store import Store, open_store
from infra_agent.target import TargetSpec

SPEC = TargetSpec.model_validate(
    {
        "schema": 1,
        "name": "example",
        "description": "an example",
        "editable": ["*"],
        "hidden": ["secret"],
        "objective": {"metric": "slice_time_s", "direction": "minimize", "probe": "bench"},
        "launch_file": {"path": "launch.toml"},
        "knobs": [{"name": "threads", "description": "", "key": "threads", "minimum": 1, "maximum": 8}],
        "probes": [
            {"name": "bench", "kind": "microbench", "method": "slices", "worker": ["true"], "params": {"batch": 1}}
        ],
    }
)
READ = Call(tool="read_file", arguments={"path": "kernel.c"})
MISSING = Call(tool="read_file", arguments={"path": "secret"})
ASK = Call(tool="investigate", arguments={"question": "How long?", "probe": "bench", "params": {"batch": [1, 4]}})
STOP = Call(tool="stop", arguments={"reason": "enough", "left": {"launch parameters": "no", "kernels": "no",
                                                                  "host code": "no"}})  # fmt: skip


def propose(threads: int = 2, **changed: Any) -> Call:
    hypothesis = {
        "claim": "Fewer threads help", "mechanism": "They wait.", "location": "threads", "question": "Is it faster?",
        "evidence": ["threads"], "falsifier": "It is not.", "lever_family": "launch parameters",
        "predicted": {"metric": "slice_time_s", "direction": "down", "low": 0.1}, "knobs": {"threads": threads},
    }  # fmt: skip
    return Call(tool="propose", arguments=hypothesis | changed)


def experiment(number: int, role: Role = "change", state: State = State.COMPLETE, claim: str = "c") -> Experiment:
    hypothesis = Hypothesis(claim=claim, question=claim)
    return Experiment(
        id=f"e{number}", campaign_id="cmp", number=number, role=role, state=state, parent_commit="0" * 40,
        proposal=Proposal(hypothesis=hypothesis, change=Change(), probe="bench"), confirmed=role == "change",
        verdict=Verdict(kind=VerdictKind.ACCEPT, reasons=("it is faster",)),
    )  # fmt: skip


BASELINE = experiment(0, "baseline")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    root.mkdir()
    (root / "kernel.c").write_text("int step;\n")
    (root / "secret").write_text("hidden\n")
    (root / "launch.toml").write_text("threads = 8\n")
    return root


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path / 'a.db'}") as store:
        with store.transaction() as ledger:
            ledger.add_campaign(Campaign(
                id="cmp", spec=CampaignSpec(target="/t", planner="external"), target_name="example", target_toml="",
                source_commit="", base_commit="0" * 40, host_fingerprint="h",
            ))  # fmt: skip
        yield store


def at(tree: Path, *experiments: Experiment, left: int = 5) -> Context:
    return Context(
        spec=SPEC, journal=Journal(experiments=experiments or (BASELINE,)), parent_commit="0" * 40, parent_tree=tree,
        knobs={"threads": 8}, cores=2, digest="", experiments_left=left, seconds_left=None, investigations_left=6,
    )  # fmt: skip


def planner(store: Store, *calls: Call) -> ExternalPlanner:
    return ExternalPlanner(calls, Dialogue(store, "cmp"))


def texts(planner: ExternalPlanner) -> Sequence[str]:
    return [f"{a.call.tool}{' refused' if a.refused else ''}" for a in planner.answers]


def test_who_was_told_nothing_waits(store: Store, tree: Path) -> None:
    with pytest.raises(Waiting, match="waits for its planner"):
        ExternalPlanner().next_action(at(tree))
    with pytest.raises(Waiting):
        planner(store).next_action(at(tree))


def test_reading_is_answered_at_once_and_an_action_is_the_loops(store: Store, tree: Path) -> None:
    told = planner(store, READ, propose(), READ)
    action = told.next_action(at(tree))
    assert isinstance(action, Propose)
    assert action.proposal.change == Change(knobs={"threads": 2})
    assert texts(told) == ["read_file"]
    assert "int step;" in told.answers[0].text
    with pytest.raises(Waiting):
        told.next_action(at(tree, BASELINE, experiment(1)))
    assert texts(told) == ["read_file", "propose", "read_file"]
    assert told.answers[1].experiment == 1
    assert "experiment #1: accept, confirmed" in told.answers[1].text
    assert "it is faster" in told.answers[1].text


def test_an_action_is_written_down_before_the_loop_gets_it(store: Store, tree: Path) -> None:
    planner(store, propose()).next_action(at(tree))
    assert Dialogue(store, "cmp").open() == Open(propose(), 1)


def test_after_a_refusal_only_reading_goes_on(store: Store, tree: Path) -> None:
    told = planner(store, propose(threads=99), ASK, READ, STOP)
    with pytest.raises(Waiting):
        told.next_action(at(tree))
    assert texts(told) == ["propose refused", "investigate refused", "read_file", "stop refused"]
    assert "99 is outside 1..8" in told.answers[0].text
    assert told.answers[1].text == "not carried out: propose was refused"
    assert Dialogue(store, "cmp").open() is None


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (MISSING, "not shown to planners"),
        (Call(tool="run_shell"), "there is no tool 'run_shell'; there are: list_files, "),
        (Call(tool="read_file", arguments={"file": "x"}), "the arguments of read_file are wrong: path: Field required"),
        (propose(evidence=["#7"]), "no such evidence: #7"),
        (propose(falsifier=" "), "name the falsifier"),
        (propose(threads=8), "this changes nothing"),
        (Call(tool="stop", arguments={"reason": "tired"}), "Try one, or stop with a reason for each"),
    ],
)
def test_refusals_are_those_of_every_planner(store: Store, tree: Path, call: Call, said: str) -> None:
    told = planner(store, call)
    with pytest.raises(Waiting):
        told.next_action(at(tree))
    assert told.answers[0].refused
    assert said in told.answers[0].text


def test_each_question_is_asked_although_others_were_answered_in_this_step(store: Store, tree: Path) -> None:
    """A model's step replays its questions; one outside knows its answers."""
    action = planner(store, ASK).next_action(at(tree, BASELINE, experiment(1, "investigation")))
    assert action == Investigate(question="How long?", probe="bench", params={"batch": (1, 4)})


def test_what_was_cut_off_before_it_began_is_carried_out(store: Store, tree: Path) -> None:
    first = planner(store, propose()).next_action(at(tree))
    assert planner(store).next_action(at(tree)) == first
    assert planner(store, READ).next_action(at(tree)) == first


def test_told_again_after_a_kill_it_is_answered_by_what_was_measured(store: Store, tree: Path) -> None:
    planner(store, propose()).next_action(at(tree))
    again = planner(store, propose(), READ)
    with pytest.raises(Waiting):
        again.next_action(at(tree, BASELINE, experiment(1)))
    assert texts(again) == ["propose", "read_file"]
    assert again.answers[0].experiment == 1
    assert Dialogue(store, "cmp").open() is None


def test_something_else_told_after_a_kill_comes_after_what_was_cut_off(store: Store, tree: Path) -> None:
    planner(store, propose()).next_action(at(tree))
    again = planner(store, propose(threads=4))
    action = again.next_action(at(tree, BASELINE, experiment(1)))
    assert isinstance(action, Propose)
    assert action.proposal.change.knobs == {"threads": 4}
    assert texts(again) == ["propose"]


def test_a_stop_that_was_cut_off_in_the_conclusion_stops_again(store: Store, tree: Path) -> None:
    """The number that a stop is written down with is that of the conclusion's first measurement."""
    assert isinstance(planner(store, STOP).next_action(at(tree)), Stop)
    again = planner(store)
    assert isinstance(again.next_action(at(tree, BASELINE, experiment(1, "control"))), Stop)
    again.finish(Journal(experiments=(BASELINE, experiment(1, "control"))), "enough")
    assert texts(again) == ["stop"]
    assert again.answers[0].text == "the campaign ended: enough"
    assert Dialogue(store, "cmp").open() is None


def test_what_the_budget_left_no_room_for_says_so(store: Store, tree: Path) -> None:
    told = planner(store, propose(), READ)
    told.next_action(at(tree))
    told.finish(Journal(experiments=(BASELINE,)), "the time budget is used up")
    assert texts(told) == ["propose refused", "read_file refused"]
    assert told.answers[0].text == "not carried out: the campaign ended: the time budget is used up"
    assert Dialogue(store, "cmp").open() is None


def test_who_only_reads_leaves_alone_what_another_process_is_at(store: Store, tree: Path) -> None:
    planner(store, propose()).next_action(at(tree))
    read(at(tree), [READ, MISSING], Dialogue(store, "cmp"))
    assert Dialogue(store, "cmp").open() == Open(propose(), 1)
    with store.transaction(read_only=True) as ledger:
        kept = exchanges(ledger.events("cmp"))
    assert [(e.answer.call.tool, e.answer.refused) for e in kept] == [("read_file", False), ("read_file", True)]


def test_the_opening_holds_the_campaign_what_was_found_in_the_step_and_what_is_left(tree: Path) -> None:
    shown = opening(at(tree, BASELINE, experiment(1, "investigation", claim="How long?")))
    for part in ("# Target: example", "threads [launch parameters]: 8", "# Found in this step", "investigation #1"):
        assert part in shown
    assert shown.endswith("Left: 5 experiments, 6 investigations in this step, no limit of wall time.")
    assert str(tree) not in shown


def test_no_secret_of_this_environment_is_told(store: Store, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "int-step-0123456789")
    (tree / "kernel.c").write_text('char *key = "int-step-0123456789";\n')
    told = planner(store, READ)
    with pytest.raises(Waiting):
        told.next_action(at(tree))
    shown = read(at(tree), [READ], Dialogue(store, "cmp"))[0].text
    assert "char *key" in told.answers[0].text
    assert "int-step-0123456789" not in told.answers[0].text + shown


def test_the_table_of_tools_is_the_toolboxs(tree: Path) -> None:
    assert [tool["function"]["name"] for tool in Toolbox(at(tree)).definitions()] == list(TOOLS)


@pytest.mark.parametrize("text", ['{"tool": "list_files"}', ' [{"tool": "list_files", "arguments": {}}]\n'])
def test_calls_are_one_or_a_list(text: str) -> None:
    assert read_calls(text) == (Call(tool="list_files"),)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "at least 1 item"),
        ("[]", "at least 1 item"),
        ("{", "Invalid JSON"),
        ('{"tool": 1}', "valid string"),
        ('{"name": "x"}', "tool: Field required"),
        ('{"tool": "x", "arguments": [1]}', "should be an object"),
        ('{"tool": "x"}], [{"tool": "y"}', "Invalid JSON"),
        ('{"tool": "\\ud800"}', "Invalid JSON"),
        (json.dumps([{"tool": "list_files"}] * 51), "at most 50"),
    ],
)
def test_calls_that_are_none_are_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match="give ") as refused:
        read_calls(text)
    assert said in str(refused.value)


def amend(**changes: Any) -> Call:
    return Call(tool="amend", arguments={"changes": changes})


def test_a_refused_proposal_is_amended_in_a_later_run(store: Store, tree: Path) -> None:
    first = planner(store, propose(evidence=["hearsay"], claim="Two threads help"), propose(4))  # the second is unseen
    with pytest.raises(Waiting):
        first.next_action(at(tree))
    worse = planner(store, amend(probe="none"))
    with pytest.raises(Waiting):
        worse.next_action(at(tree))
    assert "unknown probe" in worse.answers[0].text
    cut_off = planner(store, amend(probe="", evidence=["threads"]))
    action = cut_off.next_action(at(tree))
    assert isinstance(action, Propose)
    assert action.proposal.hypothesis.claim == "Two threads help"
    assert action.proposal.change.knobs == {"threads": 2}
    assert action.proposal.hypothesis.evidence == ("threads",)
    assert planner(store).next_action(at(tree)) == action  # as after a kill
    done = planner(store, amend(claim="again"))
    with pytest.raises(Waiting):
        done.next_action(at(tree, BASELINE, experiment(1)))
    assert texts(done) == ["amend", "amend refused"]
    assert "no proposal was refused" in done.answers[1].text


def test_nothing_is_amended_where_nothing_was_refused(store: Store, tree: Path) -> None:
    for _ in range(2):
        told = planner(store, amend(claim="c"))
        with pytest.raises(Waiting):
            told.next_action(at(tree))
        assert "no proposal was refused" in told.answers[0].text
