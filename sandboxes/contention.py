"""Who else used the CPUs while something was measured: foreign work and steal, from /proc.

A pair of processes under measurement explains its own CPU time; what the CPUs did beyond that was somebody
else's, and what the hypervisor took is steal. Both disturb a comparison and are reported as shares of wall time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from pydantic import Field

from sandboxes.results import Record

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Contention(Record):
    """What disturbed an interval, as shares of its wall time per CPU."""

    foreign_cpu_share: float
    """CPU time of processes outside the measurement, over wall time times CPUs."""
    steal_share: float
    """Time that the hypervisor gave to others."""
    run_queue: float
    """Runnable tasks on the host at the end of the interval."""


class Limit(Record):
    """Above which shares a pair counts as disturbed."""

    foreign_cpu_share: float = Field(default=0.15, ge=0)
    steal_share: float = Field(default=0.05, ge=0)

    def disturbed(self, contention: Contention) -> bool:
        """Whether the interval must be measured again."""
        return contention.foreign_cpu_share > self.foreign_cpu_share or contention.steal_share > self.steal_share


class Sample(NamedTuple):
    """Counters at one moment."""

    at_s: float
    busy_s: float
    steal_s: float
    own_s: float


def sample(cpus: Collection[int], pids: Collection[int]) -> Sample:
    """Read the counters of `cpus` (empty: all) and of the processes that belong to the measurement."""
    busy = steal = 0.0
    for line in Path("/proc/stat").read_text().splitlines():
        if not line.startswith("cpu") or line.startswith("cpu "):
            continue
        name, *fields = line.split()
        if cpus and int(name[3:]) not in cpus:
            continue
        ticks = [int(f) for f in fields]
        busy += (ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6]) * _TICK_S
        steal += ticks[7] * _TICK_S
    own = sum(_cpu_s(pid) for pid in pids)
    if not cpus or set(os.sched_getaffinity(0)) & set(cpus):
        own += time.process_time()
    return Sample(time.monotonic(), busy, steal, own)


def _cpu_s(pid: int) -> float:
    """User and system time of a process with its reaped children; 0 once it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(int(fields[i]) for i in (11, 12, 13, 14)) * _TICK_S


def between(before: Sample, after: Sample, n_cpus: int) -> Contention:
    """Contention over the interval between two samples."""
    span = max(after.at_s - before.at_s, _TICK_S) * n_cpus
    foreign = (after.busy_s - before.busy_s) - (after.own_s - before.own_s)
    return Contention(
        foreign_cpu_share=round(_share(foreign / span), 4),
        steal_share=round(_share((after.steal_s - before.steal_s) / span), 4),
        run_queue=_runnable(),
    )


def _share(value: float) -> float:
    """The kernel counts in ticks, so a difference may come out a little below nothing or above everything."""
    return min(1.0, max(0.0, value))


def _runnable() -> float:
    running = Path("/proc/loadavg").read_text().split()[3]
    return float(running.partition("/")[0])
