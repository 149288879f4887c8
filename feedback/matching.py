"""Which files of two sides belong together, and which files of one side are repetitions of one measurement."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from feedback.inventory import Entry
from feedback.observations import Measurement, Observation

POOLED = frozenset(
    {
        "aiperf", "callgrind", "google_benchmark", "guidellm", "hyperfine", "llama_bench", "pyperf",
        "pytest_benchmark", "sglang_bench", "triton_table", "vllm_bench",
    }
)  # fmt: skip
"""Formats of which one file is one or more whole runs of a benchmark, so that several are more of the same."""

LEAST_TURNS = 3
"""Files a side."""
LEAST_APART_S = 0.05
"""Between two files that runs wrote; a copy or a checkout writes them at once."""

_NUMBER = re.compile(r"\d+")
_CONDITION = re.compile(
    r"(?:rank|gpu|device|node|shard|worker|threads?|batch|bs|tp|pp|dp|concurrency|qps|rate|size|len)[-_=]?\d", re.I
)
"""Numbers that say under which condition, or of which part, a file was measured."""


class Matched(NamedTuple):
    """Files by path."""

    probes: dict[Path, str]
    """Under which probe each file is compared, of those that have a counterpart."""
    pooled: frozenset[Path]
    """Files that are one of several repetitions."""
    in_turn: frozenset[Path]
    """Files of repetitions that were written by turns, one of each side in every two."""


def match(before: Sequence[Entry], after: Sequence[Entry]) -> Matched:
    """What is compared with what. Files of a run directory belong together by their probe. Others need the same
    format and the same name; names of a benchmark's files that differ only in a running number (`run1`, `run2`) or
    that have no counterpart at all are repetitions, all of a side together. When a format has a single file left on
    each side, those belong together."""
    probes: dict[Path, str] = {}
    pooled: set[Path] = set()
    in_turn: set[Path] = set()
    for format in dict.fromkeys(e.format.name for e in before):
        rest = [[e for e in side if e.format.name == format] for side in (before, after)]
        groups: list[tuple[str, list[Entry], list[Entry]]] = []
        if format in POOLED:
            for stem in dict.fromkeys(_stem(e) for e in rest[0] if not e.recorded):
                of_stem = [[e for e in side if not e.recorded and _stem(e) == stem] for side in rest]
                mine, theirs = of_stem
                if mine and theirs and len(mine) + len(theirs) > 2 and _repeated(mine, theirs):
                    groups.append((stem, mine, theirs))
        rest = _without(rest, groups)
        for probe in dict.fromkeys(e.probe for e in rest[0]):
            mine, theirs = ([e for e in side if e.probe == probe] for side in rest)
            if mine and theirs:
                probes |= dict.fromkeys((e.path for e in (*mine, *theirs)), probe)
        rest = [[e for e in side if e.path not in probes] for side in _without(rest, groups)]
        if format in POOLED:
            groups += _left(format, rest)
        elif len(rest[0]) == len(rest[1]) == 1:
            groups.append((format, rest[0], rest[1]))
        for probe, mine, theirs in groups:
            probes |= dict.fromkeys((e.path for e in (*mine, *theirs)), probe)
            pooled |= {e.path for side in (mine, theirs) if len(side) > 1 for e in side}
            if _by_turns(mine, theirs):
                in_turn |= {e.path for e in (*mine, *theirs)}
    return Matched(probes, frozenset(pooled), frozenset(in_turn))


def renumbered(
    observations: Iterable[Observation], units: dict[tuple[str, str], int], in_turn: bool
) -> list[Observation]:
    """The same with processes of their own: numbered on from those that `units` counts by probe and arm, which is
    brought forward."""
    found = list(observations)
    measured = [o for o in found if isinstance(o, Measurement)]
    first = {of: units.get(of, 0) for of in {(m.probe, m.arm) for m in measured}}
    for m in measured:
        units[m.probe, m.arm] = max(units.get((m.probe, m.arm), 0), first[m.probe, m.arm] + m.pair + 1)
    return [
        o.model_copy(update={"pair": first[o.probe, o.arm] + o.pair, "paired": False, "in_turn": in_turn})
        if isinstance(o, Measurement)
        else o
        for o in found
    ]


def one_case(observations: Sequence[Observation]) -> list[Observation]:
    """Where a probe has one benchmark in each arm and only its name differs (`./old`, `./new`): the two as one case
    that names both. Different loads, shapes or other parameters stay apart."""
    cases: dict[str, dict[str, dict[tuple[object, ...], Measurement]]] = {}
    for o in observations:
        if isinstance(o, Measurement) and "function" not in o.case:
            cases.setdefault(o.probe, {}).setdefault(o.arm, {}).setdefault(tuple(sorted(o.case.items())), o)
    names: dict[str, str] = {}
    for probe, arms in cases.items():
        if len(arms) == 2 and all(len(of) == 1 for of in arms.values()):
            (a,), (b,) = (tuple(m.case for m in arms[arm].values()) for arm in ("baseline", "candidate"))
            if _unnamed(a) == _unnamed(b) and "benchmark" in a and "benchmark" in b and a != b:
                names[probe] = f"{a['benchmark']} -> {b['benchmark']}"
    return [
        o.model_copy(update={"case": {**o.case, "benchmark": names[o.probe]}})
        if isinstance(o, Measurement) and o.probe in names
        else o
        for o in observations
    ]


def two_commands(observations: Sequence[Observation], probes: Collection[str]) -> list[Observation]:
    """Where one of these probes has exactly two benchmarks that differ in nothing but their names, and no second
    arm: the first as baseline, the second as candidate, under one name."""
    found = list(observations)
    for probe in probes:
        mine = [o for o in found if isinstance(o, Measurement) and o.probe == probe]
        cases = list({tuple(sorted(m.case.items())): m.case for m in mine}.values())
        if len({m.arm for m in mine}) != 1 or len(cases) != 2 or _unnamed(cases[0]) != _unnamed(cases[1]):
            continue
        names = [case.get("benchmark") for case in cases]
        arms = {names[0]: "baseline", names[1]: "candidate"}
        found = [
            o.model_copy(update={
                "arm": arms[o.case["benchmark"]], "case": {**o.case, "benchmark": f"{names[0]} -> {names[1]}"}
            })
            if isinstance(o, Measurement) and o.probe == probe
            else o
            for o in found
        ]  # fmt: skip
    return found


def _unnamed(case: Mapping[str, object]) -> dict[str, object]:
    return {k: v for k, v in case.items() if k != "benchmark"}


def _stem(entry: Entry) -> str:
    return _NUMBER.sub("*", entry.name)


def _repeated(mine: Sequence[Entry], theirs: Sequence[Entry]) -> bool:
    """Whether files whose names differ only in numbers are repetitions rather than conditions."""
    if any(_CONDITION.search(e.name) for e in (*mine, *theirs)):
        return False
    names = [{e.name for e in side} for side in (mine, theirs)]
    return not names[0] & names[1] or any(_running(of) for of in names)


def _by_turns(mine: Sequence[Entry], theirs: Sequence[Entry]) -> bool:
    """Whether the files were written by turns, A B B A or A B A B, by runs and not by a copy of them."""
    if len(mine) != len(theirs) or len(mine) < LEAST_TURNS:
        return False
    written = sorted([*((e.written_s, 0) for e in mine), *((e.written_s, 1) for e in theirs)])
    apart = all(b[0] - a[0] >= LEAST_APART_S for a, b in pairwise(written))
    return apart and all({a[1], b[1]} == {0, 1} for a, b in zip(written[::2], written[1::2], strict=True))


def _running(names: set[str]) -> bool:
    """Whether one number in the names runs on from 0 or 1, and the others stay."""
    columns = [set(of) for of in zip(*(map(int, _NUMBER.findall(name)) for name in names), strict=True)]
    moving = [of for of in columns if len(of) > 1]
    return len(moving) == 1 and len(names) > 1 and sorted(moving[0]) in (
        list(range(len(names))), list(range(1, len(names) + 1))
    )  # fmt: skip


def _without(sides: Sequence[list[Entry]], groups: Sequence[tuple[str, list[Entry], list[Entry]]]) -> list[list[Entry]]:
    taken = {e.path for _, mine, theirs in groups for e in (*mine, *theirs)}
    return [[e for e in side if e.path not in taken] for side in sides]


def _left(format: str, rest: Sequence[Sequence[Entry]]) -> list[tuple[str, list[Entry], list[Entry]]]:
    """Files of a benchmark without a counterpart by name: one a side belong together, and so do more of them with
    one ending (a tool may write one run as JSON and as CSV)."""
    if len(rest[0]) == len(rest[1]) == 1:
        return [(format, list(rest[0]), list(rest[1]))]
    groups = []
    for suffix in dict.fromkeys(PurePosixPath(e.name).suffix for e in rest[0]):
        mine, theirs = ([e for e in side if not e.recorded and PurePosixPath(e.name).suffix == suffix] for side in rest)
        if mine and theirs and not any(_CONDITION.search(e.name) for e in (*mine, *theirs)):
            groups.append((format if len({PurePosixPath(e.name).suffix for e in rest[0]}) == 1 else format + suffix,
                           mine, theirs))  # fmt: skip
    return groups
