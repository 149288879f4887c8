"""What someone outside told a campaign and was answered, kept in the campaign's log."""

from __future__ import annotations

from typing import NamedTuple

from pydantic import JsonValue

from infra_agent.domain import Event
from infra_agent.planner.external import Answer, Call, Open, refused_proposal
from infra_agent.planner.fence import cut
from infra_agent.store import Store

TOLD, ANSWERED = "told", "answered"
KEPT_CHARACTERS = 20_000
"""Of an answer's text."""


class Exchange(NamedTuple):
    """One call and its answer as they were recorded."""

    answer: Answer
    at: Event


class Dialogue:
    """A Memory in the store."""

    def __init__(self, store: Store, campaign_id: str) -> None:
        self._store = store
        self._campaign_id = campaign_id

    def open(self) -> Open | None:
        """The action that was told last, if it was cut off before its answer."""
        last = self._last_told()
        if last is None:
            return None
        number = last.data["number"]
        assert isinstance(number, int)
        return Open(Call.model_validate(last.data["call"]), number)

    def refused(self) -> dict[str, JsonValue]:
        """The arguments of the proposal that was refused last, as amended since."""
        with self._store.transaction(read_only=True) as ledger:
            events = ledger.events(self._campaign_id)
        return refused_proposal(exchange.answer for exchange in exchanges(events))

    def told(self, call: Call, number: int) -> None:
        """An action is about to be taken."""
        with self._store.transaction() as ledger:
            ledger.add_event(self._campaign_id, TOLD, {"call": call.model_dump(mode="json"), "number": number})

    def answered(self, answer: Answer) -> None:
        """A call has its answer."""
        told = self._last_told() if answer.call.acts else None
        kept = answer.model_copy(update={"text": cut(answer.text, KEPT_CHARACTERS)})
        data = {**kept.model_dump(mode="json"), "told": told.id if told else None}
        with self._store.transaction() as ledger:
            ledger.add_event(self._campaign_id, ANSWERED, data)

    def _last_told(self) -> Event | None:
        with self._store.transaction(read_only=True) as ledger:
            events = ledger.events(self._campaign_id)
        done = {event.data.get("told") for event in events if event.type == ANSWERED}
        return next((e for e in reversed(events) if e.type == TOLD and e.id not in done), None)


def exchanges(events: tuple[Event, ...]) -> tuple[Exchange, ...]:
    """The calls of a campaign's log with their answers, in order."""
    found = []
    for event in events:
        if event.type == ANSWERED:
            given = {name: value for name, value in event.data.items() if name != "told"}
            found.append(Exchange(Answer.model_validate(given), event))
    return tuple(found)
