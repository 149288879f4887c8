"""Signals of recorded files, and contexts of targets that declare what a test needs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from feedback.comparison import compare
from feedback.criteria import Criteria
from feedback.observations import Observation, Scalar
from feedback.readers.run import read_artefact
from feedback.rules.derive import derive
from feedback.signals import CodeLocation, Signal
from feedback.verdict import Verdict, VerdictKind
from infra_agent.domain import Change, Experiment, Hypothesis, Proposal, Role, State
from infra_agent.journal import Journal
from infra_agent.lessons import Recalled
from infra_agent.planner import Context
from infra_agent.target import TargetSpec
from sandboxes.results import Artefact

DATA = Path(__file__).parents[1] / "data"
BASE = "b" * 40


def compared(base: str, candidate: str | None = None) -> tuple[Signal, ...]:
    """What feedback says of one recorded file, or of the second against the first."""
    return compare(DATA / base, DATA / candidate if candidate else None).signals


def answered(*files: tuple[str, str], probe: str = "probe") -> tuple[Signal, ...]:
    """What an investigation's signals are: of recorded files with their formats, as the answer to a question."""
    observations: list[Observation] = []
    for path, format in files:
        artefact = Artefact.model_validate(
            {"path": path, "format": format, "probe": probe, "arm": "candidate", "stage": "screen"}
        )
        observations += read_artefact(DATA, artefact)
    return tuple(derive(observations, Criteria(changed=(CodeLocation(file="the parent"),), question="why?")))


def experiment(
    number: int,
    signals: Iterable[Signal] = (),
    role: Role = "investigation",
    change: Change | None = None,
    verdict: VerdictKind = VerdictKind.INCONCLUSIVE,
    **more: object,
) -> Experiment:
    """A finished experiment on the base."""
    claim = str(more.pop("claim", "what is it?"))
    probe, params = more.pop("probe", ""), more.pop("params", {})
    return Experiment.model_validate(
        {
            "id": f"exp_{number}", "campaign_id": "cmp_test", "number": number, "role": role, "state": State.COMPLETE,
            "proposal": Proposal.model_validate({
                "hypothesis": Hypothesis(claim=claim), "change": change or Change(), "probe": probe, "params": params,
            }),
            "parent_commit": BASE, "commit": None if role == "change" else BASE,
            "verdict": Verdict(kind=verdict, reasons=("measured",)), "signals": tuple(signals), **more,
        }
    )  # fmt: skip


def target(knobs: Iterable[dict[str, object]] = (), probes: Iterable[dict[str, object]] = ()) -> TargetSpec:
    """A target with these knobs, a load of four streams and nothing else unless more probes are given."""
    return TargetSpec.model_validate(
        {
            "schema": 1, "name": "example", "description": "", "editable": ["launch.toml", "src"],
            "objective": {"metric": "output_throughput", "direction": "maximize", "probe": "load"},
            "launch_file": {"path": "launch.toml"}, "server": {"command": ["serve"]},
            "knobs": [{"description": "", "key": k["name"], **k} for k in knobs],
            "probes": [
                {"name": "load", "kind": "load", "method": "load", "traffic": "t.json", "tokenizer": "t.gguf",
                 "streams": 4, "cost_s": 30},
                *probes,
            ],
        }
    )  # fmt: skip


def number(name: str, top: int = 8192, least: int = 1, **more: object) -> dict[str, object]:
    return {"name": name, "minimum": least, "maximum": top, **more}


def among(name: str, *choices: Scalar, **more: object) -> dict[str, object]:
    return {"name": name, "choices": list(choices), **more}


def context(
    spec: TargetSpec,
    tree: Path,
    knobs: dict[str, Scalar | None] | None = None,
    experiments: Iterable[Experiment] = (),
    learned: tuple[Recalled, ...] = (),
    seconds_left: float | None = None,
    investigations_left: int = 0,
) -> Context:
    """A context on two cores; without investigations unless some are allowed."""
    values: dict[str, Scalar | None] = {k.name: None for k in spec.knobs}
    return Context(
        spec=spec, journal=Journal(experiments=tuple(experiments)), parent_commit=BASE, parent_tree=tree,
        knobs={**values, **(knobs or {})}, cores=2, digest="", experiments_left=9, seconds_left=seconds_left,
        learned=learned, investigations_left=investigations_left,
    )  # fmt: skip
