"""Differences between profiles and between traces, and flame graphs of both arms."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from traces import Event, recorded_profile, recorded_trace, spans, stacks

from feedback.criteria import Criteria
from feedback.flamegraph import Node, boxes, differential, of_spans
from feedback.observations import Observation
from feedback.rules.utilization.difference import profile_diff
from feedback.rules.utilization.locks import gil
from feedback.rules.utilization.profiles import is_blocked, thread_name
from feedback.signals import HostLocation, Signal
from feedback.spans import Frame, Stacks

CRITERIA = Criteria(changed=(HostLocation(),))
BASELINE, CANDIDATE = "torch_profiler/baseline.pt.trace.json.gz", "torch_profiler/candidate.pt.trace.json.gz"


def signals(*observations: Observation) -> list[Signal]:
    found = profile_diff(observations, CRITERIA)
    assert all(s.rule_id == "utilization.profile_diff" and s.evidence for s in found)
    return found


# Profiles.


def test_a_released_gil_shows_at_its_line() -> None:
    (signal,) = signals(
        recorded_profile("held_gil.raw", "baseline", True), recorded_profile("released_gil.raw", only_gil=True)
    )
    assert signal.message.startswith("MainThread stamped (gil_case.py:27): 73.0 % -> 1.1 % of the GIL samples")
    assert [p.line for p in signal.locations if p.kind == "code"] == [27]
    assert signal.expected[0].value == pytest.approx(0.73, abs=0.001)
    first = signal.measured[0]
    assert first.lo is not None
    assert first.hi is not None
    assert first.lo <= first.value <= first.hi < 0.2


def thinned(profile: Stacks, seed: int) -> Stacks:
    random = np.random.default_rng(seed)
    return replace(profile, weight=random.binomial(profile.weight.astype(np.int64), 0.5).astype(np.float64))


@pytest.mark.parametrize("name", ["held.raw", "released.raw", "held_gil.raw"])
def test_two_halves_of_one_recording_do_not_differ(name: str) -> None:
    wrong = 0
    for seed in range(20):
        wrong += bool(
            signals(thinned(recorded_profile(name, "baseline"), seed), thinned(recorded_profile(name), seed + 100))
        )
    assert wrong <= 2


def test_two_recordings_of_one_program_do_not_differ() -> None:
    """They do by the binomial interval: a line has 29 % of one's samples and 50 % of the other's."""
    first, second = ("released_first.raw", "released_second.raw")
    assert signals(recorded_profile(first, "baseline"), recorded_profile(second)) == []
    assert signals(recorded_profile(second, "baseline"), recorded_profile(first)) == []


def test_when_one_line_goes_the_others_only_share_what_it_left() -> None:
    before = stacks([("m", "hot (a.py:1)", 500.0), ("m", "f (a.py:5)", 300.0), ("m", "g (a.py:9)", 200.0)], "baseline")
    after = stacks([("m", "f (a.py:5)", 300.0), ("m", "g (a.py:9)", 200.0)])
    (signal,) = signals(before, after)
    assert [p.symbol for p in signal.locations if p.kind == "code"] == ["hot"]


def test_an_edit_that_moves_lines_is_no_difference() -> None:
    rows = [("m", f"f (a.py:{line})", 200.0) for line in (10, 11, 14)] + [("m", "g (b.py:1)", 400.0)]
    moved = [("m", f"f (a.py:{line + 7})", 200.0) for line in (10, 11, 14)] + [("m", "g (b.py:1)", 400.0)]
    assert signals(stacks(rows, "baseline"), stacks(moved)) == []
    slower = [("m", f"f (a.py:{line + 7})", 4000.0) for line in (10, 11, 14)] + [("m", "g (b.py:1)", 400.0)]
    (signal,) = signals(stacks(rows, "baseline"), stacks(slower))
    places = {(p.symbol, p.line) for p in signal.locations if p.kind == "code"}
    assert ("f", None) in places or ("g", 1) in places


def test_blocked_threads_and_imports_do_not_count() -> None:
    rows = [("m", "f (a.py:5)", 300.0)]
    idle = [("w", "run (a.py:3);get (queue.py:171);wait (threading.py:327)", 900.0)]
    imports = [("m", "<module> (a.py:1);_find_and_load (<frozen importlib._bootstrap>:1176)", 500.0)]
    assert signals(stacks(rows, "baseline"), stacks(rows + idle + imports)) == []


def test_thread_ids_are_no_part_of_a_threads_name() -> None:
    assert thread_name("worker (0x7f12ab34)") == thread_name("worker (139872)") == "worker"
    assert thread_name("Thread-2") == "Thread-2"
    assert thread_name("(1234)") == "thread"


def test_threads_without_names_compare_as_one() -> None:
    rows = [("MainThread", "f (a.py:5)", 300.0), ("w", "g (a.py:7)", 300.0)]
    ids = [("31598", "f (a.py:5)", 300.0), ("w", "g (a.py:7)", 300.0)]
    assert signals(stacks(rows, "baseline"), stacks(ids)) == []
    assert signals(stacks([("A-1", "f (a.py:5)", 300.0)], "baseline"), stacks([("B-2", "f (a.py:5)", 300.0)])) == []


def test_what_sleeps_in_the_kernel_is_told_from_what_computes() -> None:
    assert is_blocked(Frame("wait", "/usr/lib/python3.11/threading.py", 327))
    assert is_blocked(Frame("Queue.get", "queue.py", 171))
    assert is_blocked(Frame("futex_wait"))
    assert not is_blocked(Frame("get", "cache.py", 3))
    assert not is_blocked(Frame("run", "threading.py", 982))
    assert not is_blocked(Frame("cudaStreamSynchronize"))


def test_what_can_not_be_compared_says_why() -> None:
    rows = [("m", "f (a.py:5)", 300.0)]
    (alike,) = signals(stacks(rows, "baseline", only_gil=True), stacks(rows))
    assert alike.finding == "abstained"
    assert "GIL holders only" in alike.reason
    (few,) = signals(stacks([("m", "f (a.py:5)", 30.0)], "baseline"), stacks(rows))
    assert "30 and 300 samples" in few.reason
    uneven = replace(stacks([("m", "f (a.py:5)", 300.0), ("m", "g (a.py:7)", 1.37)]), unit="s")
    (unit,) = signals(replace(uneven, arm="baseline"), uneven)
    assert "no interval" in unit.reason
    assert signals(stacks(rows)) == []


def test_seconds_that_are_multiples_of_one_interval_are_samples() -> None:
    before = replace(stacks([("m", "f (a.py:5)", 3.0), ("m", "g (a.py:7)", 0.01)], "baseline"), unit="s")
    after = replace(stacks([("m", "f (a.py:5)", 1.5), ("m", "g (a.py:7)", 1.5), ("m", "h (a.py:8)", 0.01)]), unit="s")
    assert signals(before, after)[0].measured[0].value == pytest.approx(0.5, abs=0.01)


# Traces.


def test_more_calls_of_an_operator_are_named_with_their_number() -> None:
    (signal,) = signals(recorded_trace(BASELINE, "baseline"), recorded_trace(CANDIDATE))
    assert "aten::copy_: 4.2 % -> 19.9 % of the own time of operators (16 -> 80 calls a step)" in signal.message
    assert {p.name for p in signal.locations if p.kind == "kernel"} == {"aten::copy_", "aten::div", "aten::item"}


def test_a_trace_against_itself_and_on_a_slower_machine_is_silent() -> None:
    trace = recorded_trace(BASELINE)
    assert signals(recorded_trace(BASELINE, "baseline"), trace) == []
    slower = replace(trace, start_ns=trace.start_ns * 2, end_ns=trace.end_ns * 2)
    assert signals(recorded_trace(BASELINE, "baseline"), slower) == []


def kernels(lengths: dict[str, float], n: int = 100, spread: float = 0.05, seed: int = 0) -> list[Event]:
    random = np.random.default_rng(seed)
    events: list[Event] = []
    at = 0
    for _ in range(n):
        for name, length in lengths.items():
            took = int(length * 1000 * np.exp(random.normal(0, spread)))
            events.append(("kernel", name, "gpu0/7", at, at + took, -1))
            at += took + 2000
    return events


def test_a_kernel_that_got_longer_is_named_and_noise_is_not() -> None:
    before = spans(kernels({"gemm": 50, "norm": 10, "rope": 8, "attention": 30}), "baseline")
    slower = spans(kernels({"gemm": 50, "norm": 10, "rope": 8, "attention": 48}, seed=1))
    (signal,) = signals(before, slower)
    assert [p.name for p in signal.locations if p.kind == "kernel"] == ["attention"]
    assert "1.6" in signal.message
    for seed in range(10):
        noisy = kernels({"gemm": 50, "norm": 10, "rope": 8, "attention": 30}, spread=0.4, seed=seed)
        assert signals(before, spans(noisy)) == []


def test_a_longer_recording_is_no_change() -> None:
    lengths = {"gemm": 50.0, "norm": 10.0, "rope": 8.0}
    before = spans(kernels(lengths, n=60), "baseline")
    assert signals(before, spans(kernels(lengths, n=200, seed=1))) == []
    twice = kernels({**lengths, "norm_again": 10.0}, n=200, seed=1)
    (signal,) = signals(before, spans([(c, n.removesuffix("_again"), *rest) for c, n, *rest in twice]))  # type: ignore[misc]
    assert [p.name for p in signal.locations if p.kind == "kernel"] == ["norm"]
    assert "60 -> 400 calls; others 3.33x" in signal.message


def test_operators_that_were_preempted_are_no_finding() -> None:
    """Two recordings of one program on a busy host: some calls took thirty times as long."""
    trace = recorded_trace(BASELINE)
    for seed in range(10):
        random = np.random.default_rng(seed)
        leaf = np.flatnonzero(trace.end_ns - trace.start_ns < 20_000)
        longer = trace.end_ns.copy()
        longer[random.choice(leaf, 60)] += 400
        assert signals(recorded_trace(BASELINE, "baseline"), replace(trace, end_ns=longer)) == []


def test_a_kernel_that_took_anothers_place_is_named_with_it() -> None:
    before = spans(kernels({"gemm": 50, "softmax": 20}), "baseline")
    (signal,) = signals(before, spans(kernels({"gemm": 50, "fused": 12})))
    assert {p.name for p in signal.locations if p.kind == "kernel"} == {"softmax", "fused"}


# Flame graphs.


def test_vanished_code_shows_at_the_baselines_widths() -> None:
    before = stacks([("m", "main (a.py:1);old (a.py:5)", 75.0), ("m", "main (a.py:1);kept (a.py:9)", 25.0)], "baseline")
    after = stacks([("m", "main (a.py:1);kept (a.py:9)", 50.0)])
    root = differential(before, after)
    by_baseline = {b.frame.function: b for b in boxes(root, "baseline")}
    by_candidate = {b.frame.function: b for b in boxes(root, "candidate")}
    assert by_baseline["old"].width == pytest.approx(0.75)
    assert by_baseline["old"].change == pytest.approx(-0.75)
    assert "old" not in by_candidate
    assert by_candidate["kept"].width == 1
    assert by_candidate["kept"].change == pytest.approx(0.75)


def checked(root: Node) -> int:
    n = 0
    for node in root.walk():
        n += 1
        for arm in ("baseline", "candidate"):
            inside = sum(getattr(c, arm) for c in node.children.values()) + getattr(node, f"{arm}_self")
            assert inside == pytest.approx(getattr(node, arm), abs=1e-9)
    return n


def test_every_width_is_its_childrens_and_its_own() -> None:
    root = differential(recorded_profile("held.raw", "baseline"), recorded_profile("released.raw"))
    assert checked(root) > 50
    for widths in ("baseline", "candidate"):
        laid = boxes(root, widths, smallest=0)  # type: ignore[arg-type]
        for depth in {b.depth for b in laid}:
            row = [b for b in laid if b.depth == depth]
            assert all(a.x + a.width <= b.x + 1e-9 for a, b in pairwise(row))
    assert len(boxes(root, "candidate", smallest=0.05)) < len(boxes(root, "candidate"))


def test_traces_become_stacks_with_their_own_time() -> None:
    events: list[Event] = [
        ("cpu_op", "outer", "main", 0, 100, -1), ("cpu_op", "inner", "main", 10, 40, -1),
        ("cpu_op", "inner", "main", 50, 60, -1), ("cpu_op", "leaf", "main", 12, 20, -1),
        ("cpu_op", "leaf", "b", 0, 5, -1),
    ]  # fmt: skip
    found = of_spans(spans(events))
    names = {";".join(found.frames[f].function for f in s): w for s, w in zip(found.stacks, found.weight, strict=True)}
    assert names == pytest.approx({"outer": 60e-9, "outer;inner": 32e-9, "outer;inner;leaf": 8e-9, "leaf": 5e-9})
    trace = recorded_trace(CANDIDATE)
    whole = of_spans(trace)
    root = differential(of_spans(recorded_trace(BASELINE, "baseline")), whole)
    assert checked(root) > 100
    assert whole.weight.sum() > 0


def test_deep_recursion_is_bounded() -> None:
    deep: list[Event] = [("cpu_op", "f", "main", n, 10_000 - n, -1) for n in range(2000)]
    found = of_spans(spans(deep))
    assert max(map(len, found.stacks)) == 512
    assert found.weight.sum() == pytest.approx(1e-5)
    checked(differential(found, found))


def test_intervals_of_one_share_say_what_they_are_for() -> None:
    both = [recorded_profile("released_gil.raw", "baseline", True), recorded_profile("held_gil.raw", only_gil=True)]
    units = {s.rule_id: s.measured[0].unit for rule in (gil, profile_diff) for s in rule(both, CRITERIA)}
    assert "inside this process" in units["utilization.gil"]
    assert "against another process" in units["utilization.profile_diff"]
