"""What the playbook says when it has nothing left to try: covered, not covered, and what would have to be known."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from feedback.signals import Signal
from feedback.wording import count, short
from infra_agent.journal import Journal
from infra_agent.levers import untried
from infra_agent.planner import Context
from infra_agent.planner.dials import Dials
from infra_agent.planner.rulebook import Playbook, Rule
from infra_agent.planner.sources import hot
from infra_agent.planner.symptoms import ids_of_parent, spot
from infra_agent.planner.tree import Tree

MAX_SAID = 4000
MAX_STATEMENTS = 6
MAX_NAMES = 4
WORDS = {
    "knobs": "knobs", "tests": "tests", "outputs": "outputs held against golden ones",
    "counts": "instruction counts (method callgrind)", "times": "times over sizes (method slices)",
    "load": "a load (method load)", "events": "logs and counters of a server (method events)",
    "trace": "traces of threads or devices", "profile": "sampling profiles",
}  # fmt: skip


class Fired(Protocol):
    """A rule with what it fired on."""

    @property
    def rule(self) -> Rule: ...
    @property
    def signal(self) -> Signal | None: ...


def closing(
    context: Context, book: Playbook, fired: Sequence[Fired], refused: Sequence[str], dials: Dials, has: Collection[str]
) -> str:
    """The reason to stop, as sentences."""
    parts = [_covered(context.journal)]
    parts += _code(context, fired)
    parts += _without_knob(fired, book, dials)
    if refused:
        parts.append(f"sent back by the rules for proposals: {'; '.join(refused[:3])}")
    parts += _lacking(book, fired, has)
    left = [f for f in untried(context.journal, context.spec) if f != "launch parameters" or not context.spec.knobs]
    if left:
        parts.append(f"not tried, because no rule called for it with a change that it may make: {', '.join(left)}")
    return ". ".join(part.rstrip(". ") for part in parts)[:MAX_SAID]


def _covered(journal: Journal) -> str:
    asked = [e.proposal.probe for e in journal.finished if e.role == "investigation"]
    looked = f"{count(len(asked), 'investigation')} ({', '.join(dict.fromkeys(asked))})" if asked else "nothing"
    changes = [e for e in journal.finished if e.role == "change"]
    tried = [f"{short(e.proposal.hypothesis.claim, 60)}: {e.verdict.kind.value if e.verdict else e.state.value}"
             for e in changes]  # fmt: skip
    return f"the playbook has no move left after {count(len(changes), 'change')}" + (
        f" ({'; '.join(tried)})" if tried else ""
    ) + f"; it looked at {looked}"  # fmt: skip


def _code(context: Context, fired: Sequence[Fired]) -> list[str]:
    """What only a change of code, or of what the target is run with, would help."""
    said = []
    tree, ids = Tree(context.parent_tree, context.spec), ids_of_parent(context)
    for firing in fired:
        for text in (step.code for step in firing.rule.do if step.code):
            signal = firing.signal
            if signal is None:
                places = message = found = ""
            else:
                places = "; ".join(dict.fromkeys(p for p in map(spot, signal.locations) if p))
                message = signal.message
                found = "; ".join(map(str, hot(signal, tree))) if "{hot}" in text else ""
            filled = text.replace("{places}", short(places, 200)).replace("{message}", short(message, 200))
            name = f"{firing.rule.id}" + (f" [{ids[signal.fingerprint]}]" if signal else "")
            said.append(f"{name}: {filled.replace('{hot}', short(found, 600) or 'no function of its own source')}")
    more = [f"{len(said) - MAX_STATEMENTS} more rules ask for code"] if len(said) > MAX_STATEMENTS else []
    if not said:
        return []
    return ["only code would help here, which this planner does not write", *said[:MAX_STATEMENTS], *more]


def _without_knob(fired: Sequence[Fired], book: Playbook, dials: Dials) -> list[str]:
    said = []
    for firing in fired:
        levers = [name for step in firing.rule.do for name in dials.missing(step.moves)]
        if levers:
            named = "; ".join(book.levers[name].says for name in dict.fromkeys(levers))
            said.append(f"{firing.rule.id} fired, but the target declares no knob for: {named}")
    return said[:MAX_NAMES]


def _lacking(book: Playbook, fired: Sequence[Fired], has: Collection[str]) -> list[str]:
    """Kinds of evidence that no probe of the target gives, with the rules that need them."""
    of = {firing.rule.id for firing in fired}
    lacking: dict[str, list[str]] = {}
    for rule in book.rules:
        if rule.id not in of and not set(rule.needs) & set(has):
            lacking.setdefault(rule.needs[0], []).append(rule.id)
    said = []
    for kind, rules in lacking.items():
        more = ", ..." if len(rules) > MAX_NAMES else ""
        said.append(f"{WORDS[kind]} for {count(len(rules), 'rule')} ({', '.join(rules[:MAX_NAMES])}{more})")
    return [f"evidence that no probe of this target gives: {'; '.join(said)}"] if said else []
