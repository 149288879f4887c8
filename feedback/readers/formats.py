"""Which formats can be read, and which of them a file is.

A format is a row of `FORMATS`. Its reader takes (path, probe, stage, arm) and returns observations; it raises
Unreadable with the place, or OSError, and nothing else whatever the file holds. `fits` decides from a file's name
and its first `HEAD_BYTES` alone; the first row that fits takes the file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from feedback.observations import Observation
from feedback.readers import (
    Unreadable,
    callgrind,
    cgroup,
    engine_log,
    events,
    gc,
    jit,
    load,
    logprobs,
    outputs,
    prometheus,
    slices,
    warnings,
)
from sandboxes.results import ArmName

HEAD_BYTES = 1 << 16

Read = Callable[[Path, str, str, ArmName], Sequence[Observation]]
Fits = Callable[[Path, bytes], bool]


class Format(NamedTuple):
    """One format that files come in."""

    name: str
    """What an artefact's `format` says."""
    about: str
    """What writes it, for people."""
    fits: Fits
    read: Read


def _never(path: Path, head: bytes) -> bool:
    return False


FORMATS: tuple[Format, ...] = (
    Format("slices", "our slice worker", _never, lambda p, probe, stage, arm: slices.read(p, probe, stage)),
    Format("outputs", "our outputs probe", _never, lambda p, probe, stage, arm: outputs.read(p, probe, stage)),
    Format("load", "our load client", _never, lambda p, probe, stage, arm: load.read(p, probe, stage)),
    Format("logprobs", "our logprobs probe", _never, lambda p, probe, stage, arm: logprobs.read(p, probe, stage)),
    Format("callgrind", "valgrind --tool=callgrind", _never, callgrind.read),
    Format("prometheus", "Prometheus text", prometheus.fits, prometheus.read),
    Format("events", "our JSON lines of events", events.fits, events.read),
    Format("cgroup", "control group and pressure counters of Linux", cgroup.fits, cgroup.read),
    Format("gc", "Python's garbage collector", gc.fits, gc.read),
    Format("engine_log", "log of llama.cpp, vLLM or SGLang", engine_log.fits, engine_log.read),
    Format("jit", "torch.compile and Triton logs", jit.fits, jit.read),
    Format("warnings", "Python's warnings", warnings.fits, warnings.read),
)
"""In the order in which they are tried: the telling ones first, logs last."""


def named(name: str) -> Format | None:
    """The format of that name, if there is one."""
    return next((format for format in FORMATS if format.name == name), None)


def detect(path: Path) -> Format:
    """The format of a file. Raises Unreadable when none fits, OSError when it can't be opened."""
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    found = next((format for format in FORMATS if format.fits(path, head)), None)
    if found is None:
        known = ", ".join(format.name for format in FORMATS)
        raise Unreadable(path, 0, f"no known format; known are {known}")
    return found
