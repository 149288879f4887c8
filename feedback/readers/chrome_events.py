"""Events of a Chrome trace as typed records, with times that lose no nanosecond."""

from __future__ import annotations

import math
from decimal import Decimal
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from feedback.readers.columns import LATEST_NS, short
from feedback.spans import Ints

EXACT_BELOW_US = float(1 << 43)
"""Microseconds up to here are apart by less than a nanosecond as a float; beyond, decimals are needed."""

LATEST_US = LATEST_NS // 1000

Id = int | str | float | None


class Args(msgspec.Struct, gc=False, frozen=True):
    """The arguments that say more than where an event ran."""

    correlation: Any = -1
    external: Any = msgspec.field(default=-1, name="External id")
    bytes: Any = -1
    name: Any = None
    labels: Any = None


class Event(msgspec.Struct, gc=False):
    """One event of a trace; `ts` and `dur` in microseconds."""

    ph: str = ""
    name: str = ""
    cat: str = ""
    pid: Id = None
    tid: Id = None
    ts: float | Decimal = math.nan
    dur: float = -1.0
    id: Id = None
    id2: Any = None
    args: Args | None = None


class Rounded(Event):
    ts: float = math.nan


class Exact(Event):
    ts: Decimal = Decimal("NaN")


class Counter(msgspec.Struct, gc=False):
    ph: str = ""
    name: str = ""
    pid: Id = None
    ts: Decimal = Decimal("NaN")
    id: Id = None
    args: Any = None


NO_ARGS = Args()


def lenient(value: Any) -> Event | None:
    """An event of which some field has a type that it should not have, without that field; None if it is none."""
    if not isinstance(value, dict) or not isinstance(value.get("ph"), str):
        return None
    args = value.get("args")
    known = {key: args[name] for key, name in _ARGS.items() if name in args} if isinstance(args, dict) else {}
    event = Rounded(ph=value["ph"], args=Args(**known), id2=value.get("id2"))
    event.name, event.cat = (v if isinstance(v := value.get(key, ""), str) else "" for key in ("name", "cat"))
    event.pid, event.tid, event.id = (
        v if isinstance(v := value.get(key), int | str) else None for key in ("pid", "tid", "id")
    )
    for key in ("ts", "dur"):
        try:
            setattr(event, key, float(value[key]))
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
    return event


_ARGS = {"correlation": "correlation", "external": "External id", "bytes": "bytes", "name": "name", "labels": "labels"}


def floats(events: list[Event], field: str) -> npt.NDArray[np.float64]:
    """One field of all events."""
    return np.fromiter(map(attrgetter(field), events), np.float64, len(events))


def numbers(args: list[Args], field: str) -> Ints:
    """Whole numbers from 0; -1 for what is none."""
    try:
        return np.maximum(np.fromiter(map(attrgetter(field), args), np.int64, len(args)), -1)
    except (TypeError, ValueError, OverflowError):
        values: list[Any] = [getattr(each, field) for each in args]
        return np.array([v if isinstance(v, int) and 0 <= v < LATEST_NS else -1 for v in values], dtype=np.int64)


def whole_nanoseconds(us: npt.NDArray[np.float64]) -> Ints:
    """Microseconds as whole nanoseconds, exact below EXACT_BELOW_US: the whole part and the rest apart."""
    whole = np.floor(us)
    return whole.astype(np.int64) * 1000 + np.rint((us - whole) * 1000).astype(np.int64)


def nanoseconds(us: float | Decimal) -> int:
    """Microseconds as whole nanoseconds; LATEST_NS for what is no time."""
    if isinstance(us, Decimal):
        return round(us * 1000) if us.is_finite() and abs(us) < LATEST_US else LATEST_NS
    if not abs(us) < LATEST_US:
        return LATEST_NS
    whole = math.floor(us)
    return whole * 1000 + round((us - whole) * 1000)


def async_key(event: Event) -> Any:
    """What the begin and the end of an asynchronous interval share."""
    id2 = event.id2 if isinstance(event.id2, dict) else {}
    local = id2.get("local")
    return short((event.cat, str(id2.get("global", event.id)), None if local is None else (event.pid, str(local))))
