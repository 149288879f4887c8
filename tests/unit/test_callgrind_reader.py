"""Instruction totals of callgrind files as valgrind 3.x writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from feedback.observations import Measurement, Source
from feedback.readers import Unreadable
from feedback.readers.callgrind import count, read

DATA = Path(__file__).resolve().parents[1] / "data" / "callgrind"
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
    measurement, *_ = read(path, "count", "screen", "candidate")
    assert measurement == Measurement(
        probe="count", metric="instructions", value=measurement.value, arm="candidate", stage="screen",
        source=Source(file=path.name),
    )  # fmt: skip
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


def functions(path: Path) -> dict[str, tuple[float, str]]:
    """Instructions of each function and where it stands."""
    of = read(path, "count", "screen", "candidate")[1:]
    assert all(m.metric == "instructions" and not m.paired and m.source is not None for m in of)
    return {str(m.case["function"]): (m.value, m.code) for m in of}


def test_functions_are_counted_with_what_was_inlined_into_them() -> None:
    """The numbers are those of callgrind_annotate; `square` is inlined into `scale`, and 8 tiles repeat it."""
    many, one = functions(DATA / "tile128.out"), functions(DATA / "tile1024.out")
    assert many["scale"] == (985_920, "/repo/norm.c:4")
    assert many["rms_norm"] == (125_480, "/repo/norm.c:10")
    assert one["scale"][0] * 8 == many["scale"][0]
    assert "square" not in many
    assert list(many)[:2] == ["scale", "rms_norm"]
    total = instructions(DATA / "tile128.out")
    assert 0.99 * total < sum(value for value, _ in many.values()) <= total


PROFILE = """\
fl=(1) a.c
fn=(1) outer
10 5
+2 7
fi=(2) inline.h
400 11
fe=(1)
* 1
cfn=(2) inner
calls=3 50
14 1000
15 2
fl=(3) b.c
fn=(2)
50 600
-3 400
fn=(4) inner'2
60 9
fl=(1)
fn=(1)
8 3
totals: 1038
"""


def test_calls_and_compressed_names_and_positions(tmp_path: Path) -> None:
    found = functions(write(tmp_path, HEAD + "events: Ir\n" + PROFILE))
    assert found == {"inner": (1009, "b.c:47"), "outer": (29, "a.c:8")}


def test_lines_are_counted_for_the_functions_that_are_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD + "events: Ir\n" + PROFILE)
    counted = count(path, ["outer"])
    assert counted.total == 1038
    assert list(counted.functions.items()) == [("inner", 1009), ("outer", 29)]
    assert list(counted.lines) == ["outer"]
    places = {"inline.h:400": 11, "a.c:12": 7, "a.c:10": 5, "a.c:8": 3, "a.c:15": 2, "a.c:400": 1}
    assert list(counted.lines["outer"].items()) == list(places.items())
    assert count(path, []).lines == {}


def test_without_its_end_nothing_is_counted_but_the_total(tmp_path: Path) -> None:
    path = write(tmp_path, (HEAD + "events: Ir\nsummary: 1038\n" + PROFILE).replace("totals: 1038\n", ""))
    assert count(path, ["outer"]) == (1038, {}, {})


def test_addresses_come_before_lines_where_the_file_has_them(tmp_path: Path) -> None:
    body = "fl=(1) a.c\nfn=(1) f\n0x401000 10 5\n+4 +1 6\n+8 * 7\ntotals: 18\n"
    text = HEAD.replace("positions: line", "positions: instr line") + "events: Ir Dr\n" + body
    assert functions(write(tmp_path, text)) == {"f": (18, "a.c:10")}


def test_file_without_its_end_gives_no_functions(tmp_path: Path) -> None:
    text = (DATA / "tile128.out").read_text()
    path = write(tmp_path, text[: len(text) // 2])
    assert instructions(path) == instructions(DATA / "tile128.out")
    assert functions(path) == {}


def test_parts_of_one_file_add_up(tmp_path: Path) -> None:
    text = HEAD + "events: Ir\nfl=a.c\nfn=f\n1 5\ntotals: 5\npart: 2\n1 7\ntotals: 7\n"
    path = write(tmp_path, text)
    assert (instructions(path), functions(path)) == (12, {"f": (12, "a.c:1")})
