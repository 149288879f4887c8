"""Writes the first steps of a Chrome trace as a Perfetto trace with the schema of the `perfetto` package.

    python record.py ../gil_case/held.trace.json.gz held.pftrace

Thread by thread, as Perfetto's own library does: the engine's thread with absolute times and names spelled out, the
transfer thread with interned names, an incremental clock and default values. Each thread's intervals nest.
"""

import gzip
import json
import sys

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackEvent
from perfetto.trace_builder.proto_builder import TraceProtoBuilder

STEPS_US = 150_000


def main() -> None:
    source, target = sys.argv[1:]
    with gzip.open(source) as file:
        events = json.load(file)["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    process = next(e for e in events if e["ph"] == "M" and e["name"] == "process_name")
    spans = sorted((e for e in events if e["ph"] == "X"), key=lambda e: (e["ts"], -e["dur"]))
    begin = spans[0]["ts"]
    spans = [e for e in spans if e["ts"] + e["dur"] < begin + STEPS_US]
    builder = TraceProtoBuilder()
    packet = builder.add_packet()
    packet.track_descriptor.uuid = 1
    packet.track_descriptor.process.pid = process["pid"]
    packet.track_descriptor.process.process_name = process["args"]["name"]
    for sequence, (tid, name) in enumerate(sorted(names.items()), start=1):
        edges = []
        for order, e in enumerate(e for e in spans if e["tid"] == tid):
            start = round(e["ts"] * 1000)
            edges += [(start, 1, order, e), (start + round(e["dur"] * 1000), 0, -order, e)]
        edges.sort(key=lambda edge: edge[:3])
        packet = builder.add_packet()
        packet.trusted_packet_sequence_id = sequence
        packet.track_descriptor.uuid = 100 + sequence
        packet.track_descriptor.parent_uuid = 1
        packet.track_descriptor.thread.pid = process["pid"]
        packet.track_descriptor.thread.tid = tid
        packet.track_descriptor.thread.thread_name = name
        (spelled if sequence == 1 else interned)(builder, sequence, edges)
    packet = builder.add_packet()
    packet.track_descriptor.uuid = 200
    packet.track_descriptor.name = "queue depth"
    packet.track_descriptor.counter.SetInParent()
    for n in range(5):
        packet = builder.add_packet()
        packet.timestamp = round(begin * 1000) + n * 10_000_000
        packet.trusted_packet_sequence_id = 1
        packet.track_event.type = TrackEvent.TYPE_COUNTER
        packet.track_event.track_uuid = 200
        packet.track_event.counter_value = n
    with open(target, "wb") as file:
        file.write(builder.serialize())


def spelled(builder, sequence, edges):
    for at, begins, _, e in edges:
        packet = builder.add_packet()
        packet.timestamp = at
        packet.trusted_packet_sequence_id = sequence
        packet.track_event.track_uuid = 100 + sequence
        packet.track_event.type = TrackEvent.TYPE_SLICE_BEGIN if begins else TrackEvent.TYPE_SLICE_END
        if begins:
            packet.track_event.name = e["name"]
            packet.track_event.categories.append(e["cat"])


def interned(builder, sequence, edges):
    packet = builder.add_packet()
    packet.trusted_packet_sequence_id = sequence
    packet.sequence_flags = 1
    first = edges[0][0]
    for clock, value, incremental in ((6, first, False), (64, first // 1000, True)):
        entry = packet.clock_snapshot.clocks.add()
        entry.clock_id, entry.timestamp = clock, value
        if incremental:
            entry.is_incremental, entry.unit_multiplier_ns = True, 1
            entry.timestamp = first
    packet.trace_packet_defaults.timestamp_clock_id = 64
    packet.trace_packet_defaults.track_event_defaults.track_uuid = 100 + sequence
    names, categories, last = {}, {}, first
    for at, begins, _, e in edges:
        packet = builder.add_packet()
        packet.trusted_packet_sequence_id = sequence
        packet.sequence_flags = 2
        packet.timestamp, last = at - last, at
        packet.track_event.type = TrackEvent.TYPE_SLICE_BEGIN if begins else TrackEvent.TYPE_SLICE_END
        if begins:
            if e["name"] not in names:
                entry = packet.interned_data.event_names.add()
                entry.iid, entry.name = names.setdefault(e["name"], len(names) + 1), e["name"]
            if e["cat"] not in categories:
                entry = packet.interned_data.event_categories.add()
                entry.iid, entry.name = categories.setdefault(e["cat"], len(categories) + 1), e["cat"]
            packet.track_event.name_iid = names[e["name"]]
            packet.track_event.category_iids.append(categories[e["cat"]])


main()
