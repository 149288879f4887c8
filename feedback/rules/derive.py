"""Observations to signals: every rule in turn. A rule returns signals or nothing; it never raises on odd data."""

from __future__ import annotations

from collections.abc import Sequence

from feedback.criteria import Criteria
from feedback.observations import Observation
from feedback.rules import Rule, correctness, parity, performance, stability
from feedback.rules.utilization import critical_path, difference, exposed, host, idle, launch, locks, overlap, spin
from feedback.signals import Signal

RULES: tuple[Rule, ...] = (
    parity.work_mismatch,
    stability.tool_error,
    correctness.failed_tests,
    correctness.gate_silent,
    parity.numeric_error,
    performance.bench_delta,
    performance.instructions,
    overlap.no_overlap,
    locks.gil,
    locks.lock_wait,
    spin.spin,
    idle.idle_device,
    launch.launch_gap,
    host.op_gap,
    exposed.copy_exposed,
    exposed.comm_exposed,
    critical_path.critical_path,
    difference.profile_diff,
    stability.env_contention,
    stability.runtime_event,
)


def derive(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """All signals of one stage, in the order in which a reader should see them."""
    return [signal for rule in RULES for signal in rule(observations, criteria)]
