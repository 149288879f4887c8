"""A started process of a sandbox as its caller sees it: lines, pids and its ending.

Reading and writing lines happens in the caller's thread, because it lies inside timing loops; everything
else (limits, other output, cleaning up) is `supervision`.
"""

from __future__ import annotations

from sandboxes.capture import Capture
from sandboxes.lines import LinePipes, LineTooLong, Silence
from sandboxes.results import Ending, ExecResult
from sandboxes.sandbox import ProcessFailed
from sandboxes.supervision import Launch, Supervision
from sandboxes.tree import descendants

CLOSING_S = 5.0


class SandboxedProcess:
    """The Process of a sandbox that confines a command in a PID namespace."""

    def __init__(self, launch: Launch) -> None:
        """Start it and wait until it is confined. Raises SandboxError if the sandbox fails."""
        self._launch = launch
        self._supervision = Supervision(launch)
        self._lines: LinePipes | None = self._supervision.lines
        self._members: list[str] | None = None
        self._pids: list[int] = []

    def write_line(self, line: bytes) -> None:
        """Send one line (newline added). Raises ProcessFailed if the process is gone or does not read."""
        lines = self._open_lines()
        try:
            lines.write(line, self._launch.limits.timeout_s)
        except Silence:
            raise self._broken(Ending.TIMEOUT, "did not read its input") from None
        except OSError:
            raise self._broken(Ending.STOPPED, "ended while a line was sent") from None

    def read_line(self, timeout_s: float) -> bytes:
        """Receive one line without its newline. Raises ProcessFailed when none comes in time or it ended;
        a process that fell silent is ended, because a late line would answer the wrong question."""
        lines = self._open_lines()
        try:
            return lines.read(timeout_s)
        except Silence:
            raise self._broken(Ending.TIMEOUT, f"sent no line within {timeout_s:g} s") from None
        except LineTooLong:
            raise self._broken(Ending.OUTPUT, "sent a line without an end") from None
        except EOFError:
            raise self._broken(Ending.STOPPED, "ended while a line was awaited") from None

    def pids(self) -> list[int]:
        """Host pids of the process tree, the sandbox's own helper processes included; empty once it ended."""
        root_pid = self._supervision.root_pid
        if root_pid is None:
            return []
        members = self._supervision.members()
        if members is None or members != self._members:  # all of /proc is read only when the tree has changed
            self._pids, self._members = descendants(root_pid), members
        return list(self._pids)

    def ended(self) -> ExecResult | None:
        """The result if the process has ended, else None. Raises SandboxError if the sandbox failed."""
        return self._supervision.outcome() if self._supervision.done.is_set() else None

    def has_ended(self) -> bool:
        """Whether nothing of the tree runs any more, for whatever reason."""
        return self._supervision.done.is_set()

    def wait(self) -> ExecResult:
        """Wait until the process has ended by itself or by a limit. Raises SandboxError if the sandbox
        failed."""
        self._supervision.done.wait()
        return self.stop()

    def stop(self) -> ExecResult:
        """End the whole tree now and return what happened. Safe to call twice. Raises SandboxError if the
        sandbox failed or something survived."""
        self.close()
        return self._supervision.outcome()

    def close(self) -> None:
        """End the tree and release pipes and thread, whatever happened. Safe to call twice."""
        self._supervision.end(Ending.STOPPED)
        if self._lines is not None:
            self._lines.close()

    def _open_lines(self) -> LinePipes:
        if self._lines is None:
            raise ValueError("lines can be exchanged only with a process started as interactive")
        if self._lines.closed:
            raise ProcessFailed(self._supervision.outcome(), "has ended before")
        return self._lines

    def _broken(self, reason: Ending, during: str) -> ProcessFailed:
        """End the process after its protocol broke; if it had ended by itself, its own ending stands."""
        assert self._lines is not None
        if reason is Ending.STOPPED:
            # All writers of the pipe are gone, so the process is ending: let it do so before we call it ours.
            self._supervision.done.wait(CLOSING_S)
        said = Capture()
        said.add(self._lines.unread())
        self._supervision.end(reason)
        result = self.stop()
        total = result.output_bytes + said.total_bytes
        return ProcessFailed(result.model_copy(update={"stdout": said.text(), "output_bytes": total}), during)
