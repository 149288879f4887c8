"""How numbers move with size or time: growth laws of errors, scaling exponents of times, steps and warm-up.

Fits are least squares on logarithms. A change of level is found by Pettitt's test: it has a stated error rate,
which a penalty for the number of segments has not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median
from typing import Literal, NamedTuple

import numpy as np

from feedback.stats import Difference, exp, ranks

Law = Literal["constant", "square root", "linear", "quadratic", "power", "exponential"]

MIN_SIZES = 4
_UNSURE = 0.05
"""Errors differ by about this much from seed to seed (as a fraction): closer fits are no better ones."""
_EXPONENTS: dict[Law, float] = {"constant": 0.0, "square root": 0.5, "linear": 1.0, "quadratic": 2.0}
_TIE = 2.0
"""Laws whose AICc is closer than this are not told apart."""


class PowerLaw(NamedTuple):
    """y = exp(intercept) * x ** slope, fitted on logarithms."""

    slope: float
    error: float
    """Standard error of the slope."""
    degrees: int
    intercept: float
    r2: float
    lowest: float
    highest: float
    """Range of x that the fit stands on."""

    def at(self, x: float) -> float:
        """The fitted value, infinite where it can't be represented."""
        return exp(self.intercept + self.slope * math.log(x))

    @property
    def exponent(self) -> Difference:
        """The slope with its error."""
        return Difference(self.slope, self.error, self.degrees)


class Growth(NamedTuple):
    """How an error grows with a size."""

    law: Law | None
    """The law that fits best; None where two laws that differ fit about equally well."""
    rivals: tuple[Law, ...]
    """All laws that fit about as well as the best, best first."""
    power: PowerLaw
    """The log-log slope, whichever law holds."""
    coefficients: dict[Law, tuple[float, float]]
    """Of ln(error): (a, b) in a + b ln(size), or in a + b size for the exponential."""

    def at(self, size: float) -> tuple[float, float]:
        """Smallest and largest value that the laws in question extrapolate to."""
        values = []
        for law in self.rivals:
            a, b = self.coefficients[law]
            values.append(exp(a + b * (size if law == "exponential" else math.log(size))))
        return min(values), max(values)


class Step(NamedTuple):
    """A level that a series left for another."""

    at: int
    """First value at the new level."""
    ratio: float
    """New level / old level."""
    p: float


def power_law(x: Sequence[float], y: Sequence[float]) -> PowerLaw | None:
    """The fit, or None with fewer than three distinct sizes or a value that is not finite and positive."""
    if len(set(x)) < 3 or not all(math.isfinite(v) and v > 0 for v in (*x, *y)):
        return None
    u, v = np.log(np.asarray(x, dtype=np.float64)), np.log(np.asarray(y, dtype=np.float64))
    centred = u - u.mean()
    spread = float(centred @ centred)
    slope = float(centred @ v) / spread
    intercept = float(v.mean() - slope * u.mean())
    residual = v - intercept - slope * u
    rss, total = float(residual @ residual), float(((v - v.mean()) ** 2).sum())
    degrees = len(u) - 2
    error = math.sqrt(rss / degrees / spread)
    return PowerLaw(slope, error, degrees, intercept, 1 - rss / total if total > 0 else 1.0, min(x), max(x))


def growth(sizes: Sequence[float], errors: Sequence[float]) -> Growth | None:
    """Which law the errors follow, by AICc; None with fewer than `MIN_SIZES` sizes or an error of zero."""
    power = power_law(sizes, errors)
    if power is None or len(set(sizes)) < MIN_SIZES:
        return None
    x, v = np.asarray(sizes, dtype=np.float64), np.log(np.asarray(errors, dtype=np.float64))
    u = np.log(x)
    laws: dict[Law, tuple[float, float]] = {law: (float((v - b * u).mean()), b) for law, b in _EXPONENTS.items()}
    laws["power"] = (power.intercept, power.slope)
    rate, start = np.polyfit(x, v, 1)
    if rate > 0:
        laws["exponential"] = (float(start), float(rate))
    score = {}
    for law, (a, b) in laws.items():
        fitted = a + b * (x if law == "exponential" else u)
        score[law] = _aicc(float(((v - fitted) ** 2).sum()), len(x), 3 if law in ("power", "exponential") else 2)
    best = sorted(score, key=lambda law: score[law])
    rivals = tuple(law for law in best if score[law] - score[best[0]] <= _TIE)
    clear = all(law == "power" for law in rivals[1:])  # a free exponent fits wherever a fixed one does
    return Growth(best[0] if clear else None, rivals, power, laws)


def _aicc(rss: float, n: int, k: int) -> float:
    variance = rss / n + _UNSURE**2
    return n * math.log(variance) + 2 * k + 2 * k * (k + 1) / max(1, n - k - 1)


_MIN_SEGMENT = 5


def step(values: Sequence[float]) -> Step | None:
    """Where a series of positive values changes its level, by Pettitt's test on ranks (1979; an outlier is no
    level); None for fewer than 20 values."""
    n = len(values)
    if n < 4 * _MIN_SEGMENT or not all(math.isfinite(v) and v > 0 for v in values):
        return None
    k = np.arange(1, n + 1)
    statistic = np.abs(2 * np.cumsum(ranks(values)) - k * (n + 1))[_MIN_SEGMENT - 1 : n - _MIN_SEGMENT]
    at = int(statistic.argmax()) + _MIN_SEGMENT
    p = min(1.0, 2 * math.exp(-6 * float(statistic.max()) ** 2 / (n**3 + n**2)))
    return Step(at, median(values[at:]) / median(values[:at]), p)


def warm_up(values: Sequence[float]) -> tuple[int, float]:
    """How many of the first values lie above the later ones' median + 3 MAD, and their mean over that median.

    (0, 1) for a series too short to tell (fewer than 8) or without a slow start.
    """
    if len(values) < 8 or not all(math.isfinite(v) and v > 0 for v in values):
        return 0, 1.0
    later = values[len(values) // 2 :]
    level = median(later)
    limit = level + 3 * 1.4826 * median(abs(v - level) for v in later)
    n = next((i for i, v in enumerate(values) if v <= limit), len(values))
    return (n, fmean(values[:n]) / level) if n else (0, 1.0)
