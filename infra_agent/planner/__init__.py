"""The planner protocol: given what is known, what to do next. Kinds are sibling files; `build_planner` picks one.

A planner proposes; it never measures and never judges.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from feedback.observations import Scalar
from infra_agent.domain import Proposal
from infra_agent.journal import Journal
from infra_agent.lessons import Recalled
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
    machine: str = ""
    """What else bears on how code for that host is written, in a line."""
    digest: str
    """Signals of the latest experiments as text, within a token budget."""
    experiments_left: int
    seconds_left: float | None
    """Wall time that the planner may take; None without a time budget."""
    minutes: float | None = None
    """The campaign's time budget as a whole; None without one."""
    runs: Path = Path()
    """Directory with the run directory of each experiment, for a signal's evidence."""
    source: Path = Path()
    """The target as the user gave it; where it is a git repository, its history up to `source_commit` may be read."""
    source_commit: str = ""
    investigations_left: int = 0
    """How many more of them this step may make."""
    learned: tuple[Recalled, ...] = ()
    """Lessons of earlier campaigns that bear on this step, nearest and most trustworthy first."""
    lessons: str = ""
    """The same as text, within a token budget. To be quoted."""
    line: str = ""
    """What this step builds on, where that is not the best result."""
    sample: str = ""
    """Of independent proposals that must not know of each other, which one this is."""
    base_commit: str = ""
    """The commit that the campaign started from: the original. Empty where it is the parent."""
    base_tree: Path = Path()
    base_knobs: dict[str, Scalar | None] = {}

    def at_original(self) -> Context:
        """The same context with the original as the parent of the next change."""
        if not self.base_commit:
            return self
        original = {"parent_commit": self.base_commit, "parent_tree": self.base_tree, "knobs": self.base_knobs}
        return self.model_copy(update=original)


class Propose(Record):
    """Measure this change."""

    proposal: Proposal
    parent: str = ""
    """The commit that the change applies to, one that the context names; empty: the context's parent."""


class Investigate(Record):
    """Run a probe on the parent to answer a question. The next call finds the answer in the journal."""

    question: str
    probe: str
    params: dict[str, tuple[Scalar, ...]] = {}
    parent: str = ""
    """As in Propose."""
    planner: str = ""
    """Which planner asks, where several share a campaign."""


class Stop(Record):
    """Nothing more to try, and why."""

    reason: str


Action = Investigate | Propose | Stop


class BudgetSpent(Exception):
    """A budget of the campaign ended while the planner was at work; the campaign ends, and nothing failed. The message
    is the reason, and begins with `the budget of`."""


class TimeUp(BudgetSpent):
    """It was the time budget. Whoever raises it knows a moment and not the budget, so there is no message."""


class Waiting(Exception):
    """The planner is someone outside who has not said yet what to do next; the run ends, and the campaign does not."""


class Planner(Protocol):
    """Chooses the next action. The same context yields the same action, so that a resume repeats nothing."""

    def next_action(self, context: Context) -> Action:
        """What to do next. Raises ModelUnavailable when a model is needed and can't be reached, BudgetSpent and
        Waiting."""
