"""The ledger of lever families: what a campaign has pulled at, and what it has left alone. Pure."""

from __future__ import annotations

from typing import NamedTuple

from feedback.verdict import VerdictKind
from infra_agent.domain import Experiment, State
from infra_agent.fields import LEVER_FAMILIES
from infra_agent.journal import Journal
from infra_agent.target import TargetSpec

CODE = ("kernels", "host code")
"""What a change of code may pull at where the target doesn't say."""


class Lever(NamedTuple):
    """One family and what became of it."""

    family: str
    tried: int
    accepted: int
    best: float | None
    """Largest relative gain estimated on the objective, whatever the verdict; None if none was measured."""

    def __str__(self) -> str:
        if not self.tried:
            return f"{self.family}: not tried"
        best = "" if self.best is None else f", best estimate {self.best:+.1%}"
        return f"{self.family}: {self.tried} tried, {self.accepted} accepted{best}"


def families(spec: TargetSpec) -> tuple[str, ...]:
    """The families that this target has levers of: its knobs', and those of its code."""
    launch = {spec.launch_file.path} if spec.launch_file else set()
    code = (spec.levers or CODE) if set(spec.editable) - launch else ()
    mine = {*(knob.family for knob in spec.knobs), *code}
    return tuple(family for family in LEVER_FAMILIES if family in mine)


def ledger(journal: Journal, spec: TargetSpec) -> tuple[Lever, ...]:
    """Every family of the target, and any other that was tried, in the order of LEVER_FAMILIES."""
    changes = [e for e in journal.finished if e.role == "change" and e.state is not State.FAILED]
    tried: dict[str, list[Experiment]] = {family: [] for family in families(spec)}
    for experiment in changes:
        tried.setdefault(experiment.proposal.hypothesis.lever_family, []).append(experiment)
    order: list[str] = list(LEVER_FAMILIES)
    known = sorted((f for f in tried if f in order), key=order.index)
    return tuple(_lever(f, tried[f], spec) for f in (*known, *(f for f in tried if f not in order)))


def untried(journal: Journal, spec: TargetSpec) -> tuple[str, ...]:
    """The target's families in which nothing was tried."""
    return tuple(lever.family for lever in ledger(journal, spec) if not lever.tried)


def _lever(family: str, experiments: list[Experiment], spec: TargetSpec) -> Lever:
    accepted = sum(e.confirmed and e.verdict is not None and e.verdict.kind is VerdictKind.ACCEPT for e in experiments)
    gains = [f.improvement for e in experiments for f in e.effects if f.metric == spec.objective.metric]
    return Lever(family, len(experiments), accepted, max(gains, default=None))
