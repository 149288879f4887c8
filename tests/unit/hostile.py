"""What a reader of foreign files must survive: every cut, flipped bytes, swapped types."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from feedback.observations import Observation
from feedback.readers import Unreadable
from feedback.readers.columns import MAX_NAME
from feedback.spans import Spans, Stacks
from sandboxes.results import ArmName

Read = Callable[[Path, str, str, ArmName], Sequence[Observation]]

SWAPS = (b"null", b"true", b"-1", b"1e400", b"NaN", b'"x"', b"[]", b"{}", b"99999999999999999999", b"1.5", b'"\\ud800"')


def survives(read: Read, path: Path) -> list[Observation] | None:
    """The observations, checked to be sound, or None for Unreadable; anything else that is raised is a defect."""
    try:
        found = list(read(path, "trace", "screen", "baseline"))
    except (Unreadable, OSError):
        return None
    for observation in found:
        if isinstance(observation, Spans):
            sound_spans(observation)
        elif isinstance(observation, Stacks):
            sound_stacks(observation)
    return found


def sound_spans(spans: Spans) -> None:
    n = len(spans)
    for column in (spans.end_ns, spans.name, spans.category, spans.track, spans.correlation, *spans.columns.values()):
        assert len(column) == n
    assert (spans.end_ns >= spans.start_ns).all()
    assert (np.diff(spans.start_ns) >= 0).all()
    for index, table in ((spans.name, spans.names), (spans.category, spans.categories), (spans.track, spans.tracks)):
        assert n == 0 or 0 <= index.min() <= index.max() < len(table)
    assert spans.lost >= 0
    for text in (*spans.names, *spans.categories, *spans.notes, *(t.name for t in spans.tracks)):
        assert text.isprintable()
        assert len(text) <= MAX_NAME


def sound_stacks(stacks: Stacks) -> None:
    assert len(stacks.stacks) == len(stacks.thread) == len(stacks.weight)
    assert np.isfinite(stacks.weight).all()
    assert (stacks.weight >= 0).all()
    for stack in stacks.stacks:
        assert all(0 <= frame < len(stacks.frames) for frame in stack)
    for frame in stacks.frames:
        assert (frame.function + frame.file).isprintable()


def cuts(data: bytes, n: int) -> Iterator[bytes]:
    """The data cut off at n places."""
    rng = random.Random(1)
    for _ in range(n):
        yield data[: rng.randrange(len(data))]


def flips(data: bytes, n: int) -> Iterator[bytes]:
    """The data with a few bytes changed, n times."""
    rng = random.Random(2)
    for _ in range(n):
        broken = bytearray(data)
        for _ in range(rng.randint(1, 8)):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        yield bytes(broken)


def swaps(data: bytes, n: int) -> Iterator[bytes]:
    """JSON with a value behind some colons, or an element behind some commas, replaced by one of another type."""
    rng = random.Random(3)
    places = [i for i, byte in enumerate(data) if byte in b":,"]
    for _ in range(n):
        broken = data
        for at in sorted(rng.sample(places, rng.randint(1, 4)), reverse=True):
            end = at + 1
            while end < len(broken) and broken[end] not in b",}]\n":
                end += 1
            broken = broken[: at + 1] + rng.choice(SWAPS) + broken[end:]
        yield broken


def fuzz(read: Read, data: bytes, path: Path, n: int = 60, *, json: bool = False) -> int:
    """Read the data damaged in all ways; how many of them still gave observations."""
    kinds = [cuts(data, n), flips(data, n), *([swaps(data, n)] if json else [])]
    survived = 0
    for broken in (broken for kind in kinds for broken in kind):
        path.write_bytes(broken)
        survived += survives(read, path) is not None
    return survived


def unpacked(path: Path) -> bytes:
    """Content of a recorded file, decompressed."""
    data = path.read_bytes()
    return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
