"""What the model is told at the start of a step: the fixed rules, and the campaign as it stands.

Wall time is left out on purpose: the same journal must give the same request, so that a resumed campaign
finds the answers it has paid for.
"""

from __future__ import annotations

from importlib.resources import files
from string import Template

from feedback.digest import digest
from feedback.observations import Scalar
from feedback.ranking import rank
from infra_agent import forecast
from infra_agent.domain import Experiment
from infra_agent.forecast import standing
from infra_agent.investigation import MAX_INVESTIGATIONS, parameters
from infra_agent.journal import Journal
from infra_agent.levers import ledger
from infra_agent.planner import Context
from infra_agent.planner.discipline import known_metrics
from infra_agent.planner.fence import cut, fence, neutral
from infra_agent.target import Knob, Probe

JOURNAL_LINES = 40
JOURNAL_CHARACTERS = 12_000
DIGEST_CHARACTERS = 8_000
LESSONS_CHARACTERS = 4_000
ENTRY_TOKENS = 2_000
ENTRY_CHARACTERS = 16_000
PATCH_CHARACTERS = 6_000
INDEPENDENT = "\nThis is independent sample {}: others are drawn from the same original and don't know of it.\n"


def prompt(name: str) -> str:
    """A prompt file of this package."""
    return (files("infra_agent.planner") / "prompts" / f"{name}.md").read_text(encoding="utf-8")


def opening(context: Context) -> list[dict[str, object]]:
    """The messages that a step begins with."""
    return [
        {"role": "system", "content": prompt("system")},
        {"role": "user", "content": campaign(context)},
    ]


def campaign(context: Context) -> str:
    """The campaign as text: target, objective, knobs, probes, levers, journal and the latest signals, as they were
    when this step began."""
    spec, past = context.spec, context.journal.before_step()
    objective = spec.objective
    guardrails = [f"- {g.metric} ({g.direction}) may lose {g.max_regression:.0%}" for g in spec.guardrails]
    return Template(prompt("campaign")).substitute(
        name=spec.name,
        description=fence(spec.description, "target.toml", 2000),
        objective=f"{objective.direction} {objective.metric}, measured by probe {objective.probe}; "
        f"a gain counts from {objective.min_effect:.1%}",
        guardrails="\n".join(guardrails) or "- none",
        cores=context.cores,
        experiments_left=context.experiments_left,
        investigations=MAX_INVESTIGATIONS,
        metrics=", ".join(known_metrics(spec)),
        knobs="\n".join(_knob(knob, context) for knob in spec.knobs) or "none",
        probes="\n".join(_probe(probe) for probe in spec.shown_probes),
        editable=", ".join(spec.editable) or "nothing",
        protected=", ".join(spec.protected) or "all that is not editable",
        levers="\n".join(f"- {lever}" for lever in ledger(past, spec)),
        journal=journal(past),
        lessons=fence(context.lessons or "none", "lessons of earlier campaigns", LESSONS_CHARACTERS),
        digest=fence(context.digest or "none yet", "signals", DIGEST_CHARACTERS),
    ) + (INDEPENDENT.format(context.sample) if context.sample else "")


def journal(past: Journal, lines: int = JOURNAL_LINES) -> str:
    """What was tried and what came of it, quoted."""
    return fence(past.render(lines) or "nothing tried yet", "journal", JOURNAL_CHARACTERS)


def entry(experiment: Experiment) -> str:
    """One experiment whole: its hypothesis, its change, what was predicted and measured, its signals; quoted."""
    hypothesis, change = experiment.proposal.hypothesis, experiment.proposal.change
    told = {
        "claim": hypothesis.claim, "mechanism": hypothesis.mechanism, "location": hypothesis.location,
        "lever family": hypothesis.lever_family, "evidence": ", ".join(hypothesis.evidence),
        "falsifier": hypothesis.falsifier, "probe": experiment.proposal.probe,
        "knobs": ", ".join(f"{name} = {value}" for name, value in change.knobs.items()),
    }  # fmt: skip
    lines = [f"#{experiment.number} {experiment.role}, {experiment.state.value}"]
    lines += [f"{name}: {text}" for name, text in told.items() if text]
    if experiment.verdict:
        lines.append(f"verdict: {experiment.verdict.kind.value}: {'; '.join(experiment.verdict.reasons)}")
    if found := standing(experiment):
        lines.append(f"prediction: {forecast.said(found)}")
    lines += ["signals:", digest(rank(experiment.signals), ENTRY_TOKENS)]
    if experiment.patch:
        lines += ["patch:", cut(experiment.patch, PATCH_CHARACTERS)]
    return fence("\n".join(lines), f"experiment #{experiment.number}", ENTRY_CHARACTERS)


def _knob(knob: Knob, context: Context) -> str:
    value = context.knobs.get(knob.name)
    now = "absent" if value is None else neutral(str(value))[:80]
    domain = " ".join(map(str, knob.choices)) if knob.choices else f"{knob.minimum}..{knob.maximum}"
    default = "not stated" if knob.engine_default is None else knob.engine_default
    needs = "".join(
        f" {_list(condition.values)} need {name} to be one of {_list(allowed)}."
        for condition in knob.conditions
        for name, allowed in condition.requires.items()
    )
    return f"- {knob.name} [{knob.family}]: {now} | {domain} | {default}. {knob.description}{needs}"


def _list(values: tuple[Scalar, ...]) -> str:
    return ", ".join(map(str, values))


def _probe(probe: Probe) -> str:
    covers = f" Covers {', '.join(probe.covers)}." if probe.covers else ""
    gate = " A candidate that fails it is rejected." if probe.gate else ""
    known = ", ".join(name if value is None else f"{name}={value}" for name, value in parameters(probe).items())
    params = f" Parameters: {known}." if known else ""
    return f"- {probe.name} ({probe.kind}, about {probe.cost_s:g} s): {probe.description}{covers}{params}{gate}"
