"""Rules on tests and commands that must succeed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from feedback.criteria import Criteria
from feedback.observations import Observation, RuntimeEvent, TestOutcome
from feedback.rules import rule
from feedback.rules.cases import evidence, where
from feedback.signals import Cause, CodeLocation, Evidence, Location, ProcessLocation, Quantity, Signal
from feedback.wording import count

MAX_PLACES = 5
"""Places and tests that are named one by one; the rest are counted."""

State = Literal["passed", "failed", "skipped", "flaky"]


class Test(NamedTuple):
    """All attempts at one test in one arm."""

    name: str
    state: State
    attempts: tuple[TestOutcome, ...]

    @property
    def first_failure(self) -> TestOutcome | None:
        """The first attempt that failed or errored."""
        return next((o for o in self.attempts if o.outcome in ("failed", "error")), None)


def tests_of(outcomes: Iterable[TestOutcome]) -> dict[str, Test]:
    """Tests by name, in the order in which they ran."""
    attempts: dict[str, list[TestOutcome]] = defaultdict(list)
    for o in outcomes:
        attempts[o.name].append(o)
    found = {}
    for name, of in attempts.items():
        ran = {"passed" if o.outcome == "passed" else "failed" for o in of if o.outcome != "skipped"}
        state: State = "flaky" if len(ran) == 2 else "failed" if "failed" in ran else "passed" if ran else "skipped"
        found[name] = Test(name, state, tuple(of))
    return found


@rule(
    "correctness.test_fail",
    says="all tests of a probe passed, or which failed and how",
    needs="test outcomes",
)
def failed_tests(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """One signal a probe: all its tests passed, or which failed and how. Of a test that was tried again the last
    attempt counts; skipped tests neither pass nor fail, and nothing but skipped tests is no pass. A gate must be
    passed even if the baseline fails it; elsewhere what fails in the baseline too is a note."""
    of_stage = [o for o in observations if isinstance(o, TestOutcome) and o.stage == criteria.stage]
    outcomes = [o for o in of_stage if o.arm == "candidate"]
    before = {(o.probe, o.name) for o in of_stage if o.arm == "baseline" and o.outcome in ("failed", "error")}
    signals = []
    for probe in dict.fromkeys(o.probe for o in outcomes):
        of_probe = [o for o in outcomes if o.probe == probe]
        last: dict[str, int] = {}
        for o in of_probe:
            last[o.name] = max(last.get(o.name, 0), o.attempt)
        counted = [o for o in of_probe if o.outcome != "skipped" and o.attempt == last[o.name]]
        failed = [o for o in counted if o.outcome != "passed"]
        skipped = len(last) - len({o.name for o in counted})
        role = criteria.role_of(probe)
        if not counted:
            reason = f"all {skipped} tests were skipped"
            signals.append(
                Signal(
                    rule_id="correctness.test_fail", level="warning", finding="abstained", role=role, subject=probe,
                    message=f"{probe}: {reason}", reason=reason, locations=where(criteria, probe),
                )
            )  # fmt: skip
        elif not failed:
            also = f", {skipped} skipped" if skipped else ""
            signals.append(
                Signal(
                    rule_id="correctness.test_fail", level="note", finding="holds", role=role, subject=probe,
                    message=f"{probe}: passed ({len(counted)}{also})", locations=where(criteria, probe),
                )
            )  # fmt: skip
        else:
            new = [o for o in failed if (probe, o.name) not in before]
            first = (new or failed)[0]
            old = len(failed) - len(new)
            too = f" ({'all' if not new else old} in the baseline too)" if old else ""
            said = f"{len(failed)} of {len(counted)} failed{too}; {first.name}: {first.message}"
            known = not new and role != "gate"
            signals.append(
                Signal(
                    rule_id="correctness.test_fail", level="note" if known else "error",
                    finding="observed" if known else "violates", role=role, subject=probe,
                    message=f"{probe}: {said}"[:400],
                    locations=(*_places(failed), *criteria.changed, ProcessLocation(arm="candidate", role=probe)),
                    evidence=evidence(failed),
                )
            )  # fmt: skip
    return signals


@rule(
    "correctness.report",
    says="a file that a probe was to leave is missing, too large, or can't be read",
    needs="a probe that declares reports",
)
def lost_report(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """One signal a file and arm. A gate without its report is not passed; elsewhere nothing is known from it."""
    signals = []
    for o in observations:
        if not isinstance(o, RuntimeEvent) or o.source != "report" or o.stage != criteria.stage:
            continue
        role = criteria.role_of(o.probe) if o.arm == "candidate" else "information"
        file = o.place.file if o.place else ""
        signals.append(
            Signal(
                rule_id="correctness.report", level="error" if role == "gate" else "warning", role=role,
                finding="violates" if role == "gate" else "abstained",
                subject=f"{o.arm} {file}", reason=o.message[:400], message=f"{o.probe}, {o.arm}: {o.message}"[:400],
                locations=where(criteria, o.probe, ProcessLocation(arm=o.arm, role=o.probe)),
                evidence=(Evidence(artefact=file),) if o.name == "unreadable" else (),
            )
        )  # fmt: skip
    return signals


def _places(failed: Sequence[TestOutcome]) -> tuple[Location, ...]:
    """Where tests fail, the place with most of them first; those without a file have none."""
    count = Counter((o.file, o.line) for o in failed if o.file)
    names = {(o.file, o.line): o.name for o in reversed(failed)}
    return tuple(
        CodeLocation(file=file, line=line, symbol=names[file, line])
        for (file, line), _ in count.most_common(MAX_PLACES)
    )


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
            subject=probe,
            message=f"{probe}: this gate said nothing about the candidate",
            reason="it was not run, or it left no result",
            locations=where(criteria, probe),
        )
        for probe in criteria.gates
        if probe not in heard
    ]


@rule(
    "correctness.test_changed",
    says="which tests newly fail and where first, newly pass, are gone or are new",
    needs="test outcomes of both arms",
)
def changed_tests(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """One signal a probe whose tests say different things of the two arms."""
    signals = []
    for probe, before, after in _both_arms(observations, criteria):
        common = [name for name in before if name in after]
        broke = [n for n in common if after[n].state == "failed" and before[n].state in ("passed", "skipped")]
        mended = [n for n in common if after[n].state == "passed" and before[n].state == "failed"]
        silenced = [n for n in common if after[n].state == "skipped" and before[n].state != "skipped"]
        gone = [n for n in before if n not in after and before[n].state != "skipped"]
        new = [n for n in after if n not in before]
        broke += [n for n in new if after[n].state == "failed"]
        if broke or mended or silenced or gone:
            signals.append(_changed(probe, after, (broke, mended, silenced, gone, new), criteria))
    return signals


def _both_arms(
    observations: Sequence[Observation], criteria: Criteria
) -> list[tuple[str, dict[str, Test], dict[str, Test]]]:
    """Probes with the tests of both arms. A command that is its own only test is `test_fail`'s matter."""
    outcomes = [
        o
        for o in observations
        if isinstance(o, TestOutcome) and o.stage == criteria.stage and o.name != o.probe
    ]  # fmt: skip
    found = []
    for probe in dict.fromkeys(o.probe for o in outcomes):
        arms = {
            arm: tests_of(o for o in outcomes if o.probe == probe and o.arm == arm) for arm in ("baseline", "candidate")
        }
        if all(arms.values()):
            found.append((probe, arms["baseline"], arms["candidate"]))
    return found


def _changed(probe: str, after: dict[str, Test], names: tuple[list[str], ...], criteria: Criteria) -> Signal:
    broke, mended, silenced, gone, new = names
    failures = [f for n in broke if (f := after[n].first_failure)]
    parts = [
        f"{len(of)} {words} ({', '.join(of[:2])}{', ...' if len(of) > 2 else ''})"
        for words, of in (("newly fail", broke), ("newly pass", mended), ("now skipped", silenced), ("gone", gone))
        if of
    ]
    said = f"{probe}: {', '.join(parts)}"
    if failures:
        at = Counter((f.file, f.line) for f in failures if f.file).most_common(1)
        place = f", {at[0][1]} of them at {at[0][0][0]}:{at[0][0][1]}" if at else ""
        said = f"{probe}: {parts[0]}{place}: {failures[0].message.strip()[:120] or 'no message'}" + (
            f"; {', '.join(parts[1:])}" if parts[1:] else ""
        )
    causes = []
    if gone and len(gone) == len(new):
        causes.append(Cause(text="the tests were renamed", refutable_by="the new names test something else"))
    elif gone:
        causes.append(
            Cause(text="collection stopped early, or the tests were deselected or removed",
                  refutable_by="the candidate's own run collects them")
        )  # fmt: skip
    where_gone = tuple(CodeLocation(file=n.partition("::")[0], symbol=n) for n in gone[:MAX_PLACES])
    others = tuple(CodeLocation(file=n.partition("::")[0], symbol=n) for n in (*mended, *silenced)[:MAX_PLACES])
    places = _places(failures) or where_gone or others
    return Signal(
        rule_id="correctness.test_changed", level="error" if broke else "warning" if silenced or gone else "note",
        finding="violates" if broke else "observed", subject=probe, message=said[:400],
        locations=where(criteria, probe, *places),
        measured=(Quantity(name="newly failing", value=len(broke)), Quantity(name="gone", value=len(gone))),
        expected=(Quantity(name="newly failing", value=0), Quantity(name="gone", value=0)),
        causes=tuple(causes),
        caveats=("a single attempt does not tell a flaky test from a broken one",) if broke else (),
        evidence=evidence(failures), next=(f"run {broke[0]} alone, 5 times in each arm",) if broke else (),
    )  # fmt: skip


@rule(
    "correctness.flaky",
    says="a test both passed and failed on the same code, so a single failure of it proves nothing",
    needs="several attempts of a test",
)
def flaky(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """One signal a probe with flaky tests; whether they are flaky in one arm only is said."""
    outcomes = [o for o in observations if isinstance(o, TestOutcome) and o.stage == criteria.stage]
    signals = []
    for probe in dict.fromkeys(o.probe for o in outcomes):
        arms = {
            arm: tests_of(o for o in outcomes if o.probe == probe and o.name != o.probe and o.arm == arm)
            for arm in ("baseline", "candidate")
        }
        shaky = {n: t for arm in arms.values() for n, t in arm.items() if t.state == "flaky"}
        if not shaky:
            continue
        worst = max(shaky.values(), key=_failing_share)
        failures = [f for t in shaky.values() if (f := t.first_failure)]
        steady = {n for n in shaky if n in arms["baseline"] and arms["baseline"][n].state == "passed"}
        again = {n for n in steady if len(arms["baseline"][n].attempts) >= len(shaky[n].attempts)}
        n_failed = sum(o.outcome in ("failed", "error") for o in worst.attempts)
        signals.append(
            Signal(
                rule_id="correctness.flaky", level="warning" if again else "note", finding="observed", subject=probe,
                message=f"{probe}: {count(len(shaky), 'flaky test')}; {worst.name} failed "
                f"{n_failed} of {len(worst.attempts)} attempts: {failures[0].message.strip()[:120]}"[:400],
                locations=where(criteria, probe, *_places(failures)),
                caveats=(f"{len(again)} passed every attempt in the baseline: a new race is possible",)
                if again else (),
                causes=(
                    Cause(text="a race, an order of execution or a tolerance near the noise",
                          refutable_by="20 attempts with a fixed seed and one thread all pass"),
                ),
                evidence=evidence(failures), next=(f"run {worst.name} alone, 20 times in each arm",),
            )
        )  # fmt: skip
    return signals


def _failing_share(test: Test) -> float:
    return sum(o.outcome in ("failed", "error") for o in test.attempts) / len(test.attempts)
