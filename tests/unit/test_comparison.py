"""Comparing anything with anything: what is read, as which side, what counts as the same, and what is left out."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedback import comparison
from feedback.comparison import Comparison, compare
from feedback.criteria import Criteria
from feedback.inventory import MAX_FILES, contents, listing
from feedback.observations import Measurement, Observation
from feedback.readers import Unreadable, callgrind, engine_log as log, formats, slices
from feedback.rules.derive import derive
from feedback.signals import Signal
from feedback.spans import Spans, Track
from feedback.summary import MAX_LINES, lines
from sandboxes.results import ArmName, Artefact, Ending, ExecResult, Run, Step, StepResult

LLAMACPP = Path(__file__).parents[1] / "data" / "llamacpp"
CALLGRIND = "# callgrind format\nevents: Ir\nfn=main\n1 {n}\n\ntotals: {n}\n"


def is_log(path: Path, head: bytes) -> bool:
    return path.name.endswith(".log")


def is_callgrind(path: Path, head: bytes) -> bool:
    return b"events: Ir" in head


def is_slices(path: Path, head: bytes) -> bool:
    return head.startswith(b'{"type": "slice"')


def is_tiny(path: Path, head: bytes) -> bool:
    return head.startswith(b"tiny trace")


def tiny_trace(path: Path, probe: str, stage: str, arm: ArmName) -> list[Spans]:
    n = len(path.read_text().splitlines()) - 1
    start = np.arange(n, dtype=np.int64) * 1000
    zeros = np.zeros(n, dtype=np.int32)
    return [
        Spans(
            probe=probe, file=path.name, arm=arm, stage=stage, names=("op",), categories=("native",),
            tracks=(Track("p", "t", 1, 1),), start_ns=start, end_ns=start + 500, name=zeros, category=zeros,
            track=zeros, correlation=np.full(n, -1, dtype=np.int64),
        )
    ]  # fmt: skip


@pytest.fixture(autouse=True)
def few_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table decides alone what can be read: here a small one, with real readers."""
    table = (
        formats.Format("callgrind", "c", is_callgrind, callgrind.read),
        formats.Format("slices", "s", is_slices, lambda p, probe, stage, arm: slices.read(p, probe, stage)),
        formats.Format("trace", "t", is_tiny, tiny_trace),
        formats.Format("engine_log", "l", is_log, log.read),
    )
    monkeypatch.setattr(formats, "FORMATS", table)


def slice_lines(ratio: float = 1.0, pairs: int = 3) -> str:
    rows: list[dict[str, Any]] = []
    for pair in range(pairs):
        for position, arm in enumerate(("baseline", "candidate", "candidate", "baseline")):
            duration = 0.01 * (ratio if arm == "candidate" else 1.0)
            rows.append(
                {"type": "slice", "arm": arm, "pair": pair, "block": 0, "position": position, "seed": pair,
                 "disturbed": False, "record": {"duration_s": duration, "check": [1.0]}}
            )  # fmt: skip
    return "\n".join(json.dumps(row) for row in rows) + "\n"


def make_run(directory: Path, instructions: dict[str, int], stage: str = "screen") -> Path:
    directory.mkdir()
    artefacts = []
    for arm, n in instructions.items():
        name = f"{stage}-count-{arm}.callgrind"
        (directory / name).write_text(CALLGRIND.format(n=n))
        artefacts.append(
            Artefact(path=name, format="callgrind", probe="count", arm=arm, stage=stage)  # type: ignore[arg-type]
        )
    (directory / "slices.jsonl").write_text(slice_lines())
    artefacts.append(Artefact(path="slices.jsonl", format="slices", probe="bench", stage=stage))
    (directory / "notes.txt").write_text("for people")
    artefacts.append(Artefact(path="notes.txt", format="text", probe="bench"))
    steps = []
    for arm in ("baseline", "candidate"):
        ended = ExecResult(command=("make",), ending=Ending.EXITED, returncode=0)
        step = Step(name="build", command=("make",), timeout_s=9)
        steps.append(StepResult(step=step, result=ended, arm=arm, stage=stage))  # type: ignore[arg-type]
    Run(directory=directory, steps=tuple(steps), artefacts=tuple(artefacts)).save()
    return directory


def instructions_of(found: Comparison) -> list[Signal]:
    return [s for s in found.signals if s.rule_id == "performance.instructions"]


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def seen(monkeypatch: pytest.MonkeyPatch) -> list[Observation]:
    """What the rules get to see in the next comparison."""
    observations: list[Observation] = []

    def watch(given: Sequence[Observation], criteria: Criteria) -> list[Signal]:
        observations.extend(given)
        return derive(given, criteria)

    monkeypatch.setattr(comparison, "derive", watch)
    return observations


# Two files.


def test_two_files_with_other_names_are_one_probe_in_two_arms(tmp_path: Path) -> None:
    before = write(tmp_path / "old.out", CALLGRIND.format(n=1000))
    after = write(tmp_path / "new.out", CALLGRIND.format(n=900))
    found = compare(before, after)
    (signal,) = instructions_of(found)
    assert "1000 -> 900" in signal.message
    assert signal.locations[0].model_dump()["file"] == "new.out"
    assert [(f.arm, f.name, f.format, set(f.kinds)) for f in found.read] == [
        ("baseline", "old.out", "callgrind", {"measurement"}), ("candidate", "new.out", "callgrind", {"measurement"}),
    ]  # fmt: skip
    assert found.unread == ()
    assert found.unmatched == ()


def test_two_logs_of_a_server() -> None:
    found = compare(LLAMACPP / "server.log", LLAMACPP / "context_exceeded.log")
    assert [s.rule_id for s in found.signals if s.level != "note"] != []
    assert {f.probe for f in found.read} == {"engine_log"}


def test_traces_change_sides_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = write(tmp_path / "a.trace", "tiny trace\n1\n2\n")
    after = write(tmp_path / "b.trace", "tiny trace\n1\n")
    observations = seen(monkeypatch)
    found = compare(before, after)
    assert [(o.arm, o.probe) for o in observations] == [("baseline", "trace"), ("candidate", "trace")]
    assert [f.kinds for f in found.read] == [{"spans": 2}, {"spans": 1}]


def test_a_file_with_both_arms_stands_for_its_candidate_and_loses_its_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = write(tmp_path / "a.jsonl", slice_lines(1.0))
    after = write(tmp_path / "b.jsonl", slice_lines(2.0))
    observations = seen(monkeypatch)
    compare(before, after)
    times = [o for o in observations if isinstance(o, Measurement) and o.metric == "slice_time_s"]
    assert {(o.arm, o.value, o.paired) for o in times} == {("baseline", 0.01, False), ("candidate", 0.02, False)}


def test_one_file_alone_keeps_its_arms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.jsonl", slice_lines(2.0))
    observations = seen(monkeypatch)
    assert compare(path) == compare(path, path)
    times = [o for o in observations if isinstance(o, Measurement)]
    assert {o.arm for o in times} == {"baseline", "candidate"}
    assert all(o.paired for o in times)


# Directories.


def test_files_of_directories_are_matched_by_format_and_name(tmp_path: Path) -> None:
    for side, n in (("a", 1000), ("b", 900)):
        write(tmp_path / side / "x" / "one.out", CALLGRIND.format(n=n))
        write(tmp_path / side / "two.out", CALLGRIND.format(n=2 * n))
    write(tmp_path / "a" / "only.out", CALLGRIND.format(n=1))
    write(tmp_path / "b" / "two.log", "W hello\n")
    write(tmp_path / "b" / "README.md", "words")
    found = compare(tmp_path / "a", tmp_path / "b")
    assert [s.message.partition(" (")[0] for s in instructions_of(found)] == [
        "two.out: 2000 -> 1800 instructions", "x/one.out: 1000 -> 900 instructions",
    ]  # fmt: skip
    assert sorted(found.unmatched) == ["only.out", "two.log"]
    assert [(f.name, f.reason) for f in found.unread] == [("README.md", "no known format")]


def test_links_hidden_files_and_pipes_of_a_directory_are_left_alone(tmp_path: Path) -> None:
    secret = write(tmp_path / "secret.log", "W secret\n")
    folder = tmp_path / "files"
    write(folder / ".hidden.log", "W hidden\n")
    write(folder / ".git" / "x.log", "W hidden\n")
    write(folder / "seen.log", "W seen\n")
    (folder / "link.log").symlink_to(secret)
    (folder / "loop").symlink_to(folder)
    os.mkfifo(folder / "pipe.log")
    assert [e.name for e in listing([folder]).entries] == ["seen.log"]


def test_a_directory_with_too_many_files_says_so(tmp_path: Path) -> None:
    for n in range(MAX_FILES + 3):
        write(tmp_path / f"{n:04d}.log", "")
    found = contents([tmp_path])
    assert len(found.read) == MAX_FILES
    assert "name those that matter" in found.unread[0].reason


def test_a_broken_file_is_named_with_its_place_and_the_rest_is_compared(tmp_path: Path) -> None:
    for side in ("a", "b"):
        write(tmp_path / side / "good.out", CALLGRIND.format(n=1000))
        write(tmp_path / side / "bad.jsonl", slice_lines() + '{"type": "slice"')
    found = compare(tmp_path / "a", tmp_path / "b")
    assert len(instructions_of(found)) == 1
    assert [(f.name, f.line) for f in found.unread] == [("bad.jsonl", 13), ("bad.jsonl", 13)]


def test_names_that_are_no_text_are_left_out(tmp_path: Path) -> None:
    with open(os.fsencode(tmp_path) + b"/\xff.log", "wb"):  # noqa: PTH123 - not every name is a Path's
        pass
    write(tmp_path / "a.log", "")
    found = compare(tmp_path)
    assert [f.name for f in found.read] == ["a.log"]
    assert [f.name for f in found.unread] == ["\ufffd.log"]
    json.dumps(found.model_dump(mode="json"), ensure_ascii=False).encode()


def test_a_pipe_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (unread,) = contents([tmp_path / "pipe"]).unread
    assert unread.reason == "not a regular file"


def test_a_path_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    there = write(tmp_path / "a.log", "")
    with pytest.raises(FileNotFoundError):
        compare(there, tmp_path / "gone")


# Run directories.


def test_a_run_alone_is_compared_with_itself(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {"baseline": 1000, "candidate": 900})
    found = compare(run)
    assert "1000 -> 900" in instructions_of(found)[0].message
    assert [(f.name, f.arm) for f in found.read] == [
        ("screen-count-baseline.callgrind", "baseline"), ("screen-count-candidate.callgrind", "candidate"),
        ("slices.jsonl", None),
    ]  # fmt: skip
    assert found.unread == ()


def test_a_run_alone_says_how_fast_its_candidate_is(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {"baseline": 1000, "candidate": 900})
    (run / "slices.jsonl").write_text(slice_lines(0.5, pairs=6))
    (signal,) = [s for s in compare(run).signals if s.finding == "better"]
    assert signal.effect is not None
    assert signal.effect.improvement == pytest.approx(0.5, abs=0.02)


def test_of_two_runs_the_candidates_of_their_last_stages_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make_run(tmp_path / "first", {"baseline": 1000, "candidate": 800})
    second = make_run(tmp_path / "second", {"baseline": 800, "candidate": 500}, stage="confirm")
    observations = seen(monkeypatch)
    found = compare(first, second)
    assert "800 -> 500" in instructions_of(found)[0].message
    assert {o.stage for o in observations} == {"screen"}
    assert sum(o.arm == "baseline" and getattr(o, "name", "") == "build" for o in observations) == 1
    assert found.unmatched == ()


def test_a_run_against_a_file(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {"baseline": 1000, "candidate": 800})
    file = write(tmp_path / "mine.out", CALLGRIND.format(n=400))
    found = compare(run, file)
    assert "800 -> 400" in instructions_of(found)[0].message
    assert found.unmatched == ("slices.jsonl",)


def test_a_run_reads_nothing_outside_of_itself(tmp_path: Path) -> None:
    secret = write(tmp_path / "secret.log", "W secret\n")
    run = tmp_path / "run"
    run.mkdir()
    (run / "link.log").symlink_to(secret)
    artefacts = [
        Artefact(path=path, format="engine_log", probe="p")
        for path in ("../secret.log", str(secret), "link.log", "a\0b")
    ]
    Run(directory=run, artefacts=tuple(artefacts)).save()
    found = contents([run])
    assert found.observations == ()
    assert [f.reason for f in found.unread] == ["lies outside of its run directory"] * 4


@pytest.mark.parametrize(
    "text", ["", "[", "{}x", '{"steps": 3}', "[" * 100_000, '{"artefacts": [{"path": "\\u0000"}]}']
)
def test_a_broken_run_is_unreadable(tmp_path: Path, text: str) -> None:
    write(tmp_path / "run.json", text)
    with pytest.raises(Unreadable, match=r"run\.json"):
        contents([tmp_path])


def test_a_missing_artefact_is_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {"candidate": 800})
    (run / "slices.jsonl").unlink()
    assert [f.name for f in compare(run).unread] == ["slices.jsonl"]


# As a record.


def test_a_comparison_survives_json(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {"baseline": 1000, "candidate": 900})
    found = compare(run, shutil.copytree(run, tmp_path / "copy"))
    assert Comparison.model_validate(json.loads(json.dumps(found.model_dump(mode="json")))) == found


def test_contents_are_told_by_kind(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {"baseline": 1000, "candidate": 900})
    write(tmp_path / "a.trace", "tiny trace\n1\n2\n")
    text = lines(contents([run, tmp_path / "a.trace", LLAMACPP / "server.log"]).observations)
    assert "tests of build (candidate): 1 passed" in text
    assert "instructions of count (candidate): 1 value, 1 process: 900" in text
    assert "slice_time_s of bench (baseline): 6 values, 3 processes, median 10 ms, 10..10 ms" in text
    assert "trace a.trace (candidate): 2 intervals on 1 tracks in 0.0015 ms: 2 native" in text
    assert any(line.startswith("parity of bench (candidate): check relative_difference") for line in text)


def test_contents_of_many_kinds_stay_short() -> None:
    many = [Measurement(probe=f"p{n}", metric="time_s\x1b[31m", value=1, arm="candidate") for n in range(3 * MAX_LINES)]
    text = lines(many)
    assert len(text) == MAX_LINES + 1
    assert text[-1] == f"and {2 * MAX_LINES} more such lines"
    assert all(line.isprintable() for line in text)
