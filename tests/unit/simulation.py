"""Simulated campaigns: response surfaces whose truth is known, measured with noise and judged by the project's own
rule. For the planners' tests and for `benchmarks/planner_search.py`; counts of experiments, no timing."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple, Protocol

from feedback.observations import Scalar
from feedback.signals import Effect, HostLocation, ParamLocation, Signal
from feedback.stats import Finding, Rule, interval, look, tail_of
from feedback.verdict import Verdict, VerdictKind
from infra_agent.domain import Experiment, Proposal, State
from infra_agent.journal import Journal
from infra_agent.planner import Action, Context, Planner, Propose, Stop
from infra_agent.planner.search import SearchPlanner
from infra_agent.planner.trials import read_trials
from infra_agent.target import TargetSpec

Knobs = dict[str, Scalar | None]
CORES = 4
UNIT_SD = 0.015
"""Scatter of one fresh pair, as measured for llama.cpp servers on two cores."""


def make_spec(
    knobs: Iterable[dict[str, object]],
    controls: Iterable[dict[str, object]] = (),
    moves: Iterable[dict[str, object]] = (),
) -> TargetSpec:
    return TargetSpec.model_validate(
        {
            "schema": 1,
            "name": "example",
            "description": "",
            "editable": ["launch.toml"],
            "objective": {"metric": "output_throughput", "direction": "maximize", "probe": "load"},
            "launch_file": {"path": "launch.toml"},
            "knobs": [{"description": f"what {k['name']} does", "key": k["name"], **k} for k in knobs],
            "controls": list(controls),
            "moves": list(moves),
            "probes": [{"name": "load", "kind": "microbench", "method": "slices", "worker": ["true"]}],
        }
    )


def whole(name: str, default: Scalar | None, suggest: list[Scalar], top: int = 32) -> dict[str, object]:
    return {"name": name, "minimum": 1, "maximum": top, "engine_default": default, "suggest": suggest}


def among(name: str, choices: list[Scalar], default: Scalar, suggest: list[Scalar]) -> dict[str, object]:
    return {"name": name, "choices": choices, "engine_default": default, "suggest": suggest}


NEEDS_BATCH = [{"values": [512, 1024], "requires": {"batch": [1024, 2048, 4096]}}]
NEEDS_FLASH = [{"values": ["q8_0", "q4_0"], "requires": {"flash": ["on", "auto"]}}]
DEFAULTS: dict[str, object] = {"name": "engine-defaults", "description": "what the engine does alone"}
SPEC = make_spec(
    knobs=[
        whole("threads", "cores", ["cores", "cores-1"]),
        whole("threads_batch", "cores", ["cores"]),
        whole("parallel", 1, [4, 8], top=16),
        among("poll", [0, 50, 100], 50, [0, 100]),
        among("batch", [256, 512, 1024, 2048, 4096], 2048, [512]),
        {**among("ubatch", [128, 256, 512, 1024], 512, [256]), "conditions": NEEDS_BATCH},
        among("flash", ["auto", "on", "off"], "auto", ["on"]),
        {**among("kv", ["f16", "q8_0", "q4_0"], "f16", ["q8_0"]), "conditions": NEEDS_FLASH},
    ],
    controls=[DEFAULTS],
    moves=[
        {
            "name": "all cores",
            "description": "both pools on every core",
            "knobs": {"threads": "cores", "threads_batch": "cores"},
        }
    ],
)
INHERITED: Knobs = {
    "threads": 16, "threads_batch": 16, "parallel": 1, "poll": None, "batch": 2048, "ubatch": 512,
    "flash": None, "kv": None,
}  # fmt: skip


GRID = (1, 2, 3, 4, 5, 6, 8, 12, 16)
"""Values of a whole-number knob among which the true best is looked for."""


class Surface(Protocol):
    """The true log-throughput of every assignment."""

    groups: tuple[tuple[str, ...], ...]
    """Knobs that act on each other; groups add up."""
    scatter: float
    """Standard deviation of one fresh pair."""

    def part(self, at: dict[str, Scalar]) -> float:
        """What one group adds, given the values in force of its knobs."""


def truth(surface: Surface, knobs: Knobs) -> float:
    """The true log-throughput of an assignment."""
    return sum(surface.part(in_force(group, knobs)) for group in surface.groups)


def in_force(group: Iterable[str], knobs: Knobs) -> dict[str, Scalar]:
    """What the engine makes of the values of a group."""
    at: dict[str, Scalar] = {}
    for name in group:
        knob = next(k for k in SPEC.knobs if k.name == name)
        value = knob.engine_default if knobs.get(name) is None else knobs[name]
        at[name] = knob.resolve(value, CORES) or 0
    return at


def best_of(surface: Surface) -> float:
    """The best that any allowed assignment reaches."""
    return sum(
        max(surface.part(in_force(group, knobs)) for knobs in assignments(group) if SPEC.refusal(knobs) is None)
        for group in surface.groups
    )


def assignments(names: Iterable[str]) -> Iterable[Knobs]:
    """Every assignment of a group, on the grid."""
    knobs = [knob for knob in SPEC.knobs if knob.name in set(names)]
    domains = [knob.choices or GRID for knob in knobs]
    return (dict(zip((k.name for k in knobs), values, strict=True)) for values in itertools.product(*domains))


class Interacting:
    """Peaks, knobs that only pay together, some that do nothing: what llama.cpp's server looked like."""

    groups = (("threads", "threads_batch", "parallel", "poll"), ("batch", "ubatch"), ("flash", "kv"))
    scatter = UNIT_SD

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)

        def some(low: float, high: float) -> float:
            return draw.uniform(low, high) if draw.random() < 0.5 else 0.0

        self.threads, self.slots = draw.choice([2, 3, 4, 4, 4]), draw.choice([2, 4, 4, 8])
        self.per_thread, self.per_pool = draw.uniform(0.15, 0.4), draw.uniform(0.03, 0.1)
        self.per_slot = draw.uniform(0.15, 0.5)
        self.poll: dict[object, float] = {0: some(-0.04, 0.08), 50: 0.0, 100: some(-0.1, 0.02)}
        self.ubatch, self.per_ubatch = draw.choice([128, 256, 512]), some(0.0, 0.03)
        self.flash, self.q8, self.q4 = some(-0.02, 0.1), some(-0.1, 0.1), draw.uniform(-0.2, -0.05)

    def part(self, at: dict[str, Scalar]) -> float:
        if "batch" in at:
            return -self.per_ubatch * abs(math.log2(float(at["ubatch"]) / self.ubatch))
        if "flash" in at:
            quantized = {
                "f16": 0.0,
                "q8_0": self.q8 - (0.0 if at["flash"] == "on" else 0.04),
                "q4_0": self.q4,
            }
            return {"auto": 0.0, "on": self.flash, "off": -0.03}[str(at["flash"])] + quantized[str(at["kv"])]
        threads, pool, slots = (float(at[name]) for name in ("threads", "threads_batch", "parallel"))
        oversubscribed = max(0.0, math.log2(threads / CORES))
        return float(
            -self.per_thread * abs(math.log2(threads / (self.threads * slots**0.1))) ** 1.3
            - self.per_pool * abs(math.log2(pool / CORES)) ** 1.3
            - self.per_slot * math.log2(slots / self.slots) ** 2 / 4
            - 0.05 * oversubscribed * math.log2(slots)
            + self.poll[at["poll"]]
            - (0.08 if at["poll"] == 100 and threads >= CORES else 0.0)
        )


class Noisy(Interacting):
    """The same on a machine that is three times as noisy."""

    scatter = 3 * UNIT_SD


class Separable:
    """Every knob has a peak of its own, and none knows of another."""

    groups = tuple((knob.name,) for knob in SPEC.knobs)
    scatter = UNIT_SD

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.worth = {
            knob.name: {
                value: draw.uniform(-0.12, 0.0) for value in knob.choices
            } for knob in SPEC.knobs if knob.choices
        }  # fmt: skip
        self.peak = {knob.name: draw.choice([2, 3, 4, 6, 8]) for knob in SPEC.knobs if not knob.choices}
        self.curve = {name: draw.uniform(0.02, 0.2) for name in self.peak}

    def part(self, at: dict[str, Scalar]) -> float:
        ((name, value),) = at.items()
        if name in self.worth:
            return self.worth[name][value]
        return -self.curve[name] * math.log2(float(value) / self.peak[name]) ** 2


class Coupled:
    """The large gains need two knobs at once, and each of the two alone costs something: no single step shows them,
    and the target's joint moves don't name them."""

    groups = (("threads", "threads_batch"), ("parallel", "poll"), ("batch", "ubatch"), ("flash", "kv"))
    scatter = UNIT_SD

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.gain = {group: draw.uniform(0.08, 0.25) for group in self.groups}
        self.cost = {group: draw.uniform(0.02, 0.06) for group in self.groups}
        self.wanted: dict[tuple[str, ...], dict[str, tuple[Scalar, ...]]] = {
            ("threads", "threads_batch"): {"threads": (2, 3), "threads_batch": (1, 2)},
            ("parallel", "poll"): {"parallel": (2, 3, 4), "poll": (draw.choice([0, 100]),)},
            ("batch", "ubatch"): {"batch": (4096,), "ubatch": (1024,)},
            ("flash", "kv"): {"flash": ("on",), "kv": ("q8_0",)},
        }

    def part(self, at: dict[str, Scalar]) -> float:
        group = tuple(at)
        met = [at[name] in self.wanted[group][name] for name in group]
        return self.gain[group] if all(met) else -self.cost[group] * sum(met)


class Plateau:
    """Nearly everything does nothing; two knobs gain once they are past a threshold, and lose far beyond it."""

    groups = tuple((knob.name,) for knob in SPEC.knobs)
    scatter = UNIT_SD

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.matter = draw.sample(["threads", "threads_batch", "parallel"], 2)
        self.step = {name: draw.choice([3, 5, 6]) for name in self.matter}
        self.gain = {name: draw.uniform(0.05, 0.15) for name in self.matter}

    def part(self, at: dict[str, Scalar]) -> float:
        ((name, value),) = at.items()
        if name not in self.step:
            return 0.0
        above = float(value) >= self.step[name]
        return (self.gain[name] if above else 0.0) - (0.1 if float(value) > 12 else 0.0)


SURFACES: dict[str, Callable[[int], Surface]] = {
    "separable": Separable, "interacting": Interacting, "coupled": Coupled, "plateau": Plateau, "noisy": Noisy,
}  # fmt: skip


def measured(gain: float, draw: random.Random, scatter: float = UNIT_SD) -> tuple[VerdictKind, Effect]:
    """What the project's rule says of a true log-gain, at 5, 10 and 20 noisy pairs."""
    floor = max(0.01, 0.67 * scatter)
    rule = Rule("maximize", (5, 10, 20), 0.05 / 20, floor, SPEC.objective.min_effect)
    units: list[float] = []
    finding = Finding.UNDECIDED
    for pairs in rule.looks:
        units += [draw.gauss(gain, scatter) for _ in range(pairs - len(units))]
        finding = look(units, rule)
        if finding is not Finding.UNDECIDED:
            break
    mean, low, high = (math.exp(x) for x in interval(units, tail_of(rule))[:3])
    kind = {Finding.BETTER: VerdictKind.ACCEPT, Finding.UNDECIDED: VerdictKind.INCONCLUSIVE}.get(finding)
    return kind or VerdictKind.REJECT, effect(mean, low, high, floor)


def effect(ratio: float, low: float, high: float, floor: float = 0.01) -> Effect:
    return Effect(
        metric="output_throughput", direction="maximize", baseline=1.0, measured=ratio, ratio=ratio,
        ratio_lo=low, ratio_hi=high, confidence=0.99, method="t", n_units=10, n_observations=40, floor=floor,
        floor_known=True,
    )  # fmt: skip


class Campaign:
    """A campaign in memory: the best accepted change becomes the parent of the next."""

    def __init__(self, spec: TargetSpec, knobs: Knobs, cores: int = CORES) -> None:
        self.spec, self.base, self.cores = spec, dict(knobs), cores
        self.commit, self.knobs = "base", dict(knobs)
        self.at: dict[str, Knobs] = {"base": dict(knobs)}
        self.experiments: list[Experiment] = []

    def journal(self) -> Journal:
        return Journal(experiments=tuple(self.experiments))

    def context(self, left: int = 100) -> Context:
        return Context(
            spec=self.spec, journal=self.journal(), parent_commit=self.commit, parent_tree=Path(), knobs=self.knobs,
            cores=self.cores, digest="", experiments_left=left, seconds_left=None,
            base_commit="base", base_tree=Path(), base_knobs=self.base,
        )  # fmt: skip

    def record(
        self, proposal: Proposal, kind: VerdictKind | None, gain: Effect | None, state: State = State.COMPLETE,
        parent: str = "", signals: tuple[Signal, ...] = (), sandbox_s: float = 10.0,
    ) -> None:  # fmt: skip
        number, change, parent = len(self.experiments), proposal.change, parent or self.commit
        places = [ParamLocation(name=n, value=v, was=self.at[parent].get(n)) for n, v in change.knobs.items()]
        locations = (*places, HostLocation())
        told = Signal(
            rule_id="t.t", level="note", finding="observed", message="m", locations=locations, effect=gain,
            role="objective" if gain else "information",
        )  # fmt: skip
        experiment = Experiment(
            id=str(number), campaign_id="c", number=number, role="change", state=state, proposal=proposal,
            parent_commit=parent, commit=f"commit{number}", signals=(told, *signals),
            verdict=Verdict(kind=kind, reasons=("r",)) if kind else None, effects=(gain,) if gain else (),
            confirmed=kind is VerdictKind.ACCEPT, sandbox_s=sandbox_s,
        )  # fmt: skip
        self.experiments.append(experiment)
        self.at[f"commit{number}"] = {**self.at[parent], **change.knobs}
        self.commit = self.journal().best_commit("base")
        self.knobs = dict(self.at[self.commit])

    def proposed(self, left: int = 100, seed: int = 0) -> Knobs:
        action = SearchPlanner(seed).next_action(self.context(left))
        assert isinstance(action, Propose), action
        return action.proposal.change.knobs

    def play(self, verdict: VerdictKind, gain: float, spread: float = 0.02, left: int = 100) -> Knobs:
        """Take the next proposal and give it this outcome."""
        action = SearchPlanner(0).next_action(self.context(left))
        assert isinstance(action, Propose), action
        self.record(action.proposal, verdict, effect(1 + gain, 1 + gain - spread, 1 + gain + spread))
        return action.proposal.change.knobs


class Course(NamedTuple):
    """How a simulated campaign went."""

    gaps: list[float]
    """How far the best confirmed is from the best there is, as a fraction, after each experiment."""
    stop: Stop | None

    def gap(self, experiments: int) -> float:
        """The gap after so many experiments; after fewer, if it stopped before."""
        return self.gaps[min(experiments, len(self.gaps)) - 1]

    def needed(self, gap: float, budget: int) -> int:
        """Experiments until the gap was that small; the budget if it never was."""
        return next((i + 1 for i, g in enumerate(self.gaps) if g <= gap), budget)


def simulate(surface: Surface, planner: Planner, experiments: int, seed: int) -> Course:
    """A campaign in memory. Fails where a proposal is refused, or was measured before as the engine sees it."""
    draw, campaign = random.Random(seed * 7 + 1), Campaign(SPEC, INHERITED)
    best = best_of(surface)
    gaps: list[float] = []
    tried = {read_trials(campaign.context()).identity(INHERITED)}
    for done in range(experiments):
        action: Action = planner.next_action(campaign.context(experiments - done))
        if isinstance(action, Stop):
            return Course(gaps, action)
        assert isinstance(action, Propose)
        parent = campaign.at[action.parent or campaign.commit]
        candidate = {**parent, **action.proposal.change.knobs}
        assert SPEC.refusal(candidate) is None
        identity = read_trials(campaign.context()).identity(candidate)
        assert identity not in tried, f"{action.proposal.hypothesis.claim} was measured before"
        tried.add(identity)
        kind, gain = measured(truth(surface, candidate) - truth(surface, parent), draw, surface.scatter)
        campaign.record(action.proposal, kind, gain, parent=action.parent)
        gaps.append(1 - math.exp(truth(surface, campaign.knobs) - best))
    return Course(gaps, None)
