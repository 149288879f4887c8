"""A campaign's own git repository: check out, apply a change, and say what it touched.

The repository starts with one commit that holds the target's tree and no history, so a candidate can't find the
answer in the past or the future of the upstream project. git runs with no configuration, hooks or attributes of
the user's or the candidate's.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from sandboxes.sandbox import SandboxError

MAX_PATCH_BYTES = 1 << 20
FORBIDDEN_NAMES = frozenset({"conftest.py", ".gitattributes", ".gitmodules", "sitecustomize.py", "usercustomize.py"})
FORBIDDEN_PARTS = frozenset({".git", ".github", ".gitlab", ".circleci", ".ci", ".githooks"})
_DATE = "2000-01-01T00:00:00Z"


class WorkspaceError(SandboxError):
    """git failed on the campaign's repository."""


class SourceDirty(Exception):
    """The target's directory has uncommitted changes; what is measured must be what a commit says."""

    def __init__(self, directory: Path, files: Sequence[str]) -> None:
        listed = "\n".join(f"  {f}" for f in files[:10]) + ("\n  ..." if len(files) > 10 else "")
        super().__init__(
            f"{directory} has uncommitted changes; commit or stash them, then run again:\n{listed}"
        )


class PatchRefused(Exception):
    """The change does not apply or may not be made."""


class ChangedFile(NamedTuple):
    """One file that a change touches."""

    path: str
    status: str
    """git's letter: A added, M modified, D deleted, T type changed."""
    old_mode: str
    new_mode: str


def _git(directory: Path, *args: str, stdin: bytes = b"", env: dict[str, str] | None = None) -> bytes:
    """Run git without anyone's configuration. Raises WorkspaceError with what git said."""
    clean = {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": "/nonexistent", "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_TERMINAL_PROMPT": "0",
        "GIT_AUTHOR_NAME": "infra-agent", "GIT_AUTHOR_EMAIL": "infra-agent@localhost",
        "GIT_COMMITTER_NAME": "infra-agent", "GIT_COMMITTER_EMAIL": "infra-agent@localhost",
        "GIT_AUTHOR_DATE": _DATE, "GIT_COMMITTER_DATE": _DATE, **(env or {}),
    }  # fmt: skip
    fixed = ("core.hooksPath=/dev/null", "core.autocrlf=false", "safe.directory=*", "gc.auto=0", "core.quotePath=false")
    options = [part for setting in fixed for part in ("-c", setting)]
    try:
        done = subprocess.run(
            ["git", *options, "-C", str(directory), *args], input=stdin, capture_output=True, env=clean, check=False
        )
    except FileNotFoundError:
        raise WorkspaceError("git is not installed; install it (Debian: apt-get install git)") from None
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip()
        raise WorkspaceError(f"git {' '.join(args)[:80]} failed: {said[-600:]}")
    return done.stdout


class Repository:
    """The campaign's bare repository."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, source: Path, hidden: Sequence[str] = ()) -> tuple[Repository, str, str]:
        """Make the repository from the target in `source`, without its hidden paths.

        Returns it, its first commit, and where the source stood: the commit of the user's repository, or
        `tree:HASH` for a directory under no version control. Raises SourceDirty.
        """
        files, origin = _source_files(source)
        path.mkdir(parents=True, exist_ok=True)
        _git(path, "init", "--quiet", "--bare", ".")
        with tempfile.TemporaryDirectory(prefix="infra-agent-") as staged:
            for name in files:
                if matches(PurePosixPath(name), hidden):
                    continue
                target = Path(staged) / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source / name, target, follow_symlinks=False)
            repository = cls(path)
            base = repository._commit(Path(staged), parent=None, message="the target as it was")
        return repository, base, origin or f"tree:{repository.tree(base)}"

    def checkout(self, commit: str, destination: Path) -> None:
        """Write the files of a commit into `destination`, without any .git."""
        archive = _git(self.path, "archive", "--format=tar", commit)
        destination.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(destination, filter="data")

    def apply(self, parent: str, patch: str, edit: Callable[[Path], None]) -> str:
        """Apply `patch` to `parent`, let `edit` change the tree further, and commit. The same change on the same
        parent gives the same commit. Raises PatchRefused with git's reason."""
        if len(patch.encode()) > MAX_PATCH_BYTES:
            raise PatchRefused(f"the patch is larger than {MAX_PATCH_BYTES >> 10} KiB")
        with tempfile.TemporaryDirectory(prefix="infra-agent-") as directory:
            tree = Path(directory) / "tree"
            self.checkout(parent, tree)
            if patch.strip():
                self._apply_patch(tree, patch)
            edit(tree)
            return self._commit(tree, parent, "a change")

    def _apply_patch(self, tree: Path, patch: str) -> None:
        text = patch if patch.endswith("\n") else patch + "\n"
        _git(tree, "init", "--quiet", ".")
        try:
            _git(tree, "apply", "--whitespace=nowarn", "-", stdin=text.encode())
        except WorkspaceError as error:
            raise PatchRefused(f"the patch does not apply: {error}") from error
        finally:
            shutil.rmtree(tree / ".git")

    def _commit(self, tree: Path, parent: str | None, message: str) -> str:
        with tempfile.TemporaryDirectory(prefix="infra-agent-") as scratch:
            env = {"GIT_INDEX_FILE": str(Path(scratch) / "index"), "GIT_DIR": str(self.path)}
            work = ("--work-tree", str(tree))
            _git(tree, *work, "add", "--all", "--force", ".", env=env)
            root = _git(tree, *work, "write-tree", env=env).decode().strip()
        parents = ("-p", parent) if parent else ()
        commit = _git(self.path, "commit-tree", root, *parents, "-m", message).decode().strip()
        _git(self.path, "update-ref", f"refs/infra-agent/{commit}", commit)  # keeps it from being pruned
        return commit

    def tree(self, commit: str) -> str:
        """The tree hash of a commit: equal trees are equal candidates, however they came about."""
        return _git(self.path, "rev-parse", f"{commit}^{{tree}}").decode().strip()

    def diff(self, before: str, after: str) -> str:
        """The unified diff between two commits."""
        return _git(self.path, "diff", "--no-ext-diff", "--no-textconv", before, after).decode("utf-8", "replace")

    def changed(self, before: str, after: str) -> list[ChangedFile]:
        """The files that differ between two commits."""
        raw = _git(self.path, "diff", "--raw", "--no-renames", "-z", before, after).decode("utf-8", "replace")
        parts = raw.split("\0")
        found = []
        for meta, path in zip(parts[0::2], parts[1::2], strict=False):
            old_mode, new_mode, _, _, status = meta.lstrip(":").split()
            found.append(ChangedFile(path, status[0], old_mode, new_mode))
        return found


def _source_files(source: Path) -> tuple[list[str], str]:
    """The target's files, and the user's commit if it is under git. Raises SourceDirty, WorkspaceError."""
    if not source.is_dir():
        raise WorkspaceError(f"{source} is not a directory")
    try:
        _git(source, "rev-parse", "--is-inside-work-tree")
        commit = _git(source, "rev-parse", "HEAD").decode().strip()
        tracked = [f for f in _git(source, "ls-files", "-z", ".").decode().split("\0") if f]
    except WorkspaceError:
        commit, tracked = "", []
    if not tracked:
        paths = sorted(p for p in source.rglob("*") if p.is_file() and not p.is_symlink())
        ignored = {"__pycache__", ".git"}
        names = [str(p.relative_to(source)) for p in paths if not ignored & set(p.relative_to(source).parts)]
        return names, ""
    status = _git(source, "status", "--porcelain", "-z", "--no-renames", ".").decode().split("\0")
    if dirty := [line for line in status if line.strip()]:
        raise SourceDirty(source, dirty)
    return [f for f in tracked if (source / f).is_file()], commit


def protect(changes: Sequence[ChangedFile], editable: Sequence[str], protected: Sequence[str]) -> str | None:
    """Why a change may not be made, or None: the gate before any sandbox."""
    if not changes:
        return "the change changes nothing"
    for change in changes:
        path = PurePosixPath(change.path)
        if change.new_mode in ("120000", "160000"):
            return f"{change.path}: a change may not add symbolic links or submodules"
        if path.name in FORBIDDEN_NAMES or FORBIDDEN_PARTS & set(path.parts):
            return f"{change.path}: hooks, CI files, conftest.py and git attributes are never editable"
        if change.new_mode == "100755" and change.old_mode != "100755":
            return f"{change.path}: a change may not make a file executable"
        if matches(path, protected):
            return f"{change.path} is protected by the target"
        if not matches(path, editable):
            return f"{change.path} is not editable; the target allows: {', '.join(editable)}"
    return None


def matches(path: PurePosixPath, patterns: Sequence[str]) -> bool:
    """Whether a path is one of the patterns, lies below one, or matches one as a glob of the same depth."""
    for pattern in patterns:
        wanted = PurePosixPath(pattern)
        if path == wanted or wanted in path.parents:
            return True
        if len(wanted.parts) == len(path.parts) and path.match(pattern):
            return True
    return False
