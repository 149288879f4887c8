"""Chrome traces: every kind of event, exact times, traces that are cut off, and memory that stays small."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hostile import fuzz, sound_spans, survives, unpacked

from feedback.readers import Unreadable, columns, json_array
from feedback.readers.chrome import fits, read
from feedback.readers.formats import detect
from feedback.spans import Spans

DATA = Path(__file__).resolve().parents[1] / "data"
TORCH = DATA / "torch_profiler"


def trace(path: Path) -> Spans:
    [spans] = read(path, "trace", "screen", "baseline")
    sound_spans(spans)
    return spans


def written(tmp_path: Path, events: object, **members: Any) -> Path:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({**members, "traceEvents": events}), encoding="utf-8")
    return path


def rows(spans: Spans) -> list[tuple[str, str, str, int, int]]:
    """Name, category, track and times of each interval."""
    return [
        (spans.names[name], spans.categories[category], spans.tracks[track].name, int(start), int(end))
        for name, category, track, start, end in zip(
            spans.name, spans.category, spans.track, spans.start_ns, spans.end_ns, strict=True
        )
    ]


def x(name: str, ts: object, dur: object, **more: object) -> dict[str, object]:
    return {"ph": "X", "name": name, "cat": "cpu_op", "pid": 1, "tid": 2, "ts": ts, "dur": dur, **more}


# Recorded files.


def test_torch_profiler_traces() -> None:
    base, candidate = (trace(TORCH / f"{arm}.pt.trace.json.gz") for arm in ("baseline", "candidate"))
    assert base.lost == candidate.lost == 0
    assert base.notes == ()
    assert base.clock == "unix"
    assert base.has_native_times
    found = [name for name, category, *_ in rows(base) if category == "user_annotation"]
    assert found.count("decode_step") == 6
    assert sum(category == "cpu_op" for _, category, *_ in rows(base)) == 2556
    items = [sum(name == "aten::item" for name, *_ in rows(spans)) for spans in (base, candidate)]
    assert items == [0, 6 * 4 * 16]
    assert base.tracks[int(base.track[3])].process == "python CPU"
    assert [i.name for i in base.instants] == ["Iteration Start: PyTorch Profiler", "Record Window End"]
    # 2026-11-30, the day of the recording: Kineto's base is added.
    assert 1_795_996_800e9 < base.start_ns[0] < 1_796_083_200e9


def test_times_of_a_recording_are_exact() -> None:
    text = unpacked(TORCH / "baseline.pt.trace.json.gz")
    events = [e for e in json.loads(text, parse_float=str)["traceEvents"] if e["ph"] == "X"]
    base = 1_790_857_026_000_000_000
    expected = sorted(base + int(e["ts"].split(".")[0]) * 1000 + int(e["ts"].split(".")[1]) for e in events)
    assert trace(TORCH / "baseline.pt.trace.json.gz").start_ns.tolist() == expected


def test_native_and_python_intervals_of_one_run() -> None:
    held = trace(DATA / "gil_case" / "held.trace.json.gz")
    assert held.clock == "LINUX_CLOCK_MONOTONIC"
    assert held.has_native_times
    assert sorted(t.name for t in held.tracks) == ["engine", "kv_transfer"]
    inside = {
        category: [(s, e) for name, c, track, s, e in rows(held) if c == category and name.startswith("intranode")]
        for category in ("native", "python_function")
    }
    assert len(inside["native"]) == len(inside["python_function"]) == 160
    for (start, end), (outer_start, outer_end) in zip(inside["native"], inside["python_function"], strict=True):
        assert outer_start <= start <= end <= outer_end


def test_viztracer_stamps_in_python(tmp_path: Path) -> None:
    path = DATA / "viztracer" / "held.json.gz"
    spans = trace(path)
    assert detect(path).name == "chrome_trace"
    assert not spans.has_native_times
    assert set(spans.categories) == {"python_function"}
    assert {t.name for t in spans.tracks} == {"MainThread", "kv_transfer"}
    assert spans.notes == ()
    over = trace(written(tmp_path, [x("a", 1, 1)], viztracer_metadata={"overflow": True}))
    assert "overflowed" in over.notes[0]


@pytest.mark.parametrize("path", sorted(TORCH.glob("*.gz")) + sorted((DATA / "gil_case").glob("*.gz")))
def test_recorded_traces_are_recognised(path: Path) -> None:
    assert detect(path).name == "chrome_trace"


# Kinds of events.


def test_every_kind_of_event(tmp_path: Path) -> None:
    where = {"pid": 1, "tid": 2, "cat": "op"}
    other = {"pid": 1, "tid": 3, "cat": "req"}
    spans = trace(
        written(
            tmp_path,
            [
                {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "engine"}},
                {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "main"}},
                {"ph": "M", "name": "process_labels", "pid": 0, "args": {"labels": "GPU 0"}},
                {"ph": "B", "name": "outer", "ts": 1, **where},
                {"ph": "B", "name": "inner", "ts": 2.5, **where},
                {"ph": "E", "ts": 3, **where},
                {"ph": "b", "name": "request", "id": "0x1", "ts": 2, **other},
                {"ph": "b", "name": "request", "id": "0x2", "ts": 3, **other},
                {"ph": "E", "ts": 9, **where},
                {"ph": "e", "name": "request", "id": "0x1", "ts": 8, **other},
                {"ph": "e", "name": "request", "id": "0x2", "ts": 7, **other},
                {"ph": "X", "name": "k", "cat": "Kernel", "pid": 0, "tid": 7, "ts": 4, "dur": 1.001,
                 "args": {"correlation": 5, "External id": 3, "bytes": 64}},
                {"ph": "i", "name": "mark", "ts": 5, "s": "t", **where},
                {"ph": "C", "name": "queue", "pid": 1, "ts": 1, "args": {"depth": 3, "state": "x"}},
                {"ph": "C", "name": "queue", "pid": 1, "ts": 4, "args": {"depth": 5}},
                {"ph": "N", "name": "object", "id": 1, "pid": 1, "ts": 1},
            ],
        )
    )  # fmt: skip
    assert rows(spans) == [
        ("outer", "op", "main", 1000, 9000),
        ("queue depth", "counter", "queue depth", 1000, 4000),
        ("request", "req", "async req", 2000, 8000),
        ("inner", "op", "main", 2500, 3000),
        ("request", "req", "async req", 3000, 7000),
        ("k", "kernel", "7", 4000, 5001),
        ("queue depth", "counter", "queue depth", 4000, 4000),
    ]
    assert spans.lost == 0
    assert spans.instants == ((5000, "mark", "op", spans.instants[0].track),)
    kernel = spans.names.index("k")
    [at] = np.flatnonzero(spans.name == kernel)
    assert spans.correlation[at] == 5
    assert spans.columns["bytes"][at] == 64
    assert spans.columns["external_id"][at] == 3
    assert np.isnan(spans.columns["bytes"][0])
    assert [v for v in spans.columns["value"].tolist() if v == v] == [3, 5]
    assert {t.name: (t.process, t.kind) for t in spans.tracks}["7"] == ("GPU 0", "device")
    assert {t.name: (t.process, t.kind) for t in spans.tracks}["queue depth"] == ("engine", "counter")


def test_flows_join_intervals_only_where_nothing_else_does(tmp_path: Path) -> None:
    flow = [
        {"ph": "s", "id": 77, "name": "launch", "cat": "flow", "pid": 1, "tid": 2, "ts": 1.5},
        {"ph": "f", "id": 77, "name": "launch", "cat": "flow", "bp": "e", "pid": 1, "tid": 9, "ts": 6},
    ]
    events = [x("outer", 0, 10), x("call", 1, 1), x("work", 6, 2, tid=9), x("other", 20, 1)]
    joined = trace(written(tmp_path, events + flow))
    correlation = dict(zip((joined.names[i] for i in joined.name), joined.correlation.tolist(), strict=True))
    assert correlation["call"] == correlation["work"] >= 0
    assert correlation["outer"] == correlation["other"] == -1
    known = trace(written(tmp_path, [*events, x("kernel", 30, 1, args={"correlation": 4}), *flow]))
    assert sorted(known.correlation.tolist()) == [-1, -1, -1, -1, 4]


def test_intervals_without_an_end_last_to_the_end_and_are_noted(tmp_path: Path) -> None:
    begin = {"ph": "B", "name": "stuck", "pid": 1, "tid": 2, "ts": 5}
    spans = trace(written(tmp_path, [begin, x("last", 6, 94), {"ph": "E", "pid": 1, "tid": 3, "ts": 50}]))
    assert rows(spans)[0][3:] == (5000, 100_000)
    assert spans.lost == 1
    assert "1 interval(s) had no end" in spans.notes[0]


# Numbers.


@pytest.mark.parametrize("ts", ["1796056859390126.618", "5199833390278.499", "8796093022208.001", "17.0005", "0"])
def test_no_nanosecond_is_lost(tmp_path: Path, ts: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(f'[{{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": {ts}, "dur": 0.001}}]', encoding="utf-8")
    [start] = trace(path).start_ns.tolist()
    assert abs(Decimal(ts) * 1000 - start) <= Decimal("0.5")


def test_impossible_numbers_are_lost_one_by_one(tmp_path: Path) -> None:
    bad = [
        x("a", 1, -1), x("a", 1e300, 1), x("a", 1, 1e300), x("a", None, 1), x("a", 1, None), x("a", "soon", 1),
        x("a", float("nan"), 1), x("a", 1, float("inf")), {"ph": "X"}, {"ph": "?"}, {}, [], 5, "text", None,
    ]  # fmt: skip
    spans = trace(written(tmp_path, [x("good", 1, 2), *bad, x("good", "3", "4"), x("good", -5, 1)]))
    assert [(name, start, end) for name, _, _, start, end in rows(spans)] == [
        ("good", -5000, -4000), ("good", 1000, 3000), ("good", 3000, 7000)
    ]  # fmt: skip
    assert len(bad) - 4 <= spans.lost <= len(bad)


def test_odd_arguments_and_ids_cost_only_themselves(tmp_path: Path) -> None:
    events = [
        x("a", 1, 1, args="text"), x("a", 2, 1, args={"correlation": "5", "bytes": [1]}), x("a", 3, 1, tid=[1]),
        x("a", 4, 1, pid=10**30), x("a", 5, 1, args={"correlation": 10**30}), x("a", 6, 1, cat=7),
        x("a", 7, 1, args={"correlation": 9}),
    ]  # fmt: skip
    spans = trace(written(tmp_path, events))
    assert len(spans) == 7
    assert spans.correlation.tolist() == [-1] * 6 + [9]


def test_names_are_printable_and_cut(tmp_path: Path) -> None:
    spans = trace(written(tmp_path, [x("\x1b[31mred\x00\u202e" + "n" * 5000, 1, 1), x("\ud800", 2, 1)]))
    assert spans.names[0].startswith("red  nnn")
    assert len(spans.names[0]) <= 1024


def test_moments_that_are_too_many_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "MAX_INSTANTS", 3)
    mark = {"ph": "i", "name": "m", "pid": 1, "tid": 1}
    spans = trace(written(tmp_path, [{**mark, "ts": n} for n in range(5)]))
    assert (len(spans.instants), spans.lost) == (3, 0)
    assert spans.notes == ("2 moments after the first 3 were not kept",)


def test_ids_made_of_long_texts_are_cut(tmp_path: Path) -> None:
    long = "p" * 100_000
    name = {"ph": "M", "name": "thread_name", "pid": long, "tid": long, "args": {"name": "main"}}
    spans = trace(written(tmp_path, [name, x("a", 1, 1, pid=long, tid=long), x("b", 3, 1, pid=long, tid=long)]))
    assert [(t.name, len(t.process)) for t in spans.tracks] == [("main", 1024)]


# Forms of the file.


def test_arrays_may_stay_open(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    for tail, lost in (("", 0), (",", 0), (",\n", 0), (', {"ph": "X", "na', 1)):
        path.write_text("[\n" + ",\n".join(json.dumps(x("a", n, 1)) for n in range(3)) + tail, encoding="utf-8")
        assert fits(path, path.read_bytes())
        spans = trace(path)
        assert len(spans) == 3
        assert spans.lost == lost
        assert "ends inside" in spans.notes[0]


def test_a_long_head_is_recognised_by_the_name(tmp_path: Path) -> None:
    head = ('{"stackFrames": {' + '"1": {"name": "f"}, ' * 10_000).encode()
    assert fits(tmp_path / "host.pt.trace.json", head)
    assert not fits(tmp_path / "result.json", head)


def test_closed_arrays_and_what_stands_around_them(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('\ufeff {"a": "}]\\"{", "stackFrames": {"1": ["]}"]}, "traceEvents" : [' + json.dumps(x("a", 1, 1))
                    + '], "metadata": {"clock-domain": "BOOT"}, "z": [[1, {}]]}', encoding="utf-8")  # fmt: skip
    spans = trace(path)
    assert (len(spans), spans.lost, spans.notes, spans.clock) == (1, 0, (), "BOOT")
    assert len(trace(written(tmp_path, []))) == 0


def test_boundaries_inside_strings_and_arguments_are_no_boundaries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_array, "CHUNK_BYTES", 37)
    tricky = {"list": [{"a": 1}, {"b": "}, {"}, {"c": '\\"}, {'}], "text": "]}]}, {\\"}
    events = [x(f"n{n} }}, {{", n, 0.5, args=tricky) for n in range(40)]
    spans = trace(written(tmp_path, events, head=tricky))
    assert [name for name, *_ in rows(spans)] == [e["name"] for e in events]
    assert spans.lost == 0


def test_any_chunk_size_gives_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = rows(trace(TORCH / "baseline.pt.trace.json.gz"))
    for size in (1000, 4096, 50_001):
        monkeypatch.setattr(json_array, "CHUNK_BYTES", size)
        assert rows(trace(TORCH / "baseline.pt.trace.json.gz")) == whole


def test_a_cut_gzip_gives_what_is_there(tmp_path: Path) -> None:
    data = (TORCH / "baseline.pt.trace.json.gz").read_bytes()
    path = tmp_path / "cut.json.gz"
    path.write_bytes(data[: len(data) // 2])
    spans = trace(path)
    assert 500 < len(spans) < 2500
    assert "cut off" in spans.notes[0]


@pytest.mark.parametrize(
    "text",
    ["", "  ", "5", "{}", '{"traceEvents": 5}', '{"traceEvents": {}}', "[", "[1, 2]", '{"traceEvents": [',
     "[" * 200_000, '{"a":' * 100_000, '{"traceEvents": ["', '{"traceEvents": [{"ph": "X"', "\x1f\x8b",
     "\x1f\x8b\x08junk", "nonsense"],
)  # fmt: skip
def test_what_is_no_trace_is_unreadable(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(Unreadable):
        read(path, "trace", "screen", "baseline")


def test_deep_nesting_costs_one_event(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    deep = json.dumps(x("deep", 1, 1))[:-1] + ', "args": ' + "[" * 50_000 + "]" * 50_000 + "}"
    path.write_text(f"[{json.dumps(x('a', 1, 1))}, {deep}, {json.dumps(x('b', 2, 1))}]", encoding="utf-8")
    spans = trace(path)
    assert [name for name, *_ in rows(spans)] == ["a", "b"]
    assert spans.lost == 1


def test_an_element_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_array, "MAX_ELEMENT_BYTES", 1 << 20)
    path = tmp_path / "t.json"
    path.write_text('[{"ph": "X", "name": "' + "a" * (5 << 20), encoding="utf-8")
    with pytest.raises(Unreadable, match="longer than 1 MiB"):
        read(path, "trace", "screen", "baseline")


def test_damaged_recordings(tmp_path: Path) -> None:
    data = unpacked(DATA / "gil_case" / "held.trace.json.gz")[:20_000]
    assert fuzz(read, data, tmp_path / "t.json", json=True) > 100
    fuzz(read, (DATA / "gil_case" / "held.trace.json.gz").read_bytes(), tmp_path / "t.json.gz", n=40)
    small = unpacked(TORCH / "baseline.pt.trace.json.gz")
    fuzz(read, small[:6000] + small[-600:], tmp_path / "t.json", json=True)


def test_memory_stays_with_the_columns(tmp_path: Path) -> None:
    """A trace of 30 MB, of which 24 events are told apart, is read in a fraction of its size."""
    path = tmp_path / "big.json.gz"
    padding = "p" * 400
    with gzip.open(path, "wt", compresslevel=1) as file:
        file.write("[")
        for n in range(60_000):
            file.write(json.dumps(x(f"op{n % 24}", n, 1, args={"note": padding})) + ",\n")
    tracemalloc.start()
    spans = trace(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(spans) == 60_000
    assert peak < 60_000 * 52 * 2 + (14 << 20)


def test_survives_is_strict(tmp_path: Path) -> None:
    assert survives(read, tmp_path / "missing.json") is None
