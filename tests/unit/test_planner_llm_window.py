"""Requests of the LLM planner stay within the model's window, say how long they are, and are the same each time."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from planning import ENDED, QUICK, context, make_planner, make_tree, settings, stopped

from feedback.digest import count_tokens
from feedback.signals import Effect, ParamLocation, Signal
from feedback.verdict import Verdict, VerdictKind
from infra_agent.domain import Change, Experiment, Hypothesis, Prediction, Proposal, State
from infra_agent.errors import ModelUnavailable, WrongUse
from infra_agent.journal import Journal
from infra_agent.planner.calls import CallsInMemory
from infra_agent.planner.llm import MAX_TURNS, LlmPlanner
from infra_agent.planner.manner import every, first, refused, stated_window, windows
from infra_agent.planner.recap import recap
from infra_agent.planner.testing import Raw, Scripted, ScriptedEndpoint, called, failed, written
from infra_agent.settings import load_settings

WINDOW = 16_384
DONE = called(stopped("done"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = make_tree(tmp_path)
    for n in range(MAX_TURNS):
        (root / f"long{n}.c").write_text("".join(f"int x{n}_{i} = f({i}); // {'why ' * 9}\n" for i in range(400)))
    return root


def tokens(request: dict[str, Any]) -> int:
    """A request as a server with a window counts it: prompt, tools and the answer that it may give."""
    messages = sum(count_tokens(str(m.get("content"))) + 4 for m in request["messages"])
    calls = json.dumps([m["tool_calls"] for m in request["messages"] if "tool_calls" in m])
    tools = count_tokens(json.dumps(request.get("tools", "")))
    return messages + count_tokens(calls) * 3 // 4 + tools + int(request["max_tokens"])


def reading(number: int) -> tuple[str, dict[str, object]]:
    return "read_file", {"path": f"long{number}.c"}


def test_a_long_step_stays_within_the_window_and_says_what_it_left_out(endpoint: ScriptedEndpoint, tree: Path) -> None:
    endpoint.answers = [*(called(reading(n)) for n in range(MAX_TURNS - 2)), called(reading(0)), DONE]
    planner = LlmPlanner(settings(endpoint, context=WINDOW), CallsInMemory("c"), QUICK)
    assert planner.next_action(context(tree)) == ENDED
    sizes = [tokens(request) for request in endpoint.requests]
    assert max(sizes) <= WINDOW
    assert max(sizes) > WINDOW * 0.7  # the window is used
    results = endpoint.results()
    assert re.match(r"\[\d{4,5} tokens were left out here to save room: make the same call again", results[0])
    assert "int x0_0" in results[-1]  # it was left out, so to read it again is no repetition
    asked = endpoint.requests[-1]["messages"][2]["tool_calls"][0]["function"]
    assert json.loads(asked["arguments"]) == {"path": "long0.c"}  # and how to get it stands beside it


def test_one_answer_with_many_long_results_is_shared_out(endpoint: ScriptedEndpoint, tree: Path) -> None:
    endpoint.answers = [called(*(reading(n) for n in range(8))), DONE]
    planner = LlmPlanner(settings(endpoint, context=WINDOW), CallsInMemory("c"), QUICK)
    assert planner.next_action(context(tree)) == ENDED
    assert tokens(endpoint.requests[1]) <= WINDOW
    results = endpoint.results()
    assert all(f"int x{n}_0" in result and "characters left out" in result for n, result in enumerate(results))


def test_long_words_of_the_model_itself_are_left_out_too(endpoint: ScriptedEndpoint, tree: Path) -> None:
    edit = {"path": "a.c", "old": "not there", "new": "word " * 9000}
    tries = [called(("propose", {"edits": [edit], "n": n}), text=f"{n} " * 5000) for n in range(4)]
    endpoint.answers = [*tries, DONE]
    planner = LlmPlanner(settings(endpoint, context=WINDOW), CallsInMemory("c"), QUICK)
    assert planner.next_action(context(tree)) == ENDED
    assert max(map(tokens, endpoint.requests)) <= WINDOW
    json.loads(endpoint.requests[-1]["messages"][2]["tool_calls"][0]["function"]["arguments"])


@pytest.mark.parametrize("window", [8_192, 32_768, 128_000])
def test_the_opening_says_how_long_it_is(endpoint: ScriptedEndpoint, tree: Path, window: int) -> None:
    endpoint.answers = [DONE]
    LlmPlanner(settings(endpoint, context=window), CallsInMemory("c"), QUICK).next_action(context(tree))
    system, user = endpoint.requests[0]["messages"]
    match = re.match(r"This text: about (\d+) tokens of (\d+)\.\n", user["content"])
    assert match
    assert int(match[2]) == window
    assert abs(int(match[1]) - count_tokens(system["content"] + user["content"])) < 20
    assert endpoint.requests[0]["max_tokens"] == min(16_384, window // 4)


def test_a_small_window_shortens_journal_and_signals_first(endpoint: ScriptedEndpoint, tree: Path) -> None:
    past = [tried(n, VerdictKind.REJECT) for n in range(1, 60)]
    told = "a signal\n" * 3000
    sizes = {}
    for window in (8_192, 128_000):
        endpoint.answers = [DONE]
        planner = LlmPlanner(settings(endpoint, context=window), CallsInMemory("c"), QUICK)
        planner.next_action(context(tree, *past, digest=told))
        sizes[window] = tokens(endpoint.requests[-1])
        assert sizes[window] <= window
        text = endpoint.requests[-1]["messages"][1]["content"]
        assert "#59 " in text
        assert "characters left out" in text
        assert ("more not shown" in text) == (window == 8_192)
    assert sizes[8_192] < sizes[128_000] - 16_384


def test_a_window_that_can_hold_no_opening_is_an_error_before_any_call(endpoint: ScriptedEndpoint, tree: Path) -> None:
    planner = LlmPlanner(settings(endpoint, context=2_048), CallsInMemory("c"), QUICK)
    with pytest.raises(ModelUnavailable, match=r"2048 tokens, is too small .*set INFRA_AGENT_MODEL_CONTEXT"):
        planner.next_action(context(tree))
    assert endpoint.requests == []


@pytest.mark.parametrize("value", ["128k", "0", "-5", "1e9"])
def test_a_window_that_is_no_number_is_wrong_use(value: str) -> None:
    with pytest.raises(WrongUse, match=r"INFRA_AGENT_MODEL_CONTEXT: .*Mend or unset it"):
        load_settings({"INFRA_AGENT_HOME": "/h", "INFRA_AGENT_MODEL_CONTEXT": value})


# Endpoints with a smaller window than the settings say.

TOO_LONG = {
    "openai": (400, {"message": "This model's maximum context length is 16385 tokens. However, your messages resulted "
               "in 20000 tokens. Please reduce the length of the messages.", "code": "context_length_exceeded"}, 16385),
    "openai, newer": (400, {"message": "Input tokens exceed the configured limit of 272000 tokens. Your messages "
                      "resulted in 300000 tokens. Please reduce the length of the messages."}, 272000),
    "vllm": (400, {"message": "This model's maximum context length is 16384 tokens. However, you requested 122946 "
             "tokens (112946 in the messages, 10000 in the completion). Please reduce the length"}, 16384),
    "vllm, newer": (400, {"message": "This model's maximum context length is 2048 tokens. However, your request has 8 "
                    "input tokens plus 2045 'max_tokens'. Please reduce one or the other."}, 2048),
    "vllm, limit": (400, {"message": "'max_tokens' or 'max_completion_tokens' is too large: 16384. This model's "
                    "maximum context length is 40960 tokens and your request has 30000 input tokens"}, 40960),
    "llama.cpp": (400, {"message": "the request exceeds the available context size. try increasing the context size or "
                  "enable context shift", "type": "exceed_context_size_error", "n_prompt_tokens": 1407, "n_ctx": 8192},
                  8192),
    "llama.cpp, newer": (400, {"message": "request (14429 tokens) exceeds the available context size (8192 tokens), "
                         "try increasing it"}, 8192),
    "llama.cpp, older": (500, {"message": "input is too large to process. increase the physical batch size"}, None),
    "sglang": (400, {"message": "The input (61709 tokens) is longer than the model's context length (40960 tokens)."},
               40960),
    "too large": (413, {"message": "Request too large for tokens per minute: Limit 16000, Requested 17000"}, 16000),
}  # fmt: skip


@pytest.mark.parametrize("name", TOO_LONG)
def test_a_too_long_context_is_recognized(name: str) -> None:
    status, error, window = TOO_LONG[name]
    said = f"Error code: {status} - {{'error': {error}}}"
    assert refused(status, said, {"max_tokens": 1, "tools": [], "response_format": {}}) == "context"
    assert stated_window(said) == window


@pytest.mark.parametrize("name", ["openai", "vllm", "llama.cpp", "sglang"])
def test_a_too_long_context_is_shrunk_and_asked_again(endpoint: ScriptedEndpoint, tree: Path, name: str) -> None:
    status, error, window = TOO_LONG[name]
    notes: list[str] = []
    calls = CallsInMemory("c")
    endpoint.answers = [called(*(reading(n) for n in range(8))), failed(status, **error), DONE]
    planner = LlmPlanner(settings(endpoint), calls, QUICK, notes.append)
    assert planner.next_action(context(tree)) == ENDED
    assert tokens(endpoint.requests[1]) > 60_000
    assert tokens(endpoint.requests[2]) <= (window or 0)
    assert len(notes) == 1
    assert "smaller context window" in notes[0]
    assert make_planner(endpoint, calls).next_action(context(tree)) == ENDED
    assert len(endpoint.requests) == 3  # a resume shrinks at the same place, for free


def test_a_server_that_counts_is_never_asked_more_than_it_takes_in_the_end(
    endpoint: ScriptedEndpoint, tree: Path
) -> None:
    served: list[int] = []
    turns = iter(range(MAX_TURNS))

    def serve(request: dict[str, Any]) -> Scripted:
        size = tokens(request)
        if size > 20_000:
            return failed(400, f"maximum context length exceeded: you requested {size} tokens", type="bad_request")
        served.append(size)
        turn = next(turns)
        return DONE if turn == 6 else called(reading(turn))

    endpoint.respond = serve
    assert make_planner(endpoint).next_action(context(tree)) == ENDED
    assert len(served) == 7
    assert len(endpoint.requests) - len(served) == 3  # 128000, 64000, 32000: told once each


@pytest.mark.parametrize("answer", [failed(400, "context_length_exceeded"), failed(413, "too large")])
def test_what_can_be_shrunk_no_further_is_a_clear_error(endpoint: ScriptedEndpoint, tree: Path, answer: Raw) -> None:
    endpoint.respond = lambda _: answer
    with pytest.raises(ModelUnavailable, match=r"context window of a-model.*too small for this campaign.*larger one"):
        make_planner(endpoint).next_action(context(tree))
    assert len(endpoint.requests) < len(windows(128_000))


def test_other_refusals_are_no_matter_of_manner() -> None:
    asked: dict[str, object] = {"tools": [], "max_tokens": 1}
    assert refused(400, "temperature must be between 0 and 2", asked) is None
    assert refused(404, "The model `x` does not exist", asked) is None
    assert refused(429, "context length", asked) is None
    assert refused(400, "response_format is not supported", asked) is None  # it was not sent
    assert refused(500, "error parsing tool call: raw='{'", asked) is None  # the model's fault: asked again


def test_every_manner_is_reached_by_refusals_and_found_again() -> None:
    known = list(every(128_000))
    assert len(set(known)) == len(known)
    manner = first(128_000)
    for reason in ("limit", "limit", "tools", "format", "format", "context", "context"):
        assert manner in known
        manner = manner.without(reason, "") or pytest.fail("no manner is left")  # type: ignore[arg-type]
    assert manner == ("text", "", 32_000)
    assert manner.without("context", "maximum context length is 4096 tokens") == ("text", "", 4_000)


# The journal in the opening.


def effect(low: float, high: float) -> Effect:
    return Effect(
        metric="slice_time_s", direction="minimize", baseline=1.0, measured=0.9, ratio=(low + high) / 2, ratio_lo=low,
        ratio_hi=high, confidence=0.95, method="t", n_units=6, n_observations=48, floor=0.01, floor_known=True,
    )  # fmt: skip


def tried(number: int, kind: VerdictKind, low: float = 0.97, high: float = 1.03, confirmed: bool = False) -> Experiment:
    hypothesis = Hypothesis(
        claim=f"claim {number}", mechanism=f"mechanism {number}", falsifier=f"falsifier {number}",
        predicted=Prediction(metric="slice_time_s", direction="down", low=0.1),
    )  # fmt: skip
    signal = Signal(
        rule_id="performance.bench_delta", level="note", finding="observed", message=f"signal {number}",
        locations=(ParamLocation(name="threads", value=number),),
    )  # fmt: skip
    return Experiment(
        id=f"e{number}", campaign_id="c", number=number, role="change", state=State.COMPLETE, parent_commit="base",
        proposal=Proposal(hypothesis=hypothesis, change=Change(knobs={"threads": number})),
        verdict=Verdict(kind=kind, reasons=(f"reason {number}", "more")), signals=(signal,),
        effects=(effect(low, high),), confirmed=confirmed,
    )  # fmt: skip


def test_what_is_open_is_told_in_full_and_the_rest_on_a_line() -> None:
    journal = Journal(
        experiments=(
            tried(1, VerdictKind.ACCEPT, 0.8, 0.85, confirmed=True),
            tried(2, VerdictKind.REJECT, 0.8, 0.85),  # its hypothesis was confirmed, a guardrail failed: closed
            tried(3, VerdictKind.REJECT, 0.99, 1.1),  # refuted
            tried(4, VerdictKind.INCONCLUSIVE, 0.85, 1.05),
        )
    )
    text = recap(journal, 4_000)
    for number in (1, 3, 4):
        assert f"mechanism {number}" in text
        assert f"falsifier {number}" in text
        assert f"signal {number}" in text
    assert "refuted, measured" in text
    assert "mechanism 2" not in text
    assert "#2 reject" in text
    assert [int(n) for n in re.findall(r"^#(\d)", text, re.MULTILINE)] == [1, 2, 3, 4]


@pytest.mark.parametrize("budget", [150, 500, 2_000, 20_000])
def test_a_recap_keeps_to_its_tokens_and_loses_old_and_closed_ones_first(budget: int) -> None:
    kinds = [VerdictKind.REJECT, VerdictKind.INCONCLUSIVE, VerdictKind.REJECT, VerdictKind.REJECT]
    journal = Journal(experiments=tuple(tried(n, kinds[n % 4], 0.8, 0.85) for n in range(1, 101)))
    text = recap(journal, budget)
    assert count_tokens(text) <= budget
    kept = [int(n) for n in re.findall(r"^#(\d+)", text, re.MULTILINE)]
    assert kept == sorted(kept)
    if budget == 2_000:
        assert "more not shown" in text
        assert {n % 4 for n in kept if n > 60} == {1} or 100 in kept
        assert 97 in kept
    if budget == 20_000:
        assert len(kept) == 100
        assert "mechanism 97" in text
        assert "mechanism 98" not in text


def test_nothing_tried_is_nothing_told() -> None:
    assert recap(Journal(), 1_000) == ""


@pytest.mark.parametrize("as_json", [False, True])
def test_the_same_journal_gives_the_same_requests(endpoint: ScriptedEndpoint, tree: Path, as_json: bool) -> None:
    past = [tried(n, VerdictKind.INCONCLUSIVE) for n in range(1, 30)]
    talk: list[Scripted] = [failed(400, "no support for tools")] if as_json else []
    talk += [written(*reading(1)), written(*stopped("done"))] if as_json else [called(reading(1)), DONE]
    for _ in range(2):
        endpoint.answers = [*talk]
        planner = LlmPlanner(settings(endpoint, context=WINDOW), CallsInMemory("c"), QUICK)
        assert planner.next_action(context(tree, *past, digest="d" * 9000)) == ENDED
    half = len(endpoint.requests) // 2
    assert endpoint.requests[:half] == endpoint.requests[half:]
