"""Lines over a process's standard input and output, with as little as possible between caller and pipe."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import time
from typing import IO

LINE_BYTES = 64 << 20
PIPE_BYTES = 1 << 20
READ_BYTES = 1 << 18


class Silence(Exception):
    """The other side did not read or write in time."""


class LineTooLong(Exception):
    """The other side sent a line longer than LINE_BYTES."""


class LinePipes:
    """Both pipes of one process, used by one thread at a time."""

    def __init__(self, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        """Takes both files over."""
        self._stdin, self._stdout = stdin, stdout
        self._in_fd, self._out_fd = stdin.fileno(), stdout.fileno()
        self._buffer = bytearray()
        for fd in (self._in_fd, self._out_fd):
            os.set_blocking(fd, False)
            # A roomier pipe saves wake-ups with long lines; an ordinary user's quota may refuse it.
            with contextlib.suppress(OSError):
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(self._out_fd, select.POLLIN)
        self._writable.register(self._in_fd, select.POLLOUT)

    def write(self, line: bytes, timeout_s: float) -> None:
        """Send a line. Raises Silence if the other side does not read it in time, OSError if it is gone."""
        view = memoryview(line + b"\n")
        deadline = 0.0
        while True:
            try:
                view = view[os.write(self._in_fd, view) :]
            except BlockingIOError:
                deadline = deadline or time.monotonic() + timeout_s
                self._await(self._writable, deadline)
            if not view:
                return

    def read(self, timeout_s: float) -> bytes:
        """Receive a line. Raises Silence, LineTooLong, or EOFError if the other side is gone."""
        deadline = time.monotonic() + timeout_s
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            if searched > LINE_BYTES:
                raise LineTooLong
            self._await(self._readable, deadline)
            with contextlib.suppress(BlockingIOError):
                data = os.read(self._out_fd, READ_BYTES)
                if not data:
                    raise EOFError
                self._buffer += data
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    def _await(self, poller: select.poll, deadline: float) -> None:
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not poller.poll(left_s * 1000):
            raise Silence

    def unread(self) -> bytes:
        """What was received but is not a line yet."""
        return bytes(self._buffer)

    @property
    def closed(self) -> bool:
        """Whether the pipes were closed."""
        return self._stdout.closed

    def close(self) -> None:
        """Close both pipes. Safe to call twice."""
        for file in (self._stdin, self._stdout):
            with contextlib.suppress(OSError):
                file.close()
