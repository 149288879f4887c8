"""The Journal: everything a campaign tried and learned, in order. A frozen view of records; it reads no disk.

What failed because the platform failed says nothing about a change, so it is no evidence here: it is neither
seen, nor among the tried knobs, nor rendered. It still counts as one of the changes the campaign spent.
"""

from __future__ import annotations

import math
from collections import Counter

from pydantic import field_validator

from feedback.observations import Scalar
from feedback.signals import Effect
from feedback.verdict import VerdictKind
from feedback.wording import short
from infra_agent import forecast
from infra_agent.domain import Change, Experiment, State
from infra_agent.forecast import standing
from infra_agent.patches import touched
from sandboxes.results import Record

_CLAIM_CHARACTERS = 100
_REASON_CHARACTERS = 140
_KNOB_CHARACTERS = 60


class Journal(Record):
    """A campaign's experiments and what follows from them."""

    experiments: tuple[Experiment, ...] = ()
    """All of them, by number."""

    @field_validator("experiments")
    @classmethod
    def _in_order(cls, experiments: tuple[Experiment, ...]) -> tuple[Experiment, ...]:
        return tuple(sorted(experiments, key=lambda experiment: experiment.number))

    def updated(self, experiment: Experiment) -> Journal:
        """The journal with this experiment in the place of its number."""
        others = tuple(e for e in self.experiments if e.number != experiment.number)
        return Journal(experiments=(*others, experiment))

    @property
    def finished(self) -> tuple[Experiment, ...]:
        """Those that have their outcome: complete or pruned."""
        return tuple(e for e in self.experiments if e.state.is_finished)

    @property
    def unfinished(self) -> tuple[Experiment, ...]:
        """Those waiting or running; after a crash, what a resume has to take up."""
        return tuple(e for e in self.experiments if e.state in (State.WAITING, State.RUNNING))

    @property
    def waiting(self) -> tuple[Experiment, ...]:
        """Changes that were proposed and are not measured yet: further ones may join them."""
        return tuple(e for e in self.experiments if e.state is State.WAITING and e.role == "change")

    @property
    def accepted(self) -> tuple[Experiment, ...]:
        """The changes that were accepted and confirmed."""
        return tuple(e for e in self.finished if _is_accepted(e))

    @property
    def number_of_changes(self) -> int:
        """How many changes the campaign has begun, whatever came of them."""
        return sum(e.role == "change" for e in self.experiments)

    @property
    def sandbox_s(self) -> float:
        """Wall time of all sandboxed work so far, and of attempts that were killed as far as that is kept."""
        return sum(e.sandbox_s + e.lost_s for e in self.experiments)

    @property
    def step_investigations(self) -> tuple[Experiment, ...]:
        """The finished investigations since the last change, in order: what the planner asked in this step."""
        last = max((e.number for e in self.experiments if e.role == "change"), default=-1)
        return tuple(e for e in self.finished if e.role == "investigation" and e.number > last)

    def before_step(self) -> Journal:
        """The journal as it was when this step began: without the investigations made in it."""
        mine = {e.number for e in self.step_investigations}
        return Journal(experiments=tuple(e for e in self.experiments if e.number not in mine))

    def when_proposed(self, experiment: Experiment) -> Journal:
        """The journal as it was when an experiment was proposed: with the earlier ones, of which those that were
        measured at the same time as it had no outcome yet."""
        open_then = {"state": State.WAITING, "verdict": None, "signals": (), "effects": (), "confirmed": False}

        def as_it_was(earlier: Experiment) -> Experiment:
            ended_at = earlier.finished_at
            is_known = earlier.state.is_finished and (ended_at is None or ended_at <= experiment.created_at)
            return earlier if is_known else earlier.model_copy(update=open_then)

        return Journal(experiments=tuple(as_it_was(e) for e in self.experiments if e.number < experiment.number))

    @staticmethod
    def improvement(experiment: Experiment) -> float:
        """The estimated gain on the objective; 0 where it was not measured."""
        effect = _objective(experiment)
        return effect.improvement if effect else 0.0

    def best_commit(self, base: str) -> str:
        """The commit of the best accepted change, or `base`."""
        stack = self.stack
        return (stack[-1].commit if stack else None) or base

    @property
    def stack(self) -> tuple[Experiment, ...]:
        """The accepted changes that make up the result, in order, each measured against the one before: of all such
        lines from the original the one that gained most, the later of two equal ones."""
        gains = self.confirmed_gains()
        ranked = [(gains[e.commit], e.number, e) for e in self.accepted if e.commit in gains]
        found = [max(ranked, key=lambda entry: entry[:2])[2]] if ranked else []
        made = {e.commit: e for e in reversed(self.accepted)}
        while found and (below := made.get(found[0].baseline)) is not None and below not in found:
            found.insert(0, below)
        return tuple(found)

    def confirmed_gains(self) -> dict[str, float]:
        """The log-gain over the original of every commit that a line of accepted changes leads to: the sum of their
        confirmed effects, in the wanted direction."""
        starts = [e.baseline for e in (*(e for e in self.experiments if e.role == "baseline"), *self.accepted)]
        gains = dict.fromkeys(starts[:1], 0.0)
        for experiment in self.accepted:  # by number, so what one was measured against stands before it
            if experiment.commit and experiment.baseline in gains:
                gains.setdefault(experiment.commit, gains[experiment.baseline] + log_gain(experiment))
        return gains

    def seen(self, change_fingerprint: str, parent_commit: str, patch: str = "") -> Experiment | None:
        """The latest experiment that makes this one needless: the same change of the same parent, or another
        change of it with the same resulting diff `patch` (as git says it, so the same tree)."""
        for experiment in reversed(self.experiments):
            if not _is_evidence(experiment) or experiment.parent_commit != parent_commit:
                continue
            same_change = experiment.proposal.change.fingerprint == change_fingerprint
            if same_change or (patch and experiment.patch == patch):
                return experiment
        return None

    def knobs_tried(self) -> dict[str, tuple[Scalar | None, ...]]:
        """The values that changes gave each knob, alone or with others, in the order of their first trial."""
        tried: dict[str, dict[tuple[type, Scalar | None], None]] = {}
        for experiment in filter(_is_evidence, self.experiments):
            for name, value in experiment.proposal.change.knobs.items():
                tried.setdefault(name, {})[type(value), value] = None
        return {name: tuple(value for _, value in values) for name, values in tried.items()}

    def render(self, limit: int = 40) -> str:
        """One line a change or investigation for a planner, at most `limit` of them: the accepted ones, then those
        whose hypothesis was refuted, then the latest.

        What is left out is counted in a line at the top. A line's numbers are the effect on the objective
        with its interval, as a relative gain in the wanted direction; then comes what became of the prediction.
        """
        evidence = [
            e for e in self.experiments if _is_evidence(e) or (e.role == "investigation" and e.state.is_finished)
        ]
        by_worth = sorted(evidence, key=lambda e: (_is_accepted(e), _is_refuted(e), e.number), reverse=True)
        kept = {e.number for e in by_worth[: max(limit, 0)]}
        lines = [_line(e) for e in evidence if e.number in kept]
        left_out = Counter(_outcome(e) for e in evidence if e.number not in kept)
        if left_out:
            counts = ", ".join(f"{count} {outcome}" for outcome, count in left_out.items())
            lines.insert(0, f"({left_out.total()} more not shown: {counts})")
        return "\n".join(lines)


def log_gain(experiment: Experiment) -> float:
    """An experiment's effect on the objective as a log-ratio in the wanted direction; 0 where none was measured."""
    effect = _objective(experiment)
    if effect is None or not (math.isfinite(effect.ratio) and effect.ratio > 0):
        return 0.0
    return math.log(effect.ratio) if effect.direction == "maximize" else -math.log(effect.ratio)


def _is_evidence(experiment: Experiment) -> bool:
    return experiment.role == "change" and experiment.state is not State.FAILED


def _is_accepted(experiment: Experiment) -> bool:
    verdict = experiment.verdict
    accepted = verdict is not None and verdict.kind is VerdictKind.ACCEPT
    return experiment.role == "change" and experiment.confirmed and accepted


def _is_refuted(experiment: Experiment) -> bool:
    found = standing(experiment)
    return found is not None and found.outcome == "refuted"


def _outcome(experiment: Experiment) -> str:
    """The verdict's word; an acceptance that was not confirmed, and a run that is not over, say so."""
    if experiment.role == "investigation":
        return "investigated"
    verdict = experiment.verdict
    if verdict is None or not experiment.state.is_finished:
        return experiment.state.value
    unconfirmed = verdict.kind is VerdictKind.ACCEPT and not experiment.confirmed
    return "accept, unconfirmed" if unconfirmed else verdict.kind.value


def _line(experiment: Experiment) -> str:
    if experiment.role == "investigation":
        asked = f"#{experiment.number} asked {experiment.proposal.probe}: "
        asked += short(experiment.proposal.hypothesis.question, _CLAIM_CHARACTERS)
        told = [s for s in experiment.signals if s.rule_id != "correctness.test_fail" or s.finding != "holds"]
        said = [short(s.message, _REASON_CHARACTERS) for s in told[:3]]
        return " | ".join([asked, *said])
    found = standing(experiment)
    parts = [
        f"#{experiment.number} {_outcome(experiment)}{_gain(experiment)}",
        short(experiment.proposal.hypothesis.claim, _CLAIM_CHARACTERS),
        describe(experiment.proposal.change, _KNOB_CHARACTERS),
    ]
    if found is not None and found.outcome != "not measured":
        parts.append(f"prediction {short(forecast.said(found), _REASON_CHARACTERS)}")
    if experiment.verdict and experiment.verdict.reasons:
        parts.append(short(experiment.verdict.reasons[0], _REASON_CHARACTERS))
    return " | ".join(parts)


def _gain(experiment: Experiment) -> str:
    effect = _objective(experiment)
    if effect is None:
        return ""
    low, high = effect.improvement_interval
    return f" {effect.metric} {effect.improvement:+.1%} [{low:+.1%}, {high:+.1%}]"


def _objective(experiment: Experiment) -> Effect | None:
    """The effect on the objective: the confirmed one if there is one. None when it was not measured."""
    signal = next((s for s in experiment.signals if s.role == "objective" and s.effect), None)
    if signal is None or signal.effect is None:
        return experiment.effects[0] if experiment.effects else None
    metric = signal.effect.metric
    return next((effect for effect in experiment.effects if effect.metric == metric), signal.effect)


def describe(change: Change, limit: int | None = None) -> str:
    """The change in a few words: knobs with their values, files and line counts of a patch. Each value and the list of
    files is cut at `limit` characters, if one is given."""

    def cut(text: str) -> str:
        return text if limit is None else short(text, limit)

    parts = [f"{n} unset" if value is None else f"{n}={cut(str(value))}" for n, value in change.knobs.items()]
    if change.patch.strip():
        patch = touched(change.patch)
        named = cut(", ".join(patch.files)) or "unknown files"
        parts.append(f"patch of {named} (+{patch.added} -{patch.removed})")
    return ", ".join(parts) or "no change"
