"""A trace's devices and host threads, with what launched what."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from feedback.intervals import Bools, Intervals, Ints, union
from feedback.signals import Evidence, IntervalLocation, ThreadLocation
from feedback.spans import Spans

DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
RUNTIME = ("cuda_runtime", "cuda_driver", "xpu_runtime", "privateuse1_runtime")
HOST_WORK = ("cpu_op", "python_function", "native", "gc", "lock", *RUNTIME)
"""What says that a thread was busy; annotations span whatever happens inside them."""
COMMUNICATION = re.compile(r"nccl|rccl|hccl|msccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all", re.I)
WAITS_FOR_DEVICE = re.compile(r"Synchronize|^cu(da)?Memcpy(?!.*Async)|^hipMemcpy(?!.*Async)|aten::(item|_local_scalar)")
STEP = re.compile(r"\bstep\b|ProfilerStep|train_step|execute_model|engine_step", re.I)
BLOCKS = 20
"""Into how many blocks a window is cut to see how steady a share is."""


class Device(NamedTuple):
    """What ran on one device, over all its streams."""

    name: str
    tracks: tuple[int, ...]
    rows: Ints
    """Indices of its kernels, copies and fills, by start."""
    launch: Ints
    """For each row the index of the host call that launched it, or -1."""
    busy: Intervals
    kernels: Intervals


def is_a(spans: Spans, *categories: str) -> Bools:
    """Which intervals are of one of these categories."""
    wanted = np.array([c in categories for c in spans.categories] or [False])
    return np.asarray(wanted[spans.category], dtype=np.bool_)


def named(spans: Spans, pattern: re.Pattern[str]) -> Bools:
    """Which intervals have a name that the pattern finds."""
    return np.asarray(_found(spans.names, pattern)[spans.name], dtype=np.bool_)


@lru_cache(maxsize=64)
def _found(names: tuple[str, ...], pattern: re.Pattern[str]) -> Bools:
    return np.array([bool(pattern.search(n)) for n in names] or [False])


def on_host(spans: Spans) -> Bools:
    """Which intervals ran on a thread."""
    wanted = np.array([t.kind == "thread" for t in spans.tracks] or [False])
    return np.asarray(wanted[spans.track], dtype=np.bool_)


def launchers(spans: Spans) -> Ints:
    """For each interval on a device the index of the host call with the same correlation id, or -1; the last call
    that began, if there are several."""
    host = np.flatnonzero(on_host(spans) & (spans.correlation >= 0))
    found = np.full(len(spans), -1)
    if not len(host):
        return found
    host = host[np.argsort(spans.correlation[host], kind="stable")]
    ids = spans.correlation[host]
    device = np.flatnonzero(~on_host(spans) & (spans.correlation >= 0))
    at = np.searchsorted(ids, spans.correlation[device], side="right") - 1
    hit = (at >= 0) & (ids[np.maximum(at, 0)] == spans.correlation[device])
    found[device[hit]] = host[at[hit]]
    return found


def devices(spans: Spans) -> list[Device]:
    """The devices of a trace that did some work, by name."""
    by_name: dict[str, list[int]] = {}
    for n, track in enumerate(spans.tracks):
        if track.kind == "device":
            by_name.setdefault(track.process or str(track.pid), []).append(n)
    if not by_name:
        return []
    work, launch = is_a(spans, *DEVICE_WORK), launchers(spans)
    is_kernel = is_a(spans, "kernel")
    found = []
    for name in sorted(by_name):
        mine = np.zeros(len(spans.tracks), np.bool_)
        mine[by_name[name]] = True
        rows = np.flatnonzero(work & mine[spans.track])
        busy = union(spans.start_ns[rows], spans.end_ns[rows])
        if busy:
            kernels = rows[is_kernel[rows]]
            own = union(spans.start_ns[kernels], spans.end_ns[kernels])
            found.append(Device(name, tuple(by_name[name]), rows, launch[rows], busy, own))
    return found


def steps(spans: Spans) -> Ints:
    """Indices of the annotated steps, by start; of nested ones the name that is most frequent."""
    rows = np.flatnonzero(is_a(spans, "user_annotation") & on_host(spans) & named(spans, STEP))
    if not len(rows):
        return rows
    stems = np.array([re.sub(r"\d+", "", n) for n in spans.names])
    kinds, counts = np.unique(stems[spans.name[rows]], return_counts=True)
    return np.asarray(rows[stems[spans.name[rows]] == kinds[np.argmax(counts)]], dtype=np.int64)


def blocks(lo: int, hi: int) -> tuple[Ints, Ints]:
    """A window cut into `BLOCKS` equal blocks: starts and ends."""
    edges = np.linspace(lo, hi, BLOCKS + 1).astype(np.int64)
    return edges[:-1], edges[1:]


def longest_name(spans: Spans, rows: Ints, weight: npt.NDArray[np.floating] | Ints) -> tuple[str, float]:
    """The name that has most of the weight among these rows, and how much."""
    if not len(rows):
        return "", 0.0
    sums = np.bincount(spans.name[rows], weight.astype(np.float64), len(spans.names))
    top = int(np.argmax(sums))
    return spans.names[top], float(sums[top])


def thread(spans: Spans, track: int) -> ThreadLocation:
    """A track as a place."""
    t = spans.tracks[track]
    return ThreadLocation(process=t.process or str(t.pid), name=t.name or str(t.tid), tid=t.tid)


def stretch(spans: Spans, track: str, found: Intervals) -> IntervalLocation:
    """The longest of these intervals as a place that stands for all of them."""
    top = int(np.argmax(found.end - found.start))
    return IntervalLocation(
        track=track, start_ns=int(found.start[top]), end_ns=int(found.end[top]), clock=spans.clock, n=len(found.start)
    )


def evidence(spans: Spans, detail: str, start_ns: int, end_ns: int, query: str) -> tuple[Evidence, ...]:
    """Where in the trace the numbers lie."""
    return (Evidence(artefact=spans.file, detail=detail, start_ns=start_ns, end_ns=end_ns, query=query),)
