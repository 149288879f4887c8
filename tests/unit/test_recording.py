"""Sessions written down: a script says what was proposed, a transcript what was said, neither what is private."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from feedback.verdict import Verdict, VerdictKind
from infra_agent.domain import (
    Campaign,
    CampaignSpec,
    CampaignState,
    Change,
    Event,
    Experiment,
    Hypothesis,
    ModelCall,
    Prediction,
    Proposal,
    Role,
    State,
)
from infra_agent.errors import WrongUse
from infra_agent.journal import Journal
from infra_agent.planner.scripted import read_script
from infra_agent.recording import SCRIPT, TRANSCRIPT, Redaction, Session, write
from infra_agent.recording.redaction import redaction
from infra_agent.report import Result, build
from infra_agent.settings import load_settings
from infra_agent.target import TargetSpec

SPEC = TargetSpec.model_validate(
    {
        "schema": 1, "name": "example", "description": "", "editable": ["*"],
        "objective": {"metric": "slice_time_s", "direction": "minimize", "probe": "bench"},
        "launch_file": {"path": "launch.toml"},
        "knobs": [
            {"name": "threads", "description": "", "key": "threads", "minimum": 1, "maximum": 8},
            {"name": "mode", "description": "", "key": "mode", "choices": ["a", "b"]},
        ],
        "probes": [
            {"name": "bench", "kind": "microbench", "method": "slices", "worker": ["true"], "params": {"batch": 1}}
        ],
    }
)  # fmt: skip
PATCH = '--- a/kernel.c\n+++ b/kernel.c\n@@ -1,2 +1,2 @@\n-slow\t\r\n+fast "é" \\n\n unchanged\n'
AWKWARD = 'It\'s "quoted" \\ [[propose]]\n[[investigate]]\tat\u2028once\x7f, \u202eé😀'


def experiment(number: int, role: Role, proposal: Proposal, kind: VerdictKind = VerdictKind.REJECT) -> Experiment:
    return Experiment(
        id=f"e{number}", campaign_id="cmp", number=number, role=role, state=State.COMPLETE, proposal=proposal,
        parent_commit="0" * 40, verdict=Verdict(kind=kind, reasons=("no gain", "and slower")), confirmed=False,
    )  # fmt: skip


ASKED = Proposal(
    hypothesis=Hypothesis(claim=AWKWARD, question=AWKWARD), change=Change(), probe="bench", params={"batch": (1, 4)}
)
PATCHED = Proposal(
    hypothesis=Hypothesis(
        claim=AWKWARD, mechanism="Work is repeated.", location="kernel.c:step", question="Is it faster?",
        lever_family="kernels", falsifier="It is not.", evidence=("#1", "kernel.c:3", "a1b2c3d4e5f6"),
        predicted=Prediction(metric="slice_time_s", direction="down", low=0.1),
    ),
    change=Change(patch=PATCH), probe="bench",
)  # fmt: skip
SET = Proposal(
    hypothesis=Hypothesis(
        claim="Fewer", predicted=Prediction(metric="slice_time_s", direction="down", low=0.125, high=0.3)
    ),
    change=Change(patch=PATCH, knobs={"threads": 2, "mode": None}),
)  # fmt: skip
JOURNAL = Journal(
    experiments=(
        experiment(0, "baseline", Proposal(hypothesis=Hypothesis(claim="the baseline"), change=Change())),
        experiment(1, "investigation", ASKED, VerdictKind.INCONCLUSIVE),
        experiment(2, "change", PATCHED),
        experiment(3, "change", SET),
        experiment(4, "investigation", ASKED),
        experiment(5, "control", Proposal(hypothesis=Hypothesis(claim="engine-defaults"), change=Change())),
    )
)


def session(journal: Journal = JOURNAL, events: tuple[Event, ...] = (), calls: tuple[ModelCall, ...] = ()) -> Session:
    campaign = Campaign(
        id="cmp", spec=CampaignSpec(target="/t", planner="external"), target_name="example", target_toml="",
        source_commit="", base_commit="0" * 40, host_fingerprint="h", state=CampaignState.COMPLETE,
        stop_reason="all was tried",
    )  # fmt: skip
    return Session(campaign, journal, build(campaign, SPEC, journal, Result()), events, calls)


def written(directory: Path, given: Session, hidden: Redaction | None = None) -> str:
    write(given, hidden or Redaction(), directory)
    return (directory / TRANSCRIPT).read_text()


def test_a_replay_proposes_the_same_in_the_same_order(tmp_path: Path) -> None:
    written(tmp_path / "out", session())
    assert read_script(tmp_path / "out" / SCRIPT, SPEC) == (ASKED, PATCHED, SET, ASKED)
    assert (tmp_path / "out" / "02.patch").read_bytes() == PATCH.encode()


def test_no_line_of_a_script_but_its_own_begins_an_entry(tmp_path: Path) -> None:
    written(tmp_path, session())
    text = (tmp_path / SCRIPT).read_text()
    assert re.findall(r"^\[\[(\w+)\]\]$", text, re.MULTILINE) == ["investigate", "propose", "propose", "investigate"]
    assert text.isprintable() or not re.search("[\u2028\u202e\x7f]", text)


def test_a_campaign_that_proposed_nothing_has_nothing_to_replay(tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match="nothing to replay"):
        written(tmp_path, session(Journal(experiments=JOURNAL.experiments[:1])))
    assert list(tmp_path.iterdir()) == []


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("keep")
    with pytest.raises(WrongUse, match="is not empty"):
        written(tmp_path, session())
    with pytest.raises(WrongUse, match="is no directory"):
        written(tmp_path / "mine", session())
    assert (tmp_path / "mine").read_text() == "keep"


def test_the_transcript_tells_what_was_to_happen_and_what_did_with_what_was_wrong(tmp_path: Path) -> None:
    text = written(tmp_path, session())
    for part in (
        "2 changes and 2 investigations", "## 1. Investigation: It's", 'with `{"batch": [1, 4]}`',
        "## 2. Change: It's", "- falsifier: It is not.", "- evidence: #1, kernel.c:3, a1b2c3d4e5f6", "**reject**",
        "and slower", "- predicted: slice\\_time\\_s down 12.5 % to 30 %", "- knobs: threads = 2, mode unset",
        "- patch: 02.patch", "## 5. The campaign's own measurement (control): engine-defaults",
        "## What it measured then", "ended by the planner: all was tried",
    ):  # fmt: skip
        assert part in text, part
    assert "\u202e" not in text
    assert text.index("## 2. Change") < text.index("## 3. Change") < text.index("## 5. The campaign's")


def test_what_was_told_and_refused_stands_in_the_transcript(tmp_path: Path) -> None:
    call = {"tool": "read_file", "arguments": {"path": "no.c"}}
    answer = {"call": call, "text": "Refused: ```\n# no file\n```", "refused": True, "experiment": None, "told": None}
    led = {**answer, "text": "told by its experiment", "experiment": 2}
    events = tuple(Event(id=i, campaign_id="cmp", type="answered", data=data) for i, data in enumerate((answer, led)))
    text = written(tmp_path, session(events=events))
    assert "### read\\_file (refused)" in text
    assert "````text\nRefused: ```\n# no file\n```\n````" in text  # a fence that the answer can't close
    assert "told by its experiment" not in text


def model_call(number: int, messages: list[object], message: object) -> ModelCall:
    return ModelCall(
        campaign_id="cmp", request_hash=str(number), model="some/model", request=json.dumps({"messages": messages}),
        response=json.dumps({"choices": [{"message": message}]}),
    )  # fmt: skip


def test_a_models_words_and_what_it_was_answered_are_told_once(tmp_path: Path) -> None:
    opening = [{"role": "system", "content": "rules"}, {"role": "user", "content": "the campaign"}]
    asked = {"function": {"name": "list_files", "arguments": "{}"}}
    first = {"content": "I look first.", "reasoning_content": "Hm.", "tool_calls": [asked]}
    grown = [*opening, {"role": "assistant", "content": "I look first."}, {"role": "tool", "content": "kernel.c"}]
    calls = (model_call(1, list(opening), first), model_call(2, grown, {"content": None, "refusal": "I can't."}))
    text = written(tmp_path, session(calls=calls))
    for part in ("(some/model)", "I look first.", "Hm.", "calls `list_files`", "kernel.c", "I can't."):
        assert part in text, part
    assert text.count("the campaign\n") == text.count("I look first.") == 1
    assert "rules" not in text


@pytest.mark.parametrize("response", ["", "[]", '{"choices": []}', '{"choices": [{"message": "x"}]}', "\x00"])
def test_a_broken_record_of_a_model_breaks_no_transcript(tmp_path: Path, response: str) -> None:
    call = ModelCall(campaign_id="cmp", request_hash="1", model="m", request="{", response=response)
    assert "### m says" in written(tmp_path, session(calls=(call,)))


# What is private.

SETTINGS = load_settings(
    {
        "INFRA_AGENT_HOME": "/home/alice/infra", "OPENAI_API_KEY": "key-of-alice", "HOME": "/home/alice",
        "INFRA_AGENT_DATABASE_URL": "postgresql://infra:p%40ssword@db.example/infra",
    }
)  # fmt: skip
HERE = redaction(
    SETTINGS,
    session().campaign.model_copy(update={"spec": CampaignSpec(target="/srv/models/engine", planner="external")}),
    {"HOME": "/home/alice", "MY_TOKEN": "tok-123456", "PATH": "/usr/bin", "SHORT_KEY": "x"},
)._replace(names=("alice-laptop", "alice"))


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("read /srv/models/engine/kernel.c:3", "read example/kernel.c:3"),
        ("in /home/alice/infra/campaigns/c/runs", "in [home of infra-agent]/campaigns/c/runs"),
        ("~ is /home/alice/x", "~ is ~/x"),
        ("cc -I/home/bob/include -o/x", "cc -I[path]/include -o/x"),
        ("PATH=/usr/bin:/home/bob/bin", "PATH=/usr/bin:[path]/bin"),
        ("file:///home/bob/a.c", "file://[path]/a.c"),
        ("(/var/lib/x/y)", "([path]/y)"),
        ("runs on alice-laptop as alice", "runs on [name] as [name]"),
        ("malice, alice-in-wonderland", "malice, alice-in-wonderland"),
        ("Bearer abcdefghijk; tok-123456", "Bearer [secret]; [secret]"),
        ("sk-abcdefghijklmnopqrstuv", "[secret]"),
        ("key-of-alice and p@ssword", "[secret] and [secret]"),
        ("https://bob:hunter22@host/v1/models", "https://[secret]@host/v1/models"),
        ("POST /v1/chat/completions, /tree/a, /usr/lib/x", "POST /v1/chat/completions, /tree/a, /usr/lib/x"),
        ("src/home/page.c and a/tmp/b", "src/home/page.c and a/tmp/b"),
        ("x is x", "x is x"),
    ],
)  # fmt: skip
def test_text_loses_what_is_private_and_nothing_else(text: str, clean: str) -> None:
    assert HERE.text(text) == clean


def test_a_patch_loses_it_only_in_the_lines_that_it_adds() -> None:
    """What it removes stands in the target, so a change of it would make the patch useless."""
    patch = "+++ b/x\n-open(/home/alice/a)\n+open(/home/alice/b, tok-123456)\n+int alice = 1; // /var/run/x\n"
    assert HERE.patch(patch) == ("+++ b/x\n-open(/home/alice/a)\n+open(~/b, [secret])\n+int alice = 1; // /var/run/x\n")


def test_nothing_private_is_in_what_is_exported(tmp_path: Path) -> None:
    private = "ghp_0123456789abcdefghij0 alice-laptop "
    private += "/home/alice/infra /srv/models/engine /home/bob/x tok-123456 key-of-alice /tmp/ia-1/run"
    told = Hypothesis(
        claim=private, mechanism=private, location=private, question=private, falsifier=private, evidence=(private,)
    )
    change = Change(patch=f"+// {private}\n", knobs={"mode": "/home/alice/infra tok-123456"})
    seen = experiment(1, "change", Proposal(hypothesis=told, change=change))
    seen = seen.model_copy(update={"verdict": Verdict(kind=VerdictKind.REJECT, reasons=(private,))})
    asked = ASKED.model_copy(update={"hypothesis": told, "params": {"batch": ("/srv/models/engine",)}})
    answer = {"call": {"tool": "read_file", "arguments": {"path": private}}, "text": private}
    event = Event(campaign_id="cmp", type="answered", data=answer)
    call = model_call(1, [{"role": "user", "content": private}], {"content": private, "reasoning": private})
    given = session(Journal(experiments=(seen, experiment(2, "investigation", asked))), (event,), (call,))
    written(tmp_path, given, HERE)
    for path in tmp_path.iterdir():
        text = path.read_text()
        for word in ("ghp", "/home/alice", "/srv/models", "tok-123456", "key-of-alice", "/tmp/ia"):
            assert word not in text, (path.name, word)
        if path.suffix != ".patch":
            assert "alice" not in text
            assert "/home/bob" not in text
