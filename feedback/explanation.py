"""The evidence behind one signal: the lines, bytes, intervals or values of the files that it was derived from.

Files are read anew and in bounded pieces: what they hold is not ours, and they may be huge or have changed.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, BinaryIO

import numpy as np

from feedback.counts import counts
from feedback.digest import number, render, spot
from feedback.inventory import FileRead
from feedback.readers import Unreadable, formats
from feedback.signals import Evidence, Signal
from feedback.spans import Spans, Stacks
from feedback.wording import plain

MIN_ID = 4
"""Characters of a fingerprint that are enough to ask for a signal, if they are unique."""
AROUND = 2
"""Lines shown before and after the one in question."""
MAX_LINE = 240
MAX_BYTES = 600
MAX_ROWS = 8
MAX_SCANNED = 256 << 20
"""Bytes of a file, unpacked, that are searched for a line."""
MAX_JSON = 32 << 20


def find(signals: Sequence[Signal], asked: str) -> list[Signal]:
    """The signals whose fingerprint begins with `asked`, or whose rule is it."""
    return [s for s in signals if s.rule_id == asked or (len(asked) >= MIN_ID and s.fingerprint.startswith(asked))]


def explain(signal: Signal, files: Sequence[FileRead], prefix: str = "") -> str:
    """A signal in full with what its evidence looks like in the files. A file that is gone or unreadable is said so
    in its place. `prefix` stands before the signal's fingerprint."""
    parts = [render(signal, prefix)]
    counted: list[tuple[Evidence, FileRead]] = []
    for evidence in signal.evidence:
        mine = [f for f in files if evidence.artefact in (str(f.path), f.name, f.path.name)]
        if mine and all(f.format == "callgrind" for f in mine):
            counted += [(evidence, file) for file in mine]
            continue
        if not mine:
            parts.append(f"{spot(evidence)}\n  (not among the files)")
        for file in mine:
            title = f"{file.arm}: {spot(evidence)}" if file.arm else spot(evidence)
            said = [plain(evidence.detail)] if evidence.detail else []
            parts.append("\n  ".join([title, *said, *_passage(evidence, file)]))
    if counted:
        parts.append("\n".join(counts(counted)))
    if not signal.evidence:
        parts.append("(this rule names no evidence; it is derived from the observations as a whole)")
    return "\n\n".join(parts)


def _passage(evidence: Evidence, file: FileRead) -> list[str]:
    look: Callable[[Evidence, FileRead], list[str]] | None = None
    if evidence.line is not None:
        look = _lines
    elif evidence.byte_start is not None:
        look = _bytes
    elif evidence.start_ns is not None:
        look = _intervals
    elif evidence.query.startswith("/"):
        look = _value
    elif "stacks" in file.kinds:
        look = _stacks
    if look is None:
        return []
    try:
        return look(evidence, file)
    except Unreadable as error:
        return [f"(can't be read any more: {plain(str(error))})"]
    except (OSError, EOFError, zlib.error) as error:
        return [f"(can't be read any more: {type(error).__name__})"]


def _lines(evidence: Evidence, file: FileRead) -> list[str]:
    wanted = evidence.line or 1
    found = []
    with _opened(file.path) as stream:
        for number, line in _numbered(stream):
            if number > wanted + AROUND:
                break
            if number >= wanted - AROUND:
                found.append(f"{'>' if number == wanted else ' '} {number}: {_shown(line)}")
    if evidence.query and (value := _named_value(evidence, file)):
        return [value]
    return found or [f"(the file has no line {wanted} any more)"]


def _named_value(evidence: Evidence, file: FileRead) -> str:
    """The value of that name in a line that is one JSON object; empty where there is none."""
    with _opened(file.path) as stream:
        for _ in range((evidence.line or 1) - 1):
            if not stream.readline(MAX_JSON):
                return ""
        try:
            value = json.loads(stream.readline(MAX_JSON))
        except (ValueError, RecursionError):
            return ""
    if not isinstance(value, dict) or evidence.query not in value:
        return ""
    return f"{evidence.line}: {plain(evidence.query)} = {_shown(json.dumps(value[evidence.query]).encode())}"


def _numbered(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Numbered lines, of a long one only its beginning; ends after MAX_SCANNED bytes."""
    number, scanned = 1, 0
    while scanned < MAX_SCANNED and (chunk := stream.readline(4 * MAX_LINE)):
        yield number, chunk
        scanned += len(chunk)
        while not chunk.endswith(b"\n") and scanned < MAX_SCANNED and (chunk := stream.readline(1 << 16)):
            scanned += len(chunk)
        number += 1


def _bytes(evidence: Evidence, file: FileRead) -> list[str]:
    start = max(0, evidence.byte_start or 0)
    length = MAX_BYTES if evidence.byte_end is None else max(0, min(MAX_BYTES, evidence.byte_end - start))
    with file.path.open("rb") as stream:
        stream.seek(start)
        return [f"{start}: {_shown(stream.read(length))}"]


def _intervals(evidence: Evidence, file: FileRead) -> list[str]:
    """The longest intervals of the time range."""
    first = evidence.start_ns or 0
    last = first if evidence.end_ns is None else evidence.end_ns
    rows = []
    for spans in _observed(file, Spans):
        inside = np.flatnonzero((spans.start_ns <= last) & (spans.end_ns >= first))
        length = spans.end_ns[inside] - spans.start_ns[inside]
        for n in inside[np.argsort(-length, kind="stable")[:MAX_ROWS]]:
            track = spans.tracks[spans.track[n]]
            rows.append(
                f"{spans.start_ns[n] / 1e6:.3f} ms +{(spans.end_ns[n] - spans.start_ns[n]) / 1e6:.3f} ms "
                f"{plain(spans.names[spans.name[n]])[:MAX_LINE]} on {plain(track.process)}/{plain(track.name)}"
            )
        if len(inside) > MAX_ROWS:
            rows.append(f"and {len(inside) - MAX_ROWS} shorter ones")
    return rows or ["(no interval lies there any more)"]


def _stacks(evidence: Evidence, file: FileRead) -> list[str]:
    """The heaviest stacks."""
    rows = []
    for stacks in _observed(file, Stacks):
        total = float(stacks.weight.sum()) or 1.0
        only_gil = " taken with the GIL held" if stacks.only_gil else ""
        rows.append(f"shares of all {total:g} {stacks.unit}{only_gil} in this file, every thread together")
        for n in np.argsort(-stacks.weight, kind="stable")[:MAX_ROWS]:
            frames = [stacks.frames[i] for i in stacks.stacks[n][-4:]]
            path = " < ".join(f"{f.function} {f.file}" + (f":{f.line}" if f.line else "") for f in reversed(frames))
            thread = stacks.threads[stacks.thread[n]]
            weight = float(stacks.weight[n])
            rows.append(f"{weight / total:.1%} ({weight:g} {stacks.unit}) {plain(thread)}: {plain(path)[:MAX_LINE]}")
    return rows


def _observed(file: FileRead, kind: type[Any]) -> list[Any]:
    format = formats.named(file.format)
    found = format.read(file.path, file.probe, "screen", file.arm or "candidate") if format else ()
    return [o for o in found if isinstance(o, kind)]


def _value(evidence: Evidence, file: FileRead) -> list[str]:
    """What a JSON pointer points at."""
    with _opened(file.path) as stream:
        data = stream.read(MAX_JSON + 1)
    if len(data) > MAX_JSON:
        return ["(the file is too large to look into)"]
    try:
        value: Any = json.loads(data)
        siblings: Any = None
        for part in evidence.query.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            siblings = value
            value = value[int(name)] if isinstance(value, list) else value[name]
    except (ValueError, LookupError, TypeError, RecursionError):
        return ["(nothing stands there any more)"]
    rows = [f"{plain(evidence.query)} = {_shown(json.dumps(value, ensure_ascii=False).encode())}"]
    if isinstance(siblings, list) and len(siblings) > 1 and all(type(v) in (int, float) for v in siblings):
        first = ", ".join(number(v) for v in siblings[:MAX_ROWS]) + (", ..." if len(siblings) > MAX_ROWS else "")
        where = plain(evidence.query.rpartition("/")[0])
        rows.append(
            f"{where}: {len(siblings)} values, median {number(median(siblings))}, "
            f"{number(min(siblings))}..{number(max(siblings))}: {first}"
        )
    return rows


def _opened(path: Path) -> BinaryIO:
    with path.open("rb") as stream:
        packed = stream.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rb") if packed else path.open("rb")  # type: ignore[return-value]


def _shown(data: bytes) -> str:
    text = plain(data.decode("utf-8", "replace").rstrip("\r\n"))
    return text if len(text) <= MAX_LINE else text[: MAX_LINE * 2 // 3] + " ... " + text[-MAX_LINE // 3 :]
