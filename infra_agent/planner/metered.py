"""An endpoint that sends nothing before its cost is reserved: each try of a request by itself, for each may cost."""

from __future__ import annotations

import time
from typing import Any

import httpx2

from infra_agent.errors import ModelUnavailable
from infra_agent.planner import TimeUp
from infra_agent.planner.endpoint import Endpoint, Patience, _Declined, _TryAgain
from infra_agent.planner.spending import Purse
from infra_agent.settings import Settings

MAY_HAVE_WORKED = (408, 502, 504)
"""What a gateway answers for a model that took too long: it may have been at work. Other errors cost nothing."""
_NEVER_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.UnsupportedProtocol)


class MeteredEndpoint(Endpoint):
    """The endpoint that the settings name, paid from a purse. `complete` raises BudgetSpent, too."""

    def __init__(self, settings: Settings, patience: Patience, purse: Purse) -> None:
        super().__init__(settings, patience)
        self._purse = purse

    def _once(self, request: dict[str, Any], deadline_s: float) -> str:
        if time.monotonic() >= deadline_s:
            raise TimeUp
        reservation, sent = self._purse.reserve(request)
        try:
            body = super()._once(sent, deadline_s)
        except (_TryAgain, _Declined, ModelUnavailable, TimeUp) as failure:
            if _was_not_taken(failure):
                self._purse.release(reservation)
            raise
        self._purse.settle(reservation, body)
        return body


def _was_not_taken(failure: BaseException) -> bool:
    """Whether a request surely cost nothing: it never left, or was refused by its status. What timed out or broke off
    may have been answered, and stays reserved."""
    cause = failure.__context__
    if isinstance(cause, httpx2.HTTPError):
        return isinstance(cause, _NEVER_SENT)
    if (status := getattr(cause, "status_code", None)) is not None:
        return status not in MAY_HAVE_WORKED
    return isinstance(getattr(cause, "__cause__", None), _NEVER_SENT)
