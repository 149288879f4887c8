"""Signals as the densest text within a token budget: what is most useful first, nothing cut in the middle of a fact.

Three lines lead: is it correct, is it better, what is still open and why. Then come errors in full, warnings in
full up to `FULL_WARNINGS`, other signals on one line, and a count of the rest. Every signal has its fingerprint in
front, by which it can be asked about; what is cut is listed by it too. What budget is left then shows the short ones
in full, the most useful first. Where there are several runs, a `prefix` before each fingerprint says of which it is.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from feedback.ranking import ordered
from feedback.signals import Effect, Evidence, Location, Quantity, Signal
from feedback.wording import count, plain

FULL_WARNINGS = 8
MAX_PLACES = 4
MAX_EVIDENCE = 4
MAX_GATE_ITEMS = 3

_TOKENS = re.compile(r"[^\W_]+|[^\w\s]|_|\s+")
_RULE = re.compile(r"([a-z]+\.[a-z_]+): ")
TABLE = "performance.bench_table"
"""The rule that sums up what was compared case by case."""
MAX_MESSAGE = 160
_CHECKS = ("correctness", "parity", "integrity")


def count_tokens(text: str) -> int:
    """An estimate from above of how many tokens a model reads: one for 3 digits, for 6 letters of a word, for each
    mark; names that mix letters and digits, such as fingerprints, cost two for 3 characters. On digests it is up to
    a third more than cl100k_base counts."""
    n = 0
    for match in _TOKENS.finditer(text):
        piece = match[0]
        if piece.isdigit():
            n += -(-len(piece) // 3)
        elif piece.isspace():
            n += piece != " "
        elif not piece.isascii():
            n += len(piece.encode())
        elif piece.isalpha():
            n += -(-len(piece) // 6)
        else:
            n += -(-2 * len(piece) // 3)
    return n


def digest(signals: Sequence[Signal], tokens: int = 1500, prefix: str = "") -> str:
    """The signals as lines of at most `tokens` tokens by `count_tokens`; empty without signals. What doesn't fit is
    counted and listed by fingerprint as far as that fits. The count and the three first lines always stand, those
    without their reasons where these don't fit."""
    found = ordered(signals)
    if not found:
        return ""
    left = tokens - count_tokens(_tail(found, 0, prefix))
    lines: list[str] = []

    def add(text: str) -> bool:
        nonlocal left
        cost = count_tokens(text) + 1
        if cost > left:
            return False
        left -= cost
        lines.append(text)
        return True

    lines += _within(gate_lines(found, prefix), left)
    left -= sum(count_tokens(line) + 1 for line in lines)
    n_warnings = 0
    rest: list[Signal] = []
    short: dict[int, Signal] = {}
    for signal in found:
        if _is_quiet(signal):
            rest.append(signal)
            continue
        n_warnings += signal.level == "warning"
        is_full = signal.level == "error" or signal.role == "objective"
        is_full |= signal.level == "warning" and n_warnings <= FULL_WARNINGS
        if is_full and add(render(signal, prefix)):
            continue
        if add(head(signal, prefix)):
            short[len(lines) - 1] = signal
        else:
            rest.append(signal)
    if not rest:
        _lengthen(lines, short, left, prefix)
    if rest:
        left += count_tokens(_tail(found, 0, prefix))
        n = len(rest)
        while n and count_tokens(_tail(rest, n, prefix)) > left:
            n -= 1
        lines.append(_tail(rest, n, prefix))
    return "\n".join(lines)


def _within(gates: Sequence[str], left: int) -> list[str]:
    """The lines that lead, each without its reasons where they would take more than `left` tokens in all."""
    bare = [line.partition(":")[0] for line in gates]
    left -= sum(count_tokens(line) + 1 for line in bare)
    found = []
    for line, short in zip(gates, bare, strict=True):
        more = count_tokens(line) - count_tokens(short)
        found.append(line if more <= left else short)
        left -= more if more <= left else 0
    return found


def _is_quiet(signal: Signal) -> bool:
    """Whether it says that all is well, other than what was measured and is the same."""
    well = signal.finding in ("same", "holds") and signal.rule_id != TABLE
    return well and signal.level == "note" and signal.role == "information"


def _lengthen(lines: list[str], short: Mapping[int, Signal], left: int, prefix: str) -> None:
    """Show in full what stands on one line, as far as `left` tokens go; `short` names the signal of such a line."""
    for index, signal in short.items():
        full = render(signal, prefix)
        more = count_tokens(full) - count_tokens(lines[index])
        if more <= left:
            left -= more
            lines[index] = full


def gate_lines(signals: Sequence[Signal], prefix: str = "") -> tuple[str, str, str]:
    """Three lines for whoever reads no further: correct? better? what is open?"""
    checks = [s for s in signals if s.rule_id.partition(".")[0] in _CHECKS or s.role == "gate"]
    broken = [s for s in checks if s.finding == "violates"]
    held = sum(s.finding in ("holds", "same") for s in checks)
    if broken:
        correct = f"no: {_items(broken, prefix)}"
    elif held:
        correct = f"{count(held, 'check')} held, none broken"
    else:
        correct = "not asked: no test, parity or gate was read"
    moved = [s for s in signals if s.role != "gate" and (s.effect is not None or s.finding in ("better", "worse"))]
    decisive = [s for s in moved if s.role == "objective"] or [s for s in moved if s.finding in ("better", "worse")]
    if decisive:
        counts = Counter(s.finding for s in decisive)
        better = ", ".join(f"{n} {finding}" for finding, n in counts.items()) + f": {_items(decisive, prefix, _gain)}"
    else:
        better = _not_better(signals, prefix) or ("no clear effect" if moved else "not measured")
    waiting = [
        s
        for s in signals
        if s.finding in ("inconclusive", "abstained") or (s.rule_id == TABLE and s.reason and s.finding != "same")
    ]
    if waiting:
        counts = Counter("abstained" if s.finding == "abstained" else "inconclusive" for s in waiting)
        still = ", ".join(f"{n} {finding}" for finding, n in counts.items()) + f": {_items(waiting, prefix, _why)}"
    else:
        still = "nothing"
    return f"correct? {correct}", f"better? {better}", f"open? {still}"


def _not_better(signals: Sequence[Signal], prefix: str) -> str:
    """What was compared without an effect that stands; empty if nothing was."""
    tables = [s for s in signals if s.rule_id == TABLE and s.role == "information"]
    if not tables:
        return ""
    same = all(s.finding == "same" for s in tables)
    return f"{'no' if same else 'not decided'}: {_items(tables, prefix, lambda s: plain(s.message)[:MAX_MESSAGE])}"


def _items(signals: Sequence[Signal], prefix: str, said: Callable[[Signal], str] = lambda s: s.rule_id) -> str:
    text = "; ".join(f"[{prefix}{s.fingerprint}] {said(s)}" for s in signals[:MAX_GATE_ITEMS])
    return text + (f"; and {len(signals) - MAX_GATE_ITEMS} more" if len(signals) > MAX_GATE_ITEMS else "")


def _gain(signal: Signal) -> str:
    if signal.effect is None:
        return signal.rule_id
    return f"{plain(signal.effect.metric)} {gain(signal.effect)}"


def _why(signal: Signal) -> str:
    return f"{signal.rule_id}: {plain(signal.reason)}"


def _tail(rest: Sequence[Signal], n_listed: int, prefix: str) -> str:
    counts = Counter(s.level for s in rest)
    kinds = ", ".join(count(n, level) for level, n in counts.items())
    line = f"... {count(len(rest), 'more signal')} ({kinds})"
    ids = dict.fromkeys(prefix + s.fingerprint for s in rest[:n_listed])
    return line + (": " + " ".join(ids) if ids else "")


def head(signal: Signal, prefix: str = "") -> str:
    """One signal on one line: conclusion and first place."""
    return f"{_conclusion(signal, prefix)} @ {place(signal.locations[0])}"


def _conclusion(signal: Signal, prefix: str) -> str:
    said = f"{signal.level.upper()} {signal.rule_id} {signal.finding}: {plain(signal.message)}"
    return f"[{prefix}{signal.fingerprint}] {said}"


def render(signal: Signal, prefix: str = "") -> str:
    """One signal in full: conclusion, places, numbers, causes, what next, evidence."""
    lines = [_conclusion(signal, prefix), "at " + _some([place(p) for p in signal.locations], MAX_PLACES)]
    if signal.reason and signal.reason not in signal.message:
        lines.append(f"why: {plain(signal.reason)}")
    if signal.effect is not None:
        lines.append(effect(signal.effect))
    if signal.measured:
        lines += _numbers(signal)
    for cause in signal.causes:
        share = f", explains {cause.explains:.0%}" if cause.explains is not None else ""
        refuted = f" -- refute: {plain(cause.refutable_by)}" if cause.refutable_by else ""
        lines.append(f"cause? ({cause.support}{share}) {plain(cause.text)}{refuted}")
    lines += [f"unless: {plain(caveat)}" for caveat in signal.caveats]
    lines += [f"next: {plain(action)}" for action in signal.next]
    if signal.evidence:
        lines.append("evidence " + _some([spot(e) + _seen_by(e) for e in signal.evidence], MAX_EVIDENCE, "; "))
    return "\n  ".join(lines)


def _numbers(signal: Signal) -> list[str]:
    """What was measured and expected on one line; many values of the same names one a line."""
    pairs = list(zip(signal.measured, signal.expected, strict=False))
    if len(pairs) == len(signal.measured) > 3 and all((a.name, a.unit) == (b.name, b.unit) for a, b in pairs):
        return [
            f"{plain(a.name)} {number(b.value)} -> {number(a.value)}{f' {a.unit}' * bool(a.unit)}" for a, b in pairs
        ]
    said = "measured " + ", ".join(quantity(q) for q in signal.measured)
    return [said + ("; expected " + ", ".join(quantity(q) for q in signal.expected) if signal.expected else "")]


def effect(e: Effect) -> str:
    """`time_s medians 0.01235 -> 0.009877; gain +20.0% [+18.0%, +22.0%] at 97%; 10 units; floor 2.1% assumed`. A gain
    that was estimated inside of pairs says so: it need not be the ratio of the medians."""
    known = "measured" if e.floor_known else "assumed"
    quality = "" if e.quality == "ok" else f"; {e.quality}"
    medians = f"{number(e.baseline)} -> {number(e.measured)}"
    inside = next((f" inside {word}" for word in ("pairs", "groups") if word in e.method), "")
    return (
        f"{plain(e.metric)} medians {medians}; gain{inside} {gain(e)} at {e.confidence:.1%}; {e.n_units} units; "
        f"floor {e.floor_gain:.1%} {known}{quality}"
    )


def gain(e: Effect) -> str:
    """`+21.3% [+18.0%, +24.7%]`: the gain in the wanted direction with its interval."""
    lo, hi = e.improvement_interval
    return f"{e.improvement:+.1%} [{lo:+.1%}, {hi:+.1%}]"


def quantity(q: Quantity) -> str:
    """`overlap 0.0123 share [0.01, 0.02]`: name, value, unit and interval."""
    bounds = ""
    if q.lo is not None and q.hi is not None:
        bounds = f" [{number(q.lo)}, {number(q.hi)}]"
    elif q.hi is not None:
        bounds = f" (at most {number(q.hi)})"
    elif q.lo is not None:
        bounds = f" (at least {number(q.lo)})"
    return f"{plain(q.name)} {number(q.value)}" + (f" {plain(q.unit)}" if q.unit else "") + bounds


def number(value: float) -> str:
    """Four significant digits; whole numbers below a million as they are."""
    if math.isfinite(value) and value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.4g}"


def spot(e: Evidence) -> str:
    """Where to look: file with line, byte or time range."""
    text = plain(e.artefact)
    if e.line is not None:
        text += f":{e.line}"
    if e.byte_start is not None:
        text += f" bytes {e.byte_start}..{'' if e.byte_end is None else e.byte_end}"
    if e.start_ns is not None:
        text += f" {e.start_ns / 1e6:.3f}..{'' if e.end_ns is None else f'{e.end_ns / 1e6:.3f}'} ms"
    return text + (f" {plain(e.query)}" if e.query and e.line is None else "")


def _seen_by(e: Evidence) -> str:
    """Which other rule saw the same cause there, for evidence that `ranking.rank` took from it."""
    match = _RULE.match(e.detail)
    return f" ({match[1]})" if match else ""


def _some(texts: Sequence[str], most: int, between: str = ", ") -> str:
    distinct = list(dict.fromkeys(texts))
    more = f"{between}and {len(distinct) - most} more" if len(distinct) > most else ""
    return between.join(distinct[:most]) + more


def place(location: Location) -> str:
    """A location in a few words."""
    return plain(_place(location))


def _place(location: Location) -> str:
    match location.kind:
        case "code":
            return (
                location.file
                + (f":{location.line}" if location.line else "")
                + (f" {location.symbol}" if location.symbol else "")
            )
        case "param":
            value = "" if location.value is None else f"={location.value}"
            return f"{location.name}{value}" + ("" if location.was is None else f" (was {location.was})")
        case "input":
            return " ".join(f"{k}={v}" for k, v in location.condition.items()) or "every input"
        case "process":
            return f"{location.arm} {location.role}"
        case "host":
            return "this host" + (f", CPUs {location.cpus}" if location.cpus else "")
        case "kernel":
            return f"kernel {location.name}" + (f" ({location.source})" if location.source else "")
        case "thread":
            return f"thread {location.name} of {location.process}"
        case "interval":
            return f"{location.track} {location.start_ns / 1e6:.3f}..{location.end_ns / 1e6:.3f} ms" + (
                f" and {location.n - 1} more" if location.n > 1 else ""
            )
        case "region":
            parts = [location.region, "" if location.index is None else str(location.index)]
            return f"{location.tensor}[{', '.join(part for part in parts if part)}]"
