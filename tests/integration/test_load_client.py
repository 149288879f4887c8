"""The load client against a server that misbehaves in every way: what it must record, and never credit."""

from __future__ import annotations

import json
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar

import pytest

from feedback.readers.load import metrics
from sandboxes.load import Burst, BurstParams, Traffic, burst, draw_prompts
from sandboxes.logprobs import ScoreParams, ScoringFailed, score
from sandboxes.results import Ending
from sandboxes.sandbox import ProcessFailed, Sandbox, SandboxSpec, open_sandbox
from sandboxes.server import ServerArm
from sandboxes.sockets import ask
from sandboxes.tokens import SPLIT_RULES, TokenCounter

ROOT = Path(__file__).resolve().parents[2]
PRINTABLE = [chr(code) for code in range(0x21, 0x7F)] + ["\u0120"]
OFFERED = 10


def letters() -> TokenCounter:
    """A tokenizer for which each printable letter is one token."""
    return TokenCounter(PRINTABLE, [1] * len(PRINTABLE), SPLIT_RULES["smollm"])


class Handler(BaseHTTPRequestHandler):
    """A llama.cpp-like server whose behaviour is the test's."""

    behaviour: ClassVar[Callable[[Handler, dict[str, Any]], None]]
    asked: ClassVar[list[dict[str, Any]]]
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).asked.append(body)
        try:
            type(self).behaviour(self, body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def start(self, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Connection", "close")
        self.end_headers()

    def event(self, data: Any) -> None:
        self.wfile.write(b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n")

    def piece(self, text: str) -> None:
        self.event({"choices": [{"delta": {"content": text}, "finish_reason": None}]})

    def end(self, **more: Any) -> None:
        self.event({"choices": [{"delta": {}, "finish_reason": "length"}], **more})
        self.event(b"[DONE]")

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


class Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    block_on_close = False


Serve = Callable[[Callable[[Handler, dict[str, Any]], None]], Path]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    servers: list[Server] = []

    def start(behaviour: Callable[[Handler, dict[str, Any]], None]) -> Path:
        path = tmp_path / f"{len(servers)}.sock"
        handler = type("Behaving", (Handler,), {"behaviour": staticmethod(behaviour), "asked": []})
        server = Server(str(path), handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return path

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def offer(path: Path, streams: int = 1, timeout_s: float = 5.0, **params: Any) -> Burst:
    checked = BurstParams(streams=streams, output_tokens=OFFERED, timeout_s=timeout_s, **params)
    return burst(path, ["say it"] * streams, checked, letters(), template_tokens=4)


def complete(handler: Handler, body: dict[str, Any]) -> None:
    handler.start()
    for letter in "abcdefghij":
        handler.piece(letter)
        time.sleep(0.01)
    handler.end(timings={"prompt_ms": 1.5, "predicted_n": 10, "note": "text", "huge": 10**400})


def test_complete_answer_is_counted_and_timed_by_us(serve: Serve) -> None:
    record = offer(serve(complete), streams=3)
    assert len(record.requests) == 3
    for request in record.requests:
        assert (request.ok, request.failure, request.error) == (True, None, "")
        assert request.output_tokens == request.offered_output_tokens == OFFERED
        assert request.prompt_tokens_expected == len("say it") + 4
        assert request.finish_reason == "length"
        assert request.server == {"prompt_ms": 1.5, "predicted_n": 10}
        assert request.ttft_s is not None
        assert request.e2el_s is not None
        assert len(request.itls_s) == OFFERED - 1
        assert request.ttft_s + sum(request.itls_s) == pytest.approx(request.e2el_s)
        assert 0.09 < request.e2el_s <= record.duration_s
    assert Burst.from_line(record.to_line()) == record
    assert metrics(record.model_dump(mode="json"))["completed"] == 3


def test_requests_ask_for_greedy_answers_of_full_length(serve: Serve) -> None:
    asked: list[dict[str, Any]] = []

    def remember(handler: Handler, body: dict[str, Any]) -> None:
        asked.append(body)
        complete(handler, body)

    path = serve(remember)
    offer(path)
    offer(path, cache_prompt=False)
    assert asked[0] == {
        "messages": [{"role": "user", "content": "say it"}],
        "max_tokens": OFFERED,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
    }
    assert asked[1]["cache_prompt"] is False


def short(handler: Handler, body: dict[str, Any]) -> None:
    handler.start()
    handler.piece("abcdefgh")
    handler.end()


def refuse(handler: Handler, body: dict[str, Any]) -> None:
    handler.start(503)
    handler.wfile.write(b'{"error": {"message": "no\\nslots", "code": 503}}')


def refuse_in_stream(handler: Handler, body: dict[str, Any]) -> None:
    handler.start()
    handler.piece("abcdefghij")
    handler.event({"error": {"message": "context exceeded", "code": 400}})
    handler.end()


def cut(handler: Handler, body: dict[str, Any]) -> None:
    handler.start()
    handler.piece("abcdefghij")


def close_at_once(handler: Handler, body: dict[str, Any]) -> None:
    handler.close_connection = True


def no_json(handler: Handler, body: dict[str, Any]) -> None:
    handler.start()
    handler.event(b"{nonsense")


def wrong_shapes(handler: Handler, body: dict[str, Any]) -> None:
    handler.start()
    handler.event([1, 2, 3])
    handler.end()


def wrong_choices(handler: Handler, body: dict[str, Any]) -> None:
    handler.start()
    handler.event({"choices": ["abcdefghij", None], "timings": [1]})
    handler.end()


def no_http(handler: Handler, body: dict[str, Any]) -> None:
    handler.wfile.write(b"\x00\x01\x02 not http\r\n\r\n")
    handler.close_connection = True


def flood_of_events(handler: Handler, body: dict[str, Any]) -> None:
    handler.start()
    while True:
        handler.piece("a")


def flood_without_lines(handler: Handler, body: dict[str, Any]) -> None:
    handler.start()
    while True:
        handler.wfile.write(b"x" * 65536)


def flood_of_headers(handler: Handler, body: dict[str, Any]) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    for i in range(10_000):
        handler.wfile.write(b"X-%d: y\r\n" % i)


@pytest.mark.parametrize(
    ("behaviour", "failure", "words"),
    [
        (short, "short", "8 of 10 tokens"),
        (refuse, "refused", "HTTP 503: no slots"),
        (refuse_in_stream, "refused", "context exceeded"),
        (cut, "broken", "without its end mark"),
        (close_at_once, "broken", ""),
        (no_json, "broken", "JSONDecodeError"),
        (wrong_shapes, "broken", ""),
        (wrong_choices, "broken", ""),
        (no_http, "broken", "BadStatusLine"),
        (flood_of_events, "flooded", "more than"),
        (flood_without_lines, "flooded", ""),
        (flood_of_headers, "broken", ""),
    ],
)
def test_misbehaviour_is_recorded_and_credited_with_nothing(
    serve: Serve, behaviour: Callable[[Handler, dict[str, Any]], None], failure: str, words: str
) -> None:
    good = metrics(offer(serve(complete)).model_dump(mode="json"))
    record = offer(serve(behaviour), timeout_s=10.0)
    (request,) = record.requests
    assert (request.ok, request.failure) == (False, failure)
    assert words in request.error
    assert request.output_tokens <= OFFERED
    bad = metrics(record.model_dump(mode="json"))
    assert bad["output_throughput"] < good["output_throughput"]
    assert bad["request_throughput"] < good["request_throughput"]
    assert bad["median_ttft_ms"] > good["median_ttft_ms"]
    assert bad["median_e2el_ms"] > good["median_e2el_ms"]


def test_refusing_most_requests_to_answer_one_faster_does_not_pay(serve: Serve) -> None:
    lock, first = threading.Lock(), [True]

    def answer_one(handler: Handler, body: dict[str, Any]) -> None:
        with lock:
            mine, first[0] = first[0], False
        if not mine:
            refuse(handler, body)
            return
        handler.start()
        for letter in "abcdefghij":
            handler.piece(letter)
        handler.end()

    honest = metrics(offer(serve(complete), streams=4).model_dump(mode="json"))
    greedy = metrics(offer(serve(answer_one), streams=4).model_dump(mode="json"))
    assert greedy["completed"] == 1
    for name in ("output_throughput", "request_throughput", "request_goodput", "goodput_share"):
        assert greedy[name] < honest[name]
    for name in ("median_ttft_ms", "mean_tpot_ms", "p99_e2el_ms"):
        assert greedy[name] > honest[name]


def test_more_text_than_was_asked_for_is_not_credited(serve: Serve) -> None:
    def talkative(handler: Handler, body: dict[str, Any]) -> None:
        handler.start()
        for _ in range(20):
            handler.piece("a" * 1000)
        handler.end()

    (request,) = offer(serve(talkative)).requests
    assert request.output_tokens == OFFERED


@pytest.mark.parametrize("where", ["before the headers", "in the headers", "in the stream", "dripping"])
def test_silence_ends_at_the_time_limit(serve: Serve, where: str) -> None:
    def hang(handler: Handler, body: dict[str, Any]) -> None:
        if where == "in the headers":
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        if where in ("in the stream", "dripping"):
            handler.start()
            handler.piece("a")
        for _ in range(200):
            time.sleep(0.05)
            if where == "dripping":
                handler.wfile.write(b"x")

    started = time.monotonic()
    record = offer(serve(hang), streams=2, timeout_s=0.5)
    assert time.monotonic() - started < 4
    assert {r.failure for r in record.requests} == {"timeout"}
    assert metrics(record.model_dump(mode="json"))["completed"] == 0


def test_late_arrivals_are_sent_late_and_timed_from_their_own_start(serve: Serve) -> None:
    record = offer(serve(complete), streams=3, arrivals_s=(0.0, 0.3))
    times = [r.e2el_s for r in record.requests]
    assert all(t is not None and t < 0.3 for t in times)
    assert record.duration_s > 0.39


def test_what_is_no_socket_is_not_talked_to(tmp_path: Path, serve: Serve) -> None:
    behind = serve(complete)
    link, file = tmp_path / "link.sock", tmp_path / "file.sock"
    link.symlink_to(behind)
    file.write_text("")
    for path in (link, file, tmp_path / "absent.sock", tmp_path):
        (request,) = offer(path).requests
        assert (request.ok, request.failure) == (False, "broken")
        with pytest.raises(OSError, match=r"sock|directory|Too many"):
            ask(path, "/health")


def test_socket_deep_in_the_file_system_is_reached(tmp_path: Path, serve: Serve) -> None:
    path = serve(complete)
    deep = tmp_path.joinpath(*["a-long-directory-name"] * 8)
    deep.mkdir(parents=True)
    path.rename(deep / "s.sock")
    assert len(str(deep)) > 108
    assert offer(deep / "s.sock").requests[0].ok


def test_client_itself_costs_little(serve: Serve) -> None:
    record = offer(serve(complete), streams=4)
    assert record.client_cpu_s < 1.0  # the fake server's own work is in it too


def test_prompts_depend_on_the_seed_only_and_never_come_twice() -> None:
    prompts = [f"prompt {i}: {{number}} please" for i in range(20)]
    first = draw_prompts(prompts, 4, seed=5)
    assert first == draw_prompts(prompts, 4, seed=5)
    assert first != draw_prompts(prompts, 4, seed=6)
    again = draw_prompts(prompts, 4, seed=5, use=1)
    kinds = [{p.split(":")[0] for p in drawn} for drawn in (first, again)]
    assert len(kinds[0]) == 4
    assert not kinds[0] & kinds[1]
    assert all(p.split()[2].isdigit() for p in first)
    assert len(draw_prompts(prompts[:2], 5, seed=1)) == 5


def test_shipped_traffic_is_varied() -> None:
    traffic = Traffic.load(ROOT / "targets" / "llamacpp" / "traffic.json")
    assert len(set(traffic.prompts)) >= 48
    assert all(prompt.count("{number}") == 1 and prompt.index("{number}") < 40 for prompt in traffic.prompts)


def test_scoring_a_server_that_talks_nonsense_fails_and_refusals_are_recorded(serve: Serve) -> None:
    def nonsense(handler: Handler, body: dict[str, Any]) -> None:
        handler.start()
        handler.wfile.write(b'{"completion_probabilities": [{"top_logprobs": []}]}')

    params = ScoreParams(first=2, stride=3, timeout_s=5.0)
    with pytest.raises(ScoringFailed, match="not an answer with probabilities"):
        score(serve(nonsense), {"a": "abcdefgh"}, letters(), params)
    with pytest.raises(ScoringFailed, match="position 2"):
        score(serve(close_at_once), {"a": "abcdefgh"}, letters(), params)
    (scored,) = score(serve(refuse), {"a": "abcdefgh"}, letters(), params)
    assert [(p.position, p.logprob) for p in scored.positions] == [(2, None), (5, None)]
    assert "no slots" in scored.positions[0].error.replace("\n", " ")


def test_scoring_finds_the_true_token_or_its_bound(serve: Serve) -> None:
    counter = letters()

    def answer(handler: Handler, body: dict[str, Any]) -> None:
        assert body["prompt"] == counter.encode("abcdefgh")[: len(body["prompt"])]
        (true,) = counter.encode("c")
        (other,) = counter.encode("z")
        top = [{"id": other, "logprob": -0.5}, {"id": true, "logprob": -2.0}]
        handler.start()
        handler.wfile.write(json.dumps({"completion_probabilities": [{"top_logprobs": top}]}).encode())

    (scored,) = score(serve(answer), {"a": "abcdefgh"}, counter, ScoreParams(first=2, stride=3))
    found, censored = scored.positions
    assert (found.logprob, found.censored, found.top1) == (-2.0, False, counter.encode("z")[0])
    assert (censored.logprob, censored.censored) == (-2.0, True)


FAKE = """
import socketserver, sys, time
from http.server import BaseHTTPRequestHandler
mode = sys.argv[1]
if mode == "exit at once":
    sys.exit("launch.toml: threads must be from 1 to 512, not 0")
if mode == "never ready":
    time.sleep(60)
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"ok")
    def do_POST(self):
        if mode == "die":
            print("out of memory", file=sys.stderr, flush=True); import os; os._exit(9)
        time.sleep(60)
    def log_message(self, *args): pass
class Server(socketserver.ThreadingUnixStreamServer): daemon_threads = True
Server("/scratch/s.sock", Handler).serve_forever()
"""


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    for name in ("tree", "scratch"):
        (tmp_path / name).mkdir()
    (tmp_path / "tree" / "fake.py").write_text(FAKE)
    sandbox = open_sandbox("bubblewrap", SandboxSpec(tree=tmp_path / "tree", scratch=tmp_path / "scratch"))
    yield sandbox
    sandbox.close()


def open_arm(sandbox: Sandbox, mode: str, ready_timeout_s: float = 20.0) -> ServerArm:
    return ServerArm.open(
        sandbox, ("python3", "fake.py", mode), name="candidate", socket_name="s.sock", prompts=("say it",),
        counter=letters(), log=sandbox.spec.scratch.parent / "log", ready_timeout_s=ready_timeout_s,
    )  # fmt: skip


def test_server_that_ends_while_starting_is_a_typed_failure_with_its_words(sandbox: Sandbox) -> None:
    with pytest.raises(ProcessFailed, match=r"starting the server.*threads must be from 1 to 512") as caught:
        open_arm(sandbox, "exit at once")
    assert (caught.value.result.ending, caught.value.result.returncode) == (Ending.EXITED, 1)


def test_server_that_never_gets_ready_is_a_timeout(sandbox: Sandbox) -> None:
    with pytest.raises(ProcessFailed, match="not ready in time") as caught:
        open_arm(sandbox, "never ready", ready_timeout_s=1.0)
    assert caught.value.result.ending is Ending.TIMEOUT


def test_server_that_dies_in_a_burst_is_a_typed_failure(sandbox: Sandbox) -> None:
    arm = open_arm(sandbox, "die")
    with pytest.raises(ProcessFailed, match=r"slice 3.*status 9") as caught:
        arm.slice(3, 1, {"streams": 2, "output_tokens": 4, "timeout_s": 10.0})
    assert caught.value.result.ending is Ending.EXITED
    assert arm.ended() == caught.value.result
    assert arm.pids() == []


def test_server_that_hangs_in_a_burst_is_stopped_as_a_timeout(sandbox: Sandbox) -> None:
    arm = open_arm(sandbox, "hang")
    assert arm.ended() is None
    assert arm.pids()
    with pytest.raises(ProcessFailed, match=r"not answered within 0\.5 s") as caught:
        arm.slice(3, 1, {"streams": 2, "output_tokens": 4, "timeout_s": 0.5})
    assert caught.value.result.ending is Ending.TIMEOUT
    assert arm.pids() == []
    assert arm.close().ending is Ending.STOPPED
