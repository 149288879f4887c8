"""The shift test's and the intervals' error rates, on data where nothing is to be found."""

from __future__ import annotations

import numpy as np
import pytest

from feedback.intervals import Intervals, complement, intersection, union
from feedback.stats import log_change, odds_change, ratio_interval, share_interval, shift_test


def bursts(random: np.random.Generator, n: int = 150) -> Intervals:
    """Intervals in bursts: near ones are alike, as in a real trace."""
    gaps = random.exponential(80, n) * np.where(random.random(n) < 0.2, 8, 1)
    start = np.cumsum(gaps + 60).astype(np.int64)
    return union(start, start + random.integers(10, 60, n))


def test_shift_test_is_calibrated_on_independent_bursts() -> None:
    low = []
    for seed in range(60):
        random = np.random.default_rng(seed)
        found = shift_test(bursts(random), bursts(random), seed)
        assert found is not None
        low.append(found.p_low)
    assert np.mean(np.array(low) < 0.05) < 0.14
    assert np.mean(low) > 0.4


def test_shift_test_finds_exclusion_and_its_opposite() -> None:
    random = np.random.default_rng(0)
    a = bursts(random)
    inside = Intervals(a.start + 1, a.end - 1)
    gaps = complement(a, int(a.start[0]), int(a.end[-1]))
    outside = Intervals(gaps.start + 1, np.minimum(gaps.start + 9, gaps.end))
    excluded, together = shift_test(a, outside), shift_test(a, inside)
    assert excluded is not None
    assert together is not None
    assert excluded.share == 0
    assert excluded.p_low < 0.001
    assert excluded.whole == 0
    assert together.share == 1
    assert together.p_high < 0.001
    assert together.whole == together.n_b
    assert not intersection(a, outside)


def test_shift_test_takes_one_phase_after_the_other_for_no_finding() -> None:
    random = np.random.default_rng(0)
    a = bursts(random)
    later = Intervals(a.start + a.end[-1], a.end + a.end[-1])
    assert shift_test(a, later) is None


def test_shift_test_bounds_what_it_looks_at() -> None:
    start = np.arange(0, 10**8, 100, dtype=np.int64)
    found = shift_test(Intervals(start, start + 50), Intervals(start + 50, start + 90))
    assert found is not None
    assert found.n_b == 20_000
    assert found.share == 0


@pytest.mark.parametrize(("share", "n"), [(0.01, 300), (0.3, 200), (0.9, 500)])
def test_share_intervals_cover(share: float, n: int) -> None:
    random = np.random.default_rng(1)
    hits = 0
    for k in random.binomial(n, share, 1000):
        lo, hi = share_interval(float(k), n, 0.025)
        hits += lo <= share <= hi
    assert hits > 920


def test_a_share_changes_for_sure_only_beyond_bursts_and_what_processes_differ() -> None:
    random = np.random.default_rng(2)
    wrong = 0
    for _ in range(1000):
        # Processes differ, and samples come in bursts of three of the same line.
        odds = 0.2 * np.exp(random.normal(0, 0.25, 2))
        k0, k1 = 3 * random.binomial(130, odds / (1 + odds))
        found = odds_change((float(k0), 390), (float(k1), 390), 0.025)
        wrong += not found.lo <= 0 <= found.hi
    assert wrong < 75
    surely = odds_change((160, 400), (10, 400), 0.025)
    assert surely.hi < 0
    nothing = odds_change((0, 0), (0, 0), 0.025)
    assert nothing.lo < 0 < nothing.hi


def test_ratio_interval_covers_and_says_nothing_of_too_little() -> None:
    random = np.random.default_rng(3)
    hits = 0
    for _ in range(500):
        wholes = random.uniform(50, 150, 20)
        ratio, lo, hi = ratio_interval(wholes * random.normal(0.3, 0.05, 20), wholes, 0.025)
        assert lo <= ratio <= hi
        hits += lo <= 0.3 <= hi
    assert hits > 460
    assert ratio_interval(np.array([1.0]), np.array([2.0]), 0.025) == (0.5, -np.inf, np.inf)


def test_log_change_is_welchs_interval() -> None:
    random = np.random.default_rng(4)
    hits = 0
    for _ in range(500):
        found = log_change(np.exp(random.normal(0, 0.1, 10)), np.exp(random.normal(0.2, 0.3, 10)), 0.025)
        assert found is not None
        hits += found.lo <= 0.2 <= found.hi
    assert hits > 455
    assert log_change(np.array([1.0, 2.0]), np.array([1.0, 2.0, 3.0]), 0.025) is None
    assert log_change(np.zeros(5), np.ones(5), 0.025) is None
