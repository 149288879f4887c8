"""How long something has run, kept in a file while it runs, so that a killed one is not forgotten by a budget."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PERIOD_S = 1.0
_WIDTH = 16


def pulse_file(runs: Path, experiment_id: str) -> Path:
    """Where the time of an experiment is kept, in the directory of the campaign's runs."""
    return runs / f"{experiment_id}.pulse"


@contextmanager
def beating(path: Path, before_s: float = 0.0) -> Iterator[None]:
    """Keep in the file, from above, for how many seconds the block has run, added to `before_s`; the file stays until
    that is stored, and somebody removes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    started_s, done = time.monotonic(), threading.Event()
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)

    def beat(ahead_s: float = PERIOD_S) -> None:
        # Until the next beat: a kill in between is covered. One small write is never seen in part.
        until_s = before_s + time.monotonic() - started_s + ahead_s
        os.pwrite(file, f"{until_s:{_WIDTH - 1}.3f}\n".encode(), 0)

    def beats() -> None:
        while not done.wait(PERIOD_S):
            beat()

    try:
        beat()
        thread = threading.Thread(target=beats, name="pulse", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
            beat(ahead_s=0.0)
    finally:
        os.close(file)


def last_beat_s(path: Path) -> float:
    """What was kept of a block whose outcome was never stored; 0 where there is no such file, or one that a crash of
    the machine left without a number. Raises OSError."""
    try:
        return float(path.read_text(encoding="ascii"))
    except (FileNotFoundError, ValueError):
        return 0.0
