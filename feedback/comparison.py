"""Two things that somebody measured, compared: what differs, where, and what was left out.

Each side is a file of any known format, a directory of such files, or a run directory. Two sides are read as
baseline and candidate. A run directory holds both arms; given as one of two sides it stands for its candidate, and
given alone it is compared with itself. A single file alone is looked at for what is wrong in it; of one with exactly
two commands (hyperfine) the second is compared with the first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

from feedback.criteria import Criteria
from feedback.inventory import FileRead, Listing, NotRead, contents, file_read, listing, observe
from feedback.matching import match, one_case, renumbered, two_commands
from feedback.observations import Measurement, Observation
from feedback.ranking import rank
from feedback.rules.cases import key, text
from feedback.rules.derive import derive
from feedback.signals import CodeLocation, Signal
from feedback.spans import Spans, Stacks
from feedback.wording import count
from sandboxes.results import ArmName, Record

MAX_NAMED = 4
"""Files that a signal names as the place of the change; cases that are named."""


STAGE = "screen"


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
    uncompared: str = ""
    """Why nothing was compared at all; empty where something was, or where the signals say it."""


def compare(base: Path | Sequence[Path], candidate: Path | Sequence[Path] | None = None) -> Comparison:
    """Compare two sides, or look at one. Reads the given files and nothing else.

    Raises OSError for a path that isn't there and Unreadable for a broken `run.json`; any other file that can't be
    read is listed in `unread`.
    """
    before, after = _paths(base), _paths(candidate)
    if before == after or not after:
        return _alone(before)
    sides: dict[ArmName, Listing] = {"baseline": _side(listing(before)), "candidate": _side(listing(after))}
    probes, pooled, in_turn = match(sides["baseline"].entries, sides["candidate"].entries)
    units: dict[tuple[str, str], int] = {}
    observations: list[Observation] = []
    read: list[FileRead] = []
    unread: list[NotRead] = []
    unmatched: list[str] = []
    for arm, side in sides.items():
        unread += side.unread
        observations += _moved(side.said, arm)
        for entry in side.entries:
            probe = probes.get(entry.path)
            entry = entry._replace(probe=probe or entry.probe)
            got = observe(entry, (entry.arm or "candidate") if entry.recorded else arm)
            if isinstance(got, NotRead):
                unread.append(got)
                continue
            mine = _moved(_of_one_arm(got, entry.recorded), arm)
            if entry.path in pooled:
                mine = renumbered(mine, units, entry.path in in_turn)
            observations += mine
            read.append(file_read(entry, mine, arm))
            if probe is None:
                unmatched.append(entry.name)
    return _concluded(before, after, one_case(observations), read, unread, unmatched)


def _paths(given: Path | Sequence[Path] | None) -> tuple[Path, ...]:
    if given is None:
        return ()
    return (given,) if isinstance(given, Path) else tuple(given)


def _alone(paths: tuple[Path, ...]) -> Comparison:
    """One side: the arms as its files say them; of a file with two commands, the first and the second."""
    found = contents(paths)
    commands = [file.probe for file in found.read if file.format == "hyperfine"]
    return _concluded(paths, (), two_commands(found.observations, commands), found.read, found.unread, [])


def _concluded(
    base: tuple[Path, ...], candidate: tuple[Path, ...], observations: Sequence[Observation],
    read: Sequence[FileRead], unread: Sequence[NotRead], unmatched: Sequence[str],
) -> Comparison:  # fmt: skip
    uncompared = _uncompared(read, observations, bool(candidate), len(unmatched))
    changed = tuple(CodeLocation(file=name) for name in _names(candidate or base))
    signals: list[Signal] = []
    for stage in dict.fromkeys(o.stage for o in observations):
        signals += derive(observations, Criteria(changed=changed, stage=stage))
    return Comparison(
        base=base, candidate=candidate, signals=tuple(rank(signals, changed)),
        read=tuple(read), unread=tuple(unread), unmatched=tuple(unmatched),
        uncompared=uncompared,
    )  # fmt: skip


def _uncompared(
    read: Sequence[FileRead], observations: Sequence[Observation], two_sides: bool, n_unmatched: int
) -> str:
    """Why no file or measurement met its like."""
    measured = [o for o in observations if isinstance(o, Measurement) and "function" not in o.case]
    if two_sides and read and n_unmatched == len(read):
        of = [", ".join(dict.fromkeys(f.format for f in read if f.arm == arm)) for arm in ("baseline", "candidate")]
        if not all(of):
            return ""
        same = "no two files belong together by their names" if of[0] == of[1] else "no format in common"
        return f"nothing was compared: {same} (baseline {of[0]}; candidate {of[1]})"
    if not two_sides and measured and len({o.arm for o in measured}) == 1:
        cases = list(dict.fromkeys(text(key(o.case)) for o in measured))
        more = f" and {len(cases) - MAX_NAMED} more" if len(cases) > MAX_NAMED else ""
        return (
            f"nothing was compared: one side only, with {count(len(cases), 'case')} "
            f"({', '.join(case[:80] for case in cases[:MAX_NAMED])}{more}); cases of one side are not compared with "
            "each other: give each side a file of its own"
        )
    return ""


def _names(paths: Iterable[Path]) -> list[str]:
    return list(dict.fromkeys(path.name or str(path.absolute().name) or "." for path in paths))[:MAX_NAMED]


def _side(found: Listing) -> Listing:
    """Of what run directories recorded, the candidate in its last stage; files keep all they hold."""
    stages = [e.stage for e in found.entries if e.recorded]
    last = stages[-1] if stages else ""
    entries = (e for e in found.entries if not e.recorded or (e.stage == last and e.arm != "baseline"))
    said = (o for o in found.said if o.arm == "candidate" and o.stage == (last or o.stage))
    return found._replace(entries=tuple(entries), said=tuple(said))


def _of_one_arm(observations: Sequence[Observation], recorded: bool) -> list[Observation]:
    """What stands for a side in a file that may hold both arms: its candidate. Its pairing is lost: the pairs were
    with another baseline."""
    if not recorded and len({o.arm for o in observations}) < 2:
        return list(observations)
    kept = [o for o in observations if o.arm == "candidate"]
    return [o.model_copy(update={"paired": False}) if isinstance(o, Measurement) else o for o in kept]


def _moved(observations: Iterable[Observation], arm: ArmName) -> list[Observation]:
    """The same of this arm, and of the one stage that is compared."""
    moved: list[Observation] = []
    for o in observations:
        if isinstance(o, Spans | Stacks):
            moved.append(dataclasses.replace(o, arm=arm, stage=STAGE))
        elif o.arm == arm and o.stage == STAGE:
            moved.append(o)
        else:
            moved.append(o.model_copy(update={"arm": arm, "stage": STAGE}))
    return moved
