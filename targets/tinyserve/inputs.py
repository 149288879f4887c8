"""Inputs of a decode request, derived from its seed: shapes, weights, start state and tokens.

Shared by the worker and the oracle, so that both answer a request from the same float32 numbers.
It knows nothing of the kernel and computes none of the results.

Random numbers are drawn once, onto a tape. A seed chooses windows of the tape, so a token costs two
copies, and what a timed slice spends outside the kernel stays small. Each token is written into the
same buffers, as a serving loop does: whoever remembers something by address remembers the wrong token.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]

TAPE_SLACK = 1 << 16
"""Floats on a tape beyond the longest window: the number of places where a window can begin."""

A_LOG_LOW, A_LOG_HIGH = -7.0, 1.5
"""The heads of one request spread over this range: from about 1e-3 to about 4 nats forgotten a step."""


class Shape(NamedTuple):
    """One decode step: `batch` sequences of `heads` value heads, each with a state of `k` by `v`."""

    batch: int
    heads: int
    k: int
    v: int

    @property
    def slots(self) -> int:
        """Size of the state pool: one slot more than is used, which nobody may touch."""
        return self.batch + 1


class Tape(NamedTuple):
    """Random numbers for one shape: standard normal, and uniform in (0.02, 0.98)."""

    normal: F32
    unit: F32

    @classmethod
    def record(cls, shape: Shape, seed: int) -> "Tape":
        rng = np.random.default_rng(seed)
        batch, heads, k, v = shape
        longest = max(shape.slots * heads * k * v, batch * heads * (3 * k + v))
        return cls(
            normal=rng.standard_normal(longest + TAPE_SLACK, dtype=np.float32),
            unit=(0.02 + 0.96 * rng.random(batch * heads + TAPE_SLACK)).astype(np.float32),
        )


class Inputs:
    """The buffers of one shape; `reset` fills them for a seed, `load` writes one token."""

    def __init__(self, shape: Shape, tape: Tape) -> None:
        self.shape = shape
        self.tape = tape
        batch, heads, k, v = shape
        rows = batch * heads
        self._token: F32 = np.empty(rows * (3 * k + v), dtype=np.float32)
        q_end, k_end, x_end = (rows * k * n for n in (1, 2, 3))
        self.q = self._token[:q_end].reshape(batch, heads, k)
        self.k = self._token[q_end:k_end].reshape(batch, heads, k)
        self.x = self._token[k_end:x_end].reshape(batch, heads, k)
        self.v = self._token[x_end:].reshape(batch, heads, v)
        self._beta: F32 = np.empty(rows, dtype=np.float32)
        self.beta = self._beta.reshape(batch, heads)
        self.a_log: F32 = np.empty(heads, dtype=np.float32)
        self.dt_bias: F32 = np.empty((heads, k), dtype=np.float32)
        self.slot: NDArray[np.int32] = np.empty(batch, dtype=np.int32)
        self.start_state: F32 = np.zeros((shape.slots, heads, k, v), dtype=np.float32)
        self._windows: list[tuple[int, int]] = []

    def reset(self, seed: int, n_tokens: int) -> None:
        """Choose weights, slots, start state and the windows of `n_tokens` tokens."""
        rng = np.random.default_rng(seed)
        _, heads, k, v = self.shape
        # One value from each of `heads` bands, shuffled: no two heads alike, slow and fast in each request.
        bands = (np.arange(heads) + rng.random(heads)) / heads
        self.a_log[:] = A_LOG_LOW + (A_LOG_HIGH - A_LOG_LOW) * rng.permutation(bands)
        self.slot[:] = rng.permutation(self.shape.slots)[: self.shape.batch]
        starts = rng.integers(0, TAPE_SLACK, size=(n_tokens + 1, 2)).tolist()
        state_at, bias_at = starts.pop()
        self.dt_bias[:] = self.tape.normal[bias_at : bias_at + heads * k].reshape(heads, k)
        n_states = self.shape.slots * heads * k * v
        self.start_state = self.tape.normal[state_at : state_at + n_states].reshape(-1, heads, k, v)
        self._windows = starts

    def load(self, index: int) -> None:
        """Write token `index` into `q`, `k`, `x`, `v` and `beta`."""
        normal_at, unit_at = self._windows[index]
        self._token[:] = self.tape.normal[normal_at : normal_at + self._token.size]
        self._beta[:] = self.tape.unit[unit_at : unit_at + self._beta.size]
