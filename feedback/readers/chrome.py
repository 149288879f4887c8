"""Chrome traces as intervals: what torch.profiler (Kineto), viztracer and browsers write, plain or gzipped.

Format: "Trace Event Format" (Google, 2016), its object form and its array form, which may lack the closing bracket.
Tried with torch 2.13.0, viztracer 1.1.1, and the H100, A100, MI250 and MTIA traces among HolisticTraceAnalysis's tests,
of which no interval is lost. Times are microseconds with decimals; they become
nanoseconds without loss. The file is streamed: only the columns of Spans stay in memory.
"""

from __future__ import annotations

import re
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from feedback.readers import Unreadable, compressed
from feedback.readers.chrome_events import (
    EXACT_BELOW_US,
    LATEST_US,
    NO_ARGS,
    Counter,
    Event,
    Exact,
    Rounded,
    async_key,
    floats,
    lenient,
    nanoseconds,
    numbers,
    whole_nanoseconds,
)
from feedback.readers.columns import LATEST_NS, MAX_NAMES, MAX_TRACKS, Columns, Numbering, short, text_of
from feedback.readers.json_array import Elements
from feedback.readers.pairing import Counters, Flows, Pairs
from feedback.spans import Spans, Track, TrackKind
from sandboxes.results import ArmName

CATEGORIES = {
    "Kernel": "kernel", "Memcpy": "gpu_memcpy", "Memset": "gpu_memset", "Runtime": "cuda_runtime",
    "Operator": "cpu_op", "operator": "cpu_op", "FEE": "python_function", "fee": "python_function",
}  # fmt: skip
"""Older words of torch.profiler, and viztracer's, in the words of today's torch.profiler."""
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation", "mtia_ccp_events")
FLOWS = {"ac2g", "fwdbwd"}
"""torch.profiler's arrows: `correlation` says the one, the other leads from a forward to a backward operator."""
FROM_PYTHON = {"python_function", "counter", ""}
"""Categories that are stamped by Python code."""

_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_BARE = re.compile(rb'\[\s*\{[^\x00]*?"ph"\s*:\s*"')


def fits(path: Path, head: bytes) -> bool:
    """Whether it is an object with `traceEvents` (or called `.trace.json`), or an array of objects with a phase."""
    start = compressed.start(head).removeprefix(b"\xef\xbb\xbf").lstrip()
    if start.startswith(b"{"):
        return bool(_EVENTS.search(start)) or ".trace.json" in path.name
    return bool(_BARE.match(start))


def read(path: Path, probe: str, stage: str, arm: ArmName) -> list[Spans]:
    """The trace as one Spans. Raises OSError, and Unreadable when it isn't a Chrome trace or nothing in it is."""
    trace = _Trace()
    with compressed.stream(path) as file:
        elements = Elements(file, path, "traceEvents", trace.decode, lenient)
        for batch in elements:
            trace.add(batch)
        lost = elements.lost
        if file.damage or not elements.complete:
            if not trace.n_events:
                raise Unreadable(path, 0, file.damage or "it ends before the first event")
            trace.columns.notes.append(f"the file ends inside the trace{': ' if file.damage else ''}{file.damage}")
    if lost and not trace.n_events:
        raise Unreadable(path, 0, f"none of the {lost} elements of `traceEvents` is an event")
    trace.columns.lost += lost
    return [trace.spans(path, probe, stage, arm, elements.members)]


class _Trace:
    """What is collected from the events."""

    def __init__(self) -> None:
        self.columns = Columns(categories=Numbering(MAX_NAMES, _category))
        self.n_events = 0
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(list[Rounded])
        self._exact = False
        self._counter_decoder = msgspec.json.Decoder(list[Counter])
        self._pairs, self._counters, self._flows = Pairs(self.columns), Counters(self.columns), Flows()
        self._processes: dict[Any, str] = {}
        self._labels: dict[Any, str] = {}
        self._threads: dict[tuple[Any, Any], str] = {}
        self._last_ns = -LATEST_NS

    def decode(self, text: bytes) -> list[Event]:
        """The events of an array's text. Raises msgspec.DecodeError or RecursionError."""
        batch: list[Event] = self._decoder.decode(text)
        if not self._exact and any(event.ts >= EXACT_BELOW_US for event in (*batch[::256], *batch[-1:])):
            self._decoder, self._exact = msgspec.json.Decoder(list[Exact]), True
            batch = self._decoder.decode(text)
        if b'"C"' in text:
            for counter in self._counter_decoder.decode(text):
                if counter.ph == "C":
                    self._count(counter)
        return batch

    def add(self, batch: list[Event]) -> None:
        """Take a batch of events over."""
        self.n_events += len(batch)
        complete = [event for event in batch if event.ph == "X"]
        if len(complete) < len(batch):
            for event in batch:
                if event.ph != "X" and event.cat not in FLOWS:
                    self._other(event)
            self._pairs.flush()
        if complete:
            self._complete(complete)

    def _complete(self, events: list[Event]) -> None:
        columns, n = self.columns, len(events)
        duration_us = floats(events, "dur")
        start_us = floats(events, "ts")
        usable = (duration_us >= 0) & (duration_us < EXACT_BELOW_US) & (np.abs(start_us) < LATEST_US)
        if not usable.all():
            columns.lost += int(n - usable.sum())
            events = [event for event, good in zip(events, usable.tolist(), strict=True) if good]
            duration_us, start_us, n = duration_us[usable], start_us[usable], len(events)
            if not events:
                return
        if self._exact:
            start = np.fromiter((nanoseconds(event.ts) for event in events), np.int64, n)
        else:
            start = whole_nanoseconds(start_us)
        end = start + np.rint(duration_us * 1000).astype(np.int64)
        args = [event.args or NO_ARGS for event in events]
        columns.add(
            start,
            end,
            np.fromiter(map(columns.names.__getitem__, map(attrgetter("name"), events)), np.int32, n),
            np.fromiter(map(columns.categories.__getitem__, map(attrgetter("cat"), events)), np.int32, n),
            np.fromiter(map(columns.tracks.__getitem__, map(attrgetter("pid", "tid"), events)), np.int32, n),
            numbers(args, "correlation"),
            **{
                key: np.where(values < 0, np.nan, values)
                for key, values in (("external_id", numbers(args, "external")), ("bytes", numbers(args, "bytes")))
                if (values >= 0).any()
            },
        )
        self._last_ns = max(self._last_ns, int(end.max()))

    def _other(self, event: Event) -> None:
        """Everything but a complete interval."""
        phase = event.ph
        if phase == "M":
            self._metadata(event)
            return
        if phase in "CPNODVvc(){}R" and phase:
            return  # counters are read with their values; samples, objects and dumps are no intervals
        at = nanoseconds(event.ts)
        if not -LATEST_NS < at < LATEST_NS or phase not in {*"BEbeSTFpniIstf"}:
            self.columns.lost += 1
            return
        self._last_ns = max(self._last_ns, at)
        where = (event.pid, event.tid)
        if phase == "B":
            self._pairs.begin(where, at, event.name, event.cat, self.columns.tracks[where])
        elif phase == "E":
            self._pairs.end(where, at)
        elif phase in "bS":
            track = self.columns.tracks["async", event.pid, event.cat]
            self._pairs.begin(async_key(event), at, event.name, event.cat, track)
        elif phase in "eF":
            self._pairs.end(async_key(event), at)
        elif phase in "stf":
            self._flows.point(short((event.cat, event.id, event.name)), at, self.columns.tracks[where])
        else:
            track = self.columns.tracks[where] if event.tid not in (None, "") else -1
            self.columns.instant(at, event.name, event.cat, track)

    def _metadata(self, event: Event) -> None:
        args, pid = event.args or NO_ARGS, short(event.pid)
        if event.name == "thread_name" and len(self._threads) < MAX_TRACKS:
            self._threads[pid, short(event.tid)] = text_of(args.name)
        elif event.name == "process_name" and len(self._processes) < MAX_TRACKS:
            self._processes[pid] = text_of(args.name)
        elif event.name == "process_labels" and len(self._labels) < MAX_TRACKS:
            self._labels[pid] = text_of(args.labels)

    def _count(self, event: Counter) -> None:
        at = nanoseconds(event.ts)
        for name, value in event.args.items() if isinstance(event.args, dict) else ():
            if isinstance(value, int | float) and abs(value) < 1e300 and -LATEST_NS < at < LATEST_NS:
                series = f"{event.name} {name}" if event.id is None else f"{event.name} {event.id} {name}"
                self._counters.value(("counter", event.pid, text_of(series)), at, series, float(value))

    def spans(self, path: Path, probe: str, stage: str, arm: ArmName, members: dict[str, Any]) -> Spans:
        """All of it, sorted."""
        self._pairs.finish(self._last_ns)
        self._counters.finish()
        self.columns.lost += self._flows.lost
        clock, shift_ns = _clock(members)
        viztracer = members.get("viztracer_metadata")
        if isinstance(viztracer, dict) and viztracer.get("overflow"):
            self.columns.notes.append("the tracer's buffer overflowed: the oldest events are gone")
        categories = set(self.columns.categories.distinct)
        spans = self.columns.spans(
            path, probe, stage, arm, clock=clock, shift_ns=shift_ns,
            has_native_times=viztracer is None and bool(categories - FROM_PYTHON),
        )  # fmt: skip
        self._flows.join(spans)
        return replace(spans, tracks=self._tracks(spans))

    def _tracks(self, spans: Spans) -> tuple[Track, ...]:
        devices: set[int] = set()
        for number, category in enumerate(spans.categories):
            if category in ON_DEVICE:
                devices.update(np.unique(spans.track[spans.category == number]).tolist())
        return tuple(
            self._track(key, "device" if number in devices else "thread")
            for number, key in enumerate(self.columns.tracks.distinct)
        )

    def _track(self, key: Any, kind: TrackKind) -> Track:
        if not isinstance(key, tuple):  # the one that stands for all that were too many
            return Track("", key, -1, -1)
        name: Any
        if len(key) == 3:
            what, pid, name = key
            tid, kind = -1, "counter" if what == "counter" else kind
            name = f"async {name}" if what == "async" else name
        else:
            pid, tid = key
            name = self._threads.get(key) or tid
        process = " ".join(filter(None, (self._processes.get(pid, ""), self._labels.get(pid, "")))) or pid
        return Track(text_of(process), text_of(name), _integer(pid), _integer(tid), kind)


def _category(value: object) -> str:
    name = text_of(value)
    return CATEGORIES.get(name, name)


def _integer(value: Any) -> int:
    """An id as a number; -1 for one that is none, such as `Spans`."""
    return value if isinstance(value, int) and abs(value) < LATEST_NS else -1


def _clock(members: dict[str, Any]) -> tuple[str, int]:
    """The clock's name, and what to add to its times: Kineto counts from a moment that it states."""
    base = members.get("baseTimeNanoseconds")
    if isinstance(base, int) and 0 < base < LATEST_NS:
        return "unix", base
    metadata = members.get("metadata")
    domain = metadata.get("clock-domain") if isinstance(metadata, dict) else None
    return text_of(domain) if isinstance(domain, str) else "unknown", 0
