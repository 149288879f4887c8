"""An OpenAI-compatible endpoint that answers from a script, over real HTTP on the loopback: for tests of whatever talks
to a model, here and elsewhere, and for trying a campaign's behaviour with a model that can be relied on.

    with ScriptedEndpoint() as endpoint:
        endpoint.answers = [called(("list_files", {})), Raw(status=503), called(("stop", {"reason": "done"}))]
        ...  # OPENAI_BASE_URL=endpoint.url
        assert len(endpoint.requests) == 3
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Self

USAGE = {"prompt_tokens": 100, "completion_tokens": 7, "total_tokens": 107}
DRIP_S = 0.05
"""Between the blanks of an answer that never comes."""
SCRIPT_ENDED = 418
"""Status of a request for which the script has no answer; no client tries it again."""


class Raw(NamedTuple):
    """An answer as bytes, with a status and headers."""

    body: bytes = b"{}"
    status: int = 200
    headers: Mapping[str, str] = MappingProxyType({})
    delay_s: float = 0.0
    """Before the first byte."""
    drip: bool = False
    """Send blanks for ever instead of the body."""
    drop: Literal["", "unanswered", "midway"] = ""
    """Break the connection, before any byte or after half of the body."""


Scripted = Raw | dict[str, Any]
"""An answer: bytes, or a chat completion that goes out as JSON."""


class ScriptedEndpoint:
    """Speaks /v1/chat/completions; gives the scripted answers one after another and keeps the requests. Listens from
    its creation until `close`."""

    def __init__(self) -> None:
        self.answers: list[Scripted] = []
        """What is still to be answered, first one next."""
        self.respond: Callable[[dict[str, Any]], Scripted] | None = None
        """Answers in the script's place, from the request."""
        self.requests: list[dict[str, Any]] = []
        """The bodies of all requests."""
        self.headers: list[dict[str, str]] = []
        """Their headers, names in lower case."""
        self._closing = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening; delayed and dripping answers end."""
        self._closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def results(self) -> list[str]:
        """What the tools answered in the latest request."""
        return [m["content"] for m in self.requests[-1]["messages"] if m["role"] == "tool"]

    def wait(self, seconds: float) -> bool:
        """Wait, but not longer than until `close`; whether that has come."""
        return self._closing.wait(seconds)

    def answer(self, request: dict[str, Any]) -> Raw:
        """The answer to a request, as it goes out."""
        if self.respond is not None:
            found = self.respond(request)
        elif self.answers:
            found = self.answers.pop(0)
        else:
            found = failed(SCRIPT_ENDED, "the script has no further answer")
        return found if isinstance(found, Raw) else Raw(json.dumps(found).encode())


def called(
    *calls: tuple[str, object], text: str | None = None, finish: str = "tool_calls", **more: Any
) -> dict[str, Any]:
    """A chat completion that calls tools; arguments that are no dict go out as they are. `more` are fields of the
    completion itself, such as `model` and `usage`."""
    tool_calls = [
        {
            "id": f"id{i}",
            "type": "function",
            "function": {"name": name, "arguments": a if isinstance(a, str) else json.dumps(a)},
        }
        for i, (name, a) in enumerate(calls)
    ]
    return completion({"content": text, **({"tool_calls": tool_calls} if calls else {})}, finish, **more)


def written(tool: str, arguments: object, **more: Any) -> dict[str, Any]:
    """A chat completion whose text is a call as JSON, as a model without tools writes it."""
    return completion({"content": json.dumps({"tool": tool, "arguments": arguments})}, "stop", **more)


def completion(message: Mapping[str, Any], finish: str = "stop", **more: Any) -> dict[str, Any]:
    """A chat completion with this message."""
    return {
        "id": "x",
        "object": "chat.completion",
        "created": 1,
        "model": "a-model",
        "choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}],
        "usage": USAGE,
        **more,
    }


def failed(status: int, message: str, headers: Mapping[str, str] = MappingProxyType({}), **more: Any) -> Raw:
    """An HTTP error as OpenAI-compatible endpoints word it."""
    body = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None, **more}}
    return Raw(json.dumps(body).encode(), status, headers)


def _handler(endpoint: ScriptedEndpoint) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.close_connection = True
            body = self.rfile.read(int(self.headers["Content-Length"]))
            endpoint.requests.append(json.loads(body))
            endpoint.headers.append({k.lower(): v for k, v in self.headers.items()})
            raw = endpoint.answer(endpoint.requests[-1])
            endpoint.wait(raw.delay_s)
            try:
                self._send(raw)
            except OSError:
                return  # the client gave up

        def _send(self, raw: Raw) -> None:
            if raw.drop == "unanswered":
                return self._break()
            self.send_response(raw.status)
            for name, value in raw.headers.items():
                self.send_header(name, value)
            self.send_header("Connection", "close")  # else a client may send its next request into a closing one
            self.send_header("Content-Length", str(10**6 if raw.drip else len(raw.body)))
            self.end_headers()
            while raw.drip and not endpoint.wait(DRIP_S):
                self.wfile.write(b" ")
            if raw.drop:
                self.wfile.write(raw.body[: len(raw.body) // 2])
                return self._break()
            self.wfile.write(raw.body)
            return None

        def _break(self) -> None:
            """Reset the connection, as a crashed server's machine does."""
            self.wfile.flush()
            endpoint.wait(DRIP_S)  # else the reset overtakes what was sent
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()

        def log_message(self, *_: object) -> None:
            return

    return Handler
