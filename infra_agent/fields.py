"""Kinds of values in target.toml: what each may be, whatever it is for."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field

from sandboxes.sandbox import LONGEST_S

_LEFT = re.compile(r"/(?:scratch|tree)(?:/[A-Za-z0-9_.+@-]+)+")
_KEY_PART = re.compile(r"^[^\s\"'\[\]=#]+(?: +[^\s\"'\[\]=#]+)*$")


def _inside(path: str) -> str:
    if not path.strip() or PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
        raise ValueError(f"{path!r} must be relative to the target and stay inside it")
    return path


def _rising(looks: tuple[int, ...]) -> tuple[int, ...]:
    if not looks or looks[0] < 2 or looks[-1] > 10_000 or any(b <= a for a, b in pairwise(looks)):
        raise ValueError("numbers of pairs to look at must rise, from at least 2 to at most 10000")
    return looks


def _version(value: object) -> object:
    """A whole number, which `true` and 1.0 are not although they equal 1."""
    return value if type(value) is int else repr(value)


def _command(command: tuple[str, ...]) -> tuple[str, ...]:
    if not command or not command[0].strip():
        raise ValueError("a command must begin with a program")
    return command


def _left_inside(path: str) -> str:
    """A file of the sandbox, in the way that the sandbox itself names it."""
    plain = PurePosixPath(path)
    if not _LEFT.fullmatch(path) or str(plain) != path or ".." in plain.parts or len(path) > 200:
        raise ValueError(
            f"{path!r} must name a file below /scratch or /tree, such as /scratch/trace.json, without `..` and spaces"
        )
    return path


def _dotted(key: str) -> str:
    if not all(_KEY_PART.match(part) for part in key.split(".")):
        raise ValueError(f"{key!r} must be names of tables and a key, joined by dots, without quotes")
    return key


Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
"""What stands in file names too."""
InsidePath = Annotated[str, AfterValidator(_inside)]
LeftPath = Annotated[str, AfterValidator(_left_inside)]
"""Of a file that a command leaves in its sandbox."""
Looks = Annotated[tuple[int, ...], AfterValidator(_rising)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0, le=LONGEST_S, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Few = Annotated[int, Field(ge=0, le=1000)]
Blocks = Annotated[int, Field(ge=1, le=1000)]
Text = Annotated[str, Field(min_length=1)]
Command = Annotated[tuple[str, ...], AfterValidator(_command)]
EnvironmentName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Version = Annotated[Literal[1], BeforeValidator(_version)]
Key = Annotated[str, AfterValidator(_dotted)]
"""Where a value stands in a TOML file."""

LeverFamily = Literal[
    "launch parameters",
    "batching and scheduling",
    "memory and cache",
    "kernels",
    "precision",
    "parallelism and overlap",
    "host code",
    "transfer",
]
"""What can be pulled at to make an inference stack faster; the ledger of a campaign counts by these."""
LEVER_FAMILIES: tuple[LeverFamily, ...] = get_args(LeverFamily)
