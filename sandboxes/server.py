"""One arm of a comparison that is a sandboxed HTTP server, driven in bursts by the load client."""

from __future__ import annotations

import http.client
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sandboxes.load import BurstParams, burst, draw_prompts
from sandboxes.logprobs import ScoreParams, ScoringFailed, score
from sandboxes.results import ArmName, Ending, ExecResult
from sandboxes.sandbox import Process, ProcessFailed, Sandbox
from sandboxes.sockets import ask
from sandboxes.tokens import TokenCounter

POLL_S = 0.02
DYING_S = 2.0


class ServerArm:
    """A live server, reached through a Unix socket in its sandbox's scratch directory."""

    def __init__(
        self,
        name: ArmName,
        process: Process,
        socket: Path,
        prompts: Sequence[str],
        counter: TokenCounter,
        template_tokens: int = 0,
    ) -> None:
        self.name = name
        self.socket = socket
        self.ready_s = 0.0
        """How long the server took from its start until it was ready."""
        self._process = process
        self._prompts = prompts
        self._counter = counter
        self._template_tokens = template_tokens
        self._draws: Counter[int] = Counter()

    @classmethod
    def open(
        cls,
        sandbox: Sandbox,
        command: Sequence[str],
        *,
        name: ArmName,
        socket_name: str,
        prompts: Sequence[str],
        counter: TokenCounter,
        log: Path,
        ready_path: str = "/health",
        ready_timeout_s: float = 60.0,
        template_tokens: int = 0,
    ) -> ServerArm:
        """Start the server and wait until it answers `ready_path` with 200.

        Raises ProcessFailed if it ends first or isn't ready in time, SandboxError if the sandbox fails.
        """
        started = time.monotonic()
        process = sandbox.start(command, interactive=False, log=log)
        arm = cls(name, process, sandbox.spec.scratch / socket_name, prompts, counter, template_tokens)
        try:
            arm._wait_until_ready(ready_path, started + ready_timeout_s)
        except BaseException:
            process.stop()
            raise
        arm.ready_s = time.monotonic() - started
        return arm

    def slice(self, number: int, seed: int, params: Mapping[str, Any]) -> dict[str, Any]:
        """One burst with the prompts of `seed`, as a JSON-able record (see `load.Burst`).

        `params` are those of `load.BurstParams`. Each further slice of one seed has other prompts, the same
        ones in every arm. Raises ProcessFailed if the server died, or if the burst reached its time
        limit: then it is stopped. Raises pydantic.ValidationError for wrong parameters.
        """
        checked = BurstParams.model_validate(dict(params))
        prompts = draw_prompts(self._prompts, checked.streams, seed, self._draws[seed])
        self._draws[seed] += 1
        record = burst(self.socket, prompts, checked, self._counter, self._template_tokens)
        failures = {request.failure for request in record.requests}
        if "timeout" in failures:
            raise self._overdue(f"slice {number}: not answered within {checked.timeout_s:g} s")
        if "broken" in failures:
            self._raise_if_ended(f"slice {number}", DYING_S)
        self._raise_if_ended(f"slice {number}")
        return record.model_dump(mode="json")

    def score(self, texts: Mapping[str, str], params: ScoreParams | None = None) -> dict[str, Any]:
        """Log-probabilities of fixed texts as one JSON-able line {"arm", "scores"} of a parity file.

        Raises ProcessFailed if the server died or did not answer; it is stopped then.
        """
        try:
            scores = score(self.socket, texts, self._counter, params or ScoreParams())
        except ScoringFailed as error:
            self._raise_if_ended("scoring texts", DYING_S)
            raise self._overdue(f"scoring texts: {error}") from error
        return {"arm": self.name, "scores": [text.model_dump(mode="json") for text in scores]}

    def pids(self) -> list[int]:
        """Host pids of the server's process tree."""
        return self._process.pids()

    def scrape(self) -> str:
        """The text of /metrics. Raises ProcessFailed if the server has died or does not give it."""
        try:
            status, data = ask(self.socket, "/metrics")
        except (OSError, http.client.HTTPException) as error:
            self._raise_if_ended("reading /metrics", DYING_S)
            raise ProcessFailed(self._process.stop(), f"reading /metrics: {error}") from error
        if status != http.client.OK:
            raise ProcessFailed(self._process.stop(), f"reading /metrics: HTTP {status}")
        return data.decode("utf-8", "replace")

    def ended(self) -> ExecResult | None:
        """The result if the server has ended, else None."""
        return self._process.ended()

    def close(self) -> ExecResult:
        """End the server. Safe to call twice."""
        return self._process.stop()

    def _wait_until_ready(self, ready_path: str, deadline: float) -> None:
        while True:
            self._raise_if_ended("starting the server")
            try:
                status, _ = ask(self.socket, ready_path, timeout_s=2.0)
            except (OSError, http.client.HTTPException):
                status = 0  # not listening yet
            if status == http.client.OK:
                return
            if time.monotonic() > deadline:
                raise self._overdue("starting the server: not ready in time")
            time.sleep(POLL_S)

    def _raise_if_ended(self, during: str, patience_s: float = 0.0) -> None:
        """Raise if the server has ended, or ends within a moment: a cut connection comes before the end."""
        deadline = time.monotonic() + patience_s
        while (result := self._process.ended()) is None and time.monotonic() < deadline:
            time.sleep(POLL_S)
        if result is not None:
            raise ProcessFailed(result, during)

    def _overdue(self, during: str) -> ProcessFailed:
        """Stop the server for its silence; if it had ended by itself or by a limit, that stands."""
        result = self._process.stop()
        if result.ending is Ending.STOPPED:
            result = result.model_copy(update={"ending": Ending.TIMEOUT})
        return ProcessFailed(result, during)
