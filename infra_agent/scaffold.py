"""`infra-agent init`: a commented target.toml for a repository of the user's own."""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from importlib.resources import files
from pathlib import Path

from infra_agent.errors import WrongUse
from infra_agent.target import FILE_NAME, parse_target
from sandboxes.results import Record

_NAME = "@NAME@"
_HINTS = (
    ("Makefile", 'a Makefile is here: uncomment the `build` probe and set `needs = ["make", "cc"]`'),
    ("CMakeLists.txt", "CMakeLists.txt is here: uncomment the `build` probe with your cmake command"),
    ("launch.toml", "launch.toml is here: uncomment [launch_file] and declare its parameters as [[knobs]]"),
    ("*.gguf", "a GGUF file is here: probes `load` and `logprobs` can count tokens with its vocabulary"),
    ("tests", "tests are here: let the command of the `tests` probe run them"),
)


class Written(Record):
    """What `init` did. `infra-agent init --json` prints it."""

    path: str
    target: str
    """The target's name."""
    next: tuple[str, ...]
    """What to do by hand, in order."""
    commands: tuple[str, ...]
    """What to type then."""


def template() -> str:
    """The text of the template, with a placeholder for the target's name."""
    return files("infra_agent").joinpath("templates", FILE_NAME).read_text(encoding="utf-8")


def init(directory: Path, force: bool = False) -> Written:
    """Write target.toml into an existing directory.

    Raises WrongUse when there is no such directory, it can't be written, or a target.toml is there and `force`
    is not given.
    """
    if not directory.is_dir():
        raise WrongUse(f"{directory} is not a directory; give the root of the repository to optimize")
    path = directory / FILE_NAME
    if path.exists() and not force:
        raise WrongUse(f"{path} exists already; edit it, or overwrite it with --force")
    name, typed = (
        target_name(directory),
        shlex.quote(f"./{directory}" if str(directory).startswith("-") else str(directory)),
    )
    text = template().replace(_NAME, name)
    parse_target(text, str(path))  # never leaves a file behind that can't be read
    try:
        _write(path, text)
    except OSError as error:
        raise WrongUse(f"{path} can't be written: {error.strerror or error}") from error
    hints = (hint for pattern, hint in _HINTS if any(directory.glob(pattern)))
    edit = "edit the lines marked with <-: what may change, how it is tested, how it is measured"
    commit = "commit target.toml: what is measured is what a commit says"
    return Written(
        path=str(path),
        target=name,
        next=(edit, *hints, commit),
        commands=(f"infra-agent calibrate {typed}   # is it measured well enough here?", f"infra-agent run {typed}"),
    )


def as_text(written: Written) -> str:
    """What was written and what to do next."""
    return "\n".join((f"wrote {written.path}", "Next:", *(f"  - {n}" for n in (*written.next, *written.commands))))


def target_name(directory: Path) -> str:
    """A target's name made of the directory's."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", directory.resolve().name).strip("-_")[:64]
    return name or "target"


def _write(path: Path, text: str) -> None:
    """Replace the file in one step."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
