"""Slice worker of known work: `units` small matrix products, exponentials and sums for each repeat."""

import json
import sys
import tomllib
from pathlib import Path

import numpy as np


def main() -> None:
    units = tomllib.loads(Path(__file__).with_name("work.toml").read_text())["units"]
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((32, 32)) / 6
    print(json.dumps({"ready": True, "protocol": 1}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        x = np.random.default_rng(request["seed"]).standard_normal((32, 8))
        for _ in range(request["params"].get("repeat", 1) * units):
            x = np.tanh(matrix @ x) + 0.5
        # No checksum: arms with different amounts of work are the point here.
        print(json.dumps({"slice": request["slice"], "sum": float(x.sum())}), flush=True)


main()
