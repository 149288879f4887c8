"""The evidence behind a signal: what stands in the files where it says, bounded and harmless."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedback import explanation
from feedback.explanation import MAX_LINE, MAX_ROWS, explain, find
from feedback.inventory import FileRead
from feedback.readers import Unreadable, formats
from feedback.signals import CodeLocation, Evidence, Signal
from feedback.spans import Frame, Spans, Stacks, Track
from sandboxes.results import ArmName

CALLGRIND = Path(__file__).resolve().parents[1] / "data" / "callgrind"


def make(*evidence: Evidence, **fields: Any) -> Signal:
    known = {
        "rule_id": "utilization.gil", "level": "warning", "finding": "observed", "message": "holds the GIL",
        "locations": (CodeLocation(file="a.py"),), "evidence": evidence,
    }  # fmt: skip
    return Signal.model_validate(known | fields)


def file(path: Path, format: str = "engine_log", **fields: Any) -> FileRead:
    return FileRead(path=path, name=path.name, format=format, probe="p", **fields)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "a.log"
    path.write_text("".join(f"line {n}\n" for n in range(1, 100)))
    return path


def test_signals_are_found_by_the_beginning_of_their_id_or_by_their_rule() -> None:
    one, other = make(), make(locations=(CodeLocation(file="b.py"),))
    assert find([one, other], one.fingerprint) == [one]
    assert find([one, other], one.fingerprint[:6]) == [one]
    assert find([one, other], "utilization.gil") == [one, other]
    assert find([one, other], one.fingerprint[:3]) == []
    assert find([one, other], "") == []


def test_lines_are_shown_with_those_around_them(log: Path) -> None:
    text = explain(make(Evidence(artefact="a.log", line=50, detail="it says so")), [file(log, arm="candidate")])
    assert text.splitlines()[-7:] == [
        "candidate: a.log:50", "  it says so",
        "    48: line 48", "    49: line 49", "  > 50: line 50", "    51: line 51", "    52: line 52",
    ]  # fmt: skip


def test_a_line_that_is_gone_is_said_to_be(log: Path) -> None:
    assert "the file has no line 500 any more" in explain(make(Evidence(artefact="a.log", line=500)), [file(log)])


def test_packed_files_are_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "a.log.gz"
    path.write_bytes(gzip.compress(b"one\ntwo\n"))
    assert "> 2: two" in explain(make(Evidence(artefact="a.log.gz", line=2)), [file(path)])


def test_damaged_packed_files_are_said_to_be(tmp_path: Path) -> None:
    path = tmp_path / "a.log.gz"
    path.write_bytes(gzip.compress(b"one\ntwo\n" * 9999)[:-40])
    assert "can't be read any more" in explain(make(Evidence(artefact="a.log.gz", line=2 * 9999)), [file(path)])
    path.write_bytes(b"\x1f\x8b\x08" + bytes(40) + b"\xff" * 40)
    assert "can't be read any more" in explain(make(Evidence(artefact="a.log.gz", line=2)), [file(path)])


def test_long_and_hostile_lines_are_cut_and_neutralised(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"x" * 3_000_000 + b"\n\x1b[31mred\xff\xe2\x80\xae" + b"y" * 9000 + b"\n")
    text = explain(make(Evidence(artefact="a.log", line=2)), [file(path)])
    assert all(c.isprintable() or c == "\n" for c in text)
    assert max(len(line) for line in text.splitlines()) < 2 * MAX_LINE


def test_a_search_for_a_line_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explanation, "MAX_SCANNED", 1000)
    path = tmp_path / "a.log"
    path.write_text("line\n" * 100_000)
    assert "has no line 50000" in explain(make(Evidence(artefact="a.log", line=50_000)), [file(path)])


def test_bytes_are_shown(log: Path) -> None:
    shown = explain(make(Evidence(artefact="a.log", byte_start=7, byte_end=13)), [file(log)])
    assert shown.splitlines()[-1] == "  7: line 2"


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("/results/1/times/0", "/results/1/times/0 = 2.5"),
        ("/a~1b", "/a~1b = true"),
        ("/results/9", "(nothing stands there any more)"),
        ("/results/x", "(nothing stands there any more)"),
        ("/a~1b/c", "(nothing stands there any more)"),
        ("sum by thread", "engine"),
    ],
)
def test_json_pointers_are_followed(tmp_path: Path, query: str, shown: str) -> None:
    path = tmp_path / "engine.json"
    path.write_text(json.dumps({"results": [{}, {"times": [2.5]}], "a/b": True}))
    assert shown in explain(make(Evidence(artefact="engine.json", query=query)), [file(path)])


@pytest.mark.parametrize("data", [b"", b"[" * 200_000, b"\xff\xfe", b"{"])
def test_json_that_is_none_any_more(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(data)
    assert "nothing stands there any more" in explain(make(Evidence(artefact="a.json", query="/a/0")), [file(path)])


def test_a_file_that_is_gone_or_was_not_given(tmp_path: Path) -> None:
    evidence = Evidence(artefact="gone.log", line=3)
    assert "can't be read any more: FileNotFoundError" in explain(make(evidence), [file(tmp_path / "gone.log")])
    assert "(not among the files)" in explain(make(evidence), [])
    assert "names no evidence" in explain(make(), [])


def test_both_sides_are_shown_if_both_have_such_a_file(tmp_path: Path) -> None:
    files = []
    for arm in ("baseline", "candidate"):
        path = tmp_path / arm / "a.log"
        path.parent.mkdir()
        path.write_text(f"{arm} says\n")
        files.append(file(path, arm=arm))
    text = explain(make(Evidence(artefact="a.log", line=1)), files)
    assert "> 1: baseline says" in text
    assert "> 1: candidate says" in text


def a_trace(path: Path, probe: str, stage: str, arm: ArmName) -> list[Spans]:
    if path.read_text() != "trace":
        raise Unreadable(path, 1, "no trace")
    start = np.arange(100, dtype=np.int64) * 1_000_000
    zeros = np.zeros(100, dtype=np.int32)
    return [
        Spans(
            probe=probe, file=path.name, arm=arm, stage=stage, names=("op\x1b[31m",), categories=("native",),
            tracks=(Track("p", "t", 1, 1),), start_ns=start, end_ns=start + np.arange(100) * 10, name=zeros,
            category=zeros, track=zeros, correlation=np.full(100, -1, dtype=np.int64),
        )
    ]  # fmt: skip


FRAMES = (Frame("main", "a.py", 1), Frame("hot", "b.py", 9))


def a_profile(path: Path, probe: str, stage: str, arm: ArmName) -> list[Stacks]:
    return [
        Stacks(
            probe=probe, file=path.name, arm=arm, stage=stage, frames=FRAMES,
            threads=("T",), stacks=((0,), (0, 1)), thread=np.zeros(2, dtype=np.int32), weight=np.array([1.0, 3.0]),
        )
    ]  # fmt: skip


@pytest.fixture
def traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rows = (
        formats.Format("trace", "", lambda p, h: True, a_trace),
        formats.Format("prof", "", lambda p, h: True, a_profile),
    )
    monkeypatch.setattr(formats, "FORMATS", rows)
    path = tmp_path / "a.json"
    path.write_text("trace")
    return path


def test_the_longest_intervals_of_a_stretch_are_shown(traced: Path) -> None:
    evidence = Evidence(artefact="a.json", start_ns=0, end_ns=20_500_000)
    rows = explain(make(evidence), [file(traced, "trace")]).splitlines()
    assert rows[-MAX_ROWS - 1] == "  20.000 ms +0.000 ms op [31m on p/t"
    assert rows[-1] == f"  and {21 - MAX_ROWS} shorter ones"


def test_a_stretch_without_intervals_and_a_trace_that_changed(traced: Path) -> None:
    signal = make(Evidence(artefact="a.json", start_ns=10**15, end_ns=10**15 + 1))
    assert "no interval lies there any more" in explain(signal, [file(traced, "trace")])
    traced.write_text("other")
    assert "can't be read any more: a.json, line 1: no trace" in explain(signal, [file(traced, "trace")])


def test_the_heaviest_stacks_of_a_profile_are_shown(traced: Path) -> None:
    text = explain(make(Evidence(artefact="a.json", query="by thread")), [file(traced, "prof", kinds={"stacks": 2})])
    assert "  75.0% (3 samples) T: hot b.py:9 < main a.py:1" in text.splitlines()


def test_instruction_counts_are_shown_by_function_and_line_in_both_arms() -> None:
    before, after = (
        file(CALLGRIND / name, "callgrind", arm=arm)
        for name, arm in (("tile128.out", "baseline"), ("tile1024.out", "candidate"))
    )
    asked = (Evidence(artefact="tile1024.out", query="fn=scale"), Evidence(artefact="tile128.out", query="fn=scale"))
    shown = explain(make(*asked), [before, after]).partition("\n\n")[2]
    assert shown.splitlines() == [
        "baseline: tile128.out: 1,264,198 instructions",
        "candidate: tile1024.out: 399,716 instructions",
        "scale: 985,920 (78.0%) -> 123,240 (30.8%)",
        "  baseline /repo/norm.c:7 819,680 (64.8%)",
        "  baseline /repo/norm.c:4 163,840 (13.0%)",
        "  baseline /repo/norm.c:8 1,600 (0.1%)",
        "  baseline 2 other lines 800 (0.1%)",
        "  candidate /repo/norm.c:7 102,460 (25.6%)",
        "  candidate /repo/norm.c:4 20,480 (5.1%)",
        "  candidate 3 other lines 300 (0.1%)",
    ]
    one = explain(make(asked[0]), [after]).partition("\n\n")[2]
    assert one.splitlines()[:3] == [
        "tile1024.out: 399,716 instructions", "scale: 123,240 (30.8%)", "  /repo/norm.c:7 102,460 (25.6%)"
    ]  # fmt: skip


def test_of_a_total_the_functions_that_count_most_are_shown(tmp_path: Path) -> None:
    shown = explain(make(Evidence(artefact="tile128.out")), [file(CALLGRIND / "tile128.out", "callgrind")])
    assert "\nscale: 985,920 (78.0%)\nrms_norm: 125,480 (9.9%)\n" in shown
    gone = explain(make(Evidence(artefact="a.out", query="fn=f")), [file(tmp_path / "a.out", "callgrind")])
    assert "can't be read any more" in gone
