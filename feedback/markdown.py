"""A comparison for a pull request: a table of what was found, details folded, and nothing that acts.

File names, kernel names and log lines are written by whoever made the files. In Markdown they could mention people,
link, load images or break the page; every text is therefore written so that it only shows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from feedback.comparison import Comparison
from feedback.digest import effect, gate_lines, place, quantity, spot
from feedback.signals import Signal
from feedback.wording import one_line

MAX_ROWS = 50
MAX_FILES = 100
_MARKS = {"error": "🔴 error", "warning": "🟡 warning", "note": "⚪ note"}
_ACTIVE = frozenset("\\`*_{}[]<>#|!~&@$^\"'")
_BREAKS = re.compile(r"(?<=@)|(?<=://)|(?<=:)(?=//)|(?<=www)(?=\.)|(?<=#)(?=\d)|(?<=GH-)(?=\d)", re.IGNORECASE)
_ZERO_WIDTH = "&#8203;"


def markdown(comparison: Comparison) -> str:
    """The comparison as GitHub-flavoured Markdown, most useful signals first."""
    signals = comparison.signals
    base = ", ".join(safe(path.name) for path in comparison.base)
    candidate = ", ".join(safe(path.name) for path in comparison.candidate)
    title = f"{base} against {candidate}" if candidate else base
    parts = [f"### {title}", "\n".join(f"- {safe(line)}" for line in gate_lines(signals))]
    if comparison.uncompared:
        parts.append(safe(comparison.uncompared))
    if signals:
        parts.append(_table(signals[:MAX_ROWS]))
        if len(signals) > MAX_ROWS:
            parts.append(f"{len(signals) - MAX_ROWS} more signals are left out here.")
        parts += [_details(s) for s in signals[:MAX_ROWS] if s.effect or s.measured or s.causes or s.next or s.evidence]
    parts.append(_files(comparison))
    return "\n\n".join(parts) + "\n"


def safe(text: str) -> str:
    """Text that only shows, wherever it stands in Markdown or HTML: no mention, link, image, tag or table cell."""
    broken = _BREAKS.sub("\0", one_line(text))
    shown = "".join(f"&#{ord(c)};" if c in _ACTIVE else c for c in broken)
    return re.sub(r"^([-+=:>]|\d+(?=[.)]))", lambda m: f"{_ZERO_WIDTH}{m[1]}", shown.replace("\0", _ZERO_WIDTH))


def _table(signals: Sequence[Signal]) -> str:
    rows = [
        f"| {_MARKS[s.level]} | {safe(s.message)} | {safe(place(s.locations[0]))} | `{s.rule_id}` | `{s.fingerprint}` |"
        for s in signals
    ]
    return "\n".join(["| | what | where | rule | id |", "|---|---|---|---|---|", *rows])


def _details(s: Signal) -> str:
    lines = [f"- at {', '.join(safe(place(p)) for p in s.locations[:8])}"]
    if s.reason:
        lines.append(f"- why: {safe(s.reason)}")
    if s.effect is not None:
        lines.append(f"- {safe(effect(s.effect))}; {safe(s.effect.method)}")
    lines += [f"- measured {safe(quantity(q))}" for q in s.measured]
    lines += [f"- expected {safe(quantity(q))}" for q in s.expected]
    for cause in s.causes:
        refuted = f"; refuted if {safe(cause.refutable_by)}" if cause.refutable_by else ""
        lines.append(f"- cause? ({cause.support}) {safe(cause.text)}{refuted}")
    lines += [f"- unless {safe(caveat)}" for caveat in s.caveats]
    lines += [f"- next: {safe(action)}" for action in s.next]
    lines += [f"- evidence: {safe(spot(e))}" + (f" ({safe(e.detail)})" if e.detail else "") for e in s.evidence]
    summary = f"<summary><code>{s.fingerprint}</code> {safe(s.message)}</summary>"
    return "\n".join(["<details>", summary, "", *lines, "", "</details>"])


def _files(comparison: Comparison) -> str:
    rows = [
        f"| {f.arm or 'both'} | {safe(f.name)} | {f.format} | {', '.join(f'{n} {k}' for k, n in f.kinds.items())} |"
        for f in comparison.read[:MAX_FILES]
    ]
    table = ["| arm | file | format | observations |", "|---|---|---|---|", *rows]
    notes = [f"- not read: {safe(f.name)}: {safe(f.reason)}" for f in comparison.unread[:MAX_FILES]]
    notes += [f"- no counterpart: {safe(name)}" for name in comparison.unmatched[:MAX_FILES]]
    summary = f"<summary>{len(comparison.read)} files read, {len(comparison.unread)} not</summary>"
    return "\n".join(["<details>", summary, "", *table, "", *notes, "", "</details>"])
