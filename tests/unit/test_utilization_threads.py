"""Rules on threads, locks and the GIL: on a recorded held GIL and its fix, and on what must not fire."""

from __future__ import annotations

import numpy as np
import pytest
from traces import Event, recorded_profile, recorded_trace, spans, stacks

from feedback.criteria import Criteria
from feedback.observations import Observation
from feedback.rules import Rule
from feedback.rules.utilization.locks import gil, lock_wait
from feedback.rules.utilization.overlap import no_overlap
from feedback.rules.utilization.spin import spin
from feedback.signals import HostLocation, Signal
from sandboxes.results import ArmName

CRITERIA = Criteria(changed=(HostLocation(),))
HELD, RELEASED = "gil_case/held.trace.json.gz", "gil_case/released.trace.json.gz"


def signals(rule: Rule, *observations: Observation) -> list[Signal]:
    found = rule(observations, CRITERIA)
    assert all(s.rule_id in rule.ids and s.evidence for s in found)
    return found


# Overlap.


def test_a_held_gil_shows_as_native_calls_that_never_overlap() -> None:
    (signal,) = signals(no_overlap, recorded_trace(HELD))
    assert signal.level == "warning"
    assert "kv_transfer runs beside intranode_dispatch and intranode_combine" in signal.message
    assert [p.name for p in signal.locations if p.kind == "thread"] == ["kv_transfer", "engine"]
    measured = {q.name: q for q in signal.measured}
    expected = {q.name: q.value for q in signal.expected}
    assert measured["whole_inside"].value < 0.1 * expected["whole_inside"]
    assert expected["overlap"] == pytest.approx(0.64, abs=0.05)
    assert measured["whole_inside"].hi is not None
    assert measured["whole_inside"].hi < 0.05
    assert measured["shift_test_p"].value < 0.01
    assert "hold the GIL" in signal.causes[0].text
    assert signal.causes[0].refutable_by


def test_with_the_gil_released_there_is_nothing_to_say() -> None:
    """One of its two calls overlaps little, for the transfers are done by then: that alone is no finding."""
    assert signals(no_overlap, recorded_trace(RELEASED)) == []


def test_both_arms_say_whose_doing_it_is() -> None:
    (broke,) = signals(no_overlap, recorded_trace(RELEASED, "baseline"), recorded_trace(HELD))
    assert broke.level == "warning"
    assert "baseline: 70.8 % of its calls inside" in broke.message
    (old,) = signals(no_overlap, recorded_trace(HELD, "baseline"), recorded_trace(HELD))
    assert old.level == "note"
    assert "the baseline too" in old.message
    (fixed,) = signals(no_overlap, recorded_trace(HELD, "baseline"), recorded_trace(RELEASED))
    assert fixed.level == "note"
    assert fixed.message.startswith("no longer so: 70.8 % of its calls inside")
    assert not fixed.causes


def without_native(path: str, has_native_times: bool = True) -> Observation:
    trace = recorded_trace(path)
    kept = [
        (trace.categories[c], trace.names[n], trace.tracks[t].name, int(s), int(e), -1)
        for c, n, t, s, e in zip(trace.category, trace.name, trace.track, trace.start_ns, trace.end_ns, strict=True)
        if trace.categories[c] != "native" or not has_native_times
    ]
    return spans(kept, has_native_times=has_native_times)


@pytest.mark.parametrize("has_native_times", [True, False])
def test_python_side_times_are_not_judged(has_native_times: bool) -> None:
    (signal,) = signals(no_overlap, without_native(HELD, has_native_times))
    assert signal.finding == "abstained"
    assert "stamped by Python code" in signal.reason


def test_a_single_thread_leaves_nothing_to_judge() -> None:
    assert signals(no_overlap, recorded_trace("torch_profiler/baseline.pt.trace.json.gz")) == []


def two_threads(order: str, n: int = 200, b_thread: str = "b") -> list[Event]:
    """Thread a computes most of the time. Thread b: `after` each call of a once, `free` at any time, `locked` in runs
    that a's calls cut."""
    random = np.random.default_rng(0)
    events: list[Event] = []
    at, left = 0, 0
    for _ in range(n):
        length = int(random.integers(500, 700))
        events.append(("native", "compute", "a", at, at + length, -1))
        gap = int(random.integers(200, 500))
        if order == "after":
            events.append(("native", "post", b_thread, at + length + 10, at + length + 80, -1))
        if order == "locked":
            inside = at + length + 5
            while inside + 40 < at + length + gap:
                left = left or int(random.integers(1, 25)) * int(random.random() < 0.3)
                if not left:
                    break
                events.append(("native", "copy", b_thread, inside, inside + 35, -1))
                inside, left = inside + 40, left - 1
        at += length + gap
    if order == "free":
        for start in np.sort(random.integers(0, at, n)).tolist():
            events.append(("native", "copy", b_thread, start, start + 40, -1))
    return events


def test_work_that_follows_each_call_is_ordered_not_locked_out() -> None:
    assert signals(no_overlap, spans(two_threads("after"))) == []


def test_runs_that_calls_cut_are_locked_out() -> None:
    (signal,) = signals(no_overlap, spans(two_threads("locked")))
    assert signal.level == "warning"


def test_free_threads_and_tiny_traces_are_silent() -> None:
    assert signals(no_overlap, spans(two_threads("free"))) == []
    assert signals(no_overlap, spans(two_threads("locked", n=15))) == []


def test_waits_for_a_lock_inside_the_calls_make_it_sure() -> None:
    events = two_threads("after")
    waits: list[Event] = [("lock", "take_gil", "b", e[3] + 5, e[4] + 5, -1) for e in events if e[1] == "compute"]
    (signal,) = signals(no_overlap, spans(events + waits))
    assert signal.causes[0].support == "strong"
    assert signal.causes[0].explains == pytest.approx(0.99, abs=0.02)


# GIL in profiles.


def test_gil_samples_name_the_line_that_keeps_it() -> None:
    (signal,) = signals(gil, recorded_profile("held_gil.raw", only_gil=True))
    assert signal.level == "warning"
    (line, thread) = signal.locations
    assert line.kind == "code"
    assert (line.file, line.line) == ("gil_case.py", 27)
    assert thread.kind == "thread"
    assert thread.name == "MainThread"
    assert "called at gil_case.py:82 and gil_case.py:84" in signal.message
    share = signal.measured[0]
    assert share.lo is not None
    assert share.hi is not None
    assert share.lo < share.value < share.hi


def test_a_gil_that_threads_share_is_no_contention() -> None:
    assert signals(gil, recorded_profile("released_gil.raw", only_gil=True)) == []


def test_a_fixed_gil_is_told_as_gone() -> None:
    held, released = ("held_gil.raw", "released_gil.raw")
    (gone,) = signals(gil, recorded_profile(held, "baseline", True), recorded_profile(released, only_gil=True))
    assert gone.level == "note"
    assert gone.message.startswith("no longer so: 1.1 %")
    (broke,) = signals(gil, recorded_profile(released, "baseline", True), recorded_profile(held, only_gil=True))
    assert broke.level == "warning"
    assert "baseline: 1.1 %" in broke.message


@pytest.mark.parametrize(
    "samples",
    [
        [("MainThread", "f (a.py:1)", 900.0)],
        [("MainThread", "f (a.py:1)", 990.0), ("tqdm_monitor", "g (b.py:2)", 10.0)],
        [("MainThread", "f (a.py:1)", 30.0), ("other", "g (b.py:2)", 10.0)],
        [("MainThread", f"f (a.py:{n})", 40.0) for n in range(20)] + [("other", "g (b.py:2)", 100.0)],
        [("MainThread", "f (a.py:1)", 500.0), ("MainThread", "f (a.py:2)", 150.0), ("other", "g (b.py:2)", 100.0)],
    ],
    ids=["one thread", "nobody else needs it", "too few samples", "Python spread over lines", "a loop in Python"],
)
def test_a_busy_thread_alone_is_no_gil_problem(samples: list[tuple[str, str, float]]) -> None:
    assert signals(gil, stacks(samples, only_gil=True)) == []


# Locks in traces.


def waiting(name: str, wait_us: int, every_us: int = 1000, holder: bool = True) -> list[Event]:
    events: list[Event] = []
    for n in range(100):
        at = n * every_us * 1000
        events.append(("lock", name, "worker", at, at + wait_us * 1000, -1))
        events.append(("native", "copy", "worker", at + wait_us * 1000, at + wait_us * 1000 + 1000, -1))
        if holder:
            events.append(("native", "rehash", "main", at - 1000, at + wait_us * 1000, -1))
    return events


def test_a_lock_wait_names_thread_share_and_likely_holder() -> None:
    (signal,) = signals(lock_wait, spans(waiting("pthread_mutex_lock", 400)))
    assert "worker waits for pthread_mutex_lock 40." in signal.message
    assert signal.causes[0].text.startswith("rehash runs meanwhile")
    assert signal.causes[0].explains == pytest.approx(1)
    (alone,) = signals(lock_wait, spans(waiting("pthread_mutex_lock", 400, holder=False)))
    assert alone.causes[0].text.startswith("unknown")


def test_waits_of_a_switch_interval_say_that_the_gil_is_given_up_only_then() -> None:
    (signal,) = signals(lock_wait, spans(waiting("take_gil", 5100, every_us=9000)))
    assert "gives up only at the switch interval" in signal.message


@pytest.mark.parametrize(
    "events",
    [waiting("pthread_cond_wait", 900), waiting("pthread_mutex_lock", 20), waiting("take_gil", 400)[:30],
     waiting("gil_held", 900)],
    ids=["waits for work", "short waits", "few waits", "a hold is no wait"],
)  # fmt: skip
def test_what_is_no_contention(events: list[Event]) -> None:
    assert signals(lock_wait, spans(events)) == []


# Spins.


def polling(function: str, samples: float = 900, arm: ArmName = "candidate") -> Observation:
    rows = [("poller", f"run (w.py:1);{function}", samples), ("poller", "run (w.py:2)", 9.0),
            ("MainThread", "step (m.py:7)", 1000.0)]  # fmt: skip
    return stacks(rows, arm)


def test_a_thread_that_polls_all_the_time_spins() -> None:
    (signal,) = signals(spin, polling("poll_completion (transfer.py:40)"))
    assert "poller spins in poll_completion (transfer.py:40)" in signal.message
    (native,) = signals(spin, polling("cudaStreamQuery"))
    assert native.locations[0].kind == "code"


@pytest.mark.parametrize(
    "observation",
    [polling("matmul (model.py:3)"), polling("wait (threading.py:327)"), polling("poll (selectors.py:415)"),
     polling("poll_completion (transfer.py:40)", samples=60), polling("poll_completion (transfer.py:40)", samples=300),
     recorded_profile("held.raw"), recorded_profile("released.raw")],
    ids=["computes", "sleeps on a condition", "sleeps in select", "few samples", "seldom runs", "held", "released"],
)  # fmt: skip
def test_what_is_no_spin(observation: Observation) -> None:
    assert signals(spin, observation) == []


def test_polls_in_a_trace_count_by_time_and_number() -> None:
    polls: list[Event] = [("cuda_runtime", "cudaEventQuery", "main", n * 2000, n * 2000 + 1500, n) for n in range(2000)]
    (signal,) = signals(spin, spans(polls))
    assert "2000 calls of cudaEventQuery" in signal.message
    rare: list[Event] = [
        ("cuda_runtime", "cudaEventQuery", "main", n * 90_000, n * 90_000 + 1500, n) for n in range(2000)
    ]
    assert signals(spin, spans(rare)) == []
