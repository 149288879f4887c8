"""What a hypothesis may cite, and what is said of what it can't."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from itertools import islice
from pathlib import PurePosixPath

from infra_agent import citation
from infra_agent.citation import Cited
from infra_agent.planner import Context
from infra_agent.planner.tree import NotReadable, Tree
from sandboxes.workspace import matches

KINDS = (
    "the id of a signal with its experiment (such as #3/af6f474eec03, in brackets in front of it), #N for an "
    "experiment, path:line for code of the parent, a knob's name"
)
MAX_NEAR = 4
"""Things that are named as what may have been meant."""
IN_SANDBOX = "/tree/"
"""Where profiles that were taken in a sandbox say that the target's files are."""
_EXPERIMENT = re.compile(r"#(\d{1,6})(?:/.*)?", re.DOTALL)


def doubt(evidence: Sequence[str], context: Context) -> str | None:
    """Why what a hypothesis cites is not evidence, with what may be cited instead; None if all of it is."""
    if not evidence:
        return f"cite the evidence that the claim rests on: {KINDS}"
    unknown = []
    for given in evidence:
        found = citation.cited(context.journal.finished, given)
        if len(found) != 1 and not _is_known(given, context):
            if found:
                return citation.ambiguity(given, found)
            unknown.append(given)
    if not unknown:
        return None
    near = list(dict.fromkeys(text for given in unknown for text in islice(_near(given, context), MAX_NEAR)))
    named = ", ".join(citation.bare(u)[:80] or "an empty text" for u in unknown[:4])
    return f"no such evidence: {named}. May be cited: {KINDS}. For example {', '.join(near[:MAX_NEAR])}"


def near_signals(given: str, context: Context) -> str:
    """The ids that one which names no signal may mean; empty where there are no signals yet."""
    near = dict.fromkeys(text for text in _near(given, context) if _EXPERIMENT.fullmatch(text) and "/" in text)
    return ", ".join(list(near)[:MAX_NEAR])


def _is_known(given: str, context: Context) -> bool:
    given = citation.bare(given)
    if number := re.fullmatch(r"#(\d{1,6})", given):
        return any(e.number == int(number[1]) for e in context.journal.finished)
    if context.spec.knob(given):
        return True
    path, _, place = given.partition(":")
    try:
        lines = Tree(context.parent_tree, context.spec).text(path.removeprefix(IN_SANDBOX)).count("\n") + 1
    except NotReadable:
        return False
    first = re.match(r"\d{1,7}", place)
    return int(first[0]) <= lines if first else True


def _near(given: str, context: Context) -> Iterator[str]:
    """What may have been meant, the nearest first, then what is citable anyway."""
    given = citation.bare(given)
    known = list(citation.signals(context.journal.finished))
    if number := _EXPERIMENT.fullmatch(given):
        mine = [c for c in known if c.experiment.number == int(number[1])]
        yield from ([f"#{number[1]}"] if mine else [])
        yield from map(_said, mine)
    by_fingerprint = {c.signal.fingerprint: c for c in reversed(known)}
    close = get_close_matches(given.rpartition("/")[2].lower(), by_fingerprint, n=2, cutoff=0.7)
    yield from (_said(by_fingerprint[fingerprint]) for fingerprint in close)
    rule = given.lower().replace(" ", "_")
    yield from (_said(c) for c in known if len(rule) > 3 and (rule in c.signal.rule_id or c.signal.rule_id in rule))
    yield from _files(given, context)
    yield from get_close_matches(given, [knob.name for knob in context.spec.knobs], n=2)
    yield from map(_said, known[:2])
    yield from (f"#{e.number}" for e in reversed(context.journal.finished[-1:]))
    yield from (knob.name for knob in context.spec.knobs[:1])
    editable = tuple(pattern.rstrip("/") for pattern in context.spec.editable)
    files = Tree(context.parent_tree, context.spec).files()
    yield from (f"{path}:1" for path in islice((p for p in files if matches(p, editable)), 1))


def _files(given: str, context: Context) -> Iterator[str]:
    """The place that a path with a wrong line or directory may mean."""
    path = PurePosixPath(given.partition(":")[0])
    tree = Tree(context.parent_tree, context.spec)
    if not path.suffix:
        return
    for found in tree.files(re.sub(r"[\[\]*?]", "?", path.name)):
        try:
            lines = tree.text(str(found)).count("\n") + 1
        except NotReadable:
            continue
        yield f"{found}:1 (it has {lines} lines)"


def _said(one: Cited) -> str:
    return f"{one.id} ({one.signal.rule_id})"
