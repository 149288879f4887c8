"""Both arms side by side: what is wrong in the candidate, and whether it already was in the baseline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from feedback.criteria import Criteria
from feedback.observations import Observation
from feedback.signals import Signal
from feedback.spans import Spans, Stacks

T = TypeVar("T", Spans, Stacks)

MAX_TIME_NS = 1 << 62


class Pair(NamedTuple, Generic[T]):
    """The files of one probe that belong together. At least one is there."""

    baseline: T | None
    candidate: T | None

    @property
    def present(self) -> tuple[T, ...]:
        """What there is, candidate first."""
        return tuple(x for x in (self.candidate, self.baseline) if x is not None)


class State(NamedTuple):
    """What a rule saw of one place in one arm."""

    key: str
    """What makes it the same place in the other arm."""
    is_bad: bool
    said: str
    """The number in words, such as `idle 31.0 %`."""
    signal: Signal | None
    """What to say of a bad one; None for one that is well."""


def pairs(observations: Sequence[Observation], criteria: Criteria, kind: type[T]) -> list[Pair[T]]:
    """Traces or profiles of this stage by probe; several of one arm (ranks) pair up in the order of their names, and
    profiles of GIL holders among themselves."""
    found: dict[str, dict[str, list[T]]] = {}
    for o in observations:
        if isinstance(o, kind) and o.stage == criteria.stage and is_sane(o):
            found.setdefault(o.probe, {"baseline": [], "candidate": []})[o.arm].append(o)
    made = []
    for arms in found.values():
        before, after = (sorted(arms[name], key=_order) for name in ("baseline", "candidate"))
        for n in range(max(len(before), len(after))):
            made.append(Pair(before[n] if n < len(before) else None, after[n] if n < len(after) else None))
    return made


def _order(o: Spans | Stacks) -> tuple[bool, str]:
    return isinstance(o, Stacks) and o.only_gil, o.file


def is_sane(o: Spans | Stacks) -> bool:
    """Whether sums over the file's times fit 63 bits: beyond that (decades, times a thousand threads) it's no trace."""
    if isinstance(o, Stacks):
        return len(o.weight) > 0 and bool(np.isfinite(o.weight).all() and (o.weight >= 0).all())
    if not len(o):
        return False
    first, last = int(o.start_ns.min()), int(o.end_ns.max())
    return abs(first) < MAX_TIME_NS and 0 <= last - first + 1 < MAX_TIME_NS // max(1, len(o.tracks))


def compare(pair: Pair[T], look: Callable[[T], Sequence[State]]) -> list[Signal]:
    """Signals on what is bad in the candidate, or in the only arm there is; a problem that both arms have isn't the
    change's doing and is a note; one that is gone is a note too."""
    if pair.baseline is None or pair.candidate is None:
        return [state.signal for state in look(pair.present[0]) if state.is_bad and state.signal]
    before, after = ({state.key: state for state in look(arm)} for arm in (pair.baseline, pair.candidate))
    signals = []
    for key, now in after.items():
        was = before.get(key)
        if now.is_bad and now.signal:
            if was is None:
                signals.append(now.signal)
            elif was.is_bad:
                signals.append(restated(now.signal, f"{now.signal.message}; the baseline too: {was.said}", "note"))
            else:
                signals.append(restated(now.signal, f"{now.signal.message}; baseline: {was.said}"))
        elif was and was.is_bad and was.signal:
            gone = was.signal.model_copy(update={"causes": (), "next": (), "caveats": ()})
            signals.append(restated(gone, f"no longer so: {now.said}; baseline: {was.signal.message}", "note"))
    return signals


def restated(signal: Signal, message: str, level: str | None = None) -> Signal:
    """The same signal with another message and level."""
    return Signal(**{**dict(signal), "message": message[:400], "level": level or signal.level})


def percent(share: float) -> str:
    """`31.0 %`."""
    return f"{100 * share:.1f} %"
