"""Rules on requests of a load that got no answer."""

from __future__ import annotations

from collections.abc import Sequence

from feedback.criteria import Criteria
from feedback.observations import Measurement, Observation, RuntimeEvent
from feedback.rules import rule
from feedback.rules.arms import evidence
from feedback.rules.cases import where
from feedback.signals import Cause, ProcessLocation, Quantity, Signal
from sandboxes.results import ArmName


@rule(
    "correctness.request_failed",
    says="requests of a load failed, and whether more of them do than in the baseline",
    needs="results of a serving benchmark",
)
def failed_requests(observations: Sequence[Observation], criteria: Criteria) -> list[Signal]:
    """One signal a probe whose requests failed in an arm. Latencies are those of requests that succeeded, so a
    failure is worse than any latency; what fails as much in the baseline is no doing of the change."""
    here = [o for o in observations if isinstance(o, RuntimeEvent | Measurement) and o.stage == criteria.stage]
    events = [o for o in here if isinstance(o, RuntimeEvent) and o.name == "request_failed" and o.source == "load"]
    signals = []
    for probe in dict.fromkeys(e.probe for e in events):
        arms = {arm: _failed(arm, [o for o in here if o.probe == probe]) for arm in ("baseline", "candidate")}
        signals.append(_signal(probe, arms, [e for e in events if e.probe == probe], criteria))
    return signals


def _failed(arm: ArmName, of_probe: Sequence[RuntimeEvent | Measurement]) -> tuple[float, float] | None:
    """Requests that failed, and all that were sent (0 if the file doesn't say); None if nothing of the arm is there."""
    mine = [o for o in of_probe if o.arm == arm]
    said = {name: [o.value for o in mine if isinstance(o, Measurement) and o.metric == name and not o.warmup]
            for name in ("completed", "failed")}  # fmt: skip
    failed = sum(o.count for o in mine if isinstance(o, RuntimeEvent) and o.name == "request_failed")
    return (failed, sum(said["completed"]) + failed if said["completed"] else 0.0) if mine else None


def _signal(
    probe: str, arms: dict[str, tuple[float, float] | None], events: Sequence[RuntimeEvent], criteria: Criteria
) -> Signal:
    before, after = arms["baseline"], arms["candidate"]
    if after is None:  # nothing is known of the candidate
        after, said = (0.0, 0.0), f"{probe}: {_text(before or (0.0, 0.0))} requests failed in the baseline"
    else:
        said = f"{probe}: {_text(after)} requests failed"
        said += f", {_text(before)} in the baseline" if before is not None else ""
    more = before is None or _share(after) > _share(before)
    broken = bool(after[0]) and more
    mine = [e for e in events if e.arm == "candidate"] or list(events)
    why = max(mine, key=lambda e: e.count).message.partition(": ")[2]
    return Signal(
        rule_id="correctness.request_failed", level="error" if broken else "warning" if after[0] else "note",
        finding="violates" if broken else "observed", subject=probe,
        message=(said + (f": {why}" if why else ""))[:400],
        locations=where(criteria, probe, ProcessLocation(arm="candidate" if after[0] else "baseline", role="server")),
        measured=(Quantity(name="failed requests", value=after[0]),),
        expected=(Quantity(name="failed requests", value=0),),
        causes=(
            Cause(text="the server refuses, crashes or runs into a time limit under this load",
                  refutable_by="its log says nothing at the time of the failures"),
        ) if broken else (),
        caveats=("latencies and rates are of the requests that succeeded: read no gain from them",),
        evidence=evidence(mine), next=("send a failed request alone, and look at the server's log",) if broken else (),
    )  # fmt: skip


def _share(failed: tuple[float, float]) -> float:
    """Of all requests; the number itself where nothing says how many there were."""
    return failed[0] / failed[1] if failed[1] else failed[0]


def _text(failed: tuple[float, float]) -> str:
    return f"{failed[0]:g}" + (f" of {failed[1]:g}" if failed[1] else "")
