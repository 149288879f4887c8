"""JUnit XML: what most test runners write. https://github.com/testmoapp/junitxml collects its dialects.

Tried with pytest 9.2 (both families) and read with junitparser 5. A runner's rerun is a second `testcase` of the
same name (pytest), or a `rerunFailure`, `flakyFailure` and so on inside one (Maven Surefire).
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree
from xml.parsers import expat

from junitparser import Error, Failure, JUnitXmlError, Skipped
from junitparser.xunit2 import InterimResult, JUnitXml, TestCase

from feedback.observations import Source, TestOutcome
from feedback.readers import Unreadable
from feedback.readers.documents import MAX_BYTES, shown
from sandboxes.results import ArmName

MAX_DEPTH = 100
Outcome = Literal["passed", "failed", "error", "skipped"]

_PLACE = re.compile(r"^(?P<file>[^\s:][^:\n]{0,400}):(?P<line>\d{1,9}): ", re.MULTILINE)
"""How pytest, and most compilers, end a traceback."""


def fits(path: Path, head: bytes) -> bool:
    return head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<") and (b"<testsuite" in head or b"<testcase" in head)


def read(path: Path, probe: str, stage: str, arm: ArmName) -> list[TestOutcome]:
    """One outcome a test and run of it. Raises Unreadable when the XML is broken, declares entities or nests too
    deeply, OSError when it can't be read."""
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise Unreadable(path, 0, f"larger than {MAX_BYTES} bytes")
    _refuse_bombs(path, data)
    found: list[TestOutcome] = []
    runs: Counter[str] = Counter()
    try:
        suites: Any = JUnitXml.fromfile(io.BytesIO(data), parse_func=ElementTree.parse)
        for case in (case for suite in suites for case in suite):
            name = _name(case)
            for outcome, message, file_, line in _results(case):
                found.append(
                    TestOutcome(
                        probe=probe, name=name, outcome=outcome, message=message, arm=arm, stage=stage,
                        file=file_, line=line, duration_s=_seconds(case), attempt=runs[name],
                        source=Source(file=path.name, query=f"testcase {name}"),
                    )
                )  # fmt: skip
                runs[name] += 1
    except (JUnitXmlError, ElementTree.ParseError, ValueError, LookupError, TypeError) as error:
        raise Unreadable(path, 0, f"not JUnit XML: {error}") from error
    return found


def _refuse_bombs(path: Path, data: bytes) -> None:
    """Entities need a document type, and JUnit XML has none: so nothing can expand."""
    parser = expat.ParserCreate()
    depth = 0

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > MAX_DEPTH:
            raise Unreadable(path, parser.CurrentLineNumber, f"nested deeper than {MAX_DEPTH}")

    def end(name: str) -> None:
        nonlocal depth
        depth -= 1

    def doctype(*declared: object) -> None:
        raise Unreadable(path, parser.CurrentLineNumber, "declares a document type; JUnit XML has none")

    parser.StartElementHandler, parser.EndElementHandler, parser.StartDoctypeDeclHandler = start, end, doctype
    try:
        parser.Parse(data, True)
    except (expat.ExpatError, ValueError, LookupError) as error:
        raise Unreadable(path, parser.CurrentLineNumber, f"not XML: {error}") from error


def _name(case: TestCase) -> str:
    return shown("::".join(part for part in (case.classname, case.name) if part) or "unnamed", 400)


def _seconds(case: TestCase) -> float | None:
    return case.time if case.time is not None and 0 <= case.time < 1e9 else None


def _results(case: TestCase) -> Iterator[tuple[Outcome, str, str, int | None]]:
    """Outcome, message and place of each run: those that were repeated first, the one that counts last."""
    for earlier in case.interim_result:
        kind: Outcome = "error" if "Error" in type(earlier).__name__ else "failed"
        yield kind, _message(earlier), *_place(case, earlier.text)
    last: tuple[Outcome, str, str, int | None] = ("passed", "", *_place(case, None))
    for result in case.result:
        if isinstance(result, Failure | Error):
            last = ("error" if isinstance(result, Error) else "failed", _message(result), *_place(case, result.text))
        elif isinstance(result, Skipped) and last[0] == "passed":
            last = ("skipped", _message(result), *_place(case, None))
    yield last


def _message(result: Failure | Error | Skipped | InterimResult) -> str:
    return shown(result.message or result.text or result.type or "")


def _place(case: TestCase, traceback: str | None) -> tuple[str, int | None]:
    """Where it fails, or else where it is defined, where the runner says so."""
    places = list(_PLACE.finditer(traceback[-20_000:])) if traceback else []
    if places:
        return shown(places[-1]["file"]), int(places[-1]["line"])
    line = case._elem.get("line") or ""
    return shown(case._elem.get("file") or ""), int(line) if re.fullmatch(r"\d{1,9}", line) else None
