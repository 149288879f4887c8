"""What the sandbox costs: a whole command, a start to the first line, and the round trip of a line.

python benchmarks/sandbox.py [--rounds 40]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from infra_agent import host
from sandboxes.sandbox import Sandbox, SandboxSpec, open_sandbox

ECHO = "import sys\nfor line in sys.stdin:\n    sys.stdout.write(line)\n    sys.stdout.flush()\n"
COMMANDS = {"cat": ["cat"], "python -I -S": [sys.executable, "-I", "-S", "-c", ECHO]}


def timed(work: Callable[[], object], rounds: int) -> float:
    """Median wall time in milliseconds."""
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return median(times) * 1e3


def first_line(sandbox: Sandbox, command: list[str]) -> None:
    """Start an echo, send it a line, read it back, end it."""
    process = sandbox.start(command)
    process.write_line(b"x")
    process.read_line(10)
    process.stop()


def round_trip(sandbox: Sandbox, command: list[str], rounds: int) -> float:
    """Median milliseconds from writing a line to having read its echo."""
    process = sandbox.start(command)

    def once() -> None:
        process.write_line(b"x" * 100)
        process.read_line(10)

    once()
    answer = timed(once, rounds)
    process.stop()
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as directory:
        tree, scratch = Path(directory) / "tree", Path(directory) / "scratch"
        tree.mkdir()
        scratch.mkdir()
        sandbox = open_sandbox("bubblewrap", SandboxSpec(tree=tree, scratch=scratch))
        print(f"host: {host.cpu_model()}, {len(host.cpus())} CPUs, load {os.getloadavg()[0]:.1f}")
        print("| what | median |\n|---|---|")
        print(f"| `exec true` | {timed(lambda: sandbox.exec(['true']), rounds):.1f} ms |")
        for name, command in COMMANDS.items():
            started = timed(lambda c=command: first_line(sandbox, c), rounds)
            print(f"| start, one line, stop: `{name}` | {started:.1f} ms |")
            print(f"| round trip of a 100-byte line: `{name}` | {round_trip(sandbox, command, 50 * rounds):.3f} ms |")
        sandbox.close()


if __name__ == "__main__":
    main()
