"""Rules on tests and commands that must succeed."""

from __future__ import annotations

from collections.abc import Sequence

from feedback.criteria import Criteria
from feedback.observations import Observation, TestOutcome
from feedback.rules import rule
from feedback.signals import ProcessLocation, Signal


@rule(
    "correctness.test_fail",
    says="all tests of a probe passed, or which failed and how",
    needs="test outcomes",
)
def failed_tests(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """One signal a probe: all its tests passed, or which failed and how."""
    outcomes = [
        o for o in observations if isinstance(o, TestOutcome) and o.arm == "candidate" and o.stage == criteria.stage
    ]
    signals = []
    for probe in dict.fromkeys(o.probe for o in outcomes):
        of_probe = [o for o in outcomes if o.probe == probe]
        failed = [o for o in of_probe if o.outcome != "passed"]
        if not failed:
            signals.append(
                Signal(
                    rule_id="correctness.test_fail",
                    level="note",
                    finding="holds",
                    role=criteria.role_of(probe),
                    message=f"{probe}: passed ({len(of_probe)})",
                    locations=criteria.changed,
                )
            )
            continue
        first = failed[0]
        signals.append(
            Signal(
                rule_id="correctness.test_fail",
                level="error",
                finding="violates",
                role=criteria.role_of(probe),
                message=f"{probe}: {len(failed)} of {len(of_probe)} failed; {first.name}: {first.message}"[:400],
                locations=(*criteria.changed, ProcessLocation(arm="candidate", role=probe)),
            )
        )
    return signals


@rule(
    "correctness.gate_silent",
    says="a gate left no result, so it has not been passed",
    needs="the criteria",
)
def gate_silent(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """A gate of which nothing was heard has not been passed."""
    heard = {o.probe for o in observations if o.stage == criteria.stage}
    return [
        Signal(
            rule_id="correctness.gate_silent",
            level="warning",
            finding="abstained",
            role="gate",
            message=f"{probe}: this gate said nothing about the candidate",
            reason="it was not run, or it left no result",
            locations=criteria.changed,
        )
        for probe in criteria.gates
        if probe not in heard
    ]
