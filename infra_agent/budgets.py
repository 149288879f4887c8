"""The budgets that are kept by the store or the target: what models spent, and which totals may be asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from pydantic import ValidationError

from infra_agent.domain import Budget, ModelUse, Reservation
from infra_agent.errors import WrongUse
from infra_agent.journal import Journal
from infra_agent.pulse import last_beat_s, pulse_file
from infra_agent.store import Store
from infra_agent.target import FILE_NAME, TargetSpec


class StoredSpending:
    """What the model calls of one campaign may cost and did cost."""

    def __init__(self, store: Store, campaign_id: str) -> None:
        self._store = store
        self._campaign_id = campaign_id

    def reserve(self, plan: Callable[[ModelUse], Reservation]) -> Reservation:
        """Store what `plan` makes of the use so far, before the request goes out."""
        with self._store.transaction() as ledger:
            return ledger.add_reservation(plan(ledger.model_use(self._campaign_id)))

    def close(self, reservation: Reservation) -> None:
        """Store what a request did cost."""
        with self._store.transaction() as ledger:
            ledger.close_reservation(reservation)

    def use(self) -> ModelUse:
        """What all calls so far add up to."""
        with self._store.transaction(read_only=True) as ledger:
            return ledger.model_use(self._campaign_id)


def with_running_time(journal: Journal, runs: Path) -> Journal:
    """The journal with the time that unfinished experiments have run, by their files in the directory of the runs:
    that of one which runs now, and of an attempt that was killed and is not counted yet."""
    for unfinished in journal.unfinished:
        if ran_s := last_beat_s(pulse_file(runs, unfinished.id)):
            journal = journal.updated(unfinished.model_copy(update={"lost_s": unfinished.lost_s + ran_s}))
    return journal


def check_accelerators(budget: Budget, target: TargetSpec) -> None:
    """Raises WrongUse for a budget of accelerator-seconds where the target counts no accelerators."""
    if budget.accelerator_s is not None and not target.accelerators:
        raise WrongUse(
            f"--accelerator-seconds can't be kept for {target.name}: its {FILE_NAME} declares no accelerators; add "
            "`accelerators = N` at its top, the number of GPUs or the like that a measurement keeps busy"
        )


def raised(
    budget: Budget, totals: Mapping[str, float | None], target: TargetSpec, models: ModelUse, journal: Journal
) -> Budget:
    """A budget with new totals, None keeping the old one. Raises WrongUse for a total that is spent already."""
    used = {
        "tokens": ("--tokens", models.tokens),
        "dollars": ("--dollars", models.dollars),
        "accelerator_s": ("--accelerator-seconds", target.accelerators * journal.sandbox_s),
    }
    given = {name: total for name, total in totals.items() if total is not None}
    for name, (option, spent) in used.items():
        if name in given and given[name] <= spent:
            raise WrongUse(f"{option} is a total: {spent:.12g} are used, so give more")
    try:
        found = Budget.model_validate(budget.model_dump() | given)
    except ValidationError as error:
        raise WrongUse("; ".join(f"{e['loc'][-1]}: {e['msg']}" for e in error.errors())) from error
    check_accelerators(found, target)
    return found
