"""git as a process, without the configuration, hooks and attribute files of whoever runs it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from sandboxes.files import advice_on
from sandboxes.sandbox import SandboxError


class WorkspaceError(SandboxError):
    """git failed on the campaign's repository."""


class GitMissing(Exception):
    """git can't be started; install it (Debian: apt-get install git)."""


def run_git(directory: Path, *args: str, stdin: bytes = b"") -> bytes:
    """Run git without anyone's configuration. Raises GitMissing, WorkspaceError with what git said."""
    clean = {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": "/nonexistent", "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
    }  # fmt: skip
    fixed = (
        "core.hooksPath=/dev/null", "core.attributesFile=/dev/null", "core.fsmonitor=false", "safe.directory=*",
        "core.autocrlf=false", "core.quotePath=false", "gc.auto=0",
    )  # fmt: skip
    options = [part for setting in fixed for part in ("-c", setting)]
    try:
        done = subprocess.run(
            ["git", *options, "-C", str(directory), *args],
            input=stdin,
            capture_output=True,
            env=clean,
            check=False,
        )
    except OSError as error:
        raise GitMissing(
            f"git can't be started ({error.strerror}); install it (Debian: apt-get install git) and see that it is on "
            "the PATH"
        ) from error
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip()
        what = advice_on(said)
        raise WorkspaceError(f"git {args[0]} failed in {directory}: {said[-600:]}{f'; {what}' if what else ''}")
    return done.stdout
