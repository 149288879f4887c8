"""The parity reader: recorded scorings of the real engine, censored values, and texts that don't match."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest

from feedback.observations import ParityPoint
from feedback.readers import Unreadable
from feedback.readers.logprobs import MARGIN, Margins, read

DATA = Path(__file__).resolve().parents[1] / "data" / "llamacpp"


def position(place: int, logprob: float | None, top1: int = 1, censored: bool = False) -> dict[str, Any]:
    return {"position": place, "token": 100 + place, "logprob": logprob, "top1": top1, "censored": censored}


def text(*positions: dict[str, Any], name: str = "prose") -> dict[str, Any]:
    return {"text": name, "positions": list(positions)}


def write(path: Path, *lines: tuple[str, list[dict[str, Any]]], margin: float | None = None) -> Path:
    extra = {} if margin is None else {"margin": margin}
    entries = [{"arm": arm, "scores": scores, **extra} for arm, scores in lines]
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
    return path


def points(path: Path, name: str = "all") -> dict[str, ParityPoint]:
    found = read(path, "parity", "screen")
    return {p.measure: p for p in found if isinstance(p, ParityPoint) and p.case["text"] == name}


def broken(path: Path) -> list[ParityPoint]:
    found = read(path, "parity", "screen")
    return [p for p in found if isinstance(p, ParityPoint) and not p.value <= p.tolerance]


@pytest.mark.parametrize("change", ["flash_attention_off", "q8_0"])
def test_harmless_rounding_passes(change: str) -> None:
    assert broken(DATA / f"logprobs_{change}.jsonl") == []


@pytest.mark.parametrize("change", ["q4_0", "q4_0_values"])
def test_cache_quantization_that_changes_answers_is_caught(change: str) -> None:
    path = DATA / f"logprobs_{change}.jsonl"
    overall = points(path)["mean_abs_logprob_delta"]
    assert overall.value > overall.tolerance
    assert overall.tolerance == pytest.approx(MARGIN)  # the A/A spread of this engine is exactly zero
    assert overall.case["positions"] == 102
    assert broken(path)


def test_identical_scores_are_no_distance_and_points_come_by_text_and_overall(tmp_path: Path) -> None:
    scores = [text(position(8, -1.0), name="a"), text(position(8, -2.0), name="b")]
    found = read(write(tmp_path / "p.jsonl", ("baseline", scores), ("candidate", scores)), "parity", "confirm")
    assert [(p.case["text"], p.measure) for p in found if isinstance(p, ParityPoint)] == [
        (name, measure)
        for name in ("a", "b", "all")
        for measure in ("mean_abs_logprob_delta", "max_abs_logprob_delta", "top1_disagreement")
    ]
    assert all(isinstance(p, ParityPoint) and p.value == 0 and p.stage == "confirm" for p in found)


def test_measures_are_mean_largest_and_share(tmp_path: Path) -> None:
    a = [text(position(8, -1.0, top1=5), position(11, -2.0, top1=6))]
    b = [text(position(8, -1.1, top1=5), position(11, -1.7, top1=7))]
    found = points(write(tmp_path / "p.jsonl", ("baseline", a), ("candidate", b)))
    assert found["mean_abs_logprob_delta"].value == pytest.approx(0.2)
    assert found["max_abs_logprob_delta"].value == pytest.approx(0.3)
    assert found["top1_disagreement"].value == pytest.approx(0.5)


def test_tolerance_is_the_baselines_own_spread_and_the_margin(tmp_path: Path) -> None:
    a, again = [text(position(8, -1.0))], [text(position(8, -1.25))]
    lines = (("baseline", a), ("baseline", again), ("candidate", a))
    found = points(write(tmp_path / "p.jsonl", *lines, margin=0.06))
    margins = Margins.of(0.06)
    assert found["mean_abs_logprob_delta"].tolerance == pytest.approx(0.25 + margins.mean)
    assert found["max_abs_logprob_delta"].tolerance == pytest.approx(0.25 + margins.largest)
    assert found["top1_disagreement"].tolerance == pytest.approx(margins.top1)


def test_single_text_may_vary_more_than_all_together(tmp_path: Path) -> None:
    a = [text(position(8, -1.0))]
    path = write(tmp_path / "p.jsonl", ("baseline", a), ("candidate", a))
    by_text, overall = points(path, "prose"), points(path)
    assert by_text["mean_abs_logprob_delta"].tolerance > overall["mean_abs_logprob_delta"].tolerance


@pytest.mark.parametrize(
    ("a", "b", "delta"),
    [
        (position(8, -3.0), position(8, -9.0, censored=True), 6.0),  # at most -9: at least 6 apart
        (position(8, -9.0, censored=True), position(8, -3.0), 6.0),
        (position(8, -9.0, censored=True), position(8, -9.5), 0.0),  # nothing is surely different
        (position(8, -9.0, censored=True), position(8, -8.0, censored=True), 0.0),
    ],
)
def test_censored_value_counts_only_as_far_as_it_is_surely_different(
    tmp_path: Path, a: dict[str, Any], b: dict[str, Any], delta: float
) -> None:
    found = points(write(tmp_path / "p.jsonl", ("baseline", [text(a)]), ("candidate", [text(b)])))
    assert found["max_abs_logprob_delta"].value == pytest.approx(delta)


def test_refused_position_is_infinitely_wrong(tmp_path: Path) -> None:
    a, b = [text(position(8, -1.0))], [text(position(8, None))]
    path = write(tmp_path / "p.jsonl", ("baseline", a), ("candidate", b))
    assert points(path)["mean_abs_logprob_delta"].value == math.inf
    assert broken(path)


@pytest.mark.parametrize(
    "other",
    [
        [text(position(8, -1.0), name="another")],
        [text(position(9, -1.0))],
        [text(position(8, -1.0), position(11, -1.0))],
        [text()],
        [text(position(8, -1.0)), text(position(8, -1.0), name="more")],
    ],
)
def test_scores_of_other_texts_or_positions_are_infinitely_wrong(tmp_path: Path, other: list[dict[str, Any]]) -> None:
    path = write(tmp_path / "p.jsonl", ("baseline", [text(position(8, -1.0))]), ("candidate", other))
    assert points(path)["mean_abs_logprob_delta"].value == math.inf


def test_worst_of_several_candidate_scorings_counts(tmp_path: Path) -> None:
    a, far = [text(position(8, -1.0))], [text(position(8, -4.0))]
    path = write(tmp_path / "p.jsonl", ("baseline", a), ("candidate", far), ("candidate", a))
    assert points(path)["max_abs_logprob_delta"].value == pytest.approx(3.0)


@pytest.mark.parametrize("missing", ["baseline", "candidate"])
def test_missing_arm_is_unreadable(tmp_path: Path, missing: str) -> None:
    there = "candidate" if missing == "baseline" else "baseline"
    path = write(tmp_path / "p.jsonl", (there, [text(position(8, -1.0))]))
    with pytest.raises(Unreadable, match=f"no log-probabilities of the {missing}"):
        read(path, "parity", "screen")


@pytest.mark.parametrize(
    "change",
    [{"arm": "third"}, {"scores": []}, {"scores": "none"}, {"margin": -1}, {"scores": [text(position(8, math.nan))]}],
)
def test_malformed_line_is_located(tmp_path: Path, change: dict[str, Any]) -> None:
    good = {"arm": "baseline", "scores": [text(position(8, -1.0))]}
    bad = {**copy.deepcopy(good), **change}
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps(good) + "\n" + json.dumps(bad) + "\n", encoding="utf-8")
    with pytest.raises(Unreadable, match="line 2"):
        read(path, "parity", "screen")


def test_truncated_file_is_located(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", ("baseline", [text(position(8, -1.0))]))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(Unreadable, match="line 1"):
        read(path, "parity", "screen")
