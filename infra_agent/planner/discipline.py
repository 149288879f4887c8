"""What every proposal must keep to, whoever makes it: evidence, a falsifier, a known lever, the cheapest adequate
probe, nothing twice, no silent stop. Enforced here and not by a prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

from infra_agent.domain import Hypothesis, Proposal
from infra_agent.fields import LEVER_FAMILIES
from infra_agent.levers import untried
from infra_agent.planner import Context
from infra_agent.planner.evidence import doubt
from infra_agent.target import CallgrindProbe, LoadProbe, Probe, SlicesProbe, TargetSpec
from sandboxes.workspace import matches

LOAD_METRICS = (
    "request_throughput", "output_throughput", "total_token_throughput", "request_goodput",
    *(f"{of}_{name}_ms" for name in ("ttft", "tpot", "itl", "e2el") for of in ("mean", "median", "p99")),
)  # fmt: skip
_RANK = {"build": 0, "correctness": 1, "parity": 1, "microbench": 2, "trace": 3, "events": 3, "load": 4}
"""How dear a kind of probe is, beyond its seconds: a deployment is the last resort."""


def objection(proposal: Proposal, files: tuple[str, ...], context: Context) -> str | None:
    """Why a proposal that changes `files` is sent back, or None. Costs no sandbox."""
    hypothesis = proposal.hypothesis
    return (
        _lever(hypothesis)
        or _evidence(hypothesis, context)
        or _prediction(proposal, context.spec)
        or _cheaper(proposal, files, context.spec)
    )


def known_metrics(spec: TargetSpec) -> tuple[str, ...]:
    """What a prediction may be about: everything that the target's probes measure."""
    return tuple(dict.fromkeys((*_judged(spec), *(m for probe in spec.shown_probes for m in _measures(probe)))))


def _judged(spec: TargetSpec) -> tuple[str, ...]:
    return (spec.objective.metric, *(g.metric for g in spec.guardrails))


def _measures(probe: Probe) -> tuple[str, ...]:
    match probe:
        case CallgrindProbe():
            return ("instructions",)
        case SlicesProbe():
            return ("slice_time_s",)
        case LoadProbe():
            return LOAD_METRICS
        case _:
            return ()


def unexplained(context: Context, left: Mapping[str, str]) -> tuple[str, ...]:
    """The lever families that nobody tried and for which a stop gives no reason. Once the budget is spent, none."""
    if context.experiments_left <= 0:
        return ()
    return tuple(f for f in untried(context.journal, context.spec) if not left.get(f, "").strip())


def _lever(hypothesis: Hypothesis) -> str | None:
    if hypothesis.lever_family in LEVER_FAMILIES:
        return None
    return f"lever_family {hypothesis.lever_family[:60]!r} is not one of: {', '.join(LEVER_FAMILIES)}"


def _evidence(hypothesis: Hypothesis, context: Context) -> str | None:
    if not hypothesis.falsifier.strip():
        return "name the falsifier: which result would refute the claim"
    return doubt(hypothesis.evidence, context)


def _prediction(proposal: Proposal, spec: TargetSpec) -> str | None:
    predicted = proposal.hypothesis.predicted
    if predicted is None:
        return "predict the effect: a metric, a direction and a range"
    if predicted.metric not in (known := known_metrics(spec)):
        return f"no probe measures {predicted.metric[:60]!r}; predict one of: {', '.join(known)}"
    if predicted.low < 0 or (predicted.high is not None and predicted.high < predicted.low):
        return "the predicted range must go from a small to a larger relative change, both positive"
    asked = spec.probe(proposal.probe or spec.objective.probe)
    if predicted.metric not in (*_judged(spec), *_measures(asked)):
        able = ", ".join(p.name for p in spec.shown_probes if predicted.metric in _measures(p))
        return f"probe {asked.name} does not measure {predicted.metric}; ask {able}, or predict what it measures"
    return None


def _cheaper(proposal: Proposal, files: tuple[str, ...], spec: TargetSpec) -> str | None:
    """A load test is no answer where a kernel test covers all that changes."""
    asked = spec.probe(proposal.probe or spec.objective.probe)
    places = (*files, *proposal.change.knobs)
    cheaper = [
        p
        for p in spec.shown_probes
        if p.kind == "microbench" and _RANK[p.kind] < _RANK[asked.kind] and p.cost_s < asked.cost_s
        and all(_covers(p, place) for place in places)
    ]  # fmt: skip
    if not cheaper:
        return None
    best = min(cheaper, key=lambda p: p.cost_s)
    return (
        f"probe {asked.name} ({asked.kind}, about {asked.cost_s:g} s) is dearer than the question needs: {best.name} "
        f"({best.kind}, about {best.cost_s:g} s) covers {', '.join(places)[:200]}; set probe to {best.name!r}"
    )


def _covers(probe: Probe, place: str) -> bool:
    return place in probe.covers or matches(PurePosixPath(place), tuple(c.rstrip("/") for c in probe.covers))
