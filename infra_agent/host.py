"""This machine: its fingerprint, which noise floors belong to, and the CPUs that measurements are pinned to."""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path


def cpus() -> tuple[int, ...]:
    """CPUs that this process may use."""
    return tuple(sorted(os.sched_getaffinity(0)))


def cpu_model() -> str:
    """The processor's name, or its architecture where the kernel does not tell."""
    for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def fingerprint() -> str:
    """Identity of the machine as far as timing is concerned: processor, CPU count, kernel, host name."""
    facts = (cpu_model(), len(cpus()), platform.release(), platform.node())
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def measuring_cpus() -> tuple[int, ...]:
    """The CPU that a pinned comparison uses: the last one, since the first serves most interrupts. Empty where
    there is only one, since then there is nothing to keep the supervisor away from."""
    available = cpus()
    return available[-1:] if len(available) > 1 else ()
