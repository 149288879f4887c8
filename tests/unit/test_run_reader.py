"""A run directory: every artefact goes to its reader, every step becomes what it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from feedback import observations as facts
from feedback.inventory import contents
from feedback.observations import Measurement, RuntimeEvent
from feedback.readers import Unreadable
from feedback.readers.run import read, read_artefact, steps
from feedback.spans import Stacks
from sandboxes.results import ArmName, Artefact, Ending, ExecResult, Run, Step, StepResult

SLICE = {
    "type": "slice", "arm": "candidate", "pair": 0, "block": 0, "position": 0, "seed": 1, "disturbed": False,
    "record": {"duration_s": 0.01},
}  # fmt: skip


def step(ending: Ending = Ending.EXITED, returncode: int | None = 0, **fields: Any) -> StepResult:
    result = ExecResult(command=("make", "-j2"), ending=ending, returncode=returncode, stderr="kernel.c:3: error\n")
    known = {"step": Step(name="build", command=("make",), timeout_s=9.0), "result": result, "arm": "candidate"}
    return StepResult.model_validate(known | fields)


def artefact(path: str, format: str, **fields: Any) -> Artefact:
    return Artefact.model_validate({"path": path, "format": format, "probe": "p"} | fields)


def test_command_that_succeeded_is_a_passed_test() -> None:
    assert steps([step()]) == [
        facts.TestOutcome(probe="build", name="build", outcome="passed", arm="candidate", stage="screen")
    ]


@pytest.mark.parametrize(
    ("ending", "returncode", "said"),
    [
        (Ending.EXITED, 2, "exited with status 2"),
        (Ending.TIMEOUT, None, "did not finish within its time limit"),
        (Ending.MEMORY, None, "exceeded its memory limit"),
        (Ending.PROCESSES, None, "exceeded its process limit"),
        (Ending.OUTPUT, None, "wrote more output than its limit allows"),
        (Ending.SIGNALLED, None, "was ended by signal"),
    ],
)
def test_command_that_failed_is_a_failed_test(ending: Ending, returncode: int | None, said: str) -> None:
    (outcome,) = steps([step(ending, returncode, arm="baseline", stage="confirm")])
    assert isinstance(outcome, facts.TestOutcome)
    assert (outcome.outcome, outcome.arm, outcome.stage) == ("failed", "baseline", "confirm")
    assert said in outcome.message
    assert outcome.message.endswith("kernel.c:3: error")


@pytest.mark.parametrize("arm", get_args(ArmName))
def test_process_that_failed_is_an_event(arm: ArmName) -> None:
    (event,) = steps([step(Ending.TIMEOUT, None, during="slice 7", arm=arm)])
    assert isinstance(event, RuntimeEvent)
    assert (event.source, event.name, event.level, event.arm) == ("process", "timeout", "error", arm)
    assert event.message.startswith("slice 7: `make -j2` did not finish")


def test_whole_run_is_read(tmp_path: Path) -> None:
    (tmp_path / "slices.jsonl").write_text(json.dumps(SLICE) + "\n")
    (tmp_path / "baseline.callgrind").write_text("events: Ir\nsummary: 9\ntotals: 9\n")
    (tmp_path / "notes.txt").write_text("for people")
    run = Run(
        directory=tmp_path,
        steps=(step(),),
        artefacts=(
            artefact("slices.jsonl", "slices", stage="confirm"),
            artefact("baseline.callgrind", "callgrind", arm="baseline"),
            artefact("notes.txt", "text"),
        ),
    )
    found = read(run)
    assert [type(o).__name__ for o in found] == ["TestOutcome", "Measurement", "RuntimeEvent", "Measurement"]
    _, time, unchecked, count = found
    assert isinstance(unchecked, RuntimeEvent)
    assert unchecked.name == "no_check"  # the slice has no checksum
    assert isinstance(time, Measurement)
    assert isinstance(count, Measurement)
    assert (time.probe, time.metric, time.stage) == ("p", "slice_time_s", "confirm")
    assert (count.metric, count.arm, count.value) == ("instructions", "baseline", 9)


def test_run_that_was_saved_reads_the_same(tmp_path: Path) -> None:
    (tmp_path / "slices.jsonl").write_text(json.dumps(SLICE) + "\n")
    run = Run(directory=tmp_path, steps=(step(),), artefacts=(artefact("slices.jsonl", "slices"),))
    run.save()
    assert read(Run.load(tmp_path)) == read(run)


def test_format_for_people_says_nothing(tmp_path: Path) -> None:
    assert read_artefact(tmp_path, artefact("absent.txt", "text")) == []


@pytest.mark.parametrize("format", ["slices", "outputs", "load", "logprobs", "callgrind", "engine_log"])
def test_missing_file_is_an_error_of_the_platform(tmp_path: Path, format: str) -> None:
    with pytest.raises(FileNotFoundError):
        read_artefact(tmp_path, artefact("absent", format))


@pytest.mark.parametrize("format", ["slices", "outputs", "load", "logprobs", "callgrind", "prometheus"])
def test_broken_file_is_unreadable(tmp_path: Path, format: str) -> None:
    (tmp_path / "broken").write_bytes(b'{"type": "sli\xff')
    with pytest.raises(Unreadable, match="broken, line"):
        read_artefact(tmp_path, artefact("broken", format))


@pytest.mark.parametrize("format", ["chrome_trace", "callgrind", "junit", "parity_table", "collapsed", "events"])
def test_what_one_arm_left_broken_is_an_event_of_that_arm(tmp_path: Path, format: str) -> None:
    (tmp_path / "broken").write_bytes(b'{"type": "sli\xff')
    (event,) = read_artefact(tmp_path, artefact("broken", format, arm="baseline", case={"batch": 4}))
    assert isinstance(event, RuntimeEvent)
    assert (event.source, event.name, event.arm, event.level) == ("report", "unreadable", "baseline", "warning")
    assert event.message.startswith("at batch=4: broken, line")


def test_a_lost_file_is_an_event_and_no_other_than_promised(tmp_path: Path) -> None:
    gone = artefact("gone.json", "chrome_trace", arm="candidate", lost="no report /scratch/gone.json: too large")
    (event,) = read(Run(directory=tmp_path, artefacts=(gone,)))
    assert isinstance(event, RuntimeEvent)
    assert (event.name, event.message) == ("missing", "no report /scratch/gone.json: too large")
    Run(directory=tmp_path, artefacts=(gone,)).save()
    assert [(u.name, u.reason) for u in contents([tmp_path]).unread] == [("gone.json", gone.lost)]


def test_a_file_of_one_arm_says_nothing_of_the_other(tmp_path: Path) -> None:
    (tmp_path / "e.jsonl").write_text('{"name": "a", "count": 1, "arm": "baseline"}\n{"name": "b", "count": 1}\n')
    found = read_artefact(tmp_path, artefact("e.jsonl", "events", arm="candidate"))
    assert [o.name for o in found if isinstance(o, RuntimeEvent)] == ["b"]


def test_chosen_parameters_are_part_of_every_case(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("measure,value,T\nrms_ratio,1e-6,64\n")
    (point,) = read_artefact(tmp_path, artefact("t.csv", "parity_table", arm="candidate", case={"batch": 4, "T": 1}))
    assert isinstance(point, facts.ParityPoint)
    assert point.case == {"batch": 4, "T": 64}
    (tmp_path / "p.txt").write_text("main;work 7\n")
    (stacks,) = read_artefact(tmp_path, artefact("p.txt", "collapsed", arm="candidate", case={"batch": 4}))
    assert isinstance(stacks, Stacks)
    assert stacks.case == {"batch": 4}
