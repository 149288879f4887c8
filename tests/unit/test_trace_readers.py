"""Traces that are no Chrome traces: Nsight Systems exports, OpenTelemetry spans, Perfetto's protobuf."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hostile import fuzz, sound_spans, survives

from feedback.readers import Unreadable, chrome, nsight, otlp, perfetto
from feedback.readers.formats import Read, detect
from feedback.spans import Spans

DATA = Path(__file__).resolve().parents[1] / "data"
NSIGHT, OTLP, PERFETTO = (
    DATA / "nsight" / "decode.sqlite",
    DATA / "otlp" / "spans.otlp.jsonl",
    DATA / "perfetto" / "held.pftrace",
)


def one(read: Read, path: Path) -> Spans:
    [spans] = read(path, "trace", "screen", "baseline")
    assert isinstance(spans, Spans)
    sound_spans(spans)
    return spans


def rows(spans: Spans) -> list[tuple[int, int, str, str]]:
    """Times, name and track of each interval that is no counter's."""
    return [
        (int(start), int(end), spans.names[name], spans.tracks[track].name)
        for start, end, name, track in zip(spans.start_ns, spans.end_ns, spans.name, spans.track, strict=True)
        if spans.tracks[track].kind != "counter"
    ]


@pytest.mark.parametrize(("path", "name"), [(NSIGHT, "nsight"), (OTLP, "otlp"), (PERFETTO, "perfetto")])
def test_files_are_recognised_by_their_content(path: Path, name: str, tmp_path: Path) -> None:
    assert detect(path).name == name
    nameless = tmp_path / "artefact"
    nameless.write_bytes(path.read_bytes())
    assert detect(nameless).name == name


# Nsight Systems.


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A copy of the export to change; at `tmp_path / "x.sqlite"`."""
    (tmp_path / "x.sqlite").write_bytes(NSIGHT.read_bytes())
    with closing(sqlite3.connect(tmp_path / "x.sqlite")) as connection:
        yield connection


def changed(database: sqlite3.Connection, tmp_path: Path, *statements: str) -> Spans:
    for statement in statements:
        database.execute(statement)
    database.commit()
    return one(nsight.read, tmp_path / "x.sqlite")


def test_an_export_of_nsight_systems() -> None:
    spans = one(nsight.read, NSIGHT)
    assert {c: int((spans.category == n).sum()) for n, c in enumerate(spans.categories)} == {
        "kernel": 10, "gpu_memcpy": 10, "cuda_runtime": 30, "lock": 10, "user_annotation": 10,
    }  # fmt: skip
    assert spans.clock == "unix"
    assert spans.start_ns[0] == 1796056800000000000 + 1_000_000 - 5_000
    assert {(t.process, t.name, t.kind) for t in spans.tracks} == {
        ("engine GPU 0", "stream 7", "device"), ("engine", "python", "thread"), ("engine", "kv_transfer", "thread"),
    }  # fmt: skip
    assert "cudaLaunchKernel" in spans.names
    assert "Memcpy DtoH" in spans.names
    assert np.nansum(spans.columns["bytes"]) == 40_960


def test_launches_are_joined_with_their_kernels_and_locks_with_nothing() -> None:
    spans = one(nsight.read, NSIGHT)
    by_id: dict[int, set[str]] = {}
    for category, correlation in zip(spans.category, spans.correlation.tolist(), strict=True):
        if correlation >= 0:
            by_id.setdefault(correlation, set()).add(spans.categories[category])
    assert sorted(map(sorted, by_id.values())).count(["cuda_runtime", "kernel"]) == 10
    assert not any("lock" in joined for joined in by_id.values())


def test_what_was_not_recorded_and_what_the_profiler_said_is_noted() -> None:
    notes = one(nsight.read, NSIGHT).notes
    assert "no memory sets were recorded (no table CUPTI_ACTIVITY_KIND_MEMSET)" in notes
    assert "Nsight Systems said: Not all NVTX events might have been collected." in notes
    assert not any("started" in note for note in notes)


def test_missing_tables_columns_and_suffixes(database: sqlite3.Connection, tmp_path: Path) -> None:
    spans = changed(
        database, tmp_path, "DROP TABLE StringIds", "DROP TABLE OSRT_API", "DROP TABLE PROCESSES",
        "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME TO CUPTI_ACTIVITY_KIND_KERNEL_V2",
        "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL_V2 DROP COLUMN demangledName",
    )  # fmt: skip
    assert len(spans) == 60
    assert "kernel 21" in spans.names
    assert "no operating-system calls were recorded (no table OSRT_API)" in spans.notes
    assert {t.process for t in spans.tracks} == {"4242", "4242 GPU 0"}


def test_wrong_values_are_lost_or_bounded(database: sqlite3.Connection, tmp_path: Path) -> None:
    spans = changed(
        database, tmp_path,
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 9e99 WHERE rowid = 1",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = 'soon' WHERE rowid = 2",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = x'00ff' WHERE rowid = 3",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET correlationId = NULL, globalPid = -5 WHERE rowid = 4",
        "UPDATE StringIds SET value = x'1b5b33316dff' WHERE id = 40",
        "UPDATE NVTX_EVENTS SET end = NULL WHERE rowid = 1",
    )  # fmt: skip
    assert spans.lost == 4
    assert "1 NVTX range(s) had no end" in spans.notes


def test_views_and_virtual_tables_are_not_run(database: sqlite3.Connection, tmp_path: Path) -> None:
    spans = changed(
        database, tmp_path, "DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL",
        "CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS WITH RECURSIVE n(start) AS "
        "(SELECT 1 UNION ALL SELECT start + 1 FROM n) SELECT * FROM n",
    )  # fmt: skip
    assert "kernel" not in spans.categories
    assert any("no kernels were recorded" in note for note in spans.notes)


def test_a_query_without_end_is_given_up(
    database: sqlite3.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nsight, "MAX_STEPS", 1)
    monkeypatch.setattr(nsight, "STEP", 100)
    with pytest.raises(Unreadable, match="interrupted"):
        changed(database, tmp_path)


def test_other_databases_and_no_databases_are_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE t (x)")
    with pytest.raises(Unreadable, match="without the tables"):
        nsight.read(path, "trace", "screen", "baseline")
    path.write_bytes(b"SQLite format 3\x00" + b"\xff" * 4096)
    with pytest.raises(Unreadable, match="not a readable SQLite database"):
        nsight.read(path, "trace", "screen", "baseline")
    with pytest.raises(FileNotFoundError):
        nsight.read(tmp_path / "missing?mode=rwc", "trace", "screen", "baseline")


def test_damaged_databases(tmp_path: Path) -> None:
    fuzz(nsight.read, NSIGHT.read_bytes(), tmp_path / "x.sqlite", n=150)
    assert [p.name for p in tmp_path.iterdir()] == ["x.sqlite"]


# OpenTelemetry.


def test_spans_of_opentelemetry() -> None:
    spans = one(otlp.read, OTLP)
    assert sorted(spans.names[n] for n in spans.name) == ["decode"] * 36 + ["llm_request"] * 12 + ["prefill"] * 12
    assert spans.clock == "unix"
    assert not spans.has_native_times
    requests = [row for row in rows(spans) if row[2] == "llm_request"]
    assert {track for *_, track in requests} == {"MainThread"}
    assert {(t.process, t.pid) for t in spans.tracks} == {("engine", 4242)}
    slowest = max(requests, key=lambda row: row[1] - row[0])
    assert requests.index(slowest) == 7  # the request that was made slow


def test_lines_and_one_document_are_the_same(tmp_path: Path) -> None:
    expected = rows(one(otlp.read, OTLP))
    documents = [json.loads(line) for line in OTLP.read_text().splitlines()]
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"resourceSpans": [r for d in documents for r in d["resourceSpans"]]}, indent=2))
    assert sorted(rows(one(otlp.read, path))) == sorted(expected)
    path.write_text("\n\n".join(json.dumps(d, indent=1) for d in documents) + "\n\n")
    assert sorted(rows(one(otlp.read, path))) == sorted(expected)


def test_a_cut_last_line_is_lost_and_a_broken_one_is_located(tmp_path: Path) -> None:
    lines = OTLP.read_bytes().splitlines()
    path = tmp_path / "x.jsonl"
    path.write_bytes(lines[0] + b"\n" + lines[1][:300])
    spans = one(otlp.read, path)
    assert spans.lost == 1
    assert "the last document is cut off" in spans.notes
    path.write_bytes(lines[0] + b'\n{"resourceSpans": 5}\n' + lines[1])
    with pytest.raises(Unreadable, match="line 2"):
        otlp.read(path, "trace", "screen", "baseline")


@pytest.mark.parametrize("times", [("5", "4"), (5, -1), ("x", "9"), (0, 9), ("9" * 30, "9" * 30), (10**30, 10**31)])
def test_impossible_times_are_lost(tmp_path: Path, times: tuple[object, object]) -> None:
    span = {"name": "s", "startTimeUnixNano": times[0], "endTimeUnixNano": times[1]}
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}))
    found = survives(otlp.read, path)
    assert found is None or (isinstance(found[0], Spans) and (len(found[0]), found[0].lost) == (0, 1))


def test_metrics_in_the_same_file_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(OTLP.read_bytes() + b'{"resourceMetrics": []}\n{"resourceLogs": []}\n')
    assert len(one(otlp.read, path)) == 60


def test_too_long_a_document_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "MAX_DOCUMENT_BYTES", 1000)
    with pytest.raises(Unreadable, match="line 1"):
        otlp.read(OTLP, "trace", "screen", "baseline")


@pytest.mark.parametrize("content", [b"", b"\n\n", b"{", b"[" * 100_000, b'{"resourceSpans": [', b"\x1f\x8b"])
def test_what_is_no_export_is_unreadable(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(Unreadable):
        otlp.read(path, "trace", "screen", "baseline")


def test_damaged_exports(tmp_path: Path) -> None:
    assert fuzz(otlp.read, OTLP.read_bytes(), tmp_path / "x.jsonl", json=True) > 20


# Perfetto.


def test_a_perfetto_trace_says_what_the_chrome_trace_says() -> None:
    spans = one(perfetto.read, PERFETTO)
    source = rows(one(chrome.read, DATA / "gil_case" / "held.trace.json.gz"))
    first = min(start for start, *_ in source)
    assert sorted(rows(spans)) == sorted(row for row in source if row[1] < first + 150_000_000)
    assert {t.process for t in spans.tracks if t.kind == "thread"} == {"prefill"}
    assert set(spans.categories) == {"native", "python_function", "counter"}
    assert [v for v in spans.columns["value"].tolist() if v == v] == [0, 1, 2, 3, 4]
    assert spans.clock == "boottime"
    assert (spans.lost, spans.notes) == (0, ())


def field(number: int, value: int | bytes) -> bytes:
    """One field in the wire format."""

    def varint(n: int) -> bytes:
        out = b""
        while n > 127:
            out, n = out + bytes([n & 127 | 128]), n >> 7
        return out + bytes([n])

    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def event(at: int, kind: int, name: str = "", track: int = 9, **packet: int) -> bytes:
    body = field(9, kind) + field(11, track) + (field(23, name.encode()) if name else b"")
    flags = b"".join(field(int(key[1:]), value) for key, value in packet.items())
    return field(1, field(8, at) + field(10, 1) + flags + field(11, body))


def test_slices_nest_instants_stand_and_other_sources_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "x.pftrace"
    other = field(1, field(8, 5) + field(10, 1) + field(5, b"ftrace"))
    path.write_bytes(
        event(10, 1, "outer") + event(12, 1, "inner") + event(15, 2) + event(16, 3, "mark") + other + event(20, 2)
        + event(30, 1, "open") + event(31, 2, track=5) + event(40, 3, "last", f42=1)
    )  # fmt: skip
    spans = one(perfetto.read, path)
    assert [(s, e, name) for s, e, name, _ in rows(spans)] == [(10, 20, "outer"), (12, 15, "inner"), (30, 40, "open")]
    assert [i.name for i in spans.instants] == ["mark", "last"]
    assert spans.lost == 2  # an end without a beginning, and packets that were dropped
    assert [note.split(" ")[0] for note in spans.notes] == ["1", "packets", "1"]


def test_compressed_packets(tmp_path: Path) -> None:
    path = tmp_path / "x.pftrace"
    path.write_bytes(field(1, field(50, zlib.compress(event(10, 1, "a") + event(20, 2)))))
    assert rows(one(perfetto.read, path))[0][:3] == (10, 20, "a")
    bomb = field(1, field(50, zlib.compress(b"\x00" * (80 << 20), 9)))
    path.write_bytes(event(10, 1, "a") + event(20, 2) + bomb)
    assert one(perfetto.read, path).lost == 1


@pytest.mark.parametrize(
    "content", [b"", b"\x0a", b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", b"\x0a\xff\xff\xff\x7f", b"text"]
)
def test_what_is_no_perfetto_trace_is_unreadable(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.pftrace"
    path.write_bytes(content)
    with pytest.raises(Unreadable):
        perfetto.read(path, "trace", "screen", "baseline")


def test_text_that_begins_with_a_blank_line_is_no_perfetto_trace(tmp_path: Path) -> None:
    for head in (b"\nstarting the server\nready\n", b"\n\n\n", b"\n"):
        assert not perfetto.fits(tmp_path / "server.log", head)


def test_damaged_perfetto_traces(tmp_path: Path) -> None:
    assert fuzz(perfetto.read, PERFETTO.read_bytes(), tmp_path / "x.pftrace") > 60
