"""Who may use the machine: correctness work side by side, timed work alone.

A timing taken while a neighbour compiles measures the neighbour. What is timed waits until the work that runs has
ended, and what comes after it waits until the timing is done.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """A lock that many may share, or one may hold alone; whoever wants it alone goes before those who come later."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._sharing = 0
        self._alone = False
        self._waiting = 0

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Beside others that share."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._alone or self._waiting))
            self._sharing += 1
        try:
            yield
        finally:
            with self._changed:
                self._sharing -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """With nobody else."""
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: not (self._alone or self._sharing))
                self._alone = True
            finally:
                self._waiting -= 1
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._alone = False
                self._changed.notify_all()
