"""The command line: `infra-agent`, or `python -m infra_agent.cli`. The only home of typer and rich.

Imports almost nothing, so that Ctrl-C is answered from the start.
"""

from __future__ import annotations

import os
import signal
import sys

INTERRUPTED = 130
_INTERRUPTED_JSON = (
    b'{"error": {"type": "KeyboardInterrupt", "message": "interrupted"}, "exit_code": %d}\n' % INTERRUPTED
)


def main() -> None:
    """Entry point: run the command line and exit with its code."""
    for descriptor in (0, 1, 2):  # else the first files to be opened would take the place of a closed stream
        _plug(descriptor)
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, leave)
    from infra_agent.cli import edge  # takes a second, in which there is nothing to close yet

    edge.run(sys.argv[1:], ours)


def _plug(descriptor: int) -> None:
    try:
        os.fstat(descriptor)
    except OSError:
        os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free: this one


def leave(number: int, frame: object) -> None:
    """Ctrl-C while there is nothing to close: before the command and after it."""
    try:
        os.write(2, b"infra-agent: interrupted\n")
        if "--json" in sys.argv:
            os.write(1, _INTERRUPTED_JSON)
    finally:
        os._exit(INTERRUPTED)
