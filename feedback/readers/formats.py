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
    aiperf,
    callgrind,
    cgroup,
    chrome,
    collapsed,
    engine_log,
    events,
    gc,
    google_benchmark,
    guidellm,
    hyperfine,
    jit,
    json_report,
    junit,
    llama_bench,
    load,
    logprobs,
    nsight,
    otlp,
    outputs,
    parity_table,
    perfetto,
    prometheus,
    pyperf,
    pytest_benchmark,
    reportlog,
    sglang_bench,
    slices,
    speedscope,
    triton_table,
    vllm_bench,
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


FORMATS: tuple[Format, ...] = (
    Format("load", "our load client", load.fits, lambda p, probe, stage, arm: load.read(p, probe, stage)),
    Format("slices", "our slice worker", slices.fits, lambda p, probe, stage, arm: slices.read(p, probe, stage)),
    Format("outputs", "our outputs probe", outputs.fits, lambda p, probe, stage, arm: outputs.read(p, probe, stage)),
    Format(
        "logprobs", "our logprobs probe", logprobs.fits, lambda p, probe, stage, arm: logprobs.read(p, probe, stage)
    ),
    Format("nsight", "Nsight Systems: nsys export --type sqlite", nsight.fits, nsight.read),
    Format("chrome_trace", "Chrome trace: torch.profiler (Kineto), viztracer", chrome.fits, chrome.read),
    Format("speedscope", "speedscope: py-spy record -f speedscope", speedscope.fits, speedscope.read),
    Format("otlp", "OpenTelemetry spans: OTLP/JSON", otlp.fits, otlp.read),
    Format("perfetto", "Perfetto trace (protobuf)", perfetto.fits, perfetto.read),
    Format("callgrind", "valgrind --tool=callgrind", callgrind.fits, callgrind.read),
    Format("junit", "JUnit XML", junit.fits, junit.read),
    Format("reportlog", "pytest-reportlog", reportlog.fits, reportlog.read),
    Format("json_report", "pytest-json-report", json_report.fits, json_report.read),
    Format("pytest_benchmark", "pytest-benchmark", pytest_benchmark.fits, pytest_benchmark.read),
    Format("pyperf", "pyperf", pyperf.fits, pyperf.read),
    Format("google_benchmark", "Google Benchmark", google_benchmark.fits, google_benchmark.read),
    Format("hyperfine", "hyperfine", hyperfine.fits, hyperfine.read),
    Format("llama_bench", "llama-bench of llama.cpp", llama_bench.fits, llama_bench.read),
    Format("vllm_bench", "vllm bench serve", vllm_bench.fits, vllm_bench.read),
    Format("sglang_bench", "SGLang bench_serving", sglang_bench.fits, sglang_bench.read),
    Format("guidellm", "guidellm", guidellm.fits, guidellm.read),
    Format("aiperf", "AIPerf", aiperf.fits, aiperf.read),
    Format("parity_table", "points of shape x partition x dtype -> error", parity_table.fits, parity_table.read),
    Format("triton_table", "Triton perf_report", triton_table.fits, triton_table.read),
    Format("events", "our JSON-lines events", events.fits, events.read),
    Format("prometheus", "Prometheus text", prometheus.fits, prometheus.read),
    Format("cgroup", "control group and pressure counters of Linux", cgroup.fits, cgroup.read),
    Format("collapsed", "collapsed stacks: py-spy record -f raw, flamegraph.pl", collapsed.fits, collapsed.read),
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
