"""What a trace or a sampling profile holds, as columns: millions of intervals fit in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from sandboxes.results import ArmName

Ints = npt.NDArray[np.int64]
TrackKind = Literal["thread", "device", "counter"]


class Track(NamedTuple):
    """Where intervals ran: a thread of a process, or a queue of a device."""

    process: str
    """Name of the process, or its id as text."""
    name: str
    """Name of the thread or stream, or its id as text."""
    pid: int
    tid: int
    kind: TrackKind = "thread"


@dataclass(frozen=True, eq=False)
class Spans:
    """All intervals of one trace. Columns have one entry an interval and are sorted by start."""

    probe: str
    file: str
    arm: ArmName
    stage: str
    names: tuple[str, ...]
    """Distinct names."""
    categories: tuple[str, ...]
    """Distinct categories, in the words of torch.profiler where they fit: cpu_op, kernel, gpu_memcpy, gpu_memset,
    cuda_runtime, user_annotation, python_function, gc, native (stamped inside native code), lock."""
    tracks: tuple[Track, ...]
    start_ns: Ints
    end_ns: Ints
    name: npt.NDArray[np.int32]
    """Index into `names`."""
    category: npt.NDArray[np.int32]
    """Index into `categories`."""
    track: npt.NDArray[np.int32]
    """Index into `tracks`."""
    correlation: Ints
    """Joins a launch with what it launched; -1 for none."""
    columns: Mapping[str, npt.NDArray[np.float64]] = field(default_factory=dict)
    """Further numbers, NaN where an interval has none: `bytes`, `flops`, `value` (of a counter, until its next one),
    `external_id` (torch.profiler's number of the operator that an interval belongs to)."""
    instants: tuple[Instant, ...] = ()
    clock: str = "unknown"
    """Name of the clock; times of two files compare only if both name the same one."""
    has_native_times: bool = True
    """False where intervals are stamped by Python code, which includes its waits for the GIL."""
    lost: int = 0
    """Intervals that the file says were dropped, or that could not be read."""
    notes: tuple[str, ...] = ()
    """What a reader should know before it concludes something from an absence."""
    case: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    """Under which chosen parameters it was recorded; empty where nobody chose."""

    def __len__(self) -> int:
        return len(self.start_ns)


class Instant(NamedTuple):
    """A moment of a trace that has no length."""

    at_ns: int
    name: str
    category: str
    track: int
    """Index into the trace's tracks, -1 for the whole of it."""


class Frame(NamedTuple):
    """One line of a call stack."""

    function: str
    file: str = ""
    line: int | None = None


@dataclass(frozen=True, eq=False)
class Stacks:
    """A sampling profile: distinct call stacks with how often (or for how long) each was seen."""

    probe: str
    file: str
    arm: ArmName
    stage: str
    frames: tuple[Frame, ...]
    """Distinct frames."""
    threads: tuple[str, ...]
    """Distinct threads; one empty name where the file doesn't tell them apart."""
    stacks: tuple[tuple[int, ...], ...]
    """Indices into `frames`, outermost call first."""
    thread: npt.NDArray[np.int32]
    """Index into `threads`, one a stack."""
    weight: npt.NDArray[np.float64]
    """One a stack, in `unit`."""
    unit: Literal["samples", "s", "bytes"] = "samples"
    only_gil: bool = False
    """Whether only samples that held the GIL were taken."""
    lost: int = 0
    notes: tuple[str, ...] = ()
    case: Mapping[str, str | int | float | bool] = field(default_factory=dict)
