"""A sandbox made of Linux namespaces by bubblewrap. Needs no daemon, no image and, on most hosts, no root.

It walls off the network, the host's files, processes and environment, and ends what exceeds its limits. It
shares the host's kernel, and memory is limited by watching, so a command can exceed its limit for the
fraction of a second between two looks. Where no namespace can be made there is no sandbox: nothing falls
back to running without one.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Self

from sandboxes import confinement, seccomp
from sandboxes.confinement import Identity, Tools
from sandboxes.files import read_below, write_below
from sandboxes.process import SandboxedProcess
from sandboxes.results import ExecResult, Record
from sandboxes.sandbox import SandboxError, SandboxSpec, SandboxUnavailable
from sandboxes.supervision import WATCH_INTERVAL_S, Launch

PROBE_TIMEOUT_S = 20.0
REMEDY_USER = (
    "allow unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone=1, or on Ubuntu "
    "kernel.apparmor_restrict_unprivileged_userns=0), or run as root; in a container start it with "
    "--security-opt seccomp=unconfined --security-opt apparmor=unconfined "
    "--security-opt systempaths=unconfined"
)
REMEDY_ROOT = (
    "run outside of a container, or give the container --cap-add SYS_ADMIN --cap-add NET_ADMIN "
    "--security-opt seccomp=unconfined --security-opt apparmor=unconfined "
    "--security-opt systempaths=unconfined"
)


class HostProbe(Record):
    """Whether and how this host can confine commands."""

    available: bool
    bwrap: Path | None = None
    """The program that is used: the system's, else the one of the Python package."""
    version: str | None = None
    user: str = ""
    """As whom commands run."""
    memory_limit: str = ""
    """How the memory limit is held here."""
    process_limit: str = ""
    """How the process limit is held here."""
    syscall_filter: bool = False
    reason: str = ""
    """Why there is no sandbox, in bubblewrap's words."""
    remedy: str = ""
    """What to change so that there is one."""


def probe_host() -> HostProbe:
    """Try the whole sandbox once with a trivial command. Never raises for a host that cannot."""
    as_root = os.geteuid() == 0
    try:
        tools = confinement.find_tools()
    except SandboxUnavailable as error:
        return HostProbe(available=False, reason=str(error), remedy="install what is missing")
    version, reason = "", ""
    try:
        said = _run([tools.bwrap, "--version"])
        version = said.stdout.strip().removeprefix("bubblewrap ")
        reason = said.stderr.strip() or _try_once(tools)
    except (OSError, subprocess.TimeoutExpired, SandboxError) as error:
        reason = str(error)
    return HostProbe(
        available=not reason,
        bwrap=tools.bwrap,
        version=version or None,
        user="a new unprivileged user for each sandbox" if as_root else "the same user, in a user namespace",
        memory_limit=f"resident memory of the tree is read every {WATCH_INTERVAL_S * 1000:.0f} ms",
        process_limit="counted with the memory"
        + (", and RLIMIT_NPROC in the kernel" if as_root or confinement.tasks_count_per_namespace() else ""),
        syscall_filter=seccomp.program() is not None,
        reason=reason,
        remedy=_remedy(reason, as_root),
    )


def _remedy(reason: str, as_root: bool) -> str:
    if not reason:
        return ""
    if "source path" in reason:
        return "make that path readable for the user who runs this"
    return REMEDY_ROOT if as_root else REMEDY_USER


def _run(command: Sequence[str | Path], fds: Sequence[int] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        env={},
        pass_fds=fds,
        timeout=PROBE_TIMEOUT_S,
        check=False,
    )


def _try_once(tools: Tools) -> str:
    """Run `true` with everything that a real command gets; what went wrong, or nothing."""
    with tempfile.TemporaryDirectory() as directory:
        spec = SandboxSpec(tree=Path(directory), scratch=Path(directory))
        identity = Identity()
        command = confinement.limited(["true"], spec.limits, identity, tools)
        try:
            with _open_files(identity, confinement.options(spec, identity)) as (arguments, fds):
                ran = _run([tools.bwrap, *arguments, "--", *command], fds)
        finally:
            identity.release()
    return "" if ran.returncode == 0 else ran.stderr.strip() or f"bwrap ended with status {ran.returncode}"


@functools.cache
def usable_tools() -> Tools:
    """The programs, once the host was seen to allow a sandbox. Raises SandboxUnavailable if it does not."""
    probe = probe_host()
    if not probe.available:
        raise SandboxUnavailable(f"this host refuses a sandbox: {probe.reason}. Remedy: {probe.remedy}")
    return confinement.find_tools()


@contextlib.contextmanager
def _open_files(identity: Identity, options: Sequence[str]) -> Iterator[tuple[list[str], list[int]]]:
    """Options and small files as descriptors, so that neither stands in a command line all users can read."""
    with contextlib.ExitStack() as stack:
        fds: list[int] = []

        def holding(data: bytes) -> str:
            fd = os.memfd_create("sandbox", os.MFD_CLOEXEC)
            stack.callback(os.close, fd)
            fds.append(fd)
            os.write(fd, data)
            os.lseek(fd, 0, os.SEEK_SET)
            return str(fd)

        files = ["--dir", "/etc"]
        for path, data in confinement.data_files(identity).items():
            files += ["--perms", "0444", "--ro-bind-data", holding(data), path]
        syscalls = seccomp.program()
        if syscalls is not None:
            files += ["--seccomp", holding(syscalls)]
        arguments = b"\0".join(os.fsencode(argument) for argument in [*files, *options])
        yield ["--args", holding(arguments)], fds


class BubblewrapSandbox:
    """Runs commands of one candidate in namespaces of their own; a Sandbox."""

    def __init__(self, spec: SandboxSpec) -> None:
        """Raises SandboxUnavailable if this host cannot confine commands, SandboxError if the spec names a
        directory that does not exist. As root, tree and scratch are given to the sandbox's user."""
        self._tools = usable_tools()
        for path in (spec.tree, spec.scratch, *(mount.host for mount in spec.mounts)):
            if not path.exists():
                raise SandboxError(f"a directory of the sandbox does not exist: {path}")
        if not set(spec.cpus) <= os.sched_getaffinity(0):
            raise SandboxError(f"the sandbox cannot be pinned to CPUs {spec.cpus}: this process may not use them")
        self.spec = spec
        self._processes: list[SandboxedProcess] = []
        self._closed = False
        self._identity = Identity()
        try:
            self._identity.own(spec.tree)
            self._identity.own(spec.scratch)
        except OSError as error:
            self._identity.release()
            raise SandboxError(f"tree and scratch cannot be given to the sandbox's user: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def exec(
        self,
        command: Sequence[str],
        *,
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        log: Path | None = None,
    ) -> ExecResult:
        """Run a command to its end or its limit. Raises SandboxError only when the sandbox itself fails."""
        process = self._launch(
            command,
            env,
            stdin=stdin,
            timeout_s=self.spec.limits.timeout_s if timeout_s is None else timeout_s,
            log=log,
        )
        try:
            return process.wait()
        finally:
            process.close()
            self._forget(process)

    def start(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        interactive: bool = True,
        log: Path | None = None,
    ) -> SandboxedProcess:
        """Start a long-lived process (a slice worker, a server). Raises SandboxError as `exec` does."""
        # Ended ones are forgotten here, so that a long campaign does not collect them.
        for process in [process for process in self._processes if process.has_ended()]:
            process.close()
            self._forget(process)
        return self._launch(command, env, interactive=interactive, log=log)

    def _forget(self, process: SandboxedProcess) -> None:
        # Another thread may have closed the sandbox meanwhile.
        with contextlib.suppress(ValueError):
            self._processes.remove(process)

    def _launch(
        self,
        command: Sequence[str],
        env: Mapping[str, str] | None,
        *,
        stdin: bytes = b"",
        interactive: bool = False,
        timeout_s: float | None = None,
        log: Path | None = None,
    ) -> SandboxedProcess:
        if self._closed:
            raise SandboxError("the sandbox is closed")

        def spawn(status_fd: int) -> subprocess.Popen[bytes]:
            return self._spawn(command, env, status_fd)

        process = SandboxedProcess(
            Launch(
                command=tuple(command),
                spawn=spawn,
                limits=self.spec.limits,
                stdin=stdin,
                interactive=interactive,
                timeout_s=timeout_s,
                log=log,
            )
        )
        self._processes.append(process)
        return process

    def _spawn(self, command: Sequence[str], env: Mapping[str, str] | None, status_fd: int) -> subprocess.Popen[bytes]:
        options = [*confinement.options(self.spec, self._identity), *confinement.environment(self.spec, env)]
        confined = confinement.limited(command, self.spec.limits, self._identity, self._tools)
        with _open_files(self._identity, options) as (arguments, fds), _pinned(self.spec.cpus):
            return subprocess.Popen(
                [self._tools.bwrap, "--json-status-fd", str(status_fd), *arguments, "--", *confined],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env={},
                pass_fds=[status_fd, *fds],
                start_new_session=True,
            )

    def read_file(self, path: str, limit_bytes: int = 1 << 24) -> bytes:
        """Read a regular file of /tree or /scratch by its inside path; no link is followed.
        Raises FileNotFoundError if it is absent, not regular or larger than the limit."""
        root, inside = self._locate(path)
        return read_below(root, inside, limit_bytes)

    def write_file(self, path: str, data: bytes) -> None:
        """Write a file below /tree or /scratch by its inside path, making directories as needed. Raises
        FileNotFoundError if the path lies elsewhere, OSError if something in the way cannot be replaced."""
        root, inside = self._locate(path)
        write_below(root, inside, data, (self._identity.uid, self._identity.gid))

    def _locate(self, path: str) -> tuple[Path, PurePosixPath]:
        inside = PurePosixPath("/tree") / path
        for root, shown in ((self.spec.tree, "/tree"), (self.spec.scratch, "/scratch")):
            if inside.is_relative_to(shown):
                return root, inside.relative_to(shown)
        raise FileNotFoundError(f"neither in /tree nor in /scratch: {path}")

    def close(self) -> None:
        """End everything that still runs and release the sandbox. Safe to call twice."""
        self._closed = True
        while self._processes:
            self._processes.pop().close()
        self._identity.release()


@contextlib.contextmanager
def _pinned(cpus: Sequence[int]) -> Iterator[None]:
    """Pin the calling thread, so that what it starts meanwhile is pinned from its first instruction."""
    if not cpus:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
