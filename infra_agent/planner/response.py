"""One knob's measured response: where its peak should lie, what lies next to it, what is not worth a try.

Gains are log-ratios in the wanted direction, relative to the value in force. Nothing here knows other knobs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeGuard

from feedback.observations import Scalar
from infra_agent.planner.trials import Gain, Trials
from infra_agent.target import Knob

SMALL = 16
"""Up to this value a whole number is also tried one up and one down; above, only doubled and halved."""
WIDE = 3.0
"""A step by more than this factor leaves room for a peak inside it."""


class Step(NamedTuple):
    """One measured step of the knob, everything else unchanged."""

    before: Scalar | None
    after: Scalar | None
    gain: Gain
    is_within_noise: bool = False
    """The estimate is smaller than the noise floor."""


class Response:
    """What the steps measured so far say about a knob whose value in force is `current`."""

    def __init__(self, knob: Knob, current: Scalar | None, steps: Iterable[Step], worth: float) -> None:
        self.knob = knob
        self.current = current
        self.steps = tuple(steps)
        self.worth = worth
        """Smallest gain worth having, as a log-ratio."""
        self.gains = _chained(current, self.steps)

    @property
    def room(self) -> float:
        """The most that the measurements leave possible; infinite if there are none."""
        return max((step.gain.high for step in self.steps), default=math.inf)

    @property
    def is_flat(self) -> bool:
        """Whether at least two steps showed that the knob does nothing here."""
        return len(self.steps) > 1 and all(abs(step.gain.estimate) < self.worth / 2 for step in self.steps)

    @property
    def is_noise(self) -> bool:
        """Whether steps were measured and none left the noise floor."""
        return bool(self.steps) and all(step.is_within_noise for step in self.steps)

    def beyond(self, before: Scalar | None, after: Scalar | None) -> Scalar | None:
        """One step further in the direction from `before` to `after`; None where there is none."""
        if not (is_number(before) and is_number(after)) or before == after:
            return None
        if self.knob.choices:
            return self._next_choice(after, 1 if after > before else -1)
        if max(before, after) < 2 * max(1, min(before, after)):
            value = int(2 * after - before)
        else:
            value = int(after * 2 if after > before else after // 2)
        return value if self.is_allowed(value) else None

    def peak(self) -> Scalar | None:
        """The top of the parabola through the three measured values around the best one, if it lies between
        them, promises a gain and is a new value."""
        points = sorted((v, gain) for v, gain in self.gains.items() if is_number(v))
        if len(points) < 3:
            return None
        best = max(range(len(points)), key=lambda i: points[i][1])
        first = min(max(best - 1, 0), len(points) - 3)
        (left, a), (middle, b), (right, c) = points[first : first + 3]
        x, y, z = (self.scale(v) for v in (left, middle, right))
        rise, fall = (b - a) / (y - x), (c - b) / (z - y)
        curvature = (fall - rise) / ((z - x) / 2)
        if curvature >= 0:
            return None
        top = (x + y) / 2 - rise / curvature
        if not x < top < z:
            return None
        gain = b - curvature * (top - y) ** 2 / 2
        value = self.nearest(top, left, right)
        return value if value not in self.gains and gain > self.worth / 2 else None

    def inside(self) -> Scalar | None:
        """The middle of a wide step that showed no difference: a peak often lies between two equals."""
        for step in self.steps:
            if not (is_number(step.before) and is_number(step.after) and step.gain.low < 0 < step.gain.high):
                continue
            low, high = sorted((step.before, step.after))
            if high > WIDE * max(low, 0):
                value = self.nearest((self.scale(low) + self.scale(high)) / 2, low, high)
                if value not in self.gains:
                    return value
        return None

    def near(self) -> tuple[list[Scalar], list[Scalar]]:
        """Values next to the one in force: the coarse ones (doubled, halved, or the choices beside it), then
        the fine ones (one up, one down). Those behind a value that was measured worse are left out."""
        value, choices = self.current, self.knob.choices
        if choices:
            beside = [self._next_choice(value, 1), self._next_choice(value, -1)]
            known = [choice for choice in beside if choice is not None]
            return (self._hopeful(known) if known else list(choices)), []
        if not isinstance(value, int):  # in force is what the engine chooses, and nobody said what that is
            low, high = self.knob.minimum or 0, self.knob.maximum or 0
            middle = self.nearest((self.scale(low) + self.scale(high)) / 2, low - 1, high + 1)
            return ([] if middle is None else [middle]), []
        fine = [value + 1, value - 1] if value <= SMALL else []
        return self._hopeful([value * 2, value // 2]), self._hopeful(fine)

    def is_allowed(self, value: Scalar) -> bool:
        """Whether the value is in the knob's domain."""
        return self.knob.refusal(value, {}) is None

    def _next_choice(self, value: Scalar | None, by: int) -> Scalar | None:
        numbers = sorted(choice for choice in self.knob.choices if is_number(choice))
        if len(numbers) < len(self.knob.choices) or not is_number(value) or value not in numbers:
            return None
        i = numbers.index(value) + by
        return numbers[i] if 0 <= i < len(numbers) else None

    def _hopeful(self, values: Sequence[Scalar]) -> list[Scalar]:
        worse = [v for v, gain in self.gains.items() if gain < -self.worth]
        return [v for v in values if self.is_allowed(v) and not any(_is_between(w, self.current, v) for w in worse)]

    def scale(self, value: float) -> float:
        """Position on the axis on which steps are even: logarithmic, but for values around zero."""
        return math.log2(value) if value >= 1 else float(value) - 1

    def nearest(self, position: float, low: float, high: float) -> Scalar | None:
        """The value of the domain nearest to a position strictly between two values."""
        if self.knob.choices:
            inside: list[Scalar] = [c for c in self.knob.choices if is_number(c) and low < c < high]
        else:
            about = 2**position if position >= 0 else position + 1
            inside = [v for v in (math.floor(about), math.ceil(about)) if low < v < high and self.is_allowed(v)]
        return min(inside, key=lambda v: abs(self.scale(float(v)) - position), default=None)


def steps_of(knob: Knob, trials: Trials) -> Sequence[Step]:
    """The measured changes of this knob alone, as the engine sees them."""
    name, force = knob.name, trials.effective
    return [
        Step(force(name, t.before[name]), force(name, t.changed[name]), t.gain, t.is_within_noise)
        for t in trials.all
        if set(t.changed) == {name} and t.gain is not None
    ]


def scaled(share: float, low: int, high: int) -> int:
    """The whole number that far between two others, on the scale on which steps are even."""

    def position(value: int) -> float:
        return math.copysign(math.log2(1 + abs(value)), value)

    at = position(low) + share * (position(high) - position(low))
    return min(high, max(low, round(math.copysign(2 ** abs(at) - 1, at))))


def is_number(value: Scalar | None) -> TypeGuard[int | float]:
    """Whether the value stands on a number line; true and false do not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_between(value: Scalar | None, a: Scalar | None, b: Scalar) -> bool:
    return is_number(value) and is_number(a) and is_number(b) and min(a, b) < value < max(a, b)


def _chained(current: Scalar | None, steps: tuple[Step, ...]) -> dict[Scalar | None, float]:
    """The gain of every value over the current one that a chain of steps leads to, later steps first."""
    gains: dict[Scalar | None, float] = {current: 0.0}
    grown = True
    while grown:
        grown = False
        for step in reversed(steps):
            if step.before in gains and step.after not in gains:
                gains[step.after] = gains[step.before] + step.gain.estimate
                grown = True
            elif step.after in gains and step.before not in gains:
                gains[step.before] = gains[step.after] - step.gain.estimate
                grown = True
    return gains
