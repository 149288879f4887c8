"""Writes a Chrome trace as torch.profiler writes it of a model served on a GPU, with as many events as asked for.

Steps of 32 layers: operators on two threads, each launch joined by a correlation id (and a flow, as Kineto does) to a
kernel; every eighth layer an all-reduce on a stream of its own; copies to and from the host. Deterministic. In every
fourth step the host is late, so that there are launch gaps to find.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PID, MAIN, LOADER = 4242, 4242, 4300
COMPUTE, COMMUNICATION, COPY = 7, 20, 24
LAYERS = 32
KERNELS = (
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x128_64x4_tn_align8>(Params)",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)",
    "flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4, false, false, cutlass::bfloat16_t>>",
    "rms_norm_kernel<c10::BFloat16>(c10::BFloat16*, c10::BFloat16 const*, float, int)",
)
OPERATORS = ("aten::linear", "aten::add", "flash_attn::_flash_attn_forward", "rms_norm")
SHAPES = {
    "Record function id": 0, "Input type": ["c10::BFloat16", "c10::BFloat16", ""],
    "Input Dims": [[8, 4096], [4096, 4096], []],
}  # fmt: skip
GRID = {
    "registers per thread": 64, "shared memory": 49152, "blocks per SM": 1.9, "warps per SM": 15.5,
    "grid": [16, 16, 1], "block": [256, 1, 1], "est. achieved occupancy %": 24,
}  # fmt: skip
HEAD = {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85000000000, "numSms": 132}],
    "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 8},
    "displayTimeUnit": "ms",
    "baseTimeNanoseconds": 1790857026000000000,
}


def write(path: Path, n_events: int) -> None:
    """Write the trace; it has `n_events` events, give or take a step."""
    head = json.dumps(HEAD)[:-1]
    with path.open("w") as file:
        file.write(f'{head}, "traceEvents": [\n')
        for n, event in enumerate(events(n_events)):
            file.write((",\n" if n else "") + json.dumps(event))
        file.write('\n], "traceName": "generated.json"}\n')


def events(n_events: int) -> Iterator[dict[str, Any]]:
    """Events in the order of the host's time."""
    n = 0
    for event in _metadata():
        n += 1
        yield event
    trace = _Steps()
    while n < n_events:
        for event in trace.step():
            n += 1
            yield event


def _metadata() -> Iterator[dict[str, Any]]:
    threads = {(PID, MAIN): "python", (PID, LOADER): "loader", (0, COMPUTE): "stream 7",
               (0, COMMUNICATION): "stream 20", (0, COPY): "stream 24"}  # fmt: skip
    for pid, name, label in ((PID, "python", "CPU"), (0, "python", "GPU 0")):
        yield {"ph": "M", "name": "process_name", "ts": 0, "pid": pid, "tid": 0, "args": {"name": name}}
        yield {"ph": "M", "name": "process_labels", "ts": 0, "pid": pid, "tid": 0, "args": {"labels": label}}
    for (pid, tid), name in threads.items():
        yield {"ph": "M", "name": "thread_name", "ts": 0, "pid": pid, "tid": tid, "args": {"name": name}}


class _Steps:
    def __init__(self) -> None:
        self.random = random.Random(0)
        self.host_ns = 5_199_833_390_126_618
        self.free_ns = dict.fromkeys((COMPUTE, COMMUNICATION, COPY), self.host_ns)
        self.correlation = self.external = self.number = 0

    def step(self) -> Iterator[dict[str, Any]]:
        """One decode step."""
        began, late = self.host_ns, 60_000 if self.number % 4 == 3 else 0
        batch: list[dict[str, Any]] = []
        batch += self._launch(
            "cudaMemcpyAsync", "Memcpy HtoD (Pinned -> Device)", "gpu_memcpy", COPY, 9_000, bytes=1 << 20
        )
        for layer in range(LAYERS):
            for operator, kernel in zip(OPERATORS, KERNELS, strict=True):
                batch += self._operator(operator, kernel, late)
            if layer % 8 == 7:
                self.free_ns[COMMUNICATION] = max(self.free_ns[COMMUNICATION], self.free_ns[COMPUTE])
                name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"
                batch += self._launch("cudaLaunchKernelExC", name, "kernel", COMMUNICATION, 35_000)
        batch += self._launch(
            "cudaMemcpyAsync", "Memcpy DtoH (Device -> Pinned)", "gpu_memcpy", COMPUTE, 4_000, bytes=1 << 14
        )
        wait = max(self.free_ns[COMPUTE] - self.host_ns, 1_000)
        self.correlation += 1
        batch.append(self._host("cudaStreamSynchronize", "cuda_runtime", wait, {"correlation": self.correlation}))
        batch.append(self._host("load_batch", "cpu_op", 30_000, {}, LOADER))
        self.host_ns += wait + 5_000
        yield self._host(f"ProfilerStep#{self.number}", "user_annotation", self.host_ns - began, {}, start=began)
        yield from batch
        self.number += 1

    def _operator(self, name: str, kernel: str, late_ns: int) -> list[dict[str, Any]]:
        self.external += 1
        began = self.host_ns
        self.host_ns += self.random.randrange(1_500, 2_500) + late_ns
        args = {"External id": self.external, "Ev Idx": self.external, **SHAPES}
        launched = self._launch("cudaLaunchKernel", kernel, "kernel", COMPUTE, self.random.randrange(4_000, 12_000))
        self.host_ns += 500
        return [self._host(name, "cpu_op", self.host_ns - began, args, start=began), *launched]

    def _launch(self, call: str, name: str, category: str, stream: int, ns: int, **more: int) -> list[dict[str, Any]]:
        self.correlation += 1
        number = self.correlation
        args = {"External id": self.external, "correlation": number}
        launch = self._host(call, "cuda_runtime", 2_000, {"cbid": 211, **args})
        self.host_ns += 2_200
        start = max(self.free_ns[stream], self.host_ns + 1_000)
        self.free_ns[stream] = start + ns
        shape = GRID if category == "kernel" else {}
        where = {"queued": 0, "device": 0, "context": 1, "stream": stream}
        device = {
            "ph": "X", "cat": category, "name": name, "pid": 0, "tid": stream, "ts": start / 1000,
            "dur": ns / 1000, "args": {**args, **where, **shape, **more},
        }  # fmt: skip
        flow = {"id": number, "cat": "ac2g", "name": "ac2g"}
        return [
            launch,
            {"ph": "s", **flow, "pid": PID, "tid": MAIN, "ts": launch["ts"]},
            device,
            {"ph": "f", **flow, "pid": 0, "tid": stream, "ts": device["ts"], "bp": "e"},
        ]

    def _host(
        self, name: str, category: str, ns: int, args: dict[str, Any], tid: int = MAIN, start: int | None = None
    ) -> dict[str, Any]:
        ts = (self.host_ns if start is None else start) / 1000
        return {
            "ph": "X", "cat": category, "name": name, "pid": PID, "tid": tid, "ts": ts, "dur": ns / 1000, "args": args,
        }  # fmt: skip
