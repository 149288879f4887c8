"""Lessons: what an experiment taught (signal, change, measured effect), kept beyond its campaign. Pure.

A lesson is made when an experiment is stored and never changed by the machine again; a person may correct its words
or delete it. A campaign is told of those that were there when it began, so that a resume is told the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from pydantic import Field

from feedback.digest import count_tokens
from feedback.observations import Scalar
from feedback.signals import CodeLocation, Direction, ParamLocation, Signal
from feedback.verdict import VerdictKind
from feedback.wording import short
from infra_agent import citation
from infra_agent.domain import Campaign, Change, Experiment, now
from infra_agent.forecast import ForecastOutcome, standing
from infra_agent.journal import Journal
from infra_agent.patches import touched
from infra_agent.target import TargetSpec
from sandboxes.results import Record

ENGINES = {
    "vllm": r"\bvllm\b|vllm-|-vllm",
    "sglang": r"\bsglang\b|\bsgl\b",
    "llama.cpp": r"llama[._-]?cpp|llama-server|\bgguf\b",
    "tensorrt-llm": r"tensorrt[-_]?llm|\btrtllm\b",
    "lmdeploy": r"\blmdeploy\b",
    "ollama": r"\bollama\b",
}
"""Engine -> what names it in a target's packages, its server's command, its name or its description."""
MAX_SYMPTOMS = 4
MAX_REASONS = 3
FROZEN = 200
"""Lessons that a campaign is told of at most, over all of its steps."""
LESSON_TOKENS = 700
"""What a planner is shown of them at a time."""
MAX_TEXT = 2000
SAME_PLACE, SAME_ENGINE, SAME_RULE, STRANGE = 3, 2, 1, 0


class Symptom(Record):
    """A signal that a hypothesis rested on."""

    rule_id: str
    message: str


class Lesson(Record):
    """One change and what came of it, with where that was."""

    id: str
    campaign_id: str
    experiment_id: str
    number: int
    """Of the experiment in its campaign."""
    target_name: str
    engine: str = ""
    """Empty where the target doesn't tell."""
    host_fingerprint: str
    metric: str
    """The objective's."""
    direction: Direction
    target_knobs: tuple[str, ...] = ()
    """All knobs of the target."""
    lever_family: str
    claim: str
    symptoms: tuple[Symptom, ...] = ()
    """The signals that the hypothesis cited."""
    changed: dict[str, Scalar | None] = {}
    """Knobs that were set, and to what; None leaves one to the engine."""
    was: dict[str, Scalar | None] = {}
    """Their values before, as far as the signals tell."""
    files: tuple[str, ...] = ()
    """Files that a patch changed."""
    change_fingerprint: str
    planner: str = ""
    verdict: VerdictKind
    reasons: tuple[str, ...] = ()
    confirmed: bool = False
    """Accepted, and accepted again with fresh processes."""
    gain: float | None = None
    """Relative gain of the objective in the wanted direction; None if it was not measured."""
    gain_low: float | None = None
    gain_high: float | None = None
    outcome: ForecastOutcome | None = None
    """What became of the prediction."""
    text: str = ""
    """A person's words in place of the machine's; empty while nobody corrected it."""
    edited_by: str = ""
    edited_at: datetime | None = None
    created_at: datetime = Field(default_factory=now)

    @property
    def is_gain(self) -> bool:
        """Whether the change was accepted and confirmed."""
        return self.verdict is VerdictKind.ACCEPT and self.confirmed

    @property
    def is_loss(self) -> bool:
        """Whether the change was refused on what was measured of it."""
        return self.verdict in (VerdictKind.REJECT, VerdictKind.INVALID)

    def is_of(self, change: Change) -> bool:
        """Whether it tells of this very change."""
        same_knobs = bool(self.changed) and not self.files and not change.patch and self.changed == change.knobs
        return same_knobs or self.change_fingerprint == change.fingerprint


class Here(NamedTuple):
    """Where a campaign runs: what lessons are held against."""

    target_name: str
    engine: str
    host_fingerprint: str
    knobs: frozenset[str]
    metric: str


class Recalled(Record):
    """A lesson, and how near its place is to where it is told."""

    lesson: Lesson
    kinship: int
    """SAME_PLACE (target and host), SAME_ENGINE (and a knob in common, or the target on another host), SAME_RULE."""
    is_same_symptom: bool = False
    """A signal of this campaign is of a rule that the lesson rested on."""


def engine_of(spec: TargetSpec) -> str:
    """The engine that a target serves with, by its packages, command, name and description; empty if unknown."""
    told = [p.requirement for p in spec.packages] + list(spec.server.command if spec.server else ())
    for text in (" ".join(told), spec.name, spec.description):
        for name, pattern in ENGINES.items():
            if re.search(pattern, text, re.IGNORECASE):
                return name
    return ""


def here(spec: TargetSpec, host_fingerprint: str) -> Here:
    """Where a campaign on this target and host runs."""
    knobs = frozenset(knob.name for knob in spec.knobs)
    return Here(spec.name, engine_of(spec), host_fingerprint, knobs, spec.objective.metric)


def learned(id: str, campaign: Campaign, spec: TargetSpec, experiment: Experiment, journal: Journal) -> Lesson | None:
    """What a finished experiment taught, or None: nothing is learned from an investigation, from the campaign's own
    measurements, from what was refused before anything ran or never measured, nor where the platform failed."""
    verdict, proposal = experiment.verdict, experiment.proposal
    if experiment.role != "change" or not experiment.state.is_finished or not experiment.run_directory or not verdict:
        return None
    effect = next((e for e in experiment.effects if e.metric == spec.objective.metric), None)
    if effect is None and verdict.kind not in (VerdictKind.REJECT, VerdictKind.INVALID):
        return None  # the time was over before anything could be said of it
    low, high = effect.improvement_interval if effect else (None, None)
    found = standing(experiment)
    return Lesson(
        id=id, campaign_id=campaign.id, experiment_id=experiment.id, number=experiment.number,
        target_name=spec.name, engine=engine_of(spec), host_fingerprint=campaign.host_fingerprint,
        metric=spec.objective.metric, direction=spec.objective.direction,
        target_knobs=tuple(knob.name for knob in spec.knobs),
        lever_family=proposal.hypothesis.lever_family, claim=proposal.hypothesis.claim,
        symptoms=_symptoms(proposal.hypothesis.evidence, journal),
        changed=proposal.change.knobs, was=_before(experiment), files=_files(experiment),
        change_fingerprint=proposal.change.fingerprint, planner=proposal.planner or campaign.spec.planner,
        verdict=verdict.kind, reasons=verdict.reasons[:MAX_REASONS], confirmed=experiment.confirmed,
        gain=effect.improvement if effect else None, gain_low=low, gain_high=high,
        outcome=found.outcome if found else None,
    )  # fmt: skip


def _symptoms(cited: Iterable[str], journal: Journal) -> tuple[Symptom, ...]:
    """The signals behind the ids that a hypothesis cites."""
    found: dict[str, Symptom] = {}
    for given in cited:
        known = (c.signal for c in citation.cited(journal.finished, given) if c.signal.rule_id != citation.HIDDEN)
        if (signal := next(known, None)) is not None:
            found[signal.fingerprint] = Symptom(rule_id=signal.rule_id, message=signal.message[:240])
    return tuple(found.values())[:MAX_SYMPTOMS]


def _before(experiment: Experiment) -> dict[str, Scalar | None]:
    places = [p for s in experiment.signals for p in s.locations if isinstance(p, ParamLocation)]
    return {p.name: p.was for p in places if p.name in experiment.proposal.change.knobs}


def _files(experiment: Experiment) -> tuple[str, ...]:
    patch = experiment.proposal.change.patch
    if not patch.strip():
        return ()
    named = touched(patch).files
    placed = (p.file for s in experiment.signals for p in s.locations if isinstance(p, CodeLocation))
    return (named or tuple(dict.fromkeys(placed)))[:10]


def kept(lessons: Iterable[Lesson], place: Here) -> tuple[Lesson, ...]:
    """The lessons that a campaign which begins here is told of from then on: the nearest and most trustworthy."""
    ranked = sorted((Recalled(lesson=lesson, kinship=_kinship(lesson, place)) for lesson in lessons), key=_order(place))
    return tuple(r.lesson for r in ranked if r.kinship or r.lesson.symptoms)[:FROZEN]


def recall(lessons: Iterable[Lesson], place: Here, signals: Iterable[Signal]) -> tuple[Recalled, ...]:
    """The lessons that have a bearing on this place and these signals, nearest and most trustworthy first: of the
    target on this host, then of its engine and a knob that it has, then of a rule that fired here too. Of several
    that say the same of one change, the most trustworthy one."""
    rules = {s.rule_id for s in signals}
    found = []
    for lesson in lessons:
        shares = any(s.rule_id in rules for s in lesson.symptoms)
        near = max(_kinship(lesson, place), SAME_RULE if shares else STRANGE)
        if near:
            found.append(Recalled(lesson=lesson, kinship=near, is_same_symptom=shares))
    unique: dict[tuple[str, str, str, VerdictKind], Recalled] = {}
    for recalled in sorted(found, key=_order(place)):
        of = recalled.lesson
        unique.setdefault((of.target_name, of.host_fingerprint, of.change_fingerprint, of.verdict), recalled)
    return tuple(unique.values())


def _kinship(lesson: Lesson, place: Here) -> int:
    same_target = lesson.target_name == place.target_name
    if same_target and lesson.host_fingerprint == place.host_fingerprint:
        return SAME_PLACE
    same_engine = bool(lesson.engine) and lesson.engine == place.engine
    if same_target or (same_engine and not place.knobs.isdisjoint(lesson.changed)):
        return SAME_ENGINE
    return STRANGE


def _trust(lesson: Lesson) -> int:
    """A person's word before a confirmed gain, that before a clear loss, and all before what stayed open."""
    if lesson.edited_at is not None:
        return 3
    if lesson.is_gain:
        return 2
    return 1 if lesson.is_loss or lesson.outcome == "refuted" else 0


def _order(place: Here) -> Callable[[Recalled], tuple[int, bool, bool, int, float, str]]:
    """The sort key of recalled lessons here."""

    def key(recalled: Recalled) -> tuple[int, bool, bool, int, float, str]:
        of = recalled.lesson
        other_metric = of.metric != place.metric
        age = -of.created_at.timestamp()
        return (-recalled.kinship, not recalled.is_same_symptom, other_metric, -_trust(of), age, of.id)

    return key


def render(recalled: Sequence[Recalled], tokens: int = LESSON_TOKENS) -> str:
    """The lessons as text for a planner, within a budget of tokens; says how many were left out. Quote it: the words
    in it are from models, programs and people."""
    lines: list[str] = []
    left = tokens - 20
    for r in recalled:
        line = f"- {told(r.lesson)} ({_where(r)})"
        if (cost := count_tokens(line) + 1) > left:
            lines.append(f"({len(recalled) - len(lines)} more lessons not shown)")
            break
        lines.append(line)
        left -= cost
    return "\n".join(lines)


def _where(recalled: Recalled) -> str:
    named = {SAME_PLACE: "this target on this host", SAME_ENGINE: "this engine or another host",
             SAME_RULE: "another target, the same rule"}  # fmt: skip
    return named.get(recalled.kinship, "elsewhere") + (", same signal as here" if recalled.is_same_symptom else "")


def told(lesson: Lesson) -> str:
    """A lesson in one line: `[les_…] llamacpp: threads 8 -> 2: output_throughput +35.0% [+31.0%, +40.0%], accepted`."""
    name = f"[{lesson.id}] {lesson.target_name}: "
    if lesson.text:
        when = f" {lesson.edited_at:%Y-%m-%d}" if lesson.edited_at else ""
        return f"{name}{short(lesson.text, 400)} (corrected by {short(lesson.edited_by, 40)}{when})"
    because = [f" because of {s.rule_id} ({short(s.message, 100)})" for s in lesson.symptoms[:1]]
    said = name + change_text(lesson) + "".join(because) + f": {effect_text(lesson)}"
    if lesson.outcome in ("confirmed", "refuted"):
        said += f"; prediction {lesson.outcome}"
    if lesson.is_loss and lesson.reasons and lesson.gain is None:
        said += f"; {short(lesson.reasons[0], 140)}"
    return said


def change_text(lesson: Lesson) -> str:
    """What was changed, in a few words."""
    knobs = [f"{name} {_value(lesson.was[name]) + ' -> ' if name in lesson.was else '= '}{_value(value)}"
             for name, value in lesson.changed.items()]  # fmt: skip
    patch = [f"patch of {', '.join(short(f, 60) for f in lesson.files[:3])}"] if lesson.files else []
    return ", ".join(knobs + patch) or "no change"


def effect_text(lesson: Lesson) -> str:
    """The measured effect and the verdict, in a few words."""
    verdict = "accepted and confirmed" if lesson.is_gain else lesson.verdict.value
    if lesson.gain is None or lesson.gain_low is None or lesson.gain_high is None:
        return f"{lesson.metric} not measured, {verdict}"
    return f"{lesson.metric} {lesson.gain:+.1%} [{lesson.gain_low:+.1%}, {lesson.gain_high:+.1%}], {verdict}"


def _value(value: Scalar | None) -> str:
    return "the engine's default" if value is None else short(str(value), 40)
