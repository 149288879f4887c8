"""The commands. Each is a function of `commands` with words around it.

The result goes to stdout, and with --json as one object on its last line, errors included. What happens on the
way goes to stderr: a live line on a terminal, plain lines elsewhere.
"""

from __future__ import annotations

import json
import shlex
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import typer

from infra_agent import commands, doctor, overview, scaffold
from infra_agent.cli import external, files
from infra_agent.cli.codes import DONE, NOTHING_ACCEPTED, PLATFORM, WRONG_USE, Interrupted
from infra_agent.cli.lessons import lessons
from infra_agent.cli.output import followed, note, result, result_bytes
from infra_agent.domain import PLANNERS, Campaign
from infra_agent.errors import PlatformFailed, WrongUse
from infra_agent.report import Report, render_text, render_versus
from infra_agent.request import request
from infra_agent.settings import Settings, load_settings

HELP = """Make an LLM inference stack faster without making it wrong: propose changes, measure each one in a
sandbox, keep what is proven.

\b
Exit codes:
  0    done
  1    anything else
  2    wrong use: the command, target.toml, a dirty git tree, a missing program
  3    the budget ended without an accepted change
  4    the model endpoint can't be used
  5    the platform failed: sandbox, store, disk; nothing is held against a change
  6    the unchanged target itself fails a probe
  130  interrupted; a campaign can be resumed
  141  whoever read the output went away
"""
WIDEST = 100

app = typer.Typer(help=HELP, rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
app.add_typer(lessons, name="lessons")
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line of stdout.")]
Target = Annotated[str, typer.Argument(help="Directory with a target.toml, or the name of a shipped target.")]
CampaignName = Annotated[str, typer.Argument(help="Id of a campaign, a unique part of it, or `latest`.")]


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if show_version:
        result(f"infra-agent {_version()}")
        raise typer.Exit(DONE)
    if context.invoked_subcommand is None:
        note(context.get_help())
        raise typer.Exit(WRONG_USE)


@app.command()
def run(
    target: Annotated[
        str | None, typer.Argument(help="Directory with a target.toml, or a shipped target's name.")
    ] = None,
    planner: Annotated[
        str | None,
        typer.Option(
            help=f"{', '.join(PLANNERS)} (portfolio:KIND,KIND chooses) or script:FILE. Default: llm if a model is "
            "set, else search. random and best-of-n are control arms."
        ),
    ] = None,
    experiments: Annotated[
        int | None, typer.Option(min=1, help="Changes to try at most (default 20); a total when resuming.")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(min=0.1, max=1_000_000, help="Wall time at most; a total when resuming. Default: no limit."),
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of models at most, prompts and answers; a total when resuming.")
    ] = None,
    dollars: Annotated[
        float | None,
        typer.Option(min=1e-6, max=1e6, help="Dollars for models at most, by the price table; a total when resuming."),
    ] = None,
    accelerator_seconds: Annotated[
        float | None,
        typer.Option(min=0.1, max=1e12, help="Sandboxed time x the target's accelerators; a total when resuming."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Orders what nothing else orders in a search.")] = None,
    parallel: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=64,
            help="Changes to propose before they are measured, at once as far as nothing is timed (default 1).",
        ),
    ] = None,
    resume: Annotated[str | None, typer.Option(metavar="CAMPAIGN", help="Continue a campaign.")] = None,
    as_json: Json = False,
) -> int:
    """Run a campaign: try changes of TARGET within a budget, and report what was found."""
    settings = load_settings()
    if resume is not None:
        if target is not None or planner is not None or seed is not None:
            raise WrongUse(
                "--resume takes only --experiments, --minutes, --tokens, --dollars, --accelerator-seconds and "
                "--parallel; the rest was fixed at the start"
            )
        limits = (tokens, dollars, accelerator_seconds, parallel)
        campaign = commands.extend(settings, resume, experiments, minutes, *limits)
    elif target is None:
        raise WrongUse("give a TARGET, or --resume CAMPAIGN; shipped targets are: " + overview.shipped_names())
    else:
        limits = (tokens, dollars, accelerator_seconds, parallel)
        spec = request(settings, target, planner, experiments, minutes, seed, *limits)
        campaign = commands.start(settings, spec)
    ran = _run(settings, campaign)
    _print_report(commands.result(settings, campaign.id), as_json)
    accepted = bool(ran.journal.accepted)
    return DONE if accepted or ran.ended_by != "budget" else NOTHING_ACCEPTED


def _run(settings: Settings, campaign: Campaign) -> commands.Ran:
    note(f"campaign {campaign.id} on {campaign.target_name}, planner {campaign.spec.planner}")
    _, journal = commands.campaign(settings, campaign.id)
    try:
        with followed(campaign, journal) as (watch, say):
            return commands.run(settings, campaign.id, watch, say)
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; continue with `infra-agent run --resume {campaign.id}`") from None


@app.command()
def show(
    campaign: CampaignName = "latest",
    patch: Annotated[
        bool, typer.Option("--patch", help="Print only the diff, for `git apply`; with --json, as `patch`.")
    ] = False,
    against: Annotated[
        str | None,
        typer.Option(metavar="CAMPAIGN2", help="Beside another planner's campaign, at equal budgets."),
    ] = None,
    as_json: Json = False,
) -> int:
    """Show what a campaign found, so far or in the end."""
    if against is not None:
        if patch:
            raise WrongUse("--against compares two campaigns and --patch prints one's diff; give one of them")
        versus = commands.against(load_settings(), campaign, against)
        _print(render_versus(versus, _width()), versus.model_dump(mode="json"), as_json)
        return DONE
    report = commands.result(load_settings(), campaign)
    if not patch:
        _print_report(report, as_json)
        return DONE
    if report.n_accepted and not report.patch:
        raise PlatformFailed(
            f"the repository of campaign {report.campaign} is gone or damaged, and its patch with it; "
            f"`infra-agent show {report.campaign}` says what was measured"
        )
    if not report.patch:
        note(f"campaign {report.campaign} has accepted no change, so there is no patch")
    if as_json:
        result(json.dumps({"campaign": report.campaign, "target": report.target, "patch": report.patch}))
    elif report.patch:
        result_bytes(report.patch.encode("utf-8", "replace"))
    return DONE if report.patch else NOTHING_ACCEPTED


@app.command(name="list")
def list_(as_json: Json = False) -> int:
    """List the campaigns, newest first."""
    rows = overview.rows(commands.campaigns(load_settings()))
    _print(overview.as_text(rows), {"campaigns": [r.model_dump(mode="json") for r in rows]}, as_json)
    return DONE


@app.command()
def calibrate(
    target: Target,
    pairs: Annotated[int, typer.Option(min=1, max=1000, help="A/A pairs to measure.")] = 30,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget what was measured here before.")] = False,
    as_json: Json = False,
) -> int:
    """Measure TARGET against itself: this machine's noise floor and the smallest effect it can show."""
    try:
        found = commands.calibrate(load_settings(), target, pairs, fresh, note)
    except KeyboardInterrupt:
        again = f"infra-agent calibrate {shlex.quote(target)}"
        raise Interrupted(f"interrupted; what was measured is kept, go on with `{again}`") from None
    facts = overview.calibration(found)
    _print(overview.calibration_text(facts, _width()), facts.model_dump(mode="json"), as_json)
    return DONE


@app.command()
def init(
    path: Annotated[Path, typer.Argument(help="An existing directory: the repository to optimize.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite a target.toml.")] = False,
    as_json: Json = False,
) -> int:
    """Write a commented target.toml into PATH, to start from."""
    written = scaffold.init(path, force)
    _print(scaffold.as_text(written), written.model_dump(mode="json"), as_json)
    return DONE


@app.command(
    name="feedback", add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
)
def feedback_(context: typer.Context) -> int:
    """Read, compare or explain files of any origin: benchmarks, traces, profiles, logs. See `feedback --help`."""
    return files.feedback(context.args)


@app.command(name="doctor")
def doctor_(as_json: Json = False) -> int:
    """Say what works here: sandbox, compilers, profilers, database, model endpoint, noise."""
    found = doctor.diagnose(load_settings())
    _print(doctor.as_text(found, _width()), found.model_dump(mode="json"), as_json)
    return DONE if found.can_run else PLATFORM


external.add_to(app)


def _print_report(report: Report, as_json: bool) -> None:
    _print(render_text(report, _width()), json.loads(report.model_dump_json()), as_json)


def _print(text: str, data: dict[str, Any], as_json: bool) -> None:
    result(json.dumps(data) if as_json else text.rstrip("\n"))


def _version() -> str:
    try:
        return version("infra-agent")
    except PackageNotFoundError:
        return "(not installed as a package)"


def _width() -> int:
    return max(80, min(WIDEST, shutil.get_terminal_size((WIDEST, 24)).columns))
