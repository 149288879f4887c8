"""Budgets of whole campaigns, in processes of their own: a model's tokens and dollars over real HTTP, through a kill -9
between sending and recording; accelerator-seconds of sandboxed work, through a kill -9 in the middle of it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from toy_campaign import ROOT, TARGET, Cli, make_target

from infra_agent.pulse import PERIOD_S, beating, last_beat_s
from infra_agent.settings import load_settings
from infra_agent.store import open_store
from sandboxes.bubblewrap import probe_host

needs_sandbox = pytest.mark.skipif(not probe_host().available, reason="this host refuses a sandbox")
USAGE = {"prompt_tokens": 3000, "completion_tokens": 200, "prompt_tokens_details": {"cached_tokens": 1000}}
STOP = ("stop", {"reason": "enough", "left": {"launch parameters": "no", "kernels": "no", "host code": "no"}})


class Model:
    """An OpenAI-compatible server that lists files, each time others, until it is told to stop; it counts `USAGE`."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.held = threading.Event()
        """Set while an answer may go out."""
        self.held.set()
        self.asked = threading.Event()
        self.usage: dict[str, Any] | None = USAGE
        self.stops_at = 10**6
        model = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                model.requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                model.asked.set()
                model.held.wait(60)
                body = json.dumps(model.answer(len(model.requests))).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                try:
                    self.wfile.write(body)
                except OSError:
                    return  # whoever asked was killed

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.env = {
            "INFRA_AGENT_MODEL": "m", "OPENAI_BASE_URL": f"http://127.0.0.1:{self._server.server_port}/v1",
        }  # fmt: skip
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def answer(self, n: int) -> dict[str, Any]:
        name, arguments = STOP if n >= self.stops_at else ("list_files", {"glob": f"{n}*"})
        call = {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        told = {} if self.usage is None else {"usage": self.usage}
        return {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}], **told}

    def close(self) -> None:
        self.held.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def model() -> Iterator[Model]:
    server = Model()
    yield server
    server.close()


@pytest.fixture
def prices(tmp_path: Path) -> dict[str, str]:
    """A table by which the model, although on this machine, costs 1, 0.1 and 10 dollars."""
    table = tmp_path / "prices.toml"
    table.write_text('[[models]]\nmatch = ["m"]\ninput = 1\ncached_input = 0.1\noutput = 10\n')
    return {"INFRA_AGENT_PRICES": str(table)}


COST = (2000 * 1.0 + 1000 * 0.1 + 200 * 10.0) / 1e6
"""Of a call that counts `USAGE`, in dollars."""


@needs_sandbox
def test_a_token_budget_ends_the_campaign_and_a_larger_total_goes_on_where_it_stopped(
    cli: Cli, toy: Path, model: Model
) -> None:
    done = cli("run", str(toy), "--planner", "llm", "--tokens", "25000", "--json", **model.env)
    assert done.code == 3, done.err
    report, n = done.json, len(model.requests)
    assert n > 1
    assert (report["state"], report["ended_by"]) == ("complete", "budget")
    assert report["stop_reason"].startswith(
        f"the budget of 25000 tokens is used up ({3200 * n} used, the next call may "
    )
    use = report["use"]
    assert (use["tokens"], use["prompt_tokens"], use["completion_tokens"]) == (3200 * n, 3000 * n, 200 * n)
    assert use["tokens"] <= 25000
    assert (use["cached_tokens"], use["model_calls"], use["estimated_calls"]) == (1000 * n, n, 0)
    assert use["dollars"] == 0.0  # on this machine
    limits = [r["max_tokens"] for r in model.requests]
    assert 1024 <= min(limits) == limits[-1] < max(limits) <= 16_384  # lowered where less was left
    assert report["next"][-1].endswith("--tokens 50000  # search on")
    text = " ".join(cli("show").out.split())
    assert f"Models: {n} calls, {3200 * n} of 25000 tokens ({3000 * n} of prompts, {1000 * n} of them cached;" in text

    refused = cli("run", "--resume", "latest", "--tokens", str(3200 * n), "--json", **model.env)
    assert refused.code == 2
    assert f"--tokens is a total: {3200 * n} are used" in refused.json["error"]["message"]
    model.stops_at = n + 2
    resumed = cli("run", "--resume", "latest", "--tokens", "90000", "--json", **model.env)
    assert resumed.code == 0, resumed.err
    assert (resumed.json["ended_by"], len(model.requests)) == ("planner", n + 2)  # nothing was asked twice
    assert resumed.json["use"]["tokens"] == 3200 * (n + 2)
    assert len(model.requests[n]["messages"]) == len(model.requests[n - 1]["messages"]) + 2  # in the same conversation


@needs_sandbox
def test_a_call_that_was_sent_by_a_killed_process_counts_with_its_reservation(
    cli: Cli, toy: Path, model: Model, prices: dict[str, str]
) -> None:
    env = model.env | prices
    model.held.clear()
    with cli.started("run", str(toy), "--planner", "llm", "--dollars", "1.5", **env) as running:
        assert model.asked.wait(120)
        running.end(signal.SIGKILL)
    killed = cli("show", "--json").json
    (sent,) = model.requests
    use = killed["use"]
    assert (use["model_calls"], use["unanswered_calls"], use["estimated_calls"]) == (1, 1, 1)
    assert use["completion_tokens"] == sent["max_tokens"]
    assert use["estimated_tokens"] == use["tokens"] > sent["max_tokens"] + len(json.dumps(sent)) / 6
    lost = (use["prompt_tokens"] + 10 * use["completion_tokens"]) / 1e6
    assert use["dollars"] == pytest.approx(lost, abs=1e-9)
    assert "of 1 no answer was recorded" in " ".join(cli("show").out.split())

    model.held.set()
    model.stops_at = 3
    resumed = cli("run", "--resume", "latest", "--json", **env)
    assert resumed.code == 0, resumed.err
    assert len(model.requests) == 3  # what was lost is asked again, what follows once
    after = resumed.json["use"]
    assert (after["model_calls"], after["unanswered_calls"]) == (3, 1)
    assert after["dollars"] == pytest.approx(lost + 2 * COST, abs=1e-8)
    again = cli("run", "--resume", "latest", "--dollars", f"{lost:.4f}", "--json", **env)
    assert again.code == 2
    assert "--dollars is a total" in again.json["error"]["message"]


@needs_sandbox
def test_an_endpoint_that_tells_no_usage_is_charged_what_was_reserved(cli: Cli, toy: Path, model: Model) -> None:
    model.usage, model.stops_at = None, 2
    done = cli("run", str(toy), "--planner", "llm", "--tokens", "60000", "--json", **model.env)
    assert done.code == 0, done.err
    use = done.json["use"]
    assert (use["estimated_calls"], use["unanswered_calls"]) == (2, 0)
    assert use["estimated_tokens"] == use["tokens"] > sum(r["max_tokens"] for r in model.requests)
    assert "for 2 the endpoint told no usage" in " ".join(cli("show").out.split())


@needs_sandbox
def test_an_endpoint_that_counts_more_than_was_reserved_ends_the_campaign_with_a_warning(
    cli: Cli, toy: Path, model: Model
) -> None:
    model.usage = {"prompt_tokens": 70_000, "completion_tokens": 10_000}
    done = cli("run", str(toy), "--planner", "llm", "--tokens", "60000", "--json", **model.env)
    assert done.code == 3, done.err
    assert (done.json["use"]["tokens"], len(model.requests)) == (80_000, 1)
    assert any("20000 tokens more than the budget were used" in warning for warning in done.json["warnings"])


def test_a_dollar_budget_for_a_model_of_unknown_price_is_refused_before_anything_is_stored(cli: Cli, toy: Path) -> None:
    elsewhere = {"INFRA_AGENT_MODEL": "m", "OPENAI_BASE_URL": "https://models.example/v1"}
    refused = cli("run", str(toy), "--planner", "llm", "--dollars", "5", "--json", **elsewhere)
    assert refused.code == 2
    assert "the price of model 'm' at models.example is not known" in refused.json["error"]["message"]
    assert cli("list", "--json").json["campaigns"] == []


# Accelerators.

ACCELERATED = TARGET.replace('description = "A worker', 'accelerators = 4\ndescription = "A worker')
MANY = "".join(f'[[propose]]\nclaim = "{n} copies"\nknobs = {{ copies = {n} }}\n' for n in range(17, 57))


@needs_sandbox
def test_accelerator_seconds_end_a_campaign_and_a_larger_total_goes_on(cli: Cli, tmp_path: Path) -> None:
    toy = make_target(tmp_path / "toy", ACCELERATED, MANY)
    run = ("run", str(toy), "--planner", "script:scripts/all.toml")
    done = cli(*run, "--accelerator-seconds", "40", "--json")
    assert done.code == 3, done.err
    report = done.json
    assert report["stop_reason"].startswith("the budget of 40 accelerator-seconds is used up (")
    used = report["use"]["accelerator_s"]
    assert (report["use"]["accelerators"], report["ended_by"]) == (4, "budget")
    assert used == pytest.approx(4 * report["sandbox_s"])
    assert 0 < report["n_changes"] < 40
    text = " ".join(cli("show").out.split())
    assert f"Accelerators: {used:.0f} of 40 accelerator-seconds (4 accelerators while the sandbox works)." in text
    refused = cli("run", "--resume", "latest", "--accelerator-seconds", f"{used - 1:.2f}", "--json")
    assert refused.code == 2
    assert "--accelerator-seconds is a total" in refused.json["error"]["message"]
    more = cli("run", "--resume", "latest", "--accelerator-seconds", f"{used + 40:.2f}", "--json")
    assert more.code == 3, more.err
    assert more.json["n_changes"] > report["n_changes"]


@needs_sandbox
def test_what_a_killed_measurement_took_of_accelerators_is_counted(cli: Cli, tmp_path: Path) -> None:
    toy = make_target(tmp_path / "toy", ACCELERATED, '[[propose]]\nclaim = "More"\nknobs = { copies = 24 }\n')
    with cli.started("run", str(toy), "--planner", "script:scripts/all.toml") as running:
        running.until(r"experiment 1 of")
        running.until(r"screen: ")  # by now it runs; before, it costs nothing
        (pulse,) = (cli.home / "campaigns").glob("*/runs/*.pulse")
        until_s = time.monotonic() + 60.0
        while last_beat_s(pulse) < 2.0 and time.monotonic() < until_s:
            time.sleep(0.05)
        running.end(signal.SIGKILL)
    ran_s = last_beat_s(pulse)
    assert ran_s >= 2.0
    cut_off = cli.experiments()[-1]
    assert (cut_off.state.value, cut_off.lost_s, cut_off.sandbox_s) == ("running", 0.0, 0.0)
    known = sum(e.sandbox_s for e in cli.experiments()) + ran_s
    assert cli("show", "--json").json["use"]["accelerator_s"] == pytest.approx(4 * known)
    refused = cli("run", "--resume", "latest", "--accelerator-seconds", f"{4 * known - 0.1:.3f}", "--json")
    assert refused.code == 2, refused.out
    resumed = cli("run", "--resume", "latest", "--json")
    assert resumed.code == 0, resumed.err
    finished = cli.experiments()[1]
    assert (finished.id, finished.lost_s) == (cut_off.id, pytest.approx(ran_s))
    total = sum(e.sandbox_s for e in cli.experiments()) + ran_s
    assert resumed.json["use"]["accelerator_s"] == pytest.approx(4 * total)
    assert list((cli.home / "campaigns").glob("*/runs/*.pulse")) == []


def test_accelerator_seconds_need_a_target_that_counts_accelerators(cli: Cli, toy: Path) -> None:
    refused = cli("run", str(toy), "--planner", "search", "--accelerator-seconds", "60", "--json")
    assert refused.code == 2
    assert "declares no accelerators; add `accelerators = N`" in refused.json["error"]["message"]
    assert cli("list", "--json").json["campaigns"] == []


@needs_sandbox
def test_a_resume_with_no_accelerator_seconds_left_measures_nothing(cli: Cli, tmp_path: Path) -> None:
    toy = make_target(tmp_path / "toy", ACCELERATED, MANY)
    with cli.started("run", str(toy), "--planner", "script:scripts/all.toml", "--accelerator-seconds", "60") as running:
        running.until(r"experiment 1 of")
        running.until(r"screen: ")  # by now it runs; before, it costs nothing
        running.end(signal.SIGKILL)
    (pulse,) = (cli.home / "campaigns").glob("*/runs/*.pulse")
    pulse.write_text("900.0\n")  # as if it had run so long
    before = [e.id for e in cli.experiments()]
    resumed = cli("run", "--resume", "latest", "--json")
    assert resumed.code == 3, resumed.err
    assert resumed.json["stop_reason"].startswith("the budget of 60 accelerator-seconds is used up (36")
    assert any("accelerator-seconds more than the budget" in warning for warning in resumed.json["warnings"])
    assert [(e.id, e.lost_s) for e in cli.experiments()] == [(before[0], 0.0), (before[1], 900.0)]
    assert cli.experiments()[1].state.value == "running"  # a larger total takes it up
    more = cli("run", "--resume", "latest", "--accelerator-seconds", "3700", "--json")
    assert more.code == 3, more.err
    assert cli.experiments()[1].state.is_finished


# The file that says how long something has run.


def test_a_pulse_is_that_of_the_block_and_stays_until_it_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "x.pulse"
    assert last_beat_s(path) == 0.0
    started = time.monotonic()
    with beating(path):
        assert 0 < last_beat_s(path) <= PERIOD_S + time.monotonic() - started
        time.sleep(0.1)
    assert 0.1 <= last_beat_s(path) <= time.monotonic() - started + 0.001
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt), beating(path):  # anew, and kept however the block ends
        raise KeyboardInterrupt
    assert last_beat_s(path) <= time.monotonic() - started + 0.001


def test_a_pulse_covers_a_kill_at_any_moment(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from infra_agent.pulse import beating\n"
        "with beating(Path(sys.argv[1])):\n    print('in', flush=True); time.sleep(60)"
    )
    for wait_s in (0.0, 0.4, 1.2):
        path = tmp_path / f"{wait_s}.pulse"
        command = [sys.executable, "-c", program, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "in\n"
            time.sleep(wait_s)
            child.kill()
        assert wait_s <= last_beat_s(path)


@pytest.mark.parametrize("left", [b"", b"\0" * 16, b"no number"])
def test_a_pulse_without_a_number_counts_nothing(tmp_path: Path, left: bytes) -> None:
    """As a machine that lost its power leaves it."""
    (tmp_path / "run.pulse").write_bytes(left)
    assert last_beat_s(tmp_path / "run.pulse") == 0.0


# The store.


def test_a_reservation_survives_the_process_that_made_it(cli: Cli, toy: Path) -> None:
    """Between the reservation and the answer there is nothing but the kill."""
    program = """
import os, signal, sys
from infra_agent import commands
from infra_agent.budgets import StoredSpending
from infra_agent.domain import Reservation
from infra_agent.request import request
from infra_agent.settings import load_settings
from infra_agent.store import open_store

settings = load_settings()
campaign = commands.start(settings, request(settings, sys.argv[1], "script:scripts/all.toml"))
with open_store(settings.database_url) as store:
    wanted = Reservation(campaign_id=campaign.id, request_hash="h", model="m", reserved_prompt_tokens=3,
                         reserved_completion_tokens=4, prompt_tokens=3, completion_tokens=4)
    StoredSpending(store, campaign.id).reserve(lambda use: wanted)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", program, str(toy)], env=cli.env({}), cwd=ROOT, check=False)
    assert killed.returncode == -signal.SIGKILL
    settings = load_settings({"INFRA_AGENT_HOME": str(cli.home)})
    with open_store(settings.database_url) as store, store.transaction(read_only=True) as ledger:
        (found,) = ledger.reservations(ledger.campaign("latest").id)
        assert (found.state, ledger.model_use(found.campaign_id).tokens) == ("open", 7)
