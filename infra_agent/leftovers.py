"""The temporary files of a run: all below one directory, noted in the campaign before it is made.

So a resume finds and removes what a killed run left behind, processes included: a sandbox dies with the run that made
it, but not if that is killed within the milliseconds that it takes to set the sandbox up. The directory lies outside of
the home, because paths of Unix sockets end at about 100 bytes.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from infra_agent.errors import PlatformFailed

NOTE = "temporary"
"""A link in the campaign's directory to where its temporary files lie."""


@contextmanager
def temporary_files(campaign: Path) -> Iterator[Path]:
    """Keep all that this process makes with `tempfile` below one directory, removed at the end; an earlier run's
    is removed first, and its processes ended. `campaign` is the campaign's directory, whose lock the caller holds.

    Raises PlatformFailed when no directory can be made.
    """
    note = campaign / NOTE
    place = Path(tempfile.gettempdir()) / f"ia-{secrets.token_hex(4)}"
    try:
        _remove(note)
        note.symlink_to(place)
        place.mkdir()
        place.chmod(0o755)  # sandboxes run as users of their own
    except OSError as error:
        raise PlatformFailed(f"{place} can't be made ({error.strerror}); set TMPDIR to a writable directory") from error
    before, tempfile.tempdir = tempfile.tempdir, str(place)
    try:
        yield place
    finally:
        tempfile.tempdir = before
        _remove(note)


def _remove(note: Path) -> None:
    if not note.is_symlink():
        return
    place = note.readlink()
    _end_processes(place)
    with suppress(OSError):
        if place.lstat().st_uid == os.geteuid():  # the name may have been given to someone else's by now
            shutil.rmtree(place, ignore_errors=True)
    note.unlink()


def _end_processes(place: Path) -> None:
    """Kill what still runs in a sandbox of the run: its /tree or /scratch is mounted from below `place`."""
    # As the kernel tells it, a mount's source begins at its file system's root, so only its name is sure.
    below = f"/{place.name}/".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # gone by now, or not ours
            handle = os.pidfd_open(int(process.name))
            try:
                if any(below in line.split(b" ")[3] for line in (process / "mountinfo").read_bytes().splitlines()):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            finally:
                os.close(handle)
