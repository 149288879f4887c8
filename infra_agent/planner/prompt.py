"""What the model is told at the start of a step: the fixed rules, and the campaign as it stands.

Wall time is left out on purpose: the same journal must give the same request, so that a resumed campaign
finds the answers it has paid for. What stays within the window is the journal and the signals; the rest is fixed.
"""

from __future__ import annotations

from importlib.resources import files
from string import Template

from feedback.digest import count_tokens, digest
from feedback.observations import Scalar
from feedback.ranking import rank
from infra_agent import forecast
from infra_agent.citation import prefix
from infra_agent.domain import Experiment
from infra_agent.forecast import standing
from infra_agent.gains import as_improvement, follow, spent
from infra_agent.investigation import MAX_INVESTIGATIONS, parameters
from infra_agent.journal import Journal
from infra_agent.levers import ledger
from infra_agent.planner import Context
from infra_agent.planner.discipline import known_metrics
from infra_agent.planner.fence import cut, fence, neutral
from infra_agent.planner.recap import recap
from infra_agent.target import Knob, Probe, SlicesProbe, TargetSpec

JOURNAL_TOKENS = 6_000
DIGEST_TOKENS = 4_000
LESSONS_TOKENS = 1_200
"""Of the opening, where the window has room for it."""
LEAST_TOKENS = 300
"""Of journal and signals together; with less of them nobody can plan."""
JOURNAL_SHARE, LESSONS_SHARE = 0.5, 0.15
"""Of what is left for the journal, the lessons and the signals, which get the rest."""
FENCE_TOKENS = 60
"""That the marks around a quotation take, by `count_tokens`."""
UNLIMITED = 1 << 30
JOURNAL_CHARACTERS = 12_000
ENTRY_TOKENS = 2_000
ENTRY_CHARACTERS = 16_000
PATCH_CHARACTERS = 6_000
INDEPENDENT = "\nThis is independent sample {}: others are drawn from the same original and don't know of it.\n"


class TooLarge(Exception):
    """The window can't hold what a planner must be told; the message has the numbers."""


def prompt(file: str, /, **values: object) -> str:
    """A prompt file of this package, with its `$names` filled in if there are any."""
    text = (files("infra_agent.planner") / "prompts" / f"{file}.md").read_text(encoding="utf-8")
    return Template(text).substitute(values) if values else text


def opening(context: Context, room: int, window: int, tools: str = "") -> list[dict[str, str]]:
    """The messages that a step begins with, within `room` tokens of a model's `window`. `tools` are their descriptions
    where the model is not given them as functions. Raises TooLarge.

    Says itself how long it is.
    """
    system = prompt("system") + (f"\n{prompt('json_mode')}\n{tools}" if tools else "")
    size = f"This text: about {{}} tokens of {window}.\n"
    fixed = count_tokens(system) + count_tokens(size) + count_tokens(campaign(context, 0, 0, 0))
    left = room - fixed
    if left < LEAST_TOKENS:
        raise TooLarge(f"its instructions and the target's description alone take {fixed} tokens of {max(room, 0)}")
    for_journal = min(JOURNAL_TOKENS, int(left * JOURNAL_SHARE))
    for_lessons = min(LESSONS_TOKENS, int(left * LESSONS_SHARE))
    text = campaign(context, for_journal, for_lessons, min(DIGEST_TOKENS, left - for_journal - for_lessons))
    total = count_tokens(system) + count_tokens(size) + count_tokens(text)
    return [{"role": "system", "content": system}, {"role": "user", "content": size.format(total) + text}]


def campaign(context: Context, journal_tokens: int, lessons_tokens: int, digest_tokens: int) -> str:
    """The campaign as text: target, objective, knobs, probes, levers, journal and the latest signals, as they were
    when this step began."""
    spec, past = context.spec, context.journal.before_step()
    objective = spec.objective
    guardrails = [f"- {g.metric} ({g.direction}) may lose {g.max_regression:.0%}" for g in spec.guardrails]
    levers = [f"- {lever}" for lever in ledger(past, spec)]
    told = recap(past, journal_tokens - FENCE_TOKENS) if journal_tokens else ""
    return (
        prompt(
            "campaign",
            name=neutral(spec.name),
            description=fence(spec.description, "target.toml", 2000),
            objective=f"{objective.direction} {objective.metric}, measured by probe {objective.probe}; "
            f"a gain counts from {objective.min_effect:.1%}",
            guardrails="\n".join(guardrails) or "- none",
            cores=context.cores,
            machine=_line(context.machine) or "nothing else is known of it",
            so_far="" if context.sample else _so_far(past, context),
            experiments_left=context.experiments_left,
            investigations=MAX_INVESTIGATIONS,
            metrics=", ".join(known_metrics(spec)) + _units(spec),
            knobs=fence("\n".join(_knob(knob, context) for knob in spec.knobs) or "none", "target.toml", UNLIMITED),
            probes=fence("\n".join(_probe(probe) for probe in spec.shown_probes), "target.toml", UNLIMITED),
            editable=_line(", ".join(spec.editable) or "nothing"),
            protected=_line(", ".join(spec.protected) or "all that is not editable"),
            levers="\n".join(levers),
            journal=fence(told or "nothing tried yet", "journal", UNLIMITED),
            lessons=quoted(context.lessons or "none", "lessons of earlier campaigns", lessons_tokens),
            digest=quoted(context.digest or "none yet", "signals", digest_tokens),
        )
        + (INDEPENDENT.format(context.sample) if context.sample else "")
        + (f"\n{context.line}\n" if context.line else "")
    )


def _so_far(past: Journal, context: Context) -> str:
    """What the campaign gained and how long it took until this step began, told from the journal alone."""
    objective, stack = context.spec.objective, past.stack
    gain = "none"
    if stack:
        whole = as_improvement(past.confirmed_gains()[stack[-1].commit or ""], objective.direction)
        of = ", ".join(f"#{e.number}" for e in stack)
        each = ", each measured against the one before" if len(stack) > 1 else ""
        gain = f"{objective.metric} {whole:+.1%} against the original, by {of}{each}"
    used = spent(follow(past), "wall_s") / 60
    time = f"about {used:.1f} minutes used"
    if context.minutes is not None:
        time += f", {max(0.0, context.minutes - used):.1f} left"
    return f"Confirmed gain when this step began: {gain}\nTime since the campaign's start by then: {time}\n"


def _units(spec: TargetSpec) -> str:
    """What the same work is called in a comparison and in an investigation, where that differs."""
    if not any(isinstance(probe, SlicesProbe) for probe in spec.shown_probes):
        return ""
    return (
        "\nslice_time_s is the time of a slice: the work, repeated as often as makes it long enough to time. time_s of "
        "an investigation is that of a single repetition."
    )


def quoted(text: str, source: str, tokens: int) -> str:
    """`text` in a fence, together at most about `tokens` tokens."""
    tokens = max(0, tokens - FENCE_TOKENS)
    limit = len(text)
    while (n := count_tokens(cut(text, limit))) > tokens and limit > 0:
        limit = min(limit - 1, limit * tokens // n)
    return fence(text, source, limit)


def journal(past: Journal, lines: int) -> str:
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
    lines += ["signals:", digest(rank(experiment.signals), ENTRY_TOKENS, prefix(experiment))]
    if experiment.patch:
        lines += ["patch:", cut(experiment.patch, PATCH_CHARACTERS)]
    return fence("\n".join(lines), f"experiment #{experiment.number}", ENTRY_CHARACTERS)


def _knob(knob: Knob, context: Context) -> str:
    value = context.knobs.get(knob.name)
    now = "absent" if value is None else _line(str(value))[:80]
    domain = " ".join(map(str, knob.choices)) if knob.choices else f"{knob.minimum}..{knob.maximum}"
    default = "not stated" if knob.engine_default is None else knob.engine_default
    needs = "".join(
        f" {_list(condition.values)} need {name} to be one of {_list(allowed)}."
        for condition in knob.conditions
        for name, allowed in condition.requires.items()
    )
    return f"- {knob.name} [{knob.family}]: {now} | {domain} | {default}. {knob.description}{needs}"


def _line(text: str) -> str:
    return " ".join(neutral(text).split())


def _list(values: tuple[Scalar, ...]) -> str:
    return ", ".join(map(str, values))


def _probe(probe: Probe) -> str:
    covers = f" Covers {', '.join(probe.covers)}." if probe.covers else ""
    gate = " A candidate that fails it is rejected." if probe.gate else ""
    known = ", ".join(name if value is None else f"{name}={value}" for name, value in parameters(probe).items())
    params = f" Parameters: {known}." if known else ""
    asked = " Runs only when it is asked." if probe.waits else ""
    return f"- {probe.name} ({probe.kind}, about {probe.cost_s:g} s): {probe.description}{covers}{params}{gate}{asked}"
