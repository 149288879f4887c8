"""Python's warnings as events: what `warnings.showwarning` writes to standard error.

    /path/module.py:12: RuntimeWarning: divide by zero encountered
      return a / b

Format: `warnings.formatwarning` of CPython 3.8 to 3.14. Lines of anything else in between are passed over.
"""

from __future__ import annotations

import re
from pathlib import Path

from feedback.observations import RuntimeEvent, Source
from feedback.readers import patterns
from sandboxes.results import ArmName

MAX_KINDS = 200
_LINE = re.compile(r"^(?P<file>[^\s:][^:]{0,400}):(?P<line>\d{1,7}): (?P<category>[A-Z]\w{0,80}Warning): (?P<text>.*)$")
_TELLING = re.compile(rb"^[^\s:][^:\n]*:\d+: [A-Z]\w*Warning: ", re.MULTILINE)


def fits(path: Path, head: bytes) -> bool:
    """Whether there is a warning at the beginning."""
    return bool(_TELLING.search(head))


def read(path: Path, probe: str, stage: str, arm: ArmName) -> list[RuntimeEvent]:
    """One event a category and place in the source, counted. Raises OSError; whatever the file holds is readable."""
    first: dict[tuple[str, str], tuple[int, str]] = {}
    counts: dict[tuple[str, str], int] = {}
    for number, text in patterns.lines(path):
        if not (found := _LINE.match(text)):
            continue
        key = (found["category"], f"{found['file']}:{found['line']}")
        if key not in first and len(first) >= MAX_KINDS:
            key = ("Warning", "other places")
        first.setdefault(key, (number, found["text"][: patterns.MAX_MESSAGE]))
        counts[key] = counts.get(key, 0) + 1
    return [
        RuntimeEvent(
            probe=probe, source="warnings", name=category, level="note" if "Deprecation" in category else "warning",
            message=f"{where}: {text}", count=counts[category, where], arm=arm, stage=stage,
            place=Source(file=path.name, line=line),
        )
        for (category, where), (line, text) in first.items()
    ]  # fmt: skip
