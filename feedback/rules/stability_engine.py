"""Rules on what an inference engine says of itself: preemption, memory, compilation, graphs, settings."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from feedback.criteria import Criteria
from feedback.observations import Observation, RuntimeEvent
from feedback.rules import rule
from feedback.rules.arms import Arm, Trouble, servers, signals
from feedback.signals import Cause, CodeLocation, KernelLocation, Location, ParamLocation, Quantity, Signal

RARE = 0.01
"""Preemptions for each finished request below which latencies hardly feel them."""
FULL = 0.95
"""Share of the KV cache in use from which it counts as full."""

MEMORY = ("device_oom", "kv_cache_too_small", "allocation_failed", "oom_kills")
SETTINGS = (
    "setting_ignored", "setting_overridden", "setting_disabled", "cache_reuse_refused", "batch_lowered",
    "graph_ceiling_low",
)  # fmt: skip
CONTEXT = ("context_exceeded", "input_truncated", "context_shift", "kv_cache_full")
COMPILES = ("recompile_limit", "recompilation", "graph_capture")
OWNED = frozenset({"preemptions", *MEMORY, *CONTEXT, *SETTINGS, *COMPILES})
"""Names of events that a rule of this module speaks of; `stability.runtime_event` leaves them to it."""


@rule(
    "stability.preemption",
    says="running requests lost their KV cache and were computed again",
    needs="Prometheus scrapes or engine logs",
)
def preemption(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """Preempted (vLLM) or retracted (SGLang) requests, and the tokens that were computed again for them."""

    def look(arm: Arm) -> Trouble | None:
        n = arm.total("preemptions")
        if not n > 0:
            return None
        requests = arm.total("finished_requests")
        again = arm.total("retracted_input_tokens", "retracted_output_tokens")
        # A scrape's gauge is of its own moment, often after the load: only a full one tells of the run.
        usage = max((e.count for e in arm.events if e.name == "kv_cache_usage"
                     and (e.source == "engine_log" or e.count >= FULL)), default=None)  # fmt: skip
        said = f"{n:g} preemptions" + (f" over {requests:g} requests" if requests else "")
        said += f", {again:g} tokens computed again" if again else ": their tokens are computed again"
        limit = arm.setting("max_running")
        is_full = usage is not None and usage >= FULL
        return Trouble(
            said=said, amount=n / requests if requests else n,
            level="note" if requests and n < RARE * requests else "warning",
            events=arm.of("preemptions", "retracted_input_tokens", "retracted_output_tokens"),
            measured=(
                Quantity(name="preemptions", value=n),
                *((Quantity(name="kv_cache_usage", value=usage),) if usage is not None else ()),
            ),
            expected=(Quantity(name="preemptions", value=0),),
            places=(ParamLocation(name=limit[0], value=limit[1]),) if limit else (),
            causes=(
                Cause(
                    text="the KV cache holds fewer tokens than the running requests grow to",
                    support="strong" if is_full else "moderate",
                    refutable_by="the same load with twice the KV cache preempts as often",
                ),
            ),
            next=(f"run the same load with {limit[0] if limit else 'the limit of running requests'} "
                  + (f"at {max(1, int(running / 2))}" if (running := arm.peak("running_requests")) else "halved")
                  + ": preemptions must vanish; then choose between a larger cache and fewer running requests",),
        )  # fmt: skip

    return signals("stability.preemption", criteria, servers(observations, criteria, "metrics", "engine_log"), look)


@rule(
    "stability.context",
    says="requests were refused or cut off because their context, or the KV cache that they share, was full",
    needs="engine logs",
)
def context(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """Answers that are missing or shortened, or slots that waited for room: such an arm does less work."""

    def look(arm: Arm) -> Trouble | None:
        found = [e for name in CONTEXT for e in arm.of(name)]
        if not found:
            return None
        cells, slots, own = arm.setting("kv_cells"), arm.setting("max_running"), arm.setting("context")
        known = [setting for setting in (own, cells, slots) if setting]
        size = ", ".join(f"{knob} {value}" for knob, value in known)
        lost = [e for e in found if e.level == "error"]
        what = "requests were refused or cut off" if lost else "the KV cache had no room for a step"
        said = "; ".join(f"{e.name} {e.count:g}x" for e in found)
        return Trouble(
            said=f"{what}: {said}" + (f" ({size})" if size else ""),
            amount=sum(e.count for e in lost or found), level="error" if lost else "warning", events=found,
            measured=tuple(Quantity(name=e.name, value=e.count) for e in found),
            expected=tuple(Quantity(name=e.name, value=0) for e in found),
            places=tuple(ParamLocation(name=knob, value=value) for knob, value in known),
            causes=(Cause(text="the running requests together are longer than the KV cache, which they share"
                          if arm.of("kv_cache_full") else "single requests are longer than the context of a slot",
                          support="strong", refutable_by="one request at a time fails as well"
                          if arm.of("kv_cache_full") else "the longest prompt and answer together fit the context"),),
            next=("send the same requests one after the other: if they pass, raise the context or lower the slots; "
                  "if not, the requests themselves are too long",),
            caveats=("throughput and latency of this arm are of fewer or shorter answers",) if lost else (),
        )  # fmt: skip

    return signals("stability.context", criteria, servers(observations, criteria, "engine_log"), look)


@rule(
    "stability.memory",
    says="memory ran out, or a limit was hit and only reclaiming saved the process",
    needs="engine logs, cgroup counters",
)
def memory(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """Out of memory, and how near it came."""

    def look(arm: Arm) -> Trouble | None:
        failed = [e for e in arm.of(*MEMORY) if e.count > 0]
        hits, near = arm.total("memory_limit_hits"), arm.of("memory_limit_hits")
        if failed:
            worst = failed[0]
            said = f"{worst.count:g} OOM kills by the kernel" if worst.name == "oom_kills" else worst.message
            return Trouble(
                said=said, amount=sum(e.count for e in failed), level="error", events=failed,
                measured=tuple(Quantity(name=e.name, value=e.count) for e in failed[:4]),
                next=("raise memory.max, or lower what is reserved up front, and look at memory.peak"
                      if worst.name == "oom_kills" else
                      "lower the memory that is reserved up front (gpu_memory_utilization, mem-fraction-static, "
                      "context) by a tenth and start again",),
            )  # fmt: skip
        if hits > 0:
            return Trouble(
                said=f"the memory limit was hit {hits:g} times; reclaiming pages saved the process",
                amount=hits, level="warning", events=near,
                measured=(Quantity(name="memory_limit_hits", value=hits),),
                expected=(Quantity(name="memory_limit_hits", value=0),),
                causes=(Cause(text="the file cache (mapped weights, logs) counts against the limit too",
                              refutable_by="workingset_refault_file stays at 0"),),
                next=("raise memory.max by a quarter: the hits must vanish",),
            )  # fmt: skip
        return None

    return signals("stability.memory", criteria, servers(observations, criteria, "engine_log", "cgroup"), look)


@rule(
    "stability.recompilation",
    says="code was compiled or graphs were captured while requests waited, or so often that it now runs uncompiled",
    needs="engine logs, TORCH_LOGS=recompiles, Triton autotuning messages",
)
def recompilation(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """Compilation after the first request. What compiles before it is warm-up, and no finding."""

    def look(arm: Arm) -> Trouble | None:
        found = arm.of(*COMPILES)
        if not found:
            return None
        gave_up = [e for e in found if e.name == "recompile_limit"]
        served = [e for e in found if e.source == "engine_log"]
        n = sum(e.count for e in found if e.name != "recompile_limit")
        worst = max((e for e in found if e.name != "recompile_limit"), key=lambda e: e.count, default=found[0])
        said = f"{n:g} compilations" + (" after the first request" if served else "") if n else ""
        if gave_up:
            said = f"{said} until the limit: the function now runs uncompiled".removeprefix(" until the limit: ")
        reason = next((e.message.rpartition(": - ")[2] for e in arm.of("recompile_reason")), "")
        return Trouble(
            said=f"{said}; {reason or worst.message}"[:300], amount=n + 100 * len(gave_up),
            level="warning" if gave_up or served else "note", events=[*gave_up, worst, *arm.of("recompile_reason")],
            measured=(Quantity(name="compilations", value=n),),
            expected=(Quantity(name="compilations", value=0),) if served else (),
            places=_compiled(worst),
            causes=(Cause(text="a shape that warm-up did not cover, or one that is taken for constant",
                          refutable_by="a warm-up over the same shapes leaves the count unchanged"),),
            next=("mark the varying dimension dynamic (mark_dynamic, dynamic=True) or add the shape to the warm-up, "
                  "and count again",),
            caveats=() if served else ("this log doesn't say which compilations belong to warm-up",),
        )  # fmt: skip

    return signals("stability.recompilation", criteria, servers(observations, criteria, "engine_log", "jit"), look)


def _compiled(event: RuntimeEvent) -> tuple[Location, ...]:
    """The function or kernel that was compiled, where the message names one."""
    if found := re.search(r"Recompiling function (\S+) in (\S+):(\d{1,7})$", event.message):
        return (CodeLocation(file=found[2], line=int(found[3]), symbol=found[1]),)
    if found := re.search(r"(?:during inference:|autotuning for function) ([\w.<>]+)", event.message):
        return (KernelLocation(name=found[1].rstrip(".")),)
    return ()


@rule(
    "stability.capture_grid",
    says="batches that the engine may run have no captured graph",
    needs="engine logs (launch parameters; SGLang's decode lines)",
)
def capture_grid(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """Config logic: the largest batch that may run against the largest that was captured, and what ran."""
    return signals("stability.capture_grid", criteria, servers(observations, criteria, "engine_log"), _uncaptured)


def _uncaptured(arm: Arm) -> Trouble | None:
    limit, ceiling = arm.whole("max_running"), _ceiling(arm)
    mode = arm.setting("graph_mode")
    knob = arm.setting("max_running")
    if limit is None or knob is None or not ceiling or ceiling >= limit or (mode and mode[1] == "NONE"):
        return None
    running, used = arm.of("running_requests"), arm.of("graph_used")
    peak = max((e.count for e in running), default=None)
    missed = [e for e in running if e.count > ceiling] if not used else [e for e in used if e.count == 0]
    full = "full " if mode and "FULL" in mode[1] else ""
    said = f"batches of {ceiling + 1}..{limit} have no {full}graph ({knob[0]} {limit}, largest captured {ceiling})"
    if missed:
        said += f"; {len(missed)} of {len(used or running)} sampled steps ran without one"
    elif peak is not None:
        said += f"; the run never had more than {peak:g} requests"
    sizes = arm.setting("capture_sizes") or arm.setting("capture_max") or ("", "")
    wanted = f"{limit}" if limit <= 2 * ceiling or peak is None else f"sizes up to {max(peak, ceiling + 1):g}"
    return Trouble(
        said=said, amount=len(missed) / len(used or running) if missed else 0.0,
        level="note" if peak is not None and not missed else "warning",
        events=[*(e for e in arm.events if e.name in ("setting_max_running", "setting_capture_sizes",
                                                      "setting_capture_max")), *missed[:3]],
        measured=(Quantity(name="largest_captured_batch", value=ceiling),),
        expected=(Quantity(name="largest_captured_batch", value=limit),),
        places=(ParamLocation(name=knob[0], value=limit), ParamLocation(name=sizes[0])),
        causes=(Cause(text=f"{knob[0]} and the capture sizes are derived apart", support="strong",
                      refutable_by=f"a step at batch {limit} replays a {full}graph in a trace"),),
        next=(f"add {wanted} to {sizes[0]}, or set {knob[0]} to {ceiling}; time one decode step at "
              f"{ceiling} and at {ceiling + 1}",),
    )  # fmt: skip


def _ceiling(arm: Arm) -> int | None:
    """The largest batch with a graph. vLLM pads a batch up to a captured size, but takes full graphs only up to
    max_num_seqs: of a grid in steps of 8 the last sizes below it are left without one."""
    sizes = [int(text) for text in re.findall(r"\d{1,7}", (arm.setting("capture_sizes") or ("", ""))[1])]
    top = max([*sizes, arm.whole("capture_max") or 0])
    mode = arm.setting("graph_mode")
    if mode and "FULL" in mode[1]:
        top = max((size for size in sizes if size <= (arm.whole("max_running") or math.inf)), default=top)
    return top or None


@rule(
    "stability.config_event",
    says="what was set is not what runs: the engine ignored, changed or switched off a setting",
    needs="engine logs",
)
def config_event(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """Settings that the engine did not take as they were; first the one that the change is about."""
    return [
        signal
        for there in servers(observations, criteria, "engine_log")
        for signal in _not_taken(there, criteria)
    ]  # fmt: skip


def _not_taken(there: dict[str, Arm], criteria: Criteria) -> list[Signal]:
    known = {e.message for e in there["baseline"].of(*SETTINGS)} if "baseline" in there else set()
    changed = {place.name: place for place in criteria.changed if isinstance(place, ParamLocation)}

    def look(arm: Arm) -> Trouble | None:
        events = arm.of(*SETTINGS)
        if arm.name == "candidate":
            events.sort(key=lambda e: e.message in known)
        if not events:
            return None
        about = next((name for name in changed for e in events if _names(e.message, name)), "")
        events.sort(key=lambda e: not (about and _names(e.message, about)))
        n = len(events)
        said = f"{events[0].message}" + (f" (and {n - 1} more)" if n > 1 else "")
        return Trouble(
            said=f"what is set is not what runs: {said}"[:300], level="warning", events=events,
            measured=(Quantity(name="settings_not_taken", value=sum(e.count for e in events)),),
            amount=math.inf if about and arm.name == "candidate" else sum(e.message not in known for e in events),
            places=(changed[about],) if about else (),
            next=("take the engine's own value as the setting, or drop the setting: as it stands, a comparison "
                  "measures something else",),
        )  # fmt: skip

    return signals("stability.config_event", criteria, [there], look)


def _names(message: str, knob: str) -> bool:
    """Whether a message speaks of a knob, whatever stands between its words."""
    words = re.split(r"[^a-z0-9]+", knob.lower().rpartition(".")[2])
    return any(words) and re.search(r"[\s_-]?".join(map(re.escape, words)), message.lower()) is not None
