"""Files of a directory that a candidate may write to, without ever being led out of it.

A candidate can put links and pipes anywhere in its tree and change them at any moment. So each part of a
path is opened relative to the one before and no link is followed at all.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath


@contextlib.contextmanager
def _directory(root: Path, parts: tuple[str, ...], make_as: tuple[int, int] | None = None) -> Iterator[int]:
    """Open a directory below `root`; with an owner, make what is missing."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    fd = os.open(root, flags)
    try:
        for part in parts:
            if make_as is not None:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, 0o755, dir_fd=fd)
                    os.chown(part, *make_as, dir_fd=fd, follow_symlinks=False)
            inner = os.open(part, flags | os.O_NOFOLLOW, dir_fd=fd)
            os.close(fd)
            fd = inner
        yield fd
    finally:
        os.close(fd)


def _parts(inside: PurePosixPath) -> tuple[tuple[str, ...], str]:
    if inside.is_absolute() or not inside.parts or ".." in inside.parts:
        raise FileNotFoundError(f"not a path below the sandbox's directory: {inside}")
    return inside.parts[:-1], inside.name


def read_below(root: Path, inside: PurePosixPath, limit_bytes: int) -> bytes:
    """Read a regular file below `root`. Raises FileNotFoundError if it is absent, reached through a link, not
    regular or larger than the limit."""
    parents, name = _parts(inside)
    try:
        with _directory(root, parents) as directory_fd:
            # Opening a pipe without O_NONBLOCK would wait for a writer.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            fd = os.open(name, flags, dir_fd=directory_fd)
    except OSError as error:
        raise FileNotFoundError(f"cannot be read: {inside} ({error.strerror})") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise FileNotFoundError(f"not a regular file: {inside}")
    with os.fdopen(fd, "rb") as file:
        data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise FileNotFoundError(f"larger than {limit_bytes} bytes: {inside}")
    return data


def write_below(root: Path, inside: PurePosixPath, data: bytes, owner: tuple[int, int]) -> None:
    """Write a file below `root` in one step, owned by uid and gid, replacing what has its name. Raises
    OSError if something in the way cannot be replaced."""
    parents, name = _parts(inside)
    with _directory(root, parents, make_as=owner) as directory_fd:
        # A new file under another name, then renamed: what the candidate put under the name is never opened.
        new = f".{secrets.token_hex(8)}.new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(new, flags, 0o644, dir_fd=directory_fd)
        try:
            with os.fdopen(fd, "wb") as file:
                os.fchown(fd, *owner)
                file.write(data)
            os.rename(new, name, src_dir_fd=directory_fd, dst_dir_fd=directory_fd)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(new, dir_fd=directory_fd)
            raise
