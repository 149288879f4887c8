"""Measurement files of slice workers: JSON lines of type `slice` and `pair`, as sandboxes.runner writes them."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from feedback.observations import Measurement, Observation, ParityPoint, RuntimeEvent
from feedback.readers import Unreadable


def lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Numbered JSON objects of a JSON-lines file. Raises Unreadable with the line."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, text in enumerate(file, 1):
            try:
                line = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise Unreadable(path, number, f"not JSON: {error}") from error
            if not isinstance(line, dict):
                raise Unreadable(path, number, "not a JSON object")
            yield number, line


def fits(path: Path, head: bytes) -> bool:
    return head.startswith(b'{"type": "') and b'"record"' in head and b'"block"' in head


def read(path: Path, probe: str, stage: str, check_tolerance: float = 1e-4) -> list[Observation]:
    """Slice times in seconds, agreement of the arms' checksums, and disturbed pairs. Raises Unreadable.

    `check_tolerance` holds where the lines don't say their own.
    """
    found: list[Observation] = []
    checks: dict[tuple[int, int, int], dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for number, line in lines(path):
        try:
            if line.get("type") == "slice":
                found.append(_measurement(line, probe, stage))
                if not line.get("paired", True):
                    continue  # one arm alone: nothing to agree with
                place = (line["pair"], line["block"], line["seed"])
                checks[place][line["arm"]].append(line["record"].get("check"))
                check_tolerance = float(line.get("check_tolerance", check_tolerance))
            elif line.get("type") == "pair":
                found += pair_events(line, probe, stage)
        except (KeyError, TypeError, ValueError) as error:
            raise Unreadable(path, number, f"not a measurement: {error}") from error
    return found + _agreement(checks, probe, stage, check_tolerance) + _variety(checks, probe, stage)


def _measurement(line: dict[str, Any], probe: str, stage: str) -> Measurement:
    duration_s = line["record"]["duration_s"]
    if not (paired := line.get("paired", True)):
        # One arm under several conditions: how often the work was repeated is another number in each of them.
        duration_s /= line.get("repeat", 1)
    return Measurement(
        probe=probe, metric="slice_time_s" if paired else "time_s", value=duration_s, arm=line["arm"], stage=stage,
        pair=line["pair"], block=line["block"], position=line["position"], disturbed=line["disturbed"],
        paired=paired, case=line.get("case", {}),
    )  # fmt: skip


def pair_events(line: dict[str, Any], probe: str, stage: str) -> list[RuntimeEvent]:
    """A disturbed pair as an event, whether it was repeated or kept."""
    if not line["disturbed"]:
        return [RuntimeEvent(probe=probe, source="contention", name="quiet_pair", stage=stage)]
    shares = line["contention"]
    name = "disturbed_pair_kept" if line["kept"] else "disturbed_pair_repeated"
    message = f"foreign CPU {shares['foreign_cpu_share']:.0%}, steal {shares['steal_share']:.0%}"
    return [RuntimeEvent(probe=probe, source="contention", name=name, level="warning", message=message, stage=stage)]


def _agreement(
    checks: dict[tuple[int, int, int], dict[str, list[Any]]], probe: str, stage: str, tolerance: float
) -> list[Observation]:
    """One parity point: the largest relative difference between the arms' checksums of the same work. An event
    instead if the baseline answers none: nothing can be compared then."""
    if not checks:
        return []
    if not any(values for by_arm in checks.values() for values in by_arm.get("baseline", []) if values):
        return [RuntimeEvent(probe=probe, source="check", name="no_check", arm="baseline", stage=stage)]
    worst = max(_difference(by_arm) for by_arm in checks.values())
    blocks = {(pair, block) for pair, block, _ in checks}
    return [
        ParityPoint(
            probe=probe, case={"blocks": len(blocks)}, tensor="check", measure="relative_difference",
            value=worst, tolerance=tolerance, stage=stage,
        )
    ]  # fmt: skip


def _variety(checks: dict[tuple[int, int, int], dict[str, list[Any]]], probe: str, stage: str) -> list[Observation]:
    """How many different checksums an arm gave, where it was asked for three seeds or more."""
    found: list[Observation] = []
    for arm in ("baseline", "candidate"):
        by_seed = {seed: by_arm[arm][0] for (_, _, seed), by_arm in checks.items() if by_arm.get(arm)}
        if len(by_seed) >= 3 and all(check for check in by_seed.values()):
            distinct = len({json.dumps(check, default=str) for check in by_seed.values()})
            found.append(
                Measurement(
                    probe=probe, metric="distinct_checks", value=distinct, arm=arm, stage=stage,
                    case={"seeds": len(by_seed)},
                )
            )  # fmt: skip
    return found


def _difference(by_arm: dict[str, list[Any]]) -> float:
    """The largest relative difference inside one block's results for one seed; infinite where two can't be
    compared or an arm is missing. What an arm answers is not to be trusted to be of any form."""
    if not (by_arm["baseline"] and by_arm["candidate"]):
        return math.inf
    reference, *others = (*by_arm["baseline"], *by_arm["candidate"])
    if not isinstance(reference, list):
        return math.inf
    worst = 0.0
    for other in others:
        if not isinstance(other, list) or len(other) != len(reference):
            return math.inf
        worst = max(worst, *(_gap(a, b) for a, b in zip(reference, other, strict=True)), 0.0)
    return worst


def _gap(a: Any, b: Any) -> float:
    if not (isinstance(a, int | float) and isinstance(b, int | float)):
        return math.inf
    try:
        x, y = float(a), float(b)
    except OverflowError:
        return math.inf
    if not (math.isfinite(x) and math.isfinite(y)):
        return math.inf
    return abs(x - y) / max(abs(x), abs(y), 1e-30)
