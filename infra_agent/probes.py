"""Runs a target's probes in sandboxes and leaves what they said in a run directory. Judges nothing.

A Bench holds both arms of one stage of one experiment: fresh trees, fresh sandboxes, fresh seeds.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from infra_agent import host, packages
from infra_agent.errors import InfraAgentError
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
    TargetSpec,
    schedule,
)
from sandboxes.load import Traffic
from sandboxes.logprobs import ScoreParams, ScoringFailed, TextScore, score
from sandboxes.results import ArmName, Artefact, Ending, ExecResult, Record, Run, Step, StepResult
from sandboxes.runner import Arm, ArmFailed, PairResult, calibrate_repeat, measure_pairs
from sandboxes.sandbox import ProcessFailed, Sandbox, SandboxSpec, open_sandbox
from sandboxes.server import ServerArm
from sandboxes.tokens import TokenCounter
from sandboxes.worker import WorkerArm
from sandboxes.workspace import Repository

ARMS: tuple[ArmName, ...] = ("baseline", "candidate")


class BaselineFailed(InfraAgentError):
    """The baseline itself fails a probe, so no change can be measured against it."""

    exit_code = 6


class CandidateFailed(Exception):
    """The candidate failed a probe; the run holds what happened."""


class Site(NamedTuple):
    """What every probe of a campaign needs to know."""

    spec: TargetSpec
    repository: Repository
    package_directories: Mapping[str, Path]
    parity_reference: Path | None = None
    """Teacher-forced scores of the campaign's original, measured twice in its baseline run."""
    sandbox_kind: str = "bubblewrap"


class Stage(Record):
    """Which measurement of an experiment this is, and of which commits."""

    name: str
    baseline: str
    candidate: str
    seed: int
    pairs: int | None = None
    """Measure exactly this many pairs; None lets the probe's looks decide."""


class Bench:
    """Both arms of one stage, open from the first probe to the last. Use as a context manager."""

    def __init__(
        self,
        site: Site,
        stage: Stage,
        run_directory: Path,
        seconds_left: Callable[[], float | None] = lambda: None,
    ) -> None:
        self.site = site
        self._seconds_left = seconds_left
        self.stage = stage
        self.run_directory = run_directory
        self.steps: list[StepResult] = []
        self.artefacts: list[Artefact] = []
        self.sandbox_s = 0.0
        """Wall time spent waiting for sandboxed work."""
        self._rng = random.Random(stage.seed)
        self._stack = ExitStack()
        self._sandboxes: dict[tuple[str, tuple[int, ...]], Sandbox] = {}

    def __enter__(self) -> Bench:
        self.run_directory.mkdir(parents=True, exist_ok=True)
        # Unix socket paths end at about 100 bytes, so this must not lie deep in the home.
        self._root = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="ia-")))
        self._root.chmod(0o755)
        for arm, commit in (("baseline", self.stage.baseline), ("candidate", self.stage.candidate)):
            self.site.repository.checkout(commit, self._root / arm)
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def record(self) -> Run:
        """Everything so far as a Run."""
        return Run(directory=self.run_directory, steps=tuple(self.steps), artefacts=tuple(self.artefacts))

    def run(self, probe: Probe, clear: Callable[[], bool] = lambda: True) -> None:
        """Run one probe on both arms; `clear` is asked at each look of a paired one.

        Raises CandidateFailed when the candidate's arm failed, BaselineFailed when the baseline's did.
        """
        match probe:
            case CommandProbe():
                self._command(probe)
            case OutputsProbe():
                self._outputs(probe)
            case SlicesProbe() | LoadProbe():
                self._pairs(probe, clear)
            case CallgrindProbe():
                self._callgrind(probe)
            case LogprobsProbe():
                self._logprobs(probe)
            case EventsProbe():
                pass  # what it reads is left behind by the load probe that it watches

    def sandbox(self, owner: str, cpus: tuple[int, ...] = ()) -> Sandbox:
        """The sandbox of an arm, or of the oracle (a pristine copy of the base that no candidate touches)."""
        key = (owner, cpus)
        if key not in self._sandboxes:
            tree = self._root / owner
            if not tree.exists():
                self.site.repository.checkout(self.stage.baseline, tree)
            scratch = self._root / f"{owner}-{len(self._sandboxes)}"
            scratch.mkdir()
            spec = self.site.spec
            path = ":".join(f"{packages.INSIDE}/{name}" for name in self.site.package_directories)
            sandbox = open_sandbox(
                self.site.sandbox_kind,
                SandboxSpec(
                    tree=tree,
                    scratch=scratch,
                    mounts=packages.mounts(dict(self.site.package_directories)),
                    env={**spec.env, **({"PYTHONPATH": path} if path else {}), "PYTHONDONTWRITEBYTECODE": "1"},
                    limits=spec.limits,
                    cpus=cpus,
                ),
            )
            self._stack.callback(sandbox.close)
            self._sandboxes[key] = sandbox
        return self._sandboxes[key]

    def _expand(self, command: Sequence[str], inside: bool = True) -> tuple[str, ...]:
        """Fill in placeholders: {python}, {package:NAME}, {socket}; as seen inside the sandbox or on the host."""
        values = {"{python}": sys.executable}
        if self.site.spec.server is not None:
            values["{socket}"] = f"/scratch/{self.site.spec.server.socket}"
        for name, directory in self.site.package_directories.items():
            values[f"{{package:{name}}}"] = f"{packages.INSIDE}/{name}" if inside else str(directory)
        expanded = []
        for part in command:
            for placeholder, value in values.items():
                part = part.replace(placeholder, value)
            expanded.append(part)
        return tuple(expanded)

    def _command(self, probe: CommandProbe) -> None:
        command = self._expand(probe.command)
        step = Step(name=probe.name, command=command, timeout_s=probe.timeout_s)
        for arm in ARMS:
            with self._sandboxed():
                result = self.sandbox(arm).exec(command, timeout_s=probe.timeout_s)
            self.steps.append(StepResult(step=step, result=result, arm=arm, stage=self.stage.name))
            if not result.ok:
                self._fail(arm, f"{probe.name}: {result.describe()}")

    def _callgrind(self, probe: CallgrindProbe) -> None:
        for arm in ARMS:
            out = f"/scratch/{probe.name}.callgrind"
            options = [f"--callgrind-out-file={out}", *([f"--toggle-collect={probe.toggle}"] if probe.toggle else [])]
            command = ("valgrind", "--tool=callgrind", *options, *self._expand(probe.command))
            step = Step(name=probe.name, command=command, timeout_s=probe.timeout_s)
            with self._sandboxed():
                result = self.sandbox(arm).exec(command, timeout_s=probe.timeout_s)
            self.steps.append(StepResult(step=step, result=result, arm=arm, stage=self.stage.name))
            if not result.ok:
                self._fail(arm, f"{probe.name}: {result.describe()}")
            name = self._file(probe, f"{arm}.callgrind")
            (self.run_directory / name).write_bytes(self.sandbox(arm).read_file(out))
            self._keep(name, "callgrind", probe, arm)

    def _outputs(self, probe: OutputsProbe) -> None:
        """The same requests to the oracle and to both arms; the answers are compared elsewhere."""
        name = self._file(probe, "jsonl")
        seeds = {json.dumps(case): self._rng.getrandbits(31) for case in probe.cases}
        requests = [(case, seeds[json.dumps(case)], {**case, "op": "outputs"}) for case in probe.cases]
        with ExitStack() as stack, self._sandboxed():
            oracle = WorkerArm("baseline", self.sandbox("oracle"), self._expand(probe.oracle), probe.timeout_s)
            stack.callback(oracle.close)
            truth = [oracle.slice(n, seed, params)["outputs"] for n, (_, seed, params) in enumerate(requests)]
            for arm in ARMS:
                with self._failing(arm, probe):
                    worker = WorkerArm(arm, self.sandbox(arm), self._expand(probe.worker), probe.timeout_s)
                    stack.callback(worker.close)
                    answers = [worker.slice(n, seed, params) for n, (_, seed, params) in enumerate(requests)]
                lines = [
                    {"case": case, "seed": seed, "arm": arm, "tolerance": probe.tolerance,
                     "outputs": answer.get("outputs"), "truth": expected}
                    for (case, seed, _), answer, expected in zip(requests, answers, truth, strict=True)
                ]  # fmt: skip
                self._append(name, lines)
        self._keep(name, "outputs", probe)

    def _pairs(self, probe: PairedProbe, clear: Callable[[], bool]) -> list[PairResult]:
        plan = schedule(self.site.spec, probe, host.measuring_cpus())
        if self.stage.pairs is not None:
            plan = plan.model_copy(update={"looks": (self.stage.pairs,), "budget_s": math.inf})
        if (left := self._seconds_left()) is not None:
            plan = plan.model_copy(update={"budget_s": min(plan.budget_s, left)})
        name = self._file(probe, "jsonl")
        self._keep(name, "slices" if isinstance(probe, SlicesProbe) else "load", probe)
        params: dict[str, Any]
        open_arm: Callable[[ArmName, int], Arm]
        if isinstance(probe, SlicesProbe):
            command = self._expand(probe.worker)
            params = dict(probe.params)

            def open_arm(arm: ArmName, pair: int) -> Arm:
                return WorkerArm(arm, self.sandbox(arm, plan.cpus), command, probe.slice_timeout_s)

            params["repeat"] = self._calibrated(probe, open_arm, params)
        else:
            opener = self._server_opener(probe)
            params = {
                "streams": probe.streams, "output_tokens": probe.output_tokens,
                "timeout_s": probe.slice_timeout_s,
                "ttft_slo_ms": probe.ttft_slo_ms, "tpot_slo_ms": probe.tpot_slo_ms,
            }  # fmt: skip
            open_arm = opener
        (self.run_directory / name).touch()
        asked = _Clear(clear)
        started = time.monotonic()
        try:
            with (self.run_directory / name).open("a", encoding="utf-8") as file:

                def write(line: dict[str, Any]) -> None:
                    file.write(json.dumps({**line, "probe": probe.name, "stage": self.stage.name}) + "\n")
                    if line["type"] == "pair":
                        file.flush()

                return measure_pairs(open_arm, plan, params, self._rng, write, asked)
        except ArmFailed as failed:
            self._failed(failed.arm, probe, failed.failure)
        finally:
            self.sandbox_s += time.monotonic() - started - asked.spent_s
        return []

    def _calibrated(self, probe: SlicesProbe, open_arm: Callable[[ArmName, int], Arm], params: dict[str, Any]) -> int:
        with self._sandboxed(), self._failing("baseline", probe):
            arm = open_arm("baseline", -1)
            try:
                return calibrate_repeat(arm, params, probe.slice_target_s)
            finally:
                arm.close()

    def _server_opener(self, probe: LoadProbe | LogprobsProbe, prefix: str = "") -> Callable[[ArmName, int], ServerArm]:
        spec = self.site.spec
        server = spec.server
        assert server is not None  # target.toml is refused without it
        traffic = Traffic.load(self._root / "baseline" / probe.traffic) if isinstance(probe, LoadProbe) else None
        counter = self._counter(probe.tokenizer)
        watched = {p.during: p for p in spec.probes if isinstance(p, EventsProbe)}.get(probe.name)
        watching = watched or probe

        def open_server(arm: ArmName, pair: int) -> ServerArm:
            log = self._file(watching, f"{prefix}{arm}.log")
            if not (self.run_directory / log).exists():
                self._keep(log, "engine_log", watching, arm)
            sandbox = self.sandbox(arm)
            (sandbox.spec.scratch / server.socket).unlink(missing_ok=True)  # left by the pair before
            opened = ServerArm.open(
                sandbox, self._expand(server.command), name=arm, socket_name=server.socket,
                prompts=traffic.prompts if traffic else (), counter=counter, log=self.run_directory / log,
                ready_path=server.ready_path, ready_timeout_s=server.ready_timeout_s,
                template_tokens=traffic.template_tokens if traffic else 0,
            )  # fmt: skip
            if watched is not None and pair == 0:
                return _Watched(opened, self, watched)  # one pair's counters tell what the engine did
            return opened

        return open_server

    def _counter(self, tokenizer: str) -> TokenCounter:
        return TokenCounter.from_gguf(Path(self._expand((tokenizer,), inside=False)[0]))

    def _logprobs(self, probe: LogprobsProbe) -> None:
        """Score the fixed texts. The original's scores come from the campaign's baseline run, where it was
        scored twice; later only the candidate is."""
        name = self._file(probe, "jsonl")
        reference = self.site.parity_reference
        texts = json.loads((self._root / "baseline" / probe.texts).read_text(encoding="utf-8"))
        arms: tuple[ArmName, ...] = ARMS if reference is None else ("candidate",)
        if reference is not None:
            self._append(name, _as_reference(reference))
        opener = self._server_opener(probe, prefix="parity-")
        counter = self._counter(probe.tokenizer)
        for arm in arms:
            with self._sandboxed(), self._failing(arm, probe):
                server = opener(arm, -1)
                try:
                    scores = self._scores(server, texts, counter, probe)
                finally:
                    server.close()
            found = [s.model_dump(mode="json") for s in scores]
            self._append(name, [{"arm": arm, "margin": probe.margin, "scores": found}])
        self._keep(name, "logprobs", probe)

    def _scores(
        self, server: ServerArm, texts: Mapping[str, str], counter: TokenCounter, probe: LogprobsProbe
    ) -> list[TextScore]:
        try:
            return score(server.socket, texts, counter, ScoreParams(timeout_s=probe.timeout_s))
        except ScoringFailed as error:
            result = server.close()
            if result.ending is Ending.STOPPED:
                result = result.model_copy(update={"ending": Ending.TIMEOUT})
            raise ProcessFailed(result, str(error)) from error

    @contextmanager
    def _failing(self, arm: ArmName, probe: Probe) -> Iterator[None]:
        try:
            yield
        except ProcessFailed as failure:
            self._failed(arm, probe, failure)

    def _failed(self, arm: ArmName, probe: Probe, failure: ProcessFailed) -> None:
        """Record a failed process and end the stage."""
        step = Step(name=probe.name, command=failure.result.command, timeout_s=0)
        self.steps.append(
            StepResult(step=step, result=failure.result, arm=arm, stage=self.stage.name, during=failure.during)
        )
        self._fail(arm, f"{probe.name}: {failure}")

    def _fail(self, arm: ArmName, message: str) -> None:
        if arm == "candidate" and self.stage.candidate != self.stage.baseline:
            raise CandidateFailed(message)
        raise BaselineFailed(
            f"the unchanged target fails: {message}\nRun the command by hand in the target's directory and mend it; "
            f"logs are in {self.run_directory}"
        )

    @contextmanager
    def _sandboxed(self) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.sandbox_s += time.monotonic() - started

    def _file(self, probe: Probe, rest: str) -> str:
        return f"{self.stage.name}-{probe.name}-{rest}" if "." in rest else f"{self.stage.name}-{probe.name}.{rest}"

    def _append(self, name: str, lines: Sequence[Mapping[str, Any]]) -> None:
        with (self.run_directory / name).open("a", encoding="utf-8") as file:
            for line in lines:
                file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _keep(self, name: str, format: str, probe: Probe, arm: ArmName | None = None) -> None:
        self.artefacts.append(
            Artefact(path=name, format=format, probe=probe.name, arm=arm, stage=self.stage.name)
        )


def _as_reference(path: Path) -> list[dict[str, Any]]:
    """The two scorings of the original in the baseline run: the reference and its A/A repetition."""
    scored = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [{**line, "arm": "baseline"} for line in scored]


class _Clear:
    """Asks whether the answer is clear, and keeps account of the time that takes: it is not sandboxed work."""

    def __init__(self, clear: Callable[[], bool]) -> None:
        self._clear = clear
        self.spent_s = 0.0

    def __call__(self) -> bool:
        started = time.monotonic()
        try:
            return self._clear()
        finally:
            self.spent_s += time.monotonic() - started


class _Watched:
    """A server whose counters are read when it is ready and again before it ends."""

    def __init__(self, arm: ServerArm, bench: Bench, probe: EventsProbe) -> None:
        self.name: ArmName = arm.name
        self._arm = arm
        self._bench = bench
        self._file = bench._file(probe, f"{arm.name}.prom")
        self._before = arm.scrape()
        bench._keep(self._file, "prometheus", probe, arm.name)

    def slice(self, number: int, seed: int, params: Mapping[str, Any]) -> dict[str, Any]:
        return self._arm.slice(number, seed, params)

    def pids(self) -> list[int]:
        return self._arm.pids()

    def close(self) -> ExecResult:
        if self._arm.ended() is None:
            try:
                after = self._arm.scrape()
            except ProcessFailed:
                after = self._before
            text = json.dumps({"before": self._before, "after": after})
            (self._bench.run_directory / self._file).write_text(text, encoding="utf-8")
        return self._arm.close()
