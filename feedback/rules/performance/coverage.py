"""Which cases stand in one arm only, so that nothing says how they changed."""

from __future__ import annotations

from collections.abc import Sequence

from feedback.criteria import Criteria
from feedback.observations import Measurement, Observation
from feedback.rules import rule
from feedback.rules.cases import Key, evidence, key, text, where
from feedback.signals import InputLocation, Quantity, Signal

MAX_NAMED = 3
"""Cases that are named; the rest are counted."""

Cases = dict[Key, Measurement]


@rule(
    "performance.cases_differ",
    says="cases were measured in one arm only: gone, new, or none in common, so that nothing was compared",
    needs="measurements of both arms, by case",
)
def cases_differ(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """One signal a probe whose arms don't have the same cases."""
    arms: dict[str, dict[str, Cases]] = {}
    for o in observations:
        if isinstance(o, Measurement) and o.stage == criteria.stage and "function" not in o.case:
            arms.setdefault(o.probe, {"baseline": {}, "candidate": {}})[o.arm].setdefault(key(o.case), o)
    return [
        _signal(probe, of["baseline"], of["candidate"], criteria)
        for probe, of in arms.items()
        if all(of.values()) and of["baseline"].keys() != of["candidate"].keys()
    ]


def _signal(probe: str, before: Cases, after: Cases, criteria: Criteria) -> Signal:
    gone, new = [k for k in before if k not in after], [k for k in after if k not in before]
    n_common = len(before) - len(gone)
    counts = (Quantity(name="cases gone", value=len(gone)), Quantity(name="cases new", value=len(new)))
    places = [InputLocation(condition=dict(k)) for k in (gone + new)[:MAX_NAMED]]
    facts = evidence([before[k] for k in gone[:MAX_NAMED]] + [after[k] for k in new[:MAX_NAMED]])
    if n_common:
        parts = [f"{len(of)} {how} ({_named(of)})" for how, of in (("gone", gone), ("new", new)) if of]
        return Signal(
            rule_id="performance.cases_differ", level="warning" if gone else "note", finding="observed", subject=probe,
            message=f"{probe}: cases {', '.join(parts)}; {n_common} in common"[:400],
            locations=where(criteria, probe, *places), measured=counts, evidence=facts,
            caveats=("what is gone may have been the slow part: no mean over the rest is the old mean",)
            if gone else (),
            next=("measure the missing cases in the candidate, or say why they went",) if gone else (),
        )  # fmt: skip
    differs = _differing(gone, new)
    return Signal(
        rule_id="performance.cases_differ", level="warning", finding="abstained", subject=probe,
        message=f"{probe}: nothing was compared: no case in common{f', {differs}' if differs else ''}; "
        f"baseline: {_named(gone)}; candidate: {_named(new)}"[:400],
        reason=f"nothing was compared: no case in common{f', {differs}' if differs else ''}"[:400],
        locations=where(criteria, probe, *places), measured=counts, evidence=facts,
        next=("measure both sides under the same names and parameters",),
    )  # fmt: skip


def _named(cases: Sequence[Key]) -> str:
    more = f" and {len(cases) - MAX_NAMED} more" if len(cases) > MAX_NAMED else ""
    return ", ".join(text(k)[:80] for k in cases[:MAX_NAMED]) + more


def _differing(before: Sequence[Key], after: Sequence[Key]) -> str:
    """`request_rate 20 against inf`: parameters of which the arms have no value in common."""
    found = []
    for name in dict.fromkeys(name for case in (*before, *after) for name, _ in case):
        sides = [list(dict.fromkeys(str(dict(c).get(name, "unset")) for c in cases)) for cases in (before, after)]
        if not set(sides[0]) & set(sides[1]):
            found.append(" against ".join("|".join(values[:MAX_NAMED])[:60] for values in sides))
            found[-1] = f"{name} {found[-1]}"
    return ", ".join(found[:MAX_NAMED])
