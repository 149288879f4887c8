"""One run of `infra-agent` in a process of its own, followed line by line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

COMMAND = (sys.executable, "-P", "-m", "infra_agent.cli")
"""-P: the directory that a client starts the server in is no place to import from."""
WAIT_S = 2.0
_STAMP = re.compile(r"^\[[^\]]*\]\s*")


class Failed(Exception):
    """A call that can't be carried out; the message is for whoever made it."""


class Errand:
    """One run of `infra-agent`, which can be ended from another thread. `alone` lets one run at a time."""

    def __init__(self, alone: threading.Lock) -> None:
        self._alone = alone
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = threading.Event()

    def end(self) -> None:
        """End it as Ctrl-C would: its sandboxes are closed, and the campaign can go on later."""
        self._ended.set()
        if (process := self._process) is not None:
            process.terminate()

    def run(self, arguments: list[str], text: str, progress: Callable[[float, str], None]) -> dict[str, Any]:
        """Run it, tell what it does, and return the JSON object it ends with. Raises Failed with what it said."""
        started = time.monotonic()
        while not self._alone.acquire(timeout=WAIT_S):
            progress(time.monotonic() - started, "waiting for another measurement to end")
            self._refuse_ended()
        try:
            self._refuse_ended()
            pipe = subprocess.PIPE
            with subprocess.Popen([*COMMAND, *arguments], stdin=pipe, stdout=pipe, stderr=pipe) as process:
                self._process = process
                if self._ended.is_set():  # meanwhile
                    process.terminate()
                return _came_of(process, text, lambda line: progress(time.monotonic() - started, line))
        finally:
            self._alone.release()

    def _refuse_ended(self) -> None:
        if self._ended.is_set():
            raise Failed("cancelled")


def _came_of(process: subprocess.Popen[bytes], text: str, say: Callable[[str], None]) -> dict[str, Any]:
    """Give the process its input, follow what it says, and return its result. Raises Failed."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    out: list[bytes] = []
    reader = threading.Thread(target=lambda stream: out.append(stream.read()), args=(process.stdout,))
    reader.start()
    with suppress(BrokenPipeError):  # it ended without reading, and says why
        process.stdin.write(text.encode())
        process.stdin.close()
    said: list[str] = []
    for line in process.stderr:
        said.append(line.decode("utf-8", "replace").rstrip())
        say(_STAMP.sub("", said[-1]).strip())
    reader.join()
    code = process.wait()
    try:
        found = json.loads(b"".join(out).decode("utf-8", "replace").splitlines()[-1])
    except (ValueError, IndexError):
        found = None
    if not isinstance(found, dict):
        raise Failed(f"infra-agent ended with code {code}: {' '.join(said[-3:])}")
    if isinstance(error := found.get("error"), dict):
        raise Failed(str(error.get("message")))
    return found
