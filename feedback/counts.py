"""Instruction counts behind a signal: its functions with their lines, both arms beside each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from feedback.inventory import FileRead
from feedback.readers import Unreadable, callgrind
from feedback.signals import Evidence
from feedback.wording import plain

MAX_FUNCTIONS = 8
MAX_LINES = 8
"""Of a function in an arm, and ..."""
MIN_SHARE = 0.001
"""... such that execute this share of all instructions."""
MAX_NAME = 160


class _Arm(NamedTuple):
    name: str
    counted: callgrind.Counted


def counts(found: Sequence[tuple[Evidence, FileRead]]) -> list[str]:
    """Lines of text from evidence in callgrind files: the totals, then each function that the evidence names with its
    most costly lines. Where it names none, the functions that count most."""
    asked = list(dict.fromkeys(e.query.removeprefix("fn=") for e, _ in found if e.query.startswith("fn=")))
    files = {file.path: file for _, file in found}
    rows, arms = [], []
    for file in sorted(files.values(), key=lambda file: file.arm or ""):  # the baseline first
        title = f"{file.arm}: {plain(file.name)}" if file.arm and len(files) > 1 else plain(file.name)
        try:
            arm = _Arm(file.arm or "", callgrind.count(file.path, asked))
        except (Unreadable, OSError) as error:
            rows.append(f"{title} (can't be read any more: {plain(str(error))[:MAX_NAME]})")
            continue
        arms.append(arm)
        rows.append(f"{title}: {arm.counted.total:,} instructions")
    most = dict.fromkeys(name for arm in arms for name in list(arm.counted.functions)[:MAX_FUNCTIONS])
    for function in asked or most:
        rows += _function(function, arms)
    return rows


def _function(function: str, arms: Sequence[_Arm]) -> Iterator[str]:
    """What a function executed itself, without what it called, in each arm; then where."""
    said = " -> ".join(_count(arm.counted.functions.get(function, 0), arm.counted.total) for arm in arms)
    if said:
        yield f"{plain(function)[:MAX_NAME]}: {said}"
    for arm in arms:
        of = f"{arm.name} " if len(arms) > 1 else ""
        lines = arm.counted.lines.get(function, {})
        shown = [(place, n) for place, n in lines.items() if n >= MIN_SHARE * arm.counted.total][:MAX_LINES]
        for place, instructions in shown:
            yield f"  {of}{plain(place)[-MAX_NAME:]} {_count(instructions, arm.counted.total)}"
        if len(lines) > len(shown):
            rest = sum(lines.values()) - sum(n for _, n in shown)
            yield f"  {of}{len(lines) - len(shown)} other lines {_count(rest, arm.counted.total)}"


def _count(instructions: int, total: int) -> str:
    return f"{instructions:,} ({instructions / total:.1%})" if total > 0 else f"{instructions:,}"
