"""The purse of a campaign's models: tokens and dollars are reserved before a request goes out, and settled after.

A reservation is stored first, so a call whose answer is lost, by `kill -9` too, counts with what it may have cost. One
that doesn't fit a budget raises BudgetSpent, which ends the campaign's planning. Recorded answers never come here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple, Protocol

from feedback.digest import count_tokens
from infra_agent.domain import NANODOLLARS, Budget, ModelUse, Reservation
from infra_agent.planner import BudgetSpent
from infra_agent.planner.calls import request_hash
from infra_agent.planner.prices import find_price, unknown_price
from infra_agent.settings import Settings

ANSWER_TOKENS = 16_384
"""What an answer is taken to have at most where nothing limits it and no budget must hold."""
LEAST_ANSWER_TOKENS = 1_024
"""A call is worth making only if its answer may have this many."""
PROMPT_MARGIN = 1.2
"""On our count of a prompt's tokens: tokenizers differ, and some take each digit for one."""
MESSAGE_TOKENS = 8
"""What a chat template puts around each message."""
MOST_TOKENS = 2**31 - 1
"""No call has more; an endpoint that says so has counted nothing."""
LIMITS = ("max_completion_tokens", "max_tokens")
"""Fields of a request that limit the answer."""


class SpendingBook(Protocol):
    """Remembers the reservations of one campaign."""

    def reserve(self, plan: Callable[[ModelUse], Reservation]) -> Reservation:
        """Store what `plan` makes of all that is spent and reserved so far, in one step; returns it with its id. When
        this returns, it survives a crash. If `plan` raises, nothing is stored."""

    def close(self, reservation: Reservation) -> None:
        """Store what a request did cost."""

    def use(self) -> ModelUse:
        """What all calls so far add up to."""


class BookInMemory:
    """A SpendingBook that forgets when the process ends."""

    def __init__(self) -> None:
        self.reservations: list[Reservation] = []

    def reserve(self, plan: Callable[[ModelUse], Reservation]) -> Reservation:
        """Keep what `plan` makes of the use so far."""
        planned = plan(self.use()).model_copy(update={"id": len(self.reservations) + 1})
        self.reservations.append(planned)
        return planned

    def close(self, reservation: Reservation) -> None:
        """Keep what a request did cost."""
        self.reservations[reservation.id - 1] = reservation

    def use(self) -> ModelUse:
        """What all calls so far add up to."""
        return ModelUse.total(self.reservations)


class Reserved(NamedTuple):
    """A request that may go out now."""

    reservation: Reservation
    request: dict[str, Any]
    """As it is sent: with a lower limit of its answer, where a budget leaves less."""


class Purse:
    """What one campaign may spend on the settings' model.

    Raises WrongUse for a budget in dollars with a model of unknown price, and for a price table that can't be used.
    """

    def __init__(self, settings: Settings, budget: Budget, book: SpendingBook, campaign_id: str) -> None:
        self._model = settings.model
        self._budget = budget
        self._book = book
        self._campaign_id = campaign_id
        self._price = find_price(settings)
        self._window = min(settings.model_context, (self._price and self._price.window_tokens) or MOST_TOKENS)
        self._margin = PROMPT_MARGIN
        if budget.dollars is not None and self._price is None:
            raise unknown_price(settings)
        self._nanodollars = None if budget.dollars is None else int(Decimal(str(budget.dollars)) * NANODOLLARS)

    @property
    def is_limited(self) -> bool:
        """Whether a budget of tokens or dollars must hold."""
        return self._budget.tokens is not None or self._nanodollars is not None

    def reserve(self, request: dict[str, Any]) -> Reserved:
        """Reserve what a request may cost; it must be sent as it comes back. Raises BudgetSpent."""
        field = next((name for name in LIMITS if name in request), None)
        prompt_tokens = self._prompt_tokens(request)
        if field is not None:
            wanted = request[field]
            least = min(LEAST_ANSWER_TOKENS, wanted)
        else:  # an endpoint that takes no limit may fill what the prompt leaves of the window
            least = wanted = max(1, self._window - prompt_tokens) if self.is_limited else ANSWER_TOKENS

        def plan(use: ModelUse) -> Reservation:
            completion_tokens = self._answer_tokens(use, prompt_tokens, wanted, least)
            return Reservation(
                campaign_id=self._campaign_id, request_hash=request_hash(request), model=self._model,
                reserved_prompt_tokens=prompt_tokens, reserved_completion_tokens=completion_tokens,
                prompt_tokens=prompt_tokens, completion_tokens=completion_tokens,
                nanodollars=self._cost(prompt_tokens, 0, completion_tokens),
            )  # fmt: skip

        reservation = self._book.reserve(plan)
        if field is None or wanted == reservation.reserved_completion_tokens:
            return Reserved(reservation, request)
        return Reserved(reservation, {**request, field: reservation.reserved_completion_tokens})

    def settle(self, reservation: Reservation, body: str) -> None:
        """Store what the endpoint says that a call took, more than was reserved included. What it doesn't say stays at
        the reservation."""
        usage = _usage(body)
        prompt = usage.prompt_tokens or reservation.reserved_prompt_tokens
        counted = usage.completion_tokens
        completion = reservation.reserved_completion_tokens if counted is None else counted
        cached = min(usage.cached_tokens, prompt)
        if prompt > reservation.reserved_prompt_tokens:  # from now on from above again
            self._margin *= prompt / max(1, reservation.reserved_prompt_tokens - 1)  # it had been rounded up
        settled = {
            "state": "settled", "prompt_tokens": prompt, "cached_tokens": cached, "completion_tokens": completion,
            "nanodollars": self._cost(prompt, cached, completion), "is_estimated": not usage.is_whole,
        }  # fmt: skip
        self._book.close(reservation.model_copy(update=settled))

    def release(self, reservation: Reservation) -> None:
        """Give back what was reserved for a request that the endpoint did not take."""
        nothing = {"state": "released", "prompt_tokens": 0, "completion_tokens": 0, "nanodollars": 0}
        self._book.close(reservation.model_copy(update=nothing))

    def _cost(self, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> int | None:
        return None if self._price is None else self._price.cost(prompt_tokens, cached_tokens, completion_tokens)

    def _prompt_tokens(self, request: dict[str, Any]) -> int:
        """An estimate from above of what a request's messages and tools are to the model."""
        text = json.dumps(request, ensure_ascii=False).encode("utf-8", "replace").decode()
        n_messages = len(request["messages"]) if isinstance(request.get("messages"), list) else 1
        return math.ceil(self._margin * (count_tokens(text) + MESSAGE_TOKENS * n_messages))

    def _answer_tokens(self, use: ModelUse, prompt_tokens: int, wanted: int, least: int) -> int:
        """How long the answer may be within the budgets, up to `wanted`; BudgetSpent if that is less than `least`."""
        allowed = wanted
        if self._budget.tokens is not None:
            allowed = min(allowed, self._budget.tokens - use.tokens - prompt_tokens)
            if allowed < least:
                raise BudgetSpent(
                    f"the budget of {self._budget.tokens} tokens is used up ({use.tokens} used, the next call may take "
                    f"{prompt_tokens + least})"
                )
        if self._nanodollars is not None and self._price is not None:
            # What was called when no price was known counts as if this model had been asked.
            spent = use.nanodollars + self._price.cost(use.unpriced_prompt_tokens, 0, use.unpriced_completion_tokens)
            left = self._nanodollars - spent
            payable = self._price.completion_tokens(left - self._price.cost(prompt_tokens, 0, 0))
            allowed = allowed if payable is None else min(allowed, payable)
            if allowed < least or self._price.cost(prompt_tokens, 0, allowed) > left:
                may_take = self._price.cost(prompt_tokens, 0, least)
                raise BudgetSpent(
                    f"the budget of {self._budget.dollars:g} dollars is used up ({spent / NANODOLLARS:.6g} used, the "
                    f"next call may take {may_take / NANODOLLARS:.6g})"
                )
        return allowed


class _Usage(NamedTuple):
    """Tokens that an endpoint counted, as far as it says so."""

    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int

    @property
    def is_whole(self) -> bool:
        """Whether prompt and answer were counted."""
        return self.prompt_tokens is not None and self.completion_tokens is not None


def _usage(body: str) -> _Usage:
    """What a body says of its tokens; nothing, where it is no JSON or says nonsense."""
    try:
        usage = _object(json.loads(body), "usage")
    except (ValueError, RecursionError):
        usage = {}
    prompt = _count(usage.get("prompt_tokens")) or None  # no prompt is empty
    completion, total = _count(usage.get("completion_tokens")), _count(usage.get("total_tokens"))
    if prompt is not None and total is not None:  # some endpoints count a model's reasoning only here
        completion = max(completion or 0, total - prompt)
    cached = _count(_object(usage, "prompt_tokens_details").get("cached_tokens"))
    if cached is None:
        cached = _count(usage.get("prompt_cache_hit_tokens"))  # DeepSeek's word for it
    return _Usage(prompt, completion, cached or 0)


def _object(data: object, name: str) -> dict[str, Any]:
    found = data.get(name) if isinstance(data, dict) else None
    return found if isinstance(found, dict) else {}


def _count(value: object) -> int | None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_TOKENS
    return value if is_count and isinstance(value, int) else None
