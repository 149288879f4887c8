"""What there is, in tables: campaigns, and what a calibration found. Pure."""

from __future__ import annotations

import math
import shlex
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from statistics import stdev

from feedback import stats
from feedback.signals import Direction, Effect, as_gain
from feedback.wording import count
from infra_agent.catalogue import shipped_targets
from infra_agent.commands import Calibration
from infra_agent.domain import Campaign, CampaignState
from infra_agent.journal import Journal
from infra_agent.report import screening_rule, words
from infra_agent.report.text import short
from sandboxes.results import Record

BIAS_TAIL = 0.005
"""Each end of the interval of a bias."""
_REASON_CHARACTERS = 80


class Row(Record):
    """One campaign of the list."""

    campaign: str
    target: str
    planner: str
    state: CampaignState
    stop_reason: str
    """Why it ended; empty while it runs, and when a kill left no time to say."""
    created_at: datetime
    n_changes: int
    n_accepted: int
    last_gain: Effect | None
    """Of the last accepted change, or of the result as a whole where that was measured later."""


class CalibrationFacts(Record):
    """This host's noise for a target's objective. `infra-agent calibrate --json` prints it. Fractions are gains, on
    the scale of the reports: more throughput, or time saved."""

    target: str
    probe: str
    metric: str
    direction: Direction
    n_units: int
    """A/A pairs known, those of earlier calibrations and baselines included."""
    needed_units: int
    is_provisional: bool
    """Fewer pairs are known than a noise floor needs: spread and bias are first impressions."""
    floor: float | None
    """95th percentile of |mean of 10 pairs|; None while provisional."""
    unit_sd: float | None
    """Standard deviation of one pair (log-ratio); None with fewer than two pairs."""
    bias: float | None
    """Mean gain between identical arms."""
    bias_interval: tuple[float, float] | None
    """Its 99 % interval; if it excludes zero, nothing measured here can be trusted."""
    is_calibrated: bool
    minimum_detectable_effect: float | None
    """Smallest true gain that a first measurement calls better with 90 % probability."""
    min_effect: float
    """Smallest gain that the target calls worth having."""
    can_decide: bool | None
    """Whether noise leaves a gain of `min_effect` visible: its interval clears the floor with 90 % probability."""
    n_kept: int
    """Pairs of this calibration that other work disturbed and that were kept, because the machine stayed busy."""
    n_repeated: int
    """Pairs that were disturbed and measured again."""
    n_begun: int
    """All pairs of this calibration, repeated ones included."""
    disturbance: str
    """The last disturbance; empty if there was none."""
    go_on: str
    """The command that measures what is missing; empty when nothing is."""


def shipped_names() -> str:
    """The names of the targets that come with infra-agent."""
    return ", ".join(path.name for path in shipped_targets()) or "none"


def rows(found: Iterable[tuple[Campaign, Journal]]) -> list[Row]:
    """The campaigns as rows of the list."""
    return [_row(campaign, journal) for campaign, journal in found]


def _row(campaign: Campaign, journal: Journal) -> Row:
    won = [e for e in journal.finished if e.role == "final" or e in journal.accepted] if journal.accepted else []
    signals = [s for s in won[-1].signals if s.role == "objective"] if won else []
    return Row(
        campaign=campaign.id, target=campaign.target_name, planner=campaign.spec.planner.partition(":")[0],
        state=campaign.state, stop_reason=campaign.stop_reason, created_at=campaign.created_at,
        n_changes=journal.number_of_changes, n_accepted=len(journal.accepted),
        last_gain=signals[0].effect if signals else None,
    )  # fmt: skip


def as_text(found: Sequence[Row]) -> str:
    """The list of campaigns as a table."""
    if not found:
        return f"No campaigns yet. Start one with `infra-agent run TARGET`; shipped targets are: {shipped_names()}"
    cells = [("campaign", "target", "planner", "state", "started (UTC)", "accepted", "latest gain; why it stopped")]
    for row in found:
        cells.append(
            (
                row.campaign,
                row.target,
                row.planner,
                row.state.value,
                f"{row.created_at:%Y-%m-%d %H:%M}",
                f"{row.n_accepted} of {row.n_changes}",
                "; ".join(_remarks(row)),
            )
        )
    return table(cells) + "\n\nSee one with `infra-agent show CAMPAIGN`."


def _remarks(row: Row) -> list[str]:
    """The latest gain, and of a campaign that ended before its time the reason."""
    gain = [words.gain_of(row.last_gain)] if row.last_gain else []
    stopped = row.state in (CampaignState.STOPPED, CampaignState.FAILED)
    return [*gain, short(row.stop_reason, _REASON_CHARACTERS)] if stopped else gain


def table(cells: Sequence[Sequence[str]]) -> str:
    """Rows of cells as left-aligned columns."""
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in cells]
    return "\n".join(line.rstrip() for line in lines)


def calibration(found: Calibration) -> CalibrationFacts:
    """A calibration as facts."""
    objective, n_units = found.target.objective, len(found.units)
    direction, missing = objective.direction, stats.MIN_FLOOR_UNITS - n_units
    floor = stats.noise_floor(found.units) if missing <= 0 else None
    bias = stats.interval(found.units, BIAS_TAIL) if n_units > 1 else None
    seen = decidable = None
    if floor is not None:
        rule = screening_rule(found.target, floor.value)
        seen = as_gain(stats.minimum_detectable_effect(floor.sd, rule), direction)
        # Close to min_effect the rule asks chance anyhow, for the estimate must reach it; the machine is judged by
        # what noise alone hides.
        decidable = stats.minimum_detectable_effect(floor.sd, rule._replace(min_effect=0.0)) <= objective.min_effect
    events = Counter(e.name for e in found.events)
    disturbed = [e.message for e in found.events if e.level == "warning"]
    return CalibrationFacts(
        target=found.target.name, probe=objective.probe, metric=objective.metric, direction=direction,
        n_units=n_units, needed_units=stats.MIN_FLOOR_UNITS, is_provisional=floor is None,
        floor=as_gain(floor.value, direction) if floor else None,
        unit_sd=stdev(found.units) if n_units > 1 else None,
        bias=_gain(bias.mean, direction) if bias else None,
        bias_interval=_ordered(_gain(bias.lo, direction), _gain(bias.hi, direction)) if bias else None,
        is_calibrated=floor is not None and floor.is_calibrated,
        minimum_detectable_effect=seen, min_effect=as_gain(objective.min_effect, direction), can_decide=decidable,
        n_kept=events["disturbed_pair_kept"], n_repeated=events["disturbed_pair_repeated"],
        n_begun=len(found.events), disturbance=disturbed[-1] if disturbed else "",
        go_on=f"infra-agent calibrate {shlex.quote(found.given)} --pairs {missing}" if missing > 0 else "",
    )  # fmt: skip


def _gain(log_ratio: float, direction: Direction) -> float:
    """A log-ratio as a gain."""
    return math.expm1(log_ratio) if direction == "maximize" else -math.expm1(log_ratio)


def _ordered(a: float, b: float) -> tuple[float, float]:
    return min(a, b), max(a, b)


def calibration_text(facts: CalibrationFacts, width: int = 100) -> str:
    """A calibration for people."""
    lines = [f"{facts.target}: {facts.metric} of {facts.probe} against itself, {facts.n_units} A/A pairs known"]
    for paragraph in filter(None, (_spread(facts), _disturbed(facts), _missing(facts), _decision(facts))):
        lines += textwrap.wrap(paragraph, width, break_long_words=False, break_on_hyphens=False)
    if facts.go_on:
        lines += [f"  {facts.go_on}"]
    return "\n".join(lines)


def _spread(facts: CalibrationFacts) -> str:
    if facts.unit_sd is None or facts.bias is None or facts.bias_interval is None:
        return ""
    low, high = facts.bias_interval
    of = "" if facts.direction == "maximize" else " (all percentages: the part that is saved)"
    known = "Provisional: " if facts.floor is None else f"Noise floor: {_percent(facts.floor)}; "
    said = (
        f"{known}one pair scatters by {_percent(facts.unit_sd)} (standard deviation), identical arms differ by "
        f"{words.percent(facts.bias, 2)} [{words.percent(low, 2)}, {words.percent(high, 2)}]{of}."
    )
    if low <= 0 <= high:
        return said
    return (
        f"{said} That is a bias: identical arms should not differ. Find what else runs on this machine before you "
        "trust a small gain from it."
    )


def _disturbed(facts: CalibrationFacts) -> str:
    if not (facts.n_kept or facts.n_repeated):
        return ""
    said = f"{count(facts.n_repeated, 'disturbed pair')} measured again"
    if not facts.n_kept:
        return f"Other work got in the way now and then: {said}, for example {facts.disturbance}."
    return (
        f"The machine was busy: of {facts.n_begun} pairs {facts.n_kept} were disturbed by other work and kept, {said}; "
        f"for example {facts.disturbance}. What was found holds for a machine as busy as that. When it is quieter, "
        "measure anew with --fresh."
    )


def _missing(facts: CalibrationFacts) -> str:
    if not facts.go_on:
        return ""
    return f"A noise floor needs {facts.needed_units} pairs. What was measured is kept; go on with"


def _decision(facts: CalibrationFacts) -> str:
    """Whether this machine is quiet enough for what the target asks for, and what to do if not."""
    if facts.minimum_detectable_effect is None:
        return ""
    asked, seen = _percent(facts.min_effect, 1), _percent(facts.minimum_detectable_effect, 1)
    kept = "Stored; campaigns on this machine use it for seven days."
    if facts.can_decide:
        return (
            f"That is quiet enough for the {asked} that the target asks for: a first measurement finds a true gain of "
            f"{seen} with 90 % probability. {kept}"
        )
    return (
        f"This machine can't decide the {asked} that the target asks for; it finds {seen} with 90 % probability by a "
        f"first measurement, and smaller gains less often. End other work and measure anew with --fresh. If that "
        f"does not help, give probe {facts.probe} more pairs (`looks` in target.toml), or ask for a larger min_effect. "
        f"{kept}"
    )


def _percent(value: float, digits: int = 2) -> str:
    return f"{100 * value:.{digits}f} %"
