"""Slice worker of the compiled kernels: `python worker.py`, after `make -C kernels`.

Speaks the worker protocol on stdin and stdout. Fails before it is ready when the library is missing.
"""

import ctypes

from kernels.kda import LIBRARY, KernelDecoder
from protocol import claim_streams, serve

if __name__ == "__main__":
    # Before the library: loading it runs its code, which may print.
    streams = claim_streams()
    ctypes.CDLL(str(LIBRARY))
    serve(KernelDecoder, *streams)
