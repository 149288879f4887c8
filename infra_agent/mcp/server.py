"""An MCP server over stdio, so that a coding agent plans a campaign with the tools, gates and budgets
of every other planner.

What measures runs as `infra-agent` in a process of its own: a call that is cancelled, or a client that goes away, ends
it as Ctrl-C would, and the campaign can go on later. One measurement at a time: two would disturb each other.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from mcp import types
from mcp.server import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from pydantic import Field, ValidationError

from infra_agent import commands, outside, overview
from infra_agent.catalogue import shipped_targets
from infra_agent.domain import CampaignState
from infra_agent.errors import InfraAgentError
from infra_agent.mcp.errand import Errand, Failed
from infra_agent.planner.external import ACTIONS, Answer, Call
from infra_agent.planner.forms import TOOLS, function, problems, schema
from infra_agent.planner.prompt import prompt
from infra_agent.report import render_text
from infra_agent.settings import Settings
from sandboxes.results import Record
from sandboxes.sandbox import SandboxError

CAMPAIGN = {"type": "string", "description": "Id of the campaign, a unique part of it, or `latest`."}
ABOUT = """Start with start_campaign, or list_campaigns and campaign_status to go on with one. Every other tool takes
the campaign's id. investigate and propose measure for seconds to minutes, and the answer is what was found."""


class StartCampaign(Record):
    """Start a campaign on a target: a directory with a target.toml, or the name of a shipped one. Measures the baseline
    first. The answer is what there is to know before the first proposal."""

    target: str = Field(min_length=1, max_length=4096)
    experiments: int | None = Field(default=None, ge=1, le=10_000)
    """Changes that may be tried at most; default 20."""
    minutes: float | None = Field(default=None, ge=0.1, le=1_000_000)
    """Time for measuring at most; default no limit."""


class ListCampaigns(Record):
    """List the campaigns of this machine, newest first, and the targets that are shipped."""


class CampaignStatus(Record):
    """What the planner of a campaign is shown now: target, knobs, probes, levers, journal, signals, budgets left. Of a
    campaign that ended or that another planner plans: its report."""

    campaign: str = Field(min_length=1, max_length=100)
    """Id of the campaign, a unique part of it, or `latest`."""


OWN: dict[str, type[Record]] = {
    "start_campaign": StartCampaign,
    "list_campaigns": ListCampaigns,
    "campaign_status": CampaignStatus,
}


def serve(settings: Settings) -> None:
    """Serve one client over stdin and stdout until it goes away; nothing else is written to stdout."""
    asyncio.run(_serve(Desk(settings)))


async def _serve(desk: Desk) -> None:
    server: Server[Any] = Server(
        "infra-agent", version=_version(), instructions=f"{ABOUT}\n\n{prompt('system')}",
        on_list_tools=_listed, on_call_tool=desk.called,
    )  # fmt: skip
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


def tools() -> list[types.Tool]:
    """The server's own tools, then those of a planner with the campaign they are for."""
    own = [_tool(name, form, schema(form)) for name, form in OWN.items()]
    return own + [_tool(name, form, _of_campaign(schema(form))) for name, form in TOOLS.items()]


def _tool(name: str, form: type[Record], parameters: dict[str, Any]) -> types.Tool:
    hints = types.ToolAnnotations(
        read_only_hint=name not in (*ACTIONS, "start_campaign"), destructive_hint=name == "stop", open_world_hint=False
    )
    description = str(function(name, form)["description"])
    return types.Tool(name=name, description=description, input_schema=parameters, annotations=hints)


def _of_campaign(parameters: dict[str, Any]) -> dict[str, Any]:
    """A tool's schema with the campaign that it is called for."""
    return {
        **parameters,
        "properties": {"campaign": CAMPAIGN, **parameters.get("properties", {})},
        "required": ["campaign", *parameters.get("required", ())],
    }


async def _listed(
    context: ServerRequestContext[Any], page: types.PaginatedRequestParams | None
) -> types.ListToolsResult:
    return types.ListToolsResult(tools=tools())


class Desk:
    """Carries out one client's calls."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._measuring = threading.Lock()

    async def called(
        self, context: ServerRequestContext[Any], asked: types.CallToolRequestParams
    ) -> types.CallToolResult:
        """Carry out one call; what goes wrong is an answer, marked as an error."""
        loop = asyncio.get_running_loop()
        errand = Errand(self._measuring)

        def progress(seconds: float, text: str) -> None:
            told = context.session.report_progress(seconds, message=text)
            asyncio.run_coroutine_threadsafe(told, loop)

        try:
            text = await asyncio.to_thread(self._carry_out, asked.name, dict(asked.arguments or {}), errand, progress)
        except (Failed, InfraAgentError, SandboxError) as error:
            return _result(str(error), is_error=True)
        except asyncio.CancelledError:
            errand.end()
            raise
        return _result(text)

    def _carry_out(
        self, name: str, arguments: dict[str, Any], errand: Errand, progress: Callable[[float, str], None]
    ) -> str:
        if name in OWN:
            try:
                given = OWN[name].model_validate(arguments)
            except ValidationError as error:
                raise Failed(f"the arguments of {name} are wrong: {problems(error)}") from error
            return self._own(given, errand, progress)
        if name not in TOOLS:
            raise Failed(f"there is no tool {name[:60]!r}; there are: {', '.join((*OWN, *TOOLS))}")
        campaign = arguments.pop("campaign", None)
        if not isinstance(campaign, str) or not campaign or campaign.startswith("-"):
            raise Failed(f"{name} needs the `campaign` that it is for; list_campaigns shows them")
        call = Call(tool=name, arguments=arguments)
        if call.acts:
            told = errand.run(["tell", campaign, "-", "--json"], call.model_dump_json(), progress)
            if any(answer["refused"] for answer in told["answers"]):
                raise Failed(told["text"])
            return str(told["text"])
        return _answered(outside.look(self._settings, campaign, (call,), _silent).answers)

    def _own(self, given: Record, errand: Errand, progress: Callable[[float, str], None]) -> str:
        match given:
            case StartCampaign():
                budget = [("--experiments", given.experiments), ("--minutes", given.minutes)]
                flags = [text for flag, value in budget if value is not None for text in (flag, str(value))]
                started = errand.run(
                    ["run", "--planner", "external", *flags, "--json", "--", given.target], "", progress
                )
                return self._status(started["campaign"])
            case CampaignStatus():
                return self._status(given.campaign)
            case _:
                listed = overview.as_text(overview.rows(commands.campaigns(self._settings)))
                return f"{listed}\n\nShipped targets: {', '.join(p.name for p in shipped_targets()) or 'none'}"

    def _status(self, name: str) -> str:
        found, _ = commands.campaign(self._settings, name)
        if found.spec.planner != "external" or found.state in (CampaignState.COMPLETE, CampaignState.FAILED):
            return render_text(commands.result(self._settings, found.id))
        return f"campaign {found.id} ({found.state.value})\n\n{outside.opening(self._settings, found.id, _silent)}"


def _silent(text: str) -> None:
    """Nobody waits for what a reader says it does."""


def _answered(answers: tuple[Answer, ...]) -> str:
    if any(answer.refused for answer in answers):
        raise Failed("\n\n".join(answer.text for answer in answers))
    return "\n\n".join(answer.text for answer in answers)


def _result(text: str, is_error: bool = False) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=is_error)


def _version() -> str:
    try:
        return version("infra-agent")
    except PackageNotFoundError:
        return ""
