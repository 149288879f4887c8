"""Several proposals conducted at once: each in a thread of its own, timed work one at a time.

All are measured against the same commit, and none of them is told what became of another; what is timed has the
machine for itself (`turns`). Finished ones are stored as they finish, so a run that is killed repeats only the rest.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait

from infra_agent.desk import Desk, conduct
from infra_agent.domain import Event, Experiment, State, now
from infra_agent.halt import Halt
from infra_agent.journal import Journal
from infra_agent.turns import Turns

HALT_PERIOD_S = 0.1
"""How often what runs is ended while threads are on their way out."""


def conduct_all(desk: Desk, journal: Journal, experiments: Sequence[Experiment]) -> Journal:
    """Conduct stored experiments at once and store each one's outcome; returns the journal with them.

    Raises what the platform failed with, after the others have come to their end: what they measured stands. Ctrl-C
    ends all of them at once.
    """
    if len(experiments) == 1:
        return conduct(desk, journal, experiments[0])
    begun = [e.model_copy(update={"state": State.RUNNING, "started_at": now()}) for e in experiments]
    with desk.store.transaction() as ledger:  # all or none: those that only wait may still get company
        for experiment in begun:
            ledger.update_experiment(experiment)
            journal = journal.updated(experiment)
    halt, turns, lock = Halt(), Turns(), threading.Lock()

    def conduct_one(experiment: Experiment) -> None:
        with turns.shared():
            conduct(_place(desk, experiment, halt, turns, lock), journal, experiment)

    with ThreadPoolExecutor(len(begun), thread_name_prefix="experiment") as pool:
        running = [pool.submit(conduct_one, experiment) for experiment in begun]
        try:
            wait(running)
        except BaseException:  # Ctrl-C reaches this thread alone
            while wait(running, timeout=HALT_PERIOD_S).not_done:
                halt.halt()
            raise
    for ended in running:
        ended.result()
    return desk.journal()


def _place(desk: Desk, experiment: Experiment, halt: Halt, turns: Turns, lock: threading.Lock) -> Desk:
    """The desk of one of them: its remarks say whose they are, and nobody who is told hears two at once."""

    def say(text: str) -> None:
        with lock:
            desk.lab.say(f"#{experiment.number} {text}")

    def on_event(event: Event) -> None:
        with lock:
            desk.on_event(event)

    site = desk.lab.site._replace(halt=halt, turns=turns)
    return desk._replace(lab=desk.lab._replace(site=site, say=say), on_event=on_event)
