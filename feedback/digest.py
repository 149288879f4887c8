"""Signals as text within a token budget: errors first, then warnings, then notes; gates lead each of them."""

from __future__ import annotations

from collections.abc import Sequence

from feedback.signals import Location, Signal

CHARS_PER_TOKEN = 4
_ROLES = {"gate": 0, "objective": 1, "guardrail": 2, "information": 3}
_LEVELS = {"error": 0, "warning": 1, "note": 2}


def digest(signals: Sequence[Signal], budget_tokens: int = 1500) -> str:
    """The signals as lines. What does not fit is counted, never dropped silently; the count itself stands
    beyond the budget."""
    left = budget_tokens * CHARS_PER_TOKEN
    ordered = sorted(signals, key=lambda s: (_LEVELS[s.level], _ROLES[s.role]))
    lines: list[str] = []
    for signal in ordered:
        text = render(signal)
        left -= len(text) + 1
        if left < 0:
            n_cut = len(ordered) - len(lines)
            lines.append(f"... {n_cut} more signal{'s' if n_cut > 1 else ''}")
            break
        lines.append(text)
    return "\n".join(lines)


def render(signal: Signal) -> str:
    """One signal as text: conclusion, places, why, what next."""
    text = f"[{signal.fingerprint}] {signal.level.upper()} {signal.rule_id} {signal.finding}: {signal.message}"
    text += "\n  at " + ", ".join(place(location) for location in signal.locations[:4])
    if signal.reason and signal.reason not in signal.message:
        text += f"\n  why: {signal.reason}"
    if signal.effect is not None:
        e = signal.effect
        known = "measured" if e.floor_known else "assumed"
        text += f"\n  {e.metric} medians {e.baseline:.4g} -> {e.measured:.4g}"
        text += f"; {e.n_units} pairs; floor {e.floor_gain:.1%} {known}"
    for cause in signal.causes:
        text += f"\n  cause? ({cause.support}) {cause.text}" + (
            f" -- refute: {cause.refutable_by}" if cause.refutable_by else ""
        )
    for action in signal.next:
        text += f"\n  next: {action}"
    return text


def place(location: Location) -> str:
    """A location in a few words."""
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
            return " ".join(f"{k}={v}" for k, v in location.condition.items())
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
