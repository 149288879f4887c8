"""Locks between processes on one machine, held by `flock`: they vanish with the process that holds them."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from infra_agent.errors import StoreUnavailable, WrongUse
from infra_agent.store.failures import refused_file

_POLL_S = 0.05
_PID_BYTES = 20


@contextmanager
def campaign_lock(directory: Path, campaign_id: str) -> Iterator[None]:
    """Let one process at a time run a campaign. `directory` is made if absent; a small lock file stays in it.

    The lock does not reach other machines, and a forked child shares it until that child ends.

    Raises:
        WrongUse: another process (or this one) runs the campaign; the message names its pid.
        StoreUnavailable: the lock file can't be made.
    """
    with _lock_file(directory / f"{campaign_id}.lock") as descriptor:
        if not _take(descriptor) and not _take_soon(descriptor):
            holder = os.pread(descriptor, _PID_BYTES, 0).decode("ascii", "replace").strip()
            who = f"process {holder}" if holder else "another process"
            raise WrongUse(f"campaign {campaign_id} is being run by {who}; wait for it, or end it first")
        with suppress(OSError):  # the pid is a courtesy, and the lock holds on a full disk, too
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        try:
            yield
        finally:
            with suppress(OSError):
                os.ftruncate(descriptor, 0)


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
    with _lock_file(path) as descriptor:
        while not _take(descriptor):
            if time.monotonic() > deadline:
                who = f"another process has held this lock for {timeout_s:.0f} s"
                raise StoreUnavailable(f"{path}: {who}; wait for it or end it")
            time.sleep(_POLL_S)
        yield


@contextmanager
def _lock_file(path: Path) -> Iterator[int]:
    """The lock file's descriptor; the file and its directory are made if absent."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
    except OSError as error:
        raise refused_file(error, str(path)) from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _take_soon(descriptor: int) -> bool:
    """Try once more: whoever asks `is_locked` holds the lock for a moment."""
    time.sleep(_POLL_S)
    return _take(descriptor)


def _take(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise refused_file(error, "a lock file") from error
    return True
