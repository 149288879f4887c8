"""A server's /metrics as events: what it counted, under one name for all engines.

A file is Prometheus text (one scrape: totals since the server's start), or one JSON object {"before": text,
"after": text} (the difference counts). Which metrics of llama.cpp, vLLM and SGLang are the same thing, old names
included, stands in `prometheus.toml`.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Literal, NamedTuple

from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel, ConfigDict, ValidationError

from feedback.observations import RuntimeEvent, Source
from feedback.readers import Unreadable
from sandboxes.results import ArmName

MAX_FILE_BYTES = 16 << 20
_SCRAPE = re.compile(rb"^# (?:TYPE [\w:]+ (?:counter|gauge|histogram|summary|untyped|unknown|info)|HELP [\w:]+ )", re.M)

Level = Literal["error", "warning", "note"]


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    unit: str
    names: tuple[str, ...]
    level: Level = "note"
    scale: float = 1.0


class _Label(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    knob: str
    metric: str
    label: str


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    counters: dict[str, _Entry]
    gauges: dict[str, _Entry]
    histograms: dict[str, _Entry]
    settings: dict[str, _Label]


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    before: str
    after: str


class Scrape(NamedTuple):
    """What one scrape holds."""

    values: dict[str, float]
    """Samples by name, summed over their label sets."""
    buckets: dict[str, dict[float, float]] = {}
    """Of each histogram, the cumulative count by upper bound."""
    labels: dict[str, dict[str, str]] = {}
    """Labels of the first sample of the metrics that settings stand in."""
    lines: dict[str, int] = {}


def fits(path: Path, head: bytes) -> bool:
    """Whether it is a scrape, or a JSON object of two."""
    return bool(_SCRAPE.match(head)) or (head[:1] == b"{" and re.match(rb'\{\s*"before":\s*"(?:#|")', head) is not None)


def read(path: Path, probe: str, stage: str, arm: ArmName) -> list[RuntimeEvent]:
    """Counters (totals or differences), the last state of gauges, mean and 99th percentile of histograms; none at all
    if the server died before its second scrape and so left no file. Raises Unreadable for a malformed file, OSError
    if it can't be read."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return []
    if len(data) > MAX_FILE_BYTES:
        raise Unreadable(path, 0, f"larger than {MAX_FILE_BYTES} bytes")
    if data.lstrip()[:1] == b"#":
        before, after = Scrape({}), _parsed(path, "the scrape", data.decode("utf-8", "replace"))
    else:
        try:
            scrapes = _File.model_validate_json(data)
        except ValidationError as error:
            raise Unreadable(path, 1, f"not two scrapes: {error}") from error
        before, after = (_parsed(path, which, getattr(scrapes, which)) for which in ("before", "after"))
        after = after._replace(lines={})
    return events(before, after, probe, stage, arm, path.name)


def _parsed(path: Path, which: str, text: str) -> Scrape:
    try:
        return scrape(text)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise Unreadable(path, 1, f"{which} is not in the Prometheus text format: {error}") from error


def events(
    before: Scrape, after: Scrape, probe: str, stage: str, arm: ArmName, file: str = "metrics"
) -> list[RuntimeEvent]:
    """Events for what the table names and the second scrape has. A counter that went back means that the server
    started anew in between: it counts from zero, and an event says so."""
    found: list[RuntimeEvent] = []

    def add(name: str, level: Level, count: float, message: str, source: str) -> None:
        found.append(
            RuntimeEvent(
                probe=probe, source="metrics", name=name, level=level, message=message, count=count, arm=arm,
                stage=stage, place=Source(file=file, line=after.lines.get(source), query=source),
            )
        )  # fmt: skip

    table = _table()
    restarted = ""
    for name, entry, source in _present(table.counters, after):
        count = after.values[source] - before.values.get(source, 0.0)
        if count < 0:
            restarted, count = source, after.values[source]
        if count or entry.level == "note":
            add(name, entry.level, count * entry.scale, f"{entry.unit} ({source})", source)
    for name, entry, source in _present(table.gauges, after):
        add(name, entry.level, after.values[source] * entry.scale, f"{entry.unit} ({source})", source)
    for name, entry, source in _present(table.histograms, after, "_count"):
        if summary := _summary(before, after, source):
            n, mean, p99 = summary
            said = f"mean {entry.unit} of {n:g} ({source})"
            add(f"{name}_mean", "note", mean * entry.scale, said, f"{source}_count")
            if p99 is not None:
                add(f"{name}_p99", "note", p99 * entry.scale, f"99 % are below ({source})", f"{source}_count")
    for name, label in table.settings.items():
        if value := after.labels.get(label.metric, {}).get(label.label):
            add(f"setting_{name}", "note", 1, f"{label.knob} = {value}"[:200], label.metric)
    if restarted:
        add("server_restarted", "warning", 1, "a counter went back between the scrapes", restarted)
    return found


def _present(entries: dict[str, _Entry], after: Scrape, suffix: str = "") -> Iterator[tuple[str, _Entry, str]]:
    """The entries that a scrape has, each with the first of its names that is there."""
    for name, entry in entries.items():
        source = next((source for source in entry.names if source + suffix in after.values), None)
        if source is not None:
            yield name, entry, source


def _summary(before: Scrape, after: Scrape, source: str) -> tuple[float, float, float | None] | None:
    """Number, mean and 99th percentile (the upper bound of its bucket) between two scrapes; None without any."""
    n = after.values[f"{source}_count"] - before.values.get(f"{source}_count", 0.0)
    total = after.values.get(f"{source}_sum", 0.0) - before.values.get(f"{source}_sum", 0.0)
    if n <= 0 or total < 0:
        return None
    old = before.buckets.get(source, {})
    bounds = ((le, count - old.get(le, 0.0)) for le, count in sorted(after.buckets.get(source, {}).items()))
    p99 = next((le for le, count in bounds if count >= 0.99 * n), None)
    return n, total / n, p99 if p99 is not None and math.isfinite(p99) else None


def scrape(text: str) -> Scrape:
    """A scrape's samples; values that are not finite are left out. Raises ValueError for text that is not in the
    Prometheus format (the parser may raise its own errors beside it)."""
    found = Scrape({}, {}, {}, {})
    wanted = {label.metric for label in _table().settings.values()}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if not math.isfinite(sample.value):
                continue
            found.values[sample.name] = found.values.get(sample.name, 0.0) + sample.value
            if sample.name.endswith("_bucket") and "le" in sample.labels:
                counts = found.buckets.setdefault(sample.name.removesuffix("_bucket"), {})
                le = float(sample.labels["le"])
                counts[le] = counts.get(le, 0.0) + sample.value
            elif sample.name in wanted:
                found.labels.setdefault(sample.name, dict(sample.labels))
    for number, line in enumerate(text.split("\n"), 1):
        if line[:1] not in ("#", ""):
            found.lines.setdefault(re.split(r"[{\s]", line, maxsplit=1)[0], number)
    return found


@lru_cache(maxsize=1)
def _table() -> _Table:
    text = files(__package__).joinpath("prometheus.toml").read_text(encoding="utf-8")
    return _Table.model_validate(tomllib.loads(text))
