"""`infra-agent lessons`: what earlier campaigns learned, for a person to read, correct and delete."""

from __future__ import annotations

import getpass
import json
from typing import Annotated, Any

import typer

from infra_agent import memory
from infra_agent.cli.codes import DONE
from infra_agent.cli.output import result
from infra_agent.errors import WrongUse
from infra_agent.settings import load_settings

lessons = typer.Typer(help="What earlier campaigns learned: list, show, correct, delete.", rich_markup_mode=None)
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line of stdout.")]
LessonName = Annotated[str, typer.Argument(metavar="ID", help="Id of a lesson, or a unique part of it.")]


@lessons.callback(invoke_without_command=True)
def list_(
    context: typer.Context,
    target: Annotated[str | None, typer.Option(help="Only lessons of targets of this name.")] = None,
    as_json: Json = False,
) -> int:
    """List lessons, newest first; or show, edit or delete one."""
    if context.invoked_subcommand is not None:
        if as_json or target is not None:
            raise WrongUse(f"options of `lessons {context.invoked_subcommand}` stand after it")
    else:
        found = memory.lessons(load_settings(), target)
        _print(memory.as_text(found, target), {"lessons": [one.model_dump(mode="json") for one in found]}, as_json)
    return DONE


@lessons.command()
def show(lesson: LessonName, as_json: Json = False) -> int:
    """Show one lesson whole."""
    found = memory.lesson(load_settings(), lesson)
    _print(memory.details(found), found.model_dump(mode="json"), as_json)
    return DONE


@lessons.command()
def edit(
    lesson: LessonName,
    text: Annotated[str, typer.Option(help="What the lesson should say instead.")],
    by: Annotated[str | None, typer.Option(help="Who corrects it. Default: your user name.")] = None,
    as_json: Json = False,
) -> int:
    """Correct a lesson: your words take the place of the machine's; what was measured stays."""
    found = memory.edit(load_settings(), lesson, text, by or _user())
    _print(memory.details(found), found.model_dump(mode="json"), as_json)
    return DONE


@lessons.command()
def delete(lesson: LessonName, as_json: Json = False) -> int:
    """Delete a lesson. Campaigns that were begun before keep what they were told."""
    found = memory.delete(load_settings(), lesson)
    _print(f"deleted lesson {found.id}", {"deleted": found.id}, as_json)
    return DONE


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user without a name, as in some containers
        return "somebody"


def _print(text: str, data: dict[str, Any], as_json: bool) -> None:
    result(json.dumps(data) if as_json else text)
