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
    """A recorded py-spy raw file with threads."""
    rows = []
    for line in (DATA / "py_spy" / name).read_text(encoding="utf-8").splitlines():
        stack, _, count = line.rpartition(" ")
        match = re.match(r"thread \(\d+\)(?:: ([^;]+))?;?", stack)
        if match and stack[match.end() :]:
            rows.append((match[1] or "thread", stack[match.end() :], float(count)))
    return stacks(rows, arm, only_gil, name)
