"""The worker protocol: one JSON request a line in, one JSON reply a line out.

Described in `docs/worker-protocol.md` of the project. Serves any decoder: the compiled kernel in
`worker.py`, the float64 reference in `oracle.py`. It reports no time: whoever asks holds the clock.
"""

import base64
import json
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TextIO

import numpy as np
from inputs import Inputs, Shape, Tape
from numpy.typing import NDArray

VERSION = 1
TIMING_TAPE_SEED = 20260917
"""Timed slices of one shape share one tape, drawn before the first of them; their seeds choose from it."""

DEFAULTS = {"batch": 1, "heads": 8, "k": 128, "v": 128}
OWN_PARAMS = {"time": {"repeat": 1}, "outputs": {"steps": 4}}


class Decoder(Protocol):
    """Runs the decode step on the token that its inputs hold."""

    o: NDArray[Any]
    """[batch, heads, v]: output of the last step."""
    state: NDArray[Any]
    """[slots, heads, k, v]"""

    def start(self) -> None:
        """Take over the start state of the inputs."""

    def step(self) -> None:
        """Decode one token: changes `o` and `state`. Raises ValueError for a shape it cannot run."""


MakeDecoder = Callable[[Inputs], Decoder]


class BadRequest(ValueError):
    """The request cannot be understood."""


class Request(NamedTuple):
    """One request, checked."""

    op: str
    seed: int
    shape: Shape
    n_tokens: int
    """Calls of the kernel: `repeat` of a timed slice, `steps` of an output."""


def parse(message: dict[str, Any]) -> Request:
    """Raises BadRequest."""
    params = dict(message.get("params") or {})
    op = params.pop("op", "time")
    if op not in OWN_PARAMS:
        raise BadRequest(f"unknown op {op!r}; known: {', '.join(OWN_PARAMS)}")
    known = DEFAULTS | OWN_PARAMS[op]
    if unknown := sorted(params.keys() - known.keys()):
        raise BadRequest(f"unknown params for op {op!r}: {', '.join(unknown)}")
    values = known | params
    for name, value in values.items():
        if type(value) is not int or value < 1:
            raise BadRequest(f"{name} must be a positive integer, not {value!r}")
    seed = message.get("seed")
    if type(seed) is not int or seed < 0:
        raise BadRequest(f"seed must be a non-negative integer, not {seed!r}")
    shape = Shape(*(values[name] for name in DEFAULTS))
    return Request(op, seed, shape, values[next(iter(OWN_PARAMS[op]))])


class Session:
    """Answers requests with decoders from `make`; keeps the buffers of every shape timed so far."""

    def __init__(self, make: MakeDecoder) -> None:
        self._make = make
        self._timed: dict[Shape, tuple[Inputs, Decoder]] = {}

    def answer(self, request: Request) -> dict[str, Any]:
        """Raises ValueError when the decoder cannot run the shape or its results are not finite."""
        return self._outputs(request) if request.op == "outputs" else self._time(request)

    def _time(self, request: Request) -> dict[str, Any]:
        shape = request.shape
        if shape not in self._timed:
            inputs = Inputs(shape, Tape.record(shape, TIMING_TAPE_SEED))
            self._timed[shape] = inputs, self._make(inputs)
        inputs, decoder = self._timed[shape]
        inputs.reset(request.seed, request.n_tokens)
        decoder.start()
        total = np.zeros_like(decoder.o)
        for index in range(request.n_tokens):
            inputs.load(index)
            decoder.step()
            total += decoder.o
        check = [*summarise(total, inputs.tape), *summarise(decoder.state, inputs.tape)]
        if not np.isfinite(check).all():
            raise ValueError("the results of this slice are not finite")
        return {"check": check}

    def _outputs(self, request: Request) -> dict[str, Any]:
        # A fresh tape: nothing here was ever seen in a timed slice.
        inputs = Inputs(request.shape, Tape.record(request.shape, request.seed))
        decoder = self._make(inputs)
        inputs.reset(request.seed, request.n_tokens)
        decoder.start()
        outputs = []
        for index in range(request.n_tokens):
            inputs.load(index)
            decoder.step()
            outputs.append(decoder.o.copy())
        return {"outputs": {"o": encode(np.stack(outputs)), "state": encode(decoder.state)}}


def summarise(array: NDArray[Any], tape: Tape) -> tuple[float, float]:
    """Root mean square, and the distance to a fixed random pattern, which sees signs and positions.

    Neither is a difference of large numbers, so arms that agree elementwise agree here.
    """
    rows = array.reshape(-1, array.shape[-1])
    pattern = tape.normal[: rows.size].reshape(rows.shape)
    norm = np.einsum("rc,rc->r", rows, rows).sum(dtype=np.float64)
    cross = np.einsum("rc,rc->r", rows, pattern).sum(dtype=np.float64)
    own = np.einsum("rc,rc->r", pattern, pattern).sum(dtype=np.float64)
    return float(np.sqrt(norm / rows.size)), float(np.sqrt((norm - 2.0 * cross + own) / rows.size))


def encode(array: NDArray[Any]) -> dict[str, Any]:
    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return {
        "dtype": array.dtype.name,
        "shape": list(array.shape),
        "data": base64.b64encode(little.tobytes()).decode("ascii"),
    }


def claim_streams() -> tuple[TextIO, TextIO]:
    """Take stdin and stdout for the protocol alone.

    Whatever else the process prints, from Python or from C, goes to stderr.
    """
    requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with open(os.devnull) as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    return requests, replies


def serve(make: MakeDecoder, requests: TextIO, replies: TextIO) -> None:
    """Say that this worker is ready, then answer requests until they end."""
    session = Session(make)

    def write(message: dict[str, Any]) -> None:
        replies.write(json.dumps(message, allow_nan=False) + "\n")
        replies.flush()

    write({"ready": True, "protocol": VERSION})
    for line in requests:
        number = None
        try:
            message = json.loads(line)
            if not isinstance(message, dict):
                raise BadRequest("a request is a JSON object")
            number = message.get("slice")
            write({"slice": number, **session.answer(parse(message))})
        except ValueError as error:
            print(f"slice {number}: {error}", file=sys.stderr)
            write({"slice": number, "error": str(error)})
