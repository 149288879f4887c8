"""KDA decode in float64 NumPy: the truth the kernels are held against.

Written from the recurrence, not from a kernel; shares no code with `kernels/`. Clear, not fast.
Source of the formulas: `fla/ops/kda/naive.py` in flash-linear-attention.
"""

import numpy as np
from inputs import Inputs
from numpy.typing import NDArray

F64 = NDArray[np.float64]

NORM_EPS = 1e-6


def log_decay(x: F64, a_log: F64, dt_bias: F64) -> F64:
    """g = -exp(a_log) * softplus(x + dt_bias), per key channel; x is [batch, heads, k]."""
    return -np.exp(a_log)[:, None] * np.logaddexp(0.0, x + dt_bias)


def decode(state: F64, q: F64, k: F64, v: F64, g: F64, beta: F64) -> tuple[F64, F64]:
    """One step; returns (o, new state).

    state [batch, heads, k, v], q, k and g [batch, heads, k], v [batch, heads, v], beta [batch, heads].
    """
    k = k / np.sqrt(np.sum(k * k, axis=-1, keepdims=True) + NORM_EPS)
    q = q / np.sqrt(q.shape[-1])
    state = np.exp(g)[..., None] * state
    u = beta[..., None] * (v - np.einsum("bhk,bhkv->bhv", k, state))
    state = state + k[..., None] * u[..., None, :]
    return np.einsum("bhk,bhkv->bhv", q, state), state


class ReferenceDecoder:
    """Decodes the tokens of `inputs`, everything in float64 from the float32 inputs on."""

    def __init__(self, inputs: Inputs) -> None:
        batch, heads, _, v = inputs.shape
        self.inputs = inputs
        self.state: F64 = inputs.start_state.astype(np.float64)
        self.o: F64 = np.zeros((batch, heads, v))

    def start(self) -> None:
        self.state = self.inputs.start_state.astype(np.float64)

    def step(self) -> None:
        q, k, v, x, beta, a_log, dt_bias = (
            array.astype(np.float64)
            for array in (
                self.inputs.q,
                self.inputs.k,
                self.inputs.v,
                self.inputs.x,
                self.inputs.beta,
                self.inputs.a_log,
                self.inputs.dt_bias,
            )
        )
        slot = self.inputs.slot
        self.o, self.state[slot] = decode(self.state[slot], q, k, v, log_decay(x, a_log, dt_bias), beta)
