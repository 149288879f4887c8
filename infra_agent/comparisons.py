"""What `feedback compare` said lately, and what campaigns found: a signal can be asked about by its id alone."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from feedback.cli import Known
from feedback.comparison import Comparison
from feedback.explanation import find
from feedback.inventory import FileRead, contents
from feedback.readers import Unreadable
from infra_agent.settings import Settings

KEPT = 20
"""Comparisons that are kept; older ones go."""
MAX_BYTES = 32 << 20
"""A larger comparison is not kept, or read back."""


class Comparisons:
    """The comparisons kept in the home, newest first, and behind them the signals of campaigns."""

    def __init__(self, settings: Settings, note: Callable[[str], None]) -> None:
        self._settings = settings
        self._directory = settings.home / "feedback"
        self._note = note

    def keep(self, comparison: Comparison) -> None:
        """Keep a comparison for later questions. A disk that can't take it costs only that: it is said."""
        text = json.dumps(_absolute(comparison).model_dump(mode="json"))
        if len(text) > MAX_BYTES:
            return
        name = f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}-{os.getpid()}.json"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            written = self._directory / f".{name}"
            written.write_text(text, encoding="utf-8")
            written.rename(self._directory / name)
            for old in self._files()[KEPT:]:
                old.unlink(missing_ok=True)
        except OSError as error:
            self._note(f"not kept for `feedback explain`: {error.strerror or error}")

    def recall(self, asked: str) -> Sequence[Known]:
        """The signals whose id begins with `asked`: those of the newest comparison that has one, else those of the
        newest campaign that has one, as a planner's `#3/af6f474eec03` names it or by the fingerprint alone. Raises
        StoreUnavailable when the database can't be used."""
        for path in self._files():
            comparison = _read(path)
            if comparison is not None and (found := find(comparison.signals, asked)):
                return [Known("", signal, comparison.read) for signal in found]
        return next(self._of_campaigns(asked), [])

    def _of_campaigns(self, asked: str) -> Iterator[list[Known]]:
        from infra_agent import citation, commands  # takes as long to import as a whole comparison does

        if not self._settings.home.exists():
            return
        for campaign, journal in commands.campaigns(self._settings):
            found = citation.cited(journal.experiments, asked)
            for experiment in dict.fromkeys(c.experiment.number for c in found):
                mine = [c for c in found if c.experiment.number == experiment]
                runs = commands.campaign_directory(self._settings, campaign.id) / "runs"
                files = _of_run(runs / mine[0].experiment.id)
                yield [Known(f"experiment {experiment} of campaign {campaign.id}", c.signal, files) for c in mine]

    def _files(self) -> list[Path]:
        return sorted(self._directory.glob("[0-9]*.json"), reverse=True)


def _absolute(comparison: Comparison) -> Comparison:
    read = tuple(f.model_copy(update={"path": f.path.absolute()}) for f in comparison.read)
    return comparison.model_copy(update={"read": read})


def _read(path: Path) -> Comparison | None:
    """A comparison that was kept; None for one that another version wrote, or that is damaged."""
    try:
        if path.stat().st_size > MAX_BYTES:
            return None
        return Comparison.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, ValidationError, RecursionError):
        return None


def _of_run(directory: Path) -> tuple[FileRead, ...]:
    """The files of a run, if they are still there."""
    try:
        return contents([directory]).read
    except (OSError, Unreadable):
        return ()
