"""The thread beside one running command: it starts it, collects output, holds the limits and cleans up.

The thread must be the one that starts the sandbox's outer program, because a parent-death signal is tied to
the starting thread: a process started by a short-lived thread would die with it. Output that comes after a
limit was hit is not read; whatever happens, no process of the tree is left when the thread is done.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from sandboxes.capture import Capture, Log
from sandboxes.lines import LinePipes
from sandboxes.results import Ending, ExecResult
from sandboxes.sandbox import Limits, SandboxError
from sandboxes.tree import ProcessTree, Usage

WATCH_INTERVAL_S = 0.05
SETUP_POLL_S = 0.002
SETUP_TIMEOUT_S = 20.0
DEATH_TIMEOUT_S = 20.0
READ_BYTES = 64 << 10
HIGHEST_SIGNAL = 64


@dataclass(frozen=True)
class Launch:
    """How to start one command and what it may use."""

    command: tuple[str, ...]
    """The candidate's command, for the result."""
    spawn: Callable[[int], subprocess.Popen[bytes]]
    """Start the sandbox's outer program with all three streams as unbuffered pipes. It reports its first
    process and later the exit status of the command as JSON lines to the given descriptor."""
    limits: Limits
    stdin: bytes = b""
    """What the command reads; ignored if it is interactive."""
    interactive: bool = False
    """Whether the caller talks to the command over its standard input and output."""
    timeout_s: float | None = None
    log: Path | None = None


class Supervision:
    """One running command and the thread that watches it."""

    def __init__(self, launch: Launch) -> None:
        """Start the command and wait until it is confined or has ended. Raises SandboxError if the sandbox
        program cannot be started."""
        self.lines: LinePipes | None = None
        self.done = threading.Event()
        self._launch = launch
        self._reason: Ending | None = None
        self._killed = False
        self._result: ExecResult | None = None
        self._failure: str | None = None
        self._popen: subprocess.Popen[bytes] | None = None
        self._tree: ProcessTree | None = None
        self._exit_code: int | None = None
        self._status = b""
        self._stdout, self._stderr = Capture(), Capture()
        self._stdin_left = memoryview(launch.stdin)
        self._peak = Usage(0, 0)
        self._poller = select.poll()
        self._readers: dict[int, Callable[[int], None]] = {}
        self._lock = threading.Lock()
        self._confined = threading.Event()
        try:
            self._log = Log(launch.log, launch.limits.output_bytes)
        except OSError as error:
            raise SandboxError(f"the log of a sandboxed process cannot be written: {error}") from error
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="sandbox-supervision", daemon=True)
        self._thread.start()
        self._confined.wait()
        if self._failure is not None:
            self.end(Ending.STOPPED)
            raise SandboxError(self._failure)

    # -- called from any thread ------------------------------------------------------------------------------

    @property
    def root_pid(self) -> int | None:
        """Host pid of the sandbox's outer program while it runs."""
        return None if self._popen is None or self.done.is_set() else self._popen.pid

    def members(self) -> list[str] | None:
        """Who is in the tree, by its own pids; None while that can't be seen yet."""
        tree = self._tree
        return None if tree is None else tree.members()

    def end(self, reason: Ending) -> None:
        """End the tree, wait until nothing is left of it. The first reason counts. Safe to call twice."""
        with self._lock:
            if self._reason is None:
                self._reason = reason
            if self._wake_fd >= 0:
                os.eventfd_write(self._wake_fd, 1)
        self._thread.join()
        with self._lock:
            wake_fd, self._wake_fd = self._wake_fd, -1
        if wake_fd >= 0:
            os.close(wake_fd)

    def outcome(self) -> ExecResult:
        """What happened, once `done`. Raises SandboxError if it was the sandbox that failed."""
        if self._failure is not None or self._result is None:
            raise SandboxError(self._failure)
        return self._result

    # -- the thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        status_read, status_write = os.pipe2(os.O_CLOEXEC)
        try:
            try:
                self._popen = self._launch.spawn(status_write)
            except (OSError, ValueError) as error:  # ValueError: a NUL in the command or its environment
                self._failure = f"the sandbox program could not be started: {error}"
            finally:
                os.close(status_write)
            if self._popen is not None:
                self._supervise(self._popen, status_read)
        except SandboxError as error:
            self._failure = str(error)
        except OSError as error:
            self._failure = f"a sandboxed process could not be supervised: {error}"
        finally:
            os.close(status_read)
            self._release()
            self.done.set()
            self._confined.set()

    def _supervise(self, popen: subprocess.Popen[bytes], status_fd: int) -> None:
        assert popen.stdin is not None
        assert popen.stdout is not None
        assert popen.stderr is not None
        outer_fd = os.pidfd_open(popen.pid)
        try:
            self._read_with(status_fd, self._on_status)
            self._read_with(self._wake_fd, self._on_wake)
            self._read_with(popen.stderr.fileno(), lambda fd: self._on_output(fd, self._stderr))
            if self._launch.interactive:
                self.lines = LinePipes(popen.stdin, popen.stdout)
            else:
                self._read_with(popen.stdout.fileno(), lambda fd: self._on_output(fd, self._stdout))
                self._feed(popen.stdin)
            self._poller.register(outer_fd, select.POLLIN)
            self._loop(popen, outer_fd)
            self._bury(popen)
        finally:
            os.close(outer_fd)
        self._drain(status_fd, popen)
        self._result = self._build_result(popen.returncode)

    def _loop(self, popen: subprocess.Popen[bytes], outer_fd: int) -> None:
        """Serve pipes and limits until the outer program has ended."""
        next_watch = 0.0
        while True:
            events = self._poller.poll(self._wait_ms(next_watch))
            for fd, _ in events:
                if fd != outer_fd and fd in self._readers:
                    self._readers[fd](fd)
            if any(fd == outer_fd for fd, _ in events):
                return
            now = time.monotonic()
            if self._tree is not None and not self._confined.is_set() and self._tree.attach():
                self._confined.set()
            if now >= next_watch:
                self._check_limits(now)
                next_watch = now + WATCH_INTERVAL_S
            if self._reason is not None:
                self._kill(popen, now)

    def _wait_ms(self, next_watch: float) -> float:
        if not self._confined.is_set() or self._killed:
            return SETUP_POLL_S * 1000
        wake_at = next_watch
        if self._launch.timeout_s is not None:
            wake_at = min(wake_at, self._began + self._launch.timeout_s)
        return max(0.0, wake_at - time.monotonic()) * 1000 + 0.5

    def _check_limits(self, now: float) -> None:
        limits, timeout_s = self._launch.limits, self._launch.timeout_s
        if timeout_s is not None and now - self._began >= timeout_s:
            self._limit(Ending.TIMEOUT)
        if self._tree is None:
            return
        usage = self._tree.usage(limits.memory_bytes)
        self._peak = Usage(*(max(pair) for pair in zip(self._peak, usage, strict=True)))
        if usage.tasks > limits.processes:
            self._limit(Ending.PROCESSES)
        if usage.memory_bytes > limits.memory_bytes:
            self._limit(Ending.MEMORY)

    def _limit(self, reason: Ending) -> None:
        with self._lock:
            if self._reason is None:
                self._reason = reason

    def _kill(self, popen: subprocess.Popen[bytes], now: float) -> None:
        """Send SIGKILL, once the first inner process is known: killing only the outer program earlier could
        leave that one behind."""
        if self._tree is None and now - self._began < SETUP_TIMEOUT_S:
            return
        if self._exit_code is None:
            self._killed = True
        for fd in list(self._readers):
            self._stop_reading(fd)
        if self._tree is not None:
            self._tree.kill()
        popen.kill()

    def _bury(self, popen: subprocess.Popen[bytes]) -> None:
        """Collect the outer program and make sure that nothing of the tree is left."""
        popen.wait()
        if self._tree is not None:
            self._tree.kill()
            if not self._tree.wait_dead(DEATH_TIMEOUT_S):
                raise SandboxError(f"a sandboxed process tree survived SIGKILL for {DEATH_TIMEOUT_S:g} s")

    # -- pipes -----------------------------------------------------------------------------------------------

    def _read_with(self, fd: int, reader: Callable[[int], None]) -> None:
        os.set_blocking(fd, False)
        self._readers[fd] = reader
        self._poller.register(fd, select.POLLIN)

    def _stop_reading(self, fd: int) -> None:
        del self._readers[fd]
        self._poller.unregister(fd)

    def _feed(self, stdin: IO[bytes]) -> None:
        """Offer the command its standard input as it reads it, then close it."""

        def write(fd: int) -> None:
            with contextlib.suppress(BlockingIOError):
                try:
                    self._stdin_left = self._stdin_left[os.write(fd, self._stdin_left) :]
                except BrokenPipeError:
                    self._stdin_left = self._stdin_left[:0]
            if not self._stdin_left:
                self._stop_reading(fd)
                stdin.close()

        if not self._stdin_left:
            stdin.close()
            return
        self._read_with(stdin.fileno(), write)
        self._poller.modify(stdin.fileno(), select.POLLOUT)

    def _on_wake(self, fd: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(fd)

    def _on_status(self, fd: int) -> None:
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:
            return
        if not data and fd in self._readers:
            self._stop_reading(fd)
        *lines, self._status = (self._status + data).split(b"\n")
        for line in lines:
            record = json.loads(line)
            if "child-pid" in record and self._tree is None:
                with contextlib.suppress(ProcessLookupError):
                    self._tree = ProcessTree(record["child-pid"])
            self._exit_code = record.get("exit-code", self._exit_code)

    def _on_output(self, fd: int, capture: Capture) -> None:
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:
            return
        if data:
            capture.add(data)
            self._log.add(data)
        elif fd in self._readers:
            self._stop_reading(fd)
        if self._stdout.total_bytes + self._stderr.total_bytes > self._launch.limits.output_bytes:
            self._limit(Ending.OUTPUT)

    def _drain(self, status_fd: int, popen: subprocess.Popen[bytes]) -> None:
        """Take what lies in the pipes: all writers are dead, so this is at most what a pipe holds."""
        assert popen.stdout is not None
        assert popen.stderr is not None
        fds = {status_fd: self._on_status}
        if self._reason is not Ending.OUTPUT:
            fds[popen.stderr.fileno()] = lambda fd: self._on_output(fd, self._stderr)
            if not self._launch.interactive:
                fds[popen.stdout.fileno()] = lambda fd: self._on_output(fd, self._stdout)
        for fd, reader in fds.items():
            if not self._killed or fd != status_fd:
                self._drain_one(fd, reader)

    def _drain_one(self, fd: int, reader: Callable[[int], None]) -> None:
        os.set_blocking(fd, False)
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        while poller.poll(0) and any(event & select.POLLIN for _, event in poller.poll(0)):
            reader(fd)

    def _build_result(self, outer_status: int) -> ExecResult:
        ending = Ending.EXITED
        returncode, signal_number = self._exit_code, None
        if self._killed or self._reason is Ending.OUTPUT:
            assert self._reason is not None
            ending, returncode = self._reason, None
        elif returncode is None:
            said = self._stderr.text().strip()[-500:]
            raise SandboxError(f"the sandbox could not be set up (status {outer_status}): {said}")
        elif 128 < returncode <= 128 + HIGHEST_SIGNAL:
            # A shell's convention, which bubblewrap follows for the command itself.
            ending, signal_number, returncode = Ending.SIGNALLED, returncode - 128, None
        return ExecResult(
            command=self._launch.command,
            ending=ending,
            returncode=returncode,
            signal=signal_number,
            stdout=self._stdout.text(),
            stderr=self._stderr.text(),
            output_bytes=self._stdout.total_bytes + self._stderr.total_bytes,
            duration_s=time.monotonic() - self._began,
            peak_memory_bytes=self._peak.memory_bytes or None,
            peak_processes=self._peak.tasks or None,
        )

    def _release(self) -> None:
        self._log.close()
        # Nothing may be left running, even when supervising failed half-way.
        if self._tree is not None:
            self._tree.kill()
            self._tree.close()
        if self._popen is not None:
            self._popen.kill()
            self._popen.wait()
            for file in (self._popen.stdin, self._popen.stdout, self._popen.stderr):
                if file is not None and (self.lines is None or file is self._popen.stderr):
                    file.close()
