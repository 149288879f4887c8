"""The journal of model calls: asked before a call is made, written before its answer is acted on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Protocol

from infra_agent.domain import ModelCall


class ModelJournal(Protocol):
    """Remembers the model calls of one campaign, so that a resume pays for none of them twice."""

    @property
    def campaign_id(self) -> str:
        """The campaign that the calls belong to."""

    def recall(self, request_hash: str) -> ModelCall | None:
        """The call made earlier with exactly this request, if any."""

    def record(self, call: ModelCall) -> None:
        """Keep a call; when this returns it survives a crash."""


class CallsInMemory:
    """A ModelJournal that forgets when the process ends."""

    def __init__(self, campaign_id: str = "none") -> None:
        self.calls: dict[str, ModelCall] = {}
        self._campaign_id = campaign_id

    @property
    def campaign_id(self) -> str:
        """The campaign that the calls belong to."""
        return self._campaign_id

    def recall(self, request_hash: str) -> ModelCall | None:
        """The call made earlier with exactly this request, if any."""
        return self.calls.get(request_hash)

    def record(self, call: ModelCall) -> None:
        """Keep a call; the first one stands."""
        self.calls.setdefault(call.request_hash, call)


def canonical(request: Mapping[str, object]) -> str:
    """A request as JSON, the same text for the same request."""
    return json.dumps(request, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def request_hash(request: Mapping[str, object]) -> str:
    """SHA-256 of the full request."""
    return hashlib.sha256(canonical(request).encode()).hexdigest()
