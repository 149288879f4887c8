"""Joint proposals from Optuna's TPE sampler, on a study rebuilt from the journal each time. The home of Optuna.

Each knob becomes an axis: the ladder of its values where they stand on a number line, a set of choices elsewhere.
Nothing is kept between calls: the same trials and the same seed give the same assignments, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from feedback.observations import Scalar
from infra_agent.planner.response import is_number
from infra_agent.planner.trials import Knobs, Trial, Trials
from infra_agent.target import Knob

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution

ASKS = 64
"""Assignments drawn at most for one proposal; when all were refused, the space counts as explored."""
DENSE = 4
"""Up to this value a ladder has every whole number, then 6, 8, 12, 16, then the powers of two."""


class Axis(NamedTuple):
    """A knob as a coordinate: an index into its values."""

    name: str
    values: tuple[Scalar | None, ...]
    is_ordered: bool

    def place(self, value: Scalar | None) -> int | None:
        """Where a value stands; 1 and true are different values."""
        return next((i for i, v in enumerate(self.values) if v == value and type(v) is type(value)), None)

    def distribution(self) -> BaseDistribution:
        """The axis as Optuna takes it."""
        from optuna.distributions import CategoricalDistribution, IntDistribution

        if self.is_ordered:
            return IntDistribution(0, len(self.values) - 1)
        return CategoricalDistribution(range(len(self.values)))


def axis(knob: Knob, trials: Trials, here: Scalar | None) -> Axis:
    """A knob's axis: its choices, or a ladder from its least to its greatest value with everything suggested,
    measured or in force. What the engine chooses by itself, where nobody said what that is, is a value of its own."""
    force = trials.effective
    given = [force(knob.name, here), *(force(knob.name, s) for s in knob.suggest)]
    given += [force(knob.name, t.knobs.get(knob.name)) for t in trials.all]
    allowed = [v for v in given if v is None or knob.refusal(v, {}) is None]
    found = dict.fromkeys((type(v), v) for v in (*(knob.choices or ladder(knob)), *allowed))
    values = [value for _, value in found]
    numbers = [v for v in values if is_number(v)]
    if len(numbers) == len(values):
        return Axis(knob.name, tuple(sorted(numbers)), True)
    return Axis(knob.name, tuple(values), False)


def ladder(knob: Knob) -> list[int]:
    """Whole numbers of a knob's range, evenly spread on a logarithmic scale."""
    low, high = knob.minimum or 0, knob.maximum or 0
    steps = [*range(DENSE + 1), 6, 8, 12, 16]
    steps += [2**n for n in range(5, max(high, 1).bit_length())]
    return sorted({low, high, *(s for s in steps if low < s < high), *(-s for s in steps if low < -s < high)})


def draw(axes: Sequence[Axis], here: Knobs, trials: Trials, seed: int) -> Iterator[Knobs]:
    """Assignments that TPE hopes for, at most ASKS. An assignment drawn and not told about counts as a bad one, so
    the draws spread. Knobs without an axis keep the value in force."""
    if not axes:
        return
    study = make_study(axes, trials, seed)
    space = {axis.name: axis.distribution() for axis in axes}
    for _ in range(ASKS):
        asked = study.ask(space)
        yield {**here, **{a.name: a.values[asked.params[a.name]] for a in axes}}


def make_study(axes: Sequence[Axis], trials: Trials, seed: int) -> Study:
    """A study of the log-gain over the commit in force, with its measured trials. What broke a gate or a guardrail
    is infeasible; what was not measured for another reason, or can't be placed on every axis, is left out."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, n_startup_trials=0)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    space = {axis.name: axis.distribution() for axis in axes}
    origin = {
        a.name: i for a in axes if (i := a.place(trials.effective(a.name, trials.here.knobs.get(a.name)))) is not None
    }
    if len(origin) == len(axes):
        study.add_trial(optuna.trial.create_trial(params=origin, distributions=space, value=0.0))
    for trial in trials.all:
        placed = _placed(axes, trial, trials)
        if placed is None or (trial.level is None and not trial.broke_a_rule):
            continue
        told: dict[str, Any] = (
            {"value": trial.level} if trial.level is not None else {"state": optuna.trial.TrialState.PRUNED}
        )
        constraints = {"rules": 1.0 if trial.broke_a_rule else -1.0}
        study.add_trial(optuna.trial.create_trial(params=placed, distributions=space, constraints=constraints, **told))
    return study


def ped_anova(axes: Sequence[Axis], trials: Trials, top: float) -> dict[str, float]:
    """Each axis' part of what tells the best `top` of the assignments from all; adds up to 1."""
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    study = make_study([axis for axis in axes if len(axis.values) > 1], trials, 0)
    return dict(get_param_importances(study, evaluator=PedAnovaImportanceEvaluator(target_quantile=top)))


def _placed(axes: Sequence[Axis], trial: Trial, trials: Trials) -> dict[str, int] | None:
    placed = {a.name: a.place(trials.effective(a.name, trial.knobs.get(a.name))) for a in axes}
    known = {name: index for name, index in placed.items() if index is not None}
    return known if len(known) == len(axes) else None
