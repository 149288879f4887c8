"""A prefill loop that calls dispatch and combine, and a thread that transfers KV blocks meanwhile.

    python gil_case.py held|released ITERATIONS [TRACE.json.gz]

`held` loads the exchange library with ctypes.PyDLL: the GIL stays held while it waits for its peers, so the
transfer thread can't run. `released` loads it with ctypes.CDLL, which is the fix. The trace has one interval a
native call, stamped inside the C code (category `native`), and one a Python call around it (`python_function`).
"""

import ctypes
import gzip
import json
import os
import queue
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
BLOCKS, SLICES, SLICE_BYTES = 24, 12, 1 << 19
spans = []


def stamped(name, call, *args):
    stamps = (ctypes.c_int64 * 2)()
    start = time.perf_counter_ns()
    call(*args, stamps)
    end = time.perf_counter_ns()
    thread = threading.get_native_id()
    spans.append((name, "native", thread, stamps[0], stamps[1]))
    spans.append((name, "python_function", thread, start, end))


class Transfer(threading.Thread):
    def __init__(self, copy):
        super().__init__(name="kv_transfer", daemon=True)
        self.copy, self.requests = copy, queue.Queue()
        self.source, self.target = (ctypes.create_string_buffer(SLICE_BYTES) for _ in range(2))

    def run(self):
        while (indices := self.requests.get()) is not None:
            for part in range(SLICES):
                group_blocks(indices, part)
                stamped("copy_blocks", self.copy, self.target, self.source, SLICE_BYTES)
            self.requests.task_done()


def group_blocks(indices, part):
    start = time.perf_counter_ns()
    groups, last = [], None
    for index in indices[part::2] * 64:
        if last is not None and index == last + 1:
            groups[-1].append(index)
        else:
            groups.append([index])
        last = index
    spans.append(("group_blocks", "python_function", threading.get_native_id(), start, time.perf_counter_ns()))
    return groups


def launch(ms):
    start = time.perf_counter_ns()
    until, n = start + int(ms * 1e6), 0
    while time.perf_counter_ns() < until:
        n += 1
    spans.append(("launch", "python_function", threading.get_native_id(), start, time.perf_counter_ns()))
    return n


def main():
    variant, iterations = sys.argv[1], int(sys.argv[2])
    path = os.path.join(HERE, "exchange.so")
    exchange = (ctypes.PyDLL if variant == "held" else ctypes.CDLL)(path)
    copy = ctypes.CDLL(path).copy_blocks
    copy.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_void_p]
    transfer = Transfer(copy)
    transfer.start()
    began = time.perf_counter_ns()
    for step in range(iterations):
        transfer.requests.put(list(range(step, step + BLOCKS)))
        launch(0.75)
        stamped("intranode_dispatch", exchange.intranode_dispatch, ctypes.c_int64(3000))
        launch(0.75)
        stamped("intranode_combine", exchange.intranode_combine, ctypes.c_int64(2000))
    ended = time.perf_counter_ns()
    transfer.requests.join()
    drained = time.perf_counter_ns()
    print(f"{variant}: {(ended - began) / iterations / 1e6:.2f} ms a step, transfers {(drained - ended) / 1e6:.1f} ms behind")
    if len(sys.argv) > 3:
        write(sys.argv[3], {transfer.native_id: transfer.name, threading.get_native_id(): "engine"})


def write(path, threads):
    pid = os.getpid()
    events = [{"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": "prefill"}}]
    for tid, name in threads.items():
        events.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}})
    for name, category, tid, start, end in spans:
        events.append(
            {"ph": "X", "name": name, "cat": category, "pid": pid, "tid": tid,
             "ts": start / 1000, "dur": (end - start) / 1000}
        )  # fmt: skip
    trace = {"traceEvents": events, "displayTimeUnit": "ns", "metadata": {"clock-domain": "LINUX_CLOCK_MONOTONIC"}}
    with gzip.open(path, "wt") as file:
        json.dump(trace, file)


main()
