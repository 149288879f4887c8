"""pytest-reportlog: one JSON line a phase of a test, written as it happens, so that a crash loses nothing.

Tried with pytest-reportlog 1.0 under pytest 9.2, with pytest-rerunfailures 16. The lines are pytest's own report
objects: https://docs.pytest.org/en/stable/reference/reference.html#testreport
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from feedback.observations import Source, TestOutcome
from feedback.readers import Unreadable
from feedback.readers.documents import Count, Fields, Positive, first_object, lines, shown, valid
from sandboxes.results import ArmName

MAX_OUTCOMES = 500_000


class _Crash(Fields):
    path: str = ""
    lineno: Count | None = None
    message: str = ""


class _Report(Fields):
    nodeid: str
    when: Literal["setup", "call", "teardown"]
    outcome: Literal["passed", "failed", "skipped", "rerun"]
    location: tuple[str, Count | None, str] | None = None
    duration: Positive = 0.0
    longrepr: Any = None
    wasxfail: str | None = None


def fits(path: Path, head: bytes) -> bool:
    return "$report_type" in first_object(head)


def read(path: Path, probe: str, stage: str, arm: ArmName) -> list[TestOutcome]:
    """One outcome a test and run of it; one that the process didn't live to end is an error. Raises Unreadable
    with the line, OSError when it can't be read."""
    found: list[TestOutcome] = []
    runs: dict[str, int] = {}
    open_: dict[str, TestOutcome] = {}
    finished = False
    for number, line in lines(path):
        if not isinstance(line, dict):
            raise Unreadable(path, number, "not a JSON object")
        finished = line.get("$report_type") == "SessionFinish"
        if line.get("$report_type") == "CollectReport" and line.get("outcome") == "failed":
            found.append(_uncollected(line, path, number, probe, stage, arm))
        if line.get("$report_type") != "TestReport":
            continue
        if len(found) == MAX_OUTCOMES:
            raise Unreadable(path, number, f"more than {MAX_OUTCOMES} tests")
        report = valid(_Report, line, path, number)
        if report.when == "setup" and report.nodeid in open_:  # a rerun; some versions leave out the teardown
            found.append(open_.pop(report.nodeid))
        if report.nodeid not in open_:
            open_[report.nodeid] = _begun(report, runs, path, number, probe, stage, arm)
            runs[report.nodeid] = open_[report.nodeid].attempt + 1
        open_[report.nodeid] = _with(open_[report.nodeid], report)
        if report.when == "teardown":
            found.append(open_.pop(report.nodeid))
    if open_ and not finished:
        found += [_lost(outcome) for outcome in open_.values()]
        open_.clear()
    return found + list(open_.values())


def _begun(
    report: _Report, runs: dict[str, int], path: Path, number: int, probe: str, stage: str, arm: ArmName
) -> TestOutcome:
    file, line, _ = report.location or ("", None, "")
    return TestOutcome(
        probe=probe, name=shown(report.nodeid, 400), outcome="passed", arm=arm, stage=stage, file=shown(file),
        line=None if line is None else line + 1, duration_s=0.0, attempt=runs.get(report.nodeid, 0),
        source=Source(file=path.name, line=number),
    )  # fmt: skip


def _with(before: TestOutcome, report: _Report) -> TestOutcome:
    """The outcome with one more phase. What fails first counts."""
    changes: dict[str, Any] = {"duration_s": (before.duration_s or 0.0) + report.duration}
    if before.outcome == "passed" and report.outcome != "passed":
        message, file, line = reason(report.longrepr)
        if report.wasxfail is not None:
            changes |= {"outcome": "skipped", "message": shown(f"expected to fail: {report.wasxfail}")}
        elif report.outcome == "skipped":
            changes |= {"outcome": "skipped", "message": message}
        else:
            kind = "failed" if report.when == "call" else "error"
            changes |= {"outcome": kind, "message": message}
            if file:
                changes |= {"file": relative(file, before.file), "line": line}
    return before.model_copy(update=changes)


def reason(longrepr: Any) -> tuple[str, str, int | None]:
    """Message, file and line of pytest's account of why a phase didn't pass."""
    if isinstance(longrepr, dict):
        said = longrepr.get("reprcrash")
        crash = _Crash.model_validate(said) if _is_crash(said) else _Crash()
        return shown(crash.message), shown(crash.path), crash.lineno
    if isinstance(longrepr, list | tuple) and len(longrepr) == 3:
        return shown(longrepr[2]).removeprefix("Skipped: "), "", None
    return shown(longrepr or ""), "", None


def relative(file: str, own: str) -> str:
    """A crash's absolute path as the test's own relative one, if it is the same file."""
    return own if own and file.endswith("/" + own) else file


def _is_crash(said: Any) -> bool:
    if not isinstance(said, dict):
        return False
    line = said.get("lineno")
    return isinstance(said.get("path"), str) and isinstance(said.get("message"), str) and _is_line(line)


def _is_line(line: Any) -> bool:
    return isinstance(line, int) and 0 <= line < 1 << 53


def _uncollected(line: dict[str, Any], path: Path, number: int, probe: str, stage: str, arm: ArmName) -> TestOutcome:
    message, file, at = reason(line.get("longrepr"))
    return TestOutcome(
        probe=probe, name=shown(line.get("nodeid") or "collection", 400), outcome="error",
        message=message or "could not be collected", arm=arm, stage=stage, file=file, line=at,
        source=Source(file=path.name, line=number),
    )  # fmt: skip


def _lost(outcome: TestOutcome) -> TestOutcome:
    """A test that began and never ended: its process died or was killed in it."""
    if outcome.outcome != "passed":
        return outcome
    return outcome.model_copy(update={"outcome": "error", "message": "the test process ended inside this test"})
