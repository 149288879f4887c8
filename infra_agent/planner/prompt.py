"""What the model is told at the start of a step: the fixed rules, and the campaign as it stands.

Wall time is left out on purpose: the same journal must give the same request, so that a resumed campaign
finds the answers it has paid for.
"""

from __future__ import annotations

from importlib.resources import files
from string import Template

from feedback.observations import Scalar
from infra_agent.planner import Context
from infra_agent.planner.fence import fence, neutral
from infra_agent.target import Knob, Probe

JOURNAL_LINES = 40
JOURNAL_CHARACTERS = 12_000
DIGEST_CHARACTERS = 8_000


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
    """The campaign as text: target, objective, knobs, probes, journal and the latest signals."""
    spec = context.spec
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
        knobs="\n".join(_knob(knob, context) for knob in spec.knobs) or "none",
        probes="\n".join(_probe(probe) for probe in spec.shown_probes),
        editable=", ".join(spec.editable) or "nothing",
        protected=", ".join(spec.protected) or "all that is not editable",
        journal=journal(context),
        digest=fence(context.digest or "none yet", "signals", DIGEST_CHARACTERS),
    )


def journal(context: Context, lines: int = JOURNAL_LINES) -> str:
    """What was tried and what came of it, quoted."""
    return fence(context.journal.render(lines) or "nothing tried yet", "journal", JOURNAL_CHARACTERS)


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
    return f"- {knob.name}: {now} | {domain} | {default}. {knob.description}{needs}"


def _list(values: tuple[Scalar, ...]) -> str:
    return ", ".join(map(str, values))


def _probe(probe: Probe) -> str:
    covers = f" Covers {', '.join(probe.covers)}." if probe.covers else ""
    gate = " A candidate that fails it is rejected." if probe.gate else ""
    return f"- {probe.name} ({probe.kind}, about {probe.cost_s:g} s): {probe.description}{covers}{gate}"
