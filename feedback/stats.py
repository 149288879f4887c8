"""How a difference is told from noise. The one home of the project's statistics.

The statistical unit is a fresh process pair: baseline and candidate live side by side and are asked for
slices in blocks A B B A (or B A A B). A block's value is mean ln(candidate) - mean ln(baseline); a unit is
the median over the pair's blocks; the interval is Student's t over units. Complete blocks cancel position
effects, fresh pairs make the units independent, and looks at a few fixed numbers of pairs share one error
budget.

The t-interval needs units that are roughly symmetric; identical arms always make such. Without a noise floor
it errs more often than it says when most units are small gains and a few are large losses (the tests have the
rates), which is one more reason why a gain must clear the floor with its whole interval.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import cache
from statistics import fmean, median, stdev
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray
from scipy.special import bdtrc, ndtri, stdtr, stdtrit  # scipy.stats itself takes most of a second to import

from feedback.intervals import Intervals, clipped, covered, overlap, whole
from feedback.observations import Measurement
from feedback.signals import Direction

BLOCK = 4
"""Slices in a complete block: two of each arm."""


class Units(NamedTuple):
    """Paired units of one metric."""

    values: tuple[float, ...]
    """ln(candidate / baseline) of each undisturbed pair, in order."""
    baseline: float
    """Median of the baseline arm's values."""
    candidate: float
    n_observations: int


class Interval(NamedTuple):
    """A Student-t interval for the mean of log-ratios."""

    mean: float
    lo: float
    hi: float
    confidence: float
    """Two-sided: each end holds with (1 + confidence) / 2."""


class Finding(StrEnum):
    """What a look at the data says about the gain."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "same"
    UNDECIDED = "inconclusive"


class Rule(NamedTuple):
    """When a gain counts."""

    direction: Direction
    looks: tuple[int, ...]
    """Numbers of pairs at which the data are looked at; the last one ends the measurement."""
    alpha: float
    """Probability, over all looks together, of calling a change that does nothing better."""
    floor: float
    """Noise floor as a fraction: a gain must clear it with its whole interval."""
    min_effect: float
    """Smallest gain worth having, as a fraction."""


class NoiseFloor(NamedTuple):
    """What a baseline looks like against itself."""

    value: float
    """95th percentile of |mean of 10 units|, as a fraction."""
    sd: float
    """Standard deviation of one unit (log-ratio)."""
    bias: float
    bias_lo: float
    bias_hi: float
    n_units: int

    @property
    def is_calibrated(self) -> bool:
        """Whether no bias between identical arms was found; if one was, the floor has been raised by it."""
        return self.bias_lo <= 0.0 <= self.bias_hi


MIN_FLOOR_UNITS = 30
"""Fewer A/A units than this say whether the machine is quiet, but make no floor."""


LEAST_FLOOR = 0.005
"""However quiet the machine: with no floor at all, skewed or correlated units pass more often than they should."""


def paired_units(measurements: Iterable[Measurement], metric: str, stage: str = "screen") -> Units:
    """Units of `metric` over the undisturbed, complete pairs of a stage.

    Raises ValueError if a value is not finite and positive: a time of zero or a NaN is never a gain.
    """
    blocks: dict[int, dict[int, dict[str, list[float]]]] = defaultdict(lambda: defaultdict(dict))
    arms: dict[str, list[float]] = {"baseline": [], "candidate": []}
    for m in measurements:
        if m.metric != metric or m.stage != stage or m.disturbed:
            continue
        if not (math.isfinite(m.value) and m.value > 0):
            raise ValueError(f"{metric} is {m.value} in the {m.arm} arm (pair {m.pair}, block {m.block})")
        blocks[m.pair][m.block].setdefault(m.arm, []).append(m.value)
        arms[m.arm].append(m.value)
    values = []
    for pair in sorted(blocks):
        complete = [b for b in blocks[pair].values() if all(len(b.get(arm, ())) == BLOCK // 2 for arm in arms)]
        if complete:
            values.append(median(_log_mean(b["candidate"]) - _log_mean(b["baseline"]) for b in complete))
    return Units(
        tuple(values),
        median(arms["baseline"]) if arms["baseline"] else math.nan,
        median(arms["candidate"]) if arms["candidate"] else math.nan,
        len(arms["baseline"]) + len(arms["candidate"]),
    )


def _log_mean(values: Sequence[float]) -> float:
    return fmean(math.log(v) for v in values)


def interval(units: Sequence[float], tail: float) -> Interval:
    """Student-t interval whose ends each fail with probability `tail`. Needs at least two units."""
    n = len(units)
    if n < 2:
        raise ValueError("an interval needs at least two units")
    mean = fmean(units)
    half = _quantile(1 - tail, n - 1) * stdev(units) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, 1 - 2 * tail)


@cache
def _quantile(probability: float, degrees: int) -> float:
    """Student's t quantile; kept, because the same few are asked for at every look."""
    return float(stdtrit(degrees, probability))


class Difference(NamedTuple):
    """A mean log-ratio with its standard error, from which an interval of any confidence and a p-value follow."""

    mean: float
    error: float
    degrees: float

    @property
    def p(self) -> float:
        """Two-sided: how often identical arms differ by at least as much."""
        if self.error <= 0:
            return 1.0 if self.mean == 0 else 0.0
        return float(2 * stdtr(self.degrees, -abs(self.mean) / self.error))

    def interval(self, confidence: float) -> Interval:
        """Two-sided Student-t interval."""
        half = float(stdtrit(self.degrees, (1 + confidence) / 2)) * self.error if self.error > 0 else 0.0
        return Interval(self.mean, self.mean - half, self.mean + half, confidence)


def paired_difference(units: Sequence[float]) -> Difference:
    """Of log-ratios of fresh process pairs. Raises ValueError below two units."""
    if len(units) < 2:
        raise ValueError("a difference needs at least two units")
    return Difference(fmean(units), stdev(units) / math.sqrt(len(units)), len(units) - 1)


def unpaired_difference(baseline: Sequence[float], candidate: Sequence[float]) -> Difference:
    """Welch's, of log values of fresh processes that were not interleaved. Whatever drifted between the arms is
    part of it and not of its error. Raises ValueError below two units in an arm."""
    if min(len(baseline), len(candidate)) < 2:
        raise ValueError("a difference needs at least two units in each arm")
    parts = [stdev(arm) ** 2 / len(arm) for arm in (baseline, candidate)]
    spread = sum(p * p / (len(arm) - 1) for p, arm in zip(parts, (baseline, candidate), strict=True))
    degrees = sum(parts) ** 2 / spread if spread > 0 else len(baseline) + len(candidate) - 2
    return Difference(fmean(candidate) - fmean(baseline), math.sqrt(sum(parts)), degrees)


def discoveries(p_values: Sequence[float], rate: float) -> list[bool]:
    """Which of many differences stand when at most `rate` of those named may be false on average (Benjamini and
    Hochberg, 1995). Each one's interval at confidence 1 - rate * named / all then excludes zero (Benjamini and
    Yekutieli, 2005)."""
    ordered = sorted(p_values)
    passing = [p for k, p in enumerate(ordered, 1) if p <= rate * k / len(ordered)]
    return [p <= passing[-1] for p in p_values] if passing else [False] * len(p_values)


def at_least(hits: int, n: int, chance: float) -> float:
    """Probability of `hits` or more of `n` when each comes by `chance` (binomial)."""
    return 1.0 if hits <= 0 else float(bdtrc(hits - 1, n, chance))


def exp(x: float) -> float:
    """e to the x, infinite where it can't be represented."""
    return math.exp(x) if x < 700 else math.inf


def ranks(values: Sequence[float]) -> NDArray[np.float64]:
    """Ranks from 1; equal values share their mean rank."""
    _, place, count = np.unique(np.asarray(values, dtype=np.float64), return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(count) - (count - 1) / 2)[place], dtype=np.float64)


def gains(units: Sequence[float], direction: Direction) -> list[float]:
    """Log-ratios turned so that positive is better."""
    return list(units) if direction == "maximize" else [-u for u in units]


def tail_of(rule: Rule) -> float:
    """Error probability of one end of the interval at each look: the budget split evenly over the looks."""
    return rule.alpha / len(rule.looks)


def look(units: Sequence[float], rule: Rule) -> Finding:
    """What the units so far say.

    `better`: the whole interval clears the noise floor and the estimate is worth having. `worse`: the whole
    interval lies below zero. `same`: the interval excludes any gain worth having. Else undecided.
    """
    if len(units) < 2:
        return Finding.UNDECIDED
    gain = interval(gains(units, rule.direction), tail_of(rule))
    if gain.lo > math.log1p(rule.floor) and gain.mean >= math.log1p(rule.min_effect):
        return Finding.BETTER
    if gain.hi < 0:
        return Finding.WORSE
    if gain.hi < math.log1p(max(rule.min_effect, rule.floor)):
        return Finding.SAME
    return Finding.UNDECIDED


FUTILE = 0.1
"""Chance of a gain that counts below which a measurement is not worth going on with."""


def is_futile(units: Sequence[float], rule: Rule) -> bool:
    """Whether more pairs would hardly make this a gain that counts: by what the units so far predict, the last look
    calls it better with a probability below `FUTILE`.

    It only ever ends a measurement without a gain, so it can't raise the rate of false accepts; it costs a little
    power and saves most of the time that changes which do nothing would take.
    """
    n, last = len(units), rule.looks[-1]
    if n < max(3, rule.looks[0]) or n >= last:
        return False
    mean, sd = fmean(gains(units, rule.direction)), stdev(units)
    if sd == 0:
        return False  # the looks themselves decide
    needed = math.log1p(rule.floor) + _quantile(1 - tail_of(rule), last - 1) * sd / math.sqrt(last)
    needed = max(needed, math.log1p(rule.min_effect))
    # The mean at the last look, given the units so far, a flat prior for the true gain and the same scatter ahead.
    error = sd * (last - n) / last * math.sqrt(1 / n + 1 / (last - n))
    return float(stdtr(n - 1, (mean - needed) / error)) < FUTILE


def non_inferior(units: Sequence[float], rule: Rule, max_regression: float) -> Finding:
    """Whether a guardrail metric got worse by more than `max_regression` (a fraction): SAME if it surely did
    not, WORSE if it surely got worse and the estimate is beyond the margin, else undecided."""
    if len(units) < 2:
        return Finding.UNDECIDED
    gain = interval(gains(units, rule.direction), tail_of(rule))
    margin = -math.log1p(max_regression)
    if gain.lo > margin:
        return Finding.SAME
    if gain.mean < margin and gain.hi < 0:
        return Finding.WORSE
    return Finding.UNDECIDED


def noise_floor(units: Sequence[float], seed: int = 0) -> NoiseFloor:
    """The floor from A/A units: 95th percentile of |mean of 10 units|, by resampling, and never below
    `LEAST_FLOOR`. A bias between identical arms is added to it. Needs at least `MIN_FLOOR_UNITS` units
    (ValueError)."""
    if len(units) < MIN_FLOOR_UNITS:
        raise ValueError(f"a noise floor needs {MIN_FLOOR_UNITS} units, got {len(units)}")
    values = np.asarray(units, dtype=np.float64)
    draws = np.random.default_rng(seed).choice(values - values.mean(), size=(4000, 10))
    floor = float(np.quantile(np.abs(draws.mean(axis=1)), 0.95))
    bias = interval(units, 0.005)
    if not bias.lo <= 0 <= bias.hi:
        floor += abs(bias.mean)
    return NoiseFloor(max(LEAST_FLOOR, math.expm1(floor)), stdev(units), bias.mean, bias.lo, bias.hi, len(units))


def minimum_detectable_effect(sd: float, rule: Rule, power: float = 0.9) -> float:
    """Smallest true gain, as a fraction, that `rule` calls better with probability `power` at its last look:
    one whose interval then clears the floor and whose estimate is worth having."""
    n = rule.looks[-1]
    error = sd / math.sqrt(n)
    luck = _quantile(power, n - 1) * error
    cleared = math.log1p(rule.floor) + _quantile(1 - tail_of(rule), n - 1) * error
    return math.expm1(max(cleared, math.log1p(rule.min_effect)) + luck)


def trend(values: Sequence[float]) -> float:
    """Mann-Kendall's z: how surely a series in order of time rises (positive) or falls, whatever its shape. Values
    that follow each other are rarely independent, so it only ever supports a finding. 0 for fewer than 4 values."""
    n = len(values)
    if n < 4:
        return 0.0
    series = np.asarray(values, dtype=np.float64)
    signs = np.sign(series[None, :] - series[:, None])
    score = float(np.triu(signs, 1).sum())
    return score / math.sqrt(n * (n - 1) * (2 * n + 5) / 18)


SHIFTS = 2000
MAX_SHIFTED = 20_000
"""Intervals that a shift test looks at; of more it takes the stretch in the middle, which keeps their order."""


class Overlap(NamedTuple):
    """How much of the time of B lies inside A, against what chance gives."""

    share: float
    """Of B's time."""
    expected: float
    """Mean share over circular shifts of B, which is about A's share of the window."""
    whole: int
    """Intervals of B that lie wholly inside one of A."""
    whole_expected: float
    p_low: float
    """How often a shift has as few whole intervals inside. Whole ones count, because one that was pre-empted spans
    whatever ran meanwhile."""
    p_high: float
    """How often a shift has as many."""
    n_a: int
    n_b: int
    start: int
    """The window: where both sets have something before and after."""
    end: int


def shift_test(a: Intervals, b: Intervals, seed: int = 0) -> Overlap | None:
    """Overlap of two sets of intervals against circular shifts of B, which keep each set's own rhythm.

    Looks only at the window in which both sets are active, so that one phase after the other is no finding. None if
    either set has nothing there.
    """
    if not a or not b:
        return None
    lo, hi = int(max(a.start[0], b.start[0])), int(min(a.end[-1], b.end[-1]))
    a, b = clipped(a, lo, hi), clipped(b, lo, hi)
    if len(b.start) > MAX_SHIFTED:
        skip = (len(b.start) - MAX_SHIFTED) // 2
        lo, hi = int(b.start[skip]), int(b.end[skip + MAX_SHIFTED - 1])
        a, b = clipped(a, lo, hi), clipped(b, lo, hi)
    if not a or not b:
        return None
    length = hi - lo
    a, b = Intervals(a.start - lo, a.end - lo), Intervals(b.start - lo, b.end - lo)
    seen, n_whole = int(overlap(a, b.start, b.end).sum()), int(whole(a, b.start, b.end).sum())
    n_shifts = int(min(SHIFTS, max(200, 1_000_000 // len(b.start))))
    twice = Intervals(np.concatenate((a.start, a.start + length)), np.concatenate((a.end, a.end + length)))
    shares, wholes = np.empty(n_shifts), np.empty(n_shifts)
    for k, shift in enumerate(np.random.default_rng(seed).integers(0, length, n_shifts)):
        start, end = b.start + shift, b.end + shift
        shares[k] = int((covered(twice, end) - covered(twice, start)).sum())
        wholes[k] = int(whole(twice, start, end).sum())
    return Overlap(
        seen / b.total, float(shares.mean()) / b.total, n_whole, float(wholes.mean()),
        _tail_share(wholes <= n_whole), _tail_share(wholes >= n_whole),
        len(a.start), len(b.start), lo, hi,
    )  # fmt: skip


def _tail_share(hits: npt.NDArray[np.bool_]) -> float:
    """Share of shifts, with the unshifted data counted among them: never 0."""
    return float((1 + hits.sum()) / (1 + len(hits)))


def share_interval(k: float, n: float, tail: float) -> tuple[float, float]:
    """Wilson's interval for a share of `k` in `n` counts; each end fails with about probability `tail`."""
    if n <= 0:
        return 0.0, 1.0
    z, share = _normal(tail), k / n
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(max(share * (1 - share), 0.0) / n + z * z / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


ALIKE = 3.0
"""Samples of one process that count as one: neighbours in time show the same code."""
PROCESS_SD = 0.3
"""How much the log-odds of a line's share differ between processes of the same program, from 48 recordings of one
program and its fix on a busy 2-core machine. On 24 later recordings, 1 of 60 pairs of the same program differed (43
with the plain binomial interval); of pairs with the defect and its fix all 36 of GIL holders did, but only 13 of 36 of
all threads. Pairs share recordings, so they are fewer than they look; other programs were not tried."""


def odds_change(before: tuple[float, float], after: tuple[float, float], tail: float) -> Interval:
    """Interval for the change of a share's log-odds between two processes; `before` and `after` are (samples, of how
    many). Wider than the binomial one, which knows neither bursts nor that two processes never run alike."""
    (k0, n0), (k1, n1) = before, after
    k0, r0, k1, r1 = k0 + 0.5, n0 - k0 + 0.5, k1 + 0.5, n1 - k1 + 0.5
    change = math.log(k1 / r1) - math.log(k0 / r0)
    half = _normal(tail) * math.sqrt(ALIKE * (1 / k0 + 1 / r0 + 1 / k1 + 1 / r1) + 2 * PROCESS_SD**2)
    return Interval(change, change - half, change + half, 1 - 2 * tail)


@cache
def _normal(tail: float) -> float:
    return float(ndtri(1 - tail))


def ratio_interval(
    parts: npt.NDArray[np.float64], wholes: npt.NDArray[np.float64], tail: float
) -> tuple[float, float, float]:
    """sum(parts) / sum(wholes) with an interval by leaving out one block (one entry) at a time; (ratio, lo, hi).

    Blocks should be long against what repeats inside them. With fewer than three the interval is all there is.
    """
    total = float(wholes.sum())
    ratio = float(parts.sum()) / total if total > 0 else 0.0
    rest = total - wholes
    n = len(parts)
    if n < 3 or not (rest > 0).all():
        return ratio, -math.inf, math.inf
    left = (parts.sum() - parts) / rest
    error = math.sqrt((n - 1) / n * float(((left - left.mean()) ** 2).sum()))
    half = _quantile(1 - tail, n - 1) * error
    return ratio, ratio - half, ratio + half


def log_change(before: npt.NDArray[np.float64], after: npt.NDArray[np.float64], tail: float) -> Interval | None:
    """Welch's interval for mean ln(after) - mean ln(before) of positive values of two runs; None under three each."""
    before, after = np.log(before[before > 0]), np.log(after[after > 0])
    if min(len(before), len(after)) < 3:
        return None
    v0, v1 = float(before.var(ddof=1)) / len(before), float(after.var(ddof=1)) / len(after)
    mean = float(after.mean() - before.mean())
    if v0 + v1 <= 0:
        return Interval(mean, mean, mean, 1 - 2 * tail)
    degrees = (v0 + v1) ** 2 / (v0**2 / (len(before) - 1) + v1**2 / (len(after) - 1))
    half = _quantile(1 - tail, max(1, int(degrees))) * math.sqrt(v0 + v1)
    return Interval(mean, mean - half, mean + half, 1 - 2 * tail)
