"""This machine: its fingerprint, which noise floors belong to, and the CPUs that measurements are pinned to."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from functools import cache
from pathlib import Path

MAX_WORDS = 100
"""Characters of what a processor or a compiler says of itself."""
VECTOR_SETS = (
    "sse4_2", "avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni",
    "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16",
    "asimd", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "sve2", "sme",
)  # fmt: skip


def cpus() -> tuple[int, ...]:
    """CPUs that this process may use."""
    return tuple(sorted(os.sched_getaffinity(0)))


def cpu_model() -> str:
    """The processor's name, or its architecture where the kernel does not tell."""
    for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


@cache
def facts() -> str:
    """What bears on how code for this machine is written, in a line: processor, vector instruction sets, caches of a
    CPU, compiler. The same text as long as machine and compiler are."""
    parts = [cpu_model()[:MAX_WORDS], f"vector sets: {' '.join(_vector_sets()) or 'unknown'}"]
    parts.append(f"caches of a CPU: {', '.join(_caches()) or 'unknown'}")
    return "; ".join([*parts, f"compiler: {_compiler() or 'none'}"])


def _vector_sets() -> list[str]:
    """The instruction sets worth knowing, as the kernel names them."""
    for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
        name, _, flags = line.partition(":")
        if name.strip() in ("flags", "Features"):
            has = set(flags.split())
            return [known for known in VECTOR_SETS if known in has]
    return []


def _caches() -> list[str]:
    """`L1d 32 KiB`, `L3 32 MiB of 8 CPUs`: those of the first CPU that this process may use."""
    found = []
    for index in sorted(Path(f"/sys/devices/system/cpu/cpu{cpus()[0]}/cache").glob("index*")):
        try:
            level, kind, size, shared = (
                (index / name).read_text().strip() for name in ("level", "type", "size", "shared_cpu_list")
            )
        except OSError:
            continue
        if kind == "Instruction" or not size[:-1].isdecimal():
            continue
        kib = int(size[:-1]) * {"K": 1, "M": 1024}.get(size[-1], 0)
        said = f"{kib // 1024} MiB" if kib >= 1024 and kib % 1024 == 0 else f"{kib} KiB"
        sharing = _count(shared)
        among = f" of {sharing} CPUs" if sharing > 1 else ""
        found.append(f"L{level}{'d' if kind == 'Data' else ''} {said}{among}")
    return found[:4]


def _count(listed: str) -> int:
    """How many CPUs `0-3,8` are."""
    ranges = [part.split("-") for part in listed.split(",") if part]
    return sum(int(ends[-1]) - int(ends[0]) + 1 for ends in ranges)


def _compiler() -> str:
    """The first line that the machine's C compiler says of itself; empty where there is none."""
    try:
        done = subprocess.run(
            ("cc", "--version"), capture_output=True, text=True, errors="replace", check=True, timeout=10.0
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return " ".join(done.stdout.partition("\n")[0].split())[:MAX_WORDS]


def fingerprint() -> str:
    """Identity of the machine as far as timing is concerned: processor, CPU count, kernel, host name."""
    facts = (cpu_model(), len(cpus()), platform.release(), platform.node())
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def measuring_cpus() -> tuple[int, ...]:
    """The CPU that a pinned comparison uses: the last one, since the first serves most interrupts. Empty where
    there is only one, since then there is nothing to keep the supervisor away from."""
    available = cpus()
    return available[-1:] if len(available) > 1 else ()
