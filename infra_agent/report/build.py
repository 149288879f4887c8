"""From a campaign's records to its report. Pure.

Nothing is computed anew from measurements: every number with an interval is an Effect of some experiment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from feedback import stats
from feedback.observations import Scalar
from feedback.rules.performance import gain_text
from feedback.signals import Effect, Signal, as_gain, as_loss
from feedback.verdict import VerdictKind
from infra_agent import forecast
from infra_agent.domain import Campaign, CampaignState, Experiment, ModelUse, NoiseUnits
from infra_agent.journal import Journal, describe
from infra_agent.patches import touched
from infra_agent.planner.trials import Here
from infra_agent.policy import SCREEN_ALPHA, is_spent
from infra_agent.report import words
from infra_agent.report.budgets import overdrawn, use_of
from infra_agent.report.effort import CallUse, shares
from infra_agent.report.facts import Comparison, Held, KnobChange, Layer, Noise, Report, Tried
from infra_agent.report.learned import knob_effects
from infra_agent.target import LoadProbe, SlicesProbe, TargetSpec

ORIGINAL = "the original"


class Result(NamedTuple):
    """What the report needs beside the journal."""

    patch: str = ""
    """Diff from the original to the best commit; empty when nothing was accepted."""
    before: Mapping[str, Scalar | None] = {}
    """The original's knob values; None where the engine's default applies."""
    after: Mapping[str, Scalar | None] = {}
    """The best commit's."""
    noise: NoiseUnits | None = None
    """A/A units that are known for the objective on the campaign's host."""
    cores: int = 1
    """CPUs that values such as `cores` mean."""
    calls: Sequence[CallUse] = ()
    """What the models' calls took."""
    models: ModelUse = ModelUse()
    """What the campaign's model calls add up to."""


def build(campaign: Campaign, spec: TargetSpec, journal: Journal, result: Result) -> Report:
    """The report of a campaign, finished or not."""
    comparisons = (_original(spec, journal, result), *_controls(campaign, spec, journal, result))
    base = campaign.base_commit
    tried = tuple(_tried(e) for e in journal.experiments if e.role == "change")
    baseline = next((_objective(e)[1] for e in journal.finished if e.role == "baseline"), None)
    judged = [effect for e in journal.finished if (effect := _objective(e)[1]) is not None]
    effects = (baseline, *(c.effect for c in comparisons), *(t.effect for t in tried))
    shown = [effect for effect in effects if effect is not None]
    noise = _noise(spec, judged, result.noise)
    changes = [e for e in journal.experiments if e.role == "change"]
    used = use_of(campaign, spec, journal, result.models)
    facts = Report(
        campaign=campaign.id, target=campaign.target_name, directory=campaign.spec.target,
        planner=campaign.spec.planner, state=campaign.state,
        ended_by=_ended_by(campaign), stop_reason=campaign.stop_reason,
        headline="", metric=spec.objective.metric, direction=spec.objective.direction,
        comparisons=comparisons, layers=_layers(journal), knobs=_knob_changes(spec, result),
        files=touched(result.patch).files,
        tried=tried, held=_held(spec, journal),
        warnings=(*words.warnings(journal, baseline, noise), *overdrawn(campaign.spec.budget, used)),
        shares=shares(campaign, spec, journal, result.calls),
        knob_effects=knob_effects(spec, journal, Here(journal.best_commit(base), dict(result.after)), result.cores),
        baseline=baseline, noise=noise, min_effect=as_gain(spec.objective.min_effect, spec.objective.direction),
        confidence=(min(e.confidence for e in shown), max(e.confidence for e in shown)) if shown else None,
        method=shown[-1].method if shown else "",
        error_budget=campaign.spec.error_budget, error_spent=sum(e.alpha for e in changes),
        budget=campaign.spec.budget, use=used, n_changes=len(tried), n_accepted=len(journal.accepted),
        n_in_result=len(journal.stack),
        created_at=campaign.created_at, elapsed_s=campaign.elapsed_s,
        sandbox_s=sum(e.sandbox_s for e in journal.experiments),
        patch=result.patch, next=(),
    )  # fmt: skip
    return facts.model_copy(update={"headline": words.headline(facts), "next": words.next_commands(facts)})


def _ended_by(campaign: Campaign) -> Literal["budget", "planner"] | None:
    if campaign.state is not CampaignState.COMPLETE:
        return None
    return "budget" if is_spent(campaign.stop_reason) else "planner"


def screening_rule(spec: TargetSpec, floor: float) -> stats.Rule:
    """The rule of a first measurement of the objective, given the noise floor."""
    objective = spec.objective
    probe = spec.probe(objective.probe)
    assert isinstance(probe, SlicesProbe | LoadProbe)  # target.toml is refused otherwise
    return stats.Rule(objective.direction, probe.looks, SCREEN_ALPHA, floor, objective.min_effect)


def _objective(experiment: Experiment) -> tuple[Signal | None, Effect | None]:
    signal = next((s for s in experiment.signals if s.role == "objective"), None)
    return signal, signal.effect if signal else None


def _result_experiment(journal: Journal) -> Experiment | None:
    """The experiment that states the result against the original: the accepted change if it is the only one,
    else the latest comparison of the whole result."""
    if len(journal.stack) == 1:
        return journal.stack[0]
    best = journal.stack[-1].commit if journal.stack else None
    finals = [e for e in journal.finished if e.role == "final" and e.commit == best]
    return finals[-1] if finals else None


def _compared(
    spec: TargetSpec, experiment: Experiment, against: str, kind: Literal["original", "control"]
) -> Comparison:
    guardrails = [_held_by(spec, s) for s in experiment.signals if s.role == "guardrail"]
    signal, effect = _objective(experiment)
    reasons = experiment.verdict.reasons if experiment.verdict else ()
    return Comparison(
        against=against, kind=kind, finding=signal.finding if signal else "", effect=effect,
        experiment=experiment.number, confirmed=experiment.confirmed,
        broken=tuple(g for g in guardrails if g.finding != "holds"),
        reason=signal.reason if signal else "".join(reasons[:1]),
    )  # fmt: skip


def _original(spec: TargetSpec, journal: Journal, result: Result) -> Comparison:
    launch = spec.launch_file.path if spec.launch_file else ""
    touches_no_more = set(touched(result.patch).files) <= {launch}
    name = f"{ORIGINAL} {launch}" if launch and touches_no_more else ORIGINAL
    if not journal.stack:
        return Comparison(against=name, kind="original", is_identical=True)
    measured = _result_experiment(journal)
    return _compared(spec, measured, name, "original") if measured else Comparison(against=name, kind="original")


def _controls(campaign: Campaign, spec: TargetSpec, journal: Journal, result: Result) -> list[Comparison]:
    """Each control arm as the result was last held against it; one that equals the result says so."""
    best = journal.best_commit(campaign.base_commit)
    found = []
    for control in spec.controls:
        measured = [
            e
            for e in journal.finished
            if e.role == "control" and e.commit == best and e.proposal.hypothesis.claim == control.name
        ]
        if measured:
            comparison = _compared(spec, measured[-1], control.name, "control")
        else:
            arm = {knob.name: control.knobs.get(knob.name) for knob in spec.knobs}
            same = all(_same(arm[name], result.after.get(name)) for name in arm)
            launch = spec.launch_file.path if spec.launch_file else ""
            identical = same and set(touched(result.patch).files) <= {launch}
            comparison = Comparison(against=control.name, kind="control", is_identical=identical)
        found.append(comparison.model_copy(update={"description": control.description}))
    return found


def _layers(journal: Journal) -> tuple[Layer, ...]:
    """Each accepted change with its share of the latest result, where there are several."""
    if len(journal.stack) < 2:
        return ()
    best = journal.stack[-1].commit
    measured = {e.proposal.hypothesis.claim: e for e in journal.finished if e.role == "layer" and e.commit == best}
    found = []
    for experiment in journal.stack:
        signal, effect = _objective(m) if (m := measured.get(f"#{experiment.number}")) else (None, None)
        finding = signal.finding if signal else ""
        change = describe(experiment.proposal.change)
        found.append(Layer(number=experiment.number, change=change, finding=finding, effect=effect))
    return tuple(found)


def _same(a: Scalar | None, b: Scalar | None) -> bool:
    return a == b and type(a) is type(b)


def _knob_changes(spec: TargetSpec, result: Result) -> tuple[KnobChange, ...]:
    return tuple(
        KnobChange(name=k.name, was=was, now=now, engine_default=k.engine_default)
        for k in spec.knobs
        if not _same(was := result.before.get(k.name), now := result.after.get(k.name))
    )


def _tried(experiment: Experiment) -> Tried:
    verdict = experiment.verdict if experiment.state.is_finished else None
    signal, effect = _objective(experiment)
    predicted = experiment.proposal.hypothesis.predicted
    effects = [s.effect for s in experiment.signals if s.effect is not None]
    if verdict and verdict.kind is VerdictKind.INVALID:  # a number that can't be trusted is none
        effect, effects = None, []
    reason = verdict.reasons[0] if verdict and verdict.reasons else ""
    if signal and effect and reason == signal.message:  # the gain has a column of its own
        reason = signal.reason or reason.removeprefix(f"{effect.metric} {gain_text(effect)}: ")
    return Tried(
        number=experiment.number, change=describe(experiment.proposal.change),
        claim=experiment.proposal.hypothesis.claim,
        outcome=verdict.kind.value if verdict else experiment.state.value,
        confirmed=experiment.confirmed, effect=effect, reason=reason, sandbox_s=experiment.sandbox_s,
        planner=experiment.proposal.planner,
        forecast=forecast.held_against(predicted, effects) if predicted and verdict else None,
        work=tuple(s.message for s in experiment.signals if s.rule_id == "performance.instructions"),
    )  # fmt: skip


def _held(spec: TargetSpec, journal: Journal) -> tuple[Held, ...]:
    """Guardrails as the result against the original kept them, gates as the last accepted change passed."""
    if not journal.stack:
        return ()
    measured = _result_experiment(journal)
    signals = [s for s in (measured.signals if measured else ()) if s.role == "guardrail"]
    signals += [s for s in journal.stack[-1].signals if s.role == "gate"]
    return tuple(_held_by(spec, s) for s in signals)


def _held_by(spec: TargetSpec, signal: Signal) -> Held:
    margins = {g.metric: as_loss(g.max_regression, g.direction) for g in spec.guardrails}
    return Held(
        role="guardrail" if signal.role == "guardrail" else "gate", finding=signal.finding,
        message=signal.message, effect=signal.effect,
        max_regression=margins.get(signal.effect.metric) if signal.effect else None,
    )  # fmt: skip


def _noise(spec: TargetSpec, judged: Sequence[Effect], units: NoiseUnits | None) -> Noise:
    """The floor that the campaign's latest number was held against, and what is known today."""
    probe = spec.probe(spec.objective.probe)
    assert isinstance(probe, SlicesProbe | LoadProbe)
    direction = spec.objective.direction
    last = judged[-1] if judged else None
    floor = last.floor if last else probe.default_margin
    noise = Noise(
        floor=as_gain(floor, direction), is_measured=last is not None and last.floor_known,
        n_units=last.floor_units if last else None,
        earlier_floors=tuple(dict.fromkeys(e.floor_gain for e in judged if e.floor != floor)),
        n_units_today=len(units.units) if units else 0,
    )  # fmt: skip
    if units is None or noise.n_units_today < stats.MIN_FLOOR_UNITS:
        return noise
    today = stats.noise_floor(units.units)
    seen = stats.minimum_detectable_effect(today.sd, screening_rule(spec, floor))
    known = {
        "floor_today": as_gain(today.value, direction),
        "minimum_detectable_effect": as_gain(seen, direction),
        "is_biased": not today.is_calibrated,
    }
    return noise.model_copy(update=known)
