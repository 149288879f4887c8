"""Test reports: what failed, where it fails first, which run of it, and what was only skipped."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from feedback import observations
from feedback.readers import Unreadable, json_report, junit, reportlog

DATA = Path(__file__).resolve().parents[1] / "data"
CHUNKS = "assert 28 == 36"


def short(outcome: observations.TestOutcome) -> tuple[str, int, str, int | None]:
    return outcome.outcome, outcome.attempt, outcome.file, outcome.line


def of(found: list[observations.TestOutcome], name: str) -> list[observations.TestOutcome]:
    return [o for o in found if o.name.endswith(name)]


def test_reportlog_names_the_place_of_each_failure_and_keeps_reruns_apart() -> None:
    found = reportlog.read(DATA / "reportlog" / "pytest.jsonl", "unit", "confirm", "baseline")
    assert len(found) == 12
    assert {(o.probe, o.stage, o.arm) for o in found} == {("unit", "confirm", "baseline")}
    (failed,) = of(found, "::test_chunks_add_up[9]")
    assert short(failed) == ("failed", 0, "test_norm.py", 28)
    assert failed.message.startswith(CHUNKS)
    assert failed.source == observations.Source(file="pytest.jsonl", line=16)
    assert [short(o) for o in of(found, "test_raises_in_code")] == [("failed", 0, "test_norm.py", 10)]
    assert [short(o)[:2] for o in of(found, "test_flaky")] == [("failed", 0), ("passed", 1)]
    (server,) = of(found, "test_needs_server")
    assert (server.outcome, server.message) == ("error", "ConnectionRefusedError: server at port 8000 said no")
    (teardown,) = of(found, "test_teardown_fails")
    assert (teardown.outcome, teardown.line) == ("error", 64)
    assert {o.name.partition("::")[2]: o.message for o in found if o.outcome == "skipped"} == {
        "test_on_gpu": "needs a GPU",
        "test_known_overflow": "expected to fail: known: fp16 overflows",
    }
    assert all(o.duration_s is not None and 0 < o.duration_s < 5 for o in found)


def reports(path: Path, *lines: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def phase(when: str, outcome: str = "passed", **fields: object) -> dict[str, object]:
    known = {"$report_type": "TestReport", "nodeid": "t.py::test_it", "location": ["t.py", 4, "test_it"]}
    return {**known, "when": when, "outcome": outcome, "duration": 0.5, **fields}


def test_reportlog_of_a_process_that_died_blames_the_test_it_died_in(tmp_path: Path) -> None:
    begun = {"$report_type": "SessionStart"}
    (lost,) = reportlog.read(reports(tmp_path / "r", begun, phase("setup")), "p", "screen", "candidate")
    assert short(lost) == ("error", 0, "t.py", 5)
    assert lost.message == "the test process ended inside this test"
    whole = reports(tmp_path / "r", begun, phase("setup"), phase("call"), {"$report_type": "SessionFinish"})
    assert [o.outcome for o in reportlog.read(whole, "p", "screen", "candidate")] == ["passed"]


def test_reportlog_rerun_without_a_teardown_line(tmp_path: Path) -> None:
    again = [phase("setup"), phase("call"), phase("teardown")]
    path = reports(tmp_path / "r", phase("setup"), phase("call", "rerun", longrepr="no answer"), *again)
    first, second = reportlog.read(path, "p", "screen", "candidate")
    assert (short(first)[:2], first.message) == (("failed", 0), "no answer")
    assert (short(second)[:2], second.duration_s) == (("passed", 1), 1.5)


def test_reportlog_collection_error_is_an_error(tmp_path: Path) -> None:
    line = {"$report_type": "CollectReport", "nodeid": "t.py", "outcome": "failed", "longrepr": "ImportError: x"}
    (broken,) = reportlog.read(reports(tmp_path / "r", line), "p", "screen", "candidate")
    assert (broken.name, broken.outcome, broken.message) == ("t.py", "error", "ImportError: x")


def test_json_report_agrees_with_reportlog() -> None:
    log = reportlog.read(DATA / "reportlog" / "pytest.jsonl", "p", "screen", "candidate")
    found = json_report.read(DATA / "json_report" / "pytest.json", "p", "screen", "candidate")
    last = {o.name: o for o in log}
    assert [o.name for o in found] == list(last)
    for outcome in found:
        expected = last[outcome.name]
        assert short(outcome) == short(expected), outcome.name
        assert outcome.message.removeprefix("assert 70000 < 65504") in (expected.message, "", "passed when run again")


def test_junit_finds_the_place_in_the_traceback() -> None:
    found = junit.read(DATA / "junit" / "pytest.xml", "p", "screen", "candidate")
    assert len(found) == 12
    (failed,) = of(found, "::test_chunks_add_up[9]")
    assert short(failed) == ("failed", 0, "test_norm.py", 28)
    assert failed.message.startswith(CHUNKS)
    assert [short(o) for o in of(found, "test_raises_in_code")] == [("failed", 0, "test_norm.py", 10)]
    assert [o.outcome for o in of(found, "test_needs_server")] == ["error"]
    assert "\x1b" not in of(found, "test_needs_server")[0].message
    assert {o.name for o in found if o.outcome == "skipped"} == {
        "test_norm::test_on_gpu",
        "test_norm::test_known_overflow",
    }
    assert [o.attempt for o in of(found, "test_flaky")] == [0, 1]


def test_junit_reruns_inside_a_case_are_attempts() -> None:
    found = junit.read(DATA / "junit" / "surefire.xml", "p", "screen", "candidate")
    assert [(o.name.rpartition("::")[2], *short(o)) for o in found] == [
        ("evictsOldest", "passed", 0, "src/test/java/CacheTest.java", 40),
        ("sharesPrefix", "failed", 0, "", None),
        ("sharesPrefix", "passed", 1, "", None),
        ("survivesReset", "failed", 0, "", None),
        ("survivesReset", "failed", 1, "", None),
    ]
    assert found[1].message == "expected 3 blocks but was 2"


LAUGHS = "".join(f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in itertools.pairwise("abcdefghz"))
BOMB = f'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">{LAUGHS}]><testsuites><testsuite>&z;</testsuite></testsuites>'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (BOMB, "document type"),
        ('<!DOCTYPE x SYSTEM "file:///etc/passwd"><testsuites/>', "document type"),
        ("<testsuites>" + "<testsuite>" * 5000, "nested deeper"),
        ("<testsuites><testcase", "not XML"),
        ("<html/>", "not JUnit XML"),
        ('<testsuite><testcase name="a" time="soon"/></testsuite>', "not JUnit XML"),
        ('<?xml version="1.0" encoding="no-such"?><testsuites/>', "not XML"),
    ],
)  # fmt: skip
def test_junit_refuses_bombs_and_what_is_none(text: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "junit.xml"
    path.write_text(text)
    with pytest.raises(Unreadable, match=reason):
        junit.read(path, "p", "screen", "candidate")
