"""Reading a long trace and running every utilization rule on it, beside HolisticTraceAnalysis on the same file.

    python benchmarks/feedback_traces.py [--events 1000000 ...] [--repeat 3] [--json OUT] [--keep DIR] [--trace-processor PROGRAM]

Each contender runs in fresh processes, in turn. HolisticTraceAnalysis (0.5.0, pandas < 3) gets a virtual environment of
its own beside this repository's, made on the first run. Perfetto's Python package downloads its engine when it is used,
so Perfetto takes part only where `trace_processor_shell` is on the PATH or named.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PEER_VENV = ROOT / ".venv-hta"
PEER_PACKAGES = ("HolisticTraceAnalysis==0.5.0", "pandas<3")
SQL = """
SELECT t.name, COUNT(*), SUM(s.dur) FROM slice s JOIN thread_track tt ON s.track_id = tt.id JOIN thread t USING (utid)
GROUP BY 1;
SELECT name, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0;
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write all runs here")
    parser.add_argument("--keep", type=Path, help="keep the generated traces in this directory")
    parser.add_argument("--without-hta", action="store_true", help="only this project, for sizes that take hours else")
    parser.add_argument("--trace-processor", default=shutil.which("trace_processor_shell"))
    parser.add_argument("--child", nargs=2, metavar=("CONTENDER", "TRACE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(CHILDREN[options.child[0]](Path(options.child[1]))))
        return
    contenders = {"infra-agent": sys.executable}
    if not options.without_hta:
        contenders["HolisticTraceAnalysis"] = str(_peer_python())
    runs: list[dict[str, Any]] = []
    print(f"host: {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as scratch:
        for n_events in options.events:
            trace = _generated(options.keep or Path(scratch), n_events)
            print(f"\n{n_events:,} events, {trace.stat().st_size / 1e6:.0f} MB; median of {options.repeat}\n")
            for _ in range(options.repeat):
                for name, python in contenders.items():
                    command = [python, __file__, "--child", name, str(trace)]
                    runs.append({"contender": name, "events": n_events, **_measured(command)})
                if options.trace_processor:
                    runs.append(
                        {"contender": "Perfetto", "events": n_events, **_perfetto(options.trace_processor, trace)}
                    )
            _table(runs, n_events)
            if not options.keep:
                trace.unlink()
    if not options.trace_processor:
        print("\nPerfetto did not take part: its Python package ships no engine and downloads one when it is used; "
              "name one with --trace-processor.")  # fmt: skip
    pairs = _measured([sys.executable, __file__, "--child", "recorded", str(ROOT / "tests" / "data")])
    print(f"\nrecorded pairs, read and derived from in one process of {pairs['wall_s']:.2f} s (with imports):\n")
    print("| pair | ms | signals |\n|---|---|---|")
    for name, pair in pairs.items():
        if isinstance(pair, dict):
            print(f"| {name} | {pair['ms']:.0f} | {pair['signals']} |")
    if options.json:
        options.json.write_text(json.dumps(runs, indent=1) + "\n")


def _generated(directory: Path, n_events: int) -> Path:
    spec = importlib.util.spec_from_file_location("device_trace", Path(__file__).with_name("device_trace.py"))
    assert spec is not None and spec.loader is not None
    device_trace = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(device_trace)
    path = directory / f"trace-{n_events}.json"
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        device_trace.write(path, n_events)
    return path


def _peer_python() -> Path:
    python = PEER_VENV / "bin" / "python"
    if not (PEER_VENV / ".ready").exists():
        print(f"installing {' '.join(PEER_PACKAGES)} into {PEER_VENV.name} (about 500 MB)")
        subprocess.run([sys.executable, "-m", "venv", str(PEER_VENV)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PEER_PACKAGES], check=True)
        (PEER_VENV / ".ready").touch()
    return python


def _measured(command: list[str]) -> dict[str, Any]:
    """Run a child to its end: wall and CPU seconds and peak memory of the whole process, and what it printed last."""
    began = time.monotonic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(command, stdout=out, stderr=errors, env={**os.environ, "PYTHONPATH": str(ROOT)})
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        errors.seek(0)
        if child.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{errors.read()[-4000:].decode('utf-8', 'replace')}")
        lines = out.read().decode("utf-8", "replace").strip().splitlines()
    said = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}
    return {
        "wall_s": time.monotonic() - began, "cpu_s": usage.ru_utime + usage.ru_stime,
        "peak_mib": max(usage.ru_maxrss / 1024, said.pop("children_mib", 0)), **said,
    }  # fmt: skip


def _perfetto(program: str, trace: Path) -> dict[str, Any]:
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as query:
        query.write(SQL)
        query.flush()
        return _measured([program, "-q", query.name, str(trace)])


def _infra_agent(trace: Path) -> dict[str, Any]:
    """Read the trace and run every utilization rule on it."""
    from feedback.criteria import Criteria
    from feedback.readers.formats import detect
    from feedback.rules.derive import RULES

    began = time.monotonic()
    observations = list(detect(trace).read(trace, "trace", "screen", "candidate"))
    read_s = time.monotonic() - began
    rules = [rule for rule in RULES if rule.family == "utilization"]
    signals, by_rule = 0, {}
    for rule in rules:
        since = time.monotonic()
        signals += len(rule(observations, Criteria(changed=())))
        by_rule[rule.ids[0]] = round(time.monotonic() - since, 3)
    return {
        "read_s": read_s, "analyse_s": time.monotonic() - began - read_s, "analyses": len(rules), "signals": signals,
        "by_analysis_s": by_rule,
    }  # fmt: skip


def _hta(trace: Path) -> dict[str, Any]:
    """The analyses of HolisticTraceAnalysis that answer the same questions, without plots."""
    import warnings

    from hta.trace_analysis import TraceAnalysis  # type: ignore[import-not-found]

    warnings.simplefilter("ignore")
    began = time.monotonic()
    analysis = TraceAnalysis(trace_files={0: str(trace)}, trace_dir=str(trace.parent))
    read_s = time.monotonic() - began
    analyses: dict[str, Callable[[], Any]] = {
        "temporal_breakdown": lambda: analysis.get_temporal_breakdown(visualize=False),
        "idle_time": lambda: analysis.get_idle_time_breakdown(ranks=[0], visualize=False),
        "comm_comp_overlap": lambda: analysis.get_comm_comp_overlap(visualize=False),
        "kernel_launch": lambda: analysis.get_cuda_kernel_launch_stats(ranks=[0], visualize=False),
        "queue_length": lambda: analysis.get_queue_length_summary(ranks=[0]),
        "critical_path": lambda: analysis.critical_path_analysis(rank=0, annotation="ProfilerStep", instance_id=1),
    }
    by_analysis = {}
    for name, analyse in analyses.items():
        since = time.monotonic()
        analyse()
        by_analysis[name] = round(time.monotonic() - since, 3)
    return {
        "read_s": read_s, "analyse_s": time.monotonic() - began - read_s, "analyses": len(analyses),
        "by_analysis_s": by_analysis,
        "children_mib": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024,
    }  # fmt: skip


def _table(runs: list[dict[str, Any]], n_events: int) -> None:
    print("| | read s | analyse s (analyses) | whole process: wall s | CPU s | CPU s per million events | peak MiB |")
    print("|---|---|---|---|---|---|---|")
    for name in dict.fromkeys(run["contender"] for run in runs):
        mine = [run for run in runs if run["contender"] == name and run["events"] == n_events]
        if not mine:
            continue
        middle = {key: median(run[key] for run in mine) for key in ("wall_s", "cpu_s", "peak_mib")}
        parts = " | | "
        if "read_s" in mine[0]:
            read_s, analyse_s = (median(run[key] for run in mine) for key in ("read_s", "analyse_s"))
            parts = f" {read_s:.2f} | {analyse_s:.2f} ({mine[0]['analyses']}) "
        print(
            f"| {name} |{parts}| {middle['wall_s']:.2f} | {middle['cpu_s']:.2f} | "
            f"{middle['cpu_s'] / n_events * 1e6:.2f} | {middle['peak_mib']:.0f} |"
        )


def _recorded(data: Path) -> dict[str, Any]:
    """Both recorded arms of each kind, read and derived from: what a `compare` does, without the imports."""
    from feedback.criteria import Criteria
    from feedback.readers.formats import detect
    from feedback.rules.derive import derive

    pairs = (
        ("torch_profiler/baseline.pt.trace.json.gz", "torch_profiler/candidate.pt.trace.json.gz"),
        ("gil_case/held.trace.json.gz", "gil_case/released.trace.json.gz"),
        ("py_spy/held_gil.raw", "py_spy/released_gil.raw"),
    )
    found: dict[str, Any] = {}
    for baseline, candidate in pairs:
        began = time.monotonic()
        observations = [
            *detect(data / baseline).read(data / baseline, "trace", "screen", "baseline"),
            *detect(data / candidate).read(data / candidate, "trace", "screen", "candidate"),
        ]
        signals = derive(observations, Criteria(changed=()))
        found[baseline.partition("/")[0]] = {"ms": (time.monotonic() - began) * 1e3, "signals": len(signals)}
    return found


CHILDREN: dict[str, Callable[[Path], dict[str, Any]]] = {
    "infra-agent": _infra_agent, "HolisticTraceAnalysis": _hta, "recorded": _recorded,
}  # fmt: skip


if __name__ == "__main__":
    main()
