"""One experiment: gate, probes, signals, verdict, confirmation. The one place where all three packages meet.

A candidate that fails ends as a verdict; a platform that fails raises.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from feedback.criteria import Criteria
from feedback.observations import Measurement, Observation, Scalar
from feedback.readers.run import read_artefact, steps
from feedback.rules.cases import text
from feedback.rules.derive import derive
from feedback.signals import CodeLocation, InputLocation, Location, ParamLocation, Signal
from feedback.verdict import Verdict, VerdictKind, judge
from infra_agent import course
from infra_agent.bench import Bench, CandidateFailed, Stage
from infra_agent.domain import Experiment, Outcome, Proposal, State
from infra_agent.errors import TargetInvalid
from infra_agent.investigation import points
from infra_agent.lab import Lab
from infra_agent.launch import read_knobs, rewrite
from infra_agent.policy import SCREEN_ALPHA, confirm_alpha
from infra_agent.probes import run_probe
from infra_agent.target import TargetSpec
from sandboxes.workspace import PatchRefused, protect

SCREEN_SHARE = 0.55
"""Part of the time left that a first measurement may take: an accept without time to confirm it is worth nothing."""


UNCONFIRMED = "accepted at first, but the time ended before it could be confirmed; give the campaign more minutes"


class Measured(NamedTuple):
    """What one stage yielded."""

    signals: list[Signal]
    observations: list[Observation]
    bench: Bench
    pruned: bool
    refutation: str = ""
    """Why the rest was spared: the probe that the hypothesis named has refuted it."""


def conduct(lab: Lab, experiment: Experiment) -> Outcome:
    """Measure a proposed change against its parent, and confirm it if it was accepted.

    Raises BaselineFailed, SandboxError and other platform failures; they say nothing about the change.
    """
    made = make_candidate(lab, experiment.parent_commit, experiment.proposal)
    if isinstance(made, Signal):
        return _refused(experiment, made)
    commit, patch, changed = made
    directory = lab.runs / experiment.id
    shutil.rmtree(directory, ignore_errors=True)  # a run that was cut off is measured from the start
    stage = Stage(name="screen", baseline=experiment.baseline, candidate=commit, seed=_seed(experiment, 0))
    screened = measure(lab.within(SCREEN_SHARE), stage, directory, changed, SCREEN_ALPHA, experiment.proposal)
    verdict, stages, confirmed = judge(screened.signals), [screened], False
    if screened.refutation and verdict.kind is VerdictKind.INCONCLUSIVE:
        verdict = Verdict(kind=VerdictKind.REJECT, reasons=(screened.refutation,))
    if verdict.kind is VerdictKind.ACCEPT:
        lab.say("accepted in the first measurement; confirming with fresh processes and seeds")
        stage = Stage(name="confirm", baseline=experiment.baseline, candidate=commit, seed=_seed(experiment, 1))
        again = measure(lab, stage, directory, changed, confirm_alpha(experiment.alpha), None)
        verdict = _confirmation(judge(again.signals))
        confirmed = verdict.kind is VerdictKind.ACCEPT
        if verdict.kind is VerdictKind.INCONCLUSIVE and not any(s.effect for s in again.signals):
            verdict = Verdict(kind=verdict.kind, reasons=(UNCONFIRMED,))
            stages = [again, screened]  # the first measurement is all there is to show
        else:
            stages.append(again)
    return _outcome(lab, stages, verdict, commit, patch, confirmed, directory)


def compare(lab: Lab, experiment: Experiment, baseline: str, candidate: str, pairs: int | None = None) -> Outcome:
    """Measure the objective of one commit against another, as the campaign's own measurement: the baseline
    against itself, or the final result against the original and the control arms.

    `pairs` fixes the number of pairs; otherwise it ends when the answer is clear.
    """
    directory = lab.runs / experiment.id
    shutil.rmtree(directory, ignore_errors=True)
    stage = Stage(
        name="screen", baseline=baseline, candidate=candidate, seed=_seed(experiment, 0), pairs=pairs, may_give_up=False
    )
    changed: tuple[Location, ...] = (CodeLocation(file="the whole target", symbol=experiment.role),)
    is_baseline = experiment.role == "baseline"
    measured = measure(lab, stage, directory, changed, SCREEN_ALPHA, None, gates=is_baseline)
    patch = "" if is_baseline else lab.site.repository.diff(baseline, candidate)
    return _outcome(lab, [measured], judge(measured.signals), candidate, patch, False, directory)


INVESTIGATION_PAIRS = 2
"""Fresh pairs a point: four processes of the parent, enough to see how far they differ."""


def investigate(lab: Lab, experiment: Experiment) -> Outcome:
    """Run one probe on the parent under chosen parameters, to answer a question. What fails there is an answer.

    Raises SandboxError and other platform failures, and InvestigationRefused for what can't be asked.
    """
    proposal, parent = experiment.proposal, experiment.parent_commit
    asked = points(lab.spec, proposal.probe, proposal.params)
    directory = lab.runs / experiment.id
    shutil.rmtree(directory, ignore_errors=True)
    stage = Stage(
        name="screen", baseline=parent, candidate=parent, seed=_seed(experiment, 0), pairs=INVESTIGATION_PAIRS,
        may_give_up=False, investigates=True,
    )  # fmt: skip
    builds = [p for p in lab.spec.shown_probes if p.kind == "build" and p.name != proposal.probe]
    failed: list[Signal] = []
    with Bench(lab.site, stage, directory, lab.seconds_left) as bench:
        try:
            for build in builds:
                run_probe(bench, build)
            for number, point in enumerate(asked):
                lab.say(f"investigation: {proposal.probe} {text(point.case) if point.case else ''}".rstrip())
                bench.point, bench.case = (number, point.case) if len(asked) > 1 else (None, point.case)
                run_probe(bench, point.probe)
        except CandidateFailed as failure:
            at = f" at {text(bench.case)}" if bench.case else ""
            failed.append(Signal(
                rule_id="correctness.not_measured", level="warning", finding="abstained", reason=str(failure)[:400],
                message=f"{proposal.probe} could not be measured{at}: {failure}"[:400],
                locations=(InputLocation(condition=bench.case),) if bench.case else (CodeLocation(file="the parent"),),
            ))  # fmt: skip
        observations = [*steps(bench.steps)]
        for artefact in bench.artefacts:
            if artefact.lost or (directory / artefact.path).exists():
                observations += read_artefact(directory, artefact)
        bench.record().save()
    asked_of = CodeLocation(file="the parent", symbol=proposal.probe)
    criteria = Criteria(changed=(asked_of,), question=proposal.hypothesis.question or proposal.hypothesis.claim)
    signals = [*failed, *derive(observations, criteria)]
    said = "could not be measured there: see the signals" if failed else f"{len(asked)} measured"
    verdict = Verdict(kind=VerdictKind.INCONCLUSIVE, reasons=(f"an investigation judges nothing; {said}",))
    return _outcome(lab, [Measured(signals, observations, bench, bool(failed))], verdict, parent, "", False, directory)


class Candidate(NamedTuple):
    """A change made into a commit."""

    commit: str
    patch: str
    """Unified diff from the parent, as git says it."""
    changed: tuple[Location, ...]
    """Where it acts: its knobs with their old and new values, and its files."""


def make_candidate(lab: Lab, parent: str, proposal: Proposal) -> Candidate | Signal:
    """The candidate's commit, or the signal that says why it is refused before any sandbox."""
    change = proposal.change
    before: dict[str, Scalar | None] = {}

    def edit(tree: Path) -> None:
        before.update(read_knobs(tree, lab.spec))
        if reason := lab.spec.refusal({**before, **change.knobs}):
            raise PatchRefused(reason)
        rewrite(tree, lab.spec, change.knobs)

    try:
        commit = lab.site.repository.apply(parent, change.patch, edit)
        files, patch = lab.site.repository.changes(parent, commit)
        if reason := protect(files, lab.spec.editable, lab.spec.protected):
            raise PatchRefused(reason)
    except (PatchRefused, TargetInvalid) as error:
        place: Location = CodeLocation(file=proposal.hypothesis.location or "the change")
        return Signal(
            rule_id="correctness.gate", level="error", finding="violates", role="gate",
            message=f"refused before any run: {error}"[:400], locations=(place,),
            next=("propose a change that respects the target's limits",),
        )  # fmt: skip
    knobs = [ParamLocation(name=n, value=v, was=before.get(n)) for n, v in change.knobs.items()]
    code = [CodeLocation(file=f.path) for f in files] if change.patch.strip() else []
    return Candidate(commit, patch, (*knobs, *code))


def measure(
    lab: Lab,
    stage: Stage,
    directory: Path,
    changed: tuple[Location, ...],
    alpha: float,
    proposal: Proposal | None,
    gates: bool = True,
) -> Measured:
    """Run one stage's probes, cheapest question first, until one answers the rest."""
    # Hidden probes are passed by the baseline and asked of what was accepted; more often, they could be guessed.
    hidden = gates and (stage.name == "confirm" or stage.baseline == stage.candidate)
    probes = course.ordered(lab.spec, proposal, gates, hidden)
    criteria = course.criteria(lab, changed, alpha, stage.name, gates)
    hidden_names = tuple(p.name for p in probes if p.hidden)
    criteria = criteria.model_copy(update={"hidden": hidden_names, "asked": course.asked(lab.spec, proposal)})
    observations: list[Observation] = []
    signals: list[Signal] = []
    files = course.Files(directory)
    with Bench(lab.site, stage, directory, lab.seconds_left) as bench:
        seen_steps = seen_artefacts = 0

        def read_new() -> None:
            nonlocal seen_steps, seen_artefacts
            observations.extend(steps(bench.steps[seen_steps:]))
            for artefact in bench.artefacts[seen_artefacts:]:
                if artefact.lost or (directory / artefact.path).exists():
                    observations.extend(files.read(artefact))
            seen_steps, seen_artefacts = len(bench.steps), len(bench.artefacts)

        for probe in probes:
            lab.say(f"{stage.name}: {probe.name}")
            try:
                run_probe(bench, probe, course.clear(bench, files, probe, criteria))
            except CandidateFailed:
                read_new()
                bench.record().save()
                return Measured(derive(observations, criteria), observations, bench, True)
            read_new()
            signals = derive(observations, criteria)
            if probe.name != lab.spec.objective.probe and course.is_answered(signals):
                bench.record().save()
                return Measured(signals, observations, bench, True)
            if proposal and probe.name == proposal.probe and (said := course.refutation(proposal, signals)):
                bench.record().save()
                return Measured(signals, observations, bench, True, said)
        bench.record().save()
    return Measured(signals, observations, bench, False)


def _confirmation(verdict: Verdict) -> Verdict:
    """What a first accept is worth after the confirmation."""
    if verdict.kind is VerdictKind.ACCEPT:
        return verdict
    kind = VerdictKind.INCONCLUSIVE if verdict.kind is VerdictKind.INCONCLUSIVE else VerdictKind.REJECT
    if verdict.kind is VerdictKind.INVALID:
        kind = VerdictKind.INVALID
    first, *rest = verdict.reasons
    return Verdict(kind=kind, reasons=(f"accepted at first, but not with fresh processes: {first}", *rest))


def _outcome(
    lab: Lab,
    stages: Sequence[Measured],
    verdict: Verdict,
    commit: str,
    patch: str,
    confirmed: bool,
    directory: Path,
) -> Outcome:
    last = stages[-1]
    samples = tuple(
        o
        for m in stages
        for o in m.observations
        if isinstance(o, Measurement) and o.paired and o.metric in _stored_metrics(lab.spec)
    )
    artefacts = tuple(a for m in stages for a in m.bench.artefacts if (directory / a.path).exists())
    return Outcome(
        state=State.PRUNED if last.pruned else State.COMPLETE,
        commit=commit, patch=patch, verdict=verdict.model_copy(update={"commit": commit}),
        signals=(*(last.signals or stages[0].signals), *_answers(stages)),
        effects=tuple(s.effect for s in last.signals if s.effect is not None),
        confirmed=confirmed, run_directory=str(directory),
        artefacts=artefacts, samples=samples, sandbox_s=sum(m.bench.sandbox_s for m in stages),
    )  # fmt: skip


def _answers(stages: Sequence[Measured]) -> list[Signal]:
    """What the probe that the hypothesis named has said: it was asked in the first measurement only, and a prediction
    is held against it whatever came after."""
    told = [s for m in stages[:-1] for s in m.signals if s.rule_id == "performance.question"]
    return told if stages[-1].signals else []


def _stored_metrics(spec: TargetSpec) -> set[str]:
    return {spec.objective.metric, *(g.metric for g in spec.guardrails), "slice_time_s", "instructions"}


def refused_as_seen(experiment: Experiment, seen: Experiment) -> Outcome:
    """The outcome of a change that was tried before on the same parent."""
    said = seen.verdict.kind.value if seen.verdict else "not judged yet"
    place = CodeLocation(file=experiment.proposal.hypothesis.location or "the change")
    return _refused(
        experiment,
        Signal(
            rule_id="correctness.gate", level="warning", finding="violates", role="gate",
            message=f"refused before any run: the same change was tried as experiment {seen.number} ({said})",
            locations=(place,), next=("propose something that was not tried yet",),
        ),
    )  # fmt: skip


def _refused(experiment: Experiment, signal: Signal) -> Outcome:
    return Outcome(
        state=State.PRUNED, commit=None, patch=experiment.proposal.change.patch,
        verdict=Verdict(kind=VerdictKind.REJECT, reasons=(signal.message,)),
        signals=(signal,), effects=(), confirmed=False, run_directory="",
    )  # fmt: skip


def _seed(experiment: Experiment, stage: int) -> int:
    """Fresh for every experiment and stage, the same when a cut-off one is measured again."""
    return (experiment.number * 7919 + stage * 104_729 + sum(experiment.campaign_id.encode())) & 0x7FFFFFFF
