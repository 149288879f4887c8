"""Our own JSON-lines event format, for what a system says of itself and no other format holds.

    {"type": "event", "name": "shared_prefix_tokens", "count": 240, "at_s": 1.5, "level": "note", "message": "..."}

`name` is required; `source` is free text of the writer's, such as its module. Other lines are passed over.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from feedback.observations import RuntimeEvent, Source
from feedback.readers import Unreadable, patterns
from sandboxes.results import ArmName

MAX_EVENTS = 100_000
_TELLING = re.compile(rb'^\{"type": ?"event"', re.MULTILINE)

Number = Annotated[float, Field(allow_inf_nan=False)]


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    type: Literal["event"]
    name: Annotated[str, Field(min_length=1, max_length=100)]
    source: Annotated[str, Field(max_length=200)] = ""
    level: Literal["error", "warning", "note"] = "note"
    message: str = ""
    count: Number = 1
    at_s: Number | None = None
    duration_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None


def fits(path: Path, head: bytes) -> bool:
    """Whether an event stands at the beginning."""
    return bool(_TELLING.search(head))


def read(path: Path, probe: str, stage: str, arm: ArmName) -> list[RuntimeEvent]:
    """Every event of the file, at most MAX_EVENTS. Raises Unreadable with the line, OSError."""
    found: list[RuntimeEvent] = []
    for number, text in patterns.lines(path):
        if not text:
            continue
        try:
            line = json.loads(text)
            if not isinstance(line, dict) or line.get("type") != "event":
                continue
            event = _Event.model_validate(line)
        except (ValidationError, ValueError, RecursionError) as error:
            raise Unreadable(path, number, f"not an event: {error}") from error
        if len(found) >= MAX_EVENTS:
            raise Unreadable(path, number, f"more than {MAX_EVENTS} events")
        said = f"{event.source}: {event.message}" if event.source else event.message
        found.append(
            RuntimeEvent(
                probe=probe, source="events", name=event.name, level=event.level, count=event.count, at_s=event.at_s,
                message=said[: patterns.MAX_MESSAGE], duration_s=event.duration_s, arm=arm, stage=stage,
                place=Source(file=path.name, line=number),
            )
        )  # fmt: skip
    return found
