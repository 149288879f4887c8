"""Output is kept in bounded memory, in the order it came."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

from sandboxes.capture import Capture, Log


def test_short_output_is_kept_whole() -> None:
    capture = Capture(head_bytes=4, tail_bytes=4)
    for piece in (b"a", b"bcde", b"fgh"):
        capture.add(piece)
    assert capture.text() == "abcdefgh"


def test_long_output_keeps_head_and_tail() -> None:
    capture = Capture(head_bytes=4, tail_bytes=4)
    for piece in (b"head", b"x" * 100, b"ta", b"il"):
        capture.add(piece)
    assert capture.text() == "head\n[... 100 bytes left out ...]\ntail"
    assert capture.total_bytes == 108


def test_memory_does_not_grow_with_a_flood() -> None:
    capture, piece = Capture(), b"x" * 65536
    tracemalloc.start()
    for _ in range(256):
        capture.add(piece)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 1 << 20


def test_log_appends_up_to_its_limit(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"before")
    log = Log(tmp_path / "log", limit_bytes=5)
    for piece in (b"abc", b"def", b"ghi"):
        log.add(piece)
    log.close()
    log.close()
    assert (tmp_path / "log").read_bytes() == b"beforeabcde"
    Log(None, limit_bytes=5).add(b"nowhere")
