"""The planner protocol: given what is known, what to do next. Kinds are sibling files; `build_planner` picks one.

A planner proposes; it never measures and never judges.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from feedback.observations import Scalar
from infra_agent.domain import Proposal
from infra_agent.journal import Journal
from infra_agent.target import TargetSpec
from sandboxes.results import Record


class Context(Record):
    """All that a planner is shown for its next action."""

    spec: TargetSpec
    journal: Journal
    parent_commit: str
    """The commit that the next change applies to."""
    parent_tree: Path
    """A checkout of that commit, to be read only."""
    knobs: dict[str, Scalar | None]
    """The parent's knob values; None where the engine's default applies."""
    cores: int
    """CPUs of the host that measures."""
    digest: str
    """Signals of the latest experiments as text, within a token budget."""
    experiments_left: int
    seconds_left: float | None
    """Wall time that the planner may take; None without a time budget."""
    runs: Path = Path()
    """Directory with the run directory of each experiment, for a signal's evidence."""
    source: Path = Path()
    """The target as the user gave it; where it is a git repository, its history up to `source_commit` may be read."""
    source_commit: str = ""
    investigations_left: int = 0
    """How many more of them this step may make."""


class Propose(Record):
    """Measure this change."""

    proposal: Proposal


class Investigate(Record):
    """Run a probe on the parent to answer a question. The next call finds the answer in the journal."""

    question: str
    probe: str
    params: dict[str, tuple[Scalar, ...]] = {}


class Stop(Record):
    """Nothing more to try, and why."""

    reason: str


Action = Investigate | Propose | Stop


class TimeUp(Exception):
    """The campaign's time budget ended while the planner was at work; the campaign ends, and nothing failed."""


class Waiting(Exception):
    """The planner is someone outside who has not said yet what to do next; the run ends, and the campaign does not."""


class Planner(Protocol):
    """Chooses the next action. The same context yields the same action, so that a resume repeats nothing."""

    def next_action(self, context: Context) -> Action:
        """What to do next. Raises ModelUnavailable when a model is needed and can't be reached, TimeUp and Waiting."""
