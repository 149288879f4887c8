"""The course of a measurement: which probes run and in which order, what they are judged by, and when it is clear."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from feedback import stats
from feedback.criteria import Criteria, MetricCriterion
from feedback.observations import Measurement, Observation
from feedback.readers.run import read_artefact
from feedback.rules.performance.compared import direction_of
from feedback.signals import Location, Signal
from feedback.stats import Finding
from infra_agent import forecast
from infra_agent.bench import Bench
from infra_agent.domain import Proposal
from infra_agent.lab import Lab
from infra_agent.target import CallgrindProbe, EventsProbe, PairedProbe, Probe, TargetSpec
from sandboxes.results import Artefact


class Files:
    """Artefacts of a run as observations. One that has not grown since is not read again: the last look at the pairs
    and the verdict need the same file."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[str, tuple[int, list[Observation]]] = {}

    def read(self, artefact: Artefact) -> list[Observation]:
        """The observations of one artefact. Raises Unreadable, OSError."""
        if artefact.lost:
            return read_artefact(self._directory, artefact)
        size_bytes = (self._directory / artefact.path).stat().st_size
        known = self._read.get(artefact.path)
        if known is None or known[0] != size_bytes:
            known = self._read[artefact.path] = size_bytes, read_artefact(self._directory, artefact)
        return known[1]


def ordered(spec: TargetSpec, proposal: Proposal | None, gates: bool, hidden: bool) -> list[Probe]:
    """Builds, then the probe that answers the question, then the other gates and deterministic counts by cost,
    then the objective. What waits to be asked runs only as the probe that answers."""
    objective = spec.probe(spec.objective.probe)
    asked = proposal.probe if proposal else ""

    def rank(probe: Probe) -> tuple[int, float]:
        if probe.kind == "build":
            return 0, probe.cost_s
        return (1 if probe.name == asked else 2), probe.cost_s

    def is_needed(probe: Probe) -> bool:
        if isinstance(probe, EventsProbe) or probe is objective or (probe.hidden and not hidden):
            return False
        if probe.waits:
            return probe.name == asked
        if isinstance(probe, CallgrindProbe):
            return gates and shutil.which("valgrind") is not None
        if isinstance(probe, PairedProbe):
            return probe.name == asked
        return gates or probe.kind == "build"

    return [*sorted((p for p in spec.probes if is_needed(p)), key=rank), objective]


def clear(bench: Bench, files: Files, probe: Probe, criteria: Criteria) -> Callable[[], bool]:
    """Whether the objective and every guardrail are decided, asked between pairs."""

    objective = criteria.objective

    def is_clear() -> bool:
        if objective is None or probe.name != objective.probe:
            return True  # what another probe measures has no rule of its own: the first look must do
        artefact = next(a for a in bench.artefacts if a.probe == probe.name and a.format in ("slices", "load"))
        measured = [o for o in files.read(artefact) if isinstance(o, Measurement)]
        try:
            units = stats.paired_units(measured, objective.metric, criteria.stage).values
            finding = stats.look(units, criteria.rule(objective))
            if finding is Finding.UNDECIDED:
                return bench.stage.may_give_up and stats.is_futile(units, criteria.rule(objective))
            if finding is not Finding.BETTER:
                return True
            return all(_guardrail_decided(measured, g, criteria) for g in criteria.guardrails)
        except ValueError:
            return True  # an impossible value, such as no good request at all: more pairs won't mend it

    return is_clear


def _guardrail_decided(measurements: Sequence[Measurement], guardrail: MetricCriterion, criteria: Criteria) -> bool:
    units = stats.paired_units(measurements, guardrail.metric, criteria.stage).values
    found = stats.non_inferior(units, criteria.rule(guardrail), guardrail.max_regression)
    return found is not Finding.UNDECIDED


def is_answered(signals: Sequence[Signal]) -> bool:
    """Whether a gate is broken or the arms did different work: then nothing dearer needs to run."""
    broken = [s for s in signals if s.finding == "violates"]
    return any(s.role == "gate" or s.rule_id.startswith("integrity.") for s in broken)


def asked(spec: TargetSpec, proposal: Proposal | None) -> MetricCriterion | None:
    """The metric that a hypothesis predicts, where it names a probe of its own to answer."""
    predicted = proposal.hypothesis.predicted if proposal else None
    if proposal is None or predicted is None or proposal.probe in ("", spec.objective.probe):
        return None
    judged = {g.metric: g.direction for g in spec.guardrails} | {spec.objective.metric: spec.objective.direction}
    direction = judged.get(predicted.metric) or direction_of(predicted.metric) or "minimize"
    return MetricCriterion(
        metric=predicted.metric, direction=direction, probe=proposal.probe,
        side_by_side=_side_by_side(spec, proposal.probe),
    )  # fmt: skip


def _side_by_side(spec: TargetSpec, name: str) -> bool:
    probe = spec.probe(name)
    return not isinstance(probe, PairedProbe) or probe.side_by_side


def refutation(proposal: Proposal, signals: Sequence[Signal]) -> str:
    """What the named probe says against the hypothesis; empty if it says nothing against it."""
    predicted = proposal.hypothesis.predicted
    effects = [s.effect for s in signals if s.rule_id == "performance.question" and s.effect is not None]
    if predicted is None or not effects:
        return ""
    found = forecast.held_against(predicted, effects)
    return f"{proposal.probe} refutes it: {forecast.said(found)}" if found.outcome == "refuted" else ""


def criteria(lab: Lab, changed: tuple[Location, ...], alpha: float, stage: str, gates: bool) -> Criteria:
    """What a stage of one experiment is judged by: the target's objective, guardrails and, with `gates`, gates."""
    objective, probe = lab.spec.objective, lab.objective_probe()
    floor, known = lab.floor()
    return Criteria(
        objective=MetricCriterion(
            metric=objective.metric, direction=objective.direction, probe=objective.probe,
            min_effect=objective.min_effect, side_by_side=probe.side_by_side,
        ),
        guardrails=tuple(
            MetricCriterion(
                metric=g.metric, direction=g.direction, probe=g.probe, max_regression=g.max_regression,
                side_by_side=_side_by_side(lab.spec, g.probe),
            )
            for g in lab.spec.guardrails
        ),
        gates=tuple(p.name for p in lab.spec.shown_probes if p.kind == "build" or (p.gate and gates)),
        alpha=alpha, looks=probe.looks, floor=floor, floor_known=known,
        floor_units=len(lab.noise.units) if lab.noise else 0, changed=changed, stage=stage,
    )  # fmt: skip
