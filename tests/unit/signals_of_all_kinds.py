"""One signal of every finding, with every kind of place, and with text that tries to act."""

from __future__ import annotations

import math
from pathlib import Path

from feedback.comparison import Comparison
from feedback.inventory import FileRead, NotRead
from feedback.signals import (
    Cause,
    CodeLocation,
    Effect,
    Evidence,
    HostLocation,
    InputLocation,
    IntervalLocation,
    KernelLocation,
    Location,
    ParamLocation,
    ProcessLocation,
    Quantity,
    RegionLocation,
    Signal,
    ThreadLocation,
)

EVIL = (
    "@octocat see #12, GH-3 and https://evil.example www.evil.example <img src=x onerror=alert(1)> [click](http://e.x) "
    "![i](http://e.x/i.png) | `code` **bold** \x1b[31m\u202e {0} [a](1) </details> a@b.example\n# Title\n- item"
)

PLACES: tuple[Location, ...] = (
    CodeLocation(file="src/kernels/my kernel.c", line=7, symbol="step"),
    CodeLocation(file="../../etc/passwd"),
    CodeLocation(file="/abs/a.py", line=3),
    CodeLocation(file=""),
    KernelLocation(name=f"void sgemm<float, 4>{EVIL}", source="k.cu:3"),
    ParamLocation(name="max_num_seqs", value=4, was=2),
    ThreadLocation(process="engine", name="loop", tid=7),
    IntervalLocation(track="gpu", start_ns=1_000_000, end_ns=2_000_000),
    InputLocation(condition={"T": 1024, "dtype": EVIL}),
    ProcessLocation(arm="candidate", role="server"),
    HostLocation(cpus=(1, 2)),
    RegionLocation(tensor="S", region="rank 1", index=0),
)

EFFECT = Effect(
    metric="time_s", direction="minimize", baseline=0.0123, measured=0.0099, ratio=0.8, ratio_lo=0.78, ratio_hi=0.82,
    confidence=0.97, method="Student t", n_units=10, n_observations=280, floor=0.02, floor_known=False,
)  # fmt: skip


def signal(finding: str, level: str, locations: tuple[Location, ...] = PLACES) -> Signal:
    return Signal.model_validate(
        {
            "rule_id": "performance.bench_delta", "level": level, "finding": finding, "message": f"said {EVIL}"[:400],
            "locations": locations, "reason": f"because {EVIL}",
            "effect": EFFECT if finding in ("better", "worse") else None,
            "measured": (Quantity(name=EVIL, value=1.5, unit="ms", lo=1.4, hi=1.6), Quantity(name="x", value=math.nan)),
            "expected": (Quantity(name=EVIL, value=math.inf),),
            "causes": (Cause(text=EVIL, support="strong", explains=0.7, refutable_by=EVIL),),
            "caveats": (EVIL,), "next": (EVIL,),
            "evidence": (
                Evidence(artefact="a.log", line=7, detail=EVIL), Evidence(artefact="t.json", start_ns=1, end_ns=2),
                Evidence(artefact=EVIL, byte_start=10, byte_end=20, query=EVIL), Evidence(artefact="z", byte_start=9),
            ),
        }
    )  # fmt: skip


FINDINGS = (
    ("violates", "error"), ("worse", "warning"), ("better", "note"), ("same", "note"), ("inconclusive", "warning"),
    ("holds", "note"), ("observed", "error"), ("observed", "note"), ("abstained", "warning"),
)  # fmt: skip


def everything() -> Comparison:
    """A comparison with all of them, with files read and not."""
    return Comparison(
        base=(Path("base|dir"),), candidate=(Path(f"cand {EVIL}"[:80]),),
        signals=tuple(signal(finding, level) for finding, level in FINDINGS)
        + tuple(signal("observed", "warning", (place,)) for place in PLACES)
        + (Signal(rule_id="new.rule", level="note", finding="observed", message="m", locations=(HostLocation(),)),),
        read=(FileRead(path=Path("a"), name=EVIL, format="junit", probe="p", arm="baseline", kinds={"test": 3}),),
        unread=(NotRead(path=Path("b"), name=EVIL, reason=EVIL, line=3), NotRead(path=Path("c"), name="c", reason="?")),
        unmatched=(EVIL,),
    )  # fmt: skip
