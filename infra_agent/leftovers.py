"""The temporary files of a run: all below one directory, noted in the campaign before it is made.

So a resume finds and removes what a killed run left behind. The directory lies outside of the home, because paths of
Unix sockets end at about 100 bytes.
"""

from __future__ import annotations

import os
import secrets
import shutil
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
    is removed first. `campaign` is the campaign's directory, whose lock the caller must hold.

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
    with suppress(OSError):
        if place.lstat().st_uid == os.geteuid():  # the name may have been given to someone else's by now
            shutil.rmtree(place, ignore_errors=True)
    note.unlink()
