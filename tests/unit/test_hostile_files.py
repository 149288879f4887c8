"""Truncated, mutated and hostile files: every reader gives observations or says where a file is unreadable."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from feedback import observations
from feedback.observations import Observation
from feedback.readers import Unreadable, formats

DATA = Path(__file__).resolve().parents[1] / "data"
RECORDED = {
    "junit": ["junit/pytest.xml", "junit/surefire.xml"],
    "reportlog": ["reportlog/pytest.jsonl"],
    "json_report": ["json_report/pytest.json"],
    "pytest_benchmark": ["pytest_benchmark/rms_norm.json"],
    "pyperf": ["pyperf/rms_norm.json"],
    "google_benchmark": ["google_benchmark/repetitions.json", "google_benchmark/single.json"],
    "hyperfine": ["hyperfine/seq.json", "hyperfine/failing.json"],
    "llama_bench": ["llama_bench/threads.json", "llama_bench/prompt.jsonl"],
    "vllm_bench": ["vllm_bench/detailed.json", "vllm_bench/summary.json"],
    "sglang_bench": ["sglang_bench/two_runs.jsonl"],
    "guidellm": ["guidellm/concurrent.json"],
    "aiperf": ["aiperf/profile_export.jsonl", "aiperf/profile_export_aiperf.json", "aiperf/profile_export_aiperf.csv"],
    "parity_table": ["parity_table/tf32.csv", "parity_table/tf32.jsonl"],
    "triton_table": ["triton_table/rms-norm.csv"],
    "events": ["events/server.jsonl"],
    "callgrind": ["callgrind/tile1024.out"],
}
FILES = [(format, DATA / file) for format, files in RECORDED.items() for file in files]
KINDS = (observations.Measurement, observations.TestOutcome, observations.ParityPoint, observations.RuntimeEvent)
IDS = [f"{format}-{file.name}" for format, file in FILES]
BESIDE = [
    b"", b"\x00", b"\xff\xfe\x00", b"[]", b"{}", b"null", b"1e999", b"NaN", b'"text"', b"[" * 100_000,
    b'{"a":' * 50_000, b"9" * 10_000, b"\x1b[31m\x1b]0;title\x07", bytes(range(256)) * 20, b"<" * 5_000,
    b"a,b\n" + b'"' * 1000, b"\n" * 1000, b'{"name": "x"}\n{"name"', "\N{RIGHT-TO-LEFT OVERRIDE}".encode() * 50,
]  # fmt: skip
DEEP = "@deep@"
"""Stands for lists inside lists, as deep as the JSON parser takes them."""
ODD: list[Any] = [
    None, True, -1, 0, 10**400, -1e308, 1e308, float("nan"), float("inf"), "", "NaN", "x" * 5000, [], {}, [[]],
    {"a": {}},
    DEEP, "\x1b[31mred\x1b[0m\x00\u202e", "\ud800", [None], [-1.0], ["a", 1], "9" * 5000,
]  # fmt: skip


def take(format: str, path: Path) -> list[Observation]:
    """What the reader gives, checked: every text is printable and bounded."""
    row = formats.named(format)
    assert row is not None
    try:
        found = list(row.read(path, "probe", "screen", "candidate"))
    except Unreadable as error:
        said = str(error)
    else:
        said = ""
    assert len(said) <= 500
    assert said.isprintable(), repr(said)
    if said:
        return []
    for observation in found:
        assert isinstance(observation, KINDS)
        for text in texts(observation.model_dump()):
            assert text.isprintable(), repr(text)
            assert len(text) <= 450
    return found


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from texts(key)
            yield from texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from texts(inner)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*at, key))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from places(inner, (*at, i))
    if at:
        yield at


def swapped(text: str, choose: random.Random) -> str:
    """The document with one value, or one key, that is something else."""
    value = json.loads(text)
    *way, last = choose.choice(list(places(value)))
    inner = value
    for step in way:
        inner = inner[step]
    if choose.random() < 0.2:
        del inner[last]
    else:
        inner[last] = choose.choice(ODD)
    return json.dumps(value).replace(f'"{DEEP}"', "[" * 900 + "]" * 900)


@pytest.mark.parametrize(("format", "path"), FILES, ids=IDS)
def test_recorded_file_is_detected_and_read(format: str, path: Path) -> None:
    assert formats.detect(path).name == format
    assert take(format, path)


@pytest.mark.parametrize(("format", "path"), FILES, ids=IDS)
def test_truncated_files(format: str, path: Path, tmp_path: Path) -> None:
    data = path.read_bytes()
    target = tmp_path / path.name
    for n in sorted({len(data) * i // 40 for i in range(40)} | {1, 2, len(data) - 2, len(data) - 1}):
        target.write_bytes(data[:n])
        take(format, target)


@pytest.mark.parametrize(("format", "path"), FILES, ids=IDS)
def test_mutated_bytes(format: str, path: Path, tmp_path: Path) -> None:
    choose = random.Random(7)
    data = path.read_bytes()
    target = tmp_path / path.name
    for _ in range(40):
        changed = bytearray(data)
        for _ in range(choose.choice((1, 1, 3, 20))):
            at = choose.randrange(len(changed))
            changed[at : at + choose.choice((0, 1, 4))] = choose.choice(
                (b"", b"\x00", b"\xff", b"-", b"9" * 30, b"e999", b'"', b"\n", b"]", b"<", b"&x;", b"\x1b[1m", b"'")
            )
        target.write_bytes(changed)
        take(format, target)


@pytest.mark.parametrize(("format", "path"), FILES, ids=IDS)
def test_swapped_types(format: str, path: Path, tmp_path: Path) -> None:
    if path.suffix not in (".json", ".jsonl"):
        pytest.skip("not JSON")
    choose = random.Random(11)
    target = tmp_path / path.name
    chunks = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    for _ in range(100):
        i = choose.randrange(len(chunks))
        target.write_text("\n".join([*chunks[:i], swapped(chunks[i], choose), *chunks[i + 1 :]]))
        take(format, target)


@pytest.mark.parametrize("format", RECORDED)
def test_files_of_something_else(format: str, tmp_path: Path) -> None:
    path = tmp_path / "file.csv"
    for data in BESIDE:
        path.write_bytes(data)
        take(format, path)


@pytest.mark.parametrize("data", BESIDE, ids=range(len(BESIDE)))
def test_detection_never_fails_on_noise(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    for row in formats.FORMATS:
        row.fits(path, data)


def test_missing_file_is_an_os_error(tmp_path: Path) -> None:
    for format in RECORDED:
        row = formats.named(format)
        assert row is not None
        with pytest.raises(FileNotFoundError):
            row.read(tmp_path / "missing", "probe", "screen", "candidate")
