"""Differential flame graphs as data: two profiles in one tree, and its boxes at either profile's widths.

Boxes at the candidate's widths show what it spends its time on; at the baseline's widths they also show code that has
vanished, which the first picture can't.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from feedback.intervals import nest
from feedback.spans import Frame, Spans, Stacks
from sandboxes.results import ArmName

MAX_DEPTH = 512
SMALLEST = 0.001
"""Share below which a box is left out unless asked otherwise."""


@dataclass
class Node:
    """A frame below its callers, with its inclusive share of each profile, 0..1."""

    frame: Frame
    baseline: float = 0.0
    candidate: float = 0.0
    baseline_self: float = 0.0
    """Share of samples that end in this frame."""
    candidate_self: float = 0.0
    children: dict[Frame, Node] = field(default_factory=dict)

    def walk(self) -> Iterator[Node]:
        """This node and all below it."""
        ahead = [self]
        while ahead:
            node = ahead.pop()
            yield node
            ahead.extend(node.children.values())


class Box(NamedTuple):
    """A rectangle of a flame graph; widths and places are shares of the whole, 0..1."""

    frame: Frame
    depth: int
    x: float
    width: float
    change: float
    """Candidate's share minus baseline's: what colours it."""


def differential(baseline: Stacks, candidate: Stacks) -> Node:
    """Both profiles in one tree. Shares are of each profile's whole weight, so runs of any length compare."""
    root = Node(Frame("all"))
    for stacks, arm in ((baseline, "baseline"), (candidate, "candidate")):
        total = float(stacks.weight.sum())
        if total > 0:
            _add(root, stacks, arm, total)
    return root


def _add(root: Node, stacks: Stacks, arm: str, total: float) -> None:
    own = f"{arm}_self"
    for stack, weight in zip(stacks.stacks, (stacks.weight / total).tolist(), strict=True):
        node = root
        setattr(node, arm, getattr(node, arm) + weight)
        for index in stack[:MAX_DEPTH]:
            frame = stacks.frames[index]
            node = node.children.setdefault(frame, Node(frame))
            setattr(node, arm, getattr(node, arm) + weight)
        setattr(node, own, getattr(node, own) + weight)


def boxes(root: Node, widths: ArmName, smallest: float = SMALLEST) -> list[Box]:
    """The tree laid out at one arm's widths, outermost first, siblings by name. Narrower boxes than `smallest` are
    left out with all above them."""
    found = []
    ahead = [(root, 0, 0.0)]
    while ahead:
        node, depth, x = ahead.pop()
        width = node.baseline if widths == "baseline" else node.candidate
        if width <= 0 or width < smallest:
            continue
        found.append(Box(node.frame, depth, x, width, node.candidate - node.baseline))
        for child in sorted(node.children.values(), key=lambda c: (c.frame.function, c.frame.file, c.frame.line or 0)):
            ahead.append((child, depth + 1, x))
            x += child.baseline if widths == "baseline" else child.candidate
    return sorted(found, key=lambda box: (box.depth, box.x))


def of_spans(spans: Spans) -> Stacks:
    """A trace's nested intervals as call stacks with their own time in seconds, by thread."""
    nesting = nest(spans.start_ns, spans.end_ns, spans.track)
    # Paths get numbers level by level: a path is its parent's path and one more name.
    path = np.zeros(len(spans), np.int64)
    order = np.argsort(nesting.depth, kind="stable")
    levels = np.split(order, np.flatnonzero(np.diff(nesting.depth[order])) + 1) if len(order) else []
    above: list[int] = [-1]
    last: list[int] = [-1]
    n_names = max(1, len(spans.names))
    for rows in levels[:MAX_DEPTH]:
        parent = nesting.parent[rows]
        key = np.where(parent >= 0, path[parent], 0) * n_names + spans.name[rows]
        distinct, inverse = np.unique(key, return_inverse=True)
        path[rows] = inverse + len(above)
        above.extend((distinct // n_names).tolist())
        last.extend((distinct % n_names).tolist())
    for rows in levels[MAX_DEPTH:]:
        path[rows] = path[nesting.parent[rows]]
    n_tracks = max(1, len(spans.tracks))
    distinct, inverse = np.unique(path * n_tracks + spans.track, return_inverse=True)
    time_s = np.zeros(len(distinct))
    np.add.at(time_s, inverse, nesting.self_ns / 1e9)
    return Stacks(
        spans.probe, spans.file, spans.arm, spans.stage, tuple(Frame(name) for name in spans.names),
        tuple(f"{t.process}/{t.name}" for t in spans.tracks),
        tuple(_unwound(int(p), above, last) for p in (distinct // n_tracks).tolist()),
        (distinct % n_tracks).astype(np.int32), time_s, "s", False, spans.lost, spans.notes,
    )  # fmt: skip


def _unwound(path: int, above: list[int], last: list[int]) -> tuple[int, ...]:
    names = []
    while path > 0:
        names.append(last[path])
        path = above[path]
    return tuple(reversed(names))
