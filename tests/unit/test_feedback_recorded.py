"""What `feedback compare` says of recorded files: that which a performance engineer would have written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from jsonschema import Draft4Validator

from feedback.comparison import Comparison, compare
from feedback.digest import count_tokens, digest
from feedback.explanation import explain
from feedback.markdown import markdown
from feedback.sarif import sarif
from feedback.signals import Signal

DATA = Path(__file__).parents[1] / "data"
SCHEMA = Draft4Validator(json.loads((DATA / "sarif" / "sarif-2.1.0-rtm.5.json").read_text()))
NOT_MEASURED = {".md", ".py", ".c"}


def troubles(found: Comparison) -> list[Signal]:
    return [s for s in found.signals if s.level != "note"]


def gathered(directory: Path, **files: str) -> Path:
    """A directory of recorded files under names that are the same on both sides."""
    directory.mkdir()
    for name, source in files.items():
        shutil.copy(DATA / source, directory / f"{name}{''.join(Path(source).suffixes)}")
    return directory


@pytest.fixture
def released(tmp_path: Path) -> Path:
    return gathered(
        tmp_path / "released", trace="gil_case/released.trace.json.gz", profile="py_spy/released.raw",
        gil="py_spy/released_gil.raw",
    )  # fmt: skip


@pytest.fixture
def held(tmp_path: Path) -> Path:
    return gathered(
        tmp_path / "held", trace="gil_case/held.trace.json.gz", profile="py_spy/held.raw", gil="py_spy/held_gil.raw"
    )


def test_a_held_gil_is_one_signal_from_trace_and_profile(released: Path, held: Path) -> None:
    (signal,) = troubles(compare(released, held))
    assert signal.rule_id == "utilization.overlap"
    assert "intranode_dispatch" in signal.message
    assert "GIL" in signal.causes[0].text
    assert {Path(e.artefact).name for e in signal.evidence} == {"trace.trace.json.gz", "gil.raw"}
    assert any(e.detail.startswith("utilization.gil: ") for e in signal.evidence)


def test_the_fix_is_no_trouble(released: Path, held: Path) -> None:
    found = compare(held, released)
    assert troubles(found) == []
    assert any("no longer so" in s.message for s in found.signals)


def test_evidence_of_the_held_gil_is_explained(released: Path, held: Path) -> None:
    found = compare(released, held)
    text = explain(troubles(found)[0], found.read)
    assert "intranode_dispatch on prefill/engine" in text
    assert "gil_case.py:27" in text


def test_tf32_in_a_chain_leads_with_its_cause() -> None:
    found = compare(DATA / "parity" / "chain_fp32.jsonl", DATA / "parity" / "chain_tf32.jsonl")
    first = found.signals[0]
    assert first.level == "error"
    assert "TF32" in first.causes[0].text
    assert first.causes[0].support == "strong"
    assert digest(found.signals).startswith("correct? no: ")


def test_equally_good_arithmetic_is_no_trouble() -> None:
    found = compare(DATA / "parity" / "chain_fp32.jsonl", DATA / "parity" / "chain_tf32x3.jsonl")
    assert troubles(found) == []


def test_a_starved_cache_is_found_in_metrics() -> None:
    found = compare(DATA / "metrics" / "vllm_healthy.prom", DATA / "metrics" / "vllm_starved.prom")
    assert [s.rule_id for s in troubles(found)] == ["stability.preemption"]


def test_missing_graphs_stay_apart_from_preemption() -> None:
    logs = DATA / "engine_logs"
    found = compare(logs / "sglang_ceiling_128.log", logs / "sglang_ceiling_32.log")
    assert {s.rule_id for s in troubles(found)} >= {"stability.preemption", "stability.capture_grid"}


def recorded() -> list[Path]:
    """Every directory of recorded files."""
    return [d for d in sorted(DATA.iterdir()) if d.is_dir() and d.name != "sarif"]


@pytest.mark.parametrize("directory", recorded(), ids=lambda d: d.name)
def test_any_two_recorded_files_can_be_compared_and_shown(directory: Path) -> None:
    files = [f for f in sorted(directory.iterdir()) if f.is_file() and f.suffix not in NOT_MEASURED]
    for base, candidate in [(files[0], files[-1]), (files[-1], files[0]), (directory, None), (files[0], None)]:
        found = compare(base, candidate)
        log = json.loads(json.dumps(sarif(found), allow_nan=False))
        assert [error.message[:300] for error in SCHEMA.iter_errors(log)] == []
        assert markdown(found)
        for tokens in (100, 600, 2000):
            assert count_tokens(digest(found.signals, tokens)) <= tokens
        for signal in found.signals[:3]:
            assert explain(signal, found.read).startswith(f"[{signal.fingerprint}]")


@pytest.mark.parametrize("directory", recorded(), ids=lambda d: d.name)
def test_a_file_against_its_copy_is_neither_better_nor_worse(directory: Path, tmp_path: Path) -> None:
    files = [f for f in sorted(directory.iterdir()) if f.is_file() and f.suffix not in NOT_MEASURED]
    for path in files[:3]:
        copy = shutil.copy(path, tmp_path / path.name)
        found = compare(path, Path(copy))
        assert [s.message for s in found.signals if s.finding in ("better", "worse")] == []
