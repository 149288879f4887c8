"""The commands for campaigns that someone outside plans, and for recordings of sessions: ask, tell, mcp, export."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from infra_agent import commands, outside
from infra_agent.cli.codes import DONE, NOTHING_ACCEPTED, WRONG_USE, Interrupted
from infra_agent.cli.output import followed, note, result
from infra_agent.commands import Say, Watch
from infra_agent.errors import WrongUse
from infra_agent.loop import BUDGET, WAITING
from infra_agent.outside import Told
from infra_agent.planner.external import Answer, Call, read_calls
from infra_agent.planner.prompt import prompt
from infra_agent.recording import SCRIPT
from infra_agent.report import render_text
from infra_agent.settings import Settings, load_settings
from sandboxes.files import refusal

MAX_BYTES = 8 << 20
"""Of a file of calls."""
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line of stdout.")]
Name = Annotated[str, typer.Argument(metavar="CAMPAIGN", help="Id of a campaign, a unique part of it, or `latest`.")]


def add_to(app: typer.Typer) -> None:
    """Add these commands to the program."""
    for command in (ask, tell, export, mcp):
        app.command()(command)


def ask(campaign: Name = "latest", as_json: Json = False) -> int:
    """Show what the planner of an external campaign is shown: target, knobs, probes, journal, budgets left."""
    settings = load_settings()
    with _followed(settings, campaign) as (watch, say):
        asked = outside.ask(settings, campaign, watch, say)
    for answer in asked.answers:
        note(f"taken up: {_said(answer)}")
    if as_json:
        result(json.dumps({
            "campaign": asked.campaign.id, "target": asked.campaign.target_name, "state": asked.campaign.state.value,
            "instructions": prompt("system"), "text": asked.text, "tools": asked.tools,
        }))  # fmt: skip
    else:
        result(f"{asked.text}\n\n{_how_to_answer(asked.campaign.id)}")
    return DONE


def tell(
    campaign: Name,
    file: Annotated[str, typer.Argument(metavar="FILE", help="JSON file with one call or a list; - is stdin.")],
    as_json: Json = False,
) -> int:
    """Say what to do next in an external campaign: {"tool": NAME, "arguments": {...}}, or a list of such calls."""
    settings, calls = load_settings(), _calls(file)
    with _followed(settings, campaign) as (watch, say):
        told = outside.tell(settings, campaign, calls, watch, say)
    said = [_said(answer) for answer in told.answers]
    report = None if told.ended_by == WAITING else commands.result(settings, told.campaign.id)
    text = "\n\n".join([*said, told.left if report is None else render_text(report).rstrip()])
    if as_json:
        result(json.dumps({
            "campaign": told.campaign.id, "state": told.campaign.state.value, "ended_by": told.ended_by,
            "answers": [_as_json(answer, told) for answer in told.answers], "text": text,
            "report": None if report is None else json.loads(report.model_dump_json()),
        }))  # fmt: skip
    else:
        result(text)
    if any(answer.refused for answer in told.answers):
        return WRONG_USE
    return NOTHING_ACCEPTED if told.ended_by == BUDGET and not told.journal.accepted else DONE


def export(
    campaign: Name,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="A new or empty directory.")],
    as_json: Json = False,
) -> int:
    """Write a campaign's session down: script.toml, which replays it, its patches, and transcript.md for people."""
    written = commands.export(load_settings(), campaign, output)
    script = next(path for path in written if path.name == SCRIPT)
    again = f"infra-agent run TARGET --planner script:{shlex.quote(str(script))}"
    if as_json:
        result(json.dumps({"files": [str(path) for path in written], "replay": again}))
    else:
        result("\n".join([*map(str, written), "", "Replay it:", f"  {again}"]))
    return DONE


def mcp(
    home: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where campaigns are kept; default: INFRA_AGENT_HOME.")
    ] = None,
) -> int:
    """Serve campaigns to a coding agent: an MCP server over stdin and stdout. See docs/external.md."""
    if home is not None:
        os.environ["INFRA_AGENT_HOME"] = str(home)  # what it starts must find it too
    settings = load_settings()
    try:
        from infra_agent.mcp.server import serve  # takes as long to import as all the rest
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "mcp":
            raise
        raise WrongUse("`infra-agent mcp` needs the package mcp: pip install 'infra-agent[mcp]'") from error
    serve(settings)
    return DONE


@contextmanager
def _followed(settings: Settings, name: str) -> Iterator[tuple[Watch, Say]]:
    campaign, journal = commands.campaign(settings, name)
    try:
        with followed(campaign, journal) as (watch, say):
            yield watch, say
    except KeyboardInterrupt:
        again = f"`infra-agent ask {campaign.id}` takes up what was cut off"
        raise Interrupted(f"interrupted; {again}") from None


def _calls(file: str) -> tuple[Call, ...]:
    """The calls in a file or in stdin. Raises WrongUse."""
    try:
        if file == "-":
            data = b"" if sys.stdin is None else sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with Path(file).open("rb") as stream:
                data = stream.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise WrongUse(f"{file} is longer than {MAX_BYTES >> 20} MiB")
        return read_calls(data.decode("utf-8"))
    except OSError as error:
        raise WrongUse(refusal(error, file)) from error
    except ValueError as error:
        raise WrongUse(f"{'stdin' if file == '-' else file}: {error}") from error


def _said(answer: Answer) -> str:
    return f"{answer.call.tool}: {answer.text}"


def _as_json(answer: Answer, told: Told) -> dict[str, object]:
    found = next((e for e in told.journal.finished if e.number == answer.experiment), None)
    verdict = found.verdict.kind.value if found is not None and found.verdict and found.role == "change" else None
    return {
        "tool": answer.call.tool, "answer": answer.text, "refused": answer.refused, "experiment": answer.experiment,
        "verdict": verdict, "confirmed": found.confirmed if found is not None else None,
    }  # fmt: skip


def _how_to_answer(campaign_id: str) -> str:
    return (
        "# How to answer\n"
        f"infra-agent tell {campaign_id} FILE   # or - for stdin; one call, or a list of them:\n"
        '{"tool": "read_file", "arguments": {"path": "..."}}\n'
        f"infra-agent ask {campaign_id} --json   # the tools with the schemas of their arguments"
    )
