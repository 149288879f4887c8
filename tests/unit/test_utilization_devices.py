"""Rules on devices, on generated traces: there is no GPU to record one with."""

from __future__ import annotations

import pytest
from traces import Event, device_events, recorded_trace, spans

from feedback.criteria import Criteria
from feedback.observations import Observation
from feedback.rules import Rule
from feedback.rules.utilization.critical_path import critical_path, longest_path
from feedback.rules.utilization.exposed import comm_exposed, copy_exposed
from feedback.rules.utilization.host import op_gap
from feedback.rules.utilization.idle import idle_device
from feedback.rules.utilization.launch import launch_gap
from feedback.signals import HostLocation, Signal

CRITERIA = Criteria(changed=(HostLocation(),))
CPU_ONLY = "torch_profiler/baseline.pt.trace.json.gz"


def signals(rule: Rule, *observations: Observation) -> list[Signal]:
    found = rule(observations, CRITERIA)
    assert all(s.rule_id in rule.ids and s.evidence for s in found)
    return found


def value(signal: Signal, name: str) -> float:
    return next(q.value for q in signal.measured if q.name == name)


# Idle devices.


def test_short_kernels_behind_a_slow_host_are_host_bound() -> None:
    (signal,) = signals(idle_device, spans(device_events(400, host_us=30, kernel_us=8)))
    assert signal.rule_id == "utilization.host_bound"
    assert value(signal, "idle") == pytest.approx(26 / 34, abs=0.01)
    assert value(signal, "host_bound") == pytest.approx(26 / 34, abs=0.01)
    assert value(signal, "queue_length") == 0
    assert "aten::mm" in signal.causes[0].text
    assert signal.locations[0].kind == "interval"
    assert signal.locations[0].n == 399


def test_a_synchronisation_before_each_launch_is_named_first() -> None:
    (signal,) = signals(idle_device, spans(device_events(300, host_us=60, sync_every=1)))
    assert signal.rule_id == "utilization.host_bound"
    assert "cudaStreamSynchronize" in signal.causes[0].text


def test_gaps_that_nothing_in_the_trace_explains_say_unknown() -> None:
    events = [e for e in device_events(300, host_us=60) if e[0] != "cpu_op"]
    (signal,) = signals(idle_device, spans(events))
    assert signal.causes[0].text.startswith("unknown")


@pytest.mark.parametrize(
    "events",
    [device_events(400), device_events(400, sync_every=20), device_events(40, host_us=30, kernel_us=8),
     device_events(400, host_us=0.5, kernel_us=50, latency_us=0)],
    ids=["queued ahead", "a wait now and then", "too few kernels", "back to back"],
)  # fmt: skip
def test_a_busy_device_is_silent(events: list[Event]) -> None:
    assert signals(idle_device, spans(events)) == []


def test_gaps_below_a_microsecond_are_none() -> None:
    events: list[Event] = [("kernel", "k", "gpu0/7", n * 2000, n * 2000 + 1100, -1) for n in range(400)]
    assert signals(idle_device, spans(events)) == []


def test_one_long_pause_is_a_phase_not_a_habit() -> None:
    first = device_events(200)
    pause = max(e[4] for e in first) * 2
    later = [(c, n, t, s + pause, e + pause, k + 1000 if k >= 0 else k) for c, n, t, s, e, k in device_events(200)]
    (signal,) = signals(idle_device, spans([*first, *later]))
    assert signal.level == "note"
    assert signal.message.startswith("in 1 pause(s)")


def test_gaps_without_any_host_work_may_be_the_workload() -> None:
    events: list[Event] = [("kernel", "k", "gpu0/7", n * 100_000, n * 100_000 + 30_000, -1) for n in range(200)]
    (signal,) = signals(idle_device, spans(events))
    assert signal.rule_id == "utilization.idle_gap"
    assert "not a bug" in signal.causes[0].text
    assert "doesn't say what launched" in signal.message


def test_streams_of_one_device_count_as_one() -> None:
    one: list[Event] = [("kernel", "a", "gpu0/7", n * 100_000, n * 100_000 + 50_000, -1) for n in range(200)]
    other: list[Event] = [("kernel", "b", "gpu0/8", n * 100_000 + 50_000, (n + 1) * 100_000, -1) for n in range(200)]
    assert signals(idle_device, spans(one + other)) == []


def test_devices_in_turn_are_a_bubble() -> None:
    one: list[Event] = [("kernel", "a", "gpu0/7", n * 100_000, n * 100_000 + 50_000, -1) for n in range(200)]
    other: list[Event] = [("kernel", "b", "gpu1/7", n * 100_000 + 50_000, (n + 1) * 100_000, -1) for n in range(200)]
    found = signals(idle_device, spans(one + other))
    assert [s.rule_id for s in found] == ["utilization.bubble"] * 2


def test_steps_give_the_idle_time_of_each() -> None:
    events = device_events(400, host_us=30, kernel_us=8)
    steps: list[Event] = [
        ("user_annotation", f"ProfilerStep#{n}", "main", n * 1_360_000, (n + 1) * 1_360_000, -1) for n in range(10)
    ]
    (signal,) = signals(idle_device, spans(events + steps))
    assert value(signal, "bubble_per_step") == pytest.approx(40 * 0.026, abs=0.03)


def test_idleness_of_both_arms_is_a_note() -> None:
    slow = device_events(400, host_us=30, kernel_us=8)
    (signal,) = signals(idle_device, spans(slow, "baseline"), spans(slow))
    assert signal.level == "note"
    (new,) = signals(idle_device, spans(device_events(400), "baseline"), spans(slow))
    assert new.level == "warning"
    assert new.message.endswith("baseline: idle 0.0 %")


def test_slow_launches_are_told_apart_from_late_ones() -> None:
    late = spans(device_events(300, host_us=300, kernel_us=8, latency_us=200))
    (signal,) = signals(launch_gap, late)
    assert value(signal, "launch_latency") == pytest.approx(200, abs=1)
    (idle,) = signals(idle_device, late)
    assert any(c.text.startswith("a launch's way to the device (200 us each)") for c in idle.causes)
    assert signals(launch_gap, spans(device_events(300, host_us=30, kernel_us=8))) == []
    # With a full queue, latency is the queue's length and no one's fault.
    assert signals(launch_gap, spans(device_events(300, host_us=1, kernel_us=500))) == []


# Copies and communication.


def with_copies(stream: str, kind: str = "Memcpy HtoD (Pageable -> Device)", launched: bool = True) -> list[Event]:
    """Kernels of 50 us with a copy of 20 us between them, or beside them."""
    events: list[Event] = []
    for n in range(100):
        at = n * 70_000
        events.append(("kernel", "gemm", "gpu0/7", at, at + 50_000, 2 * n))
        begin = at + 50_000 if stream == "gpu0/7" else at + 10_000
        events.append(("gpu_memcpy", kind, stream, begin, begin + 20_000, 2 * n + 1))
        if launched:
            early = max(0, at - 100_000)
            events.append(("cuda_runtime", "cudaLaunchKernel", "main", early, early + 3000, 2 * n))
            events.append(("cuda_runtime", "cudaMemcpyAsync", "main", early + 4000, early + 7000, 2 * n + 1))
    return events


def test_copies_that_the_next_kernel_waits_for_are_exposed() -> None:
    (signal,) = signals(copy_exposed, spans(with_copies("gpu0/7")))
    assert value(signal, "exposed_copies") == pytest.approx(20 / 70, abs=0.02)
    assert "stream of the kernels" in signal.causes[0].text


@pytest.mark.parametrize(
    "events",
    [with_copies("gpu0/9"), with_copies("gpu0/7", "Memcpy DtoD (Device -> Device)"),
     with_copies("gpu0/7", launched=False)],
    ids=["beside kernels", "inside the device", "nothing waits"],
)  # fmt: skip
def test_copies_that_cost_nothing(events: list[Event]) -> None:
    assert signals(copy_exposed, spans(events)) == []


def collectives(exposed: bool, lengths: tuple[int, ...] = (30_000,)) -> list[Event]:
    events: list[Event] = []
    for n in range(100):
        at = n * 100_000
        length = lengths[n % len(lengths)]
        events.append(("kernel", "gemm", "gpu0/7", at, at + 60_000, -1))
        begin = at + 60_000 if exposed else at + 10_000
        events.append(("kernel", "ncclDevKernel_AllReduce_Sum_bf16", "gpu0/20", begin, begin + length, -1))
    return events


def test_exposed_communication_and_the_skew_of_its_ranks() -> None:
    (signal,) = signals(comm_exposed, spans(collectives(True)))
    assert value(signal, "exposed_communication") == pytest.approx(0.3, abs=0.02)
    assert value(signal, "hidden") == 0
    assert any("by design" in text for text in signal.caveats)
    (skewed,) = signals(comm_exposed, spans(collectives(True, (5_000, 40_000, 40_000, 40_000))))
    assert "different times" in skewed.causes[0].text
    assert skewed.causes[0].support == "moderate"


def test_hidden_communication_is_silent() -> None:
    assert signals(comm_exposed, spans(collectives(False))) == []


# Critical path.


def shares(events: list[Event]) -> dict[str, float]:
    path = longest_path(spans(events))
    assert path is not None
    return {part: path.share(part) for part in path.parts_ns}


def test_the_path_runs_through_what_the_duration_hangs_on() -> None:
    assert shares(device_events(400))["kernels"] > 0.99
    assert shares(device_events(400, host_us=60, kernel_us=8))["host"] > 0.95
    both = shares(device_events(300, host_us=60, sync_every=1))
    assert both["host"] == pytest.approx(63 / 120, abs=0.05)
    assert both["kernels"] == pytest.approx(50 / 120, abs=0.03)
    assert sum(both.values()) == pytest.approx(1)


def test_the_path_is_as_long_as_the_trace() -> None:
    for events in (device_events(300), device_events(300, host_us=60, sync_every=3), with_copies("gpu0/7")):
        path = longest_path(spans(events))
        assert path is not None
        work = [e for e in events if e[0] != "cpu_op"]
        assert path.total_ns == path.end_ns - path.start_ns
        assert path.end_ns == max(e[4] for e in work)


def test_the_path_tells_what_a_faster_kernel_could_gain() -> None:
    (signal,) = signals(critical_path, spans(device_events(400, host_us=60, kernel_us=8)))
    assert signal.level == "note"
    assert signal.message.startswith("critical path: host 99.9 %")
    before = spans(device_events(400), "baseline")
    (moved,) = signals(critical_path, before, spans(device_events(400, host_us=60, kernel_us=8)))
    assert "baseline: host 0.0 %, kernels 100.0 %" in moved.message


def test_one_thread_is_its_own_path() -> None:
    assert signals(critical_path, recorded_trace(CPU_ONLY)) == []
    assert signals(critical_path, spans(device_events(20))) == []


def test_a_device_clock_that_runs_ahead_ends_the_walk() -> None:
    early = [(c, n, t, s - 40_000, e - 40_000, k) if c == "kernel" else (c, n, t, s, e, k)
             for c, n, t, s, e, k in device_events(200, sync_every=2)]  # fmt: skip
    assert shares(early)


# Steps on a CPU.


def cpu_steps(outside_us: int, with_python: bool = False) -> list[Event]:
    """Ten steps of thirty operators of 50 us, and Python in between."""
    events: list[Event] = []
    at = 0
    for step in range(10):
        begin = at
        for _ in range(30):
            events.append(("cpu_op", "aten::mm", "main", at, at + 50_000, -1))
            if with_python:
                events.append(("python_function", "sample.py(40): detokenize", "main", at + 50_000,
                               at + 50_000 + outside_us * 1000, -1))  # fmt: skip
            at += 50_000 + outside_us * 1000
        events.append(("user_annotation", f"ProfilerStep#{step}", "main", begin, at, -1))
        at += 5_000_000  # between steps: not looked at
    return events


def test_steps_that_lie_outside_operators_name_the_python_in_between() -> None:
    (signal,) = signals(op_gap, spans(cpu_steps(50, with_python=True)))
    assert signal.level == "note"
    assert value(signal, "outside_operators") == pytest.approx(0.5, abs=0.01)
    assert "detokenize" in signal.causes[0].text


def test_what_is_outside_steps_or_common_overhead_is_silent() -> None:
    assert signals(op_gap, spans(cpu_steps(6))) == []
    assert signals(op_gap, spans([e for e in cpu_steps(50) if e[0] != "user_annotation"])) == []
    assert signals(op_gap, spans([*cpu_steps(50), *device_events(60)])) == []
    for name in ("baseline", "candidate"):
        assert signals(op_gap, recorded_trace(f"torch_profiler/{name}.pt.trace.json.gz")) == []


def test_cpu_traces_have_no_device_to_judge() -> None:
    for rule in (idle_device, launch_gap, copy_exposed, comm_exposed):
        assert signals(rule, recorded_trace(CPU_ONLY)) == []
