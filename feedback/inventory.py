"""What is in files and directories: the format of each file, its observations, and what could not be read.

A path is a file of any format in `readers.formats.FORMATS`, a run directory (with a `run.json`, both arms inside) or
a directory of files. Nothing else than what it names is read; links inside a directory are not followed.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from feedback.observations import Observation
from feedback.readers import Unreadable, formats
from feedback.readers.run import steps
from feedback.spans import Spans, Stacks
from sandboxes.results import ArmName, Record, Run

MAX_FILES = 256
"""Files of one directory that are read; a directory that holds more of known formats is reported."""
MAX_LOOKED_AT = 4096
"""Files of one directory whose beginning is looked at."""
KINDS = ("measurement", "test", "parity", "event", "spans", "stacks")


class FileRead(Record):
    """A file that was read."""

    path: Path
    name: str
    """Inside the directory that was given, or the file's own name."""
    format: str
    probe: str
    arm: ArmName | None = None
    """As which side it was read; None if it holds both or neither."""
    kinds: dict[str, int] = {}
    """How many observations of each kind; of a trace its intervals, of a profile its distinct stacks."""


class NotRead(Record):
    """A file that could not be read, and why."""

    path: Path
    name: str
    reason: str
    line: int = 0
    """Counted from 1; 0 stands for the file as a whole."""


class Entry(NamedTuple):
    """A file that a reader will take."""

    path: Path
    name: str
    format: formats.Format
    probe: str
    stage: str = "screen"
    arm: ArmName | None = None
    """As a run directory recorded it; None for a file that says it itself, or whose side decides."""
    recorded: bool = False
    """Whether a run directory lists it."""
    written_s: float = 0.0
    """When the file was last written, in seconds since 1970; 0 for one that a run directory lists."""


class Listing(NamedTuple):
    """What there is to read at some paths."""

    entries: tuple[Entry, ...]
    unread: tuple[NotRead, ...]
    said: tuple[Observation, ...] = ()
    """What run directories say themselves: how their commands ended."""


class Contents(NamedTuple):
    """What was in some files."""

    observations: tuple[Observation, ...]
    read: tuple[FileRead, ...]
    unread: tuple[NotRead, ...]


def listing(paths: Sequence[Path]) -> Listing:
    """What there is to read. Raises OSError for a path that isn't there, Unreadable for a broken `run.json`."""
    entries: list[Entry] = []
    unread: list[NotRead] = []
    said: list[Observation] = []
    for path in paths:
        if not path.is_dir():
            path.stat()
            _add(path, path.name, entries, unread)
        elif (path / "run.json").is_file():
            run = _run(path)
            said += steps(run.steps)
            _artefacts(run, entries, unread)
        else:
            _directory(path, entries, unread)
    return Listing(tuple(entries), tuple(unread), tuple(said))


def contents(paths: Sequence[Path]) -> Contents:
    """Everything in some files, each arm as the files say it. Raises OSError for a path that isn't there,
    Unreadable for a broken `run.json`; a file that can't be read is among the unread ones."""
    found = listing(paths)
    observations = list(found.said)
    read, unread = [], list(found.unread)
    for entry in found.entries:
        got = observe(entry, entry.arm or "candidate")
        if isinstance(got, NotRead):
            unread.append(got)
        else:
            observations += got
            read.append(file_read(entry, got, entry.arm))
    return Contents(tuple(observations), tuple(read), tuple(unread))


def observe(entry: Entry, arm: ArmName) -> list[Observation] | NotRead:
    """The observations of one file, or why there are none."""
    try:
        return list(entry.format.read(entry.path, entry.probe, entry.stage, arm))
    except Unreadable as error:
        return NotRead(path=entry.path, name=entry.name, reason=error.reason[:400], line=error.line)
    except OSError as error:
        return NotRead(path=entry.path, name=entry.name, reason=error.strerror or type(error).__name__)


def file_read(entry: Entry, observations: Sequence[Observation], arm: ArmName | None) -> FileRead:
    """What a file held, in counts."""
    kinds: Counter[str] = Counter()
    for o in observations:
        if isinstance(o, Spans):
            kinds["spans"] += len(o)
        elif isinstance(o, Stacks):
            kinds["stacks"] += len(o.stacks)
        else:
            kinds[o.kind] += 1
    return FileRead(
        path=entry.path, name=entry.name, format=entry.format.name, probe=entry.probe, arm=arm,
        kinds={kind: kinds[kind] for kind in KINDS if kinds[kind]},
    )  # fmt: skip


def _run(directory: Path) -> Run:
    try:
        return Run.load(directory)
    except (ValueError, RecursionError) as error:
        raise Unreadable(directory / "run.json", 1, f"not a run: {str(error).splitlines()[0]}") from error


def _artefacts(run: Run, entries: list[Entry], unread: list[NotRead]) -> None:
    root = run.directory.resolve()
    for artefact in run.artefacts:
        format = formats.named(artefact.format)
        if format is None:
            continue  # only for people
        path = run.path(artefact)
        if artefact.lost:
            unread.append(NotRead(path=path, name=artefact.path, reason=artefact.lost[:400]))
            continue
        if "\0" in artefact.path or not path.resolve().is_relative_to(root):
            unread.append(NotRead(path=path, name=artefact.path, reason="lies outside of its run directory"))
            continue
        entries.append(
            Entry(path, artefact.path, format, artefact.probe, artefact.stage, artefact.arm, recorded=True)
        )  # fmt: skip


def _directory(directory: Path, entries: list[Entry], unread: list[NotRead]) -> None:
    first = len(entries)
    for n, path in enumerate(_files(directory)):
        if len(entries) - first == MAX_FILES or n == MAX_LOOKED_AT:
            seen = f"{MAX_FILES} files of known formats" if n < MAX_LOOKED_AT else f"{MAX_LOOKED_AT} files"
            reason = f"holds more than {seen}; those after {path.name} were left out: name those that matter"
            unread.insert(0, NotRead(path=directory, name=directory.name, reason=reason[:400]))
            return
        _add(path, path.relative_to(directory).as_posix(), entries, unread, "no known format")


def _files(directory: Path) -> Iterator[Path]:
    """Regular files below a directory in the order of their names, without hidden ones and links."""
    for parent, folders, names in os.walk(directory):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        for name in sorted(names):
            path = Path(parent, name)
            if not name.startswith(".") and not path.is_symlink() and path.is_file():
                yield path


def _add(path: Path, name: str, entries: list[Entry], unread: list[NotRead], unknown: str = "") -> None:
    if not _is_text(name):
        shown = os.fsencode(name).decode("utf-8", "replace")
        unread.append(NotRead(path=path.parent, name=shown, reason="its name is not valid UTF-8 text"))
        return
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise Unreadable(path, 0, "not a regular file")
        entries.append(Entry(path, name, formats.detect(path), probe=name, written_s=status.st_mtime))
    except Unreadable as error:
        unread.append(NotRead(path=path, name=name, reason=unknown or error.reason, line=error.line))
    except OSError as error:
        unread.append(NotRead(path=path, name=name, reason=error.strerror or type(error).__name__))


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
