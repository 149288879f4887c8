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
    chrome,
    collapsed,
    engine_log,
    load,
    logprobs,
    nsight,
    otlp,
    outputs,
    perfetto,
    prometheus,
    slices,
    speedscope,
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
    Format("nsight", "Nsight Systems: nsys export --type sqlite", nsight.fits, nsight.read),
    Format("chrome_trace", "Chrome trace: torch.profiler (Kineto), viztracer", chrome.fits, chrome.read),
    Format("speedscope", "speedscope: py-spy record -f speedscope", speedscope.fits, speedscope.read),
    Format("otlp", "OpenTelemetry spans: OTLP/JSON", otlp.fits, otlp.read),
    Format("perfetto", "Perfetto trace (protobuf)", perfetto.fits, perfetto.read),
    Format("callgrind", "valgrind --tool=callgrind", _never, callgrind.read),
    Format("prometheus", "Prometheus text", _never, prometheus.read),
    Format("collapsed", "collapsed stacks: py-spy record -f raw, flamegraph.pl", collapsed.fits, collapsed.read),
    Format("engine_log", "log of an inference engine", _never, engine_log.read),
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
