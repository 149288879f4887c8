"""Rules on tests: what changed between the arms, where it fails first, and what only flickers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from feedback import observations as facts
from feedback.criteria import Criteria
from feedback.observations import Source
from feedback.rules.correctness import changed_tests, failed_tests, flaky
from feedback.signals import CodeLocation, ProcessLocation, Signal

PLAIN = Criteria(changed=())


def outcomes(arm: str, results: dict[str, str], **fields: Any) -> list[facts.TestOutcome]:
    """One attempt a letter: p passed, f failed, e error, s skipped."""
    words = {"p": "passed", "f": "failed", "e": "error", "s": "skipped"}
    return [
        facts.TestOutcome.model_validate(
            {
                "probe": "unit", "name": name, "outcome": words[letter], "arm": arm, "attempt": n,
                "message": "" if letter in "ps" else "AssertionError: 3 != 4", "file": "tests/test_kv.py",
                "line": 41 if letter in "fe" else 10, "source": Source(file=f"{arm}.xml", line=n + 1),
            } | fields
        )
        for name, letters in results.items()
        for n, letter in enumerate(letters)
    ]  # fmt: skip


def compared(before: dict[str, str], after: dict[str, str]) -> list[facts.TestOutcome]:
    return [*outcomes("baseline", before), *outcomes("candidate", after)]


def only(signals: Sequence[Signal]) -> Signal:
    assert len(signals) == 1, [s.message for s in signals]
    return signals[0]


ALL = {"a": "p", "b": "p", "c": "p"}


def test_newly_failing_tests_are_placed_where_they_fail_first() -> None:
    signal = only(changed_tests(compared(ALL, ALL | {"a": "f", "b": "e"}), PLAIN))
    assert (signal.rule_id, signal.finding, signal.level, signal.role) == (
        "correctness.test_changed", "violates", "error", "information",
    )  # fmt: skip
    assert signal.message == (
        "unit: 2 newly fail (a, b), 2 of them at tests/test_kv.py:41: AssertionError: 3 != 4"
    )  # fmt: skip
    assert signal.locations == (CodeLocation(file="tests/test_kv.py", line=41, symbol="a"),)
    assert signal.evidence[0].artefact == "candidate.xml"
    assert "flaky" in signal.caveats[0]


def test_place_with_most_failures_comes_first() -> None:
    after = [
        *outcomes("candidate", {"a": "f"}, file="tests/rare.py"),
        *outcomes("candidate", {"b": "f", "c": "f"}, file="kernels/common.py"),
    ]
    signal = only(changed_tests([*outcomes("baseline", ALL), *after], PLAIN))
    assert signal.locations[0] == CodeLocation(file="kernels/common.py", line=41, symbol="b")


def test_newly_passing_tests_are_a_note() -> None:
    signal = only(changed_tests(compared(ALL | {"a": "f"}, ALL), PLAIN))
    assert (signal.level, signal.finding) == ("note", "observed")
    assert "1 newly pass (a)" in signal.message


@pytest.mark.parametrize(
    ("after", "said", "cause"),
    [
        ({"a": "p"}, "2 gone (b, c)", "collection stopped"),
        ({"a": "p", "b2": "p", "c2": "p"}, "2 gone (b, c)", "renamed"),
        ({"a": "p", "b": "p", "c": "s"}, "1 now skipped (c)", ""),
    ],
)
def test_tests_that_no_longer_run_are_a_warning(after: dict[str, str], said: str, cause: str) -> None:
    signal = only(changed_tests(compared(ALL, after), PLAIN))
    assert (signal.level, signal.finding) == ("warning", "observed")
    assert said in signal.message
    assert [cause in c.text for c in signal.causes] == ([True] if cause else [])


def test_new_test_that_fails_is_newly_failing() -> None:
    assert "1 newly fail (d)" in only(changed_tests(compared(ALL, ALL | {"d": "f"}), PLAIN)).message


def test_failure_in_both_arms_is_not_the_changes_doing() -> None:
    found = compared(ALL | {"a": "f"}, ALL | {"a": "f"})
    assert changed_tests(found, PLAIN) == []
    signal = only(failed_tests(found, PLAIN))
    assert (signal.level, signal.finding) == ("note", "observed")
    assert "1 of 3 failed (all in the baseline too); a: " in signal.message
    gate = only(failed_tests(found, Criteria(changed=(), gates=("unit",))))
    assert (gate.level, gate.finding) == ("error", "violates")


def test_new_failure_beside_an_old_one_comes_first() -> None:
    found = compared(ALL | {"a": "f"}, ALL | {"a": "f", "b": "f"})
    signal = only(failed_tests(found, PLAIN))
    assert (signal.level, signal.finding) == ("error", "violates")
    assert "2 of 3 failed (1 in the baseline too); b: " in signal.message


@pytest.mark.parametrize(
    "found",
    [
        compared(ALL, ALL),
        compared(ALL, ALL | {"new": "p"}),
        outcomes("candidate", {"a": "f"}),
        compared({"a": "s"}, {"a": "s"}),
        compared({"a": "pf"}, {"a": "f"}),
        compared({"a": "p"}, {"a": "fp"}),
        compared({"unit": "p"}, {"unit": "f"}),
    ],
    ids=["same", "new passes", "one arm", "skipped", "was flaky", "is flaky", "a command"],
)
def test_nothing_changed(found: list[facts.TestOutcome]) -> None:
    assert changed_tests(found, PLAIN) == []


# correctness.flaky


def test_flaky_test_is_told_from_a_broken_one() -> None:
    found = compared(ALL, ALL | {"a": "fpf", "b": "f"})
    signal = only(flaky(found, PLAIN))
    assert (signal.rule_id, signal.level, signal.finding) == ("correctness.flaky", "note", "observed")
    assert signal.message == "unit: 1 flaky test; a failed 2 of 3 attempts: AssertionError: 3 != 4"
    assert signal.locations[0] == CodeLocation(file="tests/test_kv.py", line=41, symbol="a")
    assert "newly fail (b)" in only(changed_tests(found, PLAIN)).message


def test_race_that_the_baseline_did_not_have_is_a_warning() -> None:
    signal = only(flaky(compared({"a": "ppp"}, {"a": "fpf"}), PLAIN))
    assert signal.level == "warning"
    assert "a new race is possible" in signal.caveats[0]


@pytest.mark.parametrize("letters", ["p", "f", "fff", "ppp", "ss", "sp", "sf"])
def test_test_that_always_says_the_same_is_not_flaky(letters: str) -> None:
    assert flaky(outcomes("candidate", {"a": letters}), PLAIN) == []


# correctness.test_fail, over attempts and skips


def test_last_attempt_counts() -> None:
    assert only(failed_tests(outcomes("candidate", {"a": "fp", "b": "p"}), PLAIN)).finding == "holds"
    assert only(failed_tests(outcomes("candidate", {"a": "pf", "b": "p"}), PLAIN)).finding == "violates"


def test_skipped_tests_neither_pass_nor_fail() -> None:
    assert only(failed_tests(outcomes("candidate", {"a": "s", "b": "p"}), PLAIN)).message == (
        "unit: passed (1, 1 skipped)"
    )
    signal = only(failed_tests(outcomes("candidate", {"a": "s"}), PLAIN))
    assert (signal.finding, signal.reason) == ("abstained", "all 1 tests were skipped")


def test_failed_test_is_placed() -> None:
    signal = only(failed_tests(outcomes("candidate", {"a": "f"}), PLAIN))
    assert signal.locations == (
        CodeLocation(file="tests/test_kv.py", line=41, symbol="a"), ProcessLocation(arm="candidate", role="unit"),
    )  # fmt: skip
