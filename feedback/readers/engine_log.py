"""The log of an inference server as events: llama.cpp, vLLM 0.6 to 0.32, SGLang 0.4 to 0.5.

Which engine it is shows in how its lines begin. What is looked for stands in `engine_log.toml`; how a table is
read, and what an untrusted log can't do, in `feedback.readers.patterns`. Formats: the engines' own log calls
(llama.cpp `common/log.cpp` and `tools/server`, vLLM `v1/metrics/loggers.py`, SGLang
`managers/scheduler_components/metrics_reporter.py`).
"""

from __future__ import annotations

import math
import re
from pathlib import Path

from feedback.observations import RuntimeEvent, Source
from feedback.readers import patterns
from feedback.readers.patterns import MAX_MESSAGE, Event, Patterns, Said
from sandboxes.results import ArmName

TABLE = "engine_log"
MAX_SAMPLES = 512
"""Of a gauge; when there are more, every second one is dropped."""
MAX_KINDS = 64
"""Of one event, told apart by what it is about."""


def fits(path: Path, head: bytes) -> bool:
    """Whether a line at the beginning looks like one of the engines'."""
    return bool(patterns.engine_in(TABLE, head))


def read(path: Path, probe: str, stage: str, arm: ArmName) -> list[RuntimeEvent]:
    """One event a kind, counted over the file, with its first line's number; samples of gauges; settings.

    What compiles is `NAME` after the first request and `NAME_warmup` before it. `at_s` counts from the first time
    stamp. Raises OSError if the file can't be read; whatever it holds is readable.
    """
    return read_table(path, TABLE, "engine_log", (probe, stage, arm))


def classify(line: str) -> tuple[Event, str] | None:
    """The event that a line stands for, and the line without its prefix; None for any other line."""
    text = " ".join(patterns.clean(line).split())
    known = patterns.patterns(TABLE, patterns.engine_of(TABLE, text))
    said = known.take_apart(text)
    event = known.classify(said.text, said.level)
    return (event, said.text[:MAX_MESSAGE]) if event else None


def read_table(path: Path, name: str, source: str, where: tuple[str, str, ArmName]) -> list[RuntimeEvent]:
    """A log through the table of that name; `where` is probe, stage and arm. Raises OSError."""
    tally = _Tally(name)
    for number, text in patterns.lines(path):
        tally.add(number, text)
    return tally.events(path, source, where)


class _Seen:
    """What is kept of a kind of event."""

    def __init__(self, event: Event, said: Said, line: int) -> None:
        self.event, self.said, self.line = event, said, line
        self.count = 0.0


class _Tally:
    """What a log said so far."""

    def __init__(self, table: str) -> None:
        self.table = table
        self.known: Patterns = patterns.patterns(table)
        self.undecided = bool(patterns.table(table).engine)
        self.start_s: float | None = None
        self.serving = False
        self.seen: dict[tuple[str, str], _Seen] = {}
        self.samples: dict[str, _Samples] = {}
        self.sums: dict[str, tuple[float, int]] = {}
        self.settings: dict[str, tuple[str, int]] = {}

    def add(self, line: int, text: str) -> None:
        if self.undecided and (engine := patterns.engine_of(self.table, text)):
            self.known, self.undecided = patterns.patterns(self.table, engine), False
        said = self.known.take_apart(text)
        if self.start_s is None:
            self.start_s = said.at_s
        self._phase(said.text)
        if self.known.skip.match(said.text):
            return
        if self.known.trigger.fits(said.text):
            self._stat(line, said)
            return
        for pattern, row in self.known.settings if self.known.sets.fits(said.text) else ():
            if found := pattern.search(said.text):
                self.settings[row.name] = (f"{row.knob} = {found[1]}"[:2000], line)
        if event := self.known.classify(said.text, said.level):
            self._count(event, line, said)

    def _phase(self, text: str) -> None:
        """When serving begins. An engine's own requests before it is ready belong to its warm-up."""
        if self.known.ready.fits(text):
            self.serving = False
            for name, what in [key for key, seen in self.seen.items() if seen.event.compiles]:
                if not name.endswith("_warmup"):
                    late = self.seen.pop((name, what))
                    if (early := self.seen.setdefault((f"{name}_warmup", what), late)) is not late:
                        early.count += late.count
        elif not self.serving and self.known.request.fits(text):
            self.serving = True

    def _count(self, event: Event, line: int, said: Said) -> None:
        found = re.search(event.pattern, said.text) if event.pattern else None
        what = (found.groupdict().get("what") or "") if found else ""
        name = f"{event.name}_warmup" if event.compiles and not self.serving and self.known.engines else event.name
        if (name, what) not in self.seen and sum(1 for other, _ in self.seen if other == name) >= MAX_KINDS:
            what = ""
        seen = self.seen.setdefault((name, what), _Seen(event, said, line))
        amount = re.search(event.amount, said.text) if event.amount else None
        seen.count += number(amount[1]) if amount else 1

    def _stat(self, line: int, said: Said) -> None:
        for trigger, row in self.known.stats:
            if not trigger.search(said.text):
                continue
            for name, pattern in row.gauges.items():
                if found := re.search(pattern, said.text):
                    value = number(found[1]) * row.scale.get(name, 1.0)
                    self.samples.setdefault(name, _Samples()).add((self._at(said), value, line))
            for name, pattern in row.sums.items():
                if found := re.search(pattern, said.text):
                    total, first = self.sums.get(name, (0.0, line))
                    self.sums[name] = (total + number(found[1]) * row.scale.get(name, 1.0), first)

    def _at(self, said: Said) -> float | None:
        """Seconds since the first time stamp."""
        at_s = said.at_s
        return None if at_s is None or self.start_s is None else at_s - self.start_s

    def events(self, path: Path, source: str, where: tuple[str, str, ArmName]) -> list[RuntimeEvent]:
        probe, stage, arm = where

        def made(name: str, line: int, count: float, message: str, at_s: float | None, level: str) -> RuntimeEvent:
            return RuntimeEvent.model_validate({
                "probe": probe, "source": source, "name": name, "level": level, "message": message, "count": count,
                "at_s": at_s, "arm": arm, "stage": stage, "place": Source(file=path.name, line=line),
            })  # fmt: skip

        found = []
        for (name, _), seen in self.seen.items():
            said = seen.said.text[:MAX_MESSAGE]
            message = f"{seen.event.message}: {said}" if seen.event.explain else seen.event.message
            level = "note" if name.endswith("_warmup") else seen.event.level
            found.append(made(name, seen.line, seen.count, message, self._at(seen.said), level))
        for name, samples in self.samples.items():
            found += [made(name, line, value, "", at_s, "note") for at_s, value, line in samples.kept]
        found += [made(name, line, total, "over the log", None, "note") for name, (total, line) in self.sums.items()]
        found += [made(f"setting_{name}", line, 1, said, None, "note") for name, (said, line) in self.settings.items()]
        return found


class _Samples:
    """At most MAX_SAMPLES of a gauge, evenly spread over the log."""

    def __init__(self) -> None:
        self.kept: list[tuple[float | None, float, int]] = []
        self.step = 1
        self.n = 0

    def add(self, sample: tuple[float | None, float, int]) -> None:
        if self.n % self.step == 0:
            self.kept.append(sample)
            if len(self.kept) >= MAX_SAMPLES:
                self.kept = self.kept[::2]
                self.step *= 2
        self.n += 1


def number(text: str) -> float:
    """A number as engines print it; True is 1, and what is no finite number is 0."""
    try:
        value = float(text == "True") if text in ("True", "False") else float(text.replace(",", "")[:32])
    except ValueError:
        return 0.0
    return value if math.isfinite(value) else 0.0
