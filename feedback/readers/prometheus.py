"""Two scrapes of a server's /metrics as events: what it counted between them, under one name for all engines.

A file is one JSON object {"before": text, "after": text} in the Prometheus text format. Which counters of
llama.cpp, vLLM and SGLang are the same thing stands in `prometheus.toml`.
"""

from __future__ import annotations

import math
import tomllib
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Literal

from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel, ConfigDict

from feedback.observations import RuntimeEvent
from feedback.readers import Unreadable
from sandboxes.results import ArmName

MAX_FILE_BYTES = 16 << 20


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    unit: str
    names: tuple[str, ...]
    level: Literal["error", "warning", "note"] = "note"


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    counters: dict[str, _Entry]
    gauges: dict[str, _Entry]


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    before: str
    after: str


def read(path: Path, probe: str, stage: str, arm: ArmName) -> list[RuntimeEvent]:
    """Counted differences and the last state of gauges; none at all if the server died before its second
    scrape and so left no file. Raises Unreadable for a malformed file, OSError if it can't be read."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return []
    if len(data) > MAX_FILE_BYTES:
        raise Unreadable(path, 0, f"larger than {MAX_FILE_BYTES} bytes")
    try:
        scrapes = _File.model_validate_json(data)
    except ValueError as error:
        raise Unreadable(path, 1, f"not two scrapes: {error}") from error
    parsed = []
    for which, text in (("before", scrapes.before), ("after", scrapes.after)):
        try:
            parsed.append(samples(text))
        except ValueError as error:
            raise Unreadable(path, 1, f"{which} is not in the Prometheus text format: {error}") from error
    return events(parsed[0], parsed[1], probe, stage, arm)


def events(
    before: dict[str, float], after: dict[str, float], probe: str, stage: str, arm: ArmName
) -> list[RuntimeEvent]:
    """Events for the counters and gauges of the table that the second scrape has. A counter that went back
    means that the server started anew in between: it counts from zero, and an event says so."""
    found: list[RuntimeEvent] = []

    def add(name: str, level: Literal["error", "warning", "note"], count: float, message: str) -> None:
        found.append(
            RuntimeEvent(
                probe=probe,
                source="metrics",
                name=name,
                level=level,
                message=message,
                count=count,
                arm=arm,
                stage=stage,
            )
        )

    table = _table()
    restarted = False
    for name, entry in table.counters.items():
        source = next((source for source in entry.names if source in after), None)
        if source is None:
            continue
        count = after[source] - before.get(source, 0.0)
        if count < 0:
            restarted, count = True, after[source]
        if count or entry.level == "note":
            add(name, entry.level, count, f"{entry.unit} ({source})")
    for name, entry in table.gauges.items():
        source = next((source for source in entry.names if source in after), None)
        if source is not None:
            add(name, entry.level, after[source], f"{entry.unit} ({source})")
    if restarted:
        add("server_restarted", "warning", 1, "a counter went back between the scrapes")
    return found


def samples(text: str) -> dict[str, float]:
    """Samples by name, summed over their label sets; values that are not finite are left out. Raises
    ValueError for text that is not in the Prometheus format."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if math.isfinite(sample.value):
                found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


@lru_cache(maxsize=1)
def _table() -> _Table:
    text = files(__package__).joinpath("prometheus.toml").read_text(encoding="utf-8")
    return _Table.model_validate(tomllib.loads(text))
