"""Whole campaigns of the control arms and of the portfolio, through the command line with a real worker: a toy whose
launch file says how often it does its work."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from toy_campaign import BENCH, TOP, WORKER, Cli

from infra_agent.journal import log_gain
from sandboxes.bubblewrap import probe_host

TARGET = (
    TOP
    + """
[[knobs]]
name = "copies"
description = "How often the work is done"
key = "copies"
choices = [1, 2, 4, 16]
suggest = [4]
[[knobs]]
name = "label"
description = "Does nothing"
key = "label"
choices = ["a", "b", "c"]
suggest = ["b"]
"""
    + BENCH.replace("[6, 12]", "[6]")
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not probe_host().available, reason="this host refuses a sandbox"),
]


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    toy = tmp_path / "toy"
    toy.mkdir()
    (toy / "target.toml").write_text(TARGET)
    (toy / "worker.py").write_text(WORKER)
    (toy / "launch.toml").write_text('copies = 16\nlabel = "a"\n')
    return Cli(tmp_path / "home", tmp_path)


def test_random_builds_on_the_original_even_after_an_acceptance_and_search_is_held_against_it(cli: Cli) -> None:
    drawn = cli("run", "toy", "--planner", "random", "--experiments", "4", "--seed", "2", "--json")
    assert drawn.code == 0, drawn.err
    chance = drawn.json
    changes = cli.changes()
    assert len(changes) == 4
    assert len({e.parent_commit for e in changes}) == 1
    assert len({json.dumps(e.proposal.change.knobs, sort_keys=True) for e in changes}) == 4
    accepted = [e for e in changes if e.confirmed]
    assert accepted, chance
    won = max(accepted, key=log_gain)  # the best, not the last
    assert {k["name"]: k["now"] for k in chance["knobs"]} == won.proposal.change.knobs
    assert chance["shares"][0]["planner"] == "random"

    searched = cli("run", "toy", "--planner", "search", "--experiments", "3", "--json")
    assert searched.code == 0, searched.err
    ours, theirs = searched.json["campaign"], chance["campaign"]
    assert "copies" in [k["name"] for k in searched.json["knob_effects"]["knobs"] if k["share"]]
    versus = cli("show", ours, "--against", theirs, "--json")
    assert versus.code == 0, versus.err
    equal = {e["measure"]: e for e in versus.json["at_equal"]}
    assert equal["experiments"]["limit"] == 3
    assert equal["wall_s"]["limit"] > 0
    assert versus.json["campaign"]["gain"] > 0.5  # of 16 copies at most 4 are left
    said = cli("show", ours, "--against", theirs)
    assert "at equal" in said.out
    assert "One campaign of each is one draw" in said.out

    assert cli("show", ours, "--against", ours).code == 2
    (cli.cwd / "toy" / "launch.toml").write_text('copies = 4\nlabel = "a"\n')
    other = cli("run", "toy", "--planner", "search", "--experiments", "1", "--json").json["campaign"]
    refused = cli("show", ours, "--against", other)
    assert refused.code == 2
    assert "the target's files differed at their starts" in refused.err
    assert cli("show", ours, "--against", "nowhere").code == 2
    assert cli("show", ours, "--against", theirs, "--patch").code == 2


def test_a_portfolio_shares_one_budget_and_a_resume_goes_on_with_it(cli: Cli) -> None:
    first = cli("run", "toy", "--planner", "portfolio:search,random", "--experiments", "3", "--json")
    assert first.code == 0, first.err
    names = [e.proposal.planner for e in cli.changes()]
    assert names[:2] == ["search", "random"]
    again = cli("run", "--resume", "latest", "--experiments", "5", "--json")
    assert again.code == 0, again.err
    shares = {s["planner"]: s for s in again.json["shares"]}
    assert set(shares) == {"search", "random"}
    assert sum(s["n_experiments"] for s in shares.values()) == again.json["n_changes"] == 5
    assert sum(s["n_accepted"] for s in shares.values()) == again.json["n_accepted"]
    assert all(s["sandbox_s"] > 0 and s["model_s"] > 0 and s["tokens"] == 0 for s in shares.values())
    assert max(s["gain"] for s in shares.values()) > 0.5
    assert [e.proposal.planner for e in cli.changes()][:3] == names
    text = cli("show").out
    assert "Who proposed" in text
    assert "What each knob did" in text


def test_a_portfolio_ends_with_the_reason_of_each(cli: Cli) -> None:
    text = (cli.cwd / "toy" / "target.toml").read_text()
    (cli.cwd / "toy" / "target.toml").write_text(
        text.replace("[1, 2, 4, 16]", "[4, 16]").replace('["a", "b", "c"]', '["a", "b"]')
    )
    done = cli("run", "toy", "--planner", "portfolio:random,search", "--experiments", "30", "--json")
    assert done.code == 0, done.err
    assert done.json["ended_by"] == "planner"
    assert "random: " in done.json["stop_reason"]
    assert "search: " in done.json["stop_reason"]
    assert done.json["n_changes"] == 3  # all there is


class Model:
    """An OpenAI-compatible endpoint that always has the next idea of its list."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        model = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                model.requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                body = json.dumps(proposal([4, 1, 2][len(model.requests) - 1])).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def proposal(copies: int) -> dict[str, Any]:
    """A chat completion that proposes so many copies."""
    given = {
        "claim": "Fewer copies are faster", "mechanism": "less work", "location": "copies", "question": "faster?",
        "evidence": ["copies"], "falsifier": "no time is saved", "lever_family": "launch parameters",
        "predicted": {"metric": "slice_time_s", "direction": "down", "low": 0.1}, "knobs": {"copies": copies},
    }  # fmt: skip
    call = {"id": "1", "type": "function", "function": {"name": "propose", "arguments": json.dumps(given)}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    return {
        "id": "x", "object": "chat.completion", "created": 0, "model": "m",
        "choices": [{"index": 0, "finish_reason": "tool_calls", "message": message}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
    }  # fmt: skip


@pytest.fixture
def model() -> Iterator[Model]:
    server = Model()
    yield server
    server.close()


def test_best_of_n_draws_samples_that_know_nothing_of_each_other(cli: Cli, model: Model) -> None:
    access = {"INFRA_AGENT_MODEL": "m", "OPENAI_BASE_URL": model.url, "OPENAI_API_KEY": "k"}
    done = cli("run", "toy", "--planner", "best-of-n", "--experiments", "3", "--json", **access)
    assert done.code == 0, done.err
    assert len(model.requests) == 3
    openings = [str(request["messages"][1]["content"]) for request in model.requests]
    assert len(set(openings)) == 3
    assert len({text.replace(f"sample {n}.1", "sample N") for n, text in enumerate(openings, 1)}) == 1
    changes = cli.changes()
    assert [e.proposal.change.knobs for e in changes] == [{"copies": 4}, {"copies": 1}, {"copies": 2}]
    assert len({e.parent_commit for e in changes}) == 1
    won = max((e for e in changes if e.confirmed), key=log_gain)  # the best, not the last
    assert [k["now"] for k in done.json["knobs"]] == [won.proposal.change.knobs["copies"]]
    assert done.json["shares"][0]["tokens"] == 330
    assert done.json["n_in_result"] == 1
