"""Answers the worker's requests from the float64 reference alone: `python oracle.py`.

It neither imports nor needs the kernels: what it says stays true whatever was done to them.
"""

from protocol import claim_streams, serve
from reference import ReferenceDecoder

if __name__ == "__main__":
    serve(ReferenceDecoder, *claim_streams())
