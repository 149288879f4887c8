"""The journal as a planner is told of it, within a token budget: old experiments on a line, what is still open in full.

Open is what the next proposal should start from or must not repeat: accepted changes, refuted hypotheses, results
that are undecided, and what was asked of the parent. Pure.
"""

from __future__ import annotations

from feedback.digest import count_tokens, head
from feedback.ranking import rank
from feedback.verdict import VerdictKind
from feedback.wording import short
from infra_agent import forecast
from infra_agent.citation import prefix
from infra_agent.domain import Experiment, State
from infra_agent.forecast import standing
from infra_agent.journal import Journal

FULL_SIGNALS = 3
FULL_CHARACTERS = 300


def recap(journal: Journal, tokens: int) -> str:
    """What was tried and what came of it, in order, in at most about `tokens` tokens; empty if nothing was.

    A line for each as far as that goes, those that are open and the latest first; what is left out is counted. Then
    the open ones get their mechanism, falsifier, prediction and leading signals, the latest first.
    """
    lines = _lines(journal, tokens)
    left = tokens - count_tokens("\n".join(lines.values()))
    for experiment in sorted(_told(journal), key=lambda e: -e.number):
        if experiment.number not in lines or not is_open(experiment):
            continue
        more = _details(experiment)
        if more and (cost := count_tokens(more) + 1) <= left:
            left -= cost
            lines[experiment.number] += f"\n{more}"
    return "\n".join(lines[number] for number in sorted(lines))


def is_open(experiment: Experiment) -> bool:
    """Whether the next proposal should know more of it than that it was tried."""
    verdict, found = experiment.verdict, standing(experiment)
    if experiment.role == "investigation" or not experiment.state.is_finished:
        return True
    if found is not None and found.outcome in ("refuted", "undecided"):
        return True
    return verdict is not None and verdict.kind in (VerdictKind.ACCEPT, VerdictKind.INCONCLUSIVE)


def _told(journal: Journal) -> list[Experiment]:
    """What `Journal.render` has a line for."""
    shown = ("change", "investigation")
    return [e for e in journal.experiments if e.role in shown and Journal(experiments=(e,)).render()]


def _lines(journal: Journal, tokens: int) -> dict[int, str]:
    """Number -> line of as many experiments as fit; what does not is counted at the top, under -1."""
    told = _told(journal)
    full = {e.number: Journal(experiments=(e,)).render() for e in told}
    kept: dict[int, str] = {}
    left = tokens - 40  # of the line that counts the rest
    for experiment in sorted(told, key=lambda e: (is_open(e), e.number), reverse=True):
        line = full[experiment.number]
        if (cost := count_tokens(line) + 1) <= left:
            left -= cost
            kept[experiment.number] = line
    if rest := Journal(experiments=tuple(e for e in told if e.number not in kept)).render(0):
        kept[-1] = f"{rest} read_journal shows more"
    return kept


def _details(experiment: Experiment) -> str:
    hypothesis = experiment.proposal.hypothesis
    said = {"because": hypothesis.mechanism, "refuted by": hypothesis.falsifier}
    lines = [f"{name}: {short(text, FULL_CHARACTERS)}" for name, text in said.items() if text]
    if (found := standing(experiment)) and found.outcome != "not measured":
        lines.append(f"prediction: {forecast.said(found)}")
    if experiment.verdict and experiment.state is not State.FAILED:
        lines += [f"reason: {short(reason, FULL_CHARACTERS)}" for reason in experiment.verdict.reasons[1:3]]
    lines += [head(signal, prefix(experiment)) for signal in rank(experiment.signals)[:FULL_SIGNALS]]
    return "\n".join(f"    {line}" for line in lines)
