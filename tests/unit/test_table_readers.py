"""Our own tables: parity points as CSV, JSON lines or JSON, and events as JSON lines."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from feedback.readers import Unreadable, events, formats, parity_table

DATA = Path(__file__).resolve().parents[1] / "data"
AS = ("parity", "screen", "candidate")
POINT: dict[str, Any] = {"tensor": "state", "measure": "rms_ratio", "value": 2.6e-2, "T": 65536, "partition": 4}


def test_columns_that_are_not_ours_are_the_case() -> None:
    found = parity_table.read(DATA / "parity_table" / "tf32.csv", *AS)
    assert [(p.value, p.case.get("T"), p.case.get("partition"), p.case.get("region")) for p in found] == [
        (7e-7, 2048, 1, None),
        (4.5e-4, 2048, 4, "rank 1"),
        (7e-7, 65536, 1, None),
        (2.6e-2, 65536, 4, "rank 1"),
    ]
    assert {(p.tensor, p.measure, p.tolerance, p.reference, p.arm) for p in found} == {
        ("state", "rms_ratio", 1e-5, "golden", "candidate")
    }
    assert found[1].source is not None
    assert found[1].source.line == 3


def test_error_that_is_no_number_is_infinitely_large() -> None:
    first, second = parity_table.read(DATA / "parity_table" / "tf32.jsonl", *AS)
    assert (first.arm, first.value, first.case) == ("baseline", 3e-7, {"T": 2048, "partition": 4, "dtype": "float32"})
    assert (second.arm, second.value, second.reference) == ("candidate", math.inf, "unpartitioned")


@pytest.mark.parametrize("wrap", [lambda points: {"parity": points}, lambda points: points], ids=["object", "list"])
def test_one_document(wrap: Any, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps(wrap([POINT, POINT | {"T": 2}]), indent=1))
    found = parity_table.read(path, *AS)
    assert [(p.value, p.case["T"]) for p in found] == [(2.6e-2, 65536), (2.6e-2, 2)]
    assert found[1].source is not None
    assert found[1].source.query.endswith("/1")


def test_csv_and_json_give_the_same_point(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("tensor,measure,value,T,partition\nstate,rms_ratio,0.026,65536,4\n")
    (tmp_path / "a.jsonl").write_text(json.dumps(POINT))
    a, b = (parity_table.read(tmp_path / name, *AS)[0] for name in ("a.csv", "a.jsonl"))
    assert (a.case, a.value, a.tensor) == (b.case, b.value, b.tensor)
    assert {formats.detect(tmp_path / name).name for name in ("a.csv", "a.jsonl")} == {"parity_table"}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("measure,value\nrms_ratio\n", 2),
        ("measure,value\nrms_ratio,-1\n", 2),
        ("measure,value\nrms_ratio,small\n", 2),
        ("measure,value,arm\nrms_ratio,1,both\n", 2),
        ("value\n1\n", 2),
        ('{"measure": "rms_ratio", "value": 1}\n{"measure": "rms_ratio"}\n', 2),
        ('{"measure": "rms_ratio", "value": 1}\n[1]\n', 2),
        ('{"measure": "rms_ratio", "value": true}\n', 1),
    ],
)
def test_point_that_is_none_names_the_line(text: str, line: int, tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_text(text)
    with pytest.raises(Unreadable) as raised:
        parity_table.read(path, *AS)
    assert raised.value.line == line


def test_events() -> None:
    found = events.read(DATA / "events" / "server.jsonl", *AS)
    assert [(e.name, e.level, e.count, e.at_s, e.duration_s) for e in found] == [
        ("server_started", "note", 1, 0.0, None),
        ("preemption", "warning", 3, 12.4, None),
        ("gc_pause", "note", 1, 13.1, 0.021),
        ("kv_cache_usage", "note", 0.97, None, None),
    ]
    assert found[1].message == "request 17 preempted"
    assert {(e.source, e.arm) for e in found} == {("events", "candidate")}
    assert found[3].place is not None
    assert found[3].place.line == 4


@pytest.mark.parametrize(
    "line",
    ["[]", "{}", '{"name": 1}', '{"name": "x", "level": "fatal"}', '{"name": "x", "duration_s": -1}',
     '{"name": "x", "count": NaN}', '{"name": "x"'],
)  # fmt: skip
def test_event_that_is_none_names_the_line(line: str, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"name": "first"}\n\n' + line + "\n")
    with pytest.raises(Unreadable) as raised:
        events.read(path, *AS)
    assert raised.value.line == 3


def test_event_text_is_neutralised(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(json.dumps({"name": "x", "message": "\x1b[31mred\x1b[0m\n\u202e" + "y" * 9999}))
    (event,) = events.read(path, *AS)
    assert event.message.startswith("red yyy")
    assert len(event.message) == 240
