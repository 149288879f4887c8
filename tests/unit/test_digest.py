"""Signals as text for a planner: order, budget, and what a line holds."""

from __future__ import annotations

import math
from typing import Any

import pytest

from feedback.digest import FULL_WARNINGS, count_tokens, digest, effect, gate_lines, place, render
from feedback.signals import (
    Cause,
    CodeLocation,
    Effect,
    Evidence,
    HostLocation,
    InputLocation,
    IntervalLocation,
    KernelLocation,
    Location,
    ParamLocation,
    ProcessLocation,
    Quantity,
    RegionLocation,
    Signal,
    ThreadLocation,
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


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("Student t over fresh process pairs (median of interleaved ABBA blocks)", "gain inside pairs +20.0%"),
        ("Student t over groups of four fresh runs in the order ABBA", "gain inside groups +20.0%"),
        ("executed instructions, counted once an arm", "; gain +20.0%"),
    ],
)
def test_a_gain_that_need_not_be_the_ratio_of_the_medians_says_so(method: str, said: str) -> None:
    assert said in effect(EFFECT.model_copy(update={"method": method}))


def test_a_prefix_says_of_which_run_each_signal_is() -> None:
    signals = [make_signal("m", locations=(ParamLocation(name=f"knob{n}"),)) for n in range(20)]
    for text in (digest(signals, 120, "#3/"), digest(signals, 5000, "#3/"), digest(signals[:1], 300, "#3/")):
        for signal in signals:
            assert text.count(signal.fingerprint) == text.count(f"#3/{signal.fingerprint}")
    assert f"[#3/{signals[0].fingerprint}]" in text


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
        "  slice_time_s medians 0.01235 -> 0.009877; gain +20.0% [+18.0%, +22.0%] at 97.0%; 10 units; "
        "floor 2.1% assumed",
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
    assert render(make_signal(locations=places)).splitlines()[1] == "  at 0.c, 1.c, 2.c, 3.c, and 5 more"


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
        (InputLocation(condition={}), "every input"),
        (ProcessLocation(arm="candidate", role="server"), "candidate server"),
        (HostLocation(), "this host"),
        (HostLocation(cpus=(3,)), "this host, CPUs (3,)"),
    ],
)
def test_place_in_a_few_words(location: Location, text: str) -> None:
    assert place(location) == text


@pytest.mark.parametrize(
    ("location", "text"),
    [
        (KernelLocation(name="sgemm", source="k.cu:3"), "kernel sgemm (k.cu:3)"),
        (ThreadLocation(process="engine", name="loop", tid=7), "thread loop of engine"),
        (IntervalLocation(track="gpu", start_ns=1_500_000, end_ns=2_000_000, n=3), "gpu 1.500..2.000 ms and 2 more"),
        (RegionLocation(tensor="S", region="rank 1", index=0), "S[rank 1, 0]"),
        (RegionLocation(tensor="S"), "S[]"),
    ],
)
def test_place_in_a_trace_or_a_tensor(location: Location, text: str) -> None:
    assert place(location) == text


def heads(text: str) -> list[str]:
    return [line.split(": ", 1)[1].partition(" @ ")[0] for line in text.splitlines() if line.startswith("[")]


def test_errors_come_first_and_gates_lead_their_level() -> None:
    signals = [
        make_signal("info note"),
        make_signal("objective note", role="objective"),
        make_signal("gate note", role="gate"),
        make_signal("info warning", level="warning"),
        make_signal("guardrail warning", level="warning", role="guardrail"),
        make_signal("info error", level="error", finding="violates"),
        make_signal("gate error", level="error", finding="violates", role="gate"),
    ]
    assert heads(digest(signals)) == [
        "gate error", "info error", "guardrail warning", "info warning",
        "gate note", "objective note", "info note",
    ]  # fmt: skip


def test_equal_signals_keep_their_order() -> None:
    text = digest([make_signal(f"number {n}") for n in range(5)])
    places = [text.index(f"number {n}") for n in range(5)]
    assert places == sorted(places)


def test_three_lines_lead() -> None:
    signals = [
        make_signal("wrong", rule_id="parity.numeric_error", finding="violates", level="error"),
        make_signal("faster", finding="better", effect=EFFECT, role="objective"),
        make_signal(
            "?", rule_id="performance.guardrail", finding="inconclusive", reason="too few pairs", level="warning"
        ),
        make_signal("?", rule_id="utilization.overlap", finding="abstained", reason="no native times"),
    ]
    correct, better, still = digest(signals).splitlines()[:3]
    assert correct == f"correct? no: [{signals[0].fingerprint}] parity.numeric_error"
    assert better == f"better? 1 better: [{signals[1].fingerprint}] slice_time_s +20.0% [+18.0%, +22.0%]"
    assert still.startswith("open? 1 inconclusive, 1 abstained: [")
    assert "few pairs" in still
    assert "no native times" in still


def test_gate_lines_say_what_was_not_asked() -> None:
    assert gate_lines([make_signal()]) == (
        "correct? not asked: no test, parity or gate was read", "better? not measured", "open? nothing",
    )  # fmt: skip
    held = [make_signal(rule_id="correctness.test_fail", finding="holds"), make_signal(effect=EFFECT, finding="same")]
    assert gate_lines(held)[:2] == ("correct? 1 check held, none broken", "better? no clear effect")


def test_errors_stand_in_full_warnings_up_to_a_number_notes_short_and_what_holds_is_counted() -> None:
    fields = {"next": ("look",)}
    signals = [make_signal(f"error {n}", level="error", finding="violates", **fields) for n in range(3)]
    signals += [make_signal(f"warning {n}", level="warning", **fields) for n in range(FULL_WARNINGS + 2)]
    signals += [make_signal("a note", **fields), make_signal("all is well", finding="holds", **fields)]
    text = digest(signals, 10_000)
    assert text.count("next: look") == 3 + FULL_WARNINGS
    assert f"warning {FULL_WARNINGS + 1} @ a.c" in text
    assert "a note @ a.c" in text
    assert "all is well" not in text
    assert text.splitlines()[-1] == f"... 1 more signal (1 note): {signals[-1].fingerprint}"


@pytest.mark.parametrize("budget", [1, 20, 50, 100, 200, 400, 1500, 5000])
def test_budget_is_kept_and_every_signal_is_reachable_or_counted(budget: int) -> None:
    signals = [
        make_signal(
            f"number {n} took 1.{n:03d} ms", level=("error", "warning", "note")[n % 3],
            locations=(CodeLocation(file=f"kernels/file_{n}.c", line=n, symbol="step"),),
            evidence=(Evidence(artefact="trace.json", start_ns=n, end_ns=10**9),),
        )
        for n in range(40)
    ]  # fmt: skip
    text = digest(signals, budget)
    shown = [s for s in signals if s.message in text]
    rest = len(signals) - len(shown)
    tail = text.splitlines()[-1]
    if rest:
        assert tail.startswith(f"... {rest} more signal")
    if budget >= 50:
        assert count_tokens(text) <= budget
    assert all(f"[{s.fingerprint}]" in text for s in shown)
    for line in text.splitlines()[:-1]:  # every line is whole
        assert line.startswith(("correct? ", "better? ", "open? ", "[", "  at kernels/", "  evidence trace.json "))


def test_first_cut_signals_are_listed_by_id() -> None:
    signals = [make_signal(f"n {n}", locations=(CodeLocation(file=f"{n}.c"),), finding="holds") for n in range(9)]
    tail = digest(signals, 90).splitlines()[-1]
    listed = tail.partition(": ")[2].split()
    assert 0 < len(listed) < 9
    assert listed == [s.fingerprint for s in signals[: len(listed)]]


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        ("measured overlap 0.04184 share of native time", 12, 16),  # cl100k_base: 12
        ("[912f84600d] ERROR numeric_growth violates", 13, 20),  # 13
        ("12 34 5678", 4, 8),
        ("", 0, 0),
        ("\u4f60\u597d", 2, 8),
    ],
)
def test_tokens_are_counted_from_above_but_not_far(text: str, least: int, most: int) -> None:
    assert least <= count_tokens(text) <= most


def test_numbers_have_four_digits_a_unit_and_an_interval() -> None:
    signal = make_signal(
        measured=(Quantity(name="overlap", value=0.0418437, unit="share", lo=0.01055, hi=0.0275949),
                  Quantity(name="calls", value=936), Quantity(name="error", value=math.inf)),
        expected=(Quantity(name="overlap", value=0.64, unit="share"), Quantity(name="calls", value=0, hi=10),
                  Quantity(name="rate", value=3, lo=1)),
    )  # fmt: skip
    assert (
        "  measured overlap 0.04184 share [0.01055, 0.02759], calls 936, error inf; "
        "expected overlap 0.64 share, calls 0 (at most 10), rate 3 (at least 1)" in render(signal)
    )


def test_evidence_names_the_place_in_the_file() -> None:
    signal = make_signal(
        evidence=(
            Evidence(artefact="a.log", line=7), Evidence(artefact="b.bin", byte_start=4, byte_end=9),
            Evidence(artefact="t.json", start_ns=1_000_000, end_ns=2_500_000),
            Evidence(artefact="p.raw", query="by thread", detail="utilization.gil: holds it"), Evidence(artefact="z"),
        )
    )  # fmt: skip
    assert render(signal).splitlines()[-1] == (
        "  evidence a.log:7; b.bin bytes 4..9; t.json 1.000..2.500 ms; p.raw by thread (utilization.gil); and 1 more"
    )


def test_names_from_files_steer_no_terminal() -> None:
    evil = "\x1b[31mred\u202e\n[000000000000] ERROR fake"
    signal = make_signal(
        locations=(KernelLocation(name=evil),), causes=(Cause(text=evil, refutable_by=evil),), next=(evil,),
        caveats=(evil,), measured=(Quantity(name=evil, value=1, unit=evil),), evidence=(Evidence(artefact=evil),),
    )  # fmt: skip
    text = render(signal)
    assert all(c.isprintable() or c == "\n" for c in text)
    assert sum(line.startswith("[") for line in text.splitlines()) == 1


def test_nothing_commands_a_build_log() -> None:
    assert "##[" not in render(make_signal("##[add-mask]e", reason="##[group]"))


def test_budget_that_is_left_shows_notes_in_full() -> None:
    signals = [make_signal(f"fact {i}", locations=(CodeLocation(file=f"{i}.c"),), next=("look",)) for i in range(3)]
    full = digest(signals, 2000)
    assert full.count("  next: look") == 3
    fewer = next(text for n in range(400) if "fact 2" in (text := digest(signals, n)))
    assert fewer.count("next: look") < 3  # every signal has its line before one has its details
