"""Parity tables of real (emulated) arithmetic, to test the parity rules on: `parity_tables.py DIRECTORY`.

Reduced precision is emulated in NumPy by rounding the operands of a float32 matrix product: TF32 keeps 10 explicit
mantissa bits, bfloat16 7; tf32x3 is the sum of three products of high and low parts. Golden values are float64 on
the same rounded inputs. Each table is JSON lines, one parity point a line, both arms in one file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Dot = Callable[[Array, Array], Array]
D = 64
SEEDS = (1, 2, 3)


def rounded(x: Array, mantissa_bits: int) -> Array:
    """float32 values rounded to nearest even at so many explicit mantissa bits."""
    raw = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32).astype(np.uint64)
    drop = 23 - mantissa_bits
    half = (1 << (drop - 1)) - 1 + ((raw >> drop) & 1)
    return ((raw + half) >> drop << drop).astype(np.uint32).view(np.float32)


def ieee(a: Array, b: Array) -> Array:
    return np.asarray(a.astype(np.float32) @ b.astype(np.float32))


def tf32(a: Array, b: Array) -> Array:
    return ieee(rounded(a, 10), rounded(b, 10))


def bf16(a: Array, b: Array) -> Array:
    return ieee(rounded(a, 7), rounded(b, 7))


def tf32x3(a: Array, b: Array) -> Array:
    ah, bh = rounded(a, 10), rounded(b, 10)
    return ieee(ah, bh) + (ieee(ah, rounded(b - bh, 10)) + ieee(rounded(a - ah, 10), bh))


def error(x: Array, golden: Array) -> float:
    """RMS(x - golden) / RMS(golden)."""
    return float(np.sqrt(np.mean((x - golden) ** 2)) / np.sqrt(np.mean(golden**2)))


def point(arm: str, case: dict[str, Any], value: float, tolerance: float | None, **fields: Any) -> dict[str, Any]:
    known = {"arm": arm, "tensor": "S", "measure": "rms_ratio", "value": float(f"{value:.5g}")}
    return known | ({} if tolerance is None else {"tolerance": tolerance}) | fields | case


def chain_inputs(n: int, seed: int) -> tuple[Array, Array]:
    """Slow transitions (0.999 times a random orthogonal matrix each) and what each chunk adds."""
    rng = np.random.default_rng(seed)
    orthogonal = np.linalg.qr(rng.standard_normal((n, D, D)))[0]
    return (0.999 * orthogonal).astype(np.float32), (0.02 * rng.standard_normal((n, D, D))).astype(np.float32)


def chain(m: Array, h: Array, dot: Dot, dtype: type[np.floating[Any]] = np.float32) -> list[Array]:
    """The state after each chunk: S <- M S + H."""
    s = np.zeros((D, D), dtype=dtype)
    states = []
    for transition, added in zip(m, h, strict=True):
        s = np.asarray(dot(transition, s) + added.astype(dtype))
        states.append(s)
    return states


def exact(a: Array, b: Array) -> Array:
    return np.asarray(a.astype(np.float64) @ b.astype(np.float64))


def chains(candidate: Dot) -> Iterator[dict[str, Any]]:
    """State errors by number of chunks, unsplit (float32 in both arms) and over 4 ranks, whose merge is the arm's."""
    for n in (4, 16, 64, 256, 1024):
        for seed in SEEDS:
            m, h = chain_inputs(n, seed)
            golden = chain(m, h, exact, np.float64)[-1]
            for arm, merge in (("baseline", ieee), ("candidate", candidate)):
                for ranks, dot in ((1, ieee), (4, merge)):
                    case = {
                        "chunks": n,
                        "chunks_max": 16384,
                        "K": D,
                        "dtype": "float32",
                        "partition": ranks,
                        "seed": seed,
                    }
                    yield point(arm, case, error(chain(m, h, dot)[-1], golden), 8e-3)


def sums(accumulate: int | None) -> Iterator[dict[str, Any]]:
    """Sums of K positive products of bfloat16 values, kept in float32 (None) or in so many mantissa bits."""
    for k in (8, 32, 128, 512, 1024):
        for seed in SEEDS:
            rng = np.random.default_rng(seed)
            a, b = (rounded(rng.standard_normal((256, k)), 7) for _ in range(2))
            terms = np.abs(a.astype(np.float64) * b)
            for arm, kept in (("baseline", None), ("candidate", accumulate)):
                total = np.zeros(256, dtype=np.float32)
                for column in terms.T:
                    total = total + column.astype(np.float32)
                    total = rounded(total, kept) if kept else total
                case = {"K": k, "dtype": "float32", "seed": seed}
                yield point(arm, case, error(total, terms.sum(axis=1)), 5e-2, tensor="o")


def ranks(candidate: Dot) -> Iterator[dict[str, Any]]:
    """State errors by token over 4 ranks: the state that enters a rank comes from the arm's merge, and the scan
    inside it is float32."""
    n, chunk, parts = 32, 64, 4
    m, h = chain_inputs(n, 1)
    golden = chain(m, h, exact, np.float64)
    for arm, merge in (("baseline", ieee), ("candidate", candidate)):
        s = np.zeros((D, D), dtype=np.float32)
        incoming = chain(m, h, merge)
        for i, added in enumerate(h):
            enters = i and i % (n // parts) == 0
            s = ieee(m[i], incoming[i - 1] if enters else s) + added
            case = {"T": n * chunk, "partition": parts, "index": i * chunk, "dtype": "float32", "K": D}
            yield point(arm, case, error(s, golden[i]), 8e-3)


def shifted() -> Iterator[dict[str, Any]]:
    """A causal mean over chunks of 64 whose first row of each chunk takes the row before it."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((512, D)).astype(np.float32)
    golden = np.cumsum(x.astype(np.float64), axis=0)
    sound = np.cumsum(x, axis=0, dtype=np.float32)
    wrong = sound.copy()
    wrong[64::64] = sound[63:-1:64]
    for arm, values in (("baseline", sound), ("candidate", wrong)):
        for i in sorted({j for b in range(0, 512, 64) for j in (b, b + 1, b + 2, b + 31, b + 62, b + 63)}):
            case = {"T": 512, "chunk": 64, "index": i, "dtype": "float32"}
            yield point(arm, case, error(values[i], golden[i]), None, tensor="o")


def scales(power: int) -> Iterator[dict[str, Any]]:
    """An int8 product whose scale is applied `power` times: 1 is right."""
    for scale in (0.25, 0.5, 4.0, 8.0):
        rng = np.random.default_rng(int(scale * 8))
        q, k = rng.integers(-127, 128, (32, D)), rng.integers(-127, 128, (D, 32))
        golden = (q @ k) * scale
        for arm, times in (("baseline", 1), ("candidate", power)):
            x = (q @ k).astype(np.float32) * np.float32(scale**times)
            case = {"scale": scale, "dtype": "float32"}
            norm = float(np.sqrt(np.mean(x.astype(np.float64) ** 2)) / np.sqrt(np.mean(golden**2)))
            yield point(arm, case, norm, None, tensor="o", measure="scale_ratio")
            yield point(arm, case, error(x, golden), None, tensor="o")


def calls() -> Iterator[dict[str, Any]]:
    """A split sum whose buffer is zeroed before the first call only."""
    for n in (128, 512):
        buffer = {"baseline": np.zeros(D, np.float32), "candidate": np.zeros(D, np.float32)}
        for call in range(3):
            x = np.random.default_rng(n + call).standard_normal((n, D)).astype(np.float32)
            golden = x.astype(np.float64).sum(axis=0)
            for arm, kept in buffer.items():
                if arm == "baseline":
                    kept[:] = 0
                for part in np.split(x, 4):
                    kept += part.sum(axis=0)
                case = {"N": n, "call": call, "dtype": "float32", "K": n}
                yield point(arm, case, error(kept, golden), 1e-5, tensor="o")


def norms() -> Iterator[dict[str, Any]]:
    """A grouped norm whose candidate takes the global number of groups on each rank: right on one rank only."""
    groups = 8
    x = np.random.default_rng(7).standard_normal((64, 512))
    for world in (1, 2, 4):
        for arm in ("baseline", "candidate"):
            per_rank = groups // world if arm == "baseline" else groups
            outputs, golden = [], []
            for part in np.split(x, world, axis=1):
                for found, n, dtype in ((outputs, per_rank, np.float32), (golden, groups // world, np.float64)):
                    grouped = part.astype(dtype).reshape(64, n, -1)
                    found.append((grouped / np.sqrt((grouped**2).mean(-1, keepdims=True) + 1e-6)).reshape(64, -1))
            value = error(np.concatenate(outputs, 1), np.concatenate(golden, 1))
            yield point(arm, {"world_size": world, "K": 64, "dtype": "float32"}, value, None, tensor="norm")


TABLES: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
    "chain_tf32": lambda: chains(tf32),
    "chain_tf32x3": lambda: chains(tf32x3),
    "chain_bf16": lambda: chains(bf16),
    "chain_fp32": lambda: chains(ieee),
    "sum_bf16": lambda: sums(7),
    "sum_fp32": lambda: sums(None),
    "rank_tf32": lambda: ranks(tf32),
    "rank_tf32x3": lambda: ranks(tf32x3),
    "chunk_shifted": shifted,
    "scale_missing": lambda: scales(0),
    "scale_twice": lambda: scales(2),
    "scale_right": lambda: scales(1),
    "stale_calls": calls,
    "grouped_norm": norms,
}


def main(directory: Path) -> None:
    """Write every table into a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, table in TABLES.items():
        lines = [json.dumps(p, separators=(",", ":")) for p in table()]
        (directory / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{name}: {len(lines)} points")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
