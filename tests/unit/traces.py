"""Spans and Stacks for tests: from events listed by hand, and from recorded files."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from feedback.spans import Frame, Spans, Stacks, Track
from sandboxes.results import ArmName

DATA = Path(__file__).parents[1] / "data"

Event = tuple[str, str, str, int, int, int]
"""category, name, track, start_ns, end_ns, correlation."""


def spans(
    events: Iterable[Event], arm: ArmName = "candidate", file: str = "trace.json", has_native_times: bool = True
) -> Spans:
    """A trace. A track named `gpu0/7` is stream 7 of device gpu0; every other one is a thread of process `engine`."""
    rows = sorted(events, key=lambda e: e[3])
    tracks = sorted({e[2] for e in rows})
    names, categories = sorted({e[1] for e in rows}), sorted({e[0] for e in rows})
    return Spans(
        probe="trace", file=file, arm=arm, stage="screen",
        names=tuple(names), categories=tuple(categories),
        tracks=tuple(
            Track(t.partition("/")[0], t, 0, n, "device") if "/" in t else Track("engine", t, 1, n)
            for n, t in enumerate(tracks)
        ),
        start_ns=np.array([e[3] for e in rows], np.int64), end_ns=np.array([e[4] for e in rows], np.int64),
        name=np.array([names.index(e[1]) for e in rows], np.int32),
        category=np.array([categories.index(e[0]) for e in rows], np.int32),
        track=np.array([tracks.index(e[2]) for e in rows], np.int32),
        correlation=np.array([e[5] for e in rows], np.int64),
        clock="CLOCK_MONOTONIC", has_native_times=has_native_times,
    )  # fmt: skip


def recorded_trace(path: str, arm: ArmName = "candidate") -> Spans:
    """A recorded Chrome trace, read no further than a test needs."""
    with gzip.open(DATA / path, "rt", encoding="utf-8") as file:
        found = json.load(file)["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in found if e["ph"] == "M" and e["name"] == "thread_name"}
    return spans(
        (
            (e["cat"], e["name"], str(names[e["tid"]]), int(e["ts"] * 1000), int((e["ts"] + e["dur"]) * 1000), -1)
            for e in found
            if e["ph"] == "X" and e["tid"] in names and e["cat"] != "Trace"
        ),
        arm, Path(path).name,
    )  # fmt: skip


def stacks(
    counts: Iterable[tuple[str, str, float]], arm: ArmName = "candidate", only_gil: bool = False, file: str = "p.raw"
) -> Stacks:
    """A profile from (thread, `f (a.py:1);g (b.py:2)`, samples)."""
    rows = list(counts)
    frames: dict[Frame, int] = {}
    threads = sorted({thread for thread, _, _ in rows})
    paths = []
    for _, stack, _ in rows:
        path = []
        for text in stack.split(";"):
            match = re.fullmatch(r"(.*) \((.*?)(?::(\d+))?\)", text)
            frame = Frame(match[1], match[2], int(match[3]) if match[3] else None) if match else Frame(text)
            path.append(frames.setdefault(frame, len(frames)))
        paths.append(tuple(path))
    return Stacks(
        probe="profile", file=file, arm=arm, stage="screen", frames=tuple(frames), threads=tuple(threads),
        stacks=tuple(paths), thread=np.array([threads.index(t) for t, _, _ in rows], np.int32),
        weight=np.array([w for _, _, w in rows], np.float64), only_gil=only_gil,
    )  # fmt: skip


def recorded_profile(name: str, arm: ArmName = "candidate", only_gil: bool = False) -> Stacks:
    """A recorded py-spy raw file with threads. A thread has no name in its first samples."""
    rows, names = [], {}
    for line in (DATA / "py_spy" / name).read_text(encoding="utf-8").splitlines():
        stack, _, count = line.rpartition(" ")
        match = re.match(r"thread \((\d+)\)(?:: ([^;]+))?;?", stack)
        if match and stack[match.end() :]:
            rows.append((match[1], stack[match.end() :], float(count)))
            names.setdefault(match[1], match[2])
            names[match[1]] = match[2] or names[match[1]]
    return stacks(((names[tid] or tid, stack, count) for tid, stack, count in rows), arm, only_gil, name)


def device_events(
    n: int,
    host_us: float = 5,
    kernel_us: float = 50,
    latency_us: float = 5,
    sync_every: int = 0,
    device: str = "gpu0",
    kernel: str = "gemm",
    thread: str = "main",
) -> list[Event]:
    """A thread that launches kernels one after the other: an operator, a launch inside it, the kernel on its stream
    when it is free. Now and then the thread waits for the device."""
    events: list[Event] = []
    now, free = 0.0, 0.0

    def add(category: str, name: str, track: str, start: float, end: float, correlation: int = -1) -> None:
        events.append((category, name, track, round(start * 1000), round(end * 1000), correlation))

    for k in range(n):
        launch = now + host_us
        add("cpu_op", "aten::mm", thread, now, launch + 4)
        add("cuda_runtime", "cudaLaunchKernel", thread, launch, launch + 3, k)
        now = launch + 4
        begin = max(launch + 3 + latency_us, free)
        free = begin + kernel_us
        add("kernel", kernel, f"{device}/7", begin, free, k)
        if sync_every and k % sync_every == sync_every - 1:
            add("cuda_runtime", "cudaStreamSynchronize", thread, now, max(now, free) + 2)
            now = max(now, free) + 2
    return events
