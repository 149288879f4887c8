"""The slice worker: a persistent sandboxed process that does exactly one slice of work for each line it is sent.

The protocol is in docs/worker-protocol.md. The clock is ours: from before the request is written to after the
answer is read, so a candidate never holds the timer.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sandboxes.results import ArmName, ExecResult
from sandboxes.sandbox import ProcessFailed, Sandbox

PROTOCOL = 1
READY_TIMEOUT_S = 60.0
MAX_CHECK = 4096
"""Numbers in a slice's checksum."""


class WorkerArm:
    """One arm of a comparison whose slices are answered by a worker process."""

    def __init__(self, name: ArmName, sandbox: Sandbox, command: Sequence[str], slice_timeout_s: float) -> None:
        """Start the worker and wait for its ready line. Raises ProcessFailed if it does not become ready."""
        self.name = name
        self._slice_timeout_s = slice_timeout_s
        self._process = sandbox.start(command)
        ready = self._answer(READY_TIMEOUT_S, "waiting for the worker's ready line")
        if ready.get("ready") is not True or ready.get("protocol") != PROTOCOL:
            raise ProcessFailed(self._process.stop(), f"the worker's first line was not a ready line: {ready}")

    def slice(self, number: int, seed: int, params: Mapping[str, Any]) -> dict[str, Any]:
        """Ask for one slice; returns the worker's answer with our `duration_s`. Raises ProcessFailed."""
        request = json.dumps({"slice": number, "seed": seed, "params": dict(params)}).encode()
        started = time.perf_counter_ns()
        self._process.write_line(request)
        line = self._process.read_line(self._slice_timeout_s)
        duration_s = (time.perf_counter_ns() - started) / 1e9
        answer = self._parse(line, f"slice {number}")
        if "error" in answer:
            raise ProcessFailed(self._process.stop(), f"slice {number}: worker error {answer['error']!r:.300}")
        if answer.get("slice") != number:
            raise ProcessFailed(self._process.stop(), f"asked for slice {number}, got {answer.get('slice')!r}")
        return {**self._checked(answer, number), "duration_s": duration_s}

    def _checked(self, answer: dict[str, Any], number: int) -> dict[str, Any]:
        """What the protocol knows of an answer. The rest is dropped: a candidate decides neither how much is
        written down nor how deep it is nested."""
        check, outputs = answer.get("check"), answer.get("outputs")
        if check is not None and not _is_check(check):
            during = f"slice {number}: its check is no list of at most {MAX_CHECK} numbers"
            raise ProcessFailed(self._process.stop(), during)
        known: dict[str, Any] = {"slice": number}
        if check is not None:
            known["check"] = check
        if outputs is not None:
            known["outputs"] = outputs if _is_outputs(outputs) else None
        return known

    def pids(self) -> list[int]:
        """Host pids of the worker's process tree."""
        return self._process.pids()

    def close(self) -> ExecResult:
        """End the worker."""
        return self._process.stop()

    def _answer(self, timeout_s: float, during: str) -> dict[str, Any]:
        return self._parse(self._process.read_line(timeout_s), during)

    def _parse(self, line: bytes, during: str) -> dict[str, Any]:
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise ProcessFailed(self._process.stop(), f"{during}: the worker's line is no JSON object: {line[:200]!r}")
        return answer


def _is_check(check: Any) -> bool:
    return isinstance(check, list) and len(check) <= MAX_CHECK and all(isinstance(n, int | float) for n in check)


def _is_outputs(outputs: Any) -> bool:
    """Whether it is name -> array, as far as its form goes."""
    return isinstance(outputs, dict) and all(_is_array(array) for array in outputs.values())


def _is_array(array: Any) -> bool:
    if not (isinstance(array, dict) and array.keys() == {"dtype", "shape", "data"}):
        return False
    texts = isinstance(array["dtype"], str) and isinstance(array["data"], str)
    return texts and isinstance(array["shape"], list) and all(isinstance(n, int) for n in array["shape"])
