"""The scripted endpoint itself, spoken to without the client of the planner."""

from __future__ import annotations

import http.client
import json
import threading
import time
from typing import Any
from urllib.parse import urlsplit

import pytest

from infra_agent.planner.testing import SCRIPT_ENDED, Raw, ScriptedEndpoint, called, completion, failed, written


def post(endpoint: ScriptedEndpoint, body: dict[str, Any], timeout_s: float = 5.0) -> tuple[int, bytes]:
    address = urlsplit(endpoint.url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=timeout_s)
    try:
        connection.request("POST", f"{address.path}/chat/completions", json.dumps(body), {"X-Mine": "1"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_answers_come_in_order_and_requests_are_kept() -> None:
    with ScriptedEndpoint() as endpoint:
        endpoint.answers = [completion({"content": "a"}), Raw(b"no json", 503, {"Retry-After": "7"})]
        status, body = post(endpoint, {"n": 1})
        assert (status, json.loads(body)["choices"][0]["message"]["content"]) == (200, "a")
        assert post(endpoint, {"n": 2}) == (503, b"no json")
        status, body = post(endpoint, {"n": 3})
        assert status == SCRIPT_ENDED
        assert b"no further answer" in body
    assert endpoint.requests == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert endpoint.headers[0]["x-mine"] == "1"


def test_a_responder_answers_from_the_request() -> None:
    with ScriptedEndpoint() as endpoint:
        endpoint.respond = lambda request: failed(400, f"not {request['n']}", code="odd")
        status, body = post(endpoint, {"n": 5})
    assert status == 400
    assert json.loads(body)["error"] == {
        "message": "not 5", "type": "invalid_request_error", "param": None, "code": "odd",
    }  # fmt: skip


def test_a_connection_breaks_before_or_within_the_answer() -> None:
    with ScriptedEndpoint() as endpoint:
        endpoint.answers = [Raw(drop="unanswered"), Raw(b"0123456789", drop="midway")]
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            post(endpoint, {})
        with pytest.raises((ConnectionError, http.client.IncompleteRead)):
            post(endpoint, {})


def test_delays_and_drips_end_with_the_endpoint() -> None:
    endpoint = ScriptedEndpoint()
    endpoint.answers = [Raw(delay_s=60), Raw(drip=True)]
    waiting = [threading.Thread(target=_give_up, args=(endpoint,)) for _ in endpoint.answers]
    for thread in waiting:
        thread.start()
    while len(endpoint.requests) < 2:
        time.sleep(0.01)
    endpoint.close()
    for thread in waiting:
        thread.join(10)
        assert not thread.is_alive()


def _give_up(endpoint: ScriptedEndpoint) -> None:
    try:
        post(endpoint, {}, timeout_s=30)
    except (OSError, http.client.HTTPException):
        return


def test_calls_have_the_form_of_chat_completions() -> None:
    answer = called(("a", {"x": 1}), ("b", "{broken"), text="so", finish="length", model="m", usage=None)
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "length"
    assert [c["function"]["arguments"] for c in choice["message"]["tool_calls"]] == ['{"x": 1}', "{broken"]
    assert (answer["model"], answer["usage"]) == ("m", None)
    assert json.loads(written("a", {"x": 1})["choices"][0]["message"]["content"]) == {
        "tool": "a",
        "arguments": {"x": 1},
    }
