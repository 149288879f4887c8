"""The MCP server over real stdio: the official client drives tinyserve's campaign, and a raw one what a client may do
wrong."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from toy_campaign import Cli, make_target

from infra_agent.domain import State
from infra_agent.planner.forms import TOOLS, schema
from sandboxes.bubblewrap import probe_host

ROOT = Path(__file__).resolve().parents[2]
TINYSERVE = ROOT / "targets" / "tinyserve"
COMMAND = [sys.executable, "-P", "-m", "infra_agent.cli", "mcp"]

pytestmark = pytest.mark.skipif(not probe_host().available, reason="this host refuses a sandbox")


class Came(NamedTuple):
    """What a tool answered."""

    text: str
    is_error: bool


class Agent:
    """A coding agent: calls tools, and hears of their progress."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.heard: list[tuple[float, str]] = []

    async def call(self, tool: str, **arguments: Any) -> Came:
        async def heard(progress: float, total: float | None, message: str | None) -> None:
            self.heard.append((progress, message or ""))

        self.heard.clear()
        came = await self._client.call_tool(tool, arguments, progress_callback=heard)
        return Came("\n".join(getattr(part, "text", "") for part in came.content), came.is_error)


def parameters(home: Path, cwd: Path) -> StdioServerParameters:
    """As a coding agent starts it: from a directory of its own."""
    env = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    return StdioServerParameters(command=COMMAND[0], args=[*COMMAND[1:], "--home", str(home)], env=env, cwd=cwd)


def known_good_kernel(directory: Path) -> str:
    """The kernel with the patch of the shipped script that is right."""
    copy = directory / "known"
    shutil.copytree(TINYSERVE, copy, ignore=shutil.ignore_patterns("build", "__pycache__"))
    subprocess.run(["git", "init", "-q", "."], cwd=copy, check=True)
    subprocess.run(["git", "apply", "scripts/right.patch"], cwd=copy, check=True)
    return (copy / "kernels" / "kda_decode.c").read_text()


HYPOTHESIS = {
    "claim": "Doing the work that no value tile needs of its own once per head is at least 20 % faster.",
    "mechanism": "Key norm and gate are computed again by each of the tiles of a head.",
    "location": "kernels/kda_decode.c:kda_decode_program",
    "question": "Does a step take 20 % less time with the same outputs?",
    "falsifier": "The time falls by less than 20 %.",
    "predicted": {"metric": "slice_time_s", "direction": "down", "low": 0.2, "high": 0.9},
    "lever_family": "kernels",
    "probe": "kda_microbench",
}


@pytest.mark.slow
def test_an_agent_finds_the_kernels_fault_with_the_official_client(tmp_path: Path) -> None:
    asyncio.run(drive(tmp_path))
    cli = Cli(tmp_path / "home", tmp_path)
    roles = [(e.role, e.state) for e in cli.experiments()]
    assert roles == [(r, State.COMPLETE) for r in ("baseline", "investigation", "change")]
    exported = cli("export", "latest", "-o", "out", "--json")
    assert exported.code == 0, exported.err
    script = (tmp_path / "out" / "script.toml").read_text()
    assert script.index("[[investigate]]") < script.index("[[propose]]")
    assert 'evidence = ["kernels/kda_decode.c:' in script
    transcript = (tmp_path / "out" / "transcript.md").read_text()
    assert "### propose (refused)" in transcript
    assert "**accept, confirmed**" in transcript
    assert str(tmp_path) not in script + transcript


async def drive(directory: Path) -> None:
    async with Client(parameters(directory / "home", directory)) as client:
        agent = Agent(client)
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert list(listed) == ["start_campaign", "list_campaigns", "campaign_status", *TOOLS]
        for name, form in TOOLS.items():  # the same schemas, but for the campaign
            given = listed[name].input_schema
            assert given["properties"].pop("campaign")["type"] == "string"
            assert given.pop("required")[1:] == schema(form).get("required", [])
            assert given == {name: value for name, value in schema(form).items() if name != "required"}

        started = await agent.call("start_campaign", target=str(TINYSERVE), experiments=3, minutes=4)
        assert not started.is_error, started.text
        assert "# Target: tinyserve" in started.text
        assert "Left: 3 experiments" in started.text
        campaign = started.text.split()[1]
        assert any("measuring the baseline against itself" in said for _, said in agent.heard)
        times = [seconds for seconds, _ in agent.heard]
        assert times == sorted(times)

        kernel = await agent.call("read_file", campaign=campaign, path="kernels/kda_decode.c")
        assert "kda_decode_program" in kernel.text
        found = await agent.call("search_code", campaign=campaign, text="softplus(p_x[i]")
        line = found.text.split("kernels/kda_decode.c:")[1].split(":")[0]

        edits = [{"path": "kernels/kda_decode.c", "new": known_good_kernel(directory)}]
        refused = await agent.call(
            "propose", campaign=campaign, **HYPOTHESIS, evidence=["kernels/none.c:1"], edits=edits
        )
        assert refused.is_error
        assert "no such evidence: kernels/none.c:1" in refused.text
        lacking = await agent.call("propose", campaign=campaign, **HYPOTHESIS, edits=edits)
        assert lacking.is_error
        assert "evidence: Field required" in lacking.text
        assert "Left: 3 experiments" in lacking.text  # it cost nothing

        asked = await agent.call(
            "investigate", campaign=campaign, question="Does a step grow with the heads?", probe="kda_microbench",
            params={"heads": [4, 8]},
        )  # fmt: skip
        assert not asked.is_error, asked.text
        assert "heads=4" in asked.text
        assert any(said.startswith("investigation: kda_microbench") for _, said in agent.heard)

        early = await agent.call("stop", campaign=campaign, reason="It is fast enough.")
        assert early.is_error
        assert "nothing was tried in: kernels" in early.text

        evidence = [f"kernels/kda_decode.c:{line}", "#1"]
        came = await agent.call("propose", campaign=campaign, **HYPOTHESIS, evidence=evidence, edits=edits)
        assert not came.is_error, came.text
        assert "experiment #2: accept, confirmed" in came.text, came.text
        assert "Left: 2 experiments, 6 investigations in this step" in came.text

        stopped = await agent.call(
            "stop", campaign=campaign, reason="It is fast enough.", left={"host code": "the kernel is all there is"}
        )
        assert not stopped.is_error, stopped.text
        assert "complete" in stopped.text
        assert (await agent.call("campaign_status", campaign=campaign)).text.startswith(
            f"tinyserve, campaign {campaign}"
        )
        late = await agent.call("read_journal", campaign=campaign)
        assert late.is_error
        assert "is complete" in late.text
        assert campaign in (await agent.call("list_campaigns")).text


class Raw:
    """A client that speaks line by line, on the toy target."""

    def __init__(self, process: subprocess.Popen[str], target: Path) -> None:
        self.process, self.target = process, target
        self._number = 0
        self.ask("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo={"name": "t", "version": "1"})
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def begin(self, method: str, **params: Any) -> int:
        self._number += 1
        self.send({"jsonrpc": "2.0", "id": self._number, "method": method, "params": params})
        return self._number

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        said = json.loads(self.process.stdout.readline())
        assert said["jsonrpc"] == "2.0"
        return dict(said)

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        number = self.begin(method, **params)
        while (said := self.hear()).get("id") != number:
            pass
        return said

    def call(self, tool: str, **arguments: Any) -> Came:
        result = self.ask("tools/call", name=tool, arguments=arguments)["result"]
        return Came(result["content"][0]["text"], bool(result.get("isError")))

    def measuring(self) -> str:
        """Begin a measurement; returns once it is under way."""
        started = self.call("start_campaign", target=str(self.target))
        assert not started.is_error, started.text
        campaign = started.text.split()[1]
        arguments = {"campaign": campaign, "question": "How long?", "probe": "bench"}
        self.begin("tools/call", name="investigate", arguments=arguments, _meta={"progressToken": "p"})
        while "investigation: bench" not in str(self.hear().get("params", {}).get("message")):
            pass
        return campaign


@contextlib.contextmanager
def raw(directory: Path) -> Iterator[Raw]:
    target = make_target(directory / "toy")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "INFRA_AGENT_HOME": str(directory / "home")}
    pipe = subprocess.PIPE
    with subprocess.Popen(COMMAND, cwd=directory, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield Raw(process, target)
        finally:
            process.kill()


def rest(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What is left in stdout and stderr of a server whose client went away."""
    return process.communicate(timeout=60)


def test_it_ends_cleanly_with_its_client_and_writes_nothing_else(tmp_path: Path) -> None:
    with raw(tmp_path) as client:
        assert len(client.ask("tools/list")["result"]["tools"]) == 13
        out, err = rest(client.process)
        assert (client.process.returncode, out, err) == (0, "", "")


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("run_shell", {}, "there is no tool 'run_shell'; there are: start_campaign, "),
        ("read_file", {"path": "x"}, "read_file needs the `campaign` that it is for"),
        ("propose", {"campaign": "--help"}, "propose needs the `campaign` that it is for"),
        ("campaign_status", {}, "the arguments of campaign_status are wrong: campaign: Field required"),
        ("list_files", {"campaign": "cmp_none"}, "no campaign 'cmp_none'"),
        ("investigate", {"campaign": "cmp_none"}, "no campaign 'cmp_none'"),
        ("start_campaign", {"target": "--version"}, "--version is neither a directory nor a shipped target"),
        ("start_campaign", {"target": "nowhere", "experiments": 0}, "experiments: Input should be greater"),
        ("start_campaign", {"target": "nowhere", "seed": 1}, "seed: Extra inputs are not permitted"),
    ],
)
def test_what_goes_wrong_is_a_tools_error(tmp_path: Path, tool: str, arguments: dict[str, Any], said: str) -> None:
    with raw(tmp_path) as client:
        came = client.call(tool, **arguments)
        assert came.is_error
        assert said in came.text


@pytest.mark.parametrize("how", ["closed", "terminated"])
def test_a_client_that_goes_away_ends_the_measurement_and_the_campaign_goes_on_later(tmp_path: Path, how: str) -> None:
    with raw(tmp_path) as client:
        campaign = client.measuring()
        children = psutil.Process(client.process.pid).children(recursive=True)
        assert children
        if how == "terminated":
            client.process.send_signal(signal.SIGTERM)
        _, err = rest(client.process)
        assert "Traceback" not in err
        assert client.process.returncode == (0 if how == "closed" else 130)
        _, alive = psutil.wait_procs(children, timeout=30)
        assert alive == []
    cli = Cli(tmp_path / "home", tmp_path)
    assert cli.experiments(campaign)[-1].state is State.RUNNING
    asked = cli("ask", campaign)
    assert asked.code == 0, asked.err
    assert "taken up: investigate" in asked.err
    assert [e.state for e in cli.experiments(campaign)] == [State.COMPLETE, State.COMPLETE]


def test_reading_goes_on_while_something_is_measured_and_a_cancelled_call_ends(tmp_path: Path) -> None:
    with raw(tmp_path) as client:
        campaign = client.measuring()
        (child,) = psutil.Process(client.process.pid).children()
        assert "toy" in client.call("campaign_status", campaign=campaign).text
        assert not client.call("list_files", campaign=campaign).is_error
        client.send(
            {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": client._number - 2}}
        )
        psutil.wait_procs([child], timeout=30)
        assert not child.is_running()
        told = client.call("investigate", campaign=campaign, question="How long?", probe="bench")
        assert "investigation #1" in told.text  # what was cancelled was taken up and answers the same question
        assert len(Cli(tmp_path / "home", tmp_path).experiments(campaign)) == 2


def test_without_the_package_it_says_what_to_install(tmp_path: Path) -> None:
    hide = "import sys; sys.modules['mcp'] = None; from infra_agent.cli import main; sys.argv = ['x', 'mcp']; main()"
    env = {"PYTHONPATH": str(ROOT), "INFRA_AGENT_HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-c", hide], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "pip install 'infra-agent[mcp]'" in done.stderr


def test_no_other_command_imports_it(tmp_path: Path) -> None:
    code = "import sys; import infra_agent.cli.app; sys.exit('mcp' in sys.modules)"
    env = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    assert subprocess.run([sys.executable, "-c", code], env=env, timeout=60, check=False).returncode == 0
