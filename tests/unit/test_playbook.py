"""The playbook planner: what it does with signals, knobs, lessons and a budget."""

from __future__ import annotations

import platform
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest
from playbook_cases import BASE, DATA, among, answered, compared, context, experiment, number, target

from feedback.observations import Scalar
from feedback.signals import Signal
from feedback.verdict import VerdictKind
from infra_agent.domain import Change, Experiment, State
from infra_agent.lessons import SAME_ENGINE, SAME_PLACE, Lesson, Recalled
from infra_agent.planner import Action, Context, Investigate, Propose, Stop
from infra_agent.planner.discipline import objection
from infra_agent.planner.playbook import PlaybookPlanner
from infra_agent.planner.rulebook import parse, shipped
from infra_agent.planner.sources import find, hot, plain_name
from infra_agent.planner.tree import Tree
from infra_agent.target import TargetSpec, load_target

TARGETS = Path(__file__).parents[2] / "targets"
LLAMACPP: dict[str, Scalar | None] = {"threads": 4, "threads_batch": 8, "parallel": 1, "batch": 2048, "ubatch": 512}
VLLM = target(
    [
        number("max_num_seqs", 1024, engine_default=256),
        among("gpu_memory_utilization", 0.8, 0.85, 0.9, 0.95, engine_default=0.9),
        among("kv_cache_dtype", "auto", "fp8_e4m3", "fp8_e5m2", engine_default="auto"),
        number("max-cudagraph-capture-size", 1024),
    ]
)
SGLANG = target([number("max_running_requests", 8192), number("cuda_graph_max_bs", 8192, engine_default=32)])


def action(c: Context) -> Action:
    """Asked twice, it says the same."""
    first = PlaybookPlanner().next_action(c)
    assert PlaybookPlanner().next_action(c) == first
    return first


def proposed(c: Context) -> Change:
    found = action(c)
    assert isinstance(found, Propose), found
    assert objection(found.proposal, (), c) is None
    assert found.proposal.hypothesis.falsifier
    assert found.proposal.planner == "playbook"
    return found.proposal.change


def walk(spec: TargetSpec, tree: Path, signals: Iterable[Signal], values: dict[str, Scalar | None]) -> list[Change]:
    """All changes that it proposes while each is rejected, until it stops."""
    done = [experiment(0, signals, "baseline")]
    made: list[Change] = []
    for n in range(1, 40):
        found = action(context(spec, tree, values, done))
        if isinstance(found, Stop):
            return made
        assert isinstance(found, Propose)
        made.append(found.proposal.change)
        done.append(experiment(n, (), "change", made[-1], VerdictKind.REJECT))
    raise AssertionError("it never stops")


@pytest.fixture
def llamacpp() -> TargetSpec:
    return load_target(TARGETS / "llamacpp")[0]


@pytest.fixture
def tinyserve(tmp_path: Path) -> Path:
    tree = tmp_path / "tinyserve"
    shutil.copytree(TARGETS / "tinyserve", tree, ignore=shutil.ignore_patterns("build", "__pycache__"))
    return tree


def decode_counts() -> tuple[Signal, ...]:
    return answered(("playbook/kda_decode.callgrind", "callgrind"), probe="kda_instructions")


# From signals to changes.


def test_a_launch_file_of_another_machine_is_fitted_first(llamacpp: TargetSpec, tmp_path: Path) -> None:
    c = context(llamacpp, tmp_path, LLAMACPP, [experiment(0, (), "baseline")])
    found = action(c)
    assert isinstance(found, Propose)
    hypothesis = found.proposal.hypothesis
    assert found.proposal.change.knobs == {"threads": 2, "threads_batch": 2, "parallel": 4, "spin_count": 1000}
    assert set(hypothesis.evidence) == {"threads", "threads_batch", "parallel", "spin_count"}
    assert "threads = 4 against 2" in hypothesis.mechanism
    assert hypothesis.lever_family == "parallelism and overlap"  # the knob's, as the target has it
    assert objection(found.proposal, (), c) is None


def test_waiting_requests_are_cited_when_the_slots_are_raised(llamacpp: TargetSpec, tmp_path: Path) -> None:
    waiting = answered(("playbook/load_streams_1.jsonl", "load"), ("playbook/load_streams_4.jsonl", "load"))
    values = {**LLAMACPP, "threads": 2, "threads_batch": 2}
    found = action(context(llamacpp, tmp_path, values, [experiment(1, waiting)]))
    assert isinstance(found, Propose)
    assert found.proposal.change.knobs == {"parallel": 4}
    slow = next(s for s in waiting if s.subject.endswith("median_ttft_ms"))
    assert f"#1/{slow.fingerprint}" in found.proposal.hypothesis.evidence


def test_a_busy_machine_calls_for_fewer_polls(llamacpp: TargetSpec, tmp_path: Path) -> None:
    busy = answered(("playbook/busy_machine.jsonl", "load"))
    values = {**LLAMACPP, "threads": 2, "threads_batch": 2, "parallel": 4}
    assert proposed(context(llamacpp, tmp_path, values, [experiment(0, busy, "baseline")])).knobs == {
        "spin_count": 1000
    }


def test_preemption_goes_up_the_ladder_and_never_twice(tmp_path: Path) -> None:
    made = walk(VLLM, tmp_path, compared("metrics/vllm_starved.prom"), {"max_num_seqs": 64})
    assert [c.knobs for c in made] == [
        {"gpu_memory_utilization": 0.95}, {"max_num_seqs": 32}, {"kv_cache_dtype": "fp8_e4m3"},
    ]  # fmt: skip
    assert len({c.fingerprint for c in made}) == len(made)


def test_graphs_are_captured_up_to_what_may_run_or_less_may_run(tmp_path: Path) -> None:
    signals = [s for s in compared("engine_logs/sglang_ceiling_32.log") if s.rule_id == "stability.capture_grid"]
    made = walk(SGLANG, tmp_path, signals, {"max_running_requests": 4096})
    assert [c.knobs for c in made] == [{"cuda_graph_max_bs": 4096}, {"max_running_requests": 32}]


def test_correct_comes_before_fast(tmp_path: Path) -> None:
    """Preemptions and a cache format that changes the answers at once."""
    spec = target([among("cache_type_k", "q4_0", "q8_0", "f16"), number("parallel", 32)])
    signals = (*compared("engine_logs/sglang_ceiling_32.log"), *compared("llamacpp/logprobs_q4_0.jsonl"))
    values: dict[str, Scalar | None] = {"cache_type_k": "q4_0", "parallel": 8}
    made = walk(spec, tmp_path, signals, values)
    assert [c.knobs for c in made] == [{"cache_type_k": "q8_0"}, {"cache_type_k": "f16"}, {"parallel": 4}]


def test_a_knob_that_needs_another_is_not_set_without_it(llamacpp: TargetSpec, tmp_path: Path) -> None:
    """A quantized V cache needs flash attention: a change that the knobs' own domains refuse is not proposed."""
    values = {**LLAMACPP, "threads": 2, "threads_batch": 2, "parallel": 4, "flash_attention": "off"}
    done = [experiment(0, (), "baseline")]
    made = []
    for n in range(1, 30):
        found = action(context(llamacpp, tmp_path, values, done))
        if isinstance(found, Stop):
            break
        assert isinstance(found, Propose)
        made.append(found.proposal.change.knobs)
        done.append(experiment(n, (), "change", found.proposal.change, VerdictKind.REJECT))
    assert {"cache_type_k": "q8_0"} in made
    assert {"cache_type_v": "q8_0"} not in made


def test_what_an_accepted_change_left_behind_is_not_brought_back(llamacpp: TargetSpec, tmp_path: Path) -> None:
    won = experiment(1, (), "change", Change(knobs={"parallel": 8}), VerdictKind.ACCEPT, confirmed=True)
    won = won.model_copy(update={"parent_commit": "a" * 40, "commit": BASE})
    values = {**LLAMACPP, "threads": 2, "threads_batch": 2, "parallel": 8}
    found = action(context(llamacpp, tmp_path, values, [won]))
    assert not (isinstance(found, Propose) and "parallel" in found.proposal.change.knobs)


def test_signals_of_a_refused_candidate_are_not_the_parents(tmp_path: Path) -> None:
    """The candidate starved, its parent did not."""
    signals = compared("metrics/vllm_healthy.prom", "metrics/vllm_starved.prom")
    assert any(s.rule_id == "stability.preemption" for s in signals)
    tried = experiment(1, signals, "change", Change(knobs={"max_num_seqs": 512}), VerdictKind.REJECT)
    found = action(context(VLLM, tmp_path, {"max_num_seqs": 64}, [tried]))
    assert not (isinstance(found, Propose) and "preemption" in found.proposal.hypothesis.mechanism)


# Evidence first.


def test_it_looks_before_it_changes_while_nothing_is_known(llamacpp: TargetSpec, tmp_path: Path) -> None:
    quiet = experiment(0, compared("llamacpp/logprobs_flash_attention_off.jsonl"), "baseline")
    found = action(context(llamacpp, tmp_path, LLAMACPP, [quiet], investigations_left=6))
    assert found == Investigate(
        question="Does the throughput rise with the number of requests at once, or do they wait for each other?",
        probe="load", params={"streams": (1, 4)},
    )  # fmt: skip


def test_it_looks_only_as_far_as_the_time_allows(llamacpp: TargetSpec, tmp_path: Path) -> None:
    quiet = [experiment(0, (), "baseline")]
    hurried = action(context(llamacpp, tmp_path, LLAMACPP, quiet, seconds_left=120, investigations_left=6))
    assert isinstance(hurried, Propose)
    at_leisure = action(context(llamacpp, tmp_path, LLAMACPP, quiet, seconds_left=3600, investigations_left=6))
    assert isinstance(at_leisure, Investigate)


def test_nothing_is_asked_twice_of_one_parent(llamacpp: TargetSpec, tmp_path: Path) -> None:
    asked = experiment(1, (), probe="load", params={"streams": (1, 4)})
    found = action(context(llamacpp, tmp_path, LLAMACPP, [asked], investigations_left=5))
    assert isinstance(found, Propose)


def test_the_cheapest_probe_is_asked_first_then_the_dearer_ones_then_it_stops(tinyserve: Path) -> None:
    spec, _ = load_target(tinyserve)
    done: list[Experiment] = []
    asked = []
    for n in range(8):
        found = action(context(spec, tinyserve, experiments=done, investigations_left=6 - n))
        if not isinstance(found, Investigate):
            break
        asked.append((found.probe, found.params))
        done.append(experiment(n, (), probe=found.probe, params=found.params))
    assert asked == [
        ("decode_trace", {}), ("kda_instructions", {}), ("kda_parity", {"steps": (16, 64, 256)}),
        ("kda_microbench", {"batch": (1, 4, 16)}),
    ]  # fmt: skip
    assert isinstance(found, Stop)


# Code.


def test_the_decode_kernel_is_named_with_its_lines_and_the_rule(tinyserve: Path) -> None:
    """Without knobs, and with its one mechanical change tried, it says what to change where."""
    spec, _ = load_target(tinyserve)
    counts = experiment(1, decode_counts(), probe="kda_instructions")
    claim = "multiversioning of kda_decode_program in kernels/kda_decode.c: as before"
    tried = experiment(2, (), "change", Change(patch="p"), VerdictKind.REJECT, claim=claim)
    found = action(context(spec, tinyserve, experiments=[counts, tried]))
    assert isinstance(found, Stop)
    assert "repeated-transcendentals" in found.reason
    source = (tinyserve / "kernels" / "kda_decode.c").read_text().splitlines()
    definition = next(n for n, line in enumerate(source, 1) if line.startswith("static void kda_decode_program"))
    exponential = next(n for n, line in enumerate(source, 1) if "b_decay[i] = expf" in line)
    assert f"kda_decode_program (kernels/kda_decode.c:{definition}) executes 63%" in found.reason
    assert f"{exponential} `b_decay[i] = expf(rate * softplus(p_x[i] + p_dt_bias[i]));`" in found.reason
    assert "before the loop over tiles" in found.reason
    assert "logs and counters of a server" in found.reason
    assert "no rule called for it" in found.reason


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the transform is of x86-64")
def test_the_hot_function_is_compiled_for_wider_vectors_once(tinyserve: Path) -> None:
    spec, _ = load_target(tinyserve)
    counts = experiment(1, decode_counts(), probe="kda_instructions")
    found = action(context(spec, tinyserve, experiments=[counts]))
    assert isinstance(found, Propose)
    change, hypothesis = found.proposal.change, found.proposal.hypothesis
    added = [line for line in change.patch.splitlines() if line.startswith("+") and not line.startswith("+++")]
    assert added == ['+__attribute__((target_clones("avx2", "default")))']
    assert hypothesis.lever_family == "kernels"
    assert hypothesis.predicted is not None
    assert (found.proposal.probe, hypothesis.predicted.metric) == ("kda_instructions", "instructions")
    assert objection(found.proposal, ("kernels/kda_decode.c",), context(spec, tinyserve, experiments=[counts])) is None
    again = experiment(2, (), "change", change, VerdictKind.REJECT, claim=hypothesis.claim)
    assert isinstance(action(context(spec, tinyserve, experiments=[counts, again])), Stop)


def test_a_function_that_is_inline_protected_or_ambiguous_is_left_alone(tinyserve: Path) -> None:
    spec, _ = load_target(tinyserve)
    counts = experiment(1, decode_counts(), probe="kda_instructions")
    kernel = tinyserve / "kernels" / "kda_decode.c"
    text = kernel.read_text()
    kernel.write_text(text.replace("static void kda_decode_program", "static inline void kda_decode_program"))
    assert isinstance(action(context(spec, tinyserve, experiments=[counts])), Stop)
    kernel.write_text(text)
    locked = spec.model_copy(update={"protected": ("kernels/kda_decode.c",)})
    assert isinstance(action(context(locked, tinyserve, experiments=[counts])), Stop)
    (tinyserve / "kernels" / "copy.c").write_text(text)
    assert find("kda_decode_program", Tree(tinyserve, spec)) is None
    assert isinstance(action(context(spec, tinyserve, experiments=[counts])), Stop)


def test_only_functions_of_the_target_are_hot(tinyserve: Path) -> None:
    spec, _ = load_target(tinyserve)
    functions = next(s for s in decode_counts() if s.subject.endswith("functions"))
    assert [h.function.name for h in hot(functions, Tree(tinyserve, spec))] == ["kda_decode_program"]
    assert [plain_name(n) for n in ("__expf_fma", "__log1pf", "sqrtf", "__sin_avx2", "___")] == [
        "expf", "log1pf", "sqrtf", "sin", "___",
    ]  # fmt: skip


def test_hostile_source_hangs_nothing_and_finds_nothing(tmp_path: Path, llamacpp: TargetSpec) -> None:
    (tmp_path / "a.c").write_text("f(" * 20_000 + "int f(int a) {" + "{" * 5000)
    (tmp_path / "b.c").write_bytes(b"\xff\xfe int f(void) { }")
    assert find("g", Tree(tmp_path, llamacpp)) is None


# What it says at the end.


def test_a_rule_without_its_knob_says_which_it_lacks(tmp_path: Path) -> None:
    spec = target([among("load_mode", "auto", "mmap")])
    found = action(context(spec, tmp_path, experiments=[experiment(0, compared("engine_logs/vllm_grid_100.log"))]))
    assert isinstance(found, Stop)
    assert "batches-without-a-graph fired, but the target declares no knob for: largest batch" in found.reason
    assert "max_cudagraph_capture_size" in found.reason
    assert "batches of 97..100 have no full graph" in found.reason


def test_text_of_a_program_is_bounded_and_plain_in_the_reason(tmp_path: Path) -> None:
    evil = compared("gc/heavy.jsonl")[0].model_copy(update={"message": "gc \x1b[31m" + "x" * 300})
    found = action(context(target(), tmp_path, experiments=[experiment(0, [evil], "baseline")]))
    assert isinstance(found, Stop)
    assert "\x1b" not in found.reason
    assert len(found.reason) <= 4000


# Lessons.


def lesson(knobs: dict[str, Scalar | None], verdict: VerdictKind, confirmed: bool = False) -> Lesson:
    return Lesson(
        id="les_1", campaign_id="cmp_old", experiment_id="exp_old", number=3, target_name="llamacpp",
        host_fingerprint="h", metric="output_throughput", direction="maximize", lever_family="launch parameters",
        claim="it helps", changed=knobs, change_fingerprint=Change(knobs=knobs).fingerprint, verdict=verdict,
        confirmed=confirmed, gain=-0.2, gain_low=-0.25, gain_high=-0.15,
    )  # fmt: skip


def test_what_lost_here_before_is_tried_last_and_says_so(llamacpp: TargetSpec, tmp_path: Path) -> None:
    first: dict[str, Scalar | None] = {"threads": 2, "threads_batch": 2, "parallel": 4, "spin_count": 1000}
    lost = Recalled(lesson=lesson(first, VerdictKind.REJECT), kinship=SAME_PLACE)
    done = [experiment(0, (), "baseline")]
    assert proposed(context(llamacpp, tmp_path, LLAMACPP, done)).knobs == first
    made = []
    for n in range(1, 40):
        found = action(context(llamacpp, tmp_path, LLAMACPP, done, (lost,)))
        if not isinstance(found, Propose):
            break
        made.append(found.proposal)
        done.append(experiment(n, (), "change", found.proposal.change, VerdictKind.REJECT))
    assert made[0].change.knobs != first
    assert made[-1].change.knobs == first
    assert "Lesson les_1" in made[-1].hypothesis.mechanism
    assert "tried after everything else" in made[-1].hypothesis.mechanism
    assert "-20.0%" in made[-1].hypothesis.mechanism


def test_a_loss_elsewhere_changes_no_order(llamacpp: TargetSpec, tmp_path: Path) -> None:
    first: dict[str, Scalar | None] = {"threads": 2, "threads_batch": 2, "parallel": 4, "spin_count": 1000}
    lost = Recalled(lesson=lesson(first, VerdictKind.REJECT), kinship=SAME_ENGINE)
    assert proposed(context(llamacpp, tmp_path, LLAMACPP, [experiment(0)], (lost,))).knobs == first


def test_what_won_here_before_comes_first_in_its_tier(llamacpp: TargetSpec, tmp_path: Path) -> None:
    won = Recalled(lesson=lesson({"threads": 2}, VerdictKind.ACCEPT, confirmed=True), kinship=SAME_PLACE)
    assert proposed(context(llamacpp, tmp_path, LLAMACPP, [experiment(0)], (won,))).knobs == {"threads": 2}


def test_a_platform_failure_is_no_trial(llamacpp: TargetSpec, tmp_path: Path) -> None:
    change = proposed(context(llamacpp, tmp_path, LLAMACPP, [experiment(0, (), "baseline")]))
    failed = experiment(1, (), "change", change).model_copy(update={"state": State.FAILED})
    assert proposed(context(llamacpp, tmp_path, LLAMACPP, [experiment(0, (), "baseline"), failed])) == change


# The book itself.

RULE = """
[levers.slots]
says = "slots"
names = ["slots"]
[[collect]]
method = "load"
question = "?"
[[rules]]
id = "r"
tier = 1
why = "w"
reference = "x"
family = "kernels"
needs = ["knobs"]
when = [{ lever = "slots", above = 1 }]
"""


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        ('do = [{ moves = [{ lever = "slots", how = "double" }] }]', "needs `expect`"),
        (
            'expect = [0, 1]\nfalsifier = "f"\ndo = [{ moves = [{ lever = "slotz", how = "double" }] }]',
            "no lever slotz",
        ),
        ('do = [{ code = "x", transform = "y" }]', "one of `moves`"),
        ('expect = [0, 1]\nfalsifier = "f"\ndo = [{ transform = "y" }]', "no such transform"),
        ('expect = [0, 1]\nfalsifier = "f"\ndo = [{ moves = [{ lever = "slots", how = "set" }] }]', "`to` belongs"),
        ('expect = [0.5, 0.1]\nfalsifier = "f"\ndo = [{ moves = [{ lever = "slots", how = "halve" }] }]', "from, to"),
        ('do = [{ code = "x" }]\nfurther = 1', "Extra inputs"),
    ],
)
def test_a_wrong_book_is_refused(rest: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse(RULE + rest)


def test_patterns_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="no regular expression"):
        parse(RULE.replace('names = ["slots"]', 'names = ["("]') + 'do = [{ code = "x" }]')


FLAGS = (
    "max_num_seqs", "gpu_memory_utilization", "max_num_batched_tokens", "enforce_eager", "kv_cache_dtype",
    "block_size", "mem_fraction_static", "chunked_prefill_size", "max_running_requests", "cuda_graph_max_bs",
    "disable_radix_cache", "disable_overlap_schedule", "mamba_ssm_dtype",
)  # fmt: skip


def test_levers_know_the_engines_names(llamacpp: TargetSpec) -> None:
    """The knobs of the shipped target, and flags as vLLM, SGLang and llama.cpp spell them."""
    names = [k.name for k in llamacpp.knobs]
    known = [n for n in names if any(re.fullmatch(p, n) for lever in shipped().levers.values() for p in lever.names)]
    assert known == names
    for flag in FLAGS:
        found = [n for n, lever in shipped().levers.items() if any(re.fullmatch(p, flag) for p in lever.names)]
        assert len(found) == 1, (flag, found)


def test_recorded_files_are_there() -> None:
    assert (DATA / "playbook" / "ORIGIN.md").exists()
