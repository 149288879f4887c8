"""Our JSON-lines event format: whatever a probe, an engine or a script wants to say, one line an event.

The fields stand in docs/formats.md. Only `name` is needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from feedback.observations import RuntimeEvent, Source
from feedback.readers import Unreadable
from feedback.readers.documents import Fields, Finite, Positive, first_object, lines, shown, valid
from sandboxes.results import ArmName

MAX_EVENTS = 200_000
MAX_LINE_BYTES = 1 << 16


def _printable(value: Any) -> Any:
    return shown(value) if isinstance(value, str) else value


class _Event(Fields):
    name: Annotated[str, BeforeValidator(_printable), Field(min_length=1)]
    level: Literal["error", "warning", "note"] = "note"
    message: Annotated[str, BeforeValidator(_printable)] = ""
    count: Finite = 1
    at_s: Finite | None = None
    duration_s: Positive | None = None
    arm: ArmName | None = None


def fits(path: Path, head: bytes) -> bool:
    line = first_object(head)
    return isinstance(line.get("name"), str) and bool(line.keys() & {"at_s", "level", "count", "duration_s"})


def read(path: Path, probe: str, stage: str, arm: ArmName) -> list[RuntimeEvent]:
    """One event a line. Raises Unreadable with the line, OSError when it can't be read."""
    found: list[RuntimeEvent] = []
    for number, line in lines(path, MAX_LINE_BYTES):
        if len(found) == MAX_EVENTS:
            raise Unreadable(path, number, f"more than {MAX_EVENTS} events; sum them up with `count`")
        event = valid(_Event, line, path, number)
        found.append(
            RuntimeEvent(
                probe=probe, source="events", name=event.name, level=event.level, message=event.message,
                count=event.count, at_s=event.at_s, duration_s=event.duration_s, arm=event.arm or arm, stage=stage,
                place=Source(file=path.name, line=number),
            )
        )  # fmt: skip
    return found
