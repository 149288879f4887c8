"""The edge of the program: any failure becomes a message that says what to do, and an exit code."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from typing import NoReturn

import typer

from infra_agent.cli.app import DONE, INTERRUPTED, PIPE, PLATFORM, WRONG_USE, app
from infra_agent.cli.output import ReaderGone, note, result
from infra_agent.domain import now
from infra_agent.errors import InfraAgentError
from infra_agent.settings import load_settings
from sandboxes.sandbox import SandboxError

ClickError = typer.BadParameter.__mro__[2]
"""What typer raises for wrong use, wherever it keeps it: its versions differ."""


def main() -> NoReturn:
    """Entry point: run the command line and exit with its code."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _interrupt)
    sys.exit(execute(sys.argv[1:]))


def _interrupt(number: int, frame: object) -> NoReturn:
    """End like Ctrl-C does: sandboxes are closed on the way out."""
    raise KeyboardInterrupt


def execute(arguments: list[str]) -> int:
    """Run one command line; returns its exit code, and raises nothing."""
    try:
        return _execute(arguments, "--json" in arguments)
    except ReaderGone:
        for stream in (sys.stdout, sys.stderr):  # what is left in them goes nowhere at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return PIPE


def _execute(arguments: list[str], as_json: bool) -> int:
    try:
        code = app(arguments, prog_name="infra-agent", standalone_mode=False)
    except ReaderGone:
        raise
    except InfraAgentError as error:
        return _fail(error, str(error), error.exit_code, as_json)
    except SandboxError as error:
        return _fail(error, str(error), PLATFORM, as_json)
    except (KeyboardInterrupt, typer.Abort) as error:
        return _fail(error, "interrupted", INTERRUPTED, as_json)
    except SystemExit as error:  # typer takes any broken pipe for that of the output
        return _unexpected(error.__context__ or error, as_json)
    except Exception as error:  # noqa: BLE001 - one of the three edges
        return _unexpected(error, as_json)
    if code == INTERRUPTED:  # typer turns Ctrl-C into this
        return _fail(KeyboardInterrupt(), "interrupted", INTERRUPTED, as_json)
    return code if isinstance(code, int) else DONE


def _fail(error: BaseException, message: str, code: int, as_json: bool) -> int:
    note(f"infra-agent: {message}")
    if as_json:
        kind = type(error).__name__
        result(json.dumps({"error": {"type": kind, "message": message}, "exit_code": code}))
    return code


def _unexpected(error: BaseException, as_json: bool) -> int:
    if isinstance(error, ClickError):
        message = str(getattr(error, "format_message", error.__str__)())
        return _fail(error, f"{message}\nTry `infra-agent --help`.", WRONG_USE, as_json)
    return _fail(error, f"unexpected {type(error).__name__}: {error}\n{_saved_traceback()}", 1, as_json)


def _saved_traceback() -> str:
    """Save the traceback; says where, or shows it if it can't be saved."""
    text = traceback.format_exc()
    try:
        path = load_settings().home / "errors" / f"{now():%Y%m%dT%H%M%S}-{os.getpid()}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError:
        return text
    return f"This is a fault of infra-agent; please report it with {path}"
