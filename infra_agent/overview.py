"""What there is, in tables: campaigns, and what a calibration found. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from feedback import stats
from feedback.signals import Effect
from infra_agent.catalogue import shipped_targets
from infra_agent.commands import Calibration
from infra_agent.domain import Campaign, CampaignState
from infra_agent.journal import Journal
from infra_agent.report import words
from sandboxes.results import Record


class Row(Record):
    """One campaign of the list."""

    campaign: str
    target: str
    planner: str
    state: CampaignState
    created_at: datetime
    n_changes: int
    n_accepted: int
    last_gain: Effect | None
    """Of the last accepted change, or of the result as a whole where that was measured later."""


class CalibrationFacts(Record):
    """This host's noise for a target's objective. `infra-agent calibrate --json` prints it."""

    target: str
    probe: str
    metric: str
    n_units: int
    """A/A pairs known, those of earlier calibrations and baselines included."""
    needed_units: int
    floor: float | None
    """95th percentile of |mean of 10 pairs|, as a fraction; None while too few pairs are known."""
    unit_sd: float | None
    """Standard deviation of one pair (log-ratio)."""
    bias: float | None
    """Mean log-ratio between identical arms."""
    bias_interval: tuple[float, float] | None
    """Its 99 % interval; if it excludes zero, nothing measured here can be trusted."""
    is_calibrated: bool
    minimum_detectable_effect: float | None
    """Smallest true gain that a first measurement calls better with 90 % probability."""
    min_effect: float
    """Smallest gain that the target calls worth having."""


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
        state=campaign.state, created_at=campaign.created_at,
        n_changes=journal.number_of_changes, n_accepted=len(journal.accepted),
        last_gain=signals[0].effect if signals else None,
    )  # fmt: skip


def as_text(found: Sequence[Row]) -> str:
    """The list of campaigns as a table."""
    if not found:
        return f"No campaigns yet. Start one with `infra-agent run TARGET`; shipped targets are: {shipped_names()}"
    cells = [("campaign", "target", "planner", "state", "started (UTC)", "accepted", "latest gain")]
    for row in found:
        cells.append(
            (
                row.campaign,
                row.target,
                row.planner,
                row.state.value,
                f"{row.created_at:%Y-%m-%d %H:%M}",
                f"{row.n_accepted} of {row.n_changes}",
                words.gain_of(row.last_gain) if row.last_gain else "",
            )
        )
    return table(cells) + "\n\nSee one with `infra-agent show CAMPAIGN`."


def table(cells: Sequence[Sequence[str]]) -> str:
    """Rows of cells as left-aligned columns."""
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in cells]
    return "\n".join(line.rstrip() for line in lines)


def calibration(found: Calibration) -> CalibrationFacts:
    """A calibration as facts."""
    objective, floor = found.target.objective, found.floor
    return CalibrationFacts(
        target=found.target.name, probe=objective.probe, metric=objective.metric,
        n_units=len(found.units), needed_units=stats.MIN_FLOOR_UNITS,
        floor=floor.value if floor else None, unit_sd=floor.sd if floor else None,
        bias=floor.bias if floor else None, bias_interval=(floor.bias_lo, floor.bias_hi) if floor else None,
        is_calibrated=floor is not None and floor.is_calibrated,
        minimum_detectable_effect=found.minimum_detectable_effect, min_effect=objective.min_effect,
    )  # fmt: skip


def calibration_text(facts: CalibrationFacts) -> str:
    """A calibration for people."""
    lines = [f"{facts.target}: {facts.metric} of {facts.probe} against itself, {facts.n_units} A/A pairs known"]
    if facts.floor is None or facts.unit_sd is None or facts.bias is None or facts.bias_interval is None:
        missing = facts.needed_units - facts.n_units
        lines.append(
            f"A noise floor needs {facts.needed_units}; go on with --pairs {missing}. What was measured is kept."
        )
        return "\n".join(lines)
    low, high = facts.bias_interval
    lines.append(f"noise floor: {facts.floor:.2%}; one pair scatters by {facts.unit_sd:.2%}")
    lines.append(f"identical arms differ by {facts.bias:+.2%} [{low:+.2%}, {high:+.2%}]")
    if not facts.is_calibrated:
        lines.append(
            "That is a bias: identical arms should not differ. Find what else runs on this machine before you trust "
            "a small gain from it."
        )
    if facts.minimum_detectable_effect is not None:
        lines.append(
            f"A true gain of {facts.minimum_detectable_effect:.1%} is found with 90 % probability by a first "
            f"measurement; the target asks for {facts.min_effect:.1%}."
        )
    lines.append("Stored; campaigns on this machine use it for seven days.")
    return "\n".join(lines)
