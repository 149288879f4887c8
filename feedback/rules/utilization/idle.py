"""Devices that wait: for the host, for other devices, or for something the trace doesn't show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from feedback.criteria import Criteria
from feedback.intervals import NONE, Intervals, Ints, complement, intersection, outermost, overlap, union
from feedback.observations import Observation
from feedback.rules import rule
from feedback.rules.utilization import arms, timeline
from feedback.rules.utilization.arms import State, percent
from feedback.rules.utilization.timeline import Device
from feedback.signals import Cause, KernelLocation, Quantity, Signal
from feedback.spans import Spans
from feedback.stats import ratio_interval

MIN_KERNELS = 50
MIN_GAP_NS = 1_000
"""Shorter gaps lie between any two kernels of a busy stream."""
MAX_GAP = 0.10
"""Of the window: a longer one is a pause or a change of phase, not a habit, and is told apart."""
MIN_IDLE = 0.10
"""Of the window: below it, filling every gap gains less than a tenth."""
TAIL = 0.025


class Idle(NamedTuple):
    """The gaps of one device."""

    device: Device
    gaps: Intervals
    window_ns: int
    share: tuple[float, float, float]
    """Idle share of the window with its interval over blocks of it."""
    host_bound: Intervals
    """The gaps whose next launch returned only after they began: the host was not ahead of the device."""
    latency_ns: int
    """The part of those between the launch's return and the start on the device."""
    others_busy_ns: int
    """How much of the gaps other devices worked."""
    is_launched: bool
    """Whether the trace says what launched most of the work."""
    queue: float
    """Median number of launched kernels that wait when one begins."""
    step_ns: Ints
    """Idle time of each annotated step."""


@rule(
    "utilization.host_bound",
    "utilization.bubble",
    "utilization.idle_gap",
    says="a device idles: because launches come too late, while other devices work, or for another reason",
    needs="a trace with device intervals",
)
def idle_device(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """One signal a device that idles for at least a tenth of its window, named after what it waits for."""
    signals = []
    for pair in arms.pairs(observations, criteria, Spans):
        signals += arms.compare(pair, _look)
    return signals


def _look(spans: Spans) -> list[State]:
    devices = timeline.devices(spans)
    states = []
    for device in devices:
        if len(device.rows) < MIN_KERNELS:
            continue
        lo, hi = int(device.busy.start[0]), int(device.busy.end[-1])
        gaps = complement(device.busy, lo, hi)
        length = gaps.end - gaps.start
        is_pause = length > MAX_GAP * (hi - lo)
        is_gap = (length >= MIN_GAP_NS) & ~is_pause
        pauses = Intervals(gaps.start[is_pause], gaps.end[is_pause])
        usual = _idle(spans, device, devices, Intervals(gaps.start[is_gap], gaps.end[is_gap]), pauses)
        share, low, _ = usual.share
        is_bad = share >= MIN_IDLE and low > MIN_IDLE / 2
        states.append(State(device.name, is_bad, f"idle {percent(share)}", _signal(spans, usual) if is_bad else None))
        if pauses:
            pause = _signal(spans, _idle(spans, device, devices, pauses, NONE))
            noted = arms.restated(
                pause, f"in {len(pauses.start)} pause(s) of more than a tenth: {pause.message}", "note"
            )
            states.append(State(f"{device.name} pause", True, f"{percent(pauses.total / (hi - lo))} in pauses", noted))
    return states


def _idle(spans: Spans, device: Device, devices: Sequence[Device], gaps: Intervals, without: Intervals) -> Idle:
    """What some gaps of a device are; time in `without` doesn't count."""
    lo, hi = int(device.busy.start[0]), int(device.busy.end[-1])
    starts, ends = timeline.blocks(lo, hi)
    wholes = ends - starts - overlap(without, starts, ends)
    full = wholes > 0
    parts = overlap(gaps, starts, ends)
    first = np.searchsorted(spans.start_ns[device.rows], gaps.end, side="left")
    launch = device.launch[np.minimum(first, len(device.rows) - 1)]
    launched = np.where(launch >= 0, spans.end_ns[launch], gaps.start)
    late = launched > gaps.start
    others = [d.busy for d in devices if d is not device] or [NONE]
    busy = union(np.concatenate([b.start for b in others]), np.concatenate([b.end for b in others]))
    steps = timeline.steps(spans)
    return Idle(
        device, gaps, int(wholes.sum()),
        ratio_interval(parts[full].astype(np.float64), wholes[full].astype(np.float64), TAIL),
        Intervals(gaps.start[late], gaps.end[late]),
        int(np.maximum(gaps.end - launched, 0)[late].sum()), intersection(gaps, busy).total,
        bool((device.launch >= 0).mean() > 0.5), _queue(spans, device),
        overlap(gaps, spans.start_ns[steps], spans.end_ns[steps]),
    )  # fmt: skip


def _queue(spans: Spans, device: Device) -> float:
    """Median number of pieces of work that are launched and wait when one of them begins."""
    known = device.launch >= 0
    starts = spans.start_ns[device.rows[known]]
    launched = np.sort(spans.end_ns[device.launch[known]])
    if not len(starts):
        return float("nan")
    waiting = np.searchsorted(launched, starts, side="right") - np.arange(1, len(starts) + 1)
    return float(np.median(np.maximum(waiting, 0)))


def _signal(spans: Spans, idle: Idle) -> Signal:
    gaps, device = idle.gaps, idle.device
    host = idle.host_bound.total / gaps.total
    others = idle.others_busy_ns / gaps.total
    share, lo, hi = idle.share
    said = f"{device.name} idles {percent(share)} of {idle.window_ns / 1e6:.4g} ms in {len(gaps.start)} gaps"
    if host >= 0.5:
        name, causes = "host_bound", _host_causes(spans, idle)
        why = f"{percent(host)} of it because the next launch came late"
    elif others >= 0.5:
        name, causes = "bubble", _bubble_causes(others)
        why = f"{percent(others)} of it while other devices work"
    else:
        name, causes = "idle_gap", _other_causes(spans, idle)
        why = "not for want of launches" if idle.is_launched else "the trace doesn't say what launched the work"
    measured = [
        Quantity(name="idle", value=share, unit="share of window", lo=max(0.0, lo), hi=min(1.0, hi)),
        Quantity(name="host_bound", value=idle.host_bound.total / idle.window_ns, unit="share of window"),
        Quantity(name="longest_gap", value=float((gaps.end - gaps.start).max()) / 1e6, unit="ms"),
    ]
    if idle.is_launched:
        measured.append(Quantity(name="queue_length", value=idle.queue, unit="launches, median"))
    if len(idle.step_ns):
        measured.append(
            Quantity(name="bubble_per_step", value=float(np.median(idle.step_ns)) / 1e6, unit="ms, median over "
                     f"{len(idle.step_ns)} steps")
        )  # fmt: skip
    top, _ = timeline.longest_name(spans, device.rows, spans.end_ns[device.rows] - spans.start_ns[device.rows])
    return Signal(
        rule_id=f"utilization.{name}", level="warning", finding="observed", message=f"{said}; {why}",
        locations=(timeline.stretch(spans, device.name, gaps), KernelLocation(name=top)),
        measured=tuple(measured),
        expected=(Quantity(name="idle", value=0.0, unit="share of window", hi=MIN_IDLE),),
        causes=causes,
        caveats=("filling every gap would save at most the idle share",),
        next=_next(name, causes),
        evidence=timeline.evidence(
            spans, "gaps of at least 1 us in the union of kernels, copies and fills", int(device.busy.start[0]),
            int(device.busy.end[-1]), f"category in (kernel, gpu_memcpy, gpu_memset), process = {device.name}; launch "
            "by correlation id",
        ),
    )  # fmt: skip


def _host_causes(spans: Spans, idle: Idle) -> tuple[Cause, ...]:
    """What the host did in the gaps, with the share of the host-bound time that each would explain."""
    gaps, total = idle.host_bound, max(1, idle.host_bound.total)
    host = timeline.on_host(spans)
    runtime = host & timeline.is_a(spans, *timeline.RUNTIME)
    syncs = np.flatnonzero(host & timeline.named(spans, timeline.WAITS_FOR_DEVICE))
    n_ended = np.searchsorted(gaps.end, spans.end_ns[syncs], side="right")
    inside = (n_ended < len(gaps.end)) & (spans.end_ns[syncs] > gaps.start[np.minimum(n_ended, len(gaps.end) - 1)])
    after = np.unique(n_ended[inside])
    sync_name, _ = timeline.longest_name(spans, syncs, np.ones(len(syncs)))
    work = idle.device.rows
    short = float(np.median(spans.end_ns[work] - spans.start_ns[work])) / 1e3
    names = host & timeline.is_a(spans, "cpu_op", "python_function", "native", "gc", "lock") & ~runtime
    rows = np.flatnonzero(names)
    rows = rows[outermost(spans.start_ns[rows], spans.end_ns[rows], spans.track[rows])]
    top, spent = timeline.longest_name(spans, rows, overlap(gaps, spans.start_ns[rows], spans.end_ns[rows]))

    def share_of(*categories: str) -> float:
        some = np.flatnonzero(host & timeline.is_a(spans, *categories))
        inside = union(spans.start_ns[some], spans.end_ns[some])
        return intersection(gaps, inside).total / total

    known = [
        (float((gaps.end - gaps.start)[after].sum()) / total,
         f"the host waits for the device ({sync_name or 'synchronisation'}) and launches only then",
         "the gaps stay when the synchronisation is taken out or made asynchronous"),
        (idle.latency_ns / total,
         f"a launch's way to the device ({idle.latency_ns / max(1, len(gaps.start)) / 1e3:.3g} us each): the host is "
         "not far enough ahead to hide it", "captured as a graph the gaps stay"),
        (share_of("gc"), "garbage collection on the launching host", "the gaps stay under gc.disable()"),
        (share_of("lock"), "the launching host waits for a lock", "no lock wait of the launching thread in the gaps"),
        (share_of(*timeline.RUNTIME), f"launching costs more than the work (median kernel {short:.3g} us)",
         "captured as a graph, or with longer kernels, the gaps stay"),
        (min(1.0, spent / total), f"host work between launches, most of it {top[:80]}",
         f"the gaps stay with {top[:60]} out of the way"),
    ]  # fmt: skip
    return _ranked(known)


def _ranked(known: Sequence[tuple[float, str, str]]) -> tuple[Cause, ...]:
    """Causes that explain at least a tenth, most first; unknown leads where none explains half."""
    some = sorted((k for k in known if k[0] >= 0.1), key=lambda k: -k[0])[:3]
    causes = [
        Cause(text=text, explains=min(1.0, part), support="moderate" if part >= 0.5 else "weak", refutable_by=refuted)
        for part, text, refuted in some
    ]
    if not some or some[0][0] < 0.5:
        text = "unknown: nothing that the trace holds explains half of the gaps (untraced host code or threads?)"
        causes.insert(0, Cause(text=text, support="weak", refutable_by="a trace with Python stacks names it"))
    return tuple(causes)


def _bubble_causes(others: float) -> tuple[Cause, ...]:
    return (
        Cause(text="pipeline stages wait for one another, or work is uneven between devices", explains=min(1.0, others),
              refutable_by="the devices' busy times coincide at a finer look"),
    )  # fmt: skip


def _other_causes(spans: Spans, idle: Idle) -> tuple[Cause, ...]:
    rows = np.flatnonzero(timeline.on_host(spans) & timeline.is_a(spans, *timeline.HOST_WORK))
    host = union(spans.start_ns[rows], spans.end_ns[rows])
    busy = intersection(idle.gaps, host).total / idle.gaps.total
    if busy < 0.1:
        return (
            Cause(text="no work was offered: then it is the workload, not a bug", support="weak", explains=1 - busy,
                  refutable_by="requests were queued during the gaps"),
            Cause(text="host threads that the trace leaves out", support="weak", refutable_by="py-spy beside it"),
        )  # fmt: skip
    return (
        Cause(text="launched work waits for an event, another stream or a peer", support="weak",
              refutable_by="no cross-stream wait or communication before the gaps' ends"),
    )  # fmt: skip


def _next(name: str, causes: Sequence[Cause]) -> tuple[str, ...]:
    if name == "bubble":
        return ("compare the devices' busy time step by step", "rebalance the stages or use more micro-batches")
    if name == "host_bound":
        first = (
            f"take the first cause away and trace again; it is refuted if {causes[0].refutable_by}" if causes else ""
        )
        return tuple(x for x in (first, "capture the step as a graph, or batch more work per launch") if x)
    return ("record host stacks (with_stack=True) or py-spy over the same window",)
