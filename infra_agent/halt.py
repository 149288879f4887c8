"""How experiments that run side by side are ended from outside: whoever presses Ctrl-C reaches only one thread.

What a killed sandbox says is no evidence, so nothing that was halted may be taken for a candidate's failure.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Halted(Exception):
    """The work was ended from outside; it says nothing about the candidate, and a resume does it again."""


class Halt:
    """A switch that ends what is registered with it and lets nothing new begin."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: list[Callable[[], None]] = []
        self._is_halted = False

    @contextmanager
    def ending(self, end: Callable[[], None]) -> Iterator[None]:
        """Register what ends the work of this block; `end` is called from another thread, perhaps several times."""
        with self._lock:
            self._ends.append(end)
        try:
            yield
        finally:
            with self._lock:
                self._ends.remove(end)

    def check(self) -> None:
        """Raises Halted once somebody has halted."""
        if self._is_halted:
            raise Halted

    def halt(self) -> None:
        """End everything that is registered. Call it until the work has ended: what was about to start when it was
        called the first time is ended the next time."""
        self._is_halted = True
        with self._lock:
            ends = tuple(self._ends)
        for end in ends:
            end()
