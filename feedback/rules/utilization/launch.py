"""Launches that take long to reach a device which has nothing else to do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from feedback.criteria import Criteria
from feedback.observations import Observation
from feedback.rules import rule
from feedback.rules.utilization import arms, timeline
from feedback.rules.utilization.arms import State
from feedback.rules.utilization.timeline import Device
from feedback.signals import Cause, Quantity, Signal
from feedback.spans import Spans

MIN_LAUNCHES = 50
MAX_LAUNCH_LATENCY_NS = 50_000
"""A launch reaches an idle device in about 3 to 10 us."""


@rule(
    "utilization.launch_gap",
    says="launches take long to reach an idle device",
    needs="a trace with device intervals and correlation ids",
)
def launch_gap(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """Latency from the launch call's return to the start on a device that had nothing else to do."""
    signals = []
    for pair in arms.pairs(observations, criteria, Spans):
        signals += arms.compare(pair, _look)
    return signals


def _look(spans: Spans) -> list[State]:
    states = []
    for device in timeline.devices(spans):
        known = np.flatnonzero(device.launch >= 0)
        starts = spans.start_ns[device.rows]
        reach = np.maximum.accumulate(spans.end_ns[device.rows])
        launched = spans.end_ns[device.launch[known]]
        free = np.where(known > 0, reach[np.maximum(known - 1, 0)], launched)
        on_idle = known[launched >= free]
        latency = (starts[on_idle] - spans.end_ns[device.launch[on_idle]]).astype(np.float64)
        if len(latency) < MIN_LAUNCHES:
            continue
        middle = float(np.median(np.maximum(latency, 0)))
        is_bad = middle > MAX_LAUNCH_LATENCY_NS
        said = f"median {middle / 1e3:.3g} us"
        states.append(State(device.name, is_bad, said, _signal(spans, device, latency) if is_bad else None))
    return states


def _signal(spans: Spans, device: Device, latency: npt.NDArray[np.float64]) -> Signal:
    middle, p99 = (float(np.percentile(latency, q)) / 1e3 for q in (50, 99))
    return Signal(
        rule_id="utilization.launch_gap", level="warning", finding="observed",
        message=f"{device.name}: a launch takes {middle:.3g} us (p99 {p99:.3g}) to reach the idle device, "
        f"over {len(latency)} launches",
        locations=(timeline.stretch(spans, device.name, device.busy),),
        measured=(
            Quantity(name="launch_latency", value=middle, unit="us, median"),
            Quantity(name="launch_latency_p99", value=p99, unit="us"),
        ),
        expected=(Quantity(name="launch_latency", value=10.0, unit="us, median"),),
        causes=(
            Cause(text="the driver's submission is delayed: busy driver thread, virtualised or shared device",
                  refutable_by="an empty kernel launched alone takes as long"),
            Cause(text="clocks of host and device drift apart", support="weak",
                  refutable_by="kernels also begin before their launch"),
        ),
        next=("launch an empty kernel 1000 times and take the same latency",),
        evidence=timeline.evidence(
            spans, "start on the device minus return of the launch call", int(device.busy.start[0]),
            int(device.busy.end[-1]), "join on correlation; device idle at the return",
        ),
    )  # fmt: skip
