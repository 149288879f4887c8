"""Where in the target's source a counted function stands, what it calls, and mechanical changes around it.

Text only: a function is known by its name before an opening brace. What is not found is not guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from feedback.signals import Signal
from infra_agent.planner.edits import Edit
from infra_agent.planner.rulebook import Transform
from infra_agent.planner.tree import NotReadable, Tree

SUFFIXES = (".c", ".cc", ".cpp", ".cxx", ".cu", ".h", ".hpp", ".cuh")
MAX_FUNCTIONS = 3
MAX_CALLS = 4
HOT = 0.10
"""Share of all counted instructions from which a function is worth naming."""
_VARIANT = re.compile(r"^_+|_(?:fma4?|avx\w*|sse\w*|sve|neon|finite|ifunc)$")


class Function(NamedTuple):
    """A function's definition in a file."""

    name: str
    path: str
    header: str
    """What stands before its parameters, from the beginning of the line."""
    line: int
    """Of its name, from 1."""
    body: str
    body_line: int


class Hot(NamedTuple):
    """A counted function of the target with its share of all instructions, and where it calls other counted ones."""

    function: Function
    share: float
    calls: tuple[tuple[int, str], ...]

    def __str__(self) -> str:
        said = f"{self.function.name} ({self.function.path}:{self.function.line}) executes {self.share:.0%}"
        if not self.calls:
            return said
        lines = ", ".join(f"{line} `{text}`" for line, text in self.calls)
        return f"{said} and calls what executes more at line{'s' if len(self.calls) > 1 else ''} {lines}"


def hot(signal: Signal, tree: Tree) -> tuple[Hot, ...]:
    """The target's own functions among those that a signal counted, most instructions first."""
    total = sum(q.value for q in signal.measured) or 1.0
    shares = {q.name: q.value / total for q in signal.measured}
    found = []
    for counted, share in sorted(shares.items(), key=lambda item: -item[1]):
        if share >= HOT and (function := find(counted, tree)) is not None:
            others = [plain_name(n) for n, s in shares.items() if n != counted and s >= HOT / 2]
            found.append(Hot(function, share, tuple(_calls(function, others, tree))[:MAX_CALLS]))
    return tuple(found[:MAX_FUNCTIONS])


def plain_name(counted: str) -> str:
    """The name that source code calls a function by: `__expf_fma` is `expf`."""
    name, before = counted, ""
    while name != before:
        name, before = _VARIANT.sub("", name), name
    return name or counted


def find(name: str, tree: Tree) -> Function | None:
    """The definition of a function, if exactly one stands in the target's C-like sources."""
    found = [f for path in tree.files() if path.suffix in SUFFIXES for f in _definitions(str(path), name, tree)]
    return found[0] if len(found) == 1 else None


def _definitions(path: str, name: str, tree: Tree) -> Iterator[Function]:
    try:
        text = tree.text(path)
    except NotReadable:
        return
    if name not in text:
        return
    for match in re.finditer(
        rf"^(?!\s|#|//|\*)[^;{{}}()\n]*\b{re.escape(name)}(?=\s*\([^;{{}}]*\)[^;{{}}()]*\{{)", text, re.M
    ):
        opening = text.index("{", match.end())
        yield Function(
            name, path, match[0], text.count("\n", 0, match.end()) + 1, text[opening : _closing(text, opening)],
            text.count("\n", 0, opening) + 1,
        )  # fmt: skip


def _closing(text: str, opening: int) -> int:
    depth = 0
    for match in re.finditer(r"[{}]", text[opening:]):
        depth += 1 if match[0] == "{" else -1
        if depth == 0:
            return opening + match.end()
    return len(text)


def _calls(function: Function, names: list[str], tree: Tree) -> Iterator[tuple[int, str]]:
    """Lines of a body that call one of these, or a function of the same file that does."""
    text = tree.text(function.path)
    helpers = [
        h.name
        for candidate in dict.fromkeys(re.findall(r"\b([A-Za-z_]\w*)\s*\(", function.body))
        for h in _definitions(function.path, candidate, tree)
        if h.name != function.name and any(re.search(rf"\b{re.escape(n)}\s*\(", h.body) for n in names)
    ]
    wanted = [n for n in (*names, *helpers) if re.search(rf"\b{re.escape(n)}\s*\(", text)]
    for number, line in enumerate(function.body.splitlines(), function.body_line):
        if any(re.search(rf"\b{re.escape(n)}\s*\(", line) for n in wanted):
            yield number, " ".join(line.split())[:100]


def edit(transform: Transform, function: Function, tree: Tree, machine: str) -> Edit | None:
    """The edit that makes a transform of a function; None where it does not fit the file, the function or the
    machine, or where it stands already."""
    text = tree.text(function.path)
    if transform.machines and machine not in transform.machines:
        return None
    if not function.path.endswith(transform.suffixes) or text.count(function.header) != 1:
        return None
    if re.search(transform.unless, text) or re.search(transform.unless_header, function.header):
        return None
    return Edit(path=function.path, old=function.header, new=f"{transform.before_function}\n{function.header}")
