"""How much work is done, by executed instructions: deterministic, so one run of each arm suffices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import TypeGuard

from feedback.criteria import Criteria
from feedback.observations import Measurement, Observation
from feedback.rules import rule
from feedback.rules.cases import Key, evidence, key, where
from feedback.signals import Cause, CodeLocation, Quantity, Signal

REAL_CHANGE_OF_WORK = 0.001
"""Instruction counts of the same binary repeat to about 0.02 %; beyond 0.1 % the work itself changed."""
MAX_FUNCTIONS = 5


@rule(
    "performance.instructions",
    says="whether the amount of work changed, by executed instructions",
    needs="callgrind totals",
)
def instructions(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """Whether the amount of work changed, by executed instructions: deterministic, so one run each suffices."""
    counts: dict[tuple[str, str], list[float]] = {}
    facts: dict[str, list[Measurement]] = {}
    for o in observations:
        if _counted(o, criteria) and "function" not in o.case:
            counts.setdefault((o.probe, o.arm), []).append(o.value)
            facts.setdefault(o.probe, []).append(o)
    signals = []
    for probe in sorted({p for p, _ in counts}):
        if (probe, "baseline") not in counts or (probe, "candidate") not in counts:
            continue
        before, after = median(counts[probe, "baseline"]), median(counts[probe, "candidate"])
        if not (before > 0 and after > 0):
            signals.append(_uncounted(probe, before, after, criteria))
            continue
        change = after / before - 1
        what = "the same work" if abs(change) <= REAL_CHANGE_OF_WORK else "less work" if change < 0 else "more work"
        signals.append(
            Signal(
                rule_id="performance.instructions",
                level="note",
                finding="observed",
                subject=probe,
                message=f"{probe}: {before:.4g} -> {after:.4g} instructions ({change:+.2%}): {what}",
                locations=where(criteria, probe),
                evidence=evidence(facts[probe]),
                next=("compare wall time: instruction counts are blind to caches, vector width and waiting",),
            )
        )
    return signals


def _uncounted(probe: str, before: float, after: float, criteria: Criteria) -> Signal:
    reason = f"{before:g} instructions in the baseline, {after:g} in the candidate: what is counted did not run"
    return Signal(
        rule_id="performance.instructions", level="warning", finding="abstained", subject=probe,
        message=f"{probe}: {reason}"[:400], locations=where(criteria, probe), reason=reason,
        next=("check that the counted function is still there under its name, and called",),
    )  # fmt: skip


def _counted(o: Observation, criteria: Criteria) -> TypeGuard[Measurement]:
    return isinstance(o, Measurement) and o.metric == "instructions" and o.stage == criteria.stage


@rule(
    "performance.instructions_by_function",
    says="which functions execute more or fewer instructions than before, and what share of the change each is",
    needs="instruction counts by function of both arms (callgrind)",
)
def instructions_by_function(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """The functions whose own instruction counts changed, largest change first."""
    signals = []
    counted = [o for o in observations if _counted(o, criteria) and "function" in o.case]
    for probe in dict.fromkeys(o.probe for o in counted):
        arms: dict[str, dict[Key, Measurement]] = {"baseline": {}, "candidate": {}}
        for o in counted:
            if o.probe == probe and math.isfinite(o.value) and o.value >= 0:
                arms[o.arm][key(o.case)] = o
        before, after = arms["baseline"], arms["candidate"]
        total = sum(o.value for o in before.values())
        if not total or not after:
            continue
        changes = {k: _of(after, k) - _of(before, k) for k in (*before, *(k for k in after if k not in before))}
        real = [k for k, change in changes.items() if abs(change) > REAL_CHANGE_OF_WORK * total]
        if real:
            real.sort(key=lambda k: -abs(changes[k]))
            signals.append(_by_function(probe, real, before, after, criteria))
    return signals


def _of(counts: dict[Key, Measurement], function: Key) -> float:
    return counts[function].value if function in counts else 0.0


def _by_function(
    probe: str, real: list[Key], before: dict[Key, Measurement], after: dict[Key, Measurement], criteria: Criteria
) -> Signal:
    total = sum(o.value for o in before.values())
    whole = sum(o.value for o in after.values()) - total
    shown = real[:MAX_FUNCTIONS]
    said, quantities, expected, places, facts = [], [], [], [], []
    for function in shown:
        was, now = _of(before, function), _of(after, function)
        known = after.get(function) or before[function]
        name = str(known.case["function"])
        how = (
            "new"
            if function not in before
            else "gone"
            if function not in after
            else f"{now / was - 1:+.1%}"
            if was
            else ""
        )
        said.append(f"{name} {now - was:+.3g} ({how})")
        quantities.append(Quantity(name=name[:80], value=now, unit="instructions"))
        expected.append(Quantity(name=name[:80], value=was, unit="instructions"))
        file, _, line = known.code.rpartition(":")
        stands = (file, int(line)) if line.isdecimal() else (known.code or str(known.case.get("file", "")), None)
        places.append(CodeLocation(file=stands[0], line=stands[1], symbol=name))
        facts += [counts[function] for counts in (after, before) if function in counts]
    more = f" and {len(real) - len(shown)} more functions" if len(real) > len(shown) else ""
    gone, new = sum(k not in after for k in real), sum(k not in before for k in real)
    causes = []
    if gone and new:
        causes.append(
            Cause(
                text="a function was renamed or inlined elsewhere: what one lost another gained",
                support="moderate" if abs(whole) < REAL_CHANGE_OF_WORK * total else "weak",
                refutable_by="compare inclusive counts of the common caller",
            )
        )
    return Signal(
        rule_id="performance.instructions_by_function", level="note", finding="observed", subject=probe,
        message=f"{probe}: {whole / total:+.2%} instructions in all: {', '.join(said)}{more}"[:400],
        locations=where(criteria, probe, *places), measured=tuple(quantities), expected=tuple(expected),
        causes=tuple(causes), evidence=evidence(facts),
        next=("read the difference of the first function named; time it alone before trusting its count",),
    )  # fmt: skip
