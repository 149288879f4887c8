"""The search planner, on simulated campaigns: a response surface with interactions, measured with noise and
judged by the project's own rule. Counts of experiments, no timing."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import pytest

from feedback.observations import Scalar
from feedback.signals import Effect, HostLocation, ParamLocation, Signal
from feedback.stats import Finding, Rule, interval, look, tail_of
from feedback.verdict import Verdict, VerdictKind
from infra_agent.domain import Change, Experiment, Hypothesis, Proposal, State
from infra_agent.journal import Journal
from infra_agent.planner import Context, Propose, Stop
from infra_agent.planner.search import SearchPlanner
from infra_agent.planner.trials import Trials
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


class Surface:
    """The true log-throughput: peaks, knobs that only pay together, some that do nothing."""

    groups = (("threads", "threads_batch", "parallel", "poll"), ("batch", "ubatch"), ("flash", "kv"))

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

    def value(self, knobs: Knobs) -> float:
        return sum(self.part(group, knobs) for group in self.groups)

    def part(self, group: tuple[str, ...], knobs: Knobs) -> float:
        at: dict[str, Scalar] = {}
        for name in group:
            knob = next(k for k in SPEC.knobs if k.name == name)
            value = knob.engine_default if knobs.get(name) is None else knobs[name]
            at[name] = knob.resolve(value, CORES) or 0
        if "batch" in at:
            return -self.per_ubatch * abs(math.log2(float(at["ubatch"]) / self.ubatch))
        if "flash" in at:
            quantized = {
                "f16": 0.0,
                "q8_0": self.q8 - (0.0 if at["flash"] == "on" else 0.04),
                "q4_0": self.q4,
            }
            return {"auto": 0.0, "on": self.flash, "off": -0.03}[str(at["flash"])] + quantized[str(at["kv"])]
        threads, pool, slots = (float(at[name]) for name in group[:3])
        oversubscribed = max(0.0, math.log2(threads / CORES))
        return float(
            -self.per_thread * abs(math.log2(threads / (self.threads * slots**0.1))) ** 1.3
            - self.per_pool * abs(math.log2(pool / CORES)) ** 1.3
            - self.per_slot * math.log2(slots / self.slots) ** 2 / 4
            - 0.05 * oversubscribed * math.log2(slots)
            + self.poll[at["poll"]]
            - (0.08 if at["poll"] == 100 and threads >= CORES else 0.0)
        )

    def best(self) -> float:
        return sum(
            max(self.part(group, knobs) for knobs in assignments(group) if SPEC.refusal(knobs) is None)
            for group in self.groups
        )


def assignments(names: Iterable[str]) -> Iterable[Knobs]:
    knobs = [knob for knob in SPEC.knobs if knob.name in set(names)]
    domains = [knob.choices or (1, 2, 3, 4, 5, 6, 8, 12, 16) for knob in knobs]
    return (dict(zip((k.name for k in knobs), values, strict=True)) for values in itertools.product(*domains))


def measured(gain: float, draw: random.Random) -> tuple[VerdictKind, Effect]:
    """What the project's rule says of a true log-gain, at 5, 10 and 20 noisy pairs."""
    rule = Rule("maximize", (5, 10, 20), 0.05 / 20, 0.01, SPEC.objective.min_effect)
    units: list[float] = []
    finding = Finding.UNDECIDED
    for pairs in rule.looks:
        units += [draw.gauss(gain, UNIT_SD) for _ in range(pairs - len(units))]
        finding = look(units, rule)
        if finding is not Finding.UNDECIDED:
            break
    mean, low, high = (math.exp(x) for x in interval(units, tail_of(rule))[:3])
    kind = {Finding.BETTER: VerdictKind.ACCEPT, Finding.UNDECIDED: VerdictKind.INCONCLUSIVE}.get(finding)
    return kind or VerdictKind.REJECT, effect(mean, low, high)


def effect(ratio: float, low: float, high: float) -> Effect:
    return Effect(
        metric="output_throughput", direction="maximize", baseline=1.0, measured=ratio, ratio=ratio,
        ratio_lo=low, ratio_hi=high, confidence=0.99, method="t", n_units=10, n_observations=40, floor=0.01,
        floor_known=True,
    )  # fmt: skip


class Campaign:
    """A campaign in memory: every accepted change becomes the parent of the next."""

    def __init__(self, spec: TargetSpec, knobs: Knobs, cores: int = CORES) -> None:
        self.spec, self.knobs, self.cores = spec, dict(knobs), cores
        self.commit = "base"
        self.experiments: list[Experiment] = []

    def context(self, left: int = 100) -> Context:
        return Context(
            spec=self.spec, journal=Journal(experiments=tuple(self.experiments)), parent_commit=self.commit,
            parent_tree=Path(), knobs=self.knobs, cores=self.cores, digest="", experiments_left=left,
            seconds_left=None,
        )  # fmt: skip

    def record(
        self, proposal: Proposal, kind: VerdictKind | None, gain: Effect | None, state: State = State.COMPLETE
    ) -> None:
        number, change = len(self.experiments), proposal.change
        places = [ParamLocation(name=n, value=v, was=self.knobs[n]) for n, v in change.knobs.items()]
        locations = (*places, HostLocation())
        signal = Signal(rule_id="t.t", level="note", finding="observed", message="m", locations=locations)
        experiment = Experiment(
            id=str(number), campaign_id="c", number=number, role="change", state=state, proposal=proposal,
            parent_commit=self.commit, commit=f"commit{number}", signals=(signal,),
            verdict=Verdict(kind=kind, reasons=("r",)) if kind else None, effects=(gain,) if gain else (),
            confirmed=kind is VerdictKind.ACCEPT,
        )  # fmt: skip
        self.experiments.append(experiment)
        if kind is VerdictKind.ACCEPT:
            self.commit, self.knobs = f"commit{number}", {**self.knobs, **change.knobs}

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
    """How far the parent is from the best, as a fraction, after each experiment."""
    stop: Stop | None


Chooser = Callable[[Context, random.Random], Propose | Stop]


def search(seed: int) -> Chooser:
    planner = SearchPlanner(seed)
    return lambda context, _: planner.next_action(context)


def random_choice(context: Context, draw: random.Random) -> Propose:
    """The control: any allowed assignment, measured against the best so far."""
    while True:
        knobs: Knobs = {k.name: draw.choice(k.choices or (1, 2, 3, 4, 5, 6, 8, 12, 16)) for k in SPEC.knobs}
        if SPEC.refusal(knobs) is None:
            return Propose(proposal=Proposal(hypothesis=Hypothesis(claim="?"), change=Change(knobs=knobs)))


def simulate(seed: int, choose: Chooser, experiments: int) -> Course:
    surface, draw, campaign = Surface(seed), random.Random(seed * 7 + 1), Campaign(SPEC, INHERITED)
    best = surface.best()
    gaps: list[float] = []
    tried = {Trials(campaign.context()).identity(INHERITED)}
    for done in range(experiments):
        action = choose(campaign.context(experiments - done), draw)
        if isinstance(action, Stop):
            return Course(gaps, action)
        candidate = {**campaign.knobs, **action.proposal.change.knobs}
        assert SPEC.refusal(candidate) is None
        if choose is not random_choice:
            identity = Trials(campaign.context()).identity(candidate)
            assert identity not in tried, f"{action.proposal.hypothesis.claim} was measured before"
            tried.add(identity)
        kind, gain = measured(surface.value(candidate) - surface.value(campaign.knobs), draw)
        campaign.record(action.proposal, kind, gain)
        gaps.append(1 - math.exp(surface.value(campaign.knobs) - best))
    return Course(gaps, None)


def test_it_comes_within_two_percent_of_the_best_in_fifteen_experiments_and_beats_random_search() -> None:
    budget, seeds = 40, range(50)
    courses = [simulate(seed, search(seed), budget) for seed in seeds]
    needed = [next((i + 1 for i, gap in enumerate(c.gaps) if gap <= 0.02), budget) for c in courses]
    assert fmean(needed) <= 15
    after_ten = fmean(c.gaps[min(9, len(c.gaps) - 1)] for c in courses)
    assert after_ten <= 0.03
    by_chance = fmean(simulate(seed, random_choice, 15).gaps[-1] for seed in seeds)
    assert fmean(c.gaps[min(14, len(c.gaps) - 1)] for c in courses) < by_chance / 5


def test_it_never_repeats_never_proposes_what_is_refused_and_stops_by_itself() -> None:
    for seed in range(100, 120):  # `simulate` checks each proposal
        course = simulate(seed, search(seed), 150)
        assert course.stop is not None
        assert "nothing new is left" in course.stop.reason
        assert "1 control arm and 1 joint move among" in course.stop.reason
        assert "threads (" in course.stop.reason


def test_the_same_journal_gives_the_same_proposal() -> None:
    campaign = Campaign(SPEC, INHERITED)
    for kind in (VerdictKind.ACCEPT, VerdictKind.REJECT, VerdictKind.INCONCLUSIVE, VerdictKind.ACCEPT):
        first = SearchPlanner(3).next_action(campaign.context())
        assert SearchPlanner(3).next_action(campaign.context()) == first
        campaign.play(kind, 0.03)


def test_controls_come_first_then_moves_then_the_best_guess_of_each_knob() -> None:
    campaign = Campaign(SPEC, INHERITED)
    gone = dict.fromkeys(("threads", "threads_batch"))
    assert campaign.play(VerdictKind.REJECT, -0.1) == gone  # the others are at the engine's defaults already
    campaign = Campaign(SPEC, {**INHERITED, "parallel": 2, "kv": "q8_0"})
    assert campaign.play(VerdictKind.REJECT, -0.1) == {**gone, "parallel": None, "kv": None}
    assert campaign.play(VerdictKind.REJECT, -0.1) == {"threads": 4, "threads_batch": 4}
    assert campaign.play(VerdictKind.REJECT, -0.1) == {"threads": 4}
    assert campaign.play(VerdictKind.REJECT, -0.1) == {"threads_batch": 4}
    assert campaign.play(VerdictKind.REJECT, -0.1) == {"parallel": 4}


def test_a_hypothesis_says_what_where_why_and_what_would_refute_it() -> None:
    campaign = Campaign(SPEC, {**INHERITED, "kv": "q8_0"})
    campaign.play(VerdictKind.REJECT, -0.1)
    action = SearchPlanner(0).next_action(campaign.context())
    assert isinstance(action, Propose)
    hypothesis = action.proposal.hypothesis
    assert hypothesis.claim == "Setting threads = 4, threads_batch = 4 together helps"
    assert hypothesis.mechanism == "both pools on every core"
    assert hypothesis.location == "threads, threads_batch"
    assert "threads goes from 16 to 4, threads_batch goes from 16 to 4?" in hypothesis.question
    assert hypothesis.predicted is not None
    assert (hypothesis.predicted.direction, hypothesis.predicted.low) == ("up", 0.02)
    assert "below 2.0%" in hypothesis.falsifier


ONE = make_spec([whole("threads", None, [8], top=64)])


def test_a_direction_that_paid_off_is_followed_and_left_when_it_fails() -> None:
    campaign = Campaign(ONE, {"threads": 2})
    assert campaign.play(VerdictKind.ACCEPT, 0.2) == {"threads": 8}
    assert campaign.play(VerdictKind.ACCEPT, 0.1) == {"threads": 16}
    assert campaign.play(VerdictKind.REJECT, -0.1) == {"threads": 32}
    while isinstance(SearchPlanner().next_action(campaign.context()), Propose):
        (value,) = campaign.play(VerdictKind.REJECT, -0.1).values()
        assert 8 < int(str(value)) < 32  # never past what was measured worse
    assert len(campaign.experiments) < 9


def test_three_measured_values_point_to_the_peak_between_them() -> None:
    campaign = Campaign(make_spec([whole("slots", None, [4, 8])]), {"slots": 1})
    assert campaign.play(VerdictKind.ACCEPT, 0.04) == {"slots": 4}
    assert campaign.play(VerdictKind.REJECT, -0.14) == {"slots": 8}
    assert campaign.proposed() == {"slots": 2}


def test_a_small_step_is_followed_by_a_step_of_the_same_size() -> None:
    campaign = Campaign(make_spec([whole("threads", None, [7])]), {"threads": 8})
    assert campaign.play(VerdictKind.ACCEPT, 0.1) == {"threads": 7}
    assert campaign.proposed() == {"threads": 6}


def test_the_middle_of_a_wide_step_without_effect_is_tried() -> None:
    campaign = Campaign(make_spec([whole("slots", None, [16])]), {"slots": 1})
    assert campaign.play(VerdictKind.INCONCLUSIVE, 0.0) == {"slots": 16}
    assert campaign.proposed() == {"slots": 4}


THREE = make_spec([among(name, [0, 1, 2], 0, [1]) for name in ("a", "b", "c")])


def test_small_gains_are_pooled_once() -> None:
    campaign = Campaign(THREE, dict.fromkeys("abc"))
    assert campaign.play(VerdictKind.INCONCLUSIVE, 0.015) == {"a": 1}
    assert campaign.play(VerdictKind.INCONCLUSIVE, -0.01) == {"b": 1}
    assert campaign.play(VerdictKind.INCONCLUSIVE, 0.02) == {"c": 1}
    assert campaign.play(VerdictKind.REJECT, -0.001) == {"c": 1, "a": 1}
    assert isinstance(SearchPlanner().next_action(campaign.context()), Stop)


def test_three_small_gains_do_not_wait_for_the_other_knobs() -> None:
    spec = make_spec([among(name, [0, 1], 0, [1]) for name in "abcde"])
    campaign = Campaign(spec, dict.fromkeys("abcde"))
    for _ in range(3):
        campaign.play(VerdictKind.INCONCLUSIVE, 0.015)
    assert campaign.proposed() == {"a": 1, "b": 1, "c": 1}


def test_a_pool_that_stays_undecided_takes_in_later_small_gains() -> None:
    campaign = Campaign(THREE, dict.fromkeys("abc"))
    campaign.play(VerdictKind.INCONCLUSIVE, 0.015)
    campaign.play(VerdictKind.REJECT, -0.05)
    campaign.play(VerdictKind.INCONCLUSIVE, 0.015)
    assert campaign.play(VerdictKind.INCONCLUSIVE, 0.03) == {"a": 1, "c": 1}
    campaign.experiments[1] = campaign.experiments[1].model_copy(
        update={
            "verdict": Verdict(kind=VerdictKind.INCONCLUSIVE, reasons=("r",)),
            "effects": (effect(1.01, 0.99, 1.03),),
        }
    )
    assert campaign.proposed() == {"a": 1, "c": 1, "b": 1}


def test_the_last_experiment_goes_to_the_pool() -> None:
    campaign = Campaign(THREE, dict.fromkeys("abc"))
    campaign.play(VerdictKind.INCONCLUSIVE, 0.015)
    campaign.play(VerdictKind.INCONCLUSIVE, 0.015)
    assert campaign.proposed(left=2) == {"c": 1}
    assert campaign.proposed(left=1) == {"a": 1, "b": 1}


def test_a_failed_value_is_tried_once_more_beside_other_values() -> None:
    campaign = Campaign(make_spec([among("a", [0, 1], 0, [1]), among("b", [0, 1], 0, [1])]), {"a": 0, "b": 0})
    assert campaign.play(VerdictKind.INCONCLUSIVE, 0.003) == {"a": 1}
    assert campaign.play(VerdictKind.ACCEPT, 0.1) == {"b": 1}
    assert campaign.play(VerdictKind.INCONCLUSIVE, 0.003) == {"a": 1}
    assert isinstance(SearchPlanner().next_action(campaign.context()), Stop)


def test_what_broke_a_gate_is_not_tried_again_although_it_was_faster() -> None:
    campaign = Campaign(make_spec([among("a", [0, 1], 0, [1]), among("b", [0, 1], 0, [1])]), {"a": 0, "b": 0})
    campaign.play(VerdictKind.REJECT, 0.2)
    campaign.play(VerdictKind.ACCEPT, 0.1)
    assert isinstance(SearchPlanner().next_action(campaign.context()), Stop)


def test_an_acceptance_that_was_not_confirmed_counts_as_undecided() -> None:
    campaign = Campaign(THREE, dict.fromkeys("abc"))
    campaign.play(VerdictKind.INCONCLUSIVE, 0.015)
    campaign.play(VerdictKind.INCONCLUSIVE, 0.03)
    accepted = Verdict(kind=VerdictKind.ACCEPT, reasons=("r",))
    campaign.experiments[1] = campaign.experiments[1].model_copy(update={"verdict": accepted})
    assert campaign.proposed(left=1) == {"b": 1, "a": 1}


def test_an_absent_knob_equals_the_engines_default() -> None:
    spec = make_spec([whole("threads", "cores", ["cores", "cores/2"])], [DEFAULTS])
    assert Campaign(spec, {"threads": None}).proposed() == {"threads": 2}
    assert Campaign(spec, {"threads": 4}).proposed() == {"threads": 2}
    assert Campaign(spec, {"threads": 4}, cores=1).proposed() == {"threads": None}


def test_true_and_one_are_different_values() -> None:
    campaign = Campaign(make_spec([among("mode", [True, 1], 1, [1])]), {"mode": 1})
    assert campaign.proposed() == {"mode": True}


def test_what_the_platform_failed_on_is_tried_once_more_and_then_left() -> None:
    campaign = Campaign(THREE, dict.fromkeys("abc"))
    first = campaign.proposed()
    for _ in range(2):
        assert campaign.proposed() == first
        proposal = Proposal(hypothesis=Hypothesis(claim="c"), change=Change(knobs=first))
        campaign.record(proposal, None, None, State.FAILED)
    assert campaign.proposed() == {"b": 1}


def test_a_former_value_that_no_signal_names_does_not_break_the_search() -> None:
    campaign = Campaign(THREE, dict.fromkeys("abc"))
    campaign.play(VerdictKind.ACCEPT, 0.1)
    campaign.experiments[0] = campaign.experiments[0].model_copy(update={"signals": ()})
    assert campaign.proposed() == {"b": 1}


@pytest.mark.parametrize("experiment", ["patch", "unknown knob"])
def test_changes_that_are_none_of_its_own_are_left_aside(experiment: str) -> None:
    campaign = Campaign(THREE, dict.fromkeys("abc"))
    change = Change(patch="--- a\n") if experiment == "patch" else Change(knobs={"gone": 1})
    campaign.knobs["gone"] = 0
    campaign.record(Proposal(hypothesis=Hypothesis(claim="c"), change=change), VerdictKind.REJECT, effect(0.9, 0.8, 1))
    del campaign.knobs["gone"]
    assert campaign.proposed() == {"a": 1}


def test_a_target_without_knobs_ends_with_what_to_do() -> None:
    spec = SPEC.model_copy(update={"knobs": (), "moves": (), "controls": ()})
    action = SearchPlanner().next_action(Campaign(spec, {}).context())
    assert isinstance(action, Stop)
    assert "--planner llm or script:FILE" in action.reason


def test_the_seed_orders_knobs_that_nothing_else_orders() -> None:
    spec = make_spec([among(name, [0, 1, 2], 0, []) for name in "abcdef"])
    firsts = {tuple(Campaign(spec, dict.fromkeys("abcdef")).proposed(seed=seed)) for seed in range(30)}
    assert len(firsts) > 3


@pytest.mark.parametrize(
    ("text", "cores", "value"),
    [
        ("cores", 4, 4), ("cores/2", 5, 2), ("cores-1", 4, 3), ("cores * 2", 3, 6), ("cores+1", 1, 2),
        ("cores-8", 4, 1), ("cores/0", 4, 4), ("cores**9", 4, "cores**9"), ("cores/two", 4, "cores/two"),
        ("core", 4, "core"), (7, 4, 7),
    ],
)  # fmt: skip
def test_a_value_is_sized_for_the_machine(text: Scalar, cores: int, value: Scalar) -> None:
    (knob,) = make_spec([whole("threads", None, [])]).knobs
    assert knob.resolve(text, cores) == value


def test_a_word_among_the_choices_is_never_sized() -> None:
    (knob,) = make_spec([among("pin", ["cores", "sockets"], "cores", [])]).knobs
    assert knob.resolve("cores", 4) == "cores"


@pytest.mark.parametrize(
    ("suggest", "move", "problem"),
    [
        (["cores", 99], {"threads": 1}, "suggest: threads = 99 is outside 1..32"),
        (["coresss"], {"threads": 1}, "suggest: threads = 'coresss' is not a whole number"),
        ([], {"thread": "cores"}, "move m: unknown knob 'thread'"),
        ([], {"threads": 99}, "move m: threads = 99 is outside 1..32"),
        ([], {}, "at least 1 item"),
    ],
)
def test_suggestions_and_moves_are_checked_when_the_target_is_read(
    suggest: list[Scalar], move: dict[str, Scalar], problem: str
) -> None:
    moves: list[dict[str, object]] = [{"name": "m", "description": "", "knobs": move}]
    with pytest.raises(ValueError, match=problem):
        make_spec([whole("threads", None, suggest)], moves=moves)
