"""What is printed: results on stdout; on stderr what happens meanwhile, as a live line on a terminal and as plain
lines elsewhere."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import MofNCompleteColumn, Progress as Bar, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.text import Text

from infra_agent.domain import Campaign, Event
from infra_agent.journal import Journal
from infra_agent.progress import Progress
from sandboxes.files import refusal


class ReaderGone(Exception):
    """Whoever read the output went away, as `head` does when it has enough."""


class OutputRefused(Exception):
    """What the output is written to refuses it, as a full disk does."""


@contextmanager
def _writing() -> Iterator[None]:
    if sys.stdout is None:  # closed by whoever started us
        raise ReaderGone
    try:
        yield
    except BrokenPipeError:
        raise ReaderGone from None
    except OSError as error:
        raise OutputRefused(refusal(error, "stdout")) from error


def result(text: str) -> None:
    """Print a result, or a part of it. Raises ReaderGone, OutputRefused."""
    with _writing():
        print(text, flush=True)


def result_bytes(data: bytes) -> None:
    """Print a result byte by byte, whatever the terminal's encoding. Raises ReaderGone, OutputRefused."""
    with _writing():
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def note(text: str) -> None:
    """Say something beside the result, at once. Raises ReaderGone."""
    if sys.stderr is None:
        return
    try:
        print(text, file=sys.stderr, flush=True)
    except BrokenPipeError:
        raise ReaderGone from None
    except OSError:  # a full disk under a log of what happens ends no campaign
        return


def discard() -> None:
    """Let what is left in stdout and stderr go nowhere when the program exits."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def reader_is_gone() -> bool:
    """Whether stdout is a pipe that nobody reads any more."""
    try:
        poller = select.poll()
        poller.register(sys.stdout.fileno(), select.POLLOUT)
        return any(happened & select.POLLERR for _, happened in poller.poll(0))
    except (OSError, ValueError, AttributeError):
        return False


class _Used(ProgressColumn):
    """Time used, ticking."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress

    def render(self, task: Task) -> Text:
        return Text(self._progress.used())


@contextmanager
def shown(progress: Progress) -> Iterator[Callable[[str], None]]:
    """How a campaign's lines are shown: a live line on a terminal, each line as it comes elsewhere."""
    if sys.stderr is None or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda text: note(f"[{progress.elapsed():>11}] {text}") if text else None
        return
    console = Console(stderr=True)
    columns = (SpinnerColumn(), MofNCompleteColumn(), _Used(progress), TextColumn("{task.description}"))
    # Twice a second is enough to see that it lives, and little enough not to disturb what is measured.
    with Bar(*columns, console=console, transient=True, refresh_per_second=2) as bar:
        task = bar.add_task(escape(progress.now()), total=progress.experiments)

        def line(text: str) -> None:
            if text and not text.startswith(" "):
                bar.console.print(text, markup=False, highlight=False)
            bar.update(task, description=escape(progress.now()), completed=progress.changes)

        yield line


@contextmanager
def followed(campaign: Campaign, journal: Journal) -> Iterator[tuple[Callable[[Event], None], Callable[[str], None]]]:
    """Who watches a campaign's events, and who is told what its lab does: both become shown lines."""
    finished = sum(e.role == "change" for e in journal.finished)
    progress = Progress(campaign.spec.budget, finished, campaign.elapsed_s)
    with shown(progress) as line:
        yield lambda event: line(progress.event(event)), lambda text: line(progress.remark(text))
