"""llama-bench of llama.cpp: `-o json` or `-o jsonl`. Tried with the source of build 11434.
https://github.com/ggml-org/llama.cpp/tree/master/tools/llama-bench

Repetitions share one process, so a file is one unit. Its own warm-up run isn't in the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from feedback.observations import Measurement, Scalar, Source
from feedback.readers import Unreadable
from feedback.readers.documents import Count, Fields, Positive, has, lines, parsed, scalars, shown, text, valid
from sandboxes.results import ArmName

MAX_TESTS = 10_000
HOW = (
    "backends", "n_batch", "n_ubatch", "n_threads", "cpu_mask", "cpu_strict", "poll", "type_k", "type_v",
    "n_gpu_layers", "n_cpu_moe", "split_mode", "main_gpu", "no_kv_offload", "flash_attn", "devices", "tensor_split",
    "tensor_buft_overrides", "use_mmap", "load_mode", "lazy_mode", "embeddings", "no_op_offload", "no_host", "repack",
)  # fmt: skip
"""How it is computed: stands in a case only where the file compares it, so that arms with other knobs compare."""


class _Test(Fields):
    model_type: str
    n_prompt: Count
    n_gen: Count
    n_depth: Count = 0
    samples_ns: tuple[Positive, ...]


class _Tests(Fields):
    tests: tuple[dict[str, Any], ...]


def fits(path: Path, head: bytes) -> bool:
    return head.lstrip()[:1] in (b"[", b"{") and has(head, b"model_type", b"n_prompt", b"n_gen", b"samples_ns")


def read(path: Path, probe: str, stage: str, arm: ArmName) -> list[Measurement]:
    """`time_s` of each repetition of each test. Raises Unreadable with line or place, OSError when it can't be
    read. Tokens per second are (n_prompt + n_gen) / time_s."""
    entries = [(source, valid(_Test, entry, path, source.line or 0), entry) for source, entry in _entries(path)]
    compared = [name for name in HOW if len({shown(entry.get(name)) for _, _, entry in entries}) > 1]
    found: list[Measurement] = []
    for source, test, entry in entries:
        parts = [f"pp{test.n_prompt}"] * bool(test.n_prompt) + [f"tg{test.n_gen}"] * bool(test.n_gen)
        case: dict[str, Scalar] = {
            "benchmark": "+".join(parts) or "nothing",
            "model_type": shown(test.model_type),
            "n_prompt": test.n_prompt,
            "n_gen": test.n_gen,
            "n_depth": test.n_depth,
            **scalars({name: entry[name] for name in compared if name in entry}),
        }
        found += [
            Measurement(
                probe=probe, metric="time_s", value=value / 1e9, arm=arm, stage=stage, block=n, paired=False, case=case,
                source=source.model_copy(update={"query": f"{source.query}/samples_ns/{n}"}),
            )
            for n, value in enumerate(test.samples_ns)
        ]  # fmt: skip
    return found


def _entries(path: Path) -> Iterator[tuple[Source, dict[str, Any]]]:
    with path.open("rb") as file:
        is_list = file.read(64).lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"["
    if is_list:
        tests = valid(_Tests, {"tests": parsed(path, text(path))}, path).tests
        yield from ((Source(file=path.name, query=f"/{i}"), test) for i, test in enumerate(tests))
        return
    for number, line in lines(path):
        if number > MAX_TESTS:
            raise Unreadable(path, number, f"more than {MAX_TESTS} tests")
        (test,) = valid(_Tests, {"tests": [line]}, path, number).tests
        yield Source(file=path.name, line=number), test
