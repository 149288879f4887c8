"""The target's servers as arms of a comparison: started in a sandbox, watched, and asked for scores."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from infra_agent.bench import Bench
from infra_agent.target import EventsProbe, LoadProbe, LogprobsProbe
from sandboxes.load import Traffic
from sandboxes.logprobs import ScoreParams, ScoringFailed, TextScore, score
from sandboxes.results import ArmName, Ending, ExecResult
from sandboxes.sandbox import ProcessFailed
from sandboxes.server import ServerArm
from sandboxes.tokens import TokenCounter


def open_servers(bench: Bench, probe: LoadProbe | LogprobsProbe) -> Callable[[ArmName, int], ServerArm | WatchedServer]:
    """How a fresh server of an arm is opened for a pair. The engine's log of the whole probe is kept for each
    arm; where an events probe watches, the first pair's counters are, too: one pair tells what the engine did."""
    spec = bench.site.spec
    server = spec.server
    assert server is not None  # target.toml is refused without it
    traffic = Traffic.load(bench.root / "baseline" / probe.traffic) if isinstance(probe, LoadProbe) else None
    tokens = counter(bench, probe)
    watcher = next((p for p in spec.probes if isinstance(p, EventsProbe) and p.during == probe.name), None)

    def open_server(arm: ArmName, pair: int) -> ServerArm | WatchedServer:
        log = bench.run_directory / bench.file(probe, f"{arm}.log")
        if not log.exists():
            bench.keep(log.name, "engine_log", watcher or probe, arm)
        sandbox = bench.sandbox(arm)
        (sandbox.spec.scratch / server.socket).unlink(missing_ok=True)  # left by the pair before
        opened = ServerArm.open(
            sandbox,
            bench.expand(server.command),
            name=arm,
            socket_name=server.socket,
            prompts=traffic.prompts if traffic else (),
            counter=tokens,
            log=log,
            ready_path=server.ready_path,
            ready_timeout_s=server.ready_timeout_s,
            template_tokens=traffic.template_tokens if traffic else 0,
        )
        metrics = bench.run_directory / bench.file(watcher or probe, f"{arm}.prom")
        if watcher is not None and pair == 0 and all(a.path != metrics.name for a in bench.artefacts):
            bench.keep(metrics.name, "prometheus", watcher, arm)
            return WatchedServer(opened, metrics)
        return opened

    return open_server


class WatchedServer:
    """A server whose counters are read when it is ready and again before it ends."""

    def __init__(self, arm: ServerArm, file: Path) -> None:
        self.name: ArmName = arm.name
        self.socket = arm.socket
        self._arm = arm
        self._file = file
        self._before = arm.scrape()

    def slice(self, number: int, seed: int, params: Mapping[str, object]) -> dict[str, object]:
        """As ServerArm.slice."""
        return self._arm.slice(number, seed, params)

    def pids(self) -> list[int]:
        """As ServerArm.pids."""
        return self._arm.pids()

    def close(self) -> ExecResult:
        """Read the counters once more if the server still lives, then end it."""
        if self._arm.ended() is None:
            try:
                scraped = {"before": self._before, "after": self._arm.scrape()}
            except ProcessFailed as failure:
                return failure.result  # it died just now; without a second scrape there is no file
            self._file.write_text(json.dumps(scraped), encoding="utf-8")
        return self._arm.close()


def counter(bench: Bench, probe: LoadProbe | LogprobsProbe) -> TokenCounter:
    """Counts tokens on our side, with the vocabulary of the probe's GGUF."""
    return TokenCounter.from_gguf(Path(bench.expand((probe.tokenizer,), inside=False)[0]))


def scores(
    server: ServerArm | WatchedServer, texts: Mapping[str, str], tokens: TokenCounter, probe: LogprobsProbe
) -> list[TextScore]:
    """Teacher-forced scores of the texts. Raises ProcessFailed when the server does not give them in time."""
    try:
        return score(server.socket, texts, tokens, ScoreParams(timeout_s=probe.timeout_s))
    except ScoringFailed as error:
        result = server.close()
        if result.ending is Ending.STOPPED:
            result = result.model_copy(update={"ending": Ending.TIMEOUT})
        raise ProcessFailed(result, str(error)) from error
