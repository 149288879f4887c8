"""Which target is meant: a directory, or one that ships with infra-agent by its name."""

from __future__ import annotations

import shutil
from pathlib import Path

from infra_agent.errors import WrongUse
from infra_agent.target import TargetSpec

SHIPPED = "shipped_targets"
"""Where the targets lie in an installed package."""


def find_target(name: str) -> Path:
    """A target's directory by its path or by the name of a shipped one. Raises WrongUse."""
    if not name.strip():
        raise WrongUse("the name of the target is empty; give a directory or a shipped target")
    try:
        path = Path(name).expanduser()
        if path.is_dir():
            return path.resolve()
    except (RuntimeError, ValueError, OSError) as error:  # no such user, a NUL, too long, or no current directory
        raise WrongUse(f"{name[:200]} can't be a target: {error}") from error
    shipped = {p.name: p for p in shipped_targets()}
    if name in shipped:
        return shipped[name]
    known = ", ".join(sorted(shipped)) or "none"
    raise WrongUse(f"{name} is neither a directory nor a shipped target; shipped are: {known}")


def shipped_targets() -> list[Path]:
    """The targets that come with infra-agent: in a wheel inside the package, in a checkout beside it."""
    here = Path(__file__).resolve().parent
    for root in (here / SHIPPED, here.parent / "targets"):
        if root.is_dir():
            return sorted(p for p in root.iterdir() if (p / "target.toml").is_file())
    return []


def find_script(planner: str, directory: Path) -> str:
    """`script:FILE` with the file's absolute path, so that a resume finds it from anywhere: FILE as given, or
    else below the target's directory. Any other planner is returned as it is. Raises WrongUse."""
    kind, separator, name = planner.partition(":")
    if kind != "script" or not separator:
        return planner
    try:
        given = Path(name).expanduser()
        below = directory / name
        return f"script:{(below if below.is_file() and not given.is_file() else given).absolute()}"
    except (RuntimeError, ValueError, OSError) as error:
        raise WrongUse(f"{name[:200]} can't be a script: {error}") from error


def check_needs(spec: TargetSpec) -> None:
    """Raises WrongUse when a program that the target needs is missing."""
    missing = [program for program in spec.needs if shutil.which(program) is None]
    if missing:
        raise WrongUse(
            f"target {spec.name} needs {', '.join(missing)} on the PATH; install it (Debian: apt-get install "
            "build-essential), then run the command again"
        )
