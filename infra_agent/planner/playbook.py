"""A planner that needs no model: an expert's first moves, from signals to changes, as `playbook.toml` has them.

Rules fire on signals of the current parent and on knobs in force. The tier of a rule says what comes first:
correctness, what does not fit the machine, the KV cache, ..., precision last. Within reach of the budget it asks for
missing evidence before it changes anything. What was measured before is not tried again; what earlier campaigns lost
with on this target and host comes last, and says so. It ends with what it covered, what only a change of code would
help, and which evidence or knob it lacks. The same context gives the same action.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from feedback.observations import Scalar
from feedback.signals import Signal
from infra_agent.domain import Change, Hypothesis, Prediction, Proposal
from infra_agent.investigation import InvestigationRefused, parameters, points
from infra_agent.lessons import SAME_PLACE, Lesson, effect_text
from infra_agent.planner import Action, Context, Investigate, Propose, Stop
from infra_agent.planner.closing import closing
from infra_agent.planner.dials import Dials
from infra_agent.planner.discipline import objection
from infra_agent.planner.edits import EditRefused, make_patch
from infra_agent.planner.rulebook import Ask, Playbook, Rule, Step, shipped
from infra_agent.planner.sources import Function, edit, hot
from infra_agent.planner.symptoms import Fact, fits, ids_of_parent, of_parent, says_nothing
from infra_agent.planner.tree import Tree
from infra_agent.planner.trials import read_trials
from infra_agent.target import CommandProbe, OutputsProbe, Probe

CHEAP = 0.1
"""Part of the time left that looking may take before something that is already known is tried."""
DEAR = 0.5
"""Part of the time left that looking may take where there is nothing to try."""
MAX_EVIDENCE = 4
REPORTS = {
    "trace": {"nsight", "chrome_trace", "otlp", "perfetto"},
    "profile": {"speedscope", "collapsed"},
    "counts": {"callgrind"},
    "events": {"events", "prometheus", "engine_log", "gc"},
}
"""Which kind of evidence a file is that a command leaves."""
UNSORTED = "launch parameters"
"""The family of a knob whose target doesn't say what it pulls at."""


class Firing(NamedTuple):
    """A rule with what it fired on."""

    rule: Rule
    signals: tuple[Signal, ...]
    facts: tuple[Fact, ...]

    @property
    def signal(self) -> Signal | None:
        """The signal that it is about; None where only knobs tell."""
        return self.signals[0] if self.signals else None


class Candidate(NamedTuple):
    """A change that a rule calls for."""

    firing: Firing
    change: Change
    files: tuple[str, ...]
    what: str
    """The change in words."""
    lesson: Lesson | None
    """What an earlier campaign learned of this very change on this target and host."""

    @property
    def order(self) -> tuple[bool, int, bool]:
        """What lost before comes after everything else; within a tier, what won before comes first."""
        lost = self.lesson is not None and self.lesson.is_loss
        won = self.lesson is not None and self.lesson.is_gain
        return lost, self.firing.rule.tier, not won


class PlaybookPlanner:
    """Acts by a playbook; the shipped one if none is given."""

    def __init__(self, book: Playbook | None = None) -> None:
        self._book = book

    def next_action(self, context: Context) -> Action:
        """The next change, a measurement that tells more, or Stop with what was covered and what is lacking."""
        case = Case(context, self._book or shipped())
        candidates = case.candidates()
        first = candidates[0].firing.rule.tier if candidates else None
        if (question := case.question(first)) is not None:
            return question
        refused: list[str] = []
        for candidate in candidates:
            proposal, reason = case.proposal(candidate)
            if proposal is not None:
                return Propose(proposal=proposal)
            refused.append(f"{candidate.firing.rule.id}: {reason}")
        return Stop(reason=closing(context, case.book, case.firings, refused, case.dials, case.evidence()))


class Case:
    """One context, diagnosed."""

    def __init__(self, context: Context, book: Playbook) -> None:
        self.context = context
        self.book = book
        self.tree = Tree(context.parent_tree, context.spec)
        self.trials = read_trials(context)
        self.dials = Dials(context, book, self.trials)
        self.signals = of_parent(context)
        self.ids = ids_of_parent(context)
        self.firings = tuple(sorted(self._fire(), key=lambda f: f.rule.tier))

    def _fire(self) -> Iterator[Firing]:
        for rule in self.book.rules:
            signals = [s for w in rule.when for s in self.signals if fits(w, s)]
            facts = [f for w in rule.when if w.rule is None and (f := self.dials.fact(w)) is not None]
            if signals or facts:
                unique = tuple({s.fingerprint: s for s in signals}.values())
                yield Firing(rule, unique[:MAX_EVIDENCE], tuple(facts))

    def candidates(self) -> list[Candidate]:
        """Every change that is called for, allowed and new, in the order of trying."""
        found: dict[str, Candidate] = {}
        for firing in self.firings:
            for step in firing.rule.do:
                for candidate in (*self._moved(firing, step), *self._transformed(firing, step)):
                    found.setdefault(candidate.change.fingerprint, candidate)
        return sorted(found.values(), key=lambda c: c.order)

    def _moved(self, firing: Firing, step: Step) -> Iterator[Candidate]:
        for wanted in self.dials.changes(step.moves, firing.signal) if step.moves else ():
            knobs = {n: v for n, v in wanted.items() if not self.trials.same(n, v, self.context.knobs.get(n))}
            whole = {**self.context.knobs, **knobs}
            is_new = knobs and not self.trials.of(knobs) and not self.trials.is_measured(whole)
            back = self.trials.items(knobs) in self.trials.left_behind()
            if is_new and not back and self.context.spec.refusal(whole) is None:
                said = ", ".join(f"{n} {_value(self.in_force(n))} -> {_value(v)}" for n, v in knobs.items())
                change = Change(knobs=knobs)
                yield Candidate(firing, change, (), said, self._lesson(change))

    def _transformed(self, firing: Firing, step: Step) -> Iterator[Candidate]:
        transform = self.book.transforms.get(step.transform)
        for one in hot(firing.signal, self.tree) if transform and firing.signal else ():
            made = edit(transform, one.function, self.tree, platform.machine()) if transform else None
            if made is None or transform is None or self._is_transformed(step.transform, one.function):
                continue
            try:
                change = Change(patch=make_patch(self.tree, self.context.spec, [made]))
            except EditRefused:  # not editable
                continue
            said = f"{step.transform} of {one.function.name} in {one.function.path}: {transform.says}"
            yield Candidate(firing, change, (one.function.path,), said, self._lesson(change))

    def _is_transformed(self, transform: str, function: Function) -> bool:
        """Whether this was tried, on whatever parent: line numbers of the patch may differ."""
        claim = f"{transform} of {function.name} in {function.path}"
        changes = (e for e in self.context.journal.experiments if e.role == "change")
        return any(e.proposal.hypothesis.claim.startswith(claim) for e in changes)

    def _lesson(self, change: Change) -> Lesson | None:
        near = (r.lesson for r in self.context.learned if r.kinship == SAME_PLACE)
        return next((lesson for lesson in near if lesson.is_of(change)), None)

    def in_force(self, name: str) -> Scalar | None:
        """The value of a knob that the engine takes now."""
        knob = self.context.spec.knob(name)
        return self.dials.in_force(knob) if knob else None

    def question(self, first: int | None) -> Investigate | None:
        """What to measure on the parent before the next change, whose tier is `first`; None if nothing new tells more
        within the budget. A rule's own question comes before changes of later tiers; general ones while nothing is
        known but that all is well."""
        if self.context.investigations_left <= 0:
            return None
        for firing in self.firings:
            if first is None or firing.rule.tier < first:
                asks = [step.ask for step in firing.rule.do if step.ask is not None]
                if (found := self._first(asks, DEAR if first is None else CHEAP)) is not None:
                    return found
        if first is not None and not all(says_nothing(s) for s in self.signals):
            return None
        return self._first(self.book.collect, DEAR if first is None else CHEAP)

    def _first(self, asks: Iterable[Ask], share: float) -> Investigate | None:
        """The cheapest question that was not asked of this parent and takes no more than this share of the time."""
        asked = [(q, cost) for ask in asks for q, cost in self._questions(ask)]
        left = self.context.seconds_left
        for question, cost_s in sorted(asked, key=lambda pair: pair[1]):
            if left is None or cost_s <= share * left:
                return question
        return None

    def _questions(self, ask: Ask) -> Iterator[tuple[Investigate, float]]:
        for probe in self.context.spec.shown_probes:
            if ask.method != ("reports" if _leaves_reports(probe) else probe.method):
                continue
            values = _values(probe, ask)
            if values is None:
                continue
            try:
                n_points = len(points(self.context.spec, probe.name, values))
            except InvestigationRefused:
                continue
            if not self._was_asked(probe.name, values):
                yield Investigate(question=ask.question, probe=probe.name, params=values), probe.cost_s * n_points

    def _was_asked(self, probe: str, values: dict[str, tuple[Scalar, ...]]) -> bool:
        return any(
            e.role == "investigation" and e.parent_commit == self.context.parent_commit
            and e.proposal.probe == probe and e.proposal.params == values
            for e in self.context.journal.experiments
        )  # fmt: skip

    def proposal(self, candidate: Candidate) -> tuple[Proposal | None, str]:
        """The candidate as a proposal that keeps to the rules for proposals, with the cheapest probe that does; or
        why there is none."""
        spec, rule = self.context.spec, candidate.firing.rule
        cheap = sorted((p for p in spec.shown_probes if p.kind == "microbench"), key=lambda p: p.cost_s)
        counts = [p.name for p in cheap if p.method == "callgrind"] if rule.predicts == "instructions" else []
        reason = ""
        for probe in counts or ("", *(p.name for p in cheap)):
            hypothesis = self._hypothesis(candidate, bool(counts))
            proposal = Proposal(hypothesis=hypothesis, change=candidate.change, probe=probe, planner="playbook")
            reason = objection(proposal, candidate.files, self.context) or ""
            if not reason:
                return proposal, ""
        return None, reason or f"{rule.id} names nothing to measure"

    def _hypothesis(self, candidate: Candidate, counted: bool) -> Hypothesis:
        firing, objective = candidate.firing, self.context.spec.objective
        rule = firing.rule
        low, high = rule.expect or (0.0, 0.0)
        metric = "instructions" if counted else objective.metric
        low = low if counted else max(low, objective.min_effect)
        lesson = candidate.lesson
        before = f" Lesson {lesson.id}: measured here before with {effect_text(lesson)}" if lesson else ""
        later = "; so it is tried after everything else." if lesson and lesson.is_loss else "."
        facts = [f"{f.knob} = {_value(f.value)}" + ("" if f.limit is None else f" against {_value(f.limit)}")
                 for f in firing.facts]  # fmt: skip
        seen = "; ".join([s.message[:160] for s in firing.signals] + facts)
        direction: Literal["up", "down"] = "up" if objective.direction == "maximize" and not counted else "down"
        knobs = [k for k in map(self.context.spec.knob, candidate.change.knobs) if k and k.family != UNSORTED]
        return Hypothesis(
            claim=f"{candidate.what} helps: {rule.why}"[:2000] if not candidate.files else candidate.what[:2000],
            mechanism=f"{rule.why} Seen: {seen}. ({rule.reference}){before + later if lesson else ''}",
            location=", ".join(candidate.change.knobs) or ", ".join(candidate.files),
            question=f"Does {metric} go {direction} by {low:.0%} or more with {candidate.what}?",
            lever_family=knobs[0].family if knobs else rule.family,
            predicted=Prediction(metric=metric, direction=direction, low=low, high=max(high, low)),
            falsifier=rule.falsifier,
            evidence=self._cited(firing, candidate),
        )

    def _cited(self, firing: Firing, candidate: Candidate) -> tuple[str, ...]:
        """Signals first, then the knobs whose values are evidence."""
        knobs = [f.knob for f in firing.facts] + list(candidate.change.knobs)
        return tuple(dict.fromkeys([*(self.ids[s.fingerprint] for s in firing.signals), *knobs]))

    def evidence(self) -> set[str]:
        """Kinds of evidence that this target's probes give, as the rules name them."""
        gives = {"callgrind": {"counts"}, "slices": {"times"}, "load": {"load"}, "events": {"events"},
                 "outputs": {"outputs"}, "logprobs": {"outputs"}}  # fmt: skip
        probes = self.context.spec.shown_probes
        found = {kind for p in probes for kind in gives.get(p.method, set())}
        formats = {report.format for p in probes if isinstance(p, CommandProbe) for report in p.reports}
        found |= {kind for kind, files in REPORTS.items() if formats & files}
        return found | ({"knobs"} if self.context.spec.knobs else set()) | {"tests"}


def _leaves_reports(probe: Probe) -> bool:
    return isinstance(probe, CommandProbe) and probe.waits and bool(probe.reports)


def _values(probe: Probe, ask: Ask) -> dict[str, tuple[Scalar, ...]] | None:
    """The parameters of a question to this probe; None where it has none of that name."""
    if ask.parameter is None:
        return {}
    known = dict(parameters(probe))
    if isinstance(probe, OutputsProbe) and probe.cases:
        known = {**known, **probe.cases[0]}
    for name, now in known.items():
        if re.fullmatch(ask.parameter, name, re.IGNORECASE) and isinstance(now, int) and not isinstance(now, bool):
            return {name: tuple(dict.fromkeys(max(1, int(now * factor)) for factor in ask.factors))}
    return None


def _value(value: Scalar | None) -> str:
    if value is None:
        return "the engine's default"
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
