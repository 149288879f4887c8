"""The user's directory of a target: which of its files are taken over, and why it may be refused."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from sandboxes.files import open_regular
from sandboxes.git import WorkspaceError, run_git


class SourceRefused(Exception):
    """The target's directory can't be taken over as it is."""


class SourceDirty(SourceRefused):
    """The target's directory has uncommitted changes; what is measured must be what a commit says."""

    def __init__(self, directory: Path, files: Sequence[str]) -> None:
        listed = "\n".join(f"  {f}" for f in files[:10]) + ("\n  ..." if len(files) > 10 else "")
        super().__init__(f"{directory} has uncommitted changes; commit or stash them, then run again:\n{listed}")


def source_files(source: Path) -> tuple[list[str], str]:
    """The target's files and links, and the user's commit if it is under git. Raises SourceRefused, GitMissing."""
    if not source.is_dir():
        raise SourceRefused(f"{source} is not a directory")
    try:
        tracked, commit = _tracked_files(source)
    except WorkspaceError as error:
        raise SourceRefused(f"{source}: mend this git repository, or give a copy without .git: {error}") from error
    if not tracked:
        raise SourceRefused(f"{source} holds no files")
    for name in tracked:
        path = source / name
        if path.is_symlink():
            _refuse_outside(source, path)
        elif path.is_dir():
            raise SourceRefused(f"{path} is a submodule that is not checked out; run `git submodule update --init`")
    return tracked, commit


def _tracked_files(source: Path) -> tuple[list[str], str]:
    """What git tracks below `source` and its commit; where git tracks nothing, all files and no commit."""
    try:
        commit = run_git(source, "rev-parse", "--verify", "HEAD").decode().strip()
        listed = run_git(source, "ls-files", "--recurse-submodules", "-z", ".")
    except WorkspaceError as error:
        if not any(reason in str(error) for reason in ("not a git repository", "Needed a single revision")):
            raise
        listed = b""
    tracked = [os.fsdecode(name) for name in listed.split(b"\0") if name]
    if not tracked:
        return sorted(_all_files(source)), ""
    status = run_git(source, "status", "--porcelain", "-z", "--no-renames", ".").decode("utf-8", "replace")
    if dirty := [line for line in status.split("\0") if line.strip()]:
        raise SourceDirty(source, dirty)
    return tracked, commit


def _all_files(source: Path) -> Iterator[str]:
    """Everything below `source` that is no directory. Raises SourceRefused for a directory that can't be read."""

    def refuse(error: OSError) -> None:
        raise SourceRefused(f"{error.filename} can't be read ({error.strerror}); change its permissions")

    for directory, subdirectories, files in os.walk(source, onerror=refuse):
        subdirectories[:] = [name for name in subdirectories if name not in ("__pycache__", ".git")]
        links = [name for name in subdirectories if Path(directory, name).is_symlink()]
        yield from (str(Path(directory, name).relative_to(source)) for name in (*files, *links) if name != ".git")


def _refuse_outside(source: Path, link: Path) -> None:
    """A link that leads out of the target would lead elsewhere in every copy of it."""
    leads = os.path.normpath(link.parent / link.readlink())
    if link.readlink().is_absolute() or not Path(leads).is_relative_to(os.path.normpath(source)):
        raise SourceRefused(
            f"{link} is a symbolic link that leads out of the target, to {link.readlink()}; replace it by a file or "
            "a relative link inside the target"
        )


def copy_file(source: Path, target: Path) -> None:
    """Copy one file or link of the target. Raises SourceRefused if it can't be read, OSError if it can't be written."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        target.symlink_to(source.readlink())
        return
    try:
        file = open_regular(source)
    except OSError as error:
        raise SourceRefused(
            f"{source} can't be read ({error.strerror}); mend it, remove it, or name it under `hidden` in target.toml"
        ) from error
    with file, target.open("wb") as copy:
        shutil.copyfileobj(file, copy)
        target.chmod(os.fstat(file.fileno()).st_mode & 0o777 | 0o600)
