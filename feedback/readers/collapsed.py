"""Collapsed stacks (`outer;inner 12`): `py-spy record -f raw`, with and without -t, --gil and --subprocesses, and
whatever feeds flamegraph.pl. Tried with py-spy 0.4.3. The format is described with Brendan Gregg's FlameGraph."""

from __future__ import annotations

import math
import re
from pathlib import Path

from feedback.readers import Unreadable
from feedback.readers.columns import MAX_TRACKS, text_of
from feedback.readers.stacks import Table, cut_line
from feedback.spans import Frame, Stacks
from sandboxes.results import ArmName

MAX_LINE_BYTES = 1 << 20

_LINE = re.compile(r"(.*) (\d+(?:\.\d+)?)\s*")
_FRAME = re.compile(r"(.*) \((.*?)(?::(\d+))?\)")
_THREAD = re.compile(r"thread \(([^)]*)\)(?:: (.*))?", re.IGNORECASE)
_PROCESS = re.compile(r'process (\d+)(?::"(.*)")?', re.DOTALL)
_HEAD_LINES = 20


def fits(path: Path, head: bytes) -> bool:
    """Whether its first lines are all stacks with a number, and one of them is deeper than one frame."""
    lines = head.split(b"\n")[: _HEAD_LINES + 1]
    if len(lines) > 1:
        lines.pop()  # may be cut off
    texts = [line.decode("utf-8", "replace") for line in lines if line.strip()]
    return bool(texts) and all(_LINE.fullmatch(text) for text in texts) and any(";" in text for text in texts)


def read(path: Path, probe: str, stage: str, arm: ArmName) -> list[Stacks]:
    """One Stacks, counted in samples. Raises OSError, and Unreadable at the first line that is no stack; a last line
    that is cut off only counts as lost."""
    table, names = Table(), _Threads()
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES):
            number += 1
            if not line.strip():
                continue
            match = _LINE.fullmatch(line.decode("utf-8", "replace"))
            weight = float(match[2]) if match else math.nan
            if match and weight < 1e15:
                thread, frames = names.split(match[1].split(";"))
                table.add(thread, (table.frames[_frame(text)] for text in frames if text), weight)
            elif line.endswith(b"\n") or len(line) == MAX_LINE_BYTES or not len(table):
                raise Unreadable(path, number, f"no stack with a number behind it: {text_of(line[:80])}")
            else:
                table.lost += 1
    table.rename(names.name)
    return [table.stacks(path, probe, stage, arm)]


class _Threads:
    """Threads by id: py-spy learns a thread's name only after its first samples."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def split(self, frames: list[str]) -> tuple[str, list[str]]:
        """The thread's id and the frames below those that stand for processes and threads."""
        process = thread = ""
        while frames and (match := _PROCESS.fullmatch(frames[0])):
            process, frames = match[1], frames[1:]
        if frames and (match := _THREAD.fullmatch(frames[0])):
            thread, frames = match[1], frames[1:]
            key = f"{process}/{thread}" if process else thread
            if match[2] and len(self._names) < MAX_TRACKS:
                self._names[key] = f"{process}/{match[2]}" if process else match[2]
            return key, frames
        return process, frames

    def name(self, key: str) -> str:
        """The thread's name, or its id if it never had one."""
        return self._names.get(key, key)


def _frame(text: str) -> Frame:
    match = _FRAME.fullmatch(text)
    if match is None:
        return Frame(text_of(text))
    line = int(match[3]) if match[3] and len(match[3]) < 10 else None
    return Frame(text_of(match[1]), text_of(match[2]), cut_line(line))
