"""Copies and communication that compute waits for instead of running beside them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from feedback.criteria import Criteria
from feedback.intervals import Intervals, Ints, difference, intersection, overlap, union
from feedback.observations import Observation
from feedback.rules import rule
from feedback.rules.utilization import arms, timeline
from feedback.rules.utilization.arms import State, percent
from feedback.rules.utilization.timeline import Device
from feedback.signals import Cause, Evidence, KernelLocation, Quantity, Signal
from feedback.spans import Spans
from feedback.stats import ratio_interval

MIN_COUNT = 20
MIN_COPIES, MIN_COMMUNICATION = 0.05, 0.10
"""Exposed share of the window below which hiding all of it gains little."""
MIN_WAITED = 0.5
"""Of the exposed time, how much something must be seen to wait for: a copy on an otherwise unused device delays no
one."""
BETWEEN_HOST_AND_DEVICE = re.compile(r"HtoD|DtoH|Host|PtoP", re.I)
TAIL = 0.025


@rule(
    "utilization.copy_exposed",
    says="compute waits for copies between host and device that could run beside it",
    needs="a trace with device intervals",
)
def copy_exposed(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """Copies outside all kernels, if something is seen to wait for them."""
    return _each(observations, criteria, _copies)


@rule(
    "utilization.comm_exposed",
    says="communication kernels run while no compute does",
    needs="a trace with device intervals",
)
def comm_exposed(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """Collectives outside all compute kernels."""
    return _each(observations, criteria, _communication)


def _each(
    observations: Sequence[Observation], criteria: Criteria, look: Callable[[Spans, Device], State | None]
) -> list[Signal]:
    signals = []
    for pair in arms.pairs(observations, criteria, Spans):
        signals += arms.compare(pair, lambda s: [x for d in timeline.devices(s) if (x := look(s, d)) is not None])
    return signals


def _copies(spans: Spans, device: Device) -> State | None:
    # Copies inside one device are work like any other.
    is_copy = timeline.is_a(spans, "gpu_memcpy") & timeline.named(spans, BETWEEN_HOST_AND_DEVICE)
    rows = device.rows[is_copy[device.rows]]
    if len(rows) < MIN_COUNT or not device.kernels:
        return None
    exposed = difference(union(spans.start_ns[rows], spans.end_ns[rows]), device.kernels)
    waited = _waited(spans, device, exposed)
    share, lo, hi = _share(device, exposed)
    said = f"exposed copies {percent(share)}"
    if not (share >= MIN_COPIES and lo > MIN_COPIES / 2 and waited >= MIN_WAITED * exposed.total):
        return State(device.name, False, said, None)
    kernels = np.unique(spans.track[device.rows[timeline.is_a(spans, "kernel")[device.rows]]])
    same = float(np.isin(spans.track[rows], kernels).mean())
    top, _ = timeline.longest_name(spans, rows, spans.end_ns[rows] - spans.start_ns[rows])
    return State(device.name, True, said, Signal(
        rule_id="utilization.copy_exposed", level="warning", finding="observed",
        message=f"{device.name}: {len(rows)} copies ({top[:60]} most) take {percent(share)} of the window while no "
        f"kernel runs; {percent(waited / exposed.total)} of that is waited for",
        locations=(timeline.stretch(spans, device.name, exposed), KernelLocation(name=top)),
        measured=(Quantity(name="exposed_copies", value=share, unit="share of window", lo=max(0.0, lo), hi=hi),
                  Quantity(name="on_compute_streams", value=same, unit="share of copies")),
        expected=(Quantity(name="exposed_copies", value=0.0, unit="share of window", hi=MIN_COPIES),),
        causes=(
            Cause(text="copies are issued on the stream of the kernels, so they can't overlap", explains=same,
                  support="moderate" if same >= 0.5 else "weak",
                  refutable_by="the share stays with the copies on a stream of their own"),
            Cause(text="pageable host memory makes the copies synchronous", support="weak",
                  refutable_by="the buffers are pinned and the copies non_blocking"),
            Cause(text="the next kernel needs what is copied: then only prefetching helps", support="weak",
                  refutable_by="the copied data are first used later"),
        ),
        next=("pin the buffers, copy non_blocking on a second stream, trace again",),
        evidence=_evidence(spans, device, "union of copies without union of kernels, gpu_memcpy HtoD, DtoH, PtoP"),
    ))  # fmt: skip


def _waited(spans: Spans, device: Device, exposed: Intervals) -> int:
    """Exposed time that a kernel launched before its end, or a host call that waits for the device, sat through."""
    is_kernel = timeline.is_a(spans, "kernel")[device.rows]
    rows, launch = device.rows[is_kernel], device.launch[is_kernel]
    following = np.searchsorted(spans.start_ns[rows], exposed.end, side="left")
    has_next = following < len(rows)
    following = np.minimum(following, len(rows) - 1)
    launched = (launch[following] >= 0) & (spans.end_ns[launch[following]] < exposed.end) & has_next
    calls = np.flatnonzero(timeline.on_host(spans) & timeline.named(spans, timeline.WAITS_FOR_DEVICE))
    waits = union(spans.start_ns[calls], spans.end_ns[calls])
    in_calls = overlap(waits, exposed.start, exposed.end)
    return int(np.where(launched, exposed.end - exposed.start, in_calls).sum())


def _communication(spans: Spans, device: Device) -> State | None:
    is_kernel = timeline.is_a(spans, "kernel")[device.rows]
    is_comm = timeline.named(spans, timeline.COMMUNICATION)[device.rows] & is_kernel
    rows, work = device.rows[is_comm], device.rows[is_kernel & ~is_comm]
    if len(rows) < MIN_COUNT or not len(work):
        return None
    compute = union(spans.start_ns[work], spans.end_ns[work])
    collective = union(spans.start_ns[rows], spans.end_ns[rows])
    exposed = difference(collective, compute)
    share, lo, hi = _share(device, exposed)
    hidden = intersection(collective, compute).total / collective.total
    said = f"exposed communication {percent(share)}"
    if not (share >= MIN_COMMUNICATION and lo > MIN_COMMUNICATION / 2):
        return State(device.name, False, said, None)
    same = float(np.isin(spans.track[rows], np.unique(spans.track[work])).mean())
    top, _ = timeline.longest_name(spans, rows, spans.end_ns[rows] - spans.start_ns[rows])
    return State(device.name, True, said, Signal(
        rule_id="utilization.comm_exposed", level="warning", finding="observed",
        message=f"{device.name}: communication without compute takes {percent(share)} of the window; "
        f"{percent(hidden)} of it is hidden",
        locations=(KernelLocation(name=top), timeline.stretch(spans, device.name, exposed)),
        measured=(Quantity(name="exposed_communication", value=share, unit="share of window", lo=max(0.0, lo), hi=hi),
                  Quantity(name="hidden", value=hidden, unit="share of communication"),
                  Quantity(name="on_compute_streams", value=same, unit="share of collectives")),
        expected=(Quantity(name="exposed_communication", value=0.0, unit="share of window", hi=MIN_COMMUNICATION),),
        causes=_comm_causes(spans, rows, same),
        caveats=("an all-reduce inside a tensor-parallel layer is needed at once: exposed by design",
                 "a collective's time includes its wait for the slowest rank"),
        next=("compare each collective's shortest time over ranks (transfer) with its mean (transfer and wait)",
              "chunk the layer, so that one part's communication runs beside the other part's compute"),
        evidence=_evidence(spans, device, "union of collectives without union of other kernels"),
    ))  # fmt: skip


def _comm_causes(spans: Spans, rows: Ints, same: float) -> tuple[Cause, ...]:
    lengths = (spans.end_ns[rows] - spans.start_ns[rows]).astype(np.float64)
    # Collectives of one name move about the same; what is longer than its kind's quickest tenth is mostly waiting.
    order = np.argsort(spans.name[rows], kind="stable")
    groups = np.split(lengths[order], np.flatnonzero(np.diff(spans.name[rows][order])) + 1)
    waiting = sum(float(np.maximum(g - np.percentile(g, 10), 0).sum()) for g in groups) / max(1.0, lengths.sum())
    skew = Cause(
        text="ranks arrive at different times (collectives of one name differ in length)", explains=min(1.0, waiting),
        support="moderate" if waiting >= 0.5 else "weak",
        refutable_by="the same collective is as long on every rank, or sizes differ",
    )  # fmt: skip
    stream = Cause(
        text="collectives run on the compute stream, in order", explains=same,
        support="moderate" if same >= 0.5 else "weak", refutable_by="the share stays on a stream of their own",
    )  # fmt: skip
    return tuple(sorted((skew, stream), key=lambda c: -(c.explains or 0)))


def _share(device: Device, part: Intervals) -> tuple[float, float, float]:
    """Share of the device's window with its interval over blocks."""
    starts, ends = timeline.blocks(int(device.busy.start[0]), int(device.busy.end[-1]))
    parts = overlap(part, starts, ends)
    return ratio_interval(parts.astype(np.float64), (ends - starts).astype(np.float64), TAIL)


def _evidence(spans: Spans, device: Device, query: str) -> tuple[Evidence, ...]:
    lo, hi = int(device.busy.start[0]), int(device.busy.end[-1])
    return timeline.evidence(spans, f"work of {device.name}", lo, hi, query)
