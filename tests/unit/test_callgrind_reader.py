"""Instruction totals of callgrind files as valgrind 3.x writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from feedback.observations import Measurement
from feedback.readers import Unreadable
from feedback.readers.callgrind import read

HEAD = """\
# callgrind format
version: 1
creator: callgrind-3.19.0
pid: 7
cmd:  build/bench_kda
part: 1


desc: I1 cache:
desc: Timerange: Basic block 0 - 1234567
desc: Trigger: Program termination

positions: line
"""
BODY = "fn=(1) kda_decode_step\n" + "".join(f"{n} 100\n" for n in range(5000))


def write(directory: Path, text: str) -> Path:
    path = directory / "candidate.callgrind"
    path.write_text(text)
    return path


def instructions(path: Path) -> float:
    (measurement,) = read(path, "count", "screen", "candidate")
    assert measurement == Measurement(
        probe="count", metric="instructions", value=measurement.value, arm="candidate", stage="screen"
    )
    return measurement.value


@pytest.mark.parametrize(
    ("head", "tail", "expected"),
    [
        ("events: Ir\nsummary: 123456789\n", "\n\ntotals: 123456789\n", 123456789),
        ("events: Ir\n", "totals: 42\n", 42),
        ("events: Ir\nsummary: 42\n", "", 42),
        ("events: Ir Dr Dw\nsummary: 100 20 30\n", "totals: 100 20 30\n", 100),
        ("events: Ir\nsummary: 0\n", "totals: 0\n", 0),
        ("events: Ir\nsummary: 99999999999999\n", "totals: 99999999999999\n", 99999999999999),
    ],
)
def test_totals_are_read(tmp_path: Path, head: str, tail: str, expected: int) -> None:
    assert instructions(write(tmp_path, HEAD + head + BODY + tail)) == expected


def test_totals_at_the_end_of_a_large_file_are_found(tmp_path: Path) -> None:
    text = HEAD + "events: Ir\n" + BODY * 20 + "totals: 77\n"
    assert len(text) > 4 * (1 << 16)
    assert instructions(write(tmp_path, text)) == 77


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "counts instructions"),
        ("fn=main\n1 2\n", "counts instructions"),
        (HEAD + "events: Cycles\nsummary: 5\n", "counts instructions"),
        (HEAD + "events: Ir\n" + BODY, "did not finish"),
        (HEAD + "events: Ir\nsummary:\n", "did not finish"),
        (HEAD + "events: Ir\nsummary: many\n", "did not finish"),
    ],
)
def test_file_that_was_cut_off_is_unreadable(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(Unreadable, match=reason):
        read(write(tmp_path, text), "count", "screen", "candidate")


def test_file_of_noise_is_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "noise"
    path.write_bytes(bytes(range(256)) * 100)
    with pytest.raises(Unreadable):
        read(path, "count", "screen", "baseline")
