"""Slice worker of known work: `units` steps of arithmetic and table look-ups for each repeat."""

import json
import sys
import tomllib
from pathlib import Path


def main() -> None:
    units = tomllib.loads(Path("work.toml").read_text())["units"]
    table = [(i * 7919) % 4093 for i in range(4096)]
    print(json.dumps({"ready": True, "protocol": 1}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        x = request["seed"] % 4096
        for _ in range(request["params"].get("repeat", 1) * units):
            x = (x * 31 + table[x]) & 4095
        # No checksum: arms with different amounts of work are the point here.
        print(json.dumps({"slice": request["slice"], "x": x}), flush=True)


main()
