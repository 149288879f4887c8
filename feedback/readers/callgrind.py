"""callgrind.out files: instructions executed, in all and by function; they don't depend on what else the machine
does. Tried with valgrind 3.19. https://valgrind.org/docs/manual/cl-format.html
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple

from feedback.observations import Measurement, Source
from feedback.readers import Unreadable
from feedback.readers.documents import shown
from sandboxes.results import ArmName

MAX_FUNCTIONS = 500
MIN_SHARE = 1e-4
"""Functions below this share of all instructions are left out."""
MAX_LINES = 20_000
"""Of one function that are counted apart."""
MAX_LINE_BYTES = 1 << 16
MAX_NAMES = 1 << 20
NO_LINE = 1 << 31

_HEAD_BYTES = 1 << 16
_TOTALS = re.compile(rb"^(summary|totals):\s+(\d{1,18})(?:\s|$)")
_NAME = re.compile(rb"^(c?fn|c?fl|c?fi|fe)=(?:\((\d{1,9})\))?\s*(.*)$")
_COST = frozenset(bytes([c]) for c in b"0123456789+-*")
_RECURSION = re.compile(r"'\d+$")


class Function(NamedTuple):
    """A function where it was compiled to, with what was inlined into it."""

    name: str
    file: str


class Cost(NamedTuple):
    """What a function cost itself, without what it called."""

    instructions: int
    line: int | None
    """The first line of its own file that cost anything: a line or two into it."""


def fits(path: Path, head: bytes) -> bool:
    return b"events: Ir" in head and (head.startswith(b"# callgrind format") or b"\npositions:" in head)


def read(path: Path, probe: str, stage: str, arm: ArmName) -> list[Measurement]:
    """`instructions` in all, and of each function that counts, most first, under `function` and `file` in its case.

    A file that ends before its totals gives the total alone. Raises Unreadable when it holds none (valgrind was
    cut off) or doesn't count instructions first, OSError when it can't be read.
    """
    profile, total = _profile(path)
    found = [
        Measurement(
            probe=probe, metric="instructions", value=total, arm=arm, stage=stage, source=Source(file=path.name)
        )
    ]  # fmt: skip
    if profile.total is None:
        return found
    for function, cost in profile.functions(total):
        known = PurePosixPath(function.file).name
        found.append(
            Measurement(
                probe=probe, metric="instructions", value=cost.instructions, arm=arm, stage=stage, paired=False,
                case={"function": function.name, "file": known},
                code=function.file if cost.line is None else f"{function.file}:{cost.line}",
                source=Source(file=path.name, query=f"fn={function.name}"),
            )
        )  # fmt: skip
    return found


class Counted(NamedTuple):
    """What one file counted: instructions in all, of each function, and of each line of those that were asked for."""

    total: int
    functions: dict[str, int]
    """Most instructions first."""
    lines: dict[str, dict[str, int]]
    """Function -> `file:line` -> instructions, most first; lines that were inlined into it are among them."""


def count(path: Path, functions: Container[str]) -> Counted:
    """The counts of a file, by line of these functions. Raises Unreadable and OSError as `read` does."""
    profile, total = _profile(path, functions)
    counted = Counted(total, {}, {})
    for function, cost in profile.functions(total) if profile.total is not None else ():
        counted.functions[function.name] = counted.functions.get(function.name, 0) + cost.instructions
        if function.name in functions:
            here = counted.lines.setdefault(function.name, {})
            for place, instructions in profile.lines(function):
                here[place] = here.get(place, 0) + instructions
    return counted


def _profile(path: Path, by_line: Container[str] = ()) -> tuple[_Profile, int]:
    """A file read whole, and its instructions in all."""
    with path.open("rb") as file:
        if b"events: Ir" not in file.read(_HEAD_BYTES):
            raise Unreadable(path, 1, "not a callgrind file that counts instructions (no `events: Ir`)")
        file.seek(0)
        profile = _Profile(path, by_line)
        for number, line in _lines(file):
            profile.take(number, line)
    total = profile.total if profile.total is not None else profile.summary
    if total is None:
        raise Unreadable(path, 1, "no totals; valgrind did not finish")
    return profile, total


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Numbered lines; of a long one only its beginning."""
    number = 0
    while line := file.readline(MAX_LINE_BYTES):
        number += 1
        yield number, line.rstrip(b"\r\n")
        while not line.endswith(b"\n") and len(line) == MAX_LINE_BYTES:
            line = file.readline(MAX_LINE_BYTES)


class _Tally:
    """What one function cost so far."""

    __slots__ = ("by_line", "first_line", "instructions")

    def __init__(self, by_line: bool) -> None:
        self.instructions = 0
        self.first_line = NO_LINE
        self.by_line: Counter[tuple[str, int]] | None = Counter() if by_line else None


class _Profile:
    """What has been read so far of one file."""

    def __init__(self, path: Path, by_line: Container[str]) -> None:
        self.path = path
        self._by_line = by_line
        self.total: int | None = None
        self.summary: int | None = None
        self._tallies: dict[Function, _Tally] = {}
        self._tally: _Tally | None = None
        self._names: dict[tuple[bool, bytes], str] = {}
        self._own_file = ""
        self._file = ""
        """The one that cost lines are of: its own, or one whose code was inlined."""
        self._line = 0
        self._line_column = 0
        self._is_call = False

    def take(self, number: int, line: bytes) -> None:
        if line[:1] in _COST:
            self._cost(line)
        elif named := _NAME.match(line):
            self._named(number, named[1], named[2], named[3])
        elif line.startswith(b"calls="):
            self._is_call = True
        elif line.startswith(b"positions:"):
            self._line_column = 1 if b"instr" in line else 0
        elif totals := _TOTALS.match(line):
            if totals[1] == b"totals":
                self.total = (self.total or 0) + int(totals[2])
            else:
                self.summary = int(totals[2])

    def _named(self, number: int, key: bytes, id_: bytes | None, said: bytes) -> None:
        """`fl=(3) norm.c` gives 3 its name, `fl=(3)` means it; functions and files count apart."""
        is_function = key.endswith(b"fn")
        name = shown(said.decode("utf-8", "replace"), 400)
        if id_ is not None:
            if name:
                if len(self._names) >= MAX_NAMES:
                    raise Unreadable(self.path, number, f"more than {MAX_NAMES} names")
                self._names[is_function, id_] = name
            name = self._names.get((is_function, id_), "")
        if key == b"fn":
            function = Function(_RECURSION.sub("", name) or "?", self._own_file)
            if function not in self._tallies:
                self._tallies[function] = _Tally(function.name in self._by_line)
            self._tally = self._tallies[function]
            if len(self._tallies) > MAX_NAMES:
                raise Unreadable(self.path, number, f"more than {MAX_NAMES} functions")
        elif key == b"fl":
            self._own_file = self._file = name
        elif key in (b"fi", b"fe"):
            self._file = name

    def _cost(self, line: bytes) -> None:
        """A line of positions and costs. The one after `calls=` has the cost of what was called: not its own."""
        cells = line.split(None, self._line_column + 2)
        is_call, self._is_call = self._is_call, False
        try:
            position = cells[self._line_column]
            if position != b"*":
                number = int(position[:20], 16 if position[:3].lstrip(b"+-")[:2] == b"0x" else 10)
                self._line = self._line + number if position[:1] in b"+-" else number
            instructions = int(cells[self._line_column + 1][:18])
        except (IndexError, ValueError):
            return  # a line of a jump, or noise
        if is_call or self._tally is None or instructions <= 0:
            return
        self._tally.instructions += instructions
        if self._file == self._own_file and 0 < self._line < self._tally.first_line:
            self._tally.first_line = self._line
        if self._tally.by_line is not None and len(self._tally.by_line) < MAX_LINES:
            self._tally.by_line[self._file, self._line] += instructions

    def lines(self, function: Function) -> list[tuple[str, int]]:
        """`file:line` of a function that was asked for by line, most instructions first."""
        found = self._tallies[function].by_line or Counter()
        ordered = sorted(found.items(), key=lambda item: (-item[1], item[0]))
        return [(f"{file}:{line}" if line else file, instructions) for (file, line), instructions in ordered]

    def functions(self, total: int) -> list[tuple[Function, Cost]]:
        """The functions that count, most instructions first."""
        counting = [
            (f, Cost(t.instructions, t.first_line if t.first_line < NO_LINE else None))
            for f, t in self._tallies.items()
            if 0 < t.instructions < 1 << 60 and t.instructions >= MIN_SHARE * total
        ]
        return sorted(counting, key=lambda item: (-item[1].instructions, item[0]))[:MAX_FUNCTIONS]
