"""How each probe is run on both arms of a Bench. Leaves artefacts and steps; judges nothing."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from pathlib import PurePosixPath
from typing import Any

from infra_agent import host
from infra_agent.bench import ARMS, Bench
from infra_agent.servers import counter, open_servers, scores
from infra_agent.target import (
    CallgrindProbe,
    CommandProbe,
    EventsProbe,
    LoadProbe,
    LogprobsProbe,
    OutputsProbe,
    PairedProbe,
    Probe,
    SlicesProbe,
    schedule,
)
from sandboxes.results import ArmName, Artefact, Step, StepResult
from sandboxes.runner import Arm, ArmFailed, OpenArm, Schedule, calibrate_repeat, measure_pairs
from sandboxes.worker import WorkerArm


def run_probe(bench: Bench, probe: Probe, clear: Callable[[], bool] = lambda: True) -> None:
    """Run one probe on both arms; `clear` is asked at each look of a paired one.

    What is timed has the machine for itself; the rest may run beside the rest of other experiments. Raises
    CandidateFailed when the candidate's arm failed, BaselineFailed when the baseline's did, Halted.
    """
    with bench.site.turns.alone() if isinstance(probe, PairedProbe) else nullcontext():
        bench.site.halt.check()
        _run(bench, probe, clear)


def _run(bench: Bench, probe: Probe, clear: Callable[[], bool]) -> None:
    match probe:
        case CommandProbe():
            # What is built is needed by both arms, whatever is measured later.
            for arm in ARMS if probe.kind == "build" else bench.arms:
                _clear_reports(bench, probe, arm)
                _run_command(bench, probe, arm, bench.expand(probe.filled))
        case CallgrindProbe():
            _count_instructions(bench, probe)
        case OutputsProbe():
            _compare_outputs(bench, probe)
        case SlicesProbe():
            _time_slices(bench, probe, clear)
        case LoadProbe():
            _offer_load(bench, probe, clear)
        case LogprobsProbe():
            _score_texts(bench, probe)
        case EventsProbe():
            pass  # what it reads is left behind by the load probe that it watches


def _run_command(bench: Bench, probe: CommandProbe | CallgrindProbe, arm: ArmName, command: tuple[str, ...]) -> None:
    step = Step(name=probe.name, command=command, timeout_s=probe.timeout_s)
    with bench.sandboxed():
        result = bench.sandbox(arm).exec(command, timeout_s=probe.timeout_s)
    bench.steps.append(StepResult(step=step, result=result, arm=arm, stage=bench.stage.name))
    if isinstance(probe, CommandProbe):
        _take_reports(bench, probe, arm)
    # What only informs ends no experiment, even where the baseline fails it.
    needed = arm == "baseline" and not probe.waits
    decides = probe.gate or probe.kind == "build" or isinstance(probe, CallgrindProbe) or needed
    if not result.ok and decides:
        bench.fail(arm, f"{probe.name}: {result.describe()}")


def _clear_reports(bench: Bench, probe: CommandProbe, arm: ArmName) -> None:
    """Remove what lies in the reports' places: an earlier command's, or the tree's, would pass for this one's."""
    if probe.reports:
        with bench.sandboxed():
            bench.sandbox(arm).exec(("rm", "-f", "--", *(r.path for r in probe.reports)))


def _take_reports(bench: Bench, probe: CommandProbe, arm: ArmName) -> None:
    """Copy the declared files into the run. One that is not there, no regular file or too large is listed as lost."""
    for n, report in enumerate(probe.reports):
        name = bench.file(probe, f"{arm}-{n}-{PurePosixPath(report.path).name}")
        lost = ""
        try:
            (bench.run_directory / name).write_bytes(bench.sandbox(arm).read_file(report.path, report.limit_bytes))
        except FileNotFoundError as error:
            lost = f"no report {report.path}: {error}"
        bench.artefacts.append(
            Artefact(path=name, format=report.format, probe=probe.name, arm=arm, stage=bench.stage.name,
                     case=bench.case, lost=lost)
        )  # fmt: skip


def _count_instructions(bench: Bench, probe: CallgrindProbe) -> None:
    out = f"/scratch/{probe.name}.callgrind"
    toggle = (f"--toggle-collect={probe.toggle}",) if probe.toggle else ()
    valgrind = ("valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", *toggle)
    for arm in bench.arms:
        _run_command(bench, probe, arm, (*valgrind, *bench.expand(probe.command)))
        name = bench.file(probe, f"{arm}.callgrind")
        (bench.run_directory / name).write_bytes(bench.sandbox(arm).read_file(out))
        bench.keep(name, "callgrind", probe, arm)


def _compare_outputs(bench: Bench, probe: OutputsProbe) -> None:
    """The same requests to the oracle and to both arms; the answers are compared elsewhere, by reading the file.
    The oracle's answers never enter a candidate's sandbox."""
    name = bench.file(probe, "jsonl")
    requests = [(case, bench.rng.getrandbits(31), {**case, "op": "outputs"}) for case in probe.cases]
    numbers = [bench.rng.getrandbits(31) for _ in requests]

    def ask(worker: WorkerArm) -> list[dict[str, Any]]:
        asked = zip(numbers, requests, strict=True)
        return [worker.slice(number, seed, params) for number, (_, seed, params) in asked]

    with ExitStack() as stack, bench.sandboxed():
        with bench.failing("baseline", probe):
            oracle = WorkerArm("baseline", bench.sandbox("oracle"), bench.expand(probe.oracle), probe.timeout_s)
            stack.callback(oracle.close)
            truth = [answer["outputs"] for answer in ask(oracle)]
        for arm in bench.arms:
            with bench.failing(arm, probe):
                worker = WorkerArm(arm, bench.sandbox(arm), bench.expand(probe.worker), probe.timeout_s)
                stack.callback(worker.close)
                answers = ask(worker)
            lines = [
                {"case": case, "seed": seed, "arm": arm, "tolerance": probe.tolerance,
                 "outputs": answer.get("outputs"), "truth": expected}
                for (case, seed, _), answer, expected in zip(requests, answers, truth, strict=True)
            ]  # fmt: skip
            bench.append(name, lines)
    bench.keep(name, "outputs", probe)


def _plan(bench: Bench, probe: PairedProbe) -> Schedule:
    """The probe's schedule within the stage's number of pairs and the time left."""
    plan = schedule(bench.site.spec, probe, host.measuring_cpus())
    if bench.stage.pairs is not None:
        plan = plan.model_copy(update={"looks": (bench.stage.pairs,), "budget_s": math.inf})
    if (left := bench.seconds_left()) is not None:
        plan = plan.model_copy(update={"budget_s": min(plan.budget_s, left)})
    return plan


def _time_slices(bench: Bench, probe: SlicesProbe, clear: Callable[[], bool]) -> None:
    plan = _plan(bench, probe)
    command = bench.expand(probe.worker)

    def open_arm(arm: ArmName, pair: int) -> Arm:
        return WorkerArm(arm, bench.sandbox(arm, plan.cpus), command, probe.slice_timeout_s)

    with bench.sandboxed(), bench.failing("baseline", probe):
        arm = open_arm("baseline", -1)
        try:
            repeat = calibrate_repeat(arm, probe.params, probe.slice_target_s)
        finally:
            arm.close()
    params = {**probe.params, "repeat": repeat}
    _measure(bench, probe, plan, open_arm, params, clear, {"check_tolerance": probe.check_tolerance, "repeat": repeat})


def _offer_load(bench: Bench, probe: LoadProbe, clear: Callable[[], bool]) -> None:
    params = {
        "streams": probe.streams, "output_tokens": probe.output_tokens, "timeout_s": probe.slice_timeout_s,
        "ttft_slo_ms": probe.ttft_slo_ms, "tpot_slo_ms": probe.tpot_slo_ms,
    }  # fmt: skip
    _measure(bench, probe, _plan(bench, probe), open_servers(bench, probe), params, clear, {})


def _measure(
    bench: Bench,
    probe: PairedProbe,
    plan: Schedule,
    open_arm: OpenArm,
    params: Mapping[str, Any],
    clear: Callable[[], bool],
    facts: Mapping[str, Any],
) -> None:
    """Pairs into a file of the run, line by line as they come; `facts` go into every line."""
    name = bench.file(probe, "jsonl")
    bench.keep(name, "slices" if isinstance(probe, SlicesProbe) else "load", probe)
    started, asking_s = time.monotonic(), 0.0
    # What an investigation measures in turn is the parent twice: one arm, each process a unit of its own.
    alone = {"arm": "candidate", "paired": False, "case": bench.case} if bench.stage.investigates else {}

    def timed_clear() -> bool:  # looking at the data is not sandboxed work
        nonlocal asking_s
        began = time.monotonic()
        answer = clear()
        asking_s += time.monotonic() - began
        return answer

    with (bench.run_directory / name).open("a", encoding="utf-8") as file:

        def write(line: dict[str, Any]) -> None:
            file.write(json.dumps({**line, **facts, **alone, "probe": probe.name, "stage": bench.stage.name}) + "\n")
            if line["type"] == "pair":
                file.flush()

        try:
            measure_pairs(open_arm, plan, params, bench.rng, write, timed_clear)
        except ArmFailed as failed:
            bench.failed(failed.arm, probe, failed.failure)
        finally:
            bench.sandbox_s += time.monotonic() - started - asking_s


def _score_texts(bench: Bench, probe: LogprobsProbe) -> None:
    """Score the fixed texts. The original's scores come from the campaign's baseline run, where it was scored
    twice; later only the candidate is."""
    name = bench.file(probe, "jsonl")
    reference = bench.site.parity_reference
    texts = json.loads((bench.root / "baseline" / probe.texts).read_text(encoding="utf-8"))
    if reference is not None:
        scored = [json.loads(line) for line in reference.read_text(encoding="utf-8").splitlines()]
        bench.append(name, [{**line, "arm": "baseline"} for line in scored])
    open_server = open_servers(bench, probe)
    for arm in ARMS if reference is None else ARMS[1:]:
        with bench.sandboxed(), bench.failing(arm, probe):
            server = open_server(arm, -1)
            try:
                found = scores(server, texts, counter(bench, probe), probe)
            finally:
                server.close()
        bench.append(name, [{"arm": arm, "margin": probe.margin, "scores": [s.model_dump(mode="json") for s in found]}])
    bench.keep(name, "logprobs", probe)
