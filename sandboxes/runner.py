"""Order, time limits and interleaving: measures two arms side by side in blocks A B B A, pair by fresh pair, or,
where they can't live side by side, in fresh runs one after the other in the same order.

Knows nothing of statistics or verdicts: it is told when the answer is clear by a callback that is asked after
fixed numbers of pairs, and writes every slice it made, disturbed ones included.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple, Protocol

from sandboxes.contention import Contention, Limit, between, sample
from sandboxes.results import ArmName, ExecResult, Record
from sandboxes.sandbox import ProcessFailed

ORDERS: tuple[tuple[ArmName, ...], ...] = (
    ("baseline", "candidate", "candidate", "baseline"),
    ("candidate", "baseline", "baseline", "candidate"),
)


class Arm(Protocol):
    """One side of a comparison: a live process or server that does slices on request."""

    name: ArmName

    def slice(self, number: int, seed: int, params: Mapping[str, Any]) -> dict[str, Any]:
        """Do one slice; the record holds at least `duration_s`. Raises ProcessFailed."""

    def pids(self) -> list[int]:
        """Host pids of the arm's process tree."""

    def close(self) -> ExecResult:
        """End the arm."""


class ArmFailed(Exception):
    """One arm of a comparison failed; whether that is data depends on which."""

    def __init__(self, arm: ArmName, failure: ProcessFailed) -> None:
        super().__init__(f"{arm}: {failure}")
        self.arm = arm
        self.failure = failure


class Schedule(Record):
    """How a comparison is measured."""

    looks: tuple[int, ...] = (5, 10, 20)
    """Numbers of undisturbed pairs after which the caller is asked whether the answer is clear."""
    blocks: int = 7
    """Complete A B B A blocks inside a pair."""
    warmup_slices: int = 2
    """Slices of each arm at the start of a pair that are not recorded."""
    max_repeats: int = 5
    """Disturbed pairs that are measured again before contention is accepted as this host's condition."""
    budget_s: float = 600.0
    """No block is begun after this much wall time."""
    side_by_side: bool = True
    """False where only one arm can live at a time: a pair is then four fresh runs in the order A B B A or B A A B."""
    cpus: tuple[int, ...] = ()
    """CPUs that both arms are pinned to; contention is sampled there."""
    limit: Limit = Limit()


class PairResult(Record):
    """How one pair went."""

    pair: int
    disturbed: bool
    kept: bool
    """False when the pair was disturbed and is repeated."""
    contention: Contention
    first_arm: ArmName
    duration_s: float


OpenArm = Callable[[ArmName, int], Arm]
"""Open a fresh arm for a pair number. Raises ProcessFailed if it does not come up."""


def measure_pairs(
    open_arm: OpenArm,
    schedule: Schedule,
    params: Mapping[str, Any],
    rng: random.Random,
    write: Callable[[dict[str, Any]], None],
    clear: Callable[[], bool],
) -> list[PairResult]:
    """Measure fresh pairs until `clear()` says so at a look, the looks are used up or the time is.

    A pair whose time ran out counts with the blocks that were complete. Every slice goes to `write` as {"type":
    "slice", arm, pair, block, position, seed, disturbed, record}, each pair as {"type": "pair", ...}. Raises ArmFailed.
    """
    until_s = time.monotonic() + schedule.budget_s
    measure = _side_by_side if schedule.side_by_side else _in_turn
    results: list[PairResult] = []
    repeats = 0
    for attempt in range(schedule.looks[-1] + schedule.max_repeats):
        n_kept = sum(r.kept for r in results)
        if n_kept >= schedule.looks[-1] or time.monotonic() > until_s:
            break
        slices, contention, first = measure(open_arm, schedule, params, rng, attempt, until_s)
        if not slices:  # the time was over before a block was complete
            break
        disturbed = schedule.limit.disturbed(contention)
        repeat = disturbed and repeats < schedule.max_repeats
        repeats += repeat
        for line in slices:
            write({**line, "type": "slice", "disturbed": repeat})
        duration_s = sum(line["record"]["duration_s"] for line in slices)
        result = PairResult(
            pair=attempt, disturbed=disturbed, kept=not repeat,
            contention=contention, first_arm=first, duration_s=duration_s,
        )  # fmt: skip
        write({"type": "pair", **result.model_dump()})
        results.append(result)
        if result.kept and n_kept + 1 in schedule.looks and clear():
            break
    return results


class Measured(NamedTuple):
    """One pair: its slices in order (none if the time was over), what disturbed it, and who was started first."""

    lines: list[dict[str, Any]]
    contention: Contention
    first_arm: ArmName


def _side_by_side(
    open_arm: OpenArm, schedule: Schedule, params: Mapping[str, Any], rng: random.Random, pair: int, until_s: float
) -> Measured:
    """One fresh pair: start both arms in random order, warm both up, then the blocks."""
    names: list[ArmName] = ["baseline", "candidate"]
    rng.shuffle(names)
    lines: list[dict[str, Any]] = []
    with ExitStack() as stack:
        arms: dict[ArmName, Arm] = {}
        for name in names:
            with _failing(name):
                arms[name] = open_arm(name, pair)
            stack.callback(arms[name].close)
            stack.callback(_signal, arms[name], signal.SIGCONT)  # a stopped one could not close in good order
        for _ in range(schedule.warmup_slices):
            seed = rng.getrandbits(31)
            for name in names:
                with _failing(name):
                    arms[name].slice(rng.getrandbits(31), seed, params)
        with away_from(schedule.cpus):
            pids = [pid for arm in arms.values() for pid in arm.pids()]
            before = sample(schedule.cpus, pids)
            for block in range(schedule.blocks):
                if time.monotonic() > until_s:
                    break
                lines += _block(arms, block, pair, params, rng)
            # What an arm started meanwhile is its own too.
            after = sample(schedule.cpus, {*pids, *(pid for arm in arms.values() for pid in arm.pids())})
    return Measured(lines, between(before, after, _n_cpus(schedule)), names[0])


def _block(
    arms: Mapping[ArmName, Arm], block: int, pair: int, params: Mapping[str, Any], rng: random.Random
) -> Iterator[dict[str, Any]]:
    """One complete block. Its two seeds are given to each arm once: both arms do the same work, and no arm is
    asked twice for what it may remember."""
    seeds = (rng.getrandbits(31), rng.getrandbits(31))
    for position, name in enumerate(rng.choice(ORDERS)):
        # The other arm must not run, whatever it does while it is idle: poll, prefetch or get in the way.
        for other, arm in arms.items():
            _signal(arm, signal.SIGCONT if other == name else signal.SIGSTOP)
        yield _slice(arms[name], block, pair, position, seeds[position // 2], params, rng)


def _slice(
    arm: Arm, block: int, pair: int, position: int, seed: int, params: Mapping[str, Any], rng: random.Random
) -> dict[str, Any]:
    with _failing(arm.name):
        # A slice's number can't be guessed, so an answer can't be written before it is asked for.
        record = arm.slice(rng.getrandbits(31), seed, params)
    return {"arm": arm.name, "pair": pair, "block": block, "position": position, "seed": seed, "record": record}


def _in_turn(
    open_arm: OpenArm, schedule: Schedule, params: Mapping[str, Any], rng: random.Random, pair: int, until_s: float
) -> Measured:
    """One pair where only one arm can live at a time: four fresh runs in the order A B B A or B A A B, each warmed
    up and asked for one slice of every block. A pair that the time does not suffice for is dropped as a whole."""
    seeds = [(rng.getrandbits(31), rng.getrandbits(31)) for _ in range(schedule.blocks)]
    warmup = [rng.getrandbits(31) for _ in range(schedule.warmup_slices)]
    lines: list[dict[str, Any]] = []
    seen = [Contention(foreign_cpu_share=0, steal_share=0, run_queue=0)]
    order = rng.choice(ORDERS)
    for position, name in enumerate(order):
        if time.monotonic() > until_s:
            return Measured([], seen[0], order[0])
        with ExitStack() as stack:
            with _failing(name):
                arm = open_arm(name, pair)
            stack.callback(arm.close)
            for seed in warmup:
                with _failing(name):
                    arm.slice(rng.getrandbits(31), seed, params)
            with away_from(schedule.cpus):
                before = sample(schedule.cpus, pids := arm.pids())
                for block, of_block in enumerate(seeds):
                    lines.append(_slice(arm, block, pair, position, of_block[position // 2], params, rng))
                seen.append(between(before, sample(schedule.cpus, {*pids, *arm.pids()}), _n_cpus(schedule)))
    worst = {name: max(getattr(c, name) for c in seen) for name in Contention.model_fields}
    return Measured(lines, Contention(**worst), order[0])


def _n_cpus(schedule: Schedule) -> int:
    return len(schedule.cpus) or os.cpu_count() or 1


def _signal(arm: Arm, number: signal.Signals) -> None:
    """Send a signal to every process of an arm; one that is gone needs none."""
    for pid in set(arm.pids()) - {os.getpid()}:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


@contextmanager
def _failing(arm: ArmName) -> Iterator[None]:
    try:
        yield
    except ProcessFailed as failure:
        raise ArmFailed(arm, failure) from failure


@contextmanager
def away_from(cpus: tuple[int, ...]) -> Iterator[None]:
    """Keep the supervisor off the measured CPUs where there are others, so that it does not disturb them."""
    allowed = os.sched_getaffinity(0)
    others = allowed - set(cpus)
    if not cpus or not others:
        yield
        return
    os.sched_setaffinity(0, others)
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def calibrate_repeat(arm: Arm, params: Mapping[str, Any], target_s: float, limit: int = 1 << 20) -> int:
    """How many repeats of the baseline's work make a slice of about `target_s` seconds. Raises ProcessFailed."""
    repeat = 1
    while True:
        times = [arm.slice(n, 7, {**params, "repeat": repeat})["duration_s"] for n in range(3)]
        fastest = min(times)
        if fastest >= target_s / 2 or repeat >= limit:
            return max(1, min(limit, round(repeat * target_s / max(float(fastest), 1e-7))))
        repeat = min(limit, max(repeat * 2, int(repeat * target_s / max(fastest, 1e-7) / 2)))
