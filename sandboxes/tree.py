"""What a sandboxed process tree uses right now, read from the outside.

The tree is everything in one PID namespace, so a process that forked twice, changed its session or lost its
parent is still counted. Reading the namespace's own procfs keeps the cost at one small file per process of
the tree, whatever else the host runs: the watchdog runs beside measurements. Kernel memory of the tree
(socket buffers, page tables) is not counted.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from pathlib import Path
from typing import NamedTuple

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
PRIVATE_FILESYSTEMS = ("tmp", "dev/shm")
"""Memory-backed filesystems of a sandbox: what is written there is memory that no process shows."""


class Usage(NamedTuple):
    """What a tree holds at one moment."""

    memory_bytes: int
    """Resident memory of all processes, shared pages counted once a process, and files in private tmpfs."""
    tasks: int
    """Processes and threads, without the sandbox's own helpers."""


class ProcessTree:
    """A PID namespace seen from the host, named by the host pid of its first process."""

    def __init__(self, init_pid: int) -> None:
        """Raises OSError if the process is gone already."""
        self.init_pid = init_pid
        self._init_fd = os.pidfd_open(init_pid)
        self._proc_fd: int | None = None
        self._filesystem_fds: list[int] = []
        # If the host runs out of memory all the same, the kernel shall choose the candidate.
        with contextlib.suppress(OSError):
            Path(f"/proc/{init_pid}/oom_score_adj").write_text("1000", encoding="ascii")

    @property
    def attached(self) -> bool:
        """Whether the sandbox's filesystems are set up, so that usage can be read."""
        return self._proc_fd is not None

    def attach(self) -> bool:
        """Try to look inside; False while the sandbox is still being set up."""
        if self._proc_fd is not None:
            return True
        root = f"/proc/{self.init_pid}/root"
        try:
            proc_fd = os.open(f"{root}/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            # Before its root is switched the process still sees the host's procfs, in which we exist.
            os.readlink("self", dir_fd=proc_fd)
        except OSError:
            self._proc_fd = proc_fd
        else:
            os.close(proc_fd)
            return False
        for name in PRIVATE_FILESYSTEMS:
            with contextlib.suppress(OSError):
                self._filesystem_fds.append(os.open(f"{root}/{name}", os.O_RDONLY | os.O_CLOEXEC))
        return True

    def usage(self, memory_limit_bytes: int) -> Usage:
        """Sum the tree. Shared pages are split between processes only when the plain sum exceeds the limit,
        because that takes the kernel much longer. Zeros when the tree is gone or not attached yet."""
        if self._proc_fd is None:
            return Usage(0, 0)
        resident, tasks, pids = 0, 0, self.members() or []
        for pid in pids:
            fields = self._read(f"{pid}/stat").rpartition(b")")[2].split()
            if len(fields) > 21:
                tasks += int(fields[17])
                resident += int(fields[21]) * PAGE_BYTES
        private = sum(self._private_bytes(fd) for fd in self._filesystem_fds)
        if resident + private > memory_limit_bytes:
            resident = sum(self._proportional_bytes(pid) for pid in pids)
        return Usage(resident + private, tasks)

    def members(self) -> list[str] | None:
        """Pids as the tree itself sees them, without its first process; None while it is not attached. One small
        directory is read, so it may be asked between slices. May be called by any thread."""
        if (proc_fd := self._proc_fd) is None:
            return None
        try:
            own_fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=proc_fd)
        except OSError:
            return []
        try:
            with os.scandir(own_fd) as entries:
                names = [entry.name for entry in entries]
        except OSError:
            return []
        finally:
            os.close(own_fd)
        # Pid 1 is the sandbox's own reaper.
        return [name for name in names if name.isdigit() and name != "1"]

    def _proportional_bytes(self, pid: str) -> int:
        for line in self._read(f"{pid}/smaps_rollup").splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
        fields = self._read(f"{pid}/statm").split()
        return int(fields[1]) * PAGE_BYTES if len(fields) > 1 else 0

    def _private_bytes(self, fd: int) -> int:
        try:
            stat = os.fstatvfs(fd)
        except OSError:
            return 0
        return (stat.f_blocks - stat.f_bfree) * stat.f_frsize

    def _read(self, name: str) -> bytes:
        try:
            fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc_fd)
        except OSError:
            return b""
        try:
            return os.read(fd, 4096)
        except OSError:
            return b""
        finally:
            os.close(fd)

    def kill(self) -> None:
        """Send SIGKILL to the namespace's first process: the kernel then ends every other one in it."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._init_fd, signal.SIGKILL)

    def wait_dead(self, timeout_s: float) -> bool:
        """Wait until no process of the namespace is left; False if some still is after the timeout."""
        poller = select.poll()
        poller.register(self._init_fd, select.POLLIN)
        return bool(poller.poll(timeout_s * 1000))

    def close(self) -> None:
        """Release the descriptors. Safe to call twice."""
        fds = [self._init_fd, *([] if self._proc_fd is None else [self._proc_fd]), *self._filesystem_fds]
        self._proc_fd, self._filesystem_fds, self._init_fd = None, [], -1
        for fd in fds:
            if fd >= 0:
                os.close(fd)


def descendants(root_pid: int) -> list[int]:
    """Host pids of a process and everything below it. Reads all of /proc: not for a timing loop."""
    children: dict[int, list[int]] = {}
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent = (directory / "stat").read_bytes().rpartition(b")")[2].split()[1]
            children.setdefault(int(parent), []).append(int(directory.name))
    if not Path(f"/proc/{root_pid}").exists():
        return []
    found, queue = [], [root_pid]
    while queue:
        pid = queue.pop()
        found.append(pid)
        queue.extend(children.get(pid, ()))
    return sorted(found)
