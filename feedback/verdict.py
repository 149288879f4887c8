"""Signals, objective and guardrails to a verdict. No model judges here, and no number is made here."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from feedback.signals import Signal
from sandboxes.results import Record


class VerdictKind(StrEnum):
    """What came of a change."""

    ACCEPT = "accept"
    REJECT = "reject"
    INCONCLUSIVE = "inconclusive"
    INVALID = "invalid"


_HELD = ("holds", "better", "same")


class Verdict(Record):
    """The verdict and its reasons, most important first."""

    kind: VerdictKind
    reasons: tuple[str, ...]
    commit: str = ""
    """What was judged: the measured commit of the campaign's repository, whose hash covers its whole tree. Empty where
    nothing was measured. A verdict holds for exactly this."""


def judge(signals: Sequence[Signal]) -> Verdict:
    """The verdict over the signals of one measurement.

    Order: a measurement that can't be trusted is invalid; a broken gate or guardrail rejects; an undecided
    guardrail or objective is inconclusive; only a clear gain with every guardrail held is accepted.
    """
    gates = [s for s in signals if s.role == "gate"]
    guardrails = [s for s in signals if s.role == "guardrail"]
    objectives = [s for s in signals if s.role == "objective"]
    invalid = [s.message for s in signals if s.rule_id.startswith("integrity.") and s.finding == "violates"]
    if invalid:
        return Verdict(kind=VerdictKind.INVALID, reasons=tuple(invalid))
    broken = [s.message for s in (*gates, *guardrails) if s.finding in ("violates", "worse")]
    if broken:
        return Verdict(kind=VerdictKind.REJECT, reasons=tuple(broken))
    if not objectives:
        undecided = [s.reason or s.message for s in gates if s.finding in ("inconclusive", "abstained")]
        return Verdict(kind=VerdictKind.INCONCLUSIVE, reasons=tuple(undecided) or ("the objective was not measured",))
    lost = [s.message for s in objectives if s.finding in ("worse", "same", "violates")]
    if lost:
        return Verdict(kind=VerdictKind.REJECT, reasons=tuple(lost))
    # Only what was clearly found counts: anything else, abstentions included, leaves the question open.
    undecided = [s.message for s in objectives if s.finding != "better"]
    undecided += [s.message for s in (*guardrails, *gates) if s.finding not in _HELD]
    if undecided:
        return Verdict(kind=VerdictKind.INCONCLUSIVE, reasons=tuple(undecided))
    won = (*objectives, *guardrails)
    return Verdict(kind=VerdictKind.ACCEPT, reasons=tuple(s.message for s in won))
