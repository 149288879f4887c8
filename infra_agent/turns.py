"""Who may use the machine: correctness work side by side, timed work alone.

A timing taken while a neighbour compiles measures the neighbour, and the clock is in this process: a neighbour that
only parses a file delays it. So whoever works beside others shares the machine in all that it does, and gives its
share back while it waits to be alone.
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
        self._mine = threading.local()

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Beside others that share."""
        self._enter()
        try:
            yield
        finally:
            self._leave()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """With nobody else. Inside of `shared`, the share is given back meanwhile."""
        is_sharing = getattr(self._mine, "shares", False)
        with self._changed:
            self._waiting += 1
        if is_sharing:
            self._leave()
        try:
            with self._changed:
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
        finally:
            if is_sharing:
                self._enter()

    def _enter(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not (self._alone or self._waiting))
            self._sharing += 1
        self._mine.shares = True

    def _leave(self) -> None:
        self._mine.shares = False
        with self._changed:
            self._sharing -= 1
            self._changed.notify_all()
