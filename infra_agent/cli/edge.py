"""The edge of the program: any failure becomes a message that says what to do, and an exit code."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from typing import NoReturn

import typer

from infra_agent.cli import leave
from infra_agent.cli.codes import DONE, INTERRUPTED, PIPE, PLATFORM, WRONG_USE
from infra_agent.cli.output import OutputRefused, ReaderGone, discard, note, reader_is_gone, result
from infra_agent.domain import now
from infra_agent.errors import InfraAgentError, WrongUse
from infra_agent.settings import load_settings
from sandboxes.files import advice, refusal
from sandboxes.git import GitMissing
from sandboxes.sandbox import SandboxError
from sandboxes.source import SourceRefused
from sandboxes.workspace import RepositoryLost

ClickError = typer.BadParameter.__mro__[2]
"""What typer raises for wrong use, wherever it keeps it: its versions differ."""


def run(arguments: list[str], is_interruptible: bool) -> NoReturn:
    """Run the command line and exit with its code. Ctrl-C ends the command if `is_interruptible`."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _interrupt)
    if is_interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    code = execute(arguments)
    if is_interruptible:
        signal.signal(signal.SIGINT, leave)
    sys.exit(code)


def _interrupt(number: int, frame: object) -> NoReturn:
    """End like Ctrl-C does: sandboxes are closed on the way out."""
    raise KeyboardInterrupt


def execute(arguments: list[str]) -> int:
    """Run one command line; returns its exit code, and raises nothing."""
    try:
        return _execute(arguments, "--json" in arguments)
    except ReaderGone:
        code = PIPE
    except OutputRefused as error:
        note(f"infra-agent: {error}")
        code = PLATFORM
    discard()
    return code


def _execute(arguments: list[str], as_json: bool) -> int:
    try:
        if any("\udc80" <= character <= "\udcff" for character in "".join(arguments)):
            raise WrongUse("an argument is not valid UTF-8 text; use names that are")
        code = _run(arguments)
    except (ReaderGone, OutputRefused):
        raise
    except InfraAgentError as error:
        return _fail(error, str(error), error.exit_code, as_json)
    except SandboxError as error:
        return _fail(error, str(error), PLATFORM, as_json)
    except RepositoryLost as error:
        return _fail(error, str(error), PLATFORM, as_json)
    except (GitMissing, SourceRefused) as error:
        return _fail(error, str(error), WRONG_USE, as_json)
    except (KeyboardInterrupt, typer.Abort) as error:
        return _fail(error, "interrupted", INTERRUPTED, as_json)
    except SystemExit as error:  # typer takes any broken pipe for that of the output
        return _unexpected(error.__context__ or error, as_json)
    except Exception as error:  # noqa: BLE001 - one of the three edges
        return _unexpected(error, as_json)
    if code == INTERRUPTED:  # typer turns Ctrl-C into this
        return _fail(KeyboardInterrupt(), "interrupted", INTERRUPTED, as_json)
    return code if isinstance(code, int) else DONE


def _run(arguments: list[str]) -> object:
    """Only what a command needs is imported: comparing two files takes less time than importing all of it."""
    if arguments[:1] == ["feedback"]:
        from infra_agent.cli import files

        return files.feedback(arguments[1:])
    from infra_agent.cli.app import app

    return app(arguments, prog_name="infra-agent", standalone_mode=False)


def _fail(error: BaseException, message: str, code: int, as_json: bool) -> int:
    note(f"infra-agent: {message}")
    if as_json:
        kind = type(error).__name__
        result(json.dumps({"error": {"type": kind, "message": message}, "exit_code": code}))
    return code


def _unexpected(error: BaseException, as_json: bool) -> int:
    if isinstance(error, BrokenPipeError) and reader_is_gone():
        raise ReaderGone
    if isinstance(error, OSError) and advice(error):
        message = refusal(error, error.filename2 or error.filename or _places())
        return _fail(error, message, PLATFORM, as_json)
    if isinstance(error, ClickError):
        message = str(getattr(error, "format_message", error.__str__)())
        return _fail(error, f"{message}\nTry `infra-agent --help`.", WRONG_USE, as_json)
    return _fail(error, f"unexpected {type(error).__name__}: {error}\n{_saved_traceback()}", 1, as_json)


def _places() -> str:
    """Where something can be written, when the system doesn't say where it could not."""
    try:
        return f"INFRA_AGENT_HOME {load_settings().home}, the temporary directory or the output"
    except InfraAgentError:
        return "a file of infra-agent or its output"


def _saved_traceback() -> str:
    """Save the traceback; says where, or shows it if it can't be saved."""
    text = traceback.format_exc()
    try:
        path = load_settings().home / "errors" / f"{now():%Y%m%dT%H%M%S}-{os.getpid()}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except (OSError, InfraAgentError):
        return text
    return f"This is a fault of infra-agent; please report it with {path}"
