"""Locks between processes on one machine, held by `flock`: they vanish with the process that holds them."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from infra_agent.errors import StoreUnavailable, WrongUse
from infra_agent.store.failures import refused_file

_POLL_S = 0.05


@contextmanager
def campaign_lock(directory: Path, campaign_id: str) -> Iterator[None]:
    """Let one process at a time run a campaign. `directory` is made if absent; a small lock file stays in it.

    The lock does not reach other machines, and a forked child shares it until that child ends.

    Raises:
        WrongUse: another process (or this one) runs the campaign; the message names its pid.
        StoreUnavailable: the lock file can't be made.
    """
    with _lock_file(directory / f"{campaign_id}.lock") as file:
        if not _take(file) and not _take_soon(file):
            holder = file.read().strip()
            who = f"process {holder}" if holder else "another process"
            raise WrongUse(f"campaign {campaign_id} is being run by {who}; wait for it, or end it first")
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def is_locked(directory: Path, campaign_id: str) -> bool:
    """Whether a process of this machine runs the campaign."""
    try:
        with (directory / f"{campaign_id}.lock").open(encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    except OSError as error:
        raise refused_file(error, str(directory)) from error
    return False


@contextmanager
def waiting_lock(path: Path, *, timeout_s: float) -> Iterator[None]:
    """Hold the lock file at `path`, waiting for it at most `timeout_s` seconds.

    Raises StoreUnavailable when it can't be made or stays held.
    """
    deadline = time.monotonic() + timeout_s
    with _lock_file(path) as file:
        while not _take(file):
            if time.monotonic() > deadline:
                who = f"another process has held this lock for {timeout_s:.0f} s"
                raise StoreUnavailable(f"{path}: {who}; wait for it or end it")
            time.sleep(_POLL_S)
        yield


@contextmanager
def _lock_file(path: Path) -> Iterator[IO[str]]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), "r+", encoding="utf-8")
    except OSError as error:
        raise refused_file(error, str(path)) from error
    with file:
        yield file


def _take_soon(file: IO[str]) -> bool:
    """Try once more: whoever asks `is_locked` holds the lock for a moment."""
    time.sleep(_POLL_S)
    return _take(file)


def _take(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
