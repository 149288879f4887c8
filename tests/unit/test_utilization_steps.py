"""Annotated steps of two traces: each with a trace that fires and one that must not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from traces import Event, recorded_trace, spans

from feedback.criteria import Criteria
from feedback.rules.utilization.steps import step_time
from feedback.signals import KernelLocation, Signal
from feedback.spans import Spans
from sandboxes.results import ArmName

PLAIN = Criteria(changed=())
BASELINE, CANDIDATE = "torch_profiler/baseline.pt.trace.json.gz", "torch_profiler/candidate.pt.trace.json.gz"
MS = 1_000_000


def signals(before: Spans, after: Spans) -> list[Signal]:
    return step_time([before, after], PLAIN)


def run(
    arm: ArmName, lengths_ms: Sequence[float], syncs: int = 0, name: str = "ProfilerStep#", call: str = "aten::item"
) -> Spans:
    """Steps one after the other, each with some calls that wait, and a hundred of them before the first step."""
    events: list[Event] = [("cpu_op", call, "main", n * 1000, n * 1000 + 500, -1) for n in range(100)]
    at = MS
    for n, length in enumerate(lengths_ms):
        end = at + int(length * MS)
        events.append(("user_annotation", f"{name}{n}", "main", at, end, -1))
        events += [("cpu_op", call, "main", at + 1000 + k * 2000, at + 2000 + k * 2000, -1) for k in range(syncs)]
        at = end + 1000
    return spans(events, arm, f"{arm}.json")


def around(middle: float, n: int = 12) -> list[float]:
    return [float(x) for x in middle * np.random.default_rng(0).normal(1, 0.02, n)]


def test_recorded_steps_that_wait_for_values_are_told_with_the_cause() -> None:
    (signal,) = signals(recorded_trace(BASELINE, "baseline"), recorded_trace(CANDIDATE))
    assert signal.level == "warning"
    assert signal.message.startswith("ProfilerStep: 9.134 -> 20.62 ms, median of 6 and 6 steps of one process each")
    assert "aten::item 0 -> 64 calls a step" in signal.message
    assert "aten::item" in signal.causes[0].text
    assert "would wait for a device" in signal.causes[0].text  # recorded without one
    assert KernelLocation(name="aten::item") in signal.locations
    assert "one process an arm" in signal.caveats[0]
    assert signal.effect is None


def test_recorded_gain_is_a_note_without_a_cause() -> None:
    (signal,) = signals(recorded_trace(CANDIDATE, "baseline"), recorded_trace(BASELINE))
    assert (signal.level, signal.causes) == ("note", ())
    assert "20.62 -> 9.134 ms" in signal.message


@pytest.mark.parametrize("file", [BASELINE, CANDIDATE])
def test_same_trace_twice_and_one_alone_are_silent(file: str) -> None:
    assert signals(recorded_trace(file, "baseline"), recorded_trace(file)) == []
    assert step_time([recorded_trace(file)], PLAIN) == []


def test_longer_steps_alone_are_a_note() -> None:
    (signal,) = signals(run("baseline", around(5)), run("candidate", around(6)))
    assert (signal.level, signal.causes) == ("note", ())


@pytest.mark.parametrize("after", [around(5.2), [3.0, 9.0, 4.0, 5.0, 8.0, 3.5], around(9, 4)])
def test_small_scattered_or_few_changes_are_silent(after: list[float]) -> None:
    assert signals(run("baseline", around(5)), run("candidate", after)) == []


def test_calls_outside_of_steps_and_as_many_as_before_are_no_cause() -> None:
    (signal,) = signals(run("baseline", around(5), 3), run("candidate", around(9), 3))
    assert "calls a step" not in signal.message


@pytest.mark.parametrize("call", ["aten::_local_scalar_dense", "cudaStreamSynchronize", "hipDeviceSynchronize"])
def test_more_waits_are_told_even_if_steps_did_not_surely_move(call: str) -> None:
    (signal,) = signals(run("baseline", around(5), 1, call=call), run("candidate", around(5), 8, call=call))
    assert signal.level == "note"
    assert f"not surely; {call} 1 -> 8 calls a step" in signal.message
    assert signal.causes == ()


def test_regions_stand_for_steps_where_nothing_is_called_a_step() -> None:
    (signal,) = signals(run("baseline", around(5), name="decode "), run("candidate", around(9), name="decode "))
    assert signal.message.startswith("decode: 5")
    assert signals(run("baseline", around(5), name="decode "), run("candidate", around(9), name="prefill ")) == []
