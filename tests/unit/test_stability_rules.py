"""Rules on runtime events: each with a file that fires and one that must not."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from feedback.criteria import Criteria, MetricCriterion
from feedback.observations import Observation, RuntimeEvent, Source
from feedback.ranking import rank
from feedback.readers import formats
from feedback.rules import Rule
from feedback.rules.derive import RULES, derive
from feedback.rules.stability import runtime_event
from feedback.rules.stability_engine import (
    capture_grid,
    config_event,
    context,
    memory,
    preemption,
    recompilation,
)
from feedback.rules.stability_host import gc_stall, page_faults, throttling
from feedback.rules.stability_load import cache_hits, queue_growth
from feedback.rules.stability_servers import config_difference, kv_cache_usage, server_difference
from feedback.signals import CodeLocation, KernelLocation, ParamLocation, ProcessLocation, Signal
from feedback.stats import trend

DATA = Path(__file__).resolve().parents[1] / "data"
PLAIN = Criteria(changed=())
KNOB = Criteria(changed=(ParamLocation(name="server.cache_reuse", value=256, was=0),))


def load(arm: str, *files: str) -> list[Observation]:
    found: list[Observation] = []
    for file in files:
        path = DATA / file
        found += formats.detect(path).read(path, "server", "screen", arm)  # type: ignore[arg-type]
    return found


def event(name: str, source: str = "engine_log", **fields: Any) -> RuntimeEvent:
    return RuntimeEvent.model_validate({"probe": "server", "source": source, "name": name} | fields)


def only(found: Sequence[Signal]) -> Signal:
    assert len(found) == 1
    return found[0]


def text_of(tmp_path: Path, file: str, change: Callable[[str], str], arm: str = "candidate") -> list[Observation]:
    path = tmp_path / Path(file).name
    path.write_text(change((DATA / file).read_text(encoding="utf-8")), encoding="utf-8")
    return list(formats.detect(path).read(path, "server", "screen", arm))  # type: ignore[arg-type]


# What fires on which recorded or made file, alone, and what must not.

FIRES: list[tuple[Rule, str, str, str]] = [
    (preemption, "metrics/vllm_starved.prom", "warning", "17 preemptions over 16 requests"),
    (preemption, "engine_logs/sglang_ceiling_32.log", "warning", "9 preemptions"),
    (context, "engine_logs/llamacpp_starved.log", "error", "context_exceeded 12x; kv_cache_full 78x"),
    (memory, "llamacpp/refused_memory.log", "error", "insufficient memory"),
    (memory, "cgroup/throttled_v1.txt", "error", "1 OOM kills by the kernel"),
    (memory, "cgroup/memory.events", "warning", "hit 412 times"),
    (recompilation, "engine_logs/vllm_recompiles.log", "warning", "2 compilations after the first request"),
    (recompilation, "jit/torch_recompiles.txt", "warning", "8 compilations until the limit"),
    (capture_grid, "engine_logs/vllm_grid_100.log", "warning", "batches of 97..100 have no full graph"),
    (capture_grid, "engine_logs/sglang_ceiling_32.log", "warning", "18 of 24 sampled steps"),
    (config_event, "engine_logs/vllm_recompiles.log", "warning", "Truncating max_cudagraph_capture_size to 4"),
    (queue_growth, "engine_logs/vllm_overload.log", "warning", "from 12 to 79.5 waiting requests over 110 s"),
    (gc_stall, "gc/heavy.jsonl", "warning", "at worst 0.62 s"),
    (throttling, "cgroup/throttled_v1.txt", "warning", "throttled in 100% of 74 periods"),
]

SILENT: list[tuple[Rule, str]] = [
    (preemption, "metrics/vllm_healthy.prom"),
    (preemption, "engine_logs/sglang_ceiling_128.log"),
    (context, "engine_logs/llamacpp_healthy.log"),
    (memory, "engine_logs/llamacpp_healthy.log"),
    (memory, "cgroup/throttled_v2.txt"),
    (recompilation, "engine_logs/vllm_grid_100.log"),  # it compiles, before the first request
    (recompilation, "engine_logs/vllm_compiled.log"),
    (recompilation, "jit/triton_autotuning.txt"),
    (capture_grid, "engine_logs/vllm_grid_100_captured.log"),
    (capture_grid, "engine_logs/sglang_ceiling_128.log"),
    (capture_grid, "engine_logs/vllm_healthy.log"),  # eager: there are no graphs
    (config_event, "engine_logs/llamacpp_healthy.log"),
    (config_event, "engine_logs/vllm_grid_100.log"),
    (config_event, "engine_logs/vllm_compiled.log"),
    (queue_growth, "engine_logs/vllm_grid_100.log"),
    (queue_growth, "engine_logs/sglang_ceiling_32.log"),
    (queue_growth, "engine_logs/vllm_starved.log"),  # too few samples
    (cache_hits, "metrics/vllm_healthy.prom"),
    (cache_hits, "metrics/llamacpp_healthy.prom"),  # too few tokens
    (gc_stall, "gc/light.jsonl"),
    (gc_stall, "gc/debug_stats.txt"),
    (throttling, "cgroup/throttled_v2.txt"),
    (throttling, "cgroup/cpu.stat"),
    (page_faults, "cgroup/throttled_v1.txt"),
]


@pytest.mark.parametrize(("rule", "file", "level", "words"), FIRES)
def test_rule_fires_on_one_arm(rule: Rule, file: str, level: str, words: str) -> None:
    signal = only(rule(load("candidate", file), PLAIN))
    assert signal.rule_id in rule.ids
    assert words in signal.message
    assert (signal.level, signal.finding) == (level, "observed")
    assert signal.evidence
    assert signal.evidence[0].artefact == Path(file).name
    assert signal.evidence[0].line
    assert signal.measured
    assert signal.next


@pytest.mark.parametrize(("rule", "file"), SILENT)
def test_rule_is_silent(rule: Rule, file: str) -> None:
    assert rule(load("candidate", file), PLAIN) == []


@pytest.mark.parametrize(("rule", "file", "level", "words"), FIRES)
def test_same_trouble_in_both_arms_is_not_the_changes(rule: Rule, file: str, level: str, words: str) -> None:
    signal = only(rule([*load("baseline", file), *load("candidate", file)], PLAIN))
    assert signal.level == "note"
    assert "both arms" in signal.message
    assert {p.arm for p in signal.locations if isinstance(p, ProcessLocation)} == {"candidate", "baseline"}


@pytest.mark.parametrize(("rule", "file", "level", "words"), FIRES)
def test_trouble_of_another_stage_is_not_told(rule: Rule, file: str, level: str, words: str) -> None:
    assert rule(load("candidate", file), Criteria(changed=(), stage="confirm")) == []


def test_trouble_in_the_candidate_only_is_the_changes() -> None:
    both = [*load("baseline", "metrics/vllm_healthy.prom"), *load("candidate", "metrics/vllm_starved.prom")]
    signal = only(preemption(both, KNOB))
    assert signal.message.endswith("; not in the baseline")
    assert KNOB.changed[0] in signal.locations


def test_trouble_that_is_gone_is_a_note() -> None:
    both = [*load("baseline", "metrics/vllm_starved.prom"), *load("candidate", "metrics/vllm_healthy.prom")]
    signal = only(preemption(both, PLAIN))
    assert signal.level == "note"
    assert signal.message.startswith("no longer in the candidate: 17 preemptions")


# Preemption.


def test_rare_preemptions_are_a_note_and_recomputed_tokens_are_counted() -> None:
    events = [
        event("preemptions", "metrics", level="warning", count=3),
        event("finished_requests", "metrics", count=1000),
        event("retracted_input_tokens", "metrics", count=800),
        event("retracted_output_tokens", "metrics", count=200),
    ]
    signal = only(preemption(events, PLAIN))
    assert signal.level == "note"
    assert "1000 tokens computed again" in signal.message


def test_preemptions_that_log_and_metrics_tell_are_counted_once() -> None:
    events = [event("preemptions", "metrics", count=3), event("preemptions", "engine_log", count=3)]
    assert only(preemption(events, PLAIN)).measured[0].value == 3


def test_cause_is_strong_only_when_the_cache_was_full() -> None:
    full = only(preemption(load("candidate", "engine_logs/vllm_starved.log", "metrics/vllm_starved.prom"), PLAIN))
    assert full.causes[0].support == "strong"
    assert ParamLocation(name="max_num_seqs", value="12") in full.locations
    assert only(preemption([event("preemptions", "metrics")], PLAIN)).causes[0].support == "moderate"


# Recompilation, graphs.


def test_recompiled_function_is_located() -> None:
    signal = only(recompilation(load("candidate", "jit/torch_recompiles.txt"), PLAIN))
    assert CodeLocation(file="recompile.py", line=3, symbol="decode_step") in signal.locations
    assert "size mismatch at index 0. expected 1, actual 2" in signal.message
    served = only(recompilation(load("candidate", "engine_logs/vllm_recompiles.log"), PLAIN))
    assert KernelLocation(name="_topk_kernel") in served.locations


def test_few_recompilations_in_a_log_without_requests_are_a_note(tmp_path: Path) -> None:
    head = text_of(tmp_path, "jit/torch_recompiles.txt", lambda text: "\n".join(text.splitlines()[:7]) + "\n")
    signal = only(recompilation(head, PLAIN))
    assert signal.level == "note"
    assert "warm-up" in signal.caveats[0]


def test_knobs_of_the_capture_grid_are_named_with_the_next_step() -> None:
    signal = only(capture_grid(load("candidate", "engine_logs/vllm_grid_100.log"), PLAIN))
    assert [p.name for p in signal.locations if isinstance(p, ParamLocation)] == [
        "max_num_seqs", "cudagraph_capture_sizes",
    ]  # fmt: skip
    assert "add 100 to cudagraph_capture_sizes, or set max_num_seqs to 96" in signal.next[0]
    low = only(capture_grid(load("candidate", "engine_logs/sglang_ceiling_32.log"), PLAIN))
    assert "sizes up to 69" in low.next[0]


def test_batches_that_never_ran_are_a_note(tmp_path: Path) -> None:
    def idle(text: str) -> str:
        return "\n".join(line for line in text.splitlines() if "Running: 9" not in line and "Running: 100" not in line)

    signal = only(capture_grid(text_of(tmp_path, "engine_logs/vllm_grid_100.log", idle), PLAIN))
    assert signal.level == "note"
    assert "never had more than 77 requests" in signal.message


def test_capture_grid_from_the_configuration_alone_warns(tmp_path: Path) -> None:
    start = text_of(tmp_path, "engine_logs/vllm_grid_100.log", lambda text: "\n".join(text.splitlines()[:7]))
    assert only(capture_grid(start, PLAIN)).level == "warning"


def test_piecewise_graphs_pad_up_to_any_captured_size(tmp_path: Path) -> None:
    def piecewise(text: str) -> str:
        return text.replace("FULL_AND_PIECEWISE", "PIECEWISE")

    assert capture_grid(text_of(tmp_path, "engine_logs/vllm_grid_100.log", piecewise), PLAIN) == []


# Settings.


def refused(arm: str, message: str = "the engine said: cache_reuse is not supported by this context") -> RuntimeEvent:
    place = Source(file="server.log", line=9)
    return event("cache_reuse_refused", level="warning", message=message, arm=arm, place=place)


def test_changed_knob_that_the_engine_ignored_comes_first() -> None:
    other = event("setting_disabled", level="warning", message="the engine switched a feature off: x", arm="candidate")
    both = [event("slots", arm="baseline"), other, refused("candidate")]
    signal = only(config_event(both, KNOB))
    assert signal.locations[0] == KNOB.changed[0]
    assert "cache_reuse is not supported" in signal.message
    assert "(and 1 more)" in signal.message


def test_settings_ignored_in_both_arms_alike_are_a_note_unless_the_change_is_about_them() -> None:
    both = [refused("baseline"), refused("candidate")]
    assert only(config_event(both, PLAIN)).level == "note"
    assert only(config_event(both, KNOB)).level == "warning"


# Prefix cache.


def prompts(hits: float, lookups: float = 10_000, arm: str = "candidate") -> list[RuntimeEvent]:
    return [
        event("cached_prompt_tokens", "metrics", count=hits, arm=arm),
        event("looked_up_tokens", "metrics", count=lookups, arm=arm),
    ]


def block(size: int, shared: float | None = None) -> list[RuntimeEvent]:
    known = [event("setting_block_size", message=f"block_size = {size}")]
    return known if shared is None else [*known, event("shared_prefix_tokens", "events", count=shared)]


def test_hits_that_fell_against_the_baseline_are_lost() -> None:
    signal = only(cache_hits([*prompts(5000, arm="baseline"), *prompts(1000)], KNOB))
    assert (signal.level, signal.message) == (
        "warning", "prefix cache hits fell from 50.0% to 10.0% of the looked up tokens",
    )  # fmt: skip
    assert KNOB.changed[0] in signal.locations


@pytest.mark.parametrize("after", [5000, 4200, 9000])
def test_hits_that_scatter_or_rise_say_nothing(after: float) -> None:
    assert cache_hits([*prompts(5000, arm="baseline"), *prompts(after)], PLAIN) == []


def test_no_hits_with_a_prefix_shorter_than_a_block_is_the_workload() -> None:
    # vllm-project/vllm #54607: 240 shared tokens, a block of 784.
    signal = only(cache_hits([*prompts(0), *block(784, shared=240)], PLAIN))
    assert (signal.level, signal.finding) == ("note", "holds")
    assert signal.message.startswith("the workload, not a bug: ")
    assert "(240 tokens) is shorter than one block (784)" in signal.message


def test_no_hits_with_a_long_shared_prefix_is_a_defect() -> None:
    # vllm-project/vllm #44082: what is stored and what is looked up never meet.
    signal = only(cache_hits([*prompts(0), *block(16, shared=240)], PLAIN))
    assert (signal.level, signal.finding) == ("warning", "observed")
    assert "240 tokens are shared" in signal.message


def test_no_hits_without_knowing_the_workload_is_inconclusive(tmp_path: Path) -> None:
    def none(text: str) -> str:
        return text.replace('vllm:prefix_cache_hits_total{engine="0",model_name="tiny"} 1440.0',
                            'vllm:prefix_cache_hits_total{engine="0",model_name="tiny"} 0.0')  # fmt: skip

    signal = only(cache_hits(text_of(tmp_path, "metrics/vllm_starved.prom", none), PLAIN))
    assert (signal.level, signal.finding) == ("note", "inconclusive")
    assert "in 1792 looked up tokens" in signal.message
    assert ParamLocation(name="block_size", value="32") in signal.locations


def test_no_hits_with_the_cache_switched_off_is_what_was_asked_for() -> None:
    off = event("setting_prefix_caching", "metrics", message="enable_prefix_caching = False")
    assert only(cache_hits([*prompts(0), off], PLAIN)).finding == "holds"


def test_hit_rate_of_a_log_is_enough() -> None:
    rates = [event("prefix_cache_hit_rate", count=rate, arm=arm) for arm, rate in (("baseline", 0.5), ("candidate", 0))]
    assert only(cache_hits(rates, PLAIN)).level == "warning"


# Warnings.


def test_warning_that_only_the_candidate_raises_is_told_with_its_place(tmp_path: Path) -> None:
    def without(text: str) -> str:
        return text.replace("warn_demo.py:10: RuntimeWarning", "warn_demo.py:10: note")

    before = text_of(tmp_path, "warnings/warnings.txt", without, "baseline")
    signal = only(derive([*before, *load("candidate", "warnings/warnings.txt")], PLAIN))
    assert signal.locations[0] == CodeLocation(file="warn_demo.py", line=10)
    assert "falling back to eager mode" in signal.message
    assert signal.evidence[0].line == 11


# Queues.


def test_queue_that_grows_in_both_arms_is_the_workload() -> None:
    both = [*load("baseline", "engine_logs/vllm_overload.log"), *load("candidate", "engine_logs/vllm_overload.log")]
    signal = only(queue_growth(both, PLAIN))
    assert signal.finding == "holds"
    assert signal.message.startswith("the workload, not a bug: the queue grew")


def test_queue_that_grows_in_the_candidate_only_is_the_changes() -> None:
    files = ("engine_logs/vllm_grid_100.log", "engine_logs/vllm_overload.log")
    signal = only(queue_growth([*load("baseline", files[0]), *load("candidate", files[1])], PLAIN))
    assert signal.level == "warning"
    assert signal.message.endswith("not in the baseline")
    assert [c.support for c in signal.causes] == ["strong", "strong", "moderate"]


def waiting(values: Sequence[float]) -> list[RuntimeEvent]:
    place = Source(file="server.log", line=1)
    return [event("waiting_requests", count=v, at_s=10.0 * i, place=place) for i, v in enumerate(values)]


@pytest.mark.parametrize(
    "values",
    [
        [40, 36, 33, 28, 20, 15, 9, 4, 0, 0],  # a burst that is worked off
        [0, 1, 0, 2, 1, 3, 2, 3, 2, 3],  # a few
        [20, 25, 18, 22, 27, 19, 23, 26, 21, 24],  # a steady one
        [0, 0, 0, 30, 28, 25, 20, 10, 4, 0],  # a wave
        [0, 50, 90],  # too few samples
        [math.nan] * 12,
    ],
)
def test_queue_that_does_not_grow_over_the_run_says_nothing(values: list[float]) -> None:
    assert queue_growth(waiting(values), PLAIN) == []


def test_trend_is_that_of_mann_and_kendall() -> None:
    assert trend(range(10)) == pytest.approx(45 / math.sqrt(10 * 9 * 25 / 18))
    assert trend(list(reversed(range(10)))) == pytest.approx(-trend(range(10)))
    assert trend([5] * 10) == trend([1, 2, 3]) == 0


# Host.


def test_pauses_that_an_engine_logs_itself_are_stalls() -> None:
    line = "(EngineCore pid=2) INFO 11-30 10:00:00 [gc_utils.py:78] GC took 412.500ms to complete. Collected 3 objects"
    pauses = [event("gc_pause_s", count=0.4125, message=line, place=Source(file="v.log", line=3))]
    assert "at worst 0.41 s" in only(gc_stall(pauses, PLAIN)).message


def test_pressure_and_faults_against_the_baseline() -> None:
    def group(arm: str, major: float, minor: float = 0) -> list[RuntimeEvent]:
        return [event("major_page_faults", "cgroup", count=major, arm=arm),
                event("page_faults", "cgroup", count=minor, arm=arm)]  # fmt: skip

    signal = only(page_faults([*group("baseline", 800), *group("candidate", 9000)], PLAIN))
    assert (signal.level, signal.message) == ("warning", "9000 page faults from disk, 800 in the baseline")
    assert page_faults([*group("baseline", 800), *group("candidate", 1500)], PLAIN) == []
    minor = only(page_faults([*group("baseline", 0, 1e5), *group("candidate", 0, 9e5)], PLAIN))
    assert minor.level == "note"
    stalled = [*group("candidate", 9000), event("memory_pressure_share", "cgroup", count=0.3)]
    assert "30% of the time" in only(page_faults(stalled, PLAIN)).message
    assert page_faults(group("candidate", 9000), PLAIN) == []


# All of them.


def test_two_llamacpp_logs_give_one_signal_that_says_it_all_beside_the_settings() -> None:
    files = ("engine_logs/llamacpp_healthy.log", "engine_logs/llamacpp_starved.log")
    signal, settings = derive([*load("baseline", files[0]), *load("candidate", files[1])], PLAIN)
    assert settings.rule_id == "stability.config_difference"
    assert signal.rule_id == "stability.context"
    assert "n_ctx_slot 256" in signal.message


def test_two_healthy_runs_give_nothing() -> None:
    for file in ("engine_logs/llamacpp_healthy.log", "engine_logs/vllm_healthy.log", "metrics/vllm_healthy.prom"):
        assert derive([*load("baseline", file), *load("candidate", file)], PLAIN) == []


def test_stability_rules_never_raise_on_odd_data() -> None:
    names = ["preemptions", "finished_requests", "kv_cache_usage", "oom_kills", "memory_limit_hits", "recompilation",
             "recompile_limit", "recompile_reason", "setting_max_running", "setting_capture_sizes", "graph_used",
             "setting_graph_mode", "running_requests", "waiting_requests", "setting_ignored", "cached_prompt_tokens",
             "prompt_tokens", "prefix_cache_hit_rate", "shared_prefix_tokens", "setting_block_size", "gc_pause",
             "gc_window", "gc_generation_2", "cpu_periods", "cpu_throttled_periods", "major_page_faults",
             "memory_pressure_share", "context_exceeded", "kv_cache_full"]  # fmt: skip
    sources = ["engine_log", "metrics", "gc", "cgroup", "jit", "events"]
    for count in (math.nan, math.inf, -math.inf, -1.0, 0.0, 1e308):
        for message in ("", " = ", "x = 9" * 300, "knob = " + "9" * 400, "\x00\n"):
            odd = [
                event(name, source, count=count, message=message, arm=arm, duration_s=count, at_s=count)
                for name in names for source in sources for arm in ("baseline", "candidate")
            ] * 2  # fmt: skip
            for signal in derive(odd, PLAIN):
                assert signal.rule_id in {name for rule in RULES for name in rule.ids}
            derive(odd[: len(names)], PLAIN)


# Several servers.


def of_server(arm: str, server: str, file: str) -> list[Observation]:
    return [o.model_copy(update={"probe": server}) for o in load(arm, file)]  # type: ignore[union-attr]


def test_each_log_of_a_side_is_a_server_with_its_own_settings() -> None:
    healthy, starved = "engine_logs/llamacpp_healthy.log", "engine_logs/llamacpp_starved.log"
    base = [*of_server("baseline", "a.log", healthy), *of_server("baseline", "b.log", healthy)]
    now = [*of_server("candidate", "a.log", healthy), *of_server("candidate", "b.log", starved)]
    signal = only(context([*base, *now], PLAIN))
    assert "n_ctx_slot 256, kv_cells 256" in signal.message
    assert signal.message.endswith("not in the baseline")
    assert ProcessLocation(arm="candidate", role="server b") in signal.locations


def test_engines_side_by_side_are_not_merged() -> None:
    files = [f"engine_logs/{name}.log" for name in ("llamacpp_starved", "vllm_recompiles", "sglang_ceiling_32")]
    both = [o for arm in ("baseline", "candidate") for file in files for o in of_server(arm, Path(file).name, file)]
    assert "n_parallel" not in only(preemption(both, PLAIN)).next[0]  # only SGLang's log has preemptions
    settings = {p.name for s in derive(both, PLAIN) for p in s.locations if isinstance(p, ParamLocation)
                if s.rule_id == "stability.context"}  # fmt: skip
    assert settings <= {"n_ctx_slot", "kv_cells", "n_parallel"}


def test_a_log_and_a_scrape_of_one_name_are_of_one_server() -> None:
    pairs = [("a.log", "engine_logs/vllm_starved.log"), ("a.prom", "metrics/vllm_starved.prom"),
             ("b.log", "engine_logs/vllm_healthy.log"), ("b.prom", "metrics/vllm_healthy.prom")]  # fmt: skip
    signal = only(preemption([o for probe, file in pairs for o in of_server("candidate", probe, file)], PLAIN))
    assert {p.name: p.value for p in signal.locations if isinstance(p, ParamLocation)} == {"max_num_seqs": "12"}
    assert ProcessLocation(arm="candidate", role="server a") in signal.locations


def test_shared_workload_is_told_to_every_server() -> None:
    shared = event("shared_prefix_tokens", "events", count=20, arm="candidate", probe="facts.jsonl")
    never = [
        event(name, "metrics", count=count, message=said, arm="candidate", probe=f"{server}.prom",
              place=Source(file=f"{server}.prom"))
        for server in "ab" for name, count, said in (("cached_prompt_tokens", 0, ""), ("prompt_tokens", 5000, ""),
                                                     ("setting_block_size", 1, "block_size = 32"))
    ]  # fmt: skip
    assert ["the workload, not a bug" in s.message for s in cache_hits([shared, *never], PLAIN)] == [True, True]


def test_a_side_without_such_a_file_is_no_comparison() -> None:
    scrape = of_server("baseline", "vllm.prom", "metrics/vllm_healthy.prom")
    signals = runtime_event([*scrape, *of_server("candidate", "vllm.log", "engine_logs/vllm_healthy.log")], PLAIN)
    assert "in the baseline" not in only(signals).message
    oom = load("candidate", "cgroup/throttled_v1.txt")
    log = load("baseline", "engine_logs/llamacpp_healthy.log")
    assert "not in the baseline" not in only(memory([*log, *oom], PLAIN)).message
    gone = memory(
        [*load("baseline", "cgroup/throttled_v1.txt"), *load("candidate", "engine_logs/llamacpp_healthy.log")], PLAIN
    )
    assert "no longer" not in only(gone).message


def test_a_side_with_such_a_file_is_compared() -> None:
    file = "engine_logs/vllm_healthy.log"
    more = [o.model_copy(update={"count": 99.0}) if getattr(o, "name", "") == "engine_warning" else o  # type: ignore[union-attr]
            for o in load("candidate", file)]  # fmt: skip
    assert (
        "99x in the candidate, 11x in the baseline"
        in only(runtime_event([*load("baseline", file), *more], PLAIN)).message
    )


# The arms' servers side by side.


def both(before: str, after: str) -> list[Observation]:
    return [*load("baseline", before), *load("candidate", after)]


def test_cache_that_became_full_is_told_with_the_setting_behind_it() -> None:
    signal = only(kv_cache_usage(both("engine_logs/vllm_healthy.log", "engine_logs/vllm_starved.log"), PLAIN))
    assert signal.level == "warning"
    assert signal.message.startswith("the KV cache was full (100%) in 1 of 3 samples, up to 3 requests waited")
    assert ParamLocation(name="num_gpu_blocks_override", value="24", was="400") in signal.locations
    assert signal.causes[0].support == "strong"


def test_full_cache_of_one_server_or_of_both_is_a_note() -> None:
    file = "engine_logs/vllm_starved.log"
    assert only(kv_cache_usage(load("candidate", file), PLAIN)).level == "note"
    assert "both arms" in only(kv_cache_usage(both(file, file), PLAIN)).message
    assert kv_cache_usage(load("candidate", "engine_logs/vllm_healthy.log"), PLAIN) == []


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("vllm_healthy", "vllm_starved", "num_gpu_blocks_override 400 -> 24, kv_cache_tokens 12,800 -> 768"),
        ("llamacpp_healthy", "llamacpp_starved", "n_batch 2048 -> 256"),
        ("sglang_ceiling_128", "sglang_ceiling_32", "max_total_num_tokens"),
    ],
)
def test_settings_that_differ_are_named(before: str, after: str, words: str) -> None:
    files = f"engine_logs/{before}.log", f"engine_logs/{after}.log"
    found = config_difference(both(*files), PLAIN)
    if before.startswith("sglang"):  # the same memory: what differs is what was captured
        assert "max_total_num_tokens" not in only(found).message
    else:
        assert words in only(found).message
    assert config_difference(both(files[0], files[0]), PLAIN) == []
    assert config_difference(load("candidate", files[1]), PLAIN) == []


def test_setting_that_the_change_names_or_that_scatters_is_no_difference() -> None:
    def settings(arm: str, tokens: str, slots: int) -> list[Observation]:
        return [event("setting_kv_tokens", arm=arm, message=f"kv_cache_tokens = {tokens}"),
                event("setting_max_running", arm=arm, message=f"max_num_seqs = {slots}")]  # fmt: skip

    observations = [*settings("baseline", "12,800", 8), *settings("candidate", "12,700", 16)]
    asked = Criteria(changed=(ParamLocation(name="server.max_num_seqs", value=16, was=8),))
    assert config_difference(observations, asked) == []
    assert "max_num_seqs 8 -> 16" in only(config_difference(observations, PLAIN)).message


def test_counters_of_two_servers_are_told_and_called_other_work() -> None:
    signal = only(server_difference(both("metrics/llamacpp_healthy.prom", "metrics/llamacpp_starved.prom"), PLAIN))
    assert "output tokens 291 -> 70, cached prompt tokens 104 -> 0" in signal.message
    assert (signal.level, signal.finding) == ("note", "observed")
    assert "different amounts of work" in signal.caveats[0]
    for file in ("metrics/llamacpp_healthy.prom", "engine_logs/vllm_healthy.log"):
        assert server_difference(both(file, file), PLAIN) == []
        assert server_difference(load("candidate", file), PLAIN) == []


def test_rate_in_a_judged_stage_is_left_to_what_is_measured() -> None:
    rates = [event("output_tokens_per_s", arm=arm, count=n) for arm, n in (("baseline", 500.0), ("candidate", 300.0))]
    assert "500 -> 300 tokens/s" in only(server_difference(rates, PLAIN)).message
    judged = Criteria(changed=(), objective=MetricCriterion(probe="load", metric="request_s", direction="minimize"))
    assert server_difference(rates, judged) == []


def test_output_rate_that_fell_in_the_log_is_told() -> None:
    signal = only(server_difference(both("engine_logs/vllm_healthy.log", "engine_logs/vllm_starved.log"), PLAIN))
    assert signal.message.endswith("highest output rate in the log 575.9 -> 411 tokens/s")
    assert signal.caveats == ("one server an arm: no interval, and rates of two servers differ by chance too",)


def test_lost_hits_of_few_tokens_are_a_note() -> None:
    signal = only(cache_hits(both("metrics/llamacpp_healthy.prom", "metrics/llamacpp_starved.prom"), PLAIN))
    assert signal.level == "note"
    assert "fell from 23.1% to 0.0%" in signal.message
    assert any("only 450 tokens" in caveat for caveat in signal.caveats)


def test_gauge_of_an_idle_moment_is_no_evidence_of_a_full_cache() -> None:
    assert [q.name for q in only(preemption(load("candidate", "metrics/vllm_starved.prom"), PLAIN)).measured] == [
        "preemptions"
    ]


def test_full_caches_of_two_servers_are_not_one_cause() -> None:
    files = {"a.log": "engine_logs/llamacpp_starved.log", "b.log": "engine_logs/sglang_ceiling_32.log"}
    found = derive([o for server, file in files.items() for o in of_server("candidate", server, file)], PLAIN)
    ranked = rank(found)
    first = next(s for s in ranked if s.rule_id == "stability.context")
    assert {e.artefact for e in first.evidence} == {"llamacpp_starved.log"}
    assert any(s.rule_id == "stability.preemption" for s in ranked)
