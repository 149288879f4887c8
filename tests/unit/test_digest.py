"""Signals as text for a planner: order, budget, and what a line holds."""

from __future__ import annotations

from typing import Any

import pytest

from feedback.digest import CHARS_PER_TOKEN, digest, place, render
from feedback.signals import (
    Cause,
    CodeLocation,
    Effect,
    HostLocation,
    InputLocation,
    Location,
    ParamLocation,
    ProcessLocation,
    RegionLocation,
    Signal,
)

EFFECT = Effect(
    metric="slice_time_s", direction="minimize", baseline=0.0123456, measured=0.00987654, ratio=0.8, ratio_lo=0.78,
    ratio_hi=0.82, confidence=0.97, method="m", n_units=10, n_observations=280, floor=0.0213, floor_known=False,
)  # fmt: skip


def make_signal(message: str = "said", **fields: Any) -> Signal:
    known = {
        "rule_id": "performance.bench_delta", "level": "note", "finding": "observed", "message": message,
        "locations": (CodeLocation(file="a.c"),),
    }  # fmt: skip
    return Signal.model_validate(known | fields)


def test_nothing_gives_nothing() -> None:
    assert digest([]) == ""


def test_signal_is_rendered_in_full() -> None:
    signal = make_signal(
        "slice_time_s +20.0% [+18.0%, +22.0%]: undecided",
        finding="inconclusive",
        level="warning",
        locations=(ParamLocation(name="threads", value=4, was=2), CodeLocation(file="a.c", line=7, symbol="f")),
        effect=EFFECT,
        reason="too few pairs",
        causes=(Cause(text="cache misses", support="weak", refutable_by="count them"), Cause(text="luck")),
        next=("measure longer",),
    )
    assert render(signal).splitlines() == [
        f"[{signal.fingerprint}] WARNING performance.bench_delta inconclusive: "
        "slice_time_s +20.0% [+18.0%, +22.0%]: undecided",
        "  at threads=4 (was 2), a.c:7 f",
        "  why: too few pairs",
        "  slice_time_s medians 0.01235 -> 0.009877; 10 pairs; floor 2.1% assumed",
        "  cause? (weak) cache misses -- refute: count them",
        "  cause? (moderate) luck",
        "  next: measure longer",
    ]


def test_reason_that_the_message_already_gives_is_not_repeated() -> None:
    signal = make_signal("not measured: no pairs", finding="abstained", reason="no pairs")
    assert "why:" not in render(signal)


def test_measured_floor_is_told_from_an_assumed_one() -> None:
    known = EFFECT.model_copy(update={"floor_known": True})
    assert "floor 2.1% measured" in render(make_signal(effect=known))


def test_many_places_are_cut() -> None:
    places = tuple(CodeLocation(file=f"{n}.c") for n in range(9))
    assert render(make_signal(locations=places)).splitlines()[1] == "  at 0.c, 1.c, 2.c, 3.c"


@pytest.mark.parametrize(
    ("location", "text"),
    [
        (CodeLocation(file="a.c"), "a.c"),
        (CodeLocation(file="a.c", line=3), "a.c:3"),
        (CodeLocation(file="a.c", symbol="f"), "a.c f"),
        (ParamLocation(name="t", value=4, was=8), "t=4 (was 8)"),
        (ParamLocation(name="t", value=4), "t=4"),
        (ParamLocation(name="t"), "t"),
        (InputLocation(condition={"batch": 1, "k": 128}), "batch=1 k=128"),
        (ProcessLocation(arm="candidate", role="server"), "candidate server"),
        (HostLocation(), "this host"),
        (HostLocation(cpus=(3,)), "this host, CPUs (3,)"),
    ],
)
def test_place_in_a_few_words(location: Location, text: str) -> None:
    assert place(location) == text


def test_errors_come_first_and_gates_lead_their_level() -> None:
    signals = [
        make_signal("info note"),
        make_signal("objective note", role="objective"),
        make_signal("gate note", role="gate"),
        make_signal("info warning", level="warning"),
        make_signal("guardrail warning", level="warning", role="guardrail"),
        make_signal("integrity error", level="error", finding="violates"),
        make_signal("gate error", level="error", finding="violates", role="gate"),
    ]
    heads = [line.split(": ", 1)[1] for line in digest(signals).splitlines() if line.startswith("[")]
    assert heads == [
        "gate error", "integrity error", "guardrail warning", "info warning",
        "gate note", "objective note", "info note",
    ]  # fmt: skip


def test_equal_signals_keep_their_order() -> None:
    signals = [make_signal(f"number {n}") for n in range(5)]
    text = digest(signals)
    places = [text.index(f"number {n}") for n in range(5)]
    assert places == sorted(places)


@pytest.mark.parametrize("budget", [0, 1, 20, 50, 200, 1500])
def test_budget_is_kept_and_the_rest_counted(budget: int) -> None:
    signals = [make_signal(f"number {n} " + "x" * 100) for n in range(40)]
    text = digest(signals, budget)
    shown = text.count("number ")
    if shown < len(signals):
        body, _, count = text.rpartition("... ")
        assert count == f"{len(signals) - shown} more signals"
        assert len(body) <= budget * CHARS_PER_TOKEN
    else:
        assert len(text) <= budget * CHARS_PER_TOKEN


def test_one_signal_that_does_not_fit_is_counted() -> None:
    assert digest([make_signal()], 1) == "... 1 more signal"


def test_all_of_what_fits_is_shown() -> None:
    signals = [make_signal(f"number {n}") for n in range(3)]
    exact = sum(len(render(s)) + 1 for s in signals)
    assert "more" not in digest(signals, -(-exact // CHARS_PER_TOKEN))


def test_region_and_index_of_a_tensor_stand_apart() -> None:
    assert place(RegionLocation(tensor="S", region="rank 1", index=512)) == "S[rank 1, 512]"
    assert place(RegionLocation(tensor="S", index=0)) == "S[0]"
    assert place(RegionLocation(tensor="S", region="chunk 7")) == "S[chunk 7]"
