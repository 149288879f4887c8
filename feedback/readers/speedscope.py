"""speedscope files, sampled and evented, plain or gzipped, as call stacks with their weights.

Format: https://www.speedscope.app/file-format-schema.json (version 0.0.1). Tried with py-spy 0.4.3.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, Literal

import msgspec

from feedback.readers import Unreadable, compressed
from feedback.readers.columns import text_of
from feedback.readers.stacks import Table, cut_line
from feedback.spans import Frame, Stacks
from sandboxes.results import ArmName

MAX_BYTES = 128 << 20
"""The file is parsed as a whole: a longer one is refused."""

Unit = Literal["samples", "s", "bytes"]
UNITS: dict[str, tuple[Unit, float]] = {
    "seconds": ("s", 1.0), "milliseconds": ("s", 1e-3), "microseconds": ("s", 1e-6), "nanoseconds": ("s", 1e-9),
    "bytes": ("bytes", 1.0), "none": ("samples", 1.0),
}  # fmt: skip

_THREAD = re.compile(r'(?:Process (\d+) )?Thread (\S+)(?: "(.*)")?', re.DOTALL)
_SCHEMA = re.compile(rb'"\$schema"\s*:\s*"https?://www\.speedscope\.app/')


class _Frame(msgspec.Struct, gc=False):
    name: str
    file: str | None = None
    line: Any = None


class _Event(msgspec.Struct, gc=False):
    type: str
    at: float
    frame: int


class _Profile(msgspec.Struct):
    type: str
    name: str = ""
    unit: str = "none"
    samples: list[list[int]] = []
    weights: list[float] = []
    events: list[_Event] = []


class _Shared(msgspec.Struct):
    frames: list[_Frame]


class _File(msgspec.Struct):
    shared: _Shared
    profiles: list[_Profile]


def fits(path: Path, head: bytes) -> bool:
    """Whether it names speedscope's schema, or is called so."""
    return bool(_SCHEMA.search(compressed.start(head))) or ".speedscope" in path.suffixes


def read(path: Path, probe: str, stage: str, arm: ArmName) -> list[Stacks]:
    """One Stacks a unit of measurement. Raises OSError, and Unreadable with the place of what is wrong."""
    file = _parse(path)
    tables: dict[Unit, Table] = {}
    for number, profile in enumerate(file.profiles):
        unit, scale = UNITS.get(profile.unit, ("samples", 1.0))
        table = tables.setdefault(unit, Table())
        try:
            _add(table, file, profile, scale)
        except ValueError as error:
            raise Unreadable(path, 0, f"profile {number}: {error}") from error
    return [table.stacks(path, probe, stage, arm, unit) for unit, table in tables.items()]


def _parse(path: Path) -> _File:
    with compressed.stream(path) as stream:
        parts, size = [], 0
        while chunk := stream.read(1 << 20):
            parts.append(chunk)
            size += len(chunk)
            if size > MAX_BYTES:
                raise Unreadable(path, 0, f"longer than {MAX_BYTES >> 20} MiB")
        if stream.damage:
            raise Unreadable(path, 0, stream.damage)
    try:
        return msgspec.json.decode(b"".join(parts), type=_File)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Unreadable(path, 0, f"not a speedscope file: {error}") from error


def _add(table: Table, file: _File, profile: _Profile, scale: float) -> None:
    """Raises ValueError when the profile contradicts itself."""
    match = _THREAD.fullmatch(profile.name)
    thread = (match[3] or match[2]) if match else profile.name
    numbers = [_number(table, frame) for frame in file.shared.frames]
    if profile.type == "sampled":
        if len(profile.samples) != len(profile.weights):
            raise ValueError(f"{len(profile.samples)} samples but {len(profile.weights)} weights")
        for stack, weight in zip(profile.samples, profile.weights, strict=True):
            table.add(thread, _numbers(stack, numbers), _checked(weight) * scale)
    elif profile.type == "evented":
        _add_events(table, thread, numbers, profile.events, scale)
    else:
        raise ValueError(f"a profile of type `{text_of(profile.type)[:40]}`")


def _add_events(table: Table, thread: str, numbers: list[int | None], events: list[_Event], scale: float) -> None:
    stack: list[int] = []
    last = events[0].at if events else 0.0
    for event in events:
        if stack and event.at != last:
            table.add(thread, _numbers(stack, numbers), _checked(event.at - last) * scale)
        last = event.at
        if event.type == "O":
            stack.append(event.frame)
        elif not stack or stack.pop() != event.frame:
            raise ValueError(f"frame {event.frame} closes at {event.at} but is not the innermost one")


def _number(table: Table, frame: _Frame) -> int | None:
    """The frame's number; None for the one that py-spy puts in for the thread."""
    if frame.name.startswith("thread (") and not frame.file:
        return None
    return table.frames[Frame(text_of(frame.name), text_of(frame.file or ""), cut_line(frame.line))]


def _numbers(stack: list[int], numbers: list[int | None]) -> list[int]:
    if stack and not 0 <= min(stack) <= max(stack) < len(numbers):
        raise ValueError(f"a stack names a frame that is none of the {len(numbers)}")
    return [number for frame in stack if (number := numbers[frame]) is not None]


def _checked(weight: float) -> float:
    if not 0 <= weight < 1e18 or math.isnan(weight):
        raise ValueError(f"a weight of {weight}, or time running backwards")
    return weight
