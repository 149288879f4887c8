"""Each rule of the playbook on a recorded signal that fires it and on one that must not."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from playbook_cases import among, answered, compared, context, experiment, number, target
from traces import device_events, spans

from feedback.criteria import Criteria
from feedback.observations import RuntimeEvent, Source
from feedback.rules.stability_host import page_faults
from feedback.rules.stability_load import cache_hits, queue_growth
from feedback.rules.utilization.exposed import copy_exposed
from feedback.rules.utilization.idle import idle_device
from feedback.rules.utilization.locks import lock_wait
from feedback.signals import HostLocation, Signal
from infra_agent.planner.playbook import Case
from infra_agent.planner.rulebook import Rule, shipped
from infra_agent.planner.symptoms import fits

Signals = Callable[[], tuple[Signal, ...]]
BOOK = {rule.id: rule for rule in shipped().rules}
ANY = Criteria(changed=(HostLocation(),))
LOADS = (("playbook/load_streams_1.jsonl", "load"), ("playbook/load_streams_4.jsonl", "load"))
BATCHES = (("playbook/kda_batch_1.jsonl", "slices"), ("playbook/kda_batch_16.jsonl", "slices"))


def of(base: str, candidate: str | None = None) -> Signals:
    return lambda: compared(base, candidate)


def asked(*files: tuple[str, str]) -> Signals:
    return lambda: answered(*files)


def devices(**how: int) -> Signals:
    return lambda: tuple(idle_device([spans(device_events(400, **how))], ANY))


def copies(stream: str) -> Signals:
    """No GPU was there to record: kernels, and copies in their stream or in another, of a made-up trace."""
    events = []
    for n in range(100):
        at, early = n * 70_000, max(0, n * 70_000 - 100_000)
        events.append(("kernel", "gemm", "gpu0/7", at, at + 50_000, 2 * n))
        begin = at + (50_000 if stream == "gpu0/7" else 10_000)
        events.append(("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", stream, begin, begin + 20_000, 2 * n + 1))
        events.append(("cuda_runtime", "cudaLaunchKernel", "main", early, early + 3000, 2 * n))
        events.append(("cuda_runtime", "cudaMemcpyAsync", "main", early + 4000, early + 7000, 2 * n + 1))
    return lambda: tuple(copy_exposed([spans(events)], ANY))


def locked(share: float) -> Signals:
    events = [("lock", "futex_wait", "worker", n * 1000, n * 1000 + int(1000 * share), -1) for n in range(500)]
    return lambda: tuple(lock_wait([spans(events)], ANY))


def counted(**counts: float) -> Signals:
    """Counters of a server in both arms' cgroups."""
    events = [
        RuntimeEvent(name=n.removesuffix("_before"), source="cgroup", probe="events", stage="screen", count=c,
                     arm="baseline" if n.endswith("_before") else "candidate")
        for n, c in counts.items()
    ]  # fmt: skip
    return lambda: tuple(page_faults(events, ANY))


def event(name: str, count: float = 1.0, message: str = "", source: str = "engine_log") -> RuntimeEvent:
    return RuntimeEvent.model_validate(
        {"name": name, "source": source, "probe": "events", "stage": "screen", "arm": "candidate", "count": count,
         "message": message}
    )  # fmt: skip


def caching(enabled: bool, shared: int | None = None) -> Signals:
    """Lookups without a hit, with the settings as vLLM's log states them; of prefixes that share so many tokens."""
    settings = [event("setting_prefix_caching", message=f"enable_prefix_caching = {enabled}"),
                event("setting_block_size", message="block_size = 784")]  # fmt: skip
    workload = [] if shared is None else [event("shared_prefix_tokens", shared, source="events")]
    looked_up = [event("cached_prompt_tokens", 0), event("looked_up_tokens", 50_000)]
    return lambda: tuple(cache_hits([*looked_up, *settings, *workload], ANY))


def queue(limit: int) -> Signals:
    """A queue that grows beside 8 running requests, of which so many may run."""
    log = Source(file="engine.log")
    series = [event("waiting_requests", 4.0 * n).model_copy(update={"place": log}) for n in range(20)]
    running = [event("running_requests", 8), event("setting_max_running", message=f"max_num_seqs = {limit}")]
    return lambda: tuple(queue_growth([*series, *running], ANY))


class Shown(NamedTuple):
    """What a rule must make of recorded signals."""

    fires: Signals
    silent: Signals
    named: str
    """In a message that it fires on."""


SHOWN: dict[str, Shown] = {
    "tests-fail": Shown(of("json_report/pytest.json"), of("parity/sum_fp32.jsonl"), "4 of 9 failed"),
    "flaky-test": Shown(of("junit/surefire.xml"), of("junit/pytest.xml"), "failed 1 of 2 attempts"),
    "tf32-in-a-float32-chain": Shown(of("parity/chain_fp32.jsonl", "parity/chain_tf32.jsonl"),
                                     of("parity/chain_fp32.jsonl", "parity/chain_tf32x3.jsonl"), "11.4 bits"),
    "bf16-where-float32-is-meant": Shown(of("parity/sum_bf16.jsonl"), of("parity/sum_fp32.jsonl"), "which is bf16"),
    "scale-lost-or-twice": Shown(of("parity/scale_missing.jsonl"), of("parity/scale_right.jsonl"), "too small"),
    "split-changes-the-result": Shown(of("parity/grouped_norm.jsonl"), of("parity/chain_fp32.jsonl"), "world_size"),
    "jump-at-a-boundary": Shown(of("parity/chunk_shifted.jsonl"), of("parity/rank_tf32x3.jsonl"), "start of chunk 1"),
    "stale-buffer": Shown(of("parity/stale_calls.jsonl"), of("parity/sum_fp32.jsonl"), "from a later call on"),
    "cache-format-changes-answers": Shown(of("llamacpp/logprobs_q4_0.jsonl"),
                                          of("llamacpp/logprobs_flash_attention_off.jsonl"), "logprob"),
    "requests-refused": Shown(of("guidellm/concurrent.json"), of("vllm_bench/detailed.json", "vllm_bench/summary.json"),
                              "503"),
    "context-exceeded": Shown(of("engine_logs/llamacpp_starved.log"), of("engine_logs/llamacpp_healthy.log"),
                              "context_exceeded 12x"),
    "engine-refuses-settings": Shown(of("llamacpp/refused_cache_type.log"), of("llamacpp/refused_batch.log"),
                                     "quantized V cache"),
    "out-of-memory": Shown(of("llamacpp/refused_memory.log"), of("cgroup/memory.events", "cgroup/cpu.pressure"),
                           "could not be had"),
    "threads-beyond-cores": Shown(of("cgroup/throttled_v1.txt"), of("cgroup/throttled_v1.txt", "cgroup/cpu.pressure"),
                                  "throttled in"),
    "throttled-by-quota": Shown(of("cgroup/throttled_v1.txt"), of("cgroup/memory.events"), "throttled in 100%"),
    "fewer-slots-than-users": Shown(asked(*LOADS), asked(LOADS[1]), "median_ttft_ms"),
    "spinning-threads": Shown(lambda: answered(("playbook/busy_machine.jsonl", "load")), asked(LOADS[0]), "busy"),
    "setting-not-taken": Shown(of("engine_logs/vllm_recompiles.log"), of("engine_logs/vllm_healthy.log"), "Truncating"),
    "preemption": Shown(of("metrics/vllm_starved.prom"), of("metrics/vllm_healthy.prom"), "17 preemptions"),
    "kv-cache-full": Shown(of("engine_logs/vllm_starved.log"), of("engine_logs/vllm_healthy.log"), "(100%)"),
    "memory-limit-hit": Shown(of("cgroup/memory.events"), of("llamacpp/refused_memory.log"), "412 times"),
    "cache-hits-lost": Shown(of("engine_logs/vllm_compiled.log", "engine_logs/vllm_grid_100.log"),
                             of("engine_logs/vllm_compiled.log", "engine_logs/vllm_healthy.log"), "fell from 80.4%"),
    "cache-never-hits": Shown(caching(True, 1600), of("metrics/vllm_healthy.prom"), "never hits"),
    "prefix-caching-off": Shown(caching(False), caching(True), "is False"),
    "batches-without-a-graph": Shown(of("engine_logs/vllm_grid_100.log"), of("engine_logs/vllm_grid_100_captured.log"),
                                     "batches of 97..100"),
    "graphs-off": Shown(devices(host_us=30, kernel_us=8), devices(), "idle"),
    "compiled-while-serving": Shown(of("engine_logs/vllm_recompiles.log"), of("engine_logs/vllm_compiled.log"),
                                    "after the first request"),
    "runs-uncompiled": Shown(of("jit/torch_recompiles.txt"), of("jit/triton_autotuning.txt"), "runs uncompiled"),
    "queue-behind-slots": Shown(queue(8), queue(64), "queue grew"),
    "prefix-shorter-than-a-block": Shown(caching(True, 240), caching(True, 1600), "the workload, not a bug"),
    "queue-behind-a-full-cache": Shown(of("engine_logs/vllm_overload.log"), of("engine_logs/vllm_overload.log",
                                                                 "engine_logs/llamacpp_healthy.log"), "79.5 waiting"),
    "gc-stall": Shown(of("gc/heavy.jsonl"), of("gc/light.jsonl"), "0.62 s"),
    "host-asks-the-device": Shown(of("torch_profiler/baseline.pt.trace.json.gz",
                                     "torch_profiler/candidate.pt.trace.json.gz"),
                                  of("torch_profiler/candidate.pt.trace.json.gz",
                                     "torch_profiler/baseline.pt.trace.json.gz"), "aten::item"),
    "page-faults": Shown(counted(major_page_faults=9000, major_page_faults_before=10),
                         counted(major_page_faults=12, major_page_faults_before=10), "page faults from disk"),
    "gil-held-by-a-native-call": Shown(of("gil_case/held.trace.json.gz"), of("gil_case/released.trace.json.gz"),
                                       "kv_transfer"),
    "lock-wait": Shown(locked(0.7), locked(0.02), "waits"),
    "transfer-not-overlapped": Shown(copies("gpu0/7"), copies("gpu0/9"), "cop"),
    "repeated-transcendentals": Shown(asked(("playbook/kda_decode.callgrind", "callgrind")),
                                      asked(("callgrind/tile128.out", "callgrind")), "__log1pf 19%"),
    "one-hot-function": Shown(asked(("playbook/kda_decode.callgrind", "callgrind")), asked(*BATCHES),
                              "kda_decode_program 63%"),
    "slower-than-in-proportion": Shown(asked(*BATCHES), asked(BATCHES[0]), "batch=16"),
    "more-work-than-before": Shown(of("callgrind/tile1024.out", "callgrind/tile128.out"),
                                   of("callgrind/tile128.out", "callgrind/tile1024.out"), "scale"),
}  # fmt: skip
"""Rules that fire on signals."""

BY_KNOBS: dict[str, tuple[dict[str, object], object, object]] = {
    "threads-beyond-cores": (number("threads"), 8, 2),
    "fewer-slots-than-users": (number("max_num_seqs"), 1, 4),
    "prefix-caching-off": (among("enable_prefix_caching", True, False), False, True),
    "graphs-off": (among("enforce_eager", True, False), True, False),
    "fused-attention": (among("flash_attn", "auto", "on", "off"), "off", "on"),
    "wide-kv-cache": (among("cache_type_k", "f16", "q8_0"), "f16", "q8_0"),
    "large-steps-for-few-users": (number("max_num_batched_tokens", suggest=[256]), 2048, 128),
}
"""Rules that fire on a knob: the knob, a value that fires and one that must not."""

UNRECORDED = {"prompts-hold-up-decoding": "needs a load in which many streams decode beside long prompts"}


def found(rule: Rule, signals: tuple[Signal, ...]) -> list[Signal]:
    return [s for s in signals if any(fits(w, s) for w in rule.when)]


@pytest.mark.parametrize("name", sorted(SHOWN))
def test_it_fires_on_its_signal(name: str) -> None:
    fired = found(BOOK[name], SHOWN[name].fires())
    assert fired, [(s.rule_id, s.finding, s.level, s.message) for s in SHOWN[name].fires()]
    assert any(SHOWN[name].named in s.message for s in fired), [s.message for s in fired]


@pytest.mark.parametrize("name", sorted(SHOWN))
def test_it_is_silent_on_what_looks_alike(name: str) -> None:
    assert [s.message for s in found(BOOK[name], SHOWN[name].silent())] == []


@pytest.mark.parametrize("name", sorted(BY_KNOBS))
def test_a_knob_in_force_fires_it_or_does_not(name: str, tmp_path: Path) -> None:
    knob, bad, good = BY_KNOBS[name]
    spec = target([knob])
    for value, fires in ((bad, True), (good, False)):
        case = Case(context(spec, tmp_path, {str(knob["name"]): value}), shipped())  # type: ignore[dict-item]
        assert (name in [f.rule.id for f in case.firings]) == fires


def test_every_rule_is_shown_or_says_why_not() -> None:
    assert set(BOOK) == {*SHOWN, *BY_KNOBS, *UNRECORDED}
    assert len(BOOK) >= 25


def test_what_was_only_in_the_baseline_fires_nothing() -> None:
    signals = compared("engine_logs/sglang_ceiling_32.log", "engine_logs/llamacpp_healthy.log")
    gone = [s for s in signals if s.message.startswith("no longer")]
    assert gone
    assert [rule.id for rule in BOOK.values() if found(rule, tuple(gone))] == []


def test_troubles_of_both_arms_of_an_aa_comparison_fire(tmp_path: Path) -> None:
    """A baseline against itself has every trouble twice, and feedback calls it a note: it is the parent's all the
    same."""
    twice = compared("engine_logs/vllm_grid_100.log", "engine_logs/sglang_ceiling_32.log")
    (signal,) = [s for s in twice if s.message.startswith("both arms") and s.rule_id == "stability.capture_grid"]
    assert signal.level == "note"
    case = Case(context(target(), tmp_path, experiments=[experiment(0, [signal], "baseline")]), shipped())
    assert "batches-without-a-graph" in [f.rule.id for f in case.firings]


@pytest.mark.parametrize("name", sorted(BOOK))
def test_a_rule_is_whole(name: str) -> None:
    rule = BOOK[name]
    assert re.search(r"[a-z]{4}", rule.why)
    assert rule.reference
    assert rule.needs
    assert any(step.moves or step.transform for step in rule.do) or all(s.code or s.ask for s in rule.do)
    if rule.expect:
        assert 0 <= rule.expect[0] <= rule.expect[1] <= 5


def test_priorities_are_an_experts() -> None:
    order = ["split-changes-the-result", "threads-beyond-cores", "preemption", "cache-hits-lost",
             "batches-without-a-graph", "compiled-while-serving", "queue-behind-slots", "gc-stall",
             "transfer-not-overlapped", "one-hot-function", "wide-kv-cache"]  # fmt: skip
    tiers = [BOOK[name].tier for name in order]
    assert tiers == sorted(set(tiers))
