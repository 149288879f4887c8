"""Perfetto traces (protobuf): the slices, instants and counters of track events.

Format: perfetto/protos/perfetto/trace/{trace_packet,track_event/*,interned_data/*,clock_snapshot}.proto, read at the
wire level. Tried on traces written with the schema of perfetto 0.59.1. The trace processor is not used: the Python
package downloads it at run time. What other data sources wrote (ftrace, heap profiles, perf samples) is counted in a
note, not read. Python at the wire level takes some 10 s a million events.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from feedback.readers import Unreadable, compressed
from feedback.readers.columns import LATEST_NS, MAX_NAME, MAX_NAMES, MAX_TRACKS, Columns, text_of
from feedback.readers.pairing import Counters, Pairs
from feedback.readers.protobuf import Value, fields, message, number, signed, text, varint
from feedback.spans import Spans, Track, TrackKind
from sandboxes.results import ArmName

MAX_PACKET_BYTES = 64 << 20
MAX_SEQUENCES = 10_000
FLUSH_PACKETS = 20_000
SUFFIXES = {".pftrace", ".perfetto-trace", ".perfetto"}

CLOCKS = {1: "unix", 2: "unix", 3: "monotonic", 4: "monotonic", 5: "monotonic_raw", 6: "boottime"}
BOOTTIME = 6
SEQUENCE_CLOCKS = range(64, 128)
"""Clocks that mean something to one writer alone."""
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
CLEARED = 1
"""Flag of a packet: what the writer interned before is void."""

# Fields of TracePacket.
_CLOCK_SNAPSHOT, _TIMESTAMP, _SEQUENCE, _TRACK_EVENT, _INTERNED, _FLAGS = 6, 8, 10, 11, 12, 13
_STATS, _CLEARED, _DROPPED, _COMPRESSED, _CLOCK, _DEFAULTS, _DESCRIPTOR = 35, 41, 42, 50, 58, 59, 60
_OURS = {
    _CLOCK_SNAPSHOT, _TIMESTAMP, _SEQUENCE, _TRACK_EVENT, _INTERNED, _FLAGS, _STATS, _CLEARED, _DROPPED,
    _COMPRESSED, _CLOCK, _DEFAULTS, _DESCRIPTOR, 3, 33, 36, 79, 87,
}  # fmt: skip


@dataclass
class _Clock:
    """A clock of one writer: what to multiply with, what to add, and the last value of an incremental one."""

    unit_ns: int = 1
    offset_ns: int = 0
    incremental: bool = False
    last: int = 0


@dataclass
class _Sequence:
    """What one writer said before and refers to."""

    names: dict[int, str] = field(default_factory=dict)
    categories: dict[int, str] = field(default_factory=dict)
    clocks: dict[int, _Clock] = field(default_factory=dict)
    clock: int = 0
    track: int = 0


@dataclass
class _Descriptor:
    name: str = ""
    parent: int = 0
    pid: int = -1
    tid: int = -1
    is_thread: bool = False
    is_counter: bool = False


def fits(path: Path, head: bytes) -> bool:
    """Whether its suffix is one of Perfetto's, or it is binary and begins with a packet of a known kind."""
    start = compressed.start(head)
    if not start.startswith(b"\x0a"):
        return False
    if SUFFIXES & set(path.suffixes):
        return True
    try:
        size, at = varint(start, 1)
        packet = message(start[at : at + size]) if at + size <= len(start) else {}
    except ValueError:
        return False
    binary = any(byte < 9 or 13 < byte < 32 for byte in start[:4096])
    return binary and bool(packet) and packet.keys() <= _OURS


def read(path: Path, probe: str, stage: str, arm: ArmName) -> list[Spans]:
    """The track events as one Spans. Raises OSError, and Unreadable when it isn't a Perfetto trace."""
    trace = _Trace()
    with compressed.stream(path) as stream:
        for at, packet in _packets(stream, path):
            if packet is None:
                if not trace.n_packets:
                    raise Unreadable(path, 0, f"byte {at}: no Perfetto trace, or cut off in its first packet")
                trace.columns.lost += 1
                trace.columns.notes.append(f"the file is cut off or damaged from byte {at} on")
                break
            trace.packet(packet)
        if stream.damage:
            trace.columns.notes.append(stream.damage)
    if not trace.n_packets:
        raise Unreadable(path, 0, "no packet in it that can be read")
    return [trace.spans(path, probe, stage, arm)]


def _packets(stream: compressed.Stream, path: Path) -> Iterator[tuple[int, bytes | None]]:
    """Position and content of each packet; None for one that is damaged, after which nothing can be found."""
    buffer, at, ended = b"", 0, False
    position = 0
    while True:
        try:
            if position < len(buffer) and buffer[position] != 0x0A:
                yield at + position, None
                return
            size, start = varint(buffer, position + 1)
        except ValueError:
            size, start = -1, position
        if size > MAX_PACKET_BYTES:
            raise Unreadable(path, 0, f"byte {at + position}: a packet longer than {MAX_PACKET_BYTES >> 20} MiB")
        if size >= 0 and start + size <= len(buffer):
            yield at + position, buffer[start : start + size]
            position = start + size
            continue
        if ended:
            if position < len(buffer):
                yield at + position, None
            return
        at, buffer, position = at + position, buffer[position:], 0
        chunk = stream.read(max(1 << 20, size))
        ended = not chunk
        buffer += chunk


class _Trace:
    """What is collected from the packets."""

    def __init__(self) -> None:
        self.columns = Columns()
        self.n_packets = 0
        self._pairs, self._counters = Pairs(self.columns), Counters(self.columns)
        self._sequences: dict[int, _Sequence] = {}
        self._descriptors: dict[int, _Descriptor] = {}
        self._clocks: Counter[str] = Counter()
        self._others = self._dropped = 0
        self._last_ns = -LATEST_NS

    def packet(self, data: bytes, nested: bool = False) -> None:
        """Take one packet over; one that is malformed counts as lost."""
        try:
            packet = message(data)
            if _COMPRESSED in packet and not nested:
                self._compressed(packet[_COMPRESSED])
            else:
                self._packet(packet)
            self.n_packets += 1
        except (ValueError, zlib.error):
            self.columns.lost += 1
        if self.n_packets % FLUSH_PACKETS == 0:
            self._pairs.flush()

    def _compressed(self, data: Value) -> None:
        if not isinstance(data, bytes):
            raise ValueError("compressed packets are no bytes")
        inner = zlib.decompressobj().decompress(data, MAX_PACKET_BYTES)
        for key, packet in fields(inner):
            if key == 1 and isinstance(packet, bytes):
                self.packet(packet, nested=True)

    def _packet(self, packet: dict[int, Value]) -> None:
        identity = number(packet.get(_SEQUENCE))
        if identity not in self._sequences and len(self._sequences) >= MAX_SEQUENCES:
            raise ValueError("too many writers")
        sequence = self._sequences.setdefault(identity, _Sequence())
        if number(packet.get(_FLAGS)) & CLEARED or number(packet.get(_CLEARED)):
            sequence.names, sequence.categories, sequence.clock, sequence.track = {}, {}, 0, 0
        self._dropped += number(packet.get(_DROPPED)) > 0
        if _CLOCK_SNAPSHOT in packet:
            _snapshot(packet[_CLOCK_SNAPSHOT], sequence)
        if _DEFAULTS in packet:
            defaults = message(packet[_DEFAULTS])
            sequence.clock = number(defaults.get(_CLOCK))
            sequence.track = number(message(defaults.get(_TRACK_EVENT)).get(11))
        if _INTERNED in packet:
            _intern(packet[_INTERNED], sequence)
        if _DESCRIPTOR in packet:
            self._describe(packet[_DESCRIPTOR])
        if _TRACK_EVENT in packet:
            self._event(packet, sequence)
        self._others += not packet.keys() <= _OURS

    def _describe(self, data: Value) -> None:
        found = message(data)
        uuid = number(found.get(1))
        if uuid not in self._descriptors and len(self._descriptors) >= MAX_TRACKS:
            raise ValueError("too many tracks")
        process, thread = message(found.get(3)), message(found.get(4))
        name = found.get(2) or found.get(10) or found.get(13) or thread.get(5) or process.get(6)
        self._descriptors[uuid] = _Descriptor(
            name=text_of(text(name)), parent=number(found.get(5)),
            pid=number(thread.get(1, process.get(1)), -1), tid=number(thread.get(2), -1),
            is_thread=4 in found, is_counter=8 in found,
        )  # fmt: skip

    def _time(self, packet: dict[int, Value], sequence: _Sequence) -> int:
        clock = number(packet.get(_CLOCK), sequence.clock) or BOOTTIME
        value = number(packet.get(_TIMESTAMP))
        known = sequence.clocks.get(clock)
        if known is None:
            if clock in SEQUENCE_CLOCKS:
                raise ValueError("a clock that was never set")
        elif known.incremental:
            known.last += value
            value = known.last
        at = value if known is None else value * known.unit_ns + known.offset_ns
        self._clocks[CLOCKS.get(BOOTTIME if clock in SEQUENCE_CLOCKS else clock, "unknown")] += 1
        if not 0 <= at < LATEST_NS:
            raise ValueError("no time")
        return at

    def _event(self, packet: dict[int, Value], sequence: _Sequence) -> None:
        event: dict[int, Value] = {}
        category = ""
        data = packet[_TRACK_EVENT]
        for key, value in fields(data if isinstance(data, bytes) else b""):
            if key == 22 and not category:
                category = text(value)
            elif key == 3 and not category:
                category = sequence.categories.get(number(value), "")
            event[key] = value
        at = self._time(packet, sequence)
        self._last_ns = max(self._last_ns, at)
        uuid = number(event.get(11), sequence.track)
        name = text(event[23]) if 23 in event else sequence.names.get(number(event.get(10)), "")
        kind = number(event.get(9))
        if kind == BEGIN:
            self._pairs.begin(uuid, at, name, category, self.columns.tracks[uuid])
        elif kind == END:
            self._pairs.end(uuid, at)
        elif kind == INSTANT:
            self.columns.instant(at, name, category, self.columns.tracks[uuid])
        elif kind == COUNTER:
            descriptor = self._descriptors.get(uuid, _Descriptor())
            if math.isfinite(reading := _counter_value(event)):
                self._counters.value(uuid, at, descriptor.name or f"counter {uuid}", reading)

    def spans(self, path: Path, probe: str, stage: str, arm: ArmName) -> Spans:
        """All of it, sorted."""
        self._pairs.finish(self._last_ns)
        self._counters.finish()
        if self._dropped:
            self.columns.lost += self._dropped
            self.columns.notes.append(f"packets were dropped before {self._dropped} packet(s): a full buffer")
        if self._others:
            self.columns.notes.append(f"{self._others} packet(s) of other data sources were not read")
        clock = next(iter(self._clocks)) if len(self._clocks) == 1 else "unknown"
        if len(self._clocks) > 1:
            self.columns.notes.append(f"times of {len(self._clocks)} clocks are mixed: {', '.join(self._clocks)}")
        tracks = tuple(self._track(uuid) for uuid in self.columns.tracks.distinct)
        return self.columns.spans(path, probe, stage, arm, tracks, clock=clock)

    def _track(self, uuid: object) -> Track:
        if not isinstance(uuid, int):
            return Track("", str(uuid), -1, -1)
        own = self._descriptors.get(uuid, _Descriptor())
        pid, tid, process, above = own.pid, own.tid, "", own
        for _ in range(16):  # parents: threads, then the process
            if above.pid >= 0 and not above.is_thread:
                process = process or above.name
            pid, tid = (above.pid if pid < 0 else pid), (above.tid if tid < 0 else tid)
            if not above.parent or above.parent not in self._descriptors:
                break
            above = self._descriptors[above.parent]
        same = next((d for d in self._descriptors.values() if d.pid == pid >= 0 and not d.is_thread), None)
        process = process or (same.name if same else "") or (str(pid) if pid >= 0 else "")
        kind: TrackKind = "counter" if own.is_counter else "thread"
        return Track(process, own.name or (str(tid) if tid >= 0 else f"track {uuid}"), pid, tid, kind)


def _counter_value(event: dict[int, Value]) -> float:
    if 44 in event:
        value: float = struct.unpack("<d", number(event[44]).to_bytes(8, "little"))[0]
        return value
    return float(signed(number(event.get(30))))


def _intern(data: Value, sequence: _Sequence) -> None:
    for key, value in fields(data if isinstance(data, bytes) else b""):
        table = {1: sequence.categories, 2: sequence.names}.get(key)
        if table is not None:
            entry = message(value)
            if len(table) >= MAX_NAMES:
                raise ValueError("too many names")
            table[number(entry.get(1))] = text(entry.get(2))[:MAX_NAME]


def _snapshot(data: Value, sequence: _Sequence) -> None:
    """Readings of several clocks at one moment: how a writer's own clock stands to the trace's."""
    readings = [message(value) for key, value in fields(data if isinstance(data, bytes) else b"") if key == 1]
    base = next((r for r in readings if number(r.get(1)) == BOOTTIME), None)
    base = base or next((r for r in readings if 0 < number(r.get(1)) < min(SEQUENCE_CLOCKS)), None)
    for reading in readings:
        identity = number(reading.get(1))
        if identity in SEQUENCE_CLOCKS:
            unit = number(reading.get(4), 1) or 1
            value = number(reading.get(2))
            offset = number(base.get(2)) - value * unit if base else 0
            sequence.clocks[identity] = _Clock(unit, offset, bool(number(reading.get(3))), value)
