"""A Chrome trace of one decode: `python decode_trace.py FILE BATCH HEADS K V STEPS`, after `make -C kernels`.

Every Python function of the stack and every C function that it calls is an interval, by Python's own profiling hook.
The hook costs about a microsecond a call, so shares tell more than seconds. The compiled kernel is called through
ctypes, which the hook doesn't see: its time is the own time of `KernelDecoder.step`.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from inputs import Inputs, Shape, Tape
from kernels.kda import KernelDecoder

SEED = 20260917
WARM_UP = 4
"""Decode steps before the recording: the first ones find cold caches."""


class Recorder:
    """Intervals of the functions that are called while it is on, but for those of this file."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._open: list[tuple[str, int]] = []

    def saw(self, frame: FrameType, event: str, arg: Any) -> None:
        """What `sys.setprofile` calls."""
        if frame.f_code.co_filename == __file__:
            return
        if event in ("call", "c_call"):
            name = _name(frame.f_code) if event == "call" else getattr(arg, "__qualname__", repr(type(arg)))
            self._open.append((name, time.perf_counter_ns()))
        elif self._open:  # what began before the recording has no beginning here
            name, start_ns = self._open.pop()
            self.add(name, "python_function", start_ns)

    def add(self, name: str, category: str, start_ns: int) -> None:
        """An interval from then until now."""
        end_ns = time.perf_counter_ns()
        self.events.append(
            {
                "ph": "X", "name": name, "cat": category, "ts": start_ns / 1000, "dur": (end_ns - start_ns) / 1000,
                "pid": os.getpid(), "tid": threading.get_native_id(),
            }
        )  # fmt: skip


def _name(code: CodeType) -> str:
    return f"{code.co_qualname} ({Path(code.co_filename).name}:{code.co_firstlineno})"


def record(shape: Shape, steps: int) -> list[dict[str, Any]]:
    """The events of `steps` decode steps. Raises ValueError for a shape that the kernel refuses."""
    recorder = Recorder()
    inputs = Inputs(shape, Tape.record(shape, SEED))
    decoder = KernelDecoder(inputs)
    inputs.reset(SEED, WARM_UP + steps)
    decoder.start()
    for index in range(WARM_UP):
        inputs.load(index)
        decoder.step()
    sys.setprofile(recorder.saw)
    try:
        for index in range(WARM_UP, WARM_UP + steps):
            start_ns = time.perf_counter_ns()
            inputs.load(index)
            decoder.step()
            recorder.add("decode step", "user_annotation", start_ns)
    finally:
        sys.setprofile(None)
    return recorder.events


if __name__ == "__main__":
    out, *numbers = sys.argv[1:]
    *sizes, n_steps = map(int, numbers)
    events = record(Shape(*sizes), n_steps)
    with open(out, "w", encoding="utf-8") as file:  # noqa: PTH123
        json.dump({"traceEvents": events, "displayTimeUnit": "ns"}, file)
