"""What two sides say of each other beyond their numbers: failed requests, missing cases, ids, and the lines on top."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from feedback.cli import Wrong, run, text
from feedback.comparison import Comparison, compare
from feedback.criteria import Criteria
from feedback.observations import Measurement, RuntimeEvent
from feedback.rules.requests import failed_requests
from feedback.sarif import sarif
from feedback.signals import Signal

DATA = Path(__file__).parents[1] / "data"
SUMMARY = DATA / "vllm_bench" / "summary.json"
PLAIN = Criteria(changed=())


def hyperfine(path: Path, commands: dict[str, float]) -> Path:
    results = [
        {"command": name, "stddev": 0.001, "times": [t * (1 + 0.002 * n) for n in range(8)], "exit_codes": [0] * 8}
        for name, t in commands.items()
    ]
    path.write_text(json.dumps({"results": results}))
    return path


def vllm(path: Path, factor: float = 1.0, **changes: object) -> Path:
    """The recorded summary with its latencies times a factor."""
    data: dict[str, Any] = json.loads(SUMMARY.read_text().splitlines()[0])
    data |= {name: value * factor for name, value in data.items() if name.endswith("_ms")} | changes
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data) + "\n")
    return path


def of(found: Comparison, rule: str) -> list[Signal]:
    return [s for s in found.signals if s.rule_id == rule]


def sent(arm: Any, failed: int, completed: int | None = None) -> list[Measurement | RuntimeEvent]:
    found: list[Measurement | RuntimeEvent] = []
    if failed:
        found.append(
            RuntimeEvent(probe="load", source="load", name="request_failed", level="error", count=failed, arm=arm,
                         message=f"{failed} requests failed: Service Unavailable")
        )  # fmt: skip
    if completed is not None:
        for name, value in (("completed", completed), ("failed", failed)):
            found.append(Measurement(probe="load", metric=name, value=value, arm=arm, paired=False))
    return found


# Failed requests.


@pytest.mark.parametrize(
    ("before", "after", "level", "words"),
    [
        ((0, 24), (3, 21), "error", "3 of 24 requests failed, 0 of 24 in the baseline: Service Unavailable"),
        ((3, 21), (6, 18), "error", "6 of 24 requests failed, 3 of 24 in the baseline"),
        ((3, 21), (3, 21), "warning", "3 of 24 requests failed, 3 of 24 in the baseline"),
        ((3, 21), (0, 24), "note", "0 of 24 requests failed, 3 of 24 in the baseline"),
        (None, (3, 21), "error", "3 of 24 requests failed"),
        (None, (3, None), "error", "3 requests failed"),
    ],
)
def test_failed_requests_are_told_and_more_of_them_are_an_error(
    before: Any, after: Any, level: str, words: str
) -> None:
    seen = [*(sent("baseline", *before) if before else []), *sent("candidate", *after)]
    (signal,) = failed_requests(seen, PLAIN)
    assert signal.level == level
    assert (signal.finding == "violates") == (level == "error")
    assert words in signal.message


def test_candidate_of_which_nothing_is_known_has_no_failures() -> None:
    (signal,) = failed_requests(sent("baseline", 2), PLAIN)
    assert signal.level == "note"
    assert signal.message.startswith("load: 2 requests failed in the baseline: ")


def test_requests_that_all_succeed_are_no_signal() -> None:
    assert failed_requests([*sent("baseline", 0, 24), *sent("candidate", 0, 24)], PLAIN) == []


def test_failures_of_a_file_lead_the_comparison(tmp_path: Path) -> None:
    found = compare(SUMMARY, vllm(tmp_path / "b.json", completed=8, failed=8))
    assert found.signals[0].rule_id == "correctness.request_failed"
    assert text(found, 2000).startswith("correct? no:")


# Nothing, or not everything, in common.


def test_other_loads_are_not_compared_and_what_differs_is_said(tmp_path: Path) -> None:
    found = compare(SUMMARY, vllm(tmp_path / "b.json", num_prompts=99))
    (signal,) = found.signals
    assert (signal.rule_id, signal.finding) == ("performance.cases_differ", "abstained")
    assert "nothing was compared: no case in common, num_prompts 16 against 99" in signal.message
    assert "nothing was compared" in text(found, 2000).splitlines()[2]


def test_cases_that_are_gone_or_new_are_named(tmp_path: Path) -> None:
    before = hyperfine(tmp_path / "a.json", {"./p": 1.0, "./q": 1.0})
    after = hyperfine(tmp_path / "b.json", {"./p": 1.0, "./r": 1.0})
    (signal,) = of(compare(before, after), "performance.cases_differ")
    assert signal.level == "warning"
    assert "1 gone (./q), 1 new (./r); 1 in common" in signal.message
    only_new = hyperfine(tmp_path / "c.json", {"./p": 1.0, "./q": 1.0, "./r": 1.0})
    (signal,) = of(compare(before, only_new), "performance.cases_differ")
    assert signal.level == "note"
    assert not of(compare(before, hyperfine(tmp_path / "d.json", {"./p": 1.0, "./q": 1.0})), "performance.cases_differ")


def test_other_formats_and_a_lone_file_say_that_nothing_was_compared(tmp_path: Path) -> None:
    three = hyperfine(tmp_path / "a.json", {"./old": 1.0, "./new": 0.7, "./newer": 0.6})
    for said, words in (
        (text(compare(three, SUMMARY), 2000), "no format in common (baseline hyperfine; candidate vllm_bench)"),
        (text(compare(three), 2000), "one side only, with 3 cases (./old, ./new, ./newer)"),
    ):
        assert said.startswith("nothing was compared: " + words)
        assert "found nothing to say" not in said


def test_three_first_lines_lead_though_nothing_was_compared(tmp_path: Path) -> None:
    said = text(compare(vllm(tmp_path / "b.json", completed=8, failed=8)), 2000)
    assert said.startswith("correct? no: ")
    assert "nothing was compared: one side only" in said


# What was measured.


def test_same_is_an_answer(tmp_path: Path) -> None:
    a, b = hyperfine(tmp_path / "a.json", {"./p": 1.0}), hyperfine(tmp_path / "b.json", {"./p": 1.0})
    said = text(compare(a, b), 2000).splitlines()
    assert said[1].startswith("better? no: [")
    assert "1 same of 1 case, within -" in said[1]
    assert said[2] == "open? nothing"
    assert any("performance.bench_table same" in line for line in said[3:])


def test_undecided_cases_are_open_though_others_are_decided(tmp_path: Path) -> None:
    a = hyperfine(tmp_path / "a.json", {"./p": 1.0, "./q": 1.0})
    b = hyperfine(tmp_path / "b.json", {"./p": 2.0, "./q": 1.02})
    said = text(compare(a, b), 2000).splitlines()
    assert "1 worse" in said[1]
    assert "1 inconclusive" in said[2]
    assert "./q: " in said[2]


def test_values_are_shown_though_nothing_is_decided(tmp_path: Path) -> None:
    said = text(compare(SUMMARY, vllm(tmp_path / "b.json", factor=2.0)), 2000)
    assert "median_ttft_ms 53.32 -> 106.6 ms" in said
    assert "output_throughput 280.8 -> 280.8 /s" in said


# Tests and ids.


def junit(path: Path, failing: set[str]) -> Path:
    cases = "".join(
        f'<testcase classname="t" name="{name}">{"<failure message=" + chr(34) + "no" + chr(34) + "/>" if bad else ""}'
        "</testcase>"
        for name in ("one", "two", "three")
        for bad in [name in failing]
    )
    path.write_text(f'<testsuites><testsuite name="s">{cases}</testsuite></testsuites>')
    return path


def test_new_failure_leads_as_a_change(tmp_path: Path) -> None:
    found = compare(junit(tmp_path / "a.xml", {"one"}), junit(tmp_path / "b.xml", {"one", "two"}))
    lead = found.signals[0]
    assert lead.rule_id == "correctness.test_changed"
    assert "1 newly fail (t::two)" in lead.message


def test_every_signal_has_an_id_of_its_own(tmp_path: Path) -> None:
    for n in range(5):
        vllm(tmp_path / "a" / f"run{n}.json", factor=1 + n / 1000)
        vllm(tmp_path / "b" / f"run{n}.json", factor=1.3 + n / 1000)
    found = compare(tmp_path / "a", tmp_path / "b")
    ids = [s.fingerprint for s in found.signals]
    assert len(ids) > 5
    assert len(set(ids)) == len(ids)
    results = sarif(found)["runs"][0]["results"]
    assert len({r["partialFingerprints"]["signal/v1"] for r in results}) == len(results)


# The text.


@pytest.mark.parametrize("tokens", [1, 10, 30])
def test_three_first_lines_stand_at_any_budget(tmp_path: Path, tokens: int) -> None:
    found = compare(junit(tmp_path / "a.xml", set()), junit(tmp_path / "b.xml", {"two"}))
    said = text(found, tokens).splitlines()
    assert [line.split()[0] for line in said[:3]] == ["correct?", "better?", "open?"]
    assert said[0].startswith("correct? no")


def test_wrong_budget_is_said_in_words() -> None:
    with pytest.raises(Wrong, match="must be a whole number of at least 1, not '0'"):
        run(["compare", str(SUMMARY), "--tokens", "0"], print)


def test_explain_shows_the_value_in_question(tmp_path: Path) -> None:
    slow = vllm(tmp_path / "b.json", factor=2.0)
    (signal,) = compare(SUMMARY, slow).signals
    said: list[str] = []
    run(["explain", signal.fingerprint, str(SUMMARY), str(slow)], said.append)
    assert "1: median_ttft_ms = 106.6" in said[0]
    assert "1: median_ttft_ms = 53.3" in said[0]


def test_explain_shows_all_times_of_a_command(tmp_path: Path) -> None:
    a, b = hyperfine(tmp_path / "a.json", {"./p": 1.0}), hyperfine(tmp_path / "b.json", {"./p": 2.0})
    (signal,) = compare(a, b).signals
    said: list[str] = []
    run(["explain", signal.fingerprint, str(a), str(b)], said.append)
    assert "/results/0/times: 8 values, median 2.014, 2..2.028" in said[0]


def test_read_keeps_cases_apart_and_names_units(tmp_path: Path) -> None:
    said: list[str] = []
    run(["read", str(hyperfine(tmp_path / "a.json", {"./p": 0.001, "./q": 5.0}))], said.append)
    assert "time_s of a.json (candidate): 16 values, 2 cases of benchmark" in said[0]
    assert "./p: 8 values, 8 processes, median 1.007 ms, 1..1.014 ms" in said[0]
    assert "./q: 8 values, 8 processes, median 5.035 s, 5..5.07 s" in said[0]
