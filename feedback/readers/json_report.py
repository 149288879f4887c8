"""pytest-json-report: one JSON document a session. Tried with pytest-json-report 1.5 (the last release, of 2022)
under pytest 9.2. https://github.com/numirias/pytest-json-report#format
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

from feedback.observations import Source, TestOutcome
from feedback.readers.documents import Count, Fields, Positive, document, has, shown
from feedback.readers.reportlog import reason, relative
from sandboxes.results import ArmName

Outcome = Literal["passed", "failed", "error", "skipped"]

_OUTCOMES: dict[str, Outcome] = {"passed": "passed", "xpassed": "passed", "failed": "failed", "error": "error"}
"""Any other, such as skipped and xfailed, is skipped."""


class _Phase(Fields):
    duration: Positive = 0.0
    outcome: str = "passed"
    crash: dict[str, Any] | None = None
    longrepr: Any = None


class _Test(Fields):
    nodeid: str
    lineno: Count | None = None
    outcome: str
    setup: _Phase | None = None
    call: _Phase | None = None
    teardown: _Phase | None = None


class _Report(Fields):
    tests: tuple[_Test, ...]


def fits(path: Path, head: bytes) -> bool:
    return head.lstrip()[:1] == b"{" and has(head, b"created", b"exitcode", b"root", b"environment", b"summary")


def read(path: Path, probe: str, stage: str, arm: ArmName) -> list[TestOutcome]:
    """One outcome a test. Raises Unreadable with the place, OSError when it can't be read.

    The plugin counts a rerun test once and calls it `rerun`; it passed in the end, or it would be called failed.
    """
    found = []
    for i, test in enumerate(document(path, _Report).tests):
        outcome: Outcome = "passed" if test.outcome == "rerun" else _OUTCOMES.get(test.outcome, "skipped")
        phases = [phase for phase in (test.setup, test.call, test.teardown) if phase]
        message, file, line = _why(phases)
        if outcome == "passed":
            message = "passed when run again" if test.outcome == "rerun" else ""
        own = shown(test.nodeid.partition("::")[0])
        if not (file and outcome in ("failed", "error")):
            file, line = own, None if test.lineno is None else test.lineno + 1
        found.append(
            TestOutcome(
                probe=probe, name=shown(test.nodeid, 400), outcome=outcome, message=message, arm=arm, stage=stage,
                file=relative(file, own), line=line, duration_s=sum(phase.duration for phase in phases),
                attempt=1 if test.outcome == "rerun" else 0, source=Source(file=path.name, query=f"/tests/{i}"),
            )
        )  # fmt: skip
    return found


def _why(phases: list[_Phase]) -> tuple[str, str, int | None]:
    """Message and place of the first phase that didn't pass."""
    phase = next((phase for phase in phases if phase.outcome != "passed"), None)
    if phase is None:
        return "", "", None
    if phase.crash is not None:
        return reason({"reprcrash": phase.crash})
    said = shown(phase.longrepr or "")
    skipped = re.fullmatch(r"\('.*', \d+, ['\"]Skipped: (.*)['\"]\)", said)  # a tuple, written as Python does
    return skipped[1] if skipped else said, "", None
