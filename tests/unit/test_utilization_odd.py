"""No rule raises on odd data, and none finds something where nothing is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from traces import device_events, recorded_profile, recorded_trace, spans, stacks

from feedback.criteria import Criteria
from feedback.rules.derive import RULES, derive
from feedback.signals import HostLocation
from feedback.spans import Spans, Stacks, Track, TrackKind
from sandboxes.results import ArmName

CRITERIA = Criteria(changed=(HostLocation(),))
CATEGORIES = ("cpu_op", "kernel", "gpu_memcpy", "cuda_runtime", "user_annotation", "python_function", "native", "lock")
KINDS: tuple[TrackKind, ...] = ("thread", "device", "counter")
NAMES = ("cudaStreamSynchronize", "Memcpy HtoD", "ncclAllReduce", "take_gil", "cudaEventQuery", "step 1", "gemm", "")


def random_trace(seed: int, arm: ArmName) -> Spans:
    """Anything: overlapping on one track, of no length, devices with host categories, ids that join nothing."""
    random = np.random.default_rng(seed)
    n = int(random.choice([0, 1, 2, 30, 600]))
    start = np.sort(random.integers(0, int(random.choice([10, 10**6, 10**12])), n))
    end = start + random.integers(0, int(random.choice([1, 100, 10**9])), n)
    n_tracks = int(random.integers(1, 6))
    return Spans(
        "trace", "t.json", arm, "screen", NAMES, CATEGORIES,
        tuple(Track(f"p{k % 2}", f"t{k % 3}", k % 2, k, KINDS[k % 3]) for k in range(n_tracks)),
        start, end, random.integers(0, len(NAMES), n).astype(np.int32),
        random.integers(0, len(CATEGORIES), n).astype(np.int32), random.integers(0, n_tracks, n).astype(np.int32),
        random.integers(-1, 50, n), has_native_times=bool(seed % 2),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(60))
def test_random_traces_give_signals_or_nothing(seed: int) -> None:
    one, other = random_trace(seed, "baseline"), random_trace(seed + 1000, "candidate")
    for observations in ([one], [other], [one, other], [one, other, random_trace(seed + 2000, "candidate")]):
        derive(observations, CRITERIA)


def test_times_at_the_ends_of_64_bits_are_left_alone() -> None:
    trace = spans(device_events(100))
    for shift in (2**62, -(2**62)):
        assert derive([replace(trace, start_ns=trace.start_ns + shift, end_ns=trace.end_ns + shift)], CRITERIA) == []
    wide = replace(trace, end_ns=np.where(np.arange(len(trace)) == 3, 2**62 - 1, trace.end_ns))
    derive([wide], CRITERIA)


def odd_profiles() -> list[Stacks]:
    plain = stacks([("m", "f (a.py:5)", 300.0), ("w", "g (a.py:7)", 200.0)])
    return [
        replace(plain, weight=np.array([np.nan, 1.0])), replace(plain, weight=np.array([-1.0, 1.0])),
        replace(plain, weight=np.array([np.inf, 1.0])), replace(plain, weight=np.zeros(2)),
        replace(plain, stacks=((), ())), replace(plain, unit="bytes"),
        replace(plain, stacks=(), thread=np.empty(0, np.int32), weight=np.empty(0)),
        replace(plain, only_gil=True), replace(plain, threads=("", "")), plain,
    ]  # fmt: skip


@pytest.mark.parametrize("baseline", odd_profiles())
@pytest.mark.parametrize("candidate", odd_profiles())
def test_odd_profiles_give_signals_or_nothing(baseline: Stacks, candidate: Stacks) -> None:
    derive([replace(baseline, arm="baseline"), candidate], CRITERIA)


def test_another_stage_is_not_looked_at() -> None:
    observations = [replace(recorded_trace("gil_case/held.trace.json.gz"), stage="confirm"),
                    replace(recorded_profile("held_gil.raw", only_gil=True), stage="confirm")]  # fmt: skip
    assert derive(observations, CRITERIA) == []


@pytest.mark.parametrize("seed", range(30))
def test_independent_threads_are_no_lock(seed: int) -> None:
    """Two threads that know nothing of each other, with calls in bursts."""
    random = np.random.default_rng(seed)
    events = []
    for thread, length in (("a", 600), ("b", 80)):
        at = 0
        for _ in range(200):
            at += int(random.exponential(300) * (10 if random.random() < 0.1 else 1)) + 1
            took = int(random.integers(length // 2, length))
            events.append(("native", f"call_{thread}", thread, at, at + took, -1))
            at += took
    assert derive([spans(events)], CRITERIA) == []


def test_every_rule_of_the_family_is_registered_once() -> None:
    ids = [name for rule in RULES for name in rule.ids if rule.family == "utilization"]
    assert len(ids) == len(set(ids))
    assert {"utilization.overlap", "utilization.gil", "utilization.profile_diff", "utilization.host_bound"} <= set(ids)
