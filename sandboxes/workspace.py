"""A campaign's own git repository: check out, apply a change, and say what it touched.

The repository starts with one commit that holds the target's tree and no history, so a candidate can't find the
answer in the past or the future of the upstream project. No attributes of the user's or the candidate's act in it.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from sandboxes.files import refusal
from sandboxes.git import WorkspaceError, run_git
from sandboxes.source import copy_file, source_files

MAX_PATCH_BYTES = 1 << 20
FORBIDDEN_NAMES = frozenset(
    {
        "conftest.py", "sitecustomize.py", "usercustomize.py",
        ".gitattributes", ".gitmodules", ".pre-commit-config.yaml",
        ".gitlab-ci.yml", ".travis.yml", ".drone.yml", "azure-pipelines.yml", "Jenkinsfile",
    }
)  # fmt: skip
FORBIDDEN_PARTS = frozenset({".git", ".github", ".gitlab", ".circleci", ".buildkite", ".ci", ".githooks", ".husky"})
_EPOCH = 946684800
"""Every commit is of the same moment, so that the same change on the same parent is the same commit."""
CACHED_TREES = 4
CACHED_BYTES = 32 << 20
"""A larger tree is read from git anew each time."""
_PLAIN = "* -text !eol -filter -ident !working-tree-encoding !diff !merge !whitespace -export-ignore -export-subst\n"
"""Attributes that outrank those of the tree: what a target's .gitattributes says of line ends, filters and
exports must not change what is measured."""
_BINARY = re.compile(r"^(?:GIT binary patch|Binary files .* differ)$", re.MULTILINE)
_SYMLINK = "120000"
_SUBMODULE = "160000"


class RepositoryLost(Exception):
    """A campaign's repository is gone or damaged: nothing can be run on it any more."""


class PatchRefused(Exception):
    """The change does not apply or may not be made."""


Files = dict[bytes, tuple[str, bytes]]
"""Files and symbolic links of a tree: name, git mode and content."""


class ChangedFile(NamedTuple):
    """One file that a change touches."""

    path: str
    status: str
    """git's letter: A added, M modified, D deleted, T type changed."""
    old_mode: str
    new_mode: str


class Repository:
    """The campaign's bare repository. Threads may share it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._trees: dict[str, Files] = {}
        self._kept = threading.Lock()

    @classmethod
    def create(cls, path: Path, source: Path, hidden: Sequence[str] = ()) -> tuple[Repository, str, str]:
        """Make the repository from the target in `source`, without its hidden paths.

        Returns it, its first commit, and where the source stood: the commit of the user's repository, or
        `tree:HASH` for a directory under no version control. Leaves nothing behind if it fails.

        Raises SourceRefused (SourceDirty), GitMissing, WorkspaceError.
        """
        files, origin = source_files(source)
        try:
            with _writing(path):
                path.mkdir(parents=True, exist_ok=True)
                run_git(path, "init", "--quiet", "--bare", "--template=", ".")
                _ignore_attributes(path)
                with tempfile.TemporaryDirectory(prefix="infra-agent-") as staged:
                    for name in files:
                        if not matches(PurePosixPath(name), hidden):
                            copy_file(source / name, Path(staged) / name)
                    repository = cls(path)
                    base = repository._commit(Path(staged), parent=None, message="the target as it was")
                return repository, base, origin or f"tree:{repository.tree(base)}"
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise

    def checkout(self, commit: str, destination: Path) -> None:
        """Write the files of a commit into `destination`, which is absent or empty, without any .git: all of them or,
        also if this process is killed, none. Raises RepositoryLost, WorkspaceError."""
        with _writing(destination):
            files = self._files(commit)
            destination.parent.mkdir(parents=True, exist_ok=True)
            incoming = Path(tempfile.mkdtemp(dir=destination.parent, prefix=".incoming-"))
            try:
                incoming.chmod(0o755)
                # By hand: tarfile's safe extraction came only with Python 3.11.4.
                for name, (mode, data) in files.items():
                    path = incoming / os.fsdecode(name)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    if mode == "120000":
                        path.symlink_to(os.fsdecode(data))
                    else:
                        path.write_bytes(data)
                        path.chmod(0o755 if mode == "100755" else 0o644)
                incoming.rename(destination)
            except BaseException:
                shutil.rmtree(incoming, ignore_errors=True)
                raise

    def apply(self, parent: str, patch: str, edit: Callable[[Path], None]) -> str:
        """Apply `patch` to `parent`, let `edit` change the tree further, and commit. The same change on the same
        parent gives the same commit. Raises PatchRefused with git's reason."""
        if len(patch.encode()) > MAX_PATCH_BYTES:
            raise PatchRefused(f"the patch is larger than {MAX_PATCH_BYTES >> 10} KiB")
        with _writing(self.path), tempfile.TemporaryDirectory(prefix="infra-agent-") as directory:
            tree = Path(directory) / "tree"
            self.checkout(parent, tree)
            if patch.strip():
                before = _symlinks(tree)
                self._apply_patch(tree, patch)
                # Looked at before `edit`, which would write through a link.
                if added := sorted(_symlinks(tree).items() - before.items()):
                    raise PatchRefused(f"{added[0][0]}: a change may not add symbolic links")
            edit(tree)
            return self._commit(tree, parent, "a change")

    def _apply_patch(self, tree: Path, patch: str) -> None:
        if _BINARY.search(patch):
            raise PatchRefused("the patch holds binary data, which nobody can review")
        text = patch if patch.endswith("\n") else patch + "\n"
        run_git(tree, "init", "--quiet", "--template=", ".")
        _ignore_attributes(tree / ".git")
        try:
            run_git(tree, "apply", "--whitespace=nowarn", "-", stdin=text.encode())
        except WorkspaceError as error:
            raise PatchRefused(f"the patch does not apply: {str(error).replace(str(tree), 'the tree')}") from error
        finally:
            shutil.rmtree(tree / ".git")

    def _commit(self, tree: Path, parent: str | None, message: str) -> str:
        """Commit the files of `tree` as they are, in one git process: an experiment should not wait for git."""
        before = self._files(parent) if parent else {}
        after = _contents(tree)
        when = f"infra-agent <infra-agent@localhost> {_EPOCH} +0000"
        said = message.encode()
        stream = [f"mark :1\nauthor {when}\ncommitter {when}\ndata {len(said)}\n".encode() + said + b"\n"]
        stream += [f"from {parent}\n".encode()] if parent else []
        for name in sorted(before.keys() - after.keys()):
            stream.append(b"D " + _quoted(name) + b"\n")
        for name, (mode, data) in sorted(after.items()):
            if before.get(name) != (mode, data):
                head = f"M {mode} inline ".encode() + _quoted(name) + f"\ndata {len(data)}\n".encode()
                stream.append(head + data + b"\n")
        body = b"".join(stream)
        # A ref of its own keeps the commit from being pruned.
        ref = f"commit refs/infra-agent/{hashlib.sha256(body).hexdigest()[:24]}\n".encode()
        made = run_git(
            self.path, "fast-import", "--quiet", "--force", "--done", stdin=ref + body + b"get-mark :1\ndone\n"
        )
        commit = made.decode().strip()
        self._remember(commit, after)  # it is checked out next
        return commit

    def _files(self, commit: str) -> Files:
        """The files of a commit; kept, since a few commits are checked out again and again."""
        with self._kept:
            if commit in self._trees:
                files = self._trees[commit] = self._trees.pop(commit)  # the latest used is dropped last
                return files
        files = _tar_contents(self._read("archive", "--format=tar", commit))
        self._remember(commit, files)
        return files

    def _remember(self, commit: str, files: Files) -> None:
        if sum(len(data) for _, data in files.values()) > CACHED_BYTES:
            return
        with self._kept:
            self._trees.pop(commit, None)
            while len(self._trees) >= CACHED_TREES:
                self._trees.pop(next(iter(self._trees)))
            self._trees[commit] = files

    def _read(self, *args: str) -> bytes:
        """What git says of commits that it was given before: if it can't, they are gone."""
        try:
            return run_git(self.path, *args)
        except WorkspaceError as error:
            raise RepositoryLost(
                f"{self.path}: this campaign's repository is gone or damaged ({error}). The campaign can't be resumed: "
                "start anew with `infra-agent run TARGET`. What was measured is kept: `infra-agent show CAMPAIGN`"
            ) from error

    def tree(self, commit: str) -> str:
        """The tree hash of a commit: equal trees are equal candidates, however they came about."""
        return self._read("rev-parse", f"{commit}^{{tree}}").decode().strip()

    def diff(self, before: str, after: str) -> str:
        """The unified diff between two commits."""
        return self.changes(before, after)[1]

    def changed(self, before: str, after: str) -> list[ChangedFile]:
        """The files that differ between two commits."""
        return self.changes(before, after)[0]

    def changes(self, before: str, after: str) -> tuple[list[ChangedFile], str]:
        """The files that differ between two commits, and the unified diff."""
        options = ("--no-ext-diff", "--no-textconv", "--no-renames", "--raw", "--patch", "-z")
        listed, _, patch = self._read("diff", *options, before, after).partition(b"\0\0")
        parts = listed.decode("utf-8", "replace").split("\0")
        found = []
        for meta, path in zip(parts[0::2], parts[1::2], strict=False):
            old_mode, new_mode, _, _, status = meta.lstrip(":").split()
            found.append(ChangedFile(path, status[0], old_mode, new_mode))
        return found, patch.decode("utf-8", "replace")


@contextmanager
def _writing(place: Path) -> Iterator[None]:
    """Turn what the system refuses into a WorkspaceError that names the file."""
    try:
        yield
    except OSError as error:
        raise WorkspaceError(refusal(error, error.filename2 or error.filename or place)) from error
    except tarfile.TarError as error:
        raise WorkspaceError(f"{place}: what git archived can't be read: {error}") from error


def _contents(tree: Path) -> Files:
    """Every file and symbolic link below `tree`: its name, and its git mode and content."""
    found = {}
    for directory, subdirectories, files in os.walk(tree):
        for name in (*subdirectories, *files):
            path = Path(directory) / name
            key = os.fsencode(path.relative_to(tree))
            if path.is_symlink():
                found[key] = ("120000", os.fsencode(path.readlink()))
            elif path.is_file():
                found[key] = (_mode(path.stat().st_mode), path.read_bytes())
    return found


def _tar_contents(archive: bytes) -> Files:
    """The same of the files in a tar archive."""
    found = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            key = os.fsencode(member.name)
            if member.issym():
                found[key] = ("120000", os.fsencode(member.linkname))
            elif (file := tar.extractfile(member)) is not None:
                found[key] = (_mode(member.mode), file.read())
    return found


def _mode(bits: int) -> str:
    return "100755" if bits & 0o100 else "100644"


def _quoted(name: bytes) -> bytes:
    """A path as fast-import reads it, whatever characters it has."""
    return b'"' + name.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n") + b'"'


def _ignore_attributes(git_directory: Path) -> None:
    """Let no attribute of the tree act in a repository."""
    (git_directory / "info").mkdir(exist_ok=True)
    (git_directory / "info" / "attributes").write_text(_PLAIN, encoding="ascii")


def _symlinks(tree: Path) -> dict[str, str]:
    """The symbolic links below `tree` and where they lead."""
    found = {}
    for directory, subdirectories, files in os.walk(tree):
        for name in (*subdirectories, *files):
            path = Path(directory) / name
            if path.is_symlink():
                found[str(path.relative_to(tree))] = str(path.readlink())
    return found


def protect(changes: Sequence[ChangedFile], editable: Sequence[str], protected: Sequence[str]) -> str | None:
    """Why a change may not be made, or None: the gate before any sandbox."""
    if not changes:
        return "the change changes nothing"
    for change in changes:
        path = PurePosixPath(change.path)
        if change.new_mode in (_SYMLINK, _SUBMODULE):
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
    """Whether a path is one of the patterns, matches one as a glob of the same depth, or lies below what one is
    or matches."""
    places = (path, *path.parents)
    for pattern in patterns:
        wanted = PurePosixPath(pattern)
        if wanted in places:
            return True
        if any(len(wanted.parts) == len(place.parts) and place.match(pattern) for place in places if place.parts):
            return True
    return False
