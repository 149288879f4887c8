"""Call stacks collected from a file into the tables of Stacks: each distinct frame, thread and stack once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

import numpy as np

from feedback.readers.columns import MAX_NAMES, MAX_TRACKS, Numbering, text_of
from feedback.spans import Frame, Stacks
from sandboxes.results import ArmName

MAX_STACKS = 500_000
"""Distinct stacks that are kept; the weight of further ones is lost."""
MAX_KEPT = 20_000_000
"""Frames of all distinct stacks together."""
MAX_DEPTH = 1000
"""Frames of a stack that are kept, the outermost ones; deeper ones count for the last of them."""

_GIL = re.compile(r"(?<![a-z])gil(?![a-z])", re.IGNORECASE)


def only_gil(path: Path) -> bool:
    """Whether the file's name says that only holders of the GIL were sampled (`py-spy record --gil`); the formats
    themselves don't say."""
    return bool(_GIL.search(path.name.partition(".")[0]) or any(_GIL.fullmatch(s[1:]) for s in path.suffixes))


def cut_line(value: object) -> int | None:
    """A line number, or None for what is none."""
    return value if type(value) is int and 0 < value < 1 << 31 else None


class Table:
    """Stacks with their weights, added one by one."""

    def __init__(self) -> None:
        self.frames = Numbering(MAX_NAMES, lambda frame: frame)
        self.threads = Numbering(MAX_TRACKS, text_of)
        self.lost = 0
        self._kept = 0
        self._weights: dict[tuple[int, tuple[int, ...]], float] = {}

    def __len__(self) -> int:
        return len(self._weights)

    def add(self, thread: str, frames: Iterable[int], weight: float) -> None:
        """Add weight to a stack, given by the numbers of its frames, outermost first."""
        key = (self.threads[thread], tuple(frames)[:MAX_DEPTH])
        if key not in self._weights:
            self._kept += len(key[1])
            if len(self._weights) >= MAX_STACKS or self._kept > MAX_KEPT:
                self.lost += 1
                return
        self._weights[key] = self._weights.get(key, 0.0) + weight

    def rename(self, name: Callable[[str], str]) -> None:
        """Give the threads other names; those of one name become one thread."""
        before, self.threads = tuple(self.threads.distinct), Numbering(MAX_TRACKS, text_of)
        numbers = [self.threads[name(thread)] for thread in before]
        weights: dict[tuple[int, tuple[int, ...]], float] = {}
        for (thread, stack), weight in self._weights.items():
            key = (numbers[thread], stack)
            weights[key] = weights.get(key, 0.0) + weight
        self._weights = weights

    def stacks(
        self,
        path: Path,
        probe: str,
        stage: str,
        arm: ArmName,
        unit: Literal["samples", "s", "bytes"] = "samples",
        notes: tuple[str, ...] = (),
    ) -> Stacks:
        """What was added."""
        return Stacks(
            probe=probe, file=path.name, arm=arm, stage=stage,
            frames=tuple(f if isinstance(f, Frame) else Frame(f) for f in self.frames.distinct),
            threads=tuple(self.threads.distinct),
            stacks=tuple(stack for _, stack in self._weights),
            thread=np.array([thread for thread, _ in self._weights], dtype=np.int32),
            weight=np.array(list(self._weights.values()), dtype=np.float64),
            unit=unit, only_gil=only_gil(path), lost=self.lost, notes=notes,
        )  # fmt: skip
