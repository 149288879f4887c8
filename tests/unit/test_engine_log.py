"""The engine log reader: recorded logs of real runs, and what a hostile log must not do."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise
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


# vLLM and SGLang.

LOGS = DATA.parent / "engine_logs"


def series(path: Path, name: str) -> list[float]:
    return [event.count for event in read(path, "events", "screen", "candidate") if event.name == name]


def test_vllm_log_gives_gauges_over_time_and_settings() -> None:
    path = LOGS / "vllm_starved.log"
    found = events(path)
    assert series(path, "running_requests") == [9, 0, 0]
    assert series(path, "waiting_requests") == [3, 0, 0]
    assert series(path, "kv_cache_usage") == [1.0, 0, 0]
    assert series(path, "prefix_cache_hit_rate")[0] == pytest.approx(0.796)
    assert found["setting_max_running"].message == "max_num_seqs = 12"
    assert found["setting_block_size"].message == "block_size = 32"
    assert found["setting_graph_mode"].message == "cudagraph_mode = NONE"


def test_event_says_the_line_and_the_time_since_the_first_stamp() -> None:
    found = events(LOGS / "llamacpp_starved.log")
    place = found["context_exceeded"].place
    assert place is not None
    line = (LOGS / "llamacpp_starved.log").read_text(encoding="utf-8").splitlines()[(place.line or 0) - 1]
    assert "Context size has been exceeded" in line
    assert found["context_exceeded"].at_s == pytest.approx(6.62, abs=0.1)
    assert events(LOGS / "vllm_overload.log")["running_requests"].at_s == 150.0


def test_sglang_log_gives_retractions_graphs_and_totals() -> None:
    path = LOGS / "sglang_ceiling_32.log"
    found = events(path)
    assert found["preemptions"].count == 9
    assert found["preemptions"].level == "warning"
    assert found["setting_max_running"].message == "max_running_requests = 4096"
    assert found["setting_capture_max"].message == "cuda_graph_max_bs = 32"
    assert series(path, "graph_used").count(0.0) == 18
    assert found["prompt_tokens"].count == 6 + 24 * 812
    assert found["cached_prompt_tokens"].count == 23 * 404


def test_compilation_before_the_first_request_is_warm_up() -> None:
    found = events(LOGS / "vllm_recompiles.log")
    assert found["recompilation_warmup"].level == "note"
    assert found["graph_capture_warmup"].count == 1
    assert found["recompilation"].count == 2
    assert "_topk_kernel" in found["recompilation"].message
    assert "recompilation" not in events(LOGS / "vllm_grid_100.log")


def test_recorded_compilation_of_a_minute_is_warm_up() -> None:
    found = events(LOGS / "vllm_compiled.log")
    assert found["recompilation_warmup"].count == 1
    assert found["step_slow_warmup"].level == "note"
    assert "step_slow" not in found
    assert {e.name for e in found.values() if e.level != "note"} == {"engine_warning"}


def test_requests_of_the_engines_own_warm_up_are_not_serving(tmp_path: Path) -> None:
    path = tmp_path / "sglang.log"
    stamp = "[2026-11-30 10:00:00 TP0]"
    compiled = f"{stamp} Recompiling function forward in model.py:3\n"
    ready = f"{stamp} The server is fired up and ready to roll!\n"
    path.write_text(f"{stamp} Prefill batch, #new-seq: 1\n{compiled}{ready}{compiled}", encoding="utf-8")
    assert {e.name: e.count for e in events(path).values()} == {"recompilation_warmup": 2}
    path.write_text(f"{ready}{stamp} Prefill batch, #new-seq: 1\n{compiled}", encoding="utf-8")
    assert events(path)["recompilation"].count == 1


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("(EngineCore pid=2) WARNING 11-30 10:00:00 [vllm.py:1] Truncating max_cudagraph_capture_size to 4",
         "setting_overridden"),
        ("WARNING 11-30 10:00:00 [vllm.py:1] Async scheduling will be disabled because", "setting_disabled"),
        ("WARNING 11-30 10:00:00 [arg_utils.py:1] --device-ids has no effect when using Ray", "setting_ignored"),
        ("WARNING 10-11 06:51:31 scheduler.py:1493] Sequence group c-1 is preempted by PreemptionMode.RECOMPUTE mode",
         "preemptions"),
        ("(EngineCore pid=2) ERROR 11-30 10:00:00 [core.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried",
         "device_oom"),
        ("(EngineCore pid=2) ERROR 11-30 10:00:00 [core.py:1] EngineCore encountered a fatal error.", "engine_died"),
        ("(EngineCore pid=2) ERROR 11-30 10:00:00 [core.py:1] something never seen", "engine_error"),
        ("(APIServer pid=1) WARNING 11-30 10:00:00 [x.py:1] something never seen", "engine_warning"),
        ("ValueError: To serve at least one request, 4.00 GiB KV cache is needed, which is larger than the available "
         "KV cache memory (1.00 GiB)", "kv_cache_too_small"),
        ("[2026-11-30 10:00:00 TP0] KV cache pool is full. Retract requests. #retracted_reqs: 3", "preemptions"),
        ("[2026-11-30 10:00:00] The input (9000 tokens) is longer than the model's context length (8192 tokens). "
         "Truncating the input.", "input_truncated"),
        ("[2026-11-30 10:00:00] Overlap scheduler is disabled because of speculation.", "setting_disabled"),
        ("[2026-11-30 10:00:00 TP0] Scheduler hit an exception: Traceback", "engine_died"),
        ("[2026-11-30 10:00:00] Post-capture KV sizing: decode CUDA graph max_bs=32 < max_running_requests=4096; x",
         "graph_ceiling_low"),
    ],
)  # fmt: skip
def test_line_of_other_engines_is_recognised(line: str, name: str) -> None:
    found = classify(line)
    assert found is not None
    assert found[0].name == name


@pytest.mark.parametrize(
    "line",
    [
        "(APIServer pid=1) INFO 11-30 10:00:00 [api_utils.py:1] Starting vLLM server on http://127.0.0.1:8000",
        "(EngineCore pid=2) INFO 11-30 10:00:00 [x.py:1] Overriding num_gpu_blocks=9 with num_gpu_blocks_override=4",
        "[2026-11-30 10:00:00 TP0] Load weight end. elapsed=1.21 s",
    ],
)
def test_line_of_other_engines_without_interest_is_no_event(line: str) -> None:
    assert classify(line) is None


def test_what_another_engine_would_mean_is_not_read_into_a_log(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("0.00.000.227 I srv init: x\n0.10.000.000 I srv x: [2026] Overriding a\n", encoding="utf-8")
    assert events(path) == {}


def test_samples_of_a_long_log_are_thinned_evenly(tmp_path: Path) -> None:
    line = "INFO 11-30 10:00:00 [loggers.py:1] Running: 1 reqs, Waiting: {} reqs\n"
    path = tmp_path / "server.log"
    path.write_text("".join(line.format(i) for i in range(5000)), encoding="utf-8")
    kept = series(path, "waiting_requests")
    assert 200 < len(kept) < 512
    assert len({b - a for a, b in pairwise(kept)}) == 1


def test_kinds_told_apart_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    lines = "".join(f"W x: JIT compilation during inference: kernel_{i}.\n" for i in range(500))
    path.write_text("0.00.000.227 I srv init: x\n" + lines, encoding="utf-8")
    found = [e for e in read(path, "events", "screen", "candidate") if e.name == "recompilation"]
    assert len(found) <= 65
    assert sum(e.count for e in found) == 500
