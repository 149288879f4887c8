"""Interleaved measuring with real worker processes in the real sandbox, and with arms that only keep a record.

A candidate that misbehaves ends as an ArmFailed for the right arm, with a typed ending, within its limits.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from feedback.observations import Measurement
from feedback.readers import slices
from feedback.stats import paired_units
from sandboxes import runner
from sandboxes.contention import Contention, Limit, between, sample
from sandboxes.results import ArmName, Ending, ExecResult
from sandboxes.runner import Arm, ArmFailed, Schedule, away_from, calibrate_repeat, measure_pairs
from sandboxes.sandbox import Limits, ProcessFailed, Sandbox, SandboxSpec, open_sandbox
from sandboxes.worker import MAX_CHECK, WorkerArm

WORKER = """
import json, os, random, sys
requests, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
def reply(**message):
    print(json.dumps(message), file=replies, flush=True)
reply(ready=True, protocol=1)
for count, line in enumerate(requests):
    request = json.loads(line)
    n = request["slice"]
    x = random.Random(request["seed"]).random()
    for _ in range(request["params"].get("repeat", 1)):
        x = 3.9 * x * (1.0 - x)
    {misbehave}
    reply(slice=n, check=[x], duration_s=0.0)
"""
NEVER_READY = "import time\ntime.sleep(60)\n"
SLICE_TIMEOUT_S = 1.0
LIMITS = Limits(memory_bytes=256 << 20, processes=24, output_bytes=1 << 20, timeout_s=5.0)
ANY = Limit(foreign_cpu_share=1e9, steal_share=1e9)
"""Never disturbed, so that a busy machine does not decide a test."""
QUICK = Schedule(looks=(2,), blocks=2, warmup_slices=1, max_repeats=0, limit=ANY)


def is_running(pid: int) -> bool:
    """Whether a process is there and not only waits for a slow parent to take note of its end."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Bench:
    """Both arms' sandboxes and everything that was written down."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._sandboxes: dict[ArmName, Sandbox] = {}
        self.lines: list[dict[str, Any]] = []

    def sandbox(self, arm: ArmName) -> Sandbox:
        if arm not in self._sandboxes:
            tree, scratch = self._directory / arm, self._directory / f"{arm}-scratch"
            tree.mkdir()
            scratch.mkdir()
            self._sandboxes[arm] = open_sandbox("bubblewrap", SandboxSpec(tree=tree, scratch=scratch, limits=LIMITS))
        return self._sandboxes[arm]

    def worker(self, arm: ArmName, code: str) -> None:
        self.sandbox(arm).write_file("worker.py", code.encode())

    def open(self, arm: ArmName, pair: int) -> Arm:
        return WorkerArm(arm, self.sandbox(arm), ["python", "-I", "-S", "worker.py"], SLICE_TIMEOUT_S)

    def measure(self, schedule: Schedule = QUICK, **params: Any) -> list[runner.PairResult]:
        return measure_pairs(self.open, schedule, params, random.Random(1), self.lines.append, lambda: True)

    def slices(self) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["type"] == "slice"]

    def file(self) -> Path:
        """Everything that was written down, as a file of a run."""
        path = self._directory / "slices.jsonl"
        facts = {"probe": "p", "stage": "screen"}
        path.write_text("".join(json.dumps(line | facts) + "\n" for line in self.lines))
        return path

    def close(self) -> None:
        for sandbox in self._sandboxes.values():
            sandbox.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    for arm in runner.ORDERS[0][:2]:
        made.worker(arm, WORKER.replace("{misbehave}", "pass"))
    yield made
    made.close()


# Workers that behave.


def test_pairs_of_workers_are_measured(bench: Bench) -> None:
    results = bench.measure(repeat=100)
    assert [(r.pair, r.disturbed, r.kept) for r in results] == [(0, False, True), (1, False, True)]
    slices = bench.slices()
    assert len(slices) == 2 * 2 * 4
    assert all(0 < line["record"]["duration_s"] < SLICE_TIMEOUT_S for line in slices)
    json.dumps(bench.lines)


def test_clock_is_the_supervisors(bench: Bench) -> None:
    """The worker's own `duration_s` of zero counts for nothing."""
    bench.worker("candidate", WORKER.replace("{misbehave}", "import time; time.sleep(0.03)"))
    bench.measure()
    times = {arm: [x["record"]["duration_s"] for x in bench.slices() if x["arm"] == arm] for arm in runner.ORDERS[0]}
    assert min(times["candidate"]) >= 0.03
    assert set(bench.slices()[0]["record"]) == {"slice", "check", "duration_s"}


def test_arms_do_the_same_work_and_no_arm_the_same_work_twice(bench: Bench) -> None:
    bench.measure(Schedule(looks=(3,), blocks=3, limit=ANY), repeat=10)
    by_seed: dict[int, dict[str, list[Any]]] = {}
    for line in bench.slices():
        by_seed.setdefault(line["seed"], {}).setdefault(line["arm"], []).append(line["record"]["check"])
    assert len(by_seed) == 3 * 3 * 2
    for answers in by_seed.values():
        assert len(answers["baseline"]) == len(answers["candidate"]) == 1
        assert answers["baseline"] == answers["candidate"]


def test_every_pair_has_fresh_processes(bench: Bench) -> None:
    seen: list[int] = []
    opened = bench.open

    def open_arm(arm: ArmName, pair: int) -> Arm:
        made = opened(arm, pair)
        seen.extend(made.pids())
        return made

    measure_pairs(open_arm, QUICK, {}, random.Random(1), bench.lines.append, lambda: True)
    assert len(seen) == len(set(seen))
    assert not [pid for pid in seen if is_running(pid)]


def test_arm_that_is_not_asked_does_not_run(bench: Bench) -> None:
    """A worker that goes on in the background between its slices would slow the other arm's down."""
    busy = (
        "import threading, time; spin = lambda: [None for _ in iter(time.time, 0)]\n"
        "    if count == 0: threading.Thread(target=spin, daemon=True).start()"
    )
    bench.worker("candidate", WORKER.replace("{misbehave}", busy))
    states: list[str] = []
    arms: dict[ArmName, Arm] = {}

    class Watching:
        """The baseline, which looks at the other arm before it does a slice."""

        def __init__(self, arm: Arm) -> None:
            self.name = arm.name
            self._arm = arm
            self.pids, self.close = arm.pids, arm.close

        def slice(self, number: int, seed: int, params: Mapping[str, Any]) -> dict[str, Any]:
            pid = arms["candidate"].pids()[-1]
            for _ in range(100):  # a process stops when it next enters the kernel
                state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
                if state == "T":
                    break
                time.sleep(0.005)
            states.append(state)
            return self._arm.slice(number, seed, params)

    def open_arm(arm: ArmName, pair: int) -> Arm:
        arms[arm] = bench.open(arm, pair)
        return Watching(arms[arm]) if arm == "baseline" else arms[arm]

    schedule = Schedule(looks=(1,), blocks=5, warmup_slices=0, limit=ANY)
    measure_pairs(open_arm, schedule, {"repeat": 10}, random.Random(1), bench.lines.append, lambda: True)
    assert states == ["T"] * 10


def test_repeat_is_calibrated_to_the_wanted_time(bench: Bench) -> None:
    arm = bench.open("baseline", 0)
    try:
        repeat = calibrate_repeat(arm, {}, 0.01)
        times = [arm.slice(n, 7, {"repeat": repeat})["duration_s"] for n in range(5)]
    finally:
        arm.close()
    assert repeat > 100
    assert 0.002 < sorted(times)[2] < 0.05


# Workers that misbehave.

MISBEHAVIOUR = {
    "hang": ("import time; time.sleep(60)", Ending.TIMEOUT, "sent no line within 1 s"),
    "exit": ("sys.exit(3)", Ending.EXITED, "ended while"),
    "exit with status 0": ("os._exit(0)", Ending.EXITED, "ended while"),
    "crash": ("os.kill(os.getpid(), 11)", Ending.SIGNALLED, "ended while"),
    "exception": ("raise RuntimeError('wrong shape')", Ending.EXITED, "wrong shape"),
    "fork bomb": (
        "import threading, time; [threading.Thread(target=time.sleep, args=(60,)).start() for _ in range(200)]",
        Ending.PROCESSES,
        "",
    ),
    "log flood": ("[print('x' * 100000, file=sys.stderr) for _ in range(100000)]", Ending.OUTPUT, ""),
    "line without end": ("replies.write('x' * (80 << 20)); replies.flush()", Ending.OUTPUT, "without an end"),
    "memory": (
        "import time; "
        "hoard = [bytearray(b'x') * (16 << 20) for _ in range(64) if not time.sleep(0.005)]; time.sleep(60)",
        Ending.MEMORY,
        "",
    ),
    "ignores signals": (
        "import signal, time; [signal.signal(s, signal.SIG_IGN) for s in (1, 2, 3, 13, 15)]; time.sleep(60)",
        Ending.TIMEOUT,
        "sent no line",
    ),
    "closes its output": ("replies.close(); import time; time.sleep(60)", Ending.TIMEOUT, "sent no line"),
    "garbage line": (
        "replies.write('garbage\\n'); replies.flush(); continue",
        Ending.STOPPED,
        "no JSON object: b'garbage'",
    ),
    "no object": ("replies.write('[1]\\n'); replies.flush(); continue", Ending.STOPPED, "no JSON object"),
    "deeply nested": ("replies.write('[' * 9999 + '\\n'); replies.flush(); continue", Ending.STOPPED, "no JSON object"),
    "wrong slice number": ("n += 1", Ending.STOPPED, "asked for slice"),
    "no slice number": ("n = None", Ending.STOPPED, "got None"),
    "error line": ("reply(slice=n, error='unknown op'); continue", Ending.STOPPED, "worker error 'unknown op'"),
    "check is no list": ("reply(slice=n, check={'a': 1}); continue", Ending.STOPPED, "its check is no list"),
    "check of texts": ("reply(slice=n, check=['a']); continue", Ending.STOPPED, "its check is no list"),
    "huge check": (f"reply(slice=n, check=[0] * {MAX_CHECK + 1}); continue", Ending.STOPPED, "its check is no list"),
}


@pytest.mark.parametrize(
    ("name", "arm"),
    [
        *((name, "candidate") for name in MISBEHAVIOUR),
        *((name, "baseline") for name in ("hang", "exit", "garbage line")),
    ],
)
def test_misbehaving_arm_fails_typed_and_in_time(bench: Bench, name: str, arm: ArmName) -> None:
    code, ending, said = MISBEHAVIOUR[name]
    bench.worker(arm, WORKER.replace("{misbehave}", f"if count == 2:\n        {code}"))
    started = time.monotonic()
    with pytest.raises(ArmFailed) as caught:
        bench.measure()
    assert caught.value.arm == arm
    failure = caught.value.failure
    assert failure.result.ending is ending, str(failure)
    assert said in str(failure)
    assert len(str(failure)) < 1000
    assert time.monotonic() - started < SLICE_TIMEOUT_S + 5.0


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("print('hello')\n", "no JSON object: b'hello'"),
        ("print('{}', flush=True)\nimport time\ntime.sleep(60)\n", "not a ready line: {}"),
        ('print(\'{"ready": true, "protocol": 2}\', flush=True)\nimport time\ntime.sleep(60)\n', "not a ready line"),
        ("import absent_module\n", "No module named 'absent_module'"),
        ("this is no python\n", "SyntaxError"),
    ],
)
def test_worker_that_does_not_become_ready(bench: Bench, code: str, said: str) -> None:
    bench.worker("candidate", code)
    with pytest.raises(ArmFailed, match="candidate") as caught:
        bench.measure()
    assert said in str(caught.value)
    assert bench.lines == []


def test_worker_that_is_silent_at_the_start(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandboxes.worker.READY_TIMEOUT_S", 0.5)
    bench.worker("baseline", NEVER_READY)
    with pytest.raises(ArmFailed) as caught:
        bench.measure()
    assert (caught.value.arm, caught.value.failure.result.ending) == ("baseline", Ending.TIMEOUT)


def test_slices_of_earlier_pairs_survive_a_failure(bench: Bench) -> None:
    """A worker that fails in the second pair leaves the first one written."""
    bench.worker("candidate", WORKER.replace("{misbehave}", "if os.path.exists('/scratch/second'): os._exit(1)"))
    opened = bench.open

    def open_arm(arm: ArmName, pair: int) -> Arm:
        if pair == 1:
            bench.sandbox("candidate").write_file("/scratch/second", b"")
        return opened(arm, pair)

    with pytest.raises(ArmFailed):
        measure_pairs(open_arm, QUICK, {}, random.Random(1), bench.lines.append, lambda: True)
    assert {line["pair"] for line in bench.lines} == {0}
    assert len(bench.slices()) == 8


def test_failed_pair_leaves_no_process(bench: Bench) -> None:
    pids: list[int] = []
    opened = bench.open

    def open_arm(arm: ArmName, pair: int) -> Arm:
        made = opened(arm, pair)
        pids.extend(made.pids())
        return made

    bench.worker("candidate", WORKER.replace("{misbehave}", "os._exit(1)"))
    with pytest.raises(ArmFailed):
        measure_pairs(open_arm, QUICK, {}, random.Random(1), bench.lines.append, lambda: True)
    assert pids
    assert not [pid for pid in pids if is_running(pid)]


def test_affinity_of_the_supervisor_is_restored(bench: Bench) -> None:
    allowed = os.sched_getaffinity(0)
    cpu = max(allowed)
    during: list[set[int]] = []

    def write(line: dict[str, Any]) -> None:
        during.append(os.sched_getaffinity(0))

    pinned = QUICK.model_copy(update={"cpus": (cpu,)})
    measure_pairs(bench.open, pinned, {}, random.Random(1), write, lambda: True)
    assert os.sched_getaffinity(0) == allowed
    bench.worker("candidate", WORKER.replace("{misbehave}", "if count == 3: os._exit(1)"))
    with pytest.raises(ArmFailed):
        measure_pairs(bench.open, pinned, {}, random.Random(1), write, lambda: True)
    assert os.sched_getaffinity(0) == allowed


def test_supervisor_keeps_off_the_measured_cpus() -> None:
    allowed = os.sched_getaffinity(0)
    with away_from(()):
        assert os.sched_getaffinity(0) == allowed
    with away_from(tuple(allowed)):  # nowhere else to go
        assert os.sched_getaffinity(0) == allowed
    if len(allowed) > 1:
        with suppress(InterruptedError), away_from((max(allowed),)):
            assert os.sched_getaffinity(0) == allowed - {max(allowed)}
            raise InterruptedError
    assert os.sched_getaffinity(0) == allowed


# Order, looks and repeats, with arms that keep a record of what they were asked.


class Recorded:
    """An arm that answers at once."""

    def __init__(self, name: ArmName, asked: list[tuple[str, int, int]]) -> None:
        self.name: ArmName = name
        self._asked = asked

    def slice(self, number: int, seed: int, params: Mapping[str, Any]) -> dict[str, Any]:
        self._asked.append((self.name, number, seed))
        return {"slice": number, "duration_s": 0.001}

    def pids(self) -> list[int]:
        return [os.getpid()]

    def close(self) -> ExecResult:
        self._asked.append((f"close {self.name}", 0, 0))
        return ExecResult(command=("x",), ending=Ending.STOPPED, returncode=None)


class Session:
    """A measurement with recorded arms."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, int]] = []
        self.opened: list[tuple[str, int]] = []
        self.lines: list[dict[str, Any]] = []
        self.n_looks = 0

    def open(self, arm: ArmName, pair: int) -> Arm:
        self.opened.append((arm, pair))
        return Recorded(arm, self.asked)

    def run(
        self, schedule: Schedule, clear: Callable[[], bool] = lambda: False, seed: int = 5
    ) -> list[runner.PairResult]:
        def counted() -> bool:
            self.n_looks += 1
            return clear()

        return measure_pairs(self.open, schedule, {}, random.Random(seed), self.lines.append, counted)

    def slices(self) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["type"] == "slice"]

    def pairs(self) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["type"] == "pair"]


@pytest.fixture
def session() -> Session:
    return Session()


def test_every_block_is_complete_and_in_one_of_two_orders(session: Session) -> None:
    session.run(Schedule(looks=(40,), blocks=7, limit=ANY))
    orders: Counter[tuple[str, ...]] = Counter()
    blocks: dict[tuple[int, int], list[tuple[int, str]]] = {}
    for line in session.slices():
        blocks.setdefault((line["pair"], line["block"]), []).append((line["position"], line["arm"]))
    for places in blocks.values():
        assert [position for position, _ in places] == [0, 1, 2, 3]
        orders[tuple(arm for _, arm in places)] += 1
    assert set(orders) == set(runner.ORDERS)
    assert sum(orders.values()) == 280
    assert min(orders.values()) > 110  # 140 of each expected; 3.5 standard deviations


def test_either_arm_is_started_first_as_often(session: Session) -> None:
    results = session.run(Schedule(looks=(60,), blocks=1, limit=ANY))
    first = Counter(r.first_arm for r in results)
    assert min(first.values()) > 16  # 30 of each expected
    assert [r.first_arm for r in results] == [arm for arm, _ in session.opened[::2]]


def test_both_arms_are_warmed_up_alike_and_unrecorded(session: Session) -> None:
    session.run(Schedule(looks=(1,), blocks=1, warmup_slices=3, limit=ANY))
    warm, measured = session.asked[:6], session.asked[6:10]
    assert Counter(name for name, _, _ in warm) == {"baseline": 3, "candidate": 3}
    assert [warm[i][2] == warm[i + 1][2] for i in (0, 2, 4)] == [True] * 3
    assert {seed for _, _, seed in warm}.isdisjoint(seed for _, _, seed in measured)
    assert len(session.slices()) == 4


def test_arms_that_can_not_live_side_by_side_run_in_turn(session: Session) -> None:
    results = session.run(Schedule(looks=(30,), blocks=3, warmup_slices=2, side_by_side=False, limit=ANY))
    assert len(results) == 30
    alive: set[str] = set()
    runs = [name for name, _, _ in session.asked]
    for name in runs:  # no arm is asked while the other lives
        if name.startswith("close "):
            alive.remove(name.removeprefix("close "))
        else:
            alive.add(name)
        assert len(alive) <= 1
    orders: Counter[tuple[str, ...]] = Counter()
    for pair in range(30):
        opened = tuple(arm for arm, number in session.opened if number == pair)
        orders[opened] += 1
        lines = [line for line in session.slices() if line["pair"] == pair]
        assert len(lines) == 3 * 4
        for block in range(3):
            of_block = sorted((x for x in lines if x["block"] == block), key=lambda x: int(x["position"]))
            assert tuple(x["arm"] for x in of_block) == opened
            assert [of_block[0]["seed"], of_block[2]["seed"]] == [of_block[1]["seed"], of_block[3]["seed"]]
            assert of_block[0]["seed"] != of_block[2]["seed"]
    assert set(orders) == set(runner.ORDERS)


def test_real_workers_in_turn(bench: Bench) -> None:
    results = bench.measure(QUICK.model_copy(update={"side_by_side": False}), repeat=100)
    assert [(r.pair, r.kept) for r in results] == [(0, True), (1, True)]
    measured = [o for o in slices.read(bench.file(), "p", "screen") if isinstance(o, Measurement)]
    units = paired_units(measured, "slice_time_s").values
    assert len(units) == 2


@pytest.mark.parametrize(("side_by_side", "n_blocks"), [(True, {1, 2, 3}), (False, set())])
def test_time_ends_inside_a_pair(session: Session, side_by_side: bool, n_blocks: set[int]) -> None:
    class Slow(Recorded):
        def slice(self, number: int, seed: int, params: Mapping[str, Any]) -> dict[str, Any]:
            time.sleep(0.02)
            return super().slice(number, seed, params)

    session.open = lambda arm, pair: Slow(arm, session.asked)  # type: ignore[method-assign]
    plan = Schedule(looks=(5,), blocks=40, warmup_slices=0, budget_s=0.1, side_by_side=side_by_side, limit=ANY)
    results = session.run(plan)
    assert len(results) == bool(n_blocks)
    lines = session.slices()
    assert len(lines) % 4 == 0  # complete blocks only
    assert {line["block"] for line in lines} <= set(range(4))
    assert bool(lines) == bool(n_blocks)


def test_slice_numbers_can_not_be_guessed(session: Session) -> None:
    session.run(Schedule(looks=(3,), blocks=3, limit=ANY))
    numbers = [number for name, number, _ in session.asked if not name.startswith("close")]
    assert len(set(numbers)) == len(numbers)
    assert len({b - a for a, b in pairwise(numbers)}) > len(numbers) // 2


def test_same_randomness_measures_the_same(session: Session) -> None:
    again = Session()
    for each in (session, again):
        each.run(Schedule(looks=(4,), limit=ANY), seed=9)
    assert session.asked == again.asked


@pytest.mark.parametrize(
    ("clear_at", "n_pairs", "n_looks"),
    [(1, 2, 1), (2, 4, 2), (3, 7, 3), (99, 7, 3)],
    ids=["1st", "2nd", "3rd", "never"],
)
def test_looks_are_taken_when_scheduled_and_end_it(session: Session, clear_at: int, n_pairs: int, n_looks: int) -> None:
    results = session.run(Schedule(looks=(2, 4, 7), blocks=1, limit=ANY), lambda: session.n_looks >= clear_at)
    assert len(results) == n_pairs
    assert session.n_looks == n_looks


def test_pair_is_written_before_it_is_looked_at(session: Session) -> None:
    seen: list[int] = []

    def clear() -> bool:
        seen.append(len(session.pairs()))
        return False

    session.run(Schedule(looks=(1, 3), blocks=1, limit=ANY), clear)
    assert seen == [1, 3]


class Weather:
    """What `between` says of each pair in turn, as if others used the machine."""

    def __init__(self, *stormy: bool) -> None:
        self._stormy = iter(stormy)

    def __call__(self, *_: Any) -> Contention:
        share = 0.5 if next(self._stormy, False) else 0.0
        return Contention(foreign_cpu_share=share, steal_share=0.0, run_queue=1.0)


def test_disturbed_pair_is_measured_again_and_its_record_kept(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "between", Weather(False, True, True, False, False))
    results = session.run(Schedule(looks=(1, 3), blocks=1, max_repeats=5))
    assert [(r.pair, r.disturbed, r.kept) for r in results] == [
        (0, False, True), (1, True, False), (2, True, False), (3, False, True), (4, False, True),
    ]  # fmt: skip
    assert session.n_looks == 2
    assert [line["disturbed"] for line in session.slices()] == [False] * 4 + [True] * 8 + [False] * 8
    assert [(line["pair"], line["kept"]) for line in session.pairs()] == [(r.pair, r.kept) for r in results]
    assert session.pairs()[1]["contention"]["foreign_cpu_share"] == 0.5


def test_machine_that_stays_busy_is_accepted_as_it_is_and_flagged(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "between", Weather(*[True] * 20))
    results = session.run(Schedule(looks=(2, 4), blocks=1, max_repeats=3))
    assert [(r.disturbed, r.kept) for r in results] == [(True, False)] * 3 + [(True, True)] * 4
    assert [line["disturbed"] for line in session.slices()] == [True] * 12 + [False] * 16
    assert session.n_looks == 2


def test_no_pair_is_begun_after_the_time_is_used_up(session: Session) -> None:
    results = session.run(Schedule(looks=(50,), blocks=1, budget_s=0.0, limit=ANY))
    assert len(results) <= 1
    opened = session.open

    def slow(arm: ArmName, pair: int) -> Arm:
        time.sleep(0.02)
        return opened(arm, pair)

    session.open = slow  # type: ignore[method-assign]
    assert 1 <= len(session.run(Schedule(looks=(50,), blocks=1, budget_s=0.1, limit=ANY))) <= 4


@pytest.mark.parametrize("when", ["open", "warm-up", "slice"])
@pytest.mark.parametrize("arm", ["baseline", "candidate"])
def test_failure_of_an_arm_is_told_apart_and_both_are_closed(session: Session, when: str, arm: ArmName) -> None:
    result = ExecResult(command=("x",), ending=Ending.SIGNALLED, returncode=None, signal=11)
    n_asked = 0

    class Failing(Recorded):
        def slice(self, number: int, seed: int, params: Mapping[str, Any]) -> dict[str, Any]:
            nonlocal n_asked
            n_asked += 1
            if n_asked > (0 if when == "warm-up" else 4):
                raise ProcessFailed(result, f"slice {number}")
            return super().slice(number, seed, params)

    def open_arm(name: ArmName, pair: int) -> Arm:
        if name == arm and when == "open":
            raise ProcessFailed(result, "starting")
        session.opened.append((name, pair))
        return Failing(name, session.asked) if name == arm else Recorded(name, session.asked)

    with pytest.raises(ArmFailed, match="signal 11") as caught:
        measure_pairs(
            open_arm, Schedule(looks=(9,), limit=ANY), {}, random.Random(2), session.lines.append, lambda: True
        )
    assert caught.value.arm == arm
    closed = [name.removeprefix("close ") for name, _, _ in session.asked if name.startswith("close")]
    assert sorted(closed) == sorted(name for name, _ in session.opened)


def test_failure_of_the_platform_passes_through(session: Session) -> None:
    class Broken(Recorded):
        def slice(self, number: int, seed: int, params: Mapping[str, Any]) -> dict[str, Any]:
            raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        measure_pairs(
            lambda name, _: Broken(name, session.asked), QUICK, {}, random.Random(1), session.lines.append, lambda: True
        )
    assert sum(name.startswith("close") for name, _, _ in session.asked) == 2


@pytest.mark.parametrize("cost_s", [1e-9, 1e-6, 1e-3, 0.5])
def test_calibration_ends_for_any_cost_of_the_work(cost_s: float) -> None:
    class Costly(Recorded):
        def slice(self, number: int, seed: int, params: Mapping[str, Any]) -> dict[str, Any]:
            return {"slice": number, "duration_s": cost_s * params["repeat"]}

    repeat = calibrate_repeat(Costly("baseline", []), {}, 0.012, limit=1 << 20)
    assert repeat == max(1, min(1 << 20, round(0.012 / cost_s)))


# Contention.


def spin(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_own_work_is_not_contention() -> None:
    cpu = max(os.sched_getaffinity(0))
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        before = sample((cpu,), ())
        spin(0.3)
        after = sample((cpu,), ())
    finally:
        os.sched_setaffinity(0, allowed)
    assert after.own_s - before.own_s == pytest.approx(0.3, abs=0.05)
    own_share = (after.own_s - before.own_s) / (after.at_s - before.at_s)
    assert between(before, after, 1).foreign_cpu_share <= 1.0 - own_share + 0.1


def test_foreign_work_is_contention() -> None:
    cpu = max(os.sched_getaffinity(0))
    child = os.fork()
    if child == 0:  # spins on the measured CPU until it is ended
        try:
            os.sched_setaffinity(0, {cpu})
            spin(5.0)
        finally:
            os._exit(0)
    try:
        time.sleep(0.05)
        before, mine_before = sample((cpu,), ()), sample((cpu,), (child,))
        time.sleep(0.4)
        after, mine_after = sample((cpu,), ()), sample((cpu,), (child,))
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    share = between(before, after, 1).foreign_cpu_share
    assert share > 0.2
    assert Limit().disturbed(between(before, after, 1))
    assert between(mine_before, mine_after, 1).foreign_cpu_share < share


def test_process_that_is_gone_has_used_no_time() -> None:
    assert sample((), (999_999_999,)).own_s >= 0


@pytest.mark.parametrize(
    ("foreign", "steal", "is_disturbed"), [(0.1, 0.0, False), (0.2, 0.0, True), (0.0, 0.06, True), (0.15, 0.05, False)]
)
def test_limit_of_contention(foreign: float, steal: float, is_disturbed: bool) -> None:
    contention = Contention(foreign_cpu_share=foreign, steal_share=steal, run_queue=0.0)
    assert Limit().disturbed(contention) is is_disturbed
