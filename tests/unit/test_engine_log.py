"""The engine log reader: recorded logs of real runs, and what a hostile log must not do."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from feedback.observations import RuntimeEvent
from feedback.readers.engine_log import classify, read
from feedback.readers.patterns import MAX_LINE_BYTES, clean

DATA = Path(__file__).resolve().parents[1] / "data" / "llamacpp"


def events(path: Path) -> dict[str, RuntimeEvent]:
    return {event.name: event for event in read(path, "events", "screen", "candidate")}


def test_ordinary_run_says_how_the_engine_is_set_up() -> None:
    found = events(DATA / "server.log")
    assert found["model_loaded"].count == 1
    assert found["warmup"].count == 1
    assert "n_threads = 2 (n_threads_batch = 2)" in found["threads"].message
    assert "n_slots = 2" in found["slots"].message
    assert "K (f16)" in found["kv_cache"].message
    assert "Flash Attention enabled" in found["flash_attention"].message
    assert "load_mode = mmap" in found["weights_loading"].message
    assert found["request_finished"].count == 8
    assert found["prefix_cold"].count + found["prefix_reused"].count == 8
    assert {event.level for event in found.values()} == {"note"}


def test_exceeded_context_is_an_error_and_counted() -> None:
    found = events(DATA / "context_exceeded.log")
    assert found["context_exceeded"].level == "error"
    assert found["context_exceeded"].count > 1
    assert found["kv_cache_full"].level == "warning"
    assert found["kv_cache_full"].count > 10


@pytest.mark.parametrize(
    ("log", "name", "words"),
    [
        ("refused_cache_type.log", "unsupported_cache_type", "quantized V cache requires flash_attn"),
        ("refused_memory.log", "allocation_failed", "insufficient memory"),
        ("refused_batch.log", "start_refused", "failed to add token"),
    ],
)
def test_refused_settings_are_errors_with_the_engines_reason(log: str, name: str, words: str) -> None:
    event = events(DATA / log)[name]
    assert event.level == "error"
    assert words in event.message


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("0.10.1 W slot  update: id 0 | task 3 | slot context shift, n_keep = 0, n_left = 255", "context_shift"),
        ("0.10.1 W slot  update: id 0 | task 3 | input truncated, n_ctx = 256", "input_truncated"),
        ("0.10.1 I slot release: id 0 | task 3 | stop processing: n_tokens = 9, truncated = 1", "input_truncated"),
        ("0.10.1 I slot release: id 0 | task 3 | stop processing: n_tokens = 9, truncated = 0", "request_finished"),
        ("0.10.1 D srv  process: no slot is available, defer task, id_task = 4", "request_deferred"),
        ("0.10.1 E srv  send_error: task id = 2, error: something new", "engine_error"),
        ("0.10.1 W srv  something: never seen", "engine_warning"),
        ("warning: failed to mlock 4096-byte buffer", "memory_lock_failed"),
        ("/src/ggml.c:12: GGML_ASSERT(n > 0) failed", "assertion_failed"),
    ],
)
def test_line_is_recognised(line: str, name: str) -> None:
    found = classify(line)
    assert found is not None
    assert found[0].name == name


@pytest.mark.parametrize(
    "line",
    [
        "",
        "0.10.1 I slot print_timing: id 0 | task 3 | prompt eval time = 83.82 ms / 36 tokens",
        "0.00.002.2 W srv init: security: no API key is set and CORS allows all origins",
        "0.10.1 I something: an E in the middle",
    ],
)
def test_line_of_no_interest_is_no_event(line: str) -> None:
    assert classify(line) is None


def test_repeated_lines_are_counted_and_the_first_one_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("".join(f"0.1 E srv x: failure {i}\n" for i in range(1000)), encoding="utf-8")
    event = events(path)["engine_error"]
    assert event.count == 1000
    assert event.message.endswith("failure 0")


def test_terminal_escapes_and_control_characters_are_taken_out(tmp_path: Path) -> None:
    assert clean("\x1b[31mred\x1b[0m \x1b]0;title\x07and\x00so\u202eon\r") == "red and so on "
    path = tmp_path / "server.log"
    path.write_bytes(b"\x1b[1m0.1\x1b[0m \x1b[31mE srv x:\x1b[2J broken\x07\x1b]8;;http://evil\x1b\\\n")
    message = events(path)["engine_error"].message
    assert message == "the engine said: srv x: broken"


def test_long_lines_are_cut_without_being_kept(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    long = b"0.1 E srv x: " + b"y" * (40 * MAX_LINE_BYTES)
    path.write_bytes(long + b"\n" + b"0.1 E srv x: after\n" + long)
    tracemalloc.start()
    found = events(path)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found["engine_error"].count == 3
    assert len(found["engine_error"].message) < 300
    assert peak_bytes < 10 * MAX_LINE_BYTES + (1 << 20)


def test_line_that_ends_exactly_at_the_cut_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    start = b"0.1 E srv x: "
    path.write_bytes(start + b"y" * (MAX_LINE_BYTES - len(start) - 1) + b"\n" + b"0.1 E srv x: next\n")
    assert events(path)["engine_error"].count == 2


def test_binary_rubbish_is_readable(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(bytes(range(256)) * 100)
    assert isinstance(read(path, "events", "screen", "candidate"), list)
