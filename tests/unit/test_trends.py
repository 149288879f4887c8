"""Growth laws, scaling exponents, changes of level and warm-up, on made series with known answers."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from feedback.trends import growth, power_law, step, warm_up

SIZES = [4.0, 16.0, 64.0, 256.0, 1024.0]


def noisy(values: list[float], seed: int, spread: float = 0.05) -> list[float]:
    rng = np.random.default_rng(seed)
    return [v * math.exp(rng.normal(0, spread)) for v in values]


@pytest.mark.parametrize("slope", [0.0, 0.5, 1.0, 2.0])
def test_exponent_is_found_with_its_interval(slope: float) -> None:
    inside = 0
    for seed in range(100):
        law = power_law(SIZES, noisy([3e-7 * s**slope for s in SIZES], seed))
        assert law is not None
        i = law.exponent.interval(0.95)
        inside += i.lo <= slope <= i.hi
        assert law.slope == pytest.approx(slope, abs=0.08)
    assert inside >= 88


def test_exact_law_has_no_error() -> None:
    law = power_law(SIZES, [2 * s for s in SIZES])
    assert law is not None
    assert law.r2 == pytest.approx(1)
    assert law.at(4096) == pytest.approx(8192)
    assert (law.lowest, law.highest) == (4, 1024)


@pytest.mark.parametrize("errors", [[0.0, 1, 1, 1, 1], [1, 1, 1, 1, math.inf], [1, 1, 1, 1, math.nan]])
def test_law_of_odd_values_is_none(errors: list[float]) -> None:
    assert power_law(SIZES, errors) is None
    assert growth(SIZES, errors) is None


def test_few_sizes_have_no_law() -> None:
    assert power_law([1, 2], [1, 2]) is None
    assert growth([1, 2, 3], [1, 2, 3]) is None
    assert growth([1, 1, 2, 2], [1, 2, 3, 4]) is None


LAWS: list[tuple[str, Callable[[float], float]]] = [
    ("constant", lambda t: 1e-6),
    ("square root", lambda t: 1e-7 * t**0.5),
    ("linear", lambda t: 1e-7 * t),
    ("quadratic", lambda t: 1e-9 * t**2),
    ("exponential", lambda t: 1e-7 * math.exp(t / 100)),
]


@pytest.mark.parametrize(("law", "of"), LAWS)
@pytest.mark.parametrize(
    "sizes", [SIZES, [64.0, 256.0, 512.0, 1024.0], [16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0]]
)
def test_law_is_told_or_left_open_but_never_mistaken(
    law: str, of: Callable[[float], float], sizes: list[float]
) -> None:
    right = 0
    for seed in range(50):
        found = growth(sizes, noisy([of(t) for t in sizes], seed))
        assert found is not None
        assert found.law in (law, None, "power")
        assert law in found.rivals or found.law == "power"
        right += found.law == law
    assert right >= 35


def test_extrapolation_gives_all_laws_that_fit() -> None:
    sizes = [100.0, 104.0, 108.0, 112.0]  # too near each other to tell anything
    found = growth(sizes, [1e-6 * s for s in sizes])
    assert found is not None
    assert found.law is None
    assert set(found.rivals) >= {"linear", "square root"}
    lo, hi = found.at(1e6)
    assert lo < 1e-1 < 1.0 <= hi


def test_clear_law_extrapolates_to_one_value() -> None:
    found = growth(SIZES, [1e-6 * s for s in SIZES])
    assert found is not None
    assert found.law == "linear"
    assert found.at(1e6)[0] == pytest.approx(1.0)


def test_exponential_overflow_is_infinite() -> None:
    found = growth(SIZES, [1e-7 * math.exp(s / 50) for s in SIZES])
    assert found is not None
    assert found.law == "exponential"
    assert found.at(1e9)[1] == math.inf


def test_step_is_found_where_it_is() -> None:
    values = noisy([1.0] * 30 + [1.06] * 30, 1, 0.02)
    found = step(values)
    assert found is not None
    assert abs(found.at - 30) <= 3
    assert found.ratio == pytest.approx(1.06, abs=0.015)
    assert found.p < 1e-4


def test_outlier_is_no_step() -> None:
    values = noisy([1.0] * 40, 3, 0.01)
    values[25] = 9.0
    found = step(values)
    assert found is not None
    assert found.p > 0.05


def test_steps_of_identical_noise_are_as_rare_as_said() -> None:
    found = [step(noisy([1.0] * n, seed, 0.1)) for n in (20, 60) for seed in range(500)]
    assert sum(s is not None and s.p < 0.05 for s in found) <= 60
    assert sum(s is not None and s.p < 0.01 for s in found) <= 15


@pytest.mark.parametrize("values", [[1.0] * 19, [0.0] * 40, [math.nan] * 40])
def test_series_without_a_step_to_find(values: list[float]) -> None:
    assert step(values) is None


def test_constant_series_has_no_step() -> None:
    found = step([1.0] * 40)
    assert found is not None
    assert found.p == 1.0


def test_slow_start_is_counted() -> None:
    n, excess = warm_up([3.0, 2.0, 1.5, *noisy([1.0] * 17, 2, 0.01)])
    assert n == 3
    assert excess == pytest.approx(2.17, abs=0.05)


@pytest.mark.parametrize("values", [[1.0] * 20, [2.0, 1.0, 1.0], [math.inf, *[1.0] * 20], [0.5, *[1.0] * 20]])
def test_no_slow_start(values: list[float]) -> None:
    assert warm_up(values) == (0, 1.0)
