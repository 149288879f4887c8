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
    requests,
    rule,
    stability,
    stability_engine,
    stability_host,
    stability_load,
    stability_servers,
)
from feedback.rules.utilization import (
    critical_path,
    difference,
    exposed,
    host,
    idle,
    launch,
    locks,
    overlap,
    spent,
    spin,
    steps,
)
from feedback.signals import Signal

_SHOWN: tuple[Rule, ...] = (
    integrity.work_mismatch,
    integrity.work_unproven,
    integrity.constant_output,
    integrity.impossible_speed,
    stability.tool_error,
    requests.failed_requests,
    correctness.changed_tests,
    correctness.failed_tests,
    correctness.lost_report,
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
    performance.measured,
    performance.question,
    performance.bench_delta,
    performance.by_case,
    performance.cases_differ,
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
    steps.step_time,
    difference.profile_diff,
    spent.own_time,
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
    stability_servers.kv_cache_usage,
    stability_servers.config_difference,
    stability_servers.server_difference,
    stability_host.gc_stall,
    stability_host.throttling,
    stability_host.page_faults,
    stability.runtime_event,
)


@rule(
    "correctness.hidden_probe",
    says="a probe that planners never see was passed or failed, and no more than that",
    needs="whatever a hidden probe leaves",
)
def hidden_probe(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """One signal a hidden probe, without numbers, places or words of it: what it holds must not be learnt from."""
    signals = []
    for name in criteria.hidden:
        told = [o for o in observations if o.probe == name]
        as_gate = criteria.model_copy(update={"objective": None, "guardrails": (), "gates": (name,), "hidden": ()})
        found = [s for s in _apply(told, as_gate) if s.role == "gate" or s.rule_id.startswith("integrity.")]
        failed = any(s.finding == "violates" for s in found)
        silent = any(s.finding in ("inconclusive", "abstained") and s.role == "gate" for s in found)
        signals.append(
            Signal(
                rule_id="correctness.hidden_probe", role="gate", level="error" if failed else "note",
                finding="violates" if failed else "abstained" if silent else "holds",
                message=f"hidden probe {name}: {'failed' if failed else 'left no result' if silent else 'passed'}",
                reason="" if failed or not silent else "it was not run, or it left no result",
                locations=criteria.changed,
            )
        )  # fmt: skip
    return signals


RULES: tuple[Rule, ...] = (hidden_probe, *_SHOWN)


def derive(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """All signals of one stage, in the order in which a reader should see them."""
    shown = [o for o in observations if o.probe not in criteria.hidden]
    return [*hidden_probe(observations, criteria), *_apply(shown, criteria)]


def _apply(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    return [signal for each in _SHOWN for signal in each(observations, criteria)]
