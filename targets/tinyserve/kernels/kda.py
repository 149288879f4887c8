"""The KDA decode kernel, called through ctypes.

Build it first: `make -C kernels`. The structure below mirrors `kda_decode_args` in `kda_decode.h`.
"""

import ctypes
from pathlib import Path

import numpy as np
from inputs import F32, Inputs

LIBRARY = Path(__file__).resolve().parent.parent / "build" / "libkda.so"


class _Args(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("batch", "heads", "k_dim", "v_dim")),
        *((name, ctypes.c_void_p) for name in ("slot", "q", "k", "v", "x", "beta", "a_log", "dt_bias", "state", "o")),
    )


class UnsupportedShape(ValueError):
    """The kernel refuses this shape."""


class KernelDecoder:
    """Decodes the tokens of `inputs` with the compiled kernel, in float32.

    Raises OSError when the library has not been built or cannot be loaded.
    """

    def __init__(self, inputs: Inputs) -> None:
        batch, heads, k, v = inputs.shape
        self.inputs = inputs
        self.state: F32 = np.empty((inputs.shape.slots, heads, k, v), dtype=np.float32)
        self.o: F32 = np.zeros((batch, heads, v), dtype=np.float32)
        self._kernel = ctypes.CDLL(str(LIBRARY)).kda_decode_step
        self._kernel.restype = ctypes.c_int
        self._args = _Args(
            batch,
            heads,
            k,
            v,
            inputs.slot.ctypes.data,
            inputs.q.ctypes.data,
            inputs.k.ctypes.data,
            inputs.v.ctypes.data,
            inputs.x.ctypes.data,
            inputs.beta.ctypes.data,
            inputs.a_log.ctypes.data,
            inputs.dt_bias.ctypes.data,
            self.state.ctypes.data,
            self.o.ctypes.data,
        )
        self._args_at = ctypes.byref(self._args)

    def start(self) -> None:
        self.state[:] = self.inputs.start_state

    def step(self) -> None:
        """Raises UnsupportedShape."""
        if self._kernel(self._args_at) != 0:
            raise UnsupportedShape(f"the kernel refuses {self.inputs.shape}")
