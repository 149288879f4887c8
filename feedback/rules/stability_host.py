"""Rules on what holds a process up from below: garbage collection, CPU quotas, page faults."""

from __future__ import annotations

from collections.abc import Sequence

from feedback.criteria import Criteria
from feedback.observations import Observation
from feedback.rules import rule
from feedback.rules.arms import Arm, Trouble, servers, signals
from feedback.signals import Cause, Quantity, Signal

LONG_PAUSE_S = 0.1
"""A collection that stops a decode loop for several tokens."""
GC_SHARE = 0.05
MIN_WINDOW_S = 1.0
THROTTLED = 0.05
"""Share of a quota's periods from which throttling is felt."""
MIN_PERIODS = 20
MANY_MAJOR_FAULTS = 1000
MANY_FAULTS = 100_000
STALLED = 0.05
"""Share of the time in which everything waited for memory or disk."""


@rule(
    "stability.gc_stall",
    says="Python's garbage collector stopped the process for long, or for a good part of the time",
    needs="gc.callbacks as JSON lines, gc.DEBUG_STATS, or the engine's own messages about it",
)
def gc_stall(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """Long pauses and a large share of the time."""

    def look(arm: Arm) -> Trouble | None:
        pauses = sorted(arm.of("gc_pause"), key=lambda e: -(e.duration_s or 0))
        logged = sorted(arm.of("gc_pause_s"), key=lambda e: -e.count)
        longest = max([e.duration_s or 0 for e in pauses[:1]] + [e.count for e in logged[:1]], default=0.0)
        window = sum(e.duration_s or 0 for e in arm.of("gc_window"))
        spent = sum(e.duration_s or 0 for e in arm.events if e.name.startswith("gc_generation_"))
        share = spent / window if window >= MIN_WINDOW_S else 0.0
        if longest < LONG_PAUSE_S and share < GC_SHARE:
            return None
        n = sum((e.duration_s or 0) >= LONG_PAUSE_S for e in pauses) + sum(e.count >= LONG_PAUSE_S for e in logged)
        part = f", {share:.0%} of the time" if share else ""
        return Trouble(
            said=f"garbage collection stopped Python {'once' if n == 1 else f'{n} times'} for 0.1 s or more, "
            f"at worst {longest:.2g} s{part}"
            if n else f"garbage collection took {share:.0%} of the time",
            amount=share or longest, level="warning", events=[*pauses[:3], *logged[:3]],
            measured=(Quantity(name="longest_pause", value=longest, unit="s"),
                      *((Quantity(name="gc_share", value=share),) if share else ())),
            expected=(Quantity(name="longest_pause", value=0.0, unit="s", hi=LONG_PAUSE_S),),
            causes=(Cause(text="full collections walk every live object, most of them permanent",
                          refutable_by="gc.freeze() after warm-up leaves the pauses as they are"),),
            next=("call gc.collect() and gc.freeze() after warm-up and record the same callbacks again",),
        )  # fmt: skip

    return signals("stability.gc_stall", criteria, servers(observations, criteria, "gc", "engine_log"), look)


@rule(
    "stability.throttling",
    says="the kernel held the process back because its CPU quota was used up",
    needs="cgroup cpu.stat",
)
def throttling(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """The share of the quota's periods in which the group was throttled."""

    def look(arm: Arm) -> Trouble | None:
        periods, throttled = arm.total("cpu_periods"), arm.total("cpu_throttled_periods")
        seconds = arm.total("cpu_throttled_s")
        if periods < MIN_PERIODS or throttled < THROTTLED * periods:
            return None
        share = min(1.0, throttled / periods)
        return Trouble(
            said=f"throttled in {share:.0%} of {periods:g} periods, {seconds:.3g} s of thread time lost to the CPU "
            "quota",
            amount=share, level="warning",
            events=arm.of("cpu_throttled_periods", "cpu_periods", "cpu_throttled_s"),
            measured=(Quantity(name="throttled_share", value=share),),
            expected=(Quantity(name="throttled_share", value=0.0, hi=THROTTLED),),
            causes=(Cause(text="more threads compute than the quota (cpu.max) pays for", support="strong",
                          refutable_by="as many threads as the quota has CPUs are throttled as often"),),
            next=("raise the quota, or set the compute threads to quota / period, and measure again: times under "
                  "throttling are the quota's, not the code's",),
        )  # fmt: skip

    return signals("stability.throttling", criteria, servers(observations, criteria, "cgroup"), look)


@rule(
    "stability.page_faults",
    says="the candidate takes many more page faults than the baseline, or everything waited for pages",
    needs="cgroup memory.stat, pressure files",
)
def page_faults(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """Major faults (from disk) and minor ones against the baseline; alone, only with stalls beside them, because
    loading mapped weights takes major faults too."""
    return [signal for there in servers(observations, criteria, "cgroup") for signal in _faults(there, criteria)]


def _faults(there: dict[str, Arm], criteria: Criteria) -> list[Signal]:
    base = there.get("baseline")

    def look(arm: Arm) -> Trouble | None:
        other = base if arm.name == "candidate" else None
        stalled = max(arm.peak("memory_pressure_share") or 0.0, 0.0)
        for name, many, what in (
            ("major_page_faults", MANY_MAJOR_FAULTS, "page faults from disk"),
            ("page_faults", MANY_FAULTS, "page faults"),
        ):
            n, before = arm.total(name), other.total(name) if other else 0.0
            is_more = other is not None and bool(other.of(name)) and n > 2 * before + many
            is_stall = other is None and name == "major_page_faults" and n >= many and stalled >= STALLED
            if is_more or is_stall:
                beside = f", {stalled:.0%} of the time all tasks waited for memory" if stalled >= STALLED else ""
                return Trouble(
                    said=f"{n:g} {what}" + (f", {before:g} in the baseline" if other else "") + beside,
                    amount=n, level="warning" if name == "major_page_faults" else "note", events=arm.of(name),
                    measured=(Quantity(name=name, value=n),),
                    expected=(Quantity(name=name, value=before),) if other else (),
                    causes=(Cause(text="mapped weights are evicted and read again: less memory than they need"
                                  if name == "major_page_faults" else
                                  "memory is given back to the system and taken again at every step",
                                  refutable_by="a second run right after it faults as often"),),
                    next=("run with mlock or without mmap, or with more memory, and count again"
                          if name == "major_page_faults" else
                          "count faults of one step (perf stat -e page-faults) and look for its large allocations",),
                )  # fmt: skip
        return None

    looked_at = {name: arm for name, arm in there.items() if name == "candidate"} or there
    return signals("stability.page_faults", criteria, [looked_at], look)
