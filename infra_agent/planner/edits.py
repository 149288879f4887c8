"""From edits of files to a patch: they are made in a scratch copy, and the patch is what git says changed.

So a patch never fails to apply to the tree it was made from.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from infra_agent.errors import PlatformFailed
from infra_agent.planner.tree import NotReadable, Tree
from infra_agent.target import TargetSpec
from sandboxes.results import Record
from sandboxes.workspace import ChangedFile, protect

MAX_NEW_CHARACTERS = 200_000
_GIT_TIMEOUT_S = 60
_ENVIRONMENT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_ATTR_NOSYSTEM": "1",
    "HOME": "/nonexistent",
    "LC_ALL": "C",
}


class Edit(Record):
    """One edit of one file."""

    path: str
    """File, relative to the target's root."""
    old: str | None = None
    """Text to replace; it must stand in the file exactly once. Leave it out to write the whole file."""
    new: str
    """What stands there instead, or the file's whole contents."""


class EditRefused(Exception):
    """An edit that can't be made; the message says why and what to do."""


def make_patch(tree: Tree, spec: TargetSpec, edits: Sequence[Edit]) -> str:
    """The unified diff that these edits make, one after another; empty without edits.

    Raises EditRefused for a path that may not be edited, text that does not stand there exactly once, and
    edits that change nothing; PlatformFailed if git can't be run.
    """
    if not edits:
        return ""
    before: dict[str, str | None] = {}
    after: dict[str, str] = {}
    for edit in edits:
        name = _editable(tree, spec, edit.path)
        if name not in before:
            before[name] = tree.text(name) if (tree.root / name).exists() else None
        after[name] = _edited(edit, after.get(name, before[name]))
    unchanged = [name for name, text in after.items() if text == before[name]]
    if unchanged:
        raise EditRefused(f"the edits of {', '.join(unchanged)} change nothing")
    return _diff(tree.root, before, after)


def _editable(tree: Tree, spec: TargetSpec, path: str) -> str:
    try:
        name = str(tree.path(path))
    except NotReadable as error:
        raise EditRefused(str(error)) from error
    status = "M" if (tree.root / name).exists() else "A"
    if reason := protect([ChangedFile(name, status, "100644", "100644")], spec.editable, spec.protected):
        raise EditRefused(reason)
    if spec.launch_file is not None and name == spec.launch_file.path:
        raise EditRefused(f"{name} holds the knobs; change it through `knobs`, not by an edit")
    return name


def _edited(edit: Edit, text: str | None) -> str:
    if len(edit.new) > MAX_NEW_CHARACTERS:
        raise EditRefused(f"{edit.path}: new text is limited to {MAX_NEW_CHARACTERS} characters")
    try:
        edit.new.encode("utf-8")
    except UnicodeEncodeError as error:
        raise EditRefused(f"{edit.path}: the new text is not valid Unicode") from error
    if edit.old is None:
        return edit.new
    if text is None:
        raise EditRefused(f"{edit.path} does not exist; leave `old` out to create it")
    count = text.count(edit.old) if edit.old else 0
    if count != 1:
        found = f"stands there {count} times; add surrounding lines" if count else "does not stand there"
        raise EditRefused(f"{edit.path}: `old` must stand in the file exactly once, and {found}")
    return text.replace(edit.old, edit.new)


def _diff(root: Path, before: dict[str, str | None], after: dict[str, str]) -> str:
    with tempfile.TemporaryDirectory(prefix="infra-agent-") as directory:
        scratch = Path(directory)
        _git(scratch, "init", "--quiet", ".")
        for name, text in before.items():
            (scratch / name).parent.mkdir(parents=True, exist_ok=True)
            if text is not None:
                shutil.copyfile(root / name, scratch / name)
                shutil.copymode(root / name, scratch / name)
        _git(scratch, "add", "--all", "--force", ".")
        for name, text in after.items():
            with (scratch / name).open("w", encoding="utf-8", newline="") as file:
                file.write(text)
        _git(scratch, "add", "--all", "--force", "--intent-to-add", ".")
        return _git(scratch, "diff", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames")


def _git(directory: Path, *arguments: str) -> str:
    command = ["git", "-c", "core.quotePath=false", "-c", "core.autocrlf=false", *arguments]
    environment = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), **_ENVIRONMENT}
    try:
        done = subprocess.run(
            command, cwd=directory, env=environment, capture_output=True, check=True, timeout=_GIT_TIMEOUT_S
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or b""
        raise PlatformFailed(f"git {arguments[0]} failed: {error} {said.decode(errors='replace')}") from error
    return done.stdout.decode("utf-8")
