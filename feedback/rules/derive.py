"""Observations to signals: every rule in turn. A rule returns signals or nothing; it never raises on odd data."""

from __future__ import annotations

from collections.abc import Sequence

from feedback.criteria import Criteria
from feedback.observations import Observation
from feedback.rules import (
    Rule,
    correctness,
    integrity,
    parity,
    performance,
    stability,
    stability_engine,
    stability_host,
    stability_load,
)
from feedback.rules.utilization import critical_path, difference, exposed, host, idle, launch, locks, overlap, spin
from feedback.signals import Signal

RULES: tuple[Rule, ...] = (
    integrity.work_mismatch,
    integrity.work_unproven,
    integrity.constant_output,
    integrity.impossible_speed,
    stability.tool_error,
    correctness.failed_tests,
    correctness.changed_tests,
    correctness.gate_silent,
    correctness.flaky,
    parity.numeric_error,
    parity.relative_error,
    parity.fingerprint,
    parity.numeric_growth,
    parity.split_mismatch,
    parity.boundary,
    parity.scale,
    parity.stale_buffer,
    parity.breakdown,
    performance.bench_delta,
    performance.by_case,
    performance.scaling,
    performance.instructions,
    performance.instructions_by_function,
    performance.roofline,
    performance.slow_starts,
    performance.drift,
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
    integrity.measures_nothing,
    integrity.moved_work,
    stability.env_contention,
    stability_engine.context,
    stability_engine.memory,
    stability_engine.preemption,
    stability_engine.recompilation,
    stability_engine.capture_grid,
    stability_engine.config_event,
    stability_load.cache_hits,
    stability_load.queue_growth,
    stability_host.gc_stall,
    stability_host.throttling,
    stability_host.page_faults,
    stability.runtime_event,
)


def derive(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """All signals of one stage, in the order in which a reader should see them."""
    return [signal for rule in RULES for signal in rule(observations, criteria)]
