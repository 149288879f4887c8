"""The sentences of a report. They claim no more than the intervals say, and no number stands without its own.

A percentage is always a gain in the wanted direction: more throughput, or time saved; negative is a loss.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import PurePath

from feedback import stats
from feedback.signals import Direction, Effect
from feedback.wording import count
from infra_agent.catalogue import SHIPPED
from infra_agent.domain import CampaignState
from infra_agent.journal import Journal
from infra_agent.report import units
from infra_agent.report.budgets import raise_budget
from infra_agent.report.facts import Comparison, Held, KnobEffect, Noise, PlannerShare, Report

TELLING = 0.5
"""An interval that reaches a gain beyond this excludes nothing that anybody hoped for."""
MORE_EXPERIMENTS = 10
"""By how many experiments the next command suggests to raise a budget."""


def percent(value: float, digits: int = 1) -> str:
    """`0.123` as `+12.3 %`."""
    return f"{100 * value:+.{digits}f} %"


def gain(effect: Effect) -> str:
    """`+12.3 % [+10.1 %, +14.6 %]`; no decimals once it is more than twofold."""
    low, high = effect.improvement_interval
    digits = 0 if max(abs(low), abs(high)) >= 1 else 1
    return f"{percent(effect.improvement, digits)} [{percent(low, digits)}, {percent(high, digits)}]"


def meaning(metric: str, direction: Direction) -> str:
    """What a gain of the metric is: `more output_throughput`, `time saved (slice_time_s)`."""
    return f"more {metric}" if direction == "maximize" else f"{_saved(metric)} ({metric})"


def _saved(metric: str) -> str:
    return "time saved" if metric.endswith(("_s", "_ms")) else "saved"


def gain_of(effect: Effect) -> str:
    """The metric with its gain: `output_throughput +12.3 % [...]`, `slice_time_s +3.1 % [...] time saved`."""
    said = f"{effect.metric} {gain(effect)}"
    return said if effect.direction == "maximize" else f"{said} {_saved(effect.metric)}"


def headline(report: Report) -> str:
    """The result in one sentence."""
    original = report.comparisons[0]
    if report.state is CampaignState.FAILED:
        return f"Failed: {original.against} itself does not pass, so no change can be measured against it."
    so_far = "" if report.state is CampaignState.COMPLETE else "Not finished. So far: "
    if not report.n_accepted:
        return so_far + _nothing_found(report, original.against)
    accepted = count(report.n_accepted, "change")
    effect = original.effect
    if effect is None:
        return f"{so_far}{accepted} accepted; the whole was not measured against {original.against} yet."
    said = f"{gain_of(effect)} against {original.against}"
    pairs = count(effect.n_units, "pair")
    same = [c.against for c in report.comparisons if c.kind == "control" and c.is_identical]
    equals = f" The result is the control arm {same[0]} itself." if same else ""
    equals += f" But {losses(original)}." if original.broken else ""
    if original.confirmed:
        return f"{so_far}{said}, confirmed with fresh processes ({pairs}).{equals}"
    if original.finding == "better":
        each = f"{accepted} confirmed one by one"
        if report.n_in_result < report.n_accepted:
            each = f"the best of {accepted} confirmed one by one"
        return f"{so_far}{said}, measured as a whole with fresh processes ({pairs}); {each}.{equals}"
    return f"{so_far}{accepted} confirmed singly, but the whole is {_undecided(original)}: {said} ({pairs})."


def _undecided(comparison: Comparison) -> str:
    return {"worse": "worse", "same": "no gain worth having"}.get(comparison.finding, "undecided")


def _nothing_found(report: Report, against: str) -> str:
    if not report.tried:
        return f"No change was tried, so {against} stands."
    tried = count(report.n_changes, "change")
    broke = [t for t in report.tried if t.outcome == "reject" and t.effect and _is_clear_gain(t.effect)]
    measured = [t for t in report.tried if t.effect is not None and t not in broke]
    said = f"Nothing better than {against} was found in {tried}"
    bound = max((t.effect.improvement_interval[1] for t in measured if t.effect), default=None)
    if bound is None:
        said += f": none got as far as a measurement of {report.metric}" if not broke else ""
    elif bound <= 0:
        said += f": {_all(len(measured))} worse"
    elif bound > TELLING:
        said += f": intervals that reach up to {percent(bound)} exclude no gain worth naming"
    else:
        open_ones = sum(t.outcome == "inconclusive" for t in measured)
        said += f": a gain above {percent(bound)} is excluded for {_each(len(measured))}"
        those = "" if len(measured) == 1 else f"{open_ones} of them "
        said += f" ({those}undecided below that)" if open_ones else ""
    if broke:
        said += f"; {count(len(broke), 'change')} did better but broke a guardrail or a gate"
    return said + "."


def _is_clear_gain(effect: Effect) -> bool:
    return effect.improvement_interval[0] > 0


def _all(number: int) -> str:
    return "the one that was measured is" if number == 1 else f"all {number} that were measured are"


def _each(number: int) -> str:
    return "the one that was measured" if number == 1 else f"each of the {number} that were measured"


def sensitivity(report: Report) -> str:
    """How small a gain would have been seen, as far as that is known."""
    noise, worth = report.noise, f"{100 * report.min_effect:.1f} %"
    known = f" from {count(noise.n_units, 'A/A pair')}" if noise.n_units is not None else ""
    kind = f"measured on this machine{known}" if noise.is_measured else "assumed, because it was not measured here"
    said = f"A gain counts once its whole interval clears the noise floor of {100 * noise.floor:.1f} % ({kind})"
    said += f" and it is itself at least {worth}."
    if noise.earlier_floors:
        floors = ", ".join(f"{100 * floor:.1f} %" for floor in noise.earlier_floors)
        said += f" Earlier numbers of this campaign were held against a floor of {floors}."
    if noise.minimum_detectable_effect is None:
        return said
    seen = f"{100 * noise.minimum_detectable_effect:.1f} %"
    return (
        f"{said} By the spread of the {noise.n_units_today} A/A pairs of this host that are known today, a first "
        f"measurement with that floor finds a true gain of {seen} with 90 % probability."
    )


def itself(report: Report) -> str:
    """The baseline against itself, and what that is worth when the interval is wide."""
    found = report.baseline
    if found is None:
        return ""
    low, high = found.improvement_interval
    said = f"The baseline against itself: {gain(found)} over {count(found.n_units, 'pair')}."
    if not low <= 0 <= high or (high - low) / 2 <= max(found.floor_gain, report.min_effect):
        return said
    said += (
        f" That is wide: identical arms could differ by about {100 * (high - low) / 2:.0f} % and these pairs would not "
        "show it, so they don't prove a quiet machine. Each gain has an interval of its own and doesn't rest on them."
    )
    if report.noise.is_measured or report.noise.floor_today is not None:
        return said
    return f"{said} `infra-agent calibrate` measures the noise with enough pairs."


def scale(report: Report) -> str:
    """On which scale percentages are, where that is not what target.toml uses; empty where it is."""
    if report.direction == "maximize":
        return ""
    return (
        "Gains, noise floor and thresholds are all given as the part that is saved. The rule itself, like min_effect "
        "in target.toml, counts in speed: 25 % more speed is 20 % of the time saved, and 2 % more is 1.96 %."
    )


MEDIANS = (
    "Values before and after are the medians of each arm over all pairs. The gain is estimated inside each pair and "
    "then averaged, which cancels what disturbs both arms, so it need not be the ratio of the two medians."
)


def losses(comparison: Comparison) -> str:
    """The guardrails that are violated or undecided against an arm."""
    return "; ".join(f"{'violates' if b.finding == 'violates' else 'undecided'}: {held(b)}" for b in comparison.broken)


def held(found: Held) -> str:
    """A guardrail with its effect and margin, or what was said of a gate."""
    if found.effect is None:
        return found.message
    limit = f", may lose at most {100 * found.max_regression:.3g} %" if found.max_regression is not None else ""
    return f"{found.role} {gain_of(found.effect)}{limit}"


def knob_effect(knob: KnobEffect) -> str:
    """What steps of a knob alone have measured."""
    if not knob.n_steps:
        return f"changed only together with others, in {count(knob.n_trials, 'measured change')}"
    steps = count(knob.n_steps, "step")
    if knob.is_noise:
        return f"{steps}, within the noise floor"
    ends = [(name, ends) for name, ends in (("best", knob.best), ("worst", knob.worst)) if ends]
    said = [f"{name} {percent(a)} [{percent(b)}, {percent(c)}]" for name, (a, b, c) in ends]
    return f"{steps}: {', '.join(said)}"


def share(found: PlannerShare) -> str:
    """What a planner spent and gained."""
    asked = f", {count(found.n_investigations, 'investigation')}" if found.n_investigations else ""
    tokens = f", {found.tokens} tokens" if found.tokens else ""
    return (
        f"{count(found.n_experiments, 'experiment')}{asked}, {found.sandbox_s:.0f} s measuring, {found.model_s:.1f} s "
        f"planning{tokens}; {found.n_accepted} accepted, {percent(found.gain)} of confirmed gain"
    )


def against(comparison: Comparison, original: Comparison) -> str:
    """What holding the result against an arm has shown, losses included."""
    said = _against(comparison, original)
    return f"{said}; but {losses(comparison)}" if comparison.broken else said


def _against(comparison: Comparison, original: Comparison) -> str:
    effect = comparison.effect
    if comparison.is_identical:
        return "unchanged: nothing was accepted" if comparison is original else "the result itself"
    if effect is None:
        return f"not measured{f': {comparison.reason}' if comparison.reason else ''}"
    low, high = effect.improvement_interval
    pairs = count(effect.n_units, "pair")
    numbers = f"{gain(effect)} ({units.change(effect)}, {pairs})"
    if comparison.finding == "better":
        return f"better, {numbers}"
    if comparison.finding == "worse":
        return f"worse, {numbers}"
    if not low <= 0 <= high:
        return f"within the noise floor, {numbers}"
    return f"no difference found, {numbers}{_undoing(comparison, original)}"


def _undoing(control: Comparison, original: Comparison) -> str:
    """Whether a gain over the original is that of a control arm: it only undoes what was set before."""
    if control.effect is None or original.effect is None or original.finding != "better":
        return ""
    if control.finding == "same":
        return "; the gain comes from undoing the inherited settings"
    if control.effect.improvement_interval[1] < original.effect.improvement_interval[0]:
        return "; most of the gain comes from undoing the inherited settings"
    return ""


def warnings(journal: Journal, baseline: Effect | None, noise: Noise) -> tuple[str, ...]:
    """What makes the numbers less certain than they look, and what to do about it."""
    found = []
    if noise.is_biased or (baseline is not None and _is_bias(baseline)):
        said = f" ({gain(baseline)})" if baseline is not None else ""
        found.append(
            f"The baseline differs from itself{said}: identical arms should not. Trust no small gain from "
            "this host before the cause is found (other load, CPU frequency, thermal limits)."
        )
    measured = [e for e in journal.finished if e.run_directory]
    busy = [s for e in measured for s in e.signals if s.rule_id == "stability.env_contention"]
    if kept := [s for s in busy if s.level == "warning"]:
        found.append(
            f"The machine was busy with other work in {len(kept)} of {count(len(measured), 'measurement')}; "
            f"in the last of them: {kept[-1].message}. That widens intervals; a quieter machine decides more."
        )
    if not noise.is_measured:
        found.append(_assumed(noise))
    if unproven := [s for e in measured for s in e.signals if s.rule_id == "integrity.work_unproven"]:
        found.append(f"{unproven[-1].message}. A change that does less work would count as a gain.")
    if journal.stack:
        apart = ("stability.tool_error", "stability.env_contention")
        events = [s for s in journal.stack[-1].signals if s.rule_id.startswith("stability.")]
        events = [s for s in events if s.rule_id not in apart]
        found += [s.message for s in events if s.level != "note"]
    return tuple(found)


def _assumed(noise: Noise) -> str:
    said = f"The noise floor of {100 * noise.floor:.1f} % is assumed"
    if noise.n_units is not None:
        said += f" ({noise.n_units} of {stats.MIN_FLOOR_UNITS} A/A pairs of this host were known when it was applied)"
    if noise.floor_today is not None:
        today = f"a floor of {100 * noise.floor_today:.1f} %"
        return f"{said}. By now {noise.n_units_today} pairs are known, which make {today} for what is measured next."
    return f"{said}; `infra-agent calibrate` measures it."


def _is_bias(baseline: Effect) -> bool:
    """Whether a baseline differs from itself by more than the noise floor covers anyway."""
    low, high = baseline.improvement_interval
    return not low <= 0 <= high and abs(baseline.improvement) > baseline.floor_gain


def next_commands(report: Report) -> tuple[str, ...]:
    """What to type next, most useful first."""
    resume = f"infra-agent run --resume {report.campaign}"
    commands = []
    if report.state is CampaignState.FAILED:
        return (f"{run_command(report.directory, report.planner)}  # once the target is mended",)
    if report.state is CampaignState.RUNNING:
        commands.append(f"infra-agent show {report.campaign}  # again, while it runs")
    elif report.state is CampaignState.WAITING:
        commands.append(f"infra-agent ask {report.campaign}  # what its planner is shown, and how to answer")
        commands.append(f"infra-agent tell {report.campaign} FILE  # what to do next, as JSON; - reads it from stdin")
    elif report.state is not CampaignState.COMPLETE:
        commands.append(f"{resume}  # continue where it stopped; nothing finished is measured again")
    if report.patch:
        commands.append(_use_patch(report))
    if not (report.noise.is_measured or report.noise.floor_today is not None):
        commands.append(f"infra-agent calibrate {target_name(report)}  # measure this machine's noise floor")
    if report.state is CampaignState.COMPLETE:
        commands += _go_on(report, resume)
    return tuple(commands) or (f"infra-agent show {report.campaign} --json  # everything that was measured",)


def _use_patch(report: Report) -> str:
    show = f"infra-agent show {report.campaign} --patch"
    if SHIPPED in PurePath(report.directory).parts:  # a working tree of one's own is elsewhere
        return f"{show} > {report.target}.patch  # save the patch"
    where = shlex.quote(report.directory)
    # git skips silently what lies outside its directory, so a target inside a larger repository needs its prefix.
    return f'{show} | git -C {where} apply --directory="$(git -C {where} rev-parse --show-prefix)"  # apply the patch'


def _go_on(report: Report, resume: str) -> Sequence[str]:
    if report.ended_by == "planner":  # it had nothing left to propose, and a larger budget changes nothing of that
        return ()
    if report.planner.startswith("script:") and report.n_accepted:
        return ()
    if report.n_changes >= report.budget.experiments:
        return (f"{resume} --experiments {report.n_changes + MORE_EXPERIMENTS}  # search on",)
    if (option := raise_budget(report)) is not None:
        return (f"{resume} {option}  # search on",)
    if report.budget.minutes is not None:
        return (f"{resume} --minutes {2 * report.budget.minutes:g}  # search on",)
    return ()


def run_command(directory: str, planner: str) -> str:
    """The command that starts a campaign like one before."""
    return f"infra-agent run {_target(directory)} --planner {shlex.quote(planner)}"


def target_name(report: Report) -> str:
    """The target as a command takes it."""
    return _target(report.directory)


def _target(directory: str) -> str:
    path = PurePath(directory)
    return path.name if SHIPPED in path.parts else shlex.quote(directory)
