"""What must not break the LLM planner: each failure of an endpoint or a model, over real HTTP with the real client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from planning import ENDED, FAST, KEY, QUICK, context, make_planner, proposal, settings, stopped

from infra_agent.errors import ModelUnavailable
from infra_agent.planner import Propose
from infra_agent.planner.calls import CallsInMemory
from infra_agent.planner.conversation import TOO_MANY, WAIT
from infra_agent.planner.llm import MAX_CALLS, MAX_CUT_OFF, MAX_UNCALLED, LlmPlanner
from infra_agent.planner.testing import Raw, ScriptedEndpoint, called, completion, failed, written

DONE = called(stopped("done"))
READ = ("read_file", {"path": "launch.toml"})


def last(endpoint: ScriptedEndpoint) -> str:
    """What the model was told last."""
    return str(endpoint.requests[-1]["messages"][-1]["content"])


# The connection.


@pytest.mark.parametrize(
    "failure",
    [
        Raw(drop="unanswered"),
        Raw(json.dumps(DONE).encode(), drop="midway"),
        failed(429, "slow down", {"Retry-After": "0"}),
        failed(500, "overloaded"),
        failed(503, "no healthy upstream", {"Retry-After": "0"}),
        Raw(b'{"error": {"message": "provider is down", "code": 502}}'),
        completion({"content": ""}, "error"),
    ],
    ids=["dropped", "dropped midway", "429", "500", "503", "error with 200", "error as a reason to finish"],
)
def test_a_failure_that_passes_costs_another_try(endpoint: ScriptedEndpoint, tree: Path, failure: Any) -> None:
    calls = CallsInMemory("c")
    endpoint.answers = [failure, DONE]
    assert make_planner(endpoint, calls).next_action(context(tree)) == ENDED
    assert endpoint.requests[0] == endpoint.requests[1]
    assert len(calls.calls) == 1


def test_an_endpoint_that_drops_every_connection_is_named(endpoint: ScriptedEndpoint, tree: Path) -> None:
    endpoint.answers = [Raw(drop="midway", body=b'{"choices": ')] * 3
    with pytest.raises(ModelUnavailable, match=f"{endpoint.url}.*(connection broke|can't be reached).*tried 3 times"):
        make_planner(endpoint).next_action(context(tree))


def test_an_error_that_comes_with_200_is_repeated(endpoint: ScriptedEndpoint, tree: Path) -> None:
    endpoint.answers = [Raw(b'{"error": {"message": "provider is down"}}')] * 3
    with pytest.raises(ModelUnavailable, match="it says: provider is down"):
        make_planner(endpoint).next_action(context(tree))


# What the model says.


def test_a_truncated_answer_is_not_carried_out_and_the_model_is_told(endpoint: ScriptedEndpoint, tree: Path) -> None:
    cut_off = called(READ, ("propose", '{"claim": "Fewer thr'), finish="length")
    endpoint.answers = [cut_off, called(proposal(edits=[FAST]))]
    assert isinstance(make_planner(endpoint).next_action(context(tree)), Propose)
    assert endpoint.results() == []  # not even the whole call before the half one
    assert "cut off at its limit of 16384 tokens" in last(endpoint)
    assert "tool_calls" not in endpoint.requests[1]["messages"][-2]


def test_truncated_answers_end_after_a_few(endpoint: ScriptedEndpoint, tree: Path) -> None:
    endpoint.answers = [called(READ, finish="length")] * MAX_CUT_OFF
    with pytest.raises(ModelUnavailable, match="longer than the 16384 tokens that they may have"):
        make_planner(endpoint).next_action(context(tree))
    assert endpoint.answers == []


@pytest.mark.parametrize(
    "refusal",
    [
        completion({"content": None, "refusal": "I can't help with that."}),
        completion({"content": ""}, "content_filter"),
        called(READ, finish="content_filter"),
    ],
)
def test_a_refusal_is_answered_once_and_then_final(endpoint: ScriptedEndpoint, tree: Path, refusal: Any) -> None:
    endpoint.answers = [refusal, DONE]
    assert make_planner(endpoint).next_action(context(tree)) == ENDED
    assert "refused or withheld" in last(endpoint)
    endpoint.answers = [refusal, refusal]
    with pytest.raises(ModelUnavailable, match=r"it refuses to go on: (I can't help|a content filter)"):
        make_planner(endpoint).next_action(context(tree))


@pytest.mark.parametrize("empty", [{"content": None}, {"content": ""}, {"content": " \n", "tool_calls": []}, {}])
def test_an_empty_answer_is_reminded(endpoint: ScriptedEndpoint, tree: Path, empty: dict[str, Any]) -> None:
    endpoint.answers = [completion(empty), DONE]
    assert make_planner(endpoint).next_action(context(tree)) == ENDED
    assert "called no tool" in last(endpoint)
    assert endpoint.requests[1]["messages"][-2]["content"]  # servers refuse an empty message


def test_reasoning_is_accepted_and_never_sent_back(endpoint: ScriptedEndpoint, tree: Path) -> None:
    thought = {"reasoning_content": "R1", "reasoning": "R2", "reasoning_details": [{"text": "R3"}]}
    first = called(READ, text="<think>R4 </think>I read.")
    first["choices"][0]["message"].update(thought)
    second = completion({"content": "R5</think>", **thought})
    third = completion({"content": "<think>R6 for ever", **thought}, "stop")
    endpoint.answers = [first, second, called(READ, text="Now"), DONE]
    assert make_planner(endpoint).next_action(context(tree)) == ENDED
    text = json.dumps(endpoint.requests[-1])
    assert all(f"R{n}" not in text for n in range(1, 6))
    assert "I read." in text
    assert "called no tool" in text  # thoughts alone are no answer
    endpoint.answers = [third, DONE]
    make_planner(endpoint).next_action(context(tree, digest="another"))
    assert "R6" not in json.dumps(endpoint.requests[-1])


def test_content_in_parts_and_a_function_call_of_old_are_understood(endpoint: ScriptedEndpoint, tree: Path) -> None:
    name, arguments = READ
    old = {"content": [{"type": "text", "text": "so "}, {"type": "text", "text": "be it"}]}
    old["function_call"] = {"name": name, "arguments": json.dumps(arguments)}  # type: ignore[assignment]
    endpoint.answers = [completion(old, "function_call"), DONE]
    assert make_planner(endpoint).next_action(context(tree)) == ENDED
    assert "threads = 16" in endpoint.results()[0]
    assert endpoint.requests[1]["messages"][-2]["content"] == "so be it"


def test_what_no_server_would_take_back_is_mended_in_the_conversation(endpoint: ScriptedEndpoint, tree: Path) -> None:
    odd = called(("read file!", {}), ("read_file", "{path: 1"), ("read_file", "[1]"), ("read_file", ""))
    for call in odd["choices"][0]["message"]["tool_calls"]:
        call["id"] = "same"
    endpoint.answers = [odd, DONE]
    make_planner(endpoint).next_action(context(tree))
    said = endpoint.requests[1]["messages"][-5]
    functions = [call["function"] for call in said["tool_calls"]]
    assert [f["name"] for f in functions] == ["read_file_", "read_file", "read_file", "read_file"]
    assert [f["arguments"] for f in functions] == ["{}"] * 4
    assert len({call["id"] for call in said["tool_calls"]}) == 4
    results = endpoint.results()
    assert "there is no tool 'read file!'" in results[0]
    assert "arguments of read_file are wrong" in results[1]


# Several calls in one answer.


def test_several_reads_in_one_answer_are_all_answered_in_order(endpoint: ScriptedEndpoint, tree: Path) -> None:
    reads = [("read_file", {"path": "launch.toml", "start": 1, "end": n}) for n in range(1, MAX_CALLS + 2)]
    endpoint.answers = [called(*reads), called(reads[-1]), DONE]
    assert make_planner(endpoint).next_action(context(tree)) == ENDED
    results = endpoint.results()
    assert ["threads = 16" in result for result in results] == [True] * MAX_CALLS + [False, True]
    assert results[MAX_CALLS] == TOO_MANY  # and made again, which is no repetition


def test_a_proposal_beside_reads_stands_and_a_refused_one_does_not_hide_them(
    endpoint: ScriptedEndpoint, tree: Path
) -> None:
    endpoint.answers = [called(READ, proposal(edits=[{**FAST, "old": "no"}])), called(READ, proposal(edits=[FAST]))]
    action = make_planner(endpoint).next_action(context(tree))
    assert isinstance(action, Propose)
    read, refused = endpoint.results()
    assert "threads = 16" in read
    assert "must stand in the file exactly once" in refused


def test_a_proposal_beside_a_question_waits_for_the_answer(endpoint: ScriptedEndpoint, tree: Path) -> None:
    asked = ("investigate", {"question": "?", "probe": "none such"})
    endpoint.answers = [called(proposal(edits=[FAST]), asked), called(proposal(edits=[FAST]))]
    assert isinstance(make_planner(endpoint).next_action(context(tree)), Propose)
    waiting, wrong = endpoint.results()
    assert waiting == WAIT
    assert "none such" in wrong


# Repetition.


def test_a_repeated_call_is_told_once_and_then_ends(endpoint: ScriptedEndpoint, tree: Path) -> None:
    again = called(("read_file", '{"path":  "launch.toml"}'))  # the same call, written otherwise
    endpoint.answers = [called(READ), again, called(READ)]
    with pytest.raises(ModelUnavailable, match="answers nonsense: it makes the same call again and again: read_file"):
        make_planner(endpoint).next_action(context(tree))
    assert "made this call before" in endpoint.results()[1]
    endpoint.answers = [called(READ), called(READ), DONE]
    assert make_planner(endpoint).next_action(context(tree, digest="another")) == ENDED


def test_a_refused_call_that_is_repeated_is_a_repetition_too(endpoint: ScriptedEndpoint, tree: Path) -> None:
    endpoint.answers = [called(proposal(knobs={"threads": 99}))] * 3
    with pytest.raises(ModelUnavailable, match="the same call again and again: propose"):
        make_planner(endpoint).next_action(context(tree))


# Without tools.

NO_TOOLS = [
    (400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'),
    (400, "registry.ollama.ai/library/gemma:2b does not support tools"),
    (404, "No endpoints found that support tool use. To learn more about provider routing, visit: https://x/y"),
    (422, "body.tools: Extra inputs are not permitted"),
    (500, "tools param requires --jinja flag"),
    (500, "Unsupported param: tools"),
]


@pytest.mark.parametrize(("status", "said"), NO_TOOLS)
def test_without_tools_the_model_is_asked_for_json(
    endpoint: ScriptedEndpoint, tree: Path, status: int, said: str
) -> None:
    notes: list[str] = []
    calls = CallsInMemory("c")
    endpoint.answers = [failed(status, said), written(*READ), written(*proposal(edits=[FAST], knobs={"threads": 4}))]
    planner = LlmPlanner(settings(endpoint), calls, QUICK, notes.append)
    action = planner.next_action(context(tree))
    assert isinstance(action, Propose)
    assert action.proposal.change.knobs == {"threads": 4}
    with_tools, opening, second = endpoint.requests
    assert "tools" in with_tools
    assert "tools" not in opening
    assert opening["response_format"]["type"] == "json_schema"
    rules = opening["messages"][0]["content"]
    for needed in ('{"tool": "<name>", "arguments": {...}}', "- propose: End this step", '"path"', "search_code"):
        assert needed in rules
    assert {m["role"] for m in second["messages"]} == {"system", "user", "assistant"}
    assert second["messages"][-1]["content"].startswith("read_file: <quoted")
    assert len(notes) == 1
    assert "JSON instead of tool calls" in notes[0]
    recorded = [call.prompt_tokens for call in calls.calls.values()]
    assert recorded == [0, 100, 100]  # the refusal is journalled too, so that a resume need not be told again
    again = LlmPlanner(settings(endpoint), calls, QUICK).next_action(context(tree))
    assert again == action
    assert len(endpoint.requests) == 3


def test_a_refusal_in_the_words_of_a_web_framework_is_understood(endpoint: ScriptedEndpoint, tree: Path) -> None:
    detail = [{"type": "extra_forbidden", "loc": ["body", "tools"], "msg": "Extra inputs are not permitted"}]
    endpoint.answers = [Raw(json.dumps({"detail": detail}).encode(), 422), written(*stopped("done"))]
    assert make_planner(endpoint).next_action(context(tree)) == ENDED


def test_the_next_step_begins_as_the_last_one_ended_and_a_resume_finds_it(
    endpoint: ScriptedEndpoint, tree: Path
) -> None:
    calls = CallsInMemory("c")
    endpoint.answers = [failed(*NO_TOOLS[0]), written(*stopped("a")), written(*READ), written(*stopped("b"))]
    planner = make_planner(endpoint, calls)
    planner.next_action(context(tree))
    second = planner.next_action(context(tree, digest="the second step"))
    assert len(endpoint.requests) == 4
    assert make_planner(endpoint, calls).next_action(context(tree, digest="the second step")) == second
    assert len(endpoint.requests) == 4


def test_a_response_format_that_is_refused_too_is_loosened(endpoint: ScriptedEndpoint, tree: Path) -> None:
    endpoint.answers = [
        failed(*NO_TOOLS[1]),
        failed(400, "response_format type json_schema is unavailable now"),
        failed(422, "Unsupported: response_format"),
        completion({"content": 'Sure!\n```json\n{"tool": "read_file", "arguments": {"path": "launch.toml"}}\n```'}),
        written(*stopped("done")),
    ]
    assert make_planner(endpoint).next_action(context(tree)) == ENDED
    formats = [request.get("response_format", {}).get("type") for request in endpoint.requests]
    assert formats == [None, "json_schema", "json_object", None, None]
    assert "threads = 16" in last(endpoint)


def test_a_model_that_only_talks_is_asked_for_json(endpoint: ScriptedEndpoint, tree: Path) -> None:
    endpoint.answers = [called(text="I'd use 2 threads")] * MAX_UNCALLED[True] + [written(*stopped("done"))]
    assert make_planner(endpoint).next_action(context(tree)) == ENDED
    assert "response_format" in endpoint.requests[-1]
    assert "I'd use 2 threads" in json.dumps(endpoint.requests[-1])


def test_the_schema_admits_well_formed_calls_of_this_target_and_no_others(
    endpoint: ScriptedEndpoint, tree: Path
) -> None:
    endpoint.answers = [failed(*NO_TOOLS[0]), written(*stopped("done"))]
    make_planner(endpoint).next_action(context(tree))
    schema = endpoint.requests[1]["response_format"]["json_schema"]["schema"]
    check = jsonschema.Draft202012Validator(schema).is_valid

    def call(pair: tuple[str, Any]) -> dict[str, Any]:
        return {"tool": pair[0], "arguments": pair[1]}

    for good in (READ, ("list_files", {}), stopped("done"), proposal(edits=[FAST]), proposal(knobs={"threads": 64}),
                 proposal(knobs={"poll": None}), proposal(edits=[{"path": "a.c", "new": "x" * 5000}])):  # fmt: skip
        assert check(call(good)), good
    for bad in (("fly", {}), ("read_file", {}), proposal(knobs={"threads": 65}), proposal(knobs={"poll": 7}),
                proposal(knobs={"thread": 2}), proposal(probe="load"), proposal(lever_family="magic"),
                proposal(claim="x" * 5000), proposal(evidence=[])):  # fmt: skip
        assert not check(call(bad)), bad


def test_a_model_that_repeats_itself_under_a_schema_is_held_to_ending_the_step(
    endpoint: ScriptedEndpoint, tree: Path
) -> None:
    endpoint.answers = [failed(*NO_TOOLS[0]), written(*READ), written(*READ), written(*stopped("done"))]
    assert make_planner(endpoint).next_action(context(tree)) == ENDED
    kinds = [len(r["response_format"]["json_schema"]["schema"]["anyOf"]) for r in endpoint.requests[1:]]
    assert kinds == [10, 10, 2]


# Limits and names.


@pytest.mark.parametrize(
    ("said", "sent"),
    [
        (["Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."],
         ["max_tokens", "max_completion_tokens"]),
        (["max_tokens is too large: 16384. It supports at most 4096 completion tokens", "max_completion_tokens?"],
         ["max_tokens", "max_completion_tokens", None]),
    ],
)  # fmt: skip
def test_the_limit_of_an_answer_is_named_as_the_endpoint_wants_it(
    endpoint: ScriptedEndpoint, tree: Path, said: list[str], sent: list[str | None]
) -> None:
    endpoint.answers = [*(failed(400, text) for text in said), DONE]
    assert make_planner(endpoint).next_action(context(tree)) == ENDED
    names = [next((n for n in r if n.startswith("max_")), None) for r in endpoint.requests]
    assert names == sent


def test_another_models_name_is_recorded_and_said_once(endpoint: ScriptedEndpoint, tree: Path) -> None:
    notes: list[str] = []
    calls = CallsInMemory("c")
    endpoint.answers = [called(READ, model="a-cheaper-model"), called(stopped("done"), model="a-cheaper-model")]
    assert LlmPlanner(settings(endpoint), calls, QUICK, notes.append).next_action(context(tree)) == ENDED
    assert notes == ["the endpoint answers for a-model as a-cheaper-model"]
    assert all('"a-cheaper-model"' in call.response for call in calls.calls.values())
    assert {call.model for call in calls.calls.values()} == {"a-model"}


def test_tokens_that_nobody_counts_are_estimated(endpoint: ScriptedEndpoint, tree: Path) -> None:
    calls = CallsInMemory("c")
    endpoint.answers = [called(stopped("done"), usage=None)]
    make_planner(endpoint, calls).next_action(context(tree))
    (call,) = calls.calls.values()
    assert 1000 < call.prompt_tokens < 20_000
    assert 20 < call.completion_tokens < 500


def test_a_failing_call_shows_no_key(endpoint: ScriptedEndpoint, tree: Path) -> None:
    calls = CallsInMemory("c")
    endpoint.answers = [failed(400, f"tools are not supported for {KEY}"), written(*stopped("done"))]
    make_planner(endpoint, calls).next_action(context(tree))
    assert all(KEY not in call.model_dump_json() for call in calls.calls.values())
