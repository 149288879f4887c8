"""`feedback read`, `compare` and `explain`, on files of any origin. Reads what it is given and writes to stdout only.

`python -m feedback.cli` works by itself; `infra-agent feedback` is the same with a memory of earlier comparisons.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from feedback.comparison import Comparison, compare
from feedback.digest import digest
from feedback.explanation import MIN_ID, explain, find
from feedback.inventory import Contents, FileRead, NotRead, contents
from feedback.markdown import markdown
from feedback.readers import Unreadable, formats
from feedback.sarif import sarif
from feedback.signals import Signal
from feedback.summary import lines
from feedback.wording import count, plain

DONE, WRONG_USE = 0, 2
TOKENS = 2000
MAX_UNREAD = 12


class Wrong(Exception):
    """Wrong use: an unknown option, a path that isn't there, a file that can't be read."""


class Known(NamedTuple):
    """A signal from before with the files that it came from."""

    origin: str
    """Where it was found, for people."""
    signal: Signal
    files: tuple[FileRead, ...]


class Memory(NamedTuple):
    """What remembers comparisons; without one, `explain` needs the paths."""

    keep: Callable[[Comparison], None]
    recall: Callable[[str], Sequence[Known]]
    """Signals whose fingerprint begins so."""


def main() -> NoReturn:
    """Entry point of `python -m feedback.cli`."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        sys.exit(run(sys.argv[1:], print))
    except Wrong as error:
        print(f"feedback: {error}", file=sys.stderr)
        sys.exit(WRONG_USE)
    except BrokenPipeError:
        sys.exit(141)


def run(arguments: Sequence[str], say: Callable[[str], None], memory: Memory | None = None, prog: str = "") -> int:
    """Run one command line, its result going to `say`; returns the exit code. Raises Wrong."""
    if any("\udc80" <= character <= "\udcff" for character in "".join(arguments)):
        raise Wrong("an argument is not valid UTF-8 text; use names that are")
    try:
        given = _parser(prog or "python -m feedback.cli").parse_args(arguments)
    except SystemExit as end:  # --help
        return int(end.code or 0)
    try:
        return int(given.do(given, say, memory))
    except Unreadable as error:
        raise Wrong(str(error)) from error
    except BrokenPipeError:  # whoever read the output went away
        raise
    except OSError as error:
        raise Wrong(f"{error.filename or 'a path'}: {error.strerror or type(error).__name__}") from error


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Wrong(f"{message}\n{self.format_usage().strip()}")


def _parser(prog: str) -> argparse.ArgumentParser:
    known = "formats: " + ", ".join(format.name for format in formats.FORMATS)
    parser = _Parser(prog=prog, description="What runs left behind as signals that say where, why and what next.")
    commands = parser.add_subparsers(required=True, metavar="read|compare|explain")

    def add(name: str, about: str) -> argparse.ArgumentParser:
        raw = argparse.RawDescriptionHelpFormatter
        return commands.add_parser(name, help=about, description=about, formatter_class=raw, epilog=_EPILOG + known)

    read = add("read", "what is in files: observations by kind")
    read.add_argument("paths", nargs="+", type=Path, metavar="PATH")
    read.add_argument("--json", action="store_true", help="print one JSON object")
    read.set_defaults(do=_read)
    both = add("compare", "what differs between two runs of anything, ranked")
    both.add_argument("base", type=Path, metavar="BASE")
    both.add_argument("candidate", type=Path, metavar="CANDIDATE", nargs="?")
    both.add_argument("--format", choices=("text", "json", "sarif", "markdown"), default="text")
    both.add_argument("--json", action="store_const", const="json", dest="format", help="the same as --format json")
    both.add_argument("--tokens", type=_tokens, default=TOKENS, help=f"budget of the text format (default {TOKENS})")
    both.set_defaults(do=_compare)
    one = add("explain", "the evidence behind one signal")
    one.add_argument("signal", metavar="SIGNAL", help=f"an id that `compare` printed, or its first {MIN_ID} characters")
    one.add_argument("base", type=Path, metavar="BASE", nargs="?")
    one.add_argument("candidate", type=Path, metavar="CANDIDATE", nargs="?")
    one.set_defaults(do=_explain)
    return parser


_EPILOG = """A path is a file of a known format, a directory of such files, or a run directory (run.json, both
arms in it).
Two sides are matched by format and name. A run directory given alone is compared with itself, baseline against
candidate; given as one of two sides it stands for its candidate. A file alone is looked at for what is wrong in it.
Exit codes: 0 done, 2 wrong use or nothing readable.

"""


def _tokens(text: str) -> int:
    value = int(text[:12]) if text.isascii() and text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text[:20]!r}")
    return value


def _read(given: argparse.Namespace, say: Callable[[str], None], memory: Memory | None) -> int:
    found = contents(given.paths)
    if not (found.read or found.unread):
        raise Wrong(f"{', '.join(map(str, given.paths))}: no files there (hidden ones and links are not followed)")
    say(_json(_contents_data(found)) if given.json else _contents_text(found))
    return DONE if found.read else WRONG_USE


def _compare(given: argparse.Namespace, say: Callable[[str], None], memory: Memory | None) -> int:
    if given.candidate is not None and given.base.resolve() == given.candidate.resolve():
        raise Wrong(f"BASE and CANDIDATE are both {given.base}; give one path to look at it alone")
    found = compare(given.base, given.candidate)
    if given.format == "json":
        say(_json(data(found)))
    elif given.format == "sarif":
        say(json.dumps(sarif(found), indent=1))
    elif given.format == "markdown":
        say(markdown(found))
    else:
        say(text(found, given.tokens))
    if memory is not None and found.signals:
        memory.keep(found)
    sides = {f.arm for f in found.read}
    return DONE if found.read and (not found.candidate or len(sides) == 2) else WRONG_USE


def _explain(given: argparse.Namespace, say: Callable[[str], None], memory: Memory | None) -> int:
    known: Sequence[Known]
    if given.base is not None:
        found = compare(given.base, given.candidate)
        known = [Known("", s, found.read) for s in find(found.signals, given.signal)]
    elif memory is not None:
        known = memory.recall(given.signal)
    else:
        raise Wrong("name the files too: explain SIGNAL BASE [CANDIDATE]")
    if not known:
        raise Wrong(f"no signal {plain(given.signal)[:80]} was found; `compare` prints the ids")
    say("\n\n".join((f"{k.origin}\n" if k.origin else "") + explain(k.signal, k.files) for k in known))
    return DONE


def text(comparison: Comparison, tokens: int) -> str:
    """A comparison for a terminal or a planner: the digest within its budget, then what was left out."""
    nothing = "" if comparison.uncompared else "no signals: every rule looked and found nothing to say"
    said = (digest(comparison.signals, tokens) or nothing, plain(comparison.uncompared))
    parts = [line for line in said if line]
    parts += _missing(comparison.unread)
    parts += [f"no counterpart on the other side: {plain(name)}" for name in comparison.unmatched[:MAX_UNREAD]]
    counts = f"{count(len(comparison.read), 'file')} read"
    return "\n".join([*parts, f"{counts}, {len(comparison.unread)} not" if comparison.unread else counts])


def data(comparison: Comparison) -> dict[str, Any]:
    """A comparison as JSON values, each signal with its `fingerprint`."""
    found = comparison.model_dump(mode="json")
    for signal, values in zip(comparison.signals, found["signals"], strict=True):
        values["fingerprint"] = signal.fingerprint
    return found


def _contents_text(found: Contents) -> str:
    shown = []
    for f in found.read:
        said = ", ".join(f"{n} {kind}" for kind, n in f.kinds.items()) or "nothing"
        shown.append(f"{plain(f.name)}: {f.format}: {said}")
    shown += [f"  {line}" for line in lines(found.observations)]
    return "\n".join([*shown, *_missing(found.unread)])


def _contents_data(found: Contents) -> dict[str, Any]:
    totals: dict[str, int] = {}
    for f in found.read:
        for kind, n in f.kinds.items():
            totals[kind] = totals.get(kind, 0) + n
    return {
        "files": [f.model_dump(mode="json") for f in found.read],
        "unread": [f.model_dump(mode="json") for f in found.unread],
        "kinds": totals,
        "contents": list(lines(found.observations)),
    }


def _missing(unread: Sequence[NotRead]) -> list[str]:
    shown = [
        f"not read: {plain(f.name)}{f', line {f.line}' if f.line else ''}: {plain(f.reason)}"
        for f in unread[:MAX_UNREAD]
    ]
    return shown + ([f"and {len(unread) - MAX_UNREAD} more not read"] if len(unread) > MAX_UNREAD else [])


def _json(value: Any) -> str:
    return json.dumps(_finite(value))


def _finite(value: Any) -> Any:
    """JSON knows no infinity and no NaN: they become null."""
    if isinstance(value, dict):
        return {key: _finite(v) for key, v in value.items()}
    if isinstance(value, list):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
    main()
