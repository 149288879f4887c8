"""What a campaign is doing, for people who wait: its events and remarks as lines, and one line that says what runs
now. Knows no terminal; whoever shows the lines does."""

from __future__ import annotations

import time
from collections.abc import Callable

from infra_agent.domain import Budget, Event
from infra_agent.report.text import duration, short

_CLAIM_CHARACTERS = 90
_REASON_CHARACTERS = 160
_ROLES = {
    "baseline": "measuring the baseline against itself",
    "final": "measuring the result as a whole against the original",
    "control": "measuring the result against the control arm",
    "layer": "measuring the result without the change",
}


class Progress:
    """Follows one run of a campaign."""

    def __init__(
        self, budget: Budget, changes: int, elapsed_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._budget = budget
        self._clock = clock
        self._started = clock() - elapsed_s
        self.changes = changes
        """Changes that have their outcome."""
        self._running: dict[object, str] = {}
        """What is conducted now, by experiment."""
        self._ordinals: dict[object, int] = {}
        """Which change an experiment is, counted from 1."""
        self._doing = "starting"
        self._step = ""

    def event(self, event: Event) -> str:
        """An event of the campaign's log as one line; empty for one that is of no interest here."""
        data = event.data
        match event.type:
            case "experiment_waiting":
                return f"proposed: {short(str(data.get('claim', '')), _CLAIM_CHARACTERS)}"
            case "experiment_started":
                number = data.get("number")
                if data.get("role") == "change":
                    self._ordinals.setdefault(number, self.changes + self._n_changes_running() + 1)
                self._running[number] = self._describe(data)
                self._step = ""
                return self._running[number]
            case "experiment_finished":
                number = data.get("number")
                self.changes += data.get("role") == "change"
                self._running.pop(number, None)
                self._doing, self._step = "choosing the next change", ""
                name = f"experiment {self._ordinals[number]}" if number in self._ordinals else "done"
                return f"{name}: {_outcome(data)}"
            case "skipped":
                return f"skipped: {data.get('what')} ({data.get('reason')})"
            case "planner_note":
                return f"planner: {data.get('text')}"
            case _:
                return ""

    def _describe(self, data: dict[str, object]) -> str:
        role, claim = str(data.get("role")), short(str(data.get("claim", "")), _CLAIM_CHARACTERS)
        if role == "investigation":
            return f"asking: {claim}"
        if role == "change":
            return f"experiment {self._ordinals[data.get('number')]} of {self._budget.experiments}: {claim}"
        return f"{_ROLES.get(role, role)}{f' {claim}' if role in ('control', 'layer') else ''}"

    def _n_changes_running(self) -> int:
        return sum(number in self._ordinals for number in self._running)

    def remark(self, text: str) -> str:
        """What the lab says it does, as one line."""
        self._step = short(text, _CLAIM_CHARACTERS)
        return f"  {self._step}"

    @property
    def experiments(self) -> int:
        """The budget of changes."""
        return self._budget.experiments

    def now(self) -> str:
        """What runs now, in one line."""
        doing = next(iter(self._running.values()), self._doing)
        if (several := len(self._running)) > 1:
            doing = f"{several} experiments at once"
        return f"{doing}{f' · {self._step}' if self._step else ''}"

    def elapsed(self) -> str:
        """Time used."""
        return duration(self._clock() - self._started)

    def used(self) -> str:
        """Time used, and the budget if there is one."""
        limit = f" of {self._budget.minutes:g} min" if self._budget.minutes is not None else ""
        return f"{self.elapsed()}{limit}"


def _outcome(data: dict[str, object]) -> str:
    """The verdict with its first reason. The campaign's own measurements are judged by nobody, so theirs is only
    what was found."""
    reasons = data.get("reasons")
    first = short(str(reasons[0]), _REASON_CHARACTERS) if isinstance(reasons, list) and reasons else ""
    if data.get("role") != "change":
        numbers, separator, _ = first.partition("]: ")
        return f"{numbers}]" if separator else first or "measured"
    verdict = str(data.get("verdict"))
    return f"{verdict}, confirmed: {first}" if data.get("confirmed") else f"{verdict}: {first}"
