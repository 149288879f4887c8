"""What the readers of serving benchmarks share: the names and definitions of `vllm bench serve`, whatever the tool.

A run is one unit however many requests it had; a request is a block inside it, by its place in the run. Only
requests that succeeded have latencies, so a faster median beside more failures is no gain: failures are events.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from feedback.observations import Measurement, RuntimeEvent, Scalar, Source
from feedback.readers import Unreadable
from feedback.readers.documents import shown
from sandboxes.results import ArmName

MAX_REQUESTS = 100_000
"""Requests of one run that are kept one by one."""
MAX_RUNS = 1000


class Request(NamedTuple):
    """One request that succeeded; in seconds, None where it isn't known."""

    place: int
    """Its number in the run."""
    ttft_s: float | None
    e2el_s: float | None
    tpot_s: float | None = None
    """Time per output token after the first one."""
    max_itl_s: float | None = None
    """The longest gap between two tokens."""


@dataclass
class Runs:
    """Collects the observations of one file."""

    path: Path
    probe: str
    stage: str
    arm: ArmName
    found: list[Measurement | RuntimeEvent] = field(default_factory=list)
    _seen: Counter[str] = field(default_factory=Counter)

    def add(
        self,
        metrics: Mapping[str, float],
        requests: Sequence[Request],
        case: Mapping[str, Scalar],
        source: Source,
        warmup: bool = False,
    ) -> None:
        """One run: its metrics by name, and each request. Runs under one case are units of it.

        Raises Unreadable when the file has too many.
        """
        if self._seen.total() == MAX_RUNS:
            raise Unreadable(self.path, source.line or 0, f"more than {MAX_RUNS} runs")
        key = repr(sorted(case.items()))
        unit = self._seen[key]
        self._seen[key] += 1
        for metric, value in metrics.items():
            self._measured(metric, value, unit, 0, case, source, warmup)
        for request in requests[:MAX_REQUESTS]:
            for name in ("ttft", "tpot", "max_itl", "e2el"):
                value_s: float | None = getattr(request, f"{name}_s")
                if value_s is not None:
                    self._measured(f"{name}_ms", value_s * 1e3, unit, request.place, case, source, warmup)

    def _measured(
        self, metric: str, value: float, unit: int, block: int, case: Mapping[str, Scalar], source: Source, warmup: bool
    ) -> None:
        if math.isfinite(value) and value >= 0:
            self.found.append(
                Measurement(
                    probe=self.probe, metric=metric, value=value, arm=self.arm, stage=self.stage, pair=unit,
                    block=block, paired=False, case=dict(case), warmup=warmup,
                    source=source if source.query else source.model_copy(update={"query": metric}),
                )
            )  # fmt: skip

    def failed(self, reasons: Mapping[str, int], n_requests: int, source: Source) -> None:
        """Requests that failed, by what was said of them; nothing where none did."""
        n_failed = sum(reasons.values())
        if not n_failed:
            return
        most = max(reasons, key=lambda reason: reasons[reason])
        said = f": {shown(most, 160)}" if most else ""
        self.found.append(
            RuntimeEvent(
                probe=self.probe, source="load", name="request_failed", level="error", count=n_failed, arm=self.arm,
                message=f"{n_failed} of {n_requests} requests failed{said}", stage=self.stage, place=source,
            )
        )  # fmt: skip


def tpot_s(ttft_s: float, e2el_s: float, output_tokens: int) -> float | None:
    """Time per output token after the first one; None for a single token."""
    return (e2el_s - ttft_s) / (output_tokens - 1) if output_tokens > 1 and e2el_s >= ttft_s else None
