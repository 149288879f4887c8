"""In which order signals are worth reading, and which of them are one.

Order: what would change the next decision comes first. A measurement that can't be trusted, then what is broken or
worse, then what got better, then what is still open, then the rest; inside each the verdict's own metrics before
mere information, large effects before small ones, and what has a strong cause before what has none.

Two signals are the same when they have the same fingerprint and finding and say the same but for numbers: they
become one. Two signals of different rules have one cause when both say that something is wrong (or both that it got
better), neither has a part in the verdict, each has evidence, and

* the most likely cause of both is the same text, or is about the same one thing (`SUBJECTS`: a process has one GIL),
  and is more than a weak guess; or
* both name the same function or kernel, or the same parameter and one says that its value changed; other than what the
  change under test itself touched.

Two servers have no cause in common: each has its own cache and settings.

The same thread, line, input or mere parameter is not enough: much can depend on one of those. The most useful signal
speaks for all of them and keeps its fingerprint; the others become its evidence.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import TypeVar

from feedback.signals import Cause, Evidence, Location, Signal

MAX_EVIDENCE = 12
"""Pieces that a merged signal keeps."""

SUBJECTS = (
    re.compile(r"\bGIL\b"),
    re.compile(r"\bgarbage collect", re.IGNORECASE),
    re.compile(r"\bKV cache\b", re.IGNORECASE),
    re.compile(r"\b(?:CPU quota|throttl\w+)\b", re.IGNORECASE),
    re.compile(r"\bTF32\b"),
)
"""Things of which there is one, so that two causes that name it are one cause, however they word it."""

_LEVELS = {"error": 0, "warning": 1, "note": 2}
_ROLES = {"gate": 0, "objective": 1, "guardrail": 2, "information": 3}
_FINDINGS = {
    "violates": 0, "worse": 1, "better": 2, "inconclusive": 3, "abstained": 4, "observed": 5, "same": 6, "holds": 7,
}  # fmt: skip
_SUPPORT = {"strong": 0, "moderate": 1, "weak": 2}
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d.,]*(?:e[-+]?\d+)?", re.IGNORECASE)

T = TypeVar("T")


def ordered(signals: Iterable[Signal]) -> list[Signal]:
    """Most useful first; equals keep their order."""
    return sorted(signals, key=_usefulness)


def rank(signals: Sequence[Signal], changed: Collection[Location] = ()) -> list[Signal]:
    """Most useful first, with duplicates and signals of one cause merged. `changed` is what the change touches, as
    are the places of signals with a part in the verdict: it stands in many signals and so connects none."""
    judged = [location for s in signals if s.role != "information" for location in s.locations]
    known = _places((*changed, *judged))
    merged: list[Signal] = []
    for signal in ordered(_without_duplicates(signals)):
        lead = next((n for n, other in enumerate(merged) if share_cause(other, signal, known)), None)
        if lead is None:
            merged.append(signal)
        else:
            merged[lead] = _joined(merged[lead], signal)
    return _told_apart(merged)


def _told_apart(signals: Sequence[Signal]) -> list[Signal]:
    """The same, each with an id of its own: what a rule says several times of one place differs in its words."""
    counts = Counter(s.fingerprint for s in signals)
    return [
        s.model_copy(update={"subject": f"{s.subject} {s.finding} {_NUMBER.sub('#', s.message)}"})
        if counts[s.fingerprint] > 1
        else s
        for s in signals
    ]


def share_cause(a: Signal, b: Signal, known: Collection[tuple[str, str]] = ()) -> bool:
    """Whether two signals are two views of one cause (see the top of this module)."""
    if a.rule_id == b.rule_id or not (_trend(a) and _trend(a) == _trend(b)):
        return False
    if a.role != "information" or b.role != "information" or not (a.evidence and b.evidence):
        return False
    if _servers(a) and _servers(b) and not _servers(a) & _servers(b):
        return False
    first, second = _likely(a), _likely(b)
    if first and second:
        same_text = first.text.casefold() == second.text.casefold()
        if same_text or _subjects(first) & _subjects(second):
            return True
    shared = (_places(a.locations) & _places(b.locations)) - set(known)
    moved = _changed_params((*a.locations, *b.locations))
    return any(kind == "function" or name in moved for kind, name in shared)


def _usefulness(signal: Signal) -> tuple[bool, int, int, int, float, int]:
    untrusted = signal.rule_id.startswith("integrity.") and signal.finding == "violates"
    size = abs(math.log(signal.effect.ratio)) if signal.effect and signal.effect.ratio > 0 else 0.0
    return (
        not untrusted, _LEVELS[signal.level], _ROLES[signal.role], _FINDINGS[signal.finding],
        -size if math.isfinite(size) else 0.0, min((_SUPPORT[c.support] for c in signal.causes), default=3),
    )  # fmt: skip


def _without_duplicates(signals: Iterable[Signal]) -> list[Signal]:
    found: dict[tuple[str, str, str], Signal] = {}
    for signal in signals:
        key = (signal.fingerprint, signal.finding, _NUMBER.sub("#", signal.message))
        if key not in found:
            found[key] = signal
        else:
            first, second = ordered((found[key], signal))
            found[key] = _united(first, second, second.evidence)
    return list(found.values())


def _joined(lead: Signal, other: Signal) -> Signal:
    """The lead with what the other saw as further evidence, named by its rule and conclusion."""
    seen = tuple(
        e.model_copy(update={"detail": f"{other.rule_id}: {other.message}" + (f" ({e.detail})" if e.detail else "")})
        for e in other.evidence[:2]
    )
    return _united(lead, other, seen)


def _united(lead: Signal, other: Signal, evidence: Sequence[Evidence]) -> Signal:
    texts = {cause.text for cause in lead.causes}
    return Signal(
        **{
            **dict(lead),
            "causes": (*lead.causes, *(c for c in other.causes if c.text not in texts)),
            "caveats": _distinct((*lead.caveats, *other.caveats)),
            "next": _distinct((*lead.next, *other.next)),
            "evidence": _distinct((*lead.evidence, *evidence))[:MAX_EVIDENCE],
        }
    )


def _distinct(values: Iterable[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(values))


def _trend(signal: Signal) -> str:
    """`bad`, `good`, or empty for a signal that says neither."""
    if signal.finding in ("violates", "worse"):
        return "bad"
    if signal.finding == "better":
        return "good"
    return "bad" if signal.finding == "observed" and signal.level != "note" else ""


def _likely(signal: Signal) -> Cause | None:
    """The most likely cause, if it is more than a guess."""
    first = signal.causes[0] if signal.causes else None
    return first if first and first.support != "weak" else None


def _subjects(cause: Cause) -> set[re.Pattern[str]]:
    return {subject for subject in SUBJECTS if subject.search(cause.text)}


def _places(locations: Iterable[Location]) -> set[tuple[str, str]]:
    """What a cause can sit in, by kind and name: a function, on a device or not, or a parameter."""
    found = set()
    for location in locations:
        if location.kind == "kernel":
            found.add(("function", location.name))
        elif location.kind == "code" and location.symbol:
            found.add(("function", location.symbol))
        elif location.kind == "param":
            found.add(("param", location.name))
    return found


def _servers(signal: Signal) -> set[str]:
    """The servers that a signal is about, where it tells them apart."""
    return {p.role for p in signal.locations if p.kind == "process" and p.role.startswith("server ")}


def _changed_params(locations: Iterable[Location]) -> set[str]:
    return {p.name for p in locations if p.kind == "param" and p.was is not None and p.was != p.value}
