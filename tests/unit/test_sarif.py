"""SARIF 2.1.0: valid by the official schema, and saying what the signals say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft4Validator
from signals_of_all_kinds import EFFECT, FINDINGS, everything, signal

from feedback.comparison import Comparison, compare
from feedback.rules.derive import RULES
from feedback.sarif import sarif
from feedback.signals import InputLocation, Signal

DATA = Path(__file__).parents[1] / "data"
SCHEMA = json.loads((DATA / "sarif" / "sarif-2.1.0-rtm.5.json").read_text())


def valid(comparison: Comparison) -> dict[str, Any]:
    """The one run of a comparison's log, which is valid and survives JSON as everyone reads it."""
    log = json.loads(json.dumps(sarif(comparison, "1.2.3"), allow_nan=False))
    assert [error.message for error in Draft4Validator(SCHEMA).iter_errors(log)] == []
    (run,) = log["runs"]
    return run  # type: ignore[no-any-return]


def only(*signals: Signal) -> list[dict[str, Any]]:
    return valid(everything().model_copy(update={"signals": signals}))["results"]  # type: ignore[no-any-return]


def test_the_schema_refuses_what_is_none() -> None:
    log = sarif(everything())
    log["runs"][0]["results"][0]["level"] = "fatal"
    assert list(Draft4Validator(SCHEMA).iter_errors(log))


def test_everything_is_valid() -> None:
    run = valid(everything())
    assert len(run["results"]) == len(everything().signals)
    assert run["tool"]["driver"]["version"] == "1.2.3"


def test_a_real_comparison_is_valid() -> None:
    run = valid(compare(DATA / "llamacpp" / "server.log"))
    assert run["invocations"][0]["executionSuccessful"]


def test_nothing_found_is_valid() -> None:
    assert only() == []


@pytest.mark.parametrize(("finding", "level"), FINDINGS)
def test_only_failures_have_a_level(finding: str, level: str) -> None:
    (result,) = only(signal(finding, level))
    failed = finding in ("violates", "worse") or (finding == "observed" and level != "note")
    assert (result["kind"] == "fail") == failed
    assert result["level"] == (level if failed else "none")
    assert result["properties"]["finding"] == finding
    assert result["properties"]["level"] == level


def test_rules_come_from_the_table_and_results_point_at_them() -> None:
    run = valid(everything())
    rules = run["tool"]["driver"]["rules"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
    described = {rule["id"]: rule.get("shortDescription", {}).get("text") for rule in rules}
    for rule in RULES:
        for rule_id in rule.ids:
            assert described[rule_id] == rule.says
    assert described["new.rule"] is None


def test_places_in_files_are_relative_and_inside_the_sources() -> None:
    (result,) = only(signal("observed", "warning"))
    first, second, third = result["locations"]
    assert first["physicalLocation"] == {
        "artifactLocation": {"uri": "src/kernels/my%20kernel.c", "uriBaseId": "%SRCROOT%"}, "region": {"startLine": 7},
    }  # fmt: skip
    assert second["physicalLocation"]["artifactLocation"]["uri"] == "etc/passwd"
    assert third["physicalLocation"]["artifactLocation"]["uri"] == "file:///abs/a.py"


def test_kernels_threads_and_parameters_are_logical_places() -> None:
    (result,) = only(signal("observed", "warning"))
    logical = {p["kind"]: p["name"] for p in result["locations"][0]["logicalLocations"]}
    assert logical["parameter"] == "max_num_seqs"
    assert logical["thread"] == "loop"
    assert logical["function"].startswith("void sgemm")


def test_places_that_read_alike_stand_once() -> None:
    places = tuple(InputLocation(condition={"T": 4, "seed": seed}) for seed in (1, 1))
    (result,) = only(signal("observed", "warning", places))
    assert len(result["locations"][0]["logicalLocations"]) == 1


def test_effect_and_evidence_are_kept() -> None:
    made = signal("better", "note")
    (result,) = only(made)
    effect = result["properties"]["effect"]
    assert (effect["ratio_lo"], effect["ratio_hi"]) == (EFFECT.ratio_lo, EFFECT.ratio_hi)
    assert effect["improvement"] == pytest.approx(0.2)
    assert effect["improvement_lo"] < effect["improvement"] < effect["improvement_hi"]
    assert result["partialFingerprints"] == {"signal/v1": made.fingerprint}
    line, time, span, start = result["relatedLocations"]
    assert line["physicalLocation"]["region"] == {"startLine": 7}
    assert time["properties"] == {"startNs": 1, "endNs": 2}
    assert span["physicalLocation"]["region"] == {"byteOffset": 10, "byteLength": 10}
    assert start["physicalLocation"]["region"] == {"byteOffset": 9}
    assert result["properties"]["measured"][1]["value"] == "nan"


def test_messages_hold_no_links_and_no_placeholders() -> None:
    (result,) = only(signal("violates", "error"))
    text = result["message"]["text"]
    assert "](" not in text
    assert "because" in text
    assert "{{0}}" in text
    assert text.isprintable()


def test_files_that_were_not_read_are_notifications() -> None:
    first, second = valid(everything())["invocations"][0]["toolExecutionNotifications"]
    assert first["level"] == "warning"
    assert first["locations"][0]["physicalLocation"]["region"] == {"startLine": 3}
    assert second["message"]["text"] == "not read: c: ?"
