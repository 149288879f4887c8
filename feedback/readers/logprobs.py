"""Teacher-forced log-probabilities of fixed texts: how far the candidate's differ from the baseline's.

A file holds one JSON line a scored server, {"arm": "baseline", "margin": 0.075, "scores": [...]}, the scores
being those of `sandboxes.logprobs` and the margin that of the last candidate. The first baseline line is the
reference. Further baseline lines are the same launch again: their distance from the reference is the A/A
spread, and the tolerance is that spread plus a margin.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from feedback.observations import Observation, ParityPoint
from feedback.readers import Unreadable
from feedback.readers.slices import lines

MARGIN = 0.075
"""Mean |delta log-probability| allowed beyond the A/A spread, in nats. Tried with SmolLM2-135M in Q4_1:
threads, batch sizes and slots change nothing at all; whatever changes a rounding (flash attention off, a bf16
or q8_0 cache) gives 0.044 to 0.057, because the quantized weights amplify it; a q4_0 cache gives 0.18, for
the keys alone 0.15 and for the values alone 0.086."""


class Margins(NamedTuple):
    """What is allowed beyond the A/A spread. A single text has few positions, so it may vary more."""

    mean: float
    largest: float
    top1: float
    text_mean: float
    text_top1: float

    @classmethod
    def of(cls, margin: float) -> Margins:
        """All margins from the one for the overall mean (0.075: 0.75, 5 %, 0.125, 15 %)."""
        return cls(margin, 10 * margin, margin / 1.5, margin / 0.6, 2 * margin)


class _Fields(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _Position(_Fields):
    position: int
    token: int
    logprob: Annotated[float, Field(allow_inf_nan=False)] | None
    censored: bool = False
    top1: int | None = None


class _Text(_Fields):
    text: str
    positions: tuple[_Position, ...]


class _Line(_Fields):
    arm: Literal["baseline", "candidate"]
    margin: Annotated[float, Field(gt=0, allow_inf_nan=False)] = MARGIN
    scores: Annotated[tuple[_Text, ...], Field(min_length=1)]


class Distance(NamedTuple):
    """How far two scorings of one text, or of all, lie apart."""

    mean: float
    largest: float
    top1: float
    """Share of the positions whose likeliest token differs."""
    n: int


def fits(path: Path, head: bytes) -> bool:
    return head.startswith(b'{"arm":') and b'"scores"' in head and b'"logprob"' in head


def read(path: Path, probe: str, stage: str) -> list[Observation]:
    """Per text and for all texts: `mean_abs_logprob_delta`, `max_abs_logprob_delta`, `top1_disagreement`.

    The candidate with the largest distance counts if it was scored more than once. A position that a server
    refused, or texts that differ, are infinitely far apart. Raises Unreadable for a broken file, and when it
    holds no baseline or no candidate.
    """
    arms: dict[str, list[tuple[_Text, ...]]] = {"baseline": [], "candidate": []}
    number, margin = 0, MARGIN
    for number, line in lines(path):
        try:
            scored = _Line.model_validate(line)
        except ValueError as error:
            raise Unreadable(path, number, f"not log-probabilities: {error}") from error
        arms[scored.arm].append(scored.scores)
        margin = scored.margin if scored.arm == "candidate" else margin
    for arm, found in arms.items():
        if not found:
            raise Unreadable(path, number, f"no log-probabilities of the {arm}")
    return list(points(arms["baseline"], arms["candidate"], probe, stage, margin))


def points(
    baseline: Sequence[Sequence[_Text]],
    candidate: Sequence[Sequence[_Text]],
    probe: str,
    stage: str,
    margin: float,
) -> Iterator[ParityPoint]:
    """The candidate's distances from the first baseline scoring, with their tolerances."""
    reference, margins = baseline[0], Margins.of(margin)
    for place, text in enumerate([*reference, None]):
        spread = _worst([_at(reference, again, place) for again in baseline[1:]])
        distance = _worst([_at(reference, scores, place) for scores in candidate])
        whole = text is None
        allowed = {
            "mean_abs_logprob_delta": spread.mean + (margins.mean if whole else margins.text_mean),
            "max_abs_logprob_delta": spread.largest + margins.largest,
            "top1_disagreement": spread.top1 + (margins.top1 if whole else margins.text_top1),
        }
        values = (distance.mean, distance.largest, distance.top1)
        for (measure, tolerance), value in zip(allowed.items(), values, strict=True):
            yield ParityPoint(
                probe=probe, stage=stage, tensor="logprobs", measure=measure, value=value,
                tolerance=tolerance, case={"text": text.text if text else "all", "positions": distance.n},
            )  # fmt: skip


def _at(reference: Sequence[_Text], other: Sequence[_Text], place: int) -> Distance:
    """The distance of the text at `place`, or of all texts together beyond the last one."""
    if [text.text for text in reference] != [text.text for text in other]:
        return Distance(math.inf, math.inf, 1.0, 0)
    chosen = slice(place, place + 1) if place < len(reference) else slice(None)
    pairs = [
        pair
        for a, b in zip(reference[chosen], other[chosen], strict=True)
        for pair in _paired(a.positions, b.positions)
    ]
    if not pairs:
        return Distance(math.inf, math.inf, 1.0, 0)
    deltas = [_delta(a, b) for a, b in pairs]
    n_differing = sum(a.top1 != b.top1 for a, b in pairs)
    return Distance(math.fsum(deltas) / len(deltas), max(deltas), n_differing / len(pairs), len(pairs))


def _paired(a: Sequence[_Position], b: Sequence[_Position]) -> list[tuple[_Position, _Position]]:
    """Positions of both in order; nothing at all unless they are the same positions and tokens."""
    if [(p.position, p.token) for p in a] != [(p.position, p.token) for p in b]:
        return []
    return list(zip(a, b, strict=True))


def _delta(a: _Position, b: _Position) -> float:
    """|a - b| in nats. A censored value is an upper bound, so only what is surely different counts."""
    if a.logprob is None or b.logprob is None:
        return math.inf
    if a.censored and b.censored:
        return 0.0
    if a.censored:
        return max(0.0, b.logprob - a.logprob)
    if b.censored:
        return max(0.0, a.logprob - b.logprob)
    return abs(a.logprob - b.logprob)


def _worst(distances: Sequence[Distance]) -> Distance:
    """The largest of each measure; zero distance where there is nothing to compare."""
    if not distances:
        return Distance(0.0, 0.0, 0.0, 0)
    return Distance(
        max(d.mean for d in distances), max(d.largest for d in distances),
        max(d.top1 for d in distances), distances[0].n,
    )  # fmt: skip
