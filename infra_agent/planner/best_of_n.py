"""A control arm for `llm`: the same model proposes independent changes of the original, and sees no result of any.

Each sample has the tools and the knowledge of a campaign's first step. The best confirmed change wins. What `llm`
gains over this at an equal budget is what its learning from results is worth.
"""

from __future__ import annotations

from infra_agent.journal import Journal
from infra_agent.planner import Action, Context, Planner, Stop

ATTEMPTS = 3
"""Samples in a row that may end without a proposal before the planner stops."""


class BestOfNPlanner:
    """Draws samples from a planner that asks a model; raises what that one raises."""

    def __init__(self, model: Planner) -> None:
        self._model = model

    def next_action(self, context: Context) -> Action:
        """What the next sample proposes or asks; Stop when several in a row had nothing to propose."""
        number = context.journal.number_of_changes + 1
        reason = ""
        for attempt in range(1, ATTEMPTS + 1):
            action = self._model.next_action(sample(context, number, attempt))
            if not isinstance(action, Stop):
                return action.model_copy(update={"parent": context.at_original().parent_commit})
            reason = action.reason
        return Stop(reason=f"{ATTEMPTS} independent samples in a row proposed nothing; the last said: {reason}")


def sample(context: Context, number: int, attempt: int) -> Context:
    """The context as a sample may see it: the original, its baseline, and what this sample itself has investigated.
    Lessons of earlier campaigns are left out too: which ones are recalled depends on what this campaign found.

    A sample that stopped is drawn again. Which of the step's investigations were its own can't be told by then, so
    the further attempts see none and make none.
    """
    seen = [e for e in context.journal.experiments if e.role == "baseline"]
    is_first = attempt == 1
    seen += context.journal.step_investigations if is_first else ()
    hidden = {
        "journal": Journal(experiments=tuple(seen)),
        "digest": "",
        "learned": (),
        "lessons": "",
        "experiments_left": 1,
        "investigations_left": context.investigations_left if is_first else 0,
        "sample": f"{number}.{attempt}",
    }
    return context.at_original().model_copy(update=hidden)
