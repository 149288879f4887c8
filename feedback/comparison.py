"""Two things that somebody measured, compared: what differs, where, and what was left out.

Each side is a file of any known format, a directory of such files, or a run directory. Two sides are read as
baseline and candidate. A run directory holds both arms; given as one of two sides it stands for its candidate, and
given alone it is compared with itself. A single file alone is looked at for what is wrong in it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

from feedback.criteria import Criteria
from feedback.inventory import Entry, FileRead, Listing, NotRead, contents, file_read, listing, observe
from feedback.observations import Measurement, Observation
from feedback.ranking import rank
from feedback.rules.derive import derive
from feedback.signals import CodeLocation, Signal
from feedback.spans import Spans, Stacks
from sandboxes.results import ArmName, Record

MAX_NAMED = 4
"""Files that a signal names as the place of the change."""


class Comparison(Record):
    """What two sides say about each other."""

    base: tuple[Path, ...]
    candidate: tuple[Path, ...] = ()
    """Empty where one thing was looked at alone."""
    signals: tuple[Signal, ...]
    """Most useful first."""
    read: tuple[FileRead, ...]
    unread: tuple[NotRead, ...] = ()
    unmatched: tuple[str, ...] = ()
    """Names of files for which the other side has no counterpart."""


def compare(base: Path | Sequence[Path], candidate: Path | Sequence[Path] | None = None) -> Comparison:
    """Compare two sides, or look at one. Reads the given files and nothing else.

    Raises OSError for a path that isn't there and Unreadable for a broken `run.json`; any other file that can't be
    read is listed in `unread`.
    """
    before, after = _paths(base), _paths(candidate)
    if before == after or not after:
        return _alone(before)
    sides: dict[ArmName, Listing] = {"baseline": listing(before), "candidate": listing(after)}
    probes = _matched(sides["baseline"].entries, sides["candidate"].entries)
    observations: list[Observation] = []
    read: list[FileRead] = []
    unread: list[NotRead] = []
    unmatched: list[str] = []
    for arm, side in sides.items():
        unread += side.unread
        observations += _as_arm([o for o in side.said if o.arm == "candidate"], arm)
        for entry in side.entries:
            if entry.arm == "baseline":
                continue  # of a run directory only the candidate counts
            probe = probes.get(entry.path)
            got = observe(entry._replace(probe=probe or entry.probe), arm)
            if isinstance(got, NotRead):
                unread.append(got)
                continue
            mine = _of_one_arm(got, entry.recorded)
            observations += _as_arm(mine, arm)
            read.append(file_read(entry._replace(probe=probe or entry.probe), mine, arm))
            if probe is None:
                unmatched.append(entry.name)
    return _concluded(before, after, observations, read, unread, unmatched)


def _paths(given: Path | Sequence[Path] | None) -> tuple[Path, ...]:
    if given is None:
        return ()
    return (given,) if isinstance(given, Path) else tuple(given)


def _alone(paths: tuple[Path, ...]) -> Comparison:
    """One side: the arms as its files say them."""
    found = contents(paths)
    return _concluded(paths, (), found.observations, found.read, found.unread, [])


def _concluded(
    base: tuple[Path, ...], candidate: tuple[Path, ...], observations: Sequence[Observation],
    read: Sequence[FileRead], unread: Sequence[NotRead], unmatched: Sequence[str],
) -> Comparison:  # fmt: skip
    changed = tuple(CodeLocation(file=name) for name in _names((*candidate, *base)))
    signals: list[Signal] = []
    for stage in dict.fromkeys(o.stage for o in observations):
        signals += derive(observations, Criteria(changed=changed, stage=stage))
    return Comparison(
        base=base, candidate=candidate, signals=tuple(rank(signals, changed)),
        read=tuple(read), unread=tuple(unread), unmatched=tuple(unmatched),
    )  # fmt: skip


def _names(paths: Iterable[Path]) -> list[str]:
    return list(dict.fromkeys(path.name or str(path.absolute().name) or "." for path in paths))[:MAX_NAMED]


def _matched(before: Sequence[Entry], after: Sequence[Entry]) -> dict[Path, str]:
    """The probe under which each file is compared, for those that have a counterpart: one of the same format with
    the same name; or, when a format has a single file left on each side, that one."""
    probes: dict[Path, str] = {}
    left, right = ([e for e in side if e.arm != "baseline"] for side in (before, after))
    for format in dict.fromkeys(e.format.name for e in left):
        mine = {e.name: e for e in left if e.format.name == format}
        theirs = {e.name: e for e in right if e.format.name == format}
        pairs = [(mine[name], theirs[name]) for name in mine if name in theirs]
        rest = [[e for e in of.values() if e.name not in (mine.keys() & theirs.keys())] for of in (mine, theirs)]
        if len(rest[0]) == len(rest[1]) == 1:
            pairs.append((rest[0][0], rest[1][0]))
        for a, b in pairs:
            probes[a.path] = probes[b.path] = a.probe if a.probe == b.probe else format
    return probes


def _of_one_arm(observations: Sequence[Observation], recorded: bool) -> list[Observation]:
    """What stands for a side in a file that may hold both arms: its candidate. Its pairing is lost: the pairs were
    with another baseline."""
    arms = {o.arm for o in observations}
    if len(arms) < 2 and not recorded:
        return list(observations)
    kept = [o for o in observations if o.arm == "candidate"]
    return [o.model_copy(update={"paired": False}) if isinstance(o, Measurement) else o for o in kept]


def _as_arm(observations: Iterable[Observation], arm: ArmName) -> list[Observation]:
    moved: list[Observation] = []
    for o in observations:
        if o.arm == arm:
            moved.append(o)
        elif isinstance(o, Spans | Stacks):
            moved.append(dataclasses.replace(o, arm=arm))
        else:
            moved.append(o.model_copy(update={"arm": arm}))
    return moved
