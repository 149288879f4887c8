"""The scripted planner: entries in order, a position that survives a resume, errors that name the entry."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra_agent.domain import Change, Experiment, Hypothesis, Proposal, Role, State
from infra_agent.errors import WrongUse
from infra_agent.journal import Journal
from infra_agent.planner import Context, Investigate, Propose, Stop
from infra_agent.planner.scripted import ScriptedPlanner, read_script
from infra_agent.target import TargetSpec, load_target

SPEC = TargetSpec.model_validate(
    {
        "schema": 1,
        "name": "example",
        "description": "",
        "editable": ["*"],
        "objective": {"metric": "slice_time_s", "direction": "minimize", "probe": "bench"},
        "launch_file": {"path": "launch.toml"},
        "knobs": [
            {"name": "threads", "description": "", "key": "threads", "minimum": 1, "maximum": 8},
            {"name": "poll", "description": "", "key": "poll", "choices": [0, 50]},
        ],
        "probes": [
            {"name": "bench", "kind": "microbench", "method": "slices", "worker": ["true"], "params": {"batch": 1}}
        ],
    }
)

SCRIPT = """\
# Two entries.
description = "an example"

[[propose]]
claim = "Hoisting helps"
mechanism = "Work is repeated."
location = "kernel.c:step"
question = "Is it faster?"
lever_family = "kernels"
predicted = { metric = "slice_time_s", direction = "down", low = 0.1, high = 0.3 }
falsifier = "It is not."
probe = "bench"
patch = "hoist.patch"

[[propose]]
claim = "Fewer threads help"
knobs = { threads = 2 }
unset = ["poll"]
"""
PATCH = "--- a/kernel.c\n+++ b/kernel.c\n@@ -1 +1 @@\n-slow\n+fast\r\n"


def context(*begun: tuple[Role, State]) -> Context:
    proposal = Proposal(hypothesis=Hypothesis(claim="c"), change=Change())
    experiments = tuple(
        Experiment(id=str(i), campaign_id="c", number=i, role=role, state=state, proposal=proposal, parent_commit="0")
        for i, (role, state) in enumerate(begun)
    )
    return Context(
        spec=SPEC,
        journal=Journal(experiments=experiments),
        parent_commit="0",
        parent_tree=Path(),
        knobs={},
        cores=2,
        digest="",
        experiments_left=5,
        seconds_left=None,
    )


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "hoist.patch").write_bytes(PATCH.encode())
    path = tmp_path / "script.toml"
    path.write_text(SCRIPT)
    return path


def planner_of(path: Path) -> ScriptedPlanner:
    return ScriptedPlanner(path.name, read_script(path, SPEC))


def proposed(planner: ScriptedPlanner, at: Context) -> Proposal:
    action = planner.next_action(at)
    assert isinstance(action, Propose)
    return action.proposal


def test_an_entry_becomes_a_proposal_with_its_whole_hypothesis_and_the_patch_byte_for_byte(
    script: Path,
) -> None:
    proposal = proposed(planner_of(script), context(("baseline", State.COMPLETE)))
    assert proposal.change == Change(patch=PATCH)
    assert proposal.probe == "bench"
    hypothesis = proposal.hypothesis
    assert (hypothesis.claim, hypothesis.mechanism) == ("Hoisting helps", "Work is repeated.")
    assert (hypothesis.location, hypothesis.lever_family) == ("kernel.c:step", "kernels")
    assert hypothesis.predicted is not None
    assert (hypothesis.predicted.low, hypothesis.predicted.high) == (0.1, 0.3)


def test_knobs_are_set_and_unset(script: Path) -> None:
    proposal = proposed(planner_of(script), context(("change", State.COMPLETE)))
    assert proposal.change.knobs == {"threads": 2, "poll": None}


@pytest.mark.parametrize("state", list(State))
def test_the_journal_alone_tells_the_position(script: Path, state: State) -> None:
    baseline: tuple[Role, State] = ("baseline", State.COMPLETE)
    after_one = context(baseline, ("change", state), ("final", State.COMPLETE), ("control", State.COMPLETE))
    planner = planner_of(script)
    assert planner.next_action(after_one) == planner.next_action(after_one)
    assert proposed(planner_of(script), after_one).hypothesis.claim == "Fewer threads help"


def test_after_the_last_entry_it_stops(script: Path) -> None:
    done: tuple[Role, State] = ("change", State.COMPLETE)
    action = planner_of(script).next_action(context(done, done))
    assert action == Stop(reason="all 2 proposals of script.toml were tried")


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('claim = "Fewer threads help"\n', "", r":15: entry 2, claim: Field required"),
        ("knobs = { threads = 2 }", "knob = { threads = 2 }", r":17: entry 2, knob: Extra inputs"),
        ("knobs = { threads = 2 }", 'knobs = { poll = 0 }', r":15: entry 2: poll can't be both set"),
        ("knobs = { threads = 2 }", "knobs = { threads = [2] }", r":17: entry 2, knobs: threads must be"),
        ('patch = "hoist.patch"\n', "", r":4: entry 1: changes nothing; give `patch`, `knobs` or `unset`"),
        ('patch = "hoist.patch"', 'patch = "no.patch"', r":13: entry 1, patch: no.patch can't be read"),
        ('direction = "down"', 'direction = "left"', r":10: entry 1, predicted.direction: Input should be"),
        ("# Two entries.", "= 2", r"not valid TOML: .*line 1"),
        ("# Two entries.", "author = 1", r":1: the script, author: Extra inputs"),
    ],
)  # fmt: skip
def test_a_malformed_script_names_line_and_entry(script: Path, old: str, new: str, problem: str) -> None:
    assert old in SCRIPT
    script.write_text(SCRIPT.replace(old, new, 1))
    with pytest.raises(WrongUse, match=problem):
        read_script(script, SPEC)


def test_a_script_without_entries_is_refused(script: Path) -> None:
    script.write_text("description = 'nothing'\n")
    with pytest.raises(WrongUse, match=r"it has no \[\[propose\]\] and no \[\[investigate\]\]"):
        read_script(script, SPEC)


def test_a_missing_script_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match=r"none\.toml does not exist; give --planner script:FILE"):
        read_script(tmp_path / "none.toml", SPEC)


@pytest.mark.parametrize("content", [b"a = '\xff'", None])
def test_a_script_that_is_no_text_file_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "script.toml"
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(WrongUse, match="can't be read"):
        read_script(path, SPEC)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            "threads = 2",
            "thread = 2",
            r":15: entry 2: unknown knob 'thread'; this target's knobs are: threads",
        ),
        ('probe = "bench"', 'probe = "load"', r":4: entry 1: unknown probe 'load'; known are: bench"),
    ],
)
def test_names_that_the_target_lacks_are_refused_when_the_script_is_read(
    script: Path, old: str, new: str, problem: str
) -> None:
    script.write_text(SCRIPT.replace(old, new, 1))
    with pytest.raises(WrongUse, match=problem):
        read_script(script, SPEC)


@pytest.mark.parametrize("content", ["", "\n  \n"])
def test_an_empty_patch_is_refused_when_the_script_is_read(script: Path, content: str) -> None:
    (script.parent / "hoist.patch").write_text(content)
    with pytest.raises(WrongUse, match=r":4: entry 1: its patch is empty, so it changes nothing"):
        read_script(script, SPEC)


QUESTIONS = """\
[[investigate]]
question = "How does it grow?"
probe = "bench"
params = { batch = [1, 4] }

[[propose]]
claim = "Fewer threads help"
evidence = ["#1", "a1b2c3d4e5f6", "of another campaign"]
knobs = { threads = 2 }

[[ investigate ]]
question = "And now?"
probe = "bench"
"""


def test_questions_and_proposals_come_in_the_order_of_their_lines(script: Path) -> None:
    script.write_text(QUESTIONS)
    planner = planner_of(script)
    begun: list[tuple[Role, State]] = [("baseline", State.COMPLETE)]
    first = planner.next_action(context(*begun))
    assert first == Investigate(question="How does it grow?", probe="bench", params={"batch": (1, 4)})
    begun.append(("investigation", State.COMPLETE))
    second = proposed(planner, context(*begun))
    assert second.change.knobs == {"threads": 2}
    assert second.hypothesis.evidence == ("#1", "a1b2c3d4e5f6", "of another campaign")
    begun.append(("change", State.FAILED))
    assert planner.next_action(context(*begun)) == Investigate(question="And now?", probe="bench")
    begun.append(("investigation", State.COMPLETE))
    assert isinstance(planner.next_action(context(*begun)), Stop)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('probe = "bench"\nparams', 'probe = "load"\nparams', r":1: question 1: no probe 'load' can be run"),
        ("batch = [1, 4]", "size = [1]", r":1: question 1: probe bench has no parameter 'size'; it has: batch"),
        ("batch = [1, 4]", "batch = [0]", r":1: question 1: batch must lie above 0"),
        ("batch = [1, 4]", "batch = 1", r":4: question 1, params.batch: Input should be a valid tuple"),
        ('question = "And now?"\n', "", r":11: question 2, question: Field required"),
        ("[[propose]]\nclaim = ", '[[propose]]\nmechanism = """\n[[propose]]\n"""\nclaim = ', "which order"),
    ],
)
def test_questions_that_can_not_be_asked_are_refused(script: Path, old: str, new: str, problem: str) -> None:
    assert old in QUESTIONS
    script.write_text(QUESTIONS.replace(old, new, 1))
    with pytest.raises(WrongUse, match=problem):
        read_script(script, SPEC)


def test_a_script_may_only_ask(script: Path) -> None:
    script.write_text("investigate = [{ question = 'How long?', probe = 'bench' }]\n")
    assert planner_of(script).next_action(context()) == Investigate(question="How long?", probe="bench")


def test_the_proposals_do_not_change_with_the_file(script: Path) -> None:
    planner = planner_of(script)
    before = planner.next_action(context())
    script.write_text("gone")
    (script.parent / "hoist.patch").unlink()
    assert planner.next_action(context()) == before


def test_the_shipped_script_is_valid() -> None:
    target = Path(__file__).parents[2] / "targets" / "tinyserve"
    assert read_script(target / "scripts" / "hoist.toml", load_target(target)[0])


def test_a_recorded_session_that_cites_bare_ids_still_replays() -> None:
    root = Path(__file__).resolve().parents[2]
    spec, _ = load_target(root / "targets/tinyserve")
    proposals = read_script(root / "docs/examples/tinyserve-llm/script.toml", spec)
    assert len(proposals) == 7
    assert proposals[2].hypothesis.evidence[0] == "c3be07413d6f"
