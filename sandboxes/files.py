"""Files that others may have put there: read without waiting for a pipe or being led elsewhere, and what to do when
the system refuses.

A candidate can put links and pipes anywhere in its tree and change them at any moment. So below a directory that
it may write to, each part of a path is opened relative to the one before and no link is followed at all.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO

_DENIED = "permission denied; choose a directory that you may write to, or change its permissions"
_ADVICE = {
    errno.ENOSPC: "the disk is full; free some space, then go on",
    errno.EDQUOT: "your disk quota is used up; free some space, then go on",
    errno.EACCES: _DENIED,
    errno.EPERM: _DENIED,
    errno.EROFS: "the file system is read-only; choose a directory that you may write to",
    errno.ENOTDIR: "a part of this path is a file, not a directory; choose another path",
    errno.EEXIST: "a file is in the way; move it away, or choose another path",
    errno.EISDIR: "a directory is in the way; move it away, or choose another path",
    errno.ENOENT: "it is not there and can't be made; check the path",
    errno.ELOOP: "it is a symbolic link that may not be followed; give the file itself",
    errno.ENAMETOOLONG: "the path is too long; choose a shorter one",
    errno.EIO: "reading or writing failed; check that its disk is healthy",
    errno.EMFILE: "too many files are open; raise the limit: ulimit -n 4096",
    errno.ENFILE: "the machine has too many files open; end other work",
    errno.ENOMEM: "the machine is out of memory; end other work",
    errno.EAGAIN: "the machine has too many processes; end other work, or raise the limit: ulimit -u",
    errno.ESTALE: "its network file system lost it; use a local disk",
}


def advice(error: OSError) -> str | None:
    """What to do about a file, directory or machine that refuses, or None where nothing general can be said."""
    return _ADVICE.get(error.errno or 0)


def advice_on(said: str) -> str | None:
    """The same for what another program said, where it is not the program that was wrong about a path."""
    return next((w for number, w in _ADVICE.items() if number != errno.ENOENT and os.strerror(number) in said), None)


def refusal(error: OSError, place: str | Path) -> str:
    """A message for people: the place, what to do and what the system said."""
    what = advice(error) or "it can't be used; choose another path"
    return f"{place}: {what} ({error.strerror or error})"


def open_regular(path: Path, *, follow_link: bool = False) -> BinaryIO:
    """Open a regular file for reading: no pipe to wait for, no device without an end, and a symbolic link only if
    asked. Raises OSError, EINVAL for what is not a regular file."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow_link else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ENODEV):  # a socket, or a device that is not there
            raise _not_regular(path) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_regular(path)
    return os.fdopen(descriptor, "rb")


def _not_regular(path: Path) -> OSError:
    return OSError(errno.EINVAL, "it is not a regular file", str(path))


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
