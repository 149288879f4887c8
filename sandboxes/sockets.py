"""HTTP over a Unix socket that a sandboxed server made in its scratch directory.

The other end is a candidate: the socket may be a link to somewhere else, an answer may be huge, drip or never
end. Nothing here follows links, and every read is bounded in time and size.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ANSWER_LIMIT_BYTES = 8 << 20


class SocketConnection(http.client.HTTPConnection):
    """An HTTP connection to the server behind a Unix socket; `timeout_s` bounds each single read or write."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path
        self._socket: socket.socket | None = None
        self._aborted = False

    def connect(self) -> None:
        """Connect to the very inode that was found to be a socket. Raises OSError if there is none."""
        found = os.open(self._path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if not stat.S_ISSOCK(os.fstat(found).st_mode):
                raise NotASocket(self._path)
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.settimeout(self.timeout)
                connection.connect(f"/proc/self/fd/{found}")
            except BaseException:
                connection.close()
                raise
            # http.client forgets its socket once it has seen the headers of an answer that ends with it.
            self.sock = self._socket = connection
            if self._aborted:
                self.abort()
        finally:
            os.close(found)

    def abort(self) -> None:
        """Make reads and writes of another thread on this connection end now."""
        self._aborted = True
        if self._socket is not None:
            with contextlib.suppress(OSError):  # it may have been closed already
                self._socket.shutdown(socket.SHUT_RDWR)


class NotASocket(OSError):
    """What stands at the socket's place is something else."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path.name} is not a socket")


class AnswerTooLong(OSError):
    """The server's answer is longer than what is read."""


def post(connection: SocketConnection, target: str, body: Mapping[str, Any]) -> http.client.HTTPResponse:
    """Send a JSON body; the answer's body is still to be read. Raises OSError, http.client.HTTPException."""
    headers = {"Content-Type": "application/json", "Connection": "close"}
    connection.request("POST", target, json.dumps(body).encode(), headers)
    return connection.getresponse()


def ask(
    path: Path, target: str, body: Mapping[str, Any] | None = None, *, timeout_s: float = 10.0
) -> tuple[int, bytes]:
    """GET, or POST a JSON body, on a fresh connection: status and the answer's bytes. Raises OSError (also
    for an answer above ANSWER_LIMIT_BYTES) and http.client.HTTPException."""
    connection = SocketConnection(path, timeout_s)
    try:
        if body is None:
            connection.request("GET", target, headers={"Connection": "close"})
            response = connection.getresponse()
        else:
            response = post(connection, target, body)
        with response:
            data = response.read(ANSWER_LIMIT_BYTES + 1)
            if len(data) > ANSWER_LIMIT_BYTES:
                raise AnswerTooLong(f"{target}: more than {ANSWER_LIMIT_BYTES} bytes")
            return response.status, data
    finally:
        connection.close()
