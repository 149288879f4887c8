"""Spans in OpenTelemetry's JSON encoding (OTLP/JSON): one ExportTraceServiceRequest a line, or one document.

Format: opentelemetry-proto, "JSON Protobuf Encoding": ids are hexadecimal, 64-bit numbers may be strings. Tried with
opentelemetry-exporter-otlp-json-file 0.66b1. Parsed here: the official `opentelemetry-proto-json` is a beta and keeps
every attribute in memory, while only times, names and threads are wanted. Logs and metrics in the file are passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from feedback.readers import Unreadable, compressed
from feedback.readers.columns import LATEST_NS, Columns, text_of
from feedback.readers.json_array import brackets
from feedback.spans import Spans, Track
from sandboxes.results import ArmName

MAX_DOCUMENT_BYTES = 64 << 20
"""A longer line, or a longer document without lines, is refused."""

KINDS = {1: "internal", 2: "server", 3: "client", 4: "producer", 5: "consumer"}

_HEAD = re.compile(rb'^\s*\{\s*"resource(?:Spans|_spans)"\s*:')


class _Value(msgspec.Struct, gc=False):
    string: Any = msgspec.field(default=None, name="stringValue")
    integer: Any = msgspec.field(default=None, name="intValue")


class _Attribute(msgspec.Struct, gc=False):
    key: str = ""
    value: _Value = msgspec.field(default_factory=_Value)


class _Span(msgspec.Struct, gc=False, rename="camel"):
    name: str = ""
    kind: Any = 0
    start_time_unix_nano: int | str = 0
    end_time_unix_nano: int | str = 0
    attributes: list[_Attribute] = []
    dropped_attributes_count: int = 0


class _Scope(msgspec.Struct):
    name: str = ""


class _ScopeSpans(msgspec.Struct):
    scope: _Scope = msgspec.field(default_factory=_Scope)
    spans: list[_Span] = []


class _Resource(msgspec.Struct):
    attributes: list[_Attribute] = []


class _ResourceSpans(msgspec.Struct, rename="camel"):
    resource: _Resource = msgspec.field(default_factory=_Resource)
    scope_spans: list[_ScopeSpans] = []


class _Request(msgspec.Struct, rename="camel"):
    resource_spans: list[_ResourceSpans] = []


def fits(path: Path, head: bytes) -> bool:
    """Whether it begins with `resourceSpans`."""
    return bool(_HEAD.match(compressed.start(head)))


def read(path: Path, probe: str, stage: str, arm: ArmName) -> list[Spans]:
    """All spans of the file as one Spans; a span's thread is its `thread.name` or `thread.id`, else it is unknown.
    Raises OSError, and Unreadable with the line; a last one that is cut off only counts as lost."""
    columns = Columns()
    decoder = msgspec.json.Decoder(_Request)
    n = 0
    for number, text, cut_off in _documents(path):
        try:
            request = decoder.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            if cut_off and n:
                columns.lost += 1
                columns.notes.append("the last document is cut off")
                break
            raise Unreadable(path, number, f"not an export of traces: {error}") from error
        n += 1
        _add(columns, request)
    if not n:
        raise Unreadable(path, 0, "no export of traces in it")
    tracks = tuple(
        Track(*key[:2], *key[2:]) if isinstance(key, tuple) else Track("", str(key), -1, -1)
        for key in columns.tracks.distinct
    )
    columns.notes.append("spans are stamped by the programs that sent them, which includes their waits for a lock")
    return [columns.spans(path, probe, stage, arm, tracks, clock="unix", has_native_times=False)]


def _documents(path: Path) -> Iterator[tuple[int, bytes, bool]]:
    """First line, text, and whether it is cut off, of each document: lines until all brackets are closed. A string of
    JSON holds no line break, so each line is looked at by itself."""
    parts: list[bytes] = []
    size = depth = first = 0
    for number, line in _lines(path):
        if not parts:
            first = number
        if line.strip() or parts:
            parts.append(line)
        size += len(line)
        depth += int(brackets(line)[1].sum())
        if size > MAX_DOCUMENT_BYTES:
            raise Unreadable(path, first, f"a document longer than {MAX_DOCUMENT_BYTES >> 20} MiB")
        if parts and depth <= 0:
            yield first, b"\n".join(parts), False
            parts, size, depth = [], 0, 0
    if parts:
        yield first, b"\n".join(parts), True


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines with their numbers; of what is longer than a document may be, only the beginning."""
    with compressed.stream(path) as stream:
        buffer, number = b"", 1
        while chunk := stream.read(1 << 20):
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                yield number, line
                number += 1
            if len(buffer) > MAX_DOCUMENT_BYTES:
                break
        yield number, buffer


def _add(columns: Columns, request: _Request) -> None:
    rows: list[tuple[int, int, int, int, int]] = []
    for resource in request.resource_spans:
        attributes = {a.key: a.value for a in resource.resource.attributes}
        service = attributes.get("service.name", _Value()).string
        pid = _integer(attributes.get("process.pid", _Value()).integer)
        process = text_of(service) if isinstance(service, str) else str(pid)
        for scope in resource.scope_spans:
            for span in scope.spans:
                start, end = _integer(span.start_time_unix_nano), _integer(span.end_time_unix_nano)
                track = columns.tracks[process, *_thread(span, pid)]
                category = columns.categories[KINDS.get(span.kind, "internal") if isinstance(span.kind, int) else ""]
                if start <= 0:
                    start, end = 0, -1  # no time: lost
                rows.append((start, end, columns.names[span.name], category, track))
    if rows:
        table = np.array(rows, dtype=np.int64)
        start_ns, end_ns = np.ascontiguousarray(table[:, 0]), np.ascontiguousarray(table[:, 1])
        name, category_of, track_of = (table[:, n].astype(np.int32) for n in (2, 3, 4))
        columns.add(start_ns, end_ns, name, category_of, track_of)


def _thread(span: _Span, pid: int) -> tuple[str, int, int]:
    """Name, process id and thread id, from the attributes that OpenTelemetry names for them."""
    name, tid = "", -1
    for attribute in span.attributes:
        if attribute.key == "thread.name" and isinstance(attribute.value.string, str):
            name = text_of(attribute.value.string)
        elif attribute.key == "thread.id":
            tid = _integer(attribute.value.integer)
    return name or (str(tid) if tid >= 0 else "unknown thread"), pid, tid


def _integer(value: object) -> int:
    """A number that may be written as text; -1 for what is none."""
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,19}", value):
        value = int(value)
    return value if type(value) is int and 0 <= value < LATEST_NS else -1
