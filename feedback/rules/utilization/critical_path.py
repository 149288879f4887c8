"""What the whole duration of a trace hangs on: the longest chain of work that had to follow other work.

A node is a piece of device work, or a host call that launches some, waits for some, or is joined by a correlation id
to another thread's. Walking back from the end, a node's predecessor is what it waited for last: the work before it on
its stream, its launch, or, for a call that waits, the work that ended during it. Between two calls of one thread lies
host time. The walk visits each node at most once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from feedback.criteria import Criteria
from feedback.intervals import Bools, Intervals, Ints, outermost, overlap
from feedback.observations import Observation
from feedback.rules import rule
from feedback.rules.utilization import arms, timeline
from feedback.rules.utilization.arms import Pair, percent
from feedback.signals import Evidence, KernelLocation, Location, Quantity, Signal
from feedback.spans import Spans

MIN_NODES = 50
SHIFT = 0.10
"""Change of a part's share of the path between arms that is worth a word."""
WAIT_ENDS_WITHIN_NS = 100_000
"""A wait for the device returns this soon after the work that it waited for."""


class Path(NamedTuple):
    """The critical path's time by kind, and by name inside the two that a change can shorten."""

    spans: Spans
    parts_ns: dict[str, int]
    """`host`, `kernels`, `copies`, `launch and gaps`."""
    top_kernel: str
    top_kernel_ns: float
    top_host: str
    top_host_ns: float
    n: int
    start_ns: int
    end_ns: int

    @property
    def total_ns(self) -> int:
        return max(1, sum(self.parts_ns.values()))

    def share(self, part: str) -> float:
        return self.parts_ns.get(part, 0) / self.total_ns


@rule(
    "utilization.critical_path",
    says="what the duration hangs on: host, kernels, copies or gaps, which bounds what speeding up one of them gains",
    needs="a trace of host and device with correlation ids",
)
def critical_path(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """The composition of the critical path, for a trace with a device. One thread alone is its own path: nothing to
    say."""
    signals = []
    for pair in arms.pairs(observations, criteria, Spans):
        found = {spans.arm: path for spans in pair.present if (path := longest_path(spans)) is not None}
        signals += _signal(pair, [found[o.arm] for o in pair.present if o.arm in found])
    return signals


def longest_path(spans: Spans) -> Path | None:
    """The critical path of a trace; None without device work, or with too little of it that is tied to a launch."""
    host = timeline.on_host(spans)
    device = ~host & timeline.is_a(spans, *timeline.DEVICE_WORK)
    launch = timeline.launchers(spans)
    tied = np.flatnonzero(device & (launch >= 0))
    if len(tied) < MIN_NODES or len(tied) < 0.5 * int(device.sum()):
        return None
    calls = np.zeros(len(spans), np.bool_)
    calls[launch[tied]] = True
    waits = host & timeline.named(spans, timeline.WAITS_FOR_DEVICE) & timeline.is_a(spans, *timeline.RUNTIME)
    nodes = np.flatnonzero(device | calls | waits)
    before = _predecessors(spans, nodes, device, waits, launch)
    return _composed(spans, _walk(spans, nodes, before), device)


def _predecessors(spans: Spans, nodes: Ints, device: Bools, waits: Bools, launch: Ints) -> Ints:
    """For each node (by its place in `nodes`) the one that it waited for last, -1 for none."""
    start, end, track = spans.start_ns[nodes], spans.end_ns[nodes], spans.track[nodes]
    n = len(nodes)
    order = np.argsort(track, kind="stable")
    before = np.full(n, -1)
    same = track[order][1:] == track[order][:-1]
    before[order[1:]] = np.where(same, order[:-1], -1)
    place = np.full(len(spans), -1)
    place[nodes] = np.arange(n)
    launched = np.where(launch[nodes] >= 0, place[launch[nodes]], -1)
    on_device = device[nodes]
    # Device work: its launch, if the stream was free by then.
    late = on_device & (launched >= 0) & ((before < 0) | (end[launched] >= end[before]))
    before = np.where(late, launched, before)
    # A wait: the last device work that ended before it returned, if that was after it began.
    work = np.flatnonzero(on_device)
    by_end = work[np.argsort(end[work], kind="stable")]
    for_device = np.flatnonzero(waits[nodes])
    at = np.searchsorted(end[by_end], end[for_device], side="right") - 1
    last = by_end[np.maximum(at, 0)]
    waited = (at >= 0) & (end[last] > start[for_device]) & (end[for_device] - end[last] < WAIT_ENDS_WITHIN_NS)
    before[for_device[waited]] = last[waited]
    return np.asarray(before, dtype=np.int64)


def _walk(spans: Spans, nodes: Ints, before: Ints) -> Ints:
    """Indices of the intervals on the path, in time order. Each step goes back in time, so it ends."""
    ends = spans.end_ns[nodes]
    chain, at = [], int(np.argmax(ends))
    back, end = before.tolist(), ends.tolist()
    while at >= 0:
        chain.append(at)
        ahead = back[at]
        # Clocks that disagree could make a loop; what didn't end earlier was not waited for.
        at = ahead if ahead >= 0 and (end[ahead], ahead) < (end[at], at) else -1
    return nodes[np.array(chain[::-1], dtype=np.int64)]


def _composed(spans: Spans, path: Ints, device: Bools) -> Path | None:
    if len(path) < 2:
        return None
    start, end, on_device = spans.start_ns[path], spans.end_ns[path], device[path]
    reached = np.concatenate(([start[0]], end[:-1]))
    # A node's own time is what lies after the end of what it waited for; on the host all of it, gaps included.
    own = np.where(on_device, end - np.maximum(start, reached), end - reached)
    gap = np.where(on_device, np.maximum(start - reached, 0), 0)
    is_kernel = timeline.is_a(spans, "kernel")[path]
    waits_for = timeline.named(spans, timeline.WAITS_FOR_DEVICE)[path] & ~on_device & np.concatenate(
        ([False], on_device[:-1])
    )  # fmt: skip
    is_host = ~on_device & ~waits_for
    parts = {
        "host": int(own[is_host].sum()), "kernels": int(own[is_kernel].sum()),
        "copies": int(own[on_device & ~is_kernel].sum()), "launch and gaps": int(gap.sum() + own[waits_for].sum()),
    }  # fmt: skip
    kernel, kernel_ns = timeline.longest_name(spans, path[is_kernel], own[is_kernel])
    call, call_ns = _host_name(
        spans, Intervals(reached[is_host], end[is_host]), spans.track[path[is_host]].astype(np.int64)
    )
    return Path(spans, parts, kernel, kernel_ns, call, call_ns, len(path), int(start[0]), int(end[-1]))


def _host_name(spans: Spans, stretches: Intervals, track: Ints) -> tuple[str, float]:
    """The outermost operator that fills most of the path's host time."""
    names, sums = "", 0.0
    for one in np.unique(track).tolist():
        rows = np.flatnonzero((spans.track == one) & timeline.is_a(spans, *timeline.HOST_WORK))
        rows = rows[outermost(spans.start_ns[rows], spans.end_ns[rows], spans.track[rows])]
        mine = Intervals(stretches.start[track == one], stretches.end[track == one])
        name, spent = timeline.longest_name(spans, rows, overlap(mine, spans.start_ns[rows], spans.end_ns[rows]))
        if spent > sums:
            names, sums = name, spent
    return names, sums


def _signal(pair: Pair[Spans], found: Sequence[Path]) -> list[Signal]:
    if not found:
        return []
    now = found[0]
    was = found[1] if len(found) > 1 else None
    parts = sorted(now.parts_ns, key=lambda p: -now.parts_ns[p])
    said = ", ".join(f"{part} {percent(now.share(part))}" for part in parts if now.share(part) >= 0.01)
    message = f"critical path: {said}"
    if was is not None:
        moved = [p for p in parts if abs(now.share(p) - was.share(p)) >= SHIFT]
        if moved:
            message += "; baseline: " + ", ".join(f"{p} {percent(was.share(p))}" for p in moved)
    places: list[Location] = []
    if parts[0] == "host":
        message += f"; most of the host's: {now.top_host[:80] or 'between operators'}"
    if now.top_kernel:
        places.append(KernelLocation(name=now.top_kernel))
    track = f"{now.n} nodes"
    places.append(timeline.stretch(now.spans, track, Intervals(np.array([now.start_ns]), np.array([now.end_ns]))))
    return [
        Signal(
            rule_id="utilization.critical_path", level="note", finding="observed", message=message[:400],
            locations=tuple(places), measured=_quantities(now), expected=_quantities(was) if was else (),
            caveats=("what is off the path costs nothing until the path is shortened",
                     "waits between streams by events are not seen"),
            next=(_advice(now, parts[0]),),
            evidence=(Evidence(artefact=now.spans.file, detail=f"{now.n} nodes", start_ns=now.start_ns,
                               end_ns=now.end_ns, query="launch by correlation id, stream order, waits"),),
        )
    ]  # fmt: skip


def _quantities(path: Path) -> tuple[Quantity, ...]:
    shares = [Quantity(name=part, value=path.share(part), unit="share of path") for part in path.parts_ns]
    if path.top_kernel:
        shares.append(
            Quantity(name=path.top_kernel[:160], value=path.top_kernel_ns / path.total_ns, unit="share of path")
        )
    if path.top_host:
        shares.append(Quantity(name=path.top_host[:160], value=path.top_host_ns / path.total_ns, unit="share of path"))
    return tuple(shares)


def _advice(path: Path, first: str) -> str:
    if first == "host":
        return "shorten or take off the host's part first: faster kernels gain at most the kernels' share"
    if first == "kernels":
        return f"a faster {path.top_kernel[:80]} gains at most {percent(path.top_kernel_ns / path.total_ns)}"
    return "overlap the copies with compute" if first == "copies" else "fewer, larger launches, or a captured graph"
