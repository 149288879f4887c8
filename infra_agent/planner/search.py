"""A planner that needs no model: a search over launch parameters for few, expensive, noisy measurements.

From the values of the current parent it first screens one thing at a time: the target's control arms (throwing away
a bad inherited configuration is the cheapest large win), its joint moves, each knob's suggested values, and after each
round of them the small gains pooled into one change. Between these come steps from what was found: one further where
the latest paid off, the peak that a knob's measurements point to. Then what was undecided, beside the values accepted
since, and neighbours of the values in force, those knobs first whose measurements leave the most room. Only when these
are used up come joint changes that Optuna's TPE hopes for: at a few dozen noisy measurements it is worse than steps
(`benchmarks/planner_search.py`), but it finds what no single step shows. The journal is the planner's only memory: the
same journal gives the same proposal.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Literal, NamedTuple

from feedback.observations import Scalar
from feedback.verdict import VerdictKind
from feedback.wording import count
from infra_agent.domain import Change, Hypothesis, Prediction, Proposal
from infra_agent.planner import Action, Context, Propose, Stop
from infra_agent.planner.response import Response, steps_of
from infra_agent.planner.sampler import Axis, axis, draw
from infra_agent.planner.trials import Knobs, Trials, read_trials
from infra_agent.target import Knob, TargetSpec

Phase = Literal["local", "joint"]
PHASES: tuple[Phase, ...] = ("local", "joint")
"""After the screening: steps from what it found, then joint changes that TPE hopes for."""
PATIENCE = 12
"""So many joint changes in a row without an acceptance, and the space counts as explored."""
SAMPLED = "Optuna's TPE over "
"""How the mechanism of a joint change begins."""
TRIES = 2
"""The same change is measured at most this often, each time beside other values."""
ENOUGH_TO_POOL = 3
"""So many small gains are pooled at once; two wait until each knob's best guess was tried."""
POOLED_SHARE = 0.25
"""A gain joins a pool if its estimate is at least this share of the smallest gain worth having."""


class Candidate(NamedTuple):
    """A change worth measuring, and why."""

    changed: Knobs
    claim: str
    mechanism: str
    tries: int = 1
    """How often this very change may have been measured once this is done."""


class SearchPlanner:
    """Coordinate and pattern search over the target's knobs. `seed` orders knobs that nothing else orders."""

    def __init__(self, seed: int = 0, phases: tuple[Phase, ...] = PHASES) -> None:
        self._seed = seed
        self._phases = phases

    def next_action(self, context: Context) -> Action:
        """The first candidate that is allowed and new, or Stop with what was covered."""
        if not context.spec.knobs:
            return Stop(reason="the target declares no knobs to search; use --planner llm or script:FILE")
        search = _Search(context, self._seed, self._phases)
        for candidate in search.candidates():
            changed = search.difference(candidate.changed)
            if changed and search.is_open(changed, candidate.tries):
                return Propose(proposal=_proposal(candidate, changed, context))
        return Stop(reason=_coverage(context.spec, search.trials))


class _Search:
    """The candidates from one parent, best first."""

    def __init__(self, context: Context, seed: int, phases: tuple[Phase, ...]) -> None:
        self.phases = phases
        self.spec = context.spec
        self.here = context.knobs
        self.is_last = context.experiments_left <= 1
        self.seed = seed
        self.worth = math.log1p(context.spec.objective.min_effect)
        self.trials = read_trials(context)
        self.left_behind = self.trials.left_behind()

    def candidates(self) -> Iterator[Candidate]:
        """Every candidate in order; those already measured are among them."""
        local = "local" in self.phases
        if self.is_last:  # one experiment is best spent on what may add up
            yield from self.pools()
        yield from chain(self.controls(), self.moves())
        if local:
            yield from chain(self.further(), self.guesses(Response.peak))
        yield from self.pools(least=ENOUGH_TO_POOL)
        for number in range(max(len(knob.suggest) for knob in self.spec.knobs)):
            yield from self.suggestions(number)
            yield from self.pools()
        if local:
            yield from chain(self.guesses(Response.inside), self.again(0.0), self.neighbours())
            yield from chain(self.pools(), self.again(-math.inf))
        if "joint" in self.phases:
            yield from self.joint()

    def joint(self) -> Iterator[Candidate]:
        """Changes of several knobs at once. A knob whose measured steps all stayed within the noise floor waits
        until the others are explored."""
        active = [knob for knob in self.spec.knobs if not self.response(knob).is_noise]
        barren = self.barren()
        for number, knobs in enumerate((active, list(self.spec.knobs))):
            if barren < PATIENCE * (number + 1) and (number or len(knobs) < len(self.spec.knobs)):
                axes = [axis(knob, self.trials, self.here.get(knob.name)) for knob in knobs]
                yield from self.sampled([a for a in axes if len(a.values) > 1])

    def sampled(self, axes: list[Axis]) -> Iterator[Candidate]:
        """What TPE draws."""
        for knobs in draw(axes, self.here, self.trials, self.seed_of_step()):
            changed = self.difference(knobs)
            mechanism = f"{SAMPLED}{', '.join(a.name for a in axes)}: like the best of {len(self.trials.all)} measured."
            if len(changed) > 1 and not self.breaks_a_gate(changed):  # single steps were the first phase's
                yield Candidate(changed, f"{_text(changed)} together resemble the best so far", mechanism)

    def seed_of_step(self) -> int:
        """A seed that the campaign's seed and the number of trials fix."""
        return int(hashlib.sha256(f"{self.seed}:{len(self.trials.all)}".encode()).hexdigest()[:8], 16)

    def barren(self) -> int:
        """Joint changes since the last acceptance."""
        count = 0
        for trial in reversed(self.trials.all):
            if trial.verdict is VerdictKind.ACCEPT:
                break
            count += trial.mechanism.startswith(SAMPLED)
        return count

    def breaks_a_gate(self, changed: Knobs) -> bool:
        """Whether a value of this change was found to break a gate by itself."""
        items = self.trials.items(changed)
        return any("gate" in t.broken and len(t.items) == 1 and t.items <= items for t in self.trials.all)

    def difference(self, changed: Knobs) -> Knobs:
        """What of a change the engine would see."""
        return {n: v for n, v in changed.items() if not self.trials.same(n, v, self.here.get(n))}

    def is_open(self, changed: Knobs, tries: int) -> bool:
        """Whether the change is allowed beside the parent's values, was not measured there, and does not just
        go back on what was accepted."""
        knobs = {**self.here, **changed}
        return (
            len(self.trials.of(changed)) < tries
            and not self.trials.is_measured(knobs)
            and self.spec.refusal(knobs) is None
            and self.trials.items(changed) not in self.left_behind
        )

    def controls(self) -> Iterator[Candidate]:
        """The configurations that the result is held against anyway."""
        for control in self.spec.controls:
            knobs: Knobs = {knob.name: control.knobs.get(knob.name) for knob in self.spec.knobs}
            claim = f"The control arm {control.name} beats the inherited configuration"
            yield Candidate(knobs, claim, control.description)

    def moves(self) -> Iterator[Candidate]:
        """The target's joint settings."""
        for move in self.spec.moves:
            knobs = {name: self.trials.effective(name, value) for name, value in move.knobs.items()}
            yield Candidate(knobs, f"Setting {_text(knobs)} together helps", move.description)

    def further(self) -> Iterator[Candidate]:
        """One more step the way that the latest accepted change of one knob, or of one move's knobs, went."""
        last = next((trial for trial in reversed(self.trials.all) if trial.is_current), None)
        if last is None or None in last.changed.values():
            return
        if not any(set(last.changed) <= group for group in self.groups()):
            return
        knobs: Knobs = {}
        for name, after in last.changed.items():
            before = self.trials.effective(name, last.before[name])
            beyond = self.response(self.knob(name)).beyond(before, self.trials.effective(name, after))
            if beyond is not None:
                knobs[name] = beyond
        claim = f"The way to {_text(last.changed)} paid off; {_text(knobs)} goes further"
        yield Candidate(knobs, claim, "A response that rose in one direction may rise further.")

    def groups(self) -> list[set[str]]:
        """Knobs that are moved together: each by itself, and those of each joint move."""
        return [*({knob.name} for knob in self.spec.knobs), *(set(move.knobs) for move in self.spec.moves)]

    def guesses(self, guess: Callable[[Response], Scalar | None]) -> Iterator[Candidate]:
        """What each knob's own measurements point to."""
        for knob in self.spec.knobs:
            if (value := guess(self.response(knob))) is not None:
                claim = f"{_text({knob.name: value})} is nearer the peak than the values measured around it"
                yield Candidate({knob.name: value}, claim, knob.description)

    def suggestions(self, number: int) -> Iterator[Candidate]:
        """Each knob's suggested value of that rank."""
        for knob in self.spec.knobs:
            if number < len(knob.suggest):
                knobs = {knob.name: self.trials.effective(knob.name, knob.suggest[number])}
                yield Candidate(knobs, f"{_text(knobs)} helps", knob.description)

    def pools(self, least: int = 2) -> Iterator[Candidate]:
        """All gains that were too small to be told from noise, if at least so many, in one change."""
        gains: list[float] = []
        pooled: Knobs = {}
        for gain, trial in self.trials.promising(POOLED_SHARE * self.worth):
            changed = self.difference(trial.changed)
            allowed = self.spec.refusal({**self.here, **pooled, **changed}) is None
            if changed and allowed and not set(changed) & set(pooled):
                gains.append(gain)
                pooled |= changed
        if len(gains) >= least:
            claim = f"{len(gains)} small gains that noise hid one by one add up: {_text(pooled)}"
            yield Candidate(pooled, claim, f"Their estimates add up to {math.expm1(sum(gains)):.1%}.")

    def again(self, least: float) -> Iterator[Candidate]:
        """What did no clear harm beside other values than today's, once more, most hopeful first; only what
        was estimated to gain more than `least`."""
        open_ended = [(t.gain, t) for t in self.trials.all if t.gain and t.gain.high > 0]
        for gain, trial in sorted(open_ended, key=lambda pair: -pair[0].high):
            if len(trial.changed) == 1 and not trial.broke_a_rule and gain.estimate > least:
                claim = f"{_text(trial.changed)} helps beside the values accepted since it was tried"
                yield Candidate(trial.changed, claim, "Launch parameters interact.", tries=TRIES)

    def neighbours(self) -> Iterator[Candidate]:
        """Values next to those in force, coarse steps of all knobs before fine ones."""
        responses = [r for r in map(self.response, self.spec.knobs) if not r.is_flat]
        responses.sort(key=self.rank)
        near = [(response.knob, response.near()) for response in responses]
        for size in (0, 1):
            for knob, values in near:
                for value in values[size]:
                    claim = f"{_text({knob.name: value})}, next to the value in force, helps"
                    yield Candidate({knob.name: value}, claim, knob.description)

    def rank(self, response: Response) -> tuple[float, str]:
        """Knobs that were never measured first, then by the most that their measurements leave possible."""
        return (-response.room, hashlib.sha256(f"{self.seed}:{response.knob.name}".encode()).hexdigest())

    def response(self, knob: Knob) -> Response:
        """The steps of this knob alone that were measured, and the value in force."""
        force = self.trials.effective(knob.name, self.here.get(knob.name))
        return Response(knob, force, steps_of(knob, self.trials), self.worth)

    def knob(self, name: str) -> Knob:
        """The knob of that name."""
        return next(knob for knob in self.spec.knobs if knob.name == name)


def _text(knobs: Knobs) -> str:
    return ", ".join(f"{name} = {_value(value)}" for name, value in knobs.items())


def _value(value: Scalar | None) -> str:
    if value is None:
        return "the engine's default"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _proposal(candidate: Candidate, changed: Knobs, context: Context) -> Proposal:
    objective = context.spec.objective
    direction = "up" if objective.direction == "maximize" else "down"
    steps = [f"{n} goes from {_value(context.knobs.get(n))} to {_value(v)}" for n, v in changed.items()]
    return Proposal(
        hypothesis=Hypothesis(
            claim=candidate.claim[:2000],
            mechanism=candidate.mechanism,
            location=", ".join(changed),
            question=f"Does {objective.metric} go {direction} by at least {objective.min_effect:.1%} when "
            f"{', '.join(steps)}?",
            predicted=Prediction(metric=objective.metric, direction=direction, low=objective.min_effect),
            falsifier=f"The whole interval of the gain in {objective.metric} lies below "
            f"{objective.min_effect:.1%}, or a guardrail or gate breaks.",
        ),
        change=Change(knobs=changed),
    )


def _coverage(spec: TargetSpec, trials: Trials) -> str:
    """What was tried, for the person who reads why the search ended."""
    tried = []
    for knob in spec.knobs:
        values = dict.fromkeys(_value(t.changed[knob.name]) for t in trials.all if knob.name in t.changed)
        tried.append(f"{knob.name} ({', '.join(values) or 'nothing else allowed'})")
    joint = sum(trial.mechanism.startswith(SAMPLED) for trial in trials.all)
    last = f", and the last of {count(joint, 'joint change')} found nothing more" if joint else ""
    return (
        f"nothing new is left next to the values in force{last}: {len(trials.all)} changes were measured, "
        f"{count(len(spec.controls), 'control arm')} and {count(len(spec.moves), 'joint move')} among them; "
        f"tried values: {'; '.join(tried)}"
    )
