"""A bounded, read-only view of the parent's tree for a planner: nothing outside, no links, nothing hidden."""

from __future__ import annotations

import os
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from infra_agent.target import TargetSpec
from sandboxes.workspace import matches

MAX_FILE_BYTES = 1 << 20
MAX_FILES = 20_000
"""A walk ends after so many files."""


class NotReadable(Exception):
    """A path that a planner may not or can't read; the message says why."""


class Tree:
    """The files of a checkout, by their path relative to its root."""

    def __init__(self, root: Path, spec: TargetSpec) -> None:
        self.root = root
        self._hidden = spec.hidden

    def path(self, name: str) -> PurePosixPath:
        """A path inside the tree. Raises NotReadable for one that leads outside, through a link or to what is
        hidden. It need not exist."""
        path = PurePosixPath(name)
        if not name or "\0" in name or path.is_absolute() or ".." in path.parts or path == PurePosixPath("."):
            raise NotReadable(f"{name!r} is no path inside the target; give one relative to its root")
        if ".git" in path.parts or matches(path, self._hidden):
            raise NotReadable(f"{name!r} is not shown to planners")
        place = self.root
        for part in path.parts:
            place = place / part
            if place.is_symlink():
                raise NotReadable(f"{name!r} leads through a symbolic link, which is never followed")
        return path

    def text(self, name: str) -> str:
        """A file's text. Raises NotReadable if it is missing, too large or not UTF-8."""
        place = self.root / self.path(name)
        if not place.is_file():
            raise NotReadable(f"{name!r} is no file of the target; list_files shows those that there are")
        if (size := place.stat().st_size) > MAX_FILE_BYTES:
            raise NotReadable(f"{name!r} is too large to read ({size} bytes)")
        try:
            return place.read_bytes().decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise NotReadable(f"{name!r} can't be read as text") from error

    def files(self, pattern: str = "*") -> Iterator[PurePosixPath]:
        """The files whose path or name matches a glob, in order; `*` also crosses directories."""
        seen = 0
        for directory, folders, names in os.walk(self.root):
            folders[:] = sorted(f for f in folders if f != ".git" and not (Path(directory) / f).is_symlink())
            for name in sorted(names):
                if (seen := seen + 1) > MAX_FILES:
                    return
                place = Path(directory) / name
                path = PurePosixPath(place.relative_to(self.root).as_posix())
                fits = fnmatchcase(str(path), pattern.replace("**/", "*")) or fnmatchcase(name, pattern)
                if fits and place.is_file() and not place.is_symlink() and not matches(path, self._hidden):
                    yield path
