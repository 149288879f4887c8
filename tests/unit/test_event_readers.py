"""Readers of runtime events: garbage collections, warnings, compilers, cgroups, our own; and which file is which."""

from __future__ import annotations

import contextlib
import json
import random
import tracemalloc
from pathlib import Path

import pytest

from feedback.observations import RuntimeEvent
from feedback.readers import Unreadable, cgroup, events, formats, gc, jit, warnings

DATA = Path(__file__).resolve().parents[1] / "data"

RECORDED = {
    "engine_logs/llamacpp_healthy.log": "engine_log",
    "engine_logs/llamacpp_starved.log": "engine_log",
    "engine_logs/vllm_starved.log": "engine_log",
    "engine_logs/sglang_ceiling_32.log": "engine_log",
    "llamacpp/server.log": "engine_log",
    "llamacpp/scrapes.json": "prometheus",
    "metrics/vllm_starved.prom": "prometheus",
    "metrics/llamacpp_healthy.prom": "prometheus",
    "gc/heavy.jsonl": "gc",
    "gc/debug_stats.txt": "gc",
    "warnings/warnings.txt": "warnings",
    "jit/torch_recompiles.txt": "jit",
    "jit/triton_autotuning.txt": "jit",
    "cgroup/throttled_v1.txt": "cgroup",
    "cgroup/throttled_v2.txt": "cgroup",
    "cgroup/cpu.stat": "cgroup",
    "cgroup/memory.events": "cgroup",
    "cgroup/cpu.pressure": "cgroup",
}


def by_name(found: list[RuntimeEvent]) -> dict[str, RuntimeEvent]:
    return {event.name: event for event in found}


@pytest.mark.parametrize(("file", "name"), RECORDED.items())
def test_file_is_recognised_and_read(file: str, name: str) -> None:
    format = formats.detect(DATA / file)
    assert format.name == name
    found = format.read(DATA / file, "server", "confirm", "baseline")
    assert found
    for event in found:
        assert isinstance(event, RuntimeEvent)
        assert (event.probe, event.stage, event.arm) == ("server", "confirm", "baseline")
        assert event.place is not None
        assert event.place.file == Path(file).name


@pytest.mark.parametrize("text", ["hello\n", "{}\n", "a,b\n1,2\n", "", "[]", "INFO all is well\n"])
def test_other_text_is_none_of_these(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(Unreadable, match="no known format"):
        formats.detect(path)


# Garbage collections.


def test_collections_of_a_callback_are_summed_by_generation_and_the_longest_kept() -> None:
    found = gc.read(DATA / "gc" / "heavy.jsonl", "server", "screen", "candidate")
    named = by_name(found)
    assert sum(e.count for e in found if e.name.startswith("gc_generation_")) == 160
    assert named["gc_generation_2"].duration_s == pytest.approx(2.449, abs=0.001)
    pauses = [e.duration_s or 0 for e in found if e.name == "gc_pause"]
    assert len(pauses) == gc.LONGEST
    assert pauses == sorted(pauses, reverse=True)
    assert pauses[0] > 0.1
    assert (named["gc_window"].duration_s or 0) > 1


def test_debug_statistics_are_collections_without_a_clock() -> None:
    named = by_name(gc.read(DATA / "gc" / "debug_stats.txt", "server", "screen", "candidate"))
    assert named["gc_generation_0"].count > 100
    assert named["gc_pause"].at_s is None
    assert "gc_window" not in named


@pytest.mark.parametrize("line", ['{"type": "gc"', '{"type": "gc", "generation": -1, "duration_s": 1}',
                                  '{"type": "gc", "generation": 1, "duration_s": NaN}',
                                  '{"type": "gc", "generation": 1, "duration_s": -1}', "{" * 5000])  # fmt: skip
def test_broken_collection_is_located(tmp_path: Path, line: str) -> None:
    path = tmp_path / "gc.jsonl"
    path.write_text('{"type": "gc", "generation": 0, "duration_s": 0}\n' + line + "\n", encoding="utf-8")
    with pytest.raises(Unreadable, match="line 2"):
        gc.read(path, "server", "screen", "candidate")


# Warnings.


def test_warnings_are_counted_by_place() -> None:
    found = warnings.read(DATA / "warnings" / "warnings.txt", "server", "screen", "candidate")
    assert [(e.name, e.count, e.level) for e in found] == [
        ("DeprecationWarning", 3, "note"), ("RuntimeWarning", 1, "warning"), ("RuntimeWarning", 1, "warning"),
        ("RuntimeWarning", 1, "warning"), ("ResourceWarning", 1, "warning"),
    ]  # fmt: skip
    assert found[1].message == "warn_demo.py:4: divide by zero encountered in scalar divide"
    assert found[1].place is not None
    assert found[1].place.line == 7


def test_warnings_of_a_thousand_places_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "stderr.txt"
    path.write_text("".join(f"m.py:{i}: UserWarning: \x1b[31mx\n" for i in range(1000)), encoding="utf-8")
    found = warnings.read(path, "server", "screen", "candidate")
    assert len(found) == warnings.MAX_KINDS + 1
    assert sum(e.count for e in found) == 1000
    assert all(e.message.isprintable() for e in found)


# Compilers.


def test_recompilations_of_torch_are_told_by_function_with_a_reason() -> None:
    found = jit.read(DATA / "jit" / "torch_recompiles.txt", "server", "screen", "candidate")
    named = by_name(found)
    assert named["recompilation"].count == 8
    assert named["recompilation"].message.endswith("Recompiling function decode_step in recompile.py:3")
    assert named["recompile_limit"].level == "warning"
    assert "expected 1, actual 2" in named["recompile_reason"].message
    assert {e.level for e in found} == {"warning", "note"}


def test_autotuning_of_triton_is_counted_with_its_seconds() -> None:
    named = by_name(jit.read(DATA / "jit" / "triton_autotuning.txt", "server", "screen", "candidate"))
    assert named["autotuning"].count == 1
    assert named["autotuning_s"].count == pytest.approx(3.35 + 0.521)


# Control groups.


def test_two_readings_of_a_version_1_group_are_differenced() -> None:
    named = by_name(cgroup.read(DATA / "cgroup" / "throttled_v1.txt", "server", "screen", "candidate"))
    assert named["cpu_periods"].count == 74
    assert named["cpu_throttled_periods"].count == 74
    assert named["cpu_throttled_s"].count == pytest.approx(5.196, abs=0.001)
    assert named["oom_kills"].count == 1
    assert named["page_faults"].count == 27373
    assert named["cpu_pressure_some_s"].count == pytest.approx(7.356, abs=0.001)
    assert named["cpu_pressure_share"].count == pytest.approx(0.9686)
    assert named["oom_kills"].place is not None
    assert named["oom_kills"].place.query == "memory.oom_control oom_kill"


def test_version_2_files_are_read_under_their_own_names() -> None:
    assert by_name(cgroup.read(DATA / "cgroup" / "cpu.stat", "s", "screen", "candidate"))["cpu_usage_s"].count > 1000
    named = by_name(cgroup.read(DATA / "cgroup" / "throttled_v2.txt", "s", "screen", "candidate"))
    assert named["cpu_throttled_s"].count == pytest.approx(0.041)
    assert named["major_page_faults"].count == 12
    hits = by_name(cgroup.read(DATA / "cgroup" / "memory.events", "s", "screen", "candidate"))
    assert (hits["memory_limit_hits"].count, hits["oom_kills"].count) == (412, 0)


def test_renamed_file_is_known_by_its_keys(tmp_path: Path) -> None:
    path = tmp_path / "cpu_before.txt"
    path.write_bytes((DATA / "cgroup" / "cpu.stat").read_bytes())
    assert "cpu_usage_s" in by_name(cgroup.read(path, "s", "screen", "candidate"))


@pytest.mark.parametrize("value", ["many", "-1", "nan", "1e999", ""])
def test_counter_without_a_number_is_located(tmp_path: Path, value: str) -> None:
    path = tmp_path / "cpu.stat"
    path.write_text(f"usage_usec 5\nnr_throttled {value}x\n" if value else "usage_usec x\n", encoding="utf-8")
    with pytest.raises(Unreadable, match=r"cpu\.stat, line"):
        cgroup.read(path, "s", "screen", "candidate")


# Our own.


def test_own_events_are_taken_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    line = {"type": "event", "name": "shared_prefix_tokens", "count": 240, "at_s": 1.5, "source": "client"}
    path.write_text(json.dumps(line) + "\n\n", encoding="utf-8")
    (event,) = events.read(path, "load", "screen", "candidate")
    assert formats.detect(path).name == "events"
    assert (event.source, event.name, event.count, event.at_s) == ("events", "shared_prefix_tokens", 240, 1.5)


@pytest.mark.parametrize(
    "line",
    [
        '{"type": "event"}',
        '{"type": "event", "name": ""}',
        "{",
        '{"type": "event", "name": 1}',
        '{"type": "event", "name": "a", "count": Infinity}',
    ],
)
def test_broken_own_event_is_located(tmp_path: Path, line: str) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"type": "event", "name": "a"}\n' + line + "\n", encoding="utf-8")
    with pytest.raises(Unreadable, match=r"events\.jsonl, line 2"):
        events.read(path, "load", "screen", "candidate")


# What a hostile file must not do.


@pytest.mark.parametrize("file", RECORDED)
def test_truncated_and_mutated_files_are_read_or_refused(tmp_path: Path, file: str) -> None:
    original = (DATA / file).read_bytes()[:20_000]
    format = formats.detect(DATA / file)
    dice = random.Random(file)
    pieces = [
        b"\x00",
        b"\xff\xfe",
        b"-1",
        b"NaN",
        b"1e999",
        b"\n",
        b'"',
        b"{",
        b"\x1b[2J",
        b"9" * 400,
        b"",
        b": ",
        b"=",
    ]
    for turn in range(60):
        data = bytearray(original)
        if turn < 20:
            del data[dice.randrange(len(data)) :]
        for _ in range(dice.randrange(1, 12) if turn >= 10 else 0):
            at = dice.randrange(len(data) or 1)
            data[at : at + dice.randrange(6)] = dice.choice(pieces)
        path = tmp_path / Path(file).name
        path.write_bytes(bytes(data))
        with contextlib.suppress(Unreadable):
            found = format.read(path, "server", "screen", "candidate")
            assert all(e.message.isprintable() for e in found if isinstance(e, RuntimeEvent))


@pytest.mark.parametrize("name", ["engine_log", "gc", "jit", "warnings", "cgroup", "events"])
def test_endless_line_is_not_kept(tmp_path: Path, name: str) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * (24 << 20))
    format = formats.named(name)
    assert format is not None
    tracemalloc.start()
    with contextlib.suppress(Unreadable):
        format.read(path, "server", "screen", "candidate")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 << 20
