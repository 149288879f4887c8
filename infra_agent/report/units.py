"""Absolute values with their units, as the metric's name implies them."""

from __future__ import annotations

from feedback.signals import Effect

_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (0.0, "ns"))
_SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (0, "B"))
_RATES = {"request_throughput": "req/s", "request_goodput": "req/s"}


def change(effect: Effect) -> str:
    """`9.54 -> 7.29 ms`: the medians of the arms, both in the unit that suits the baseline's."""
    scale, unit = _unit(effect.metric, effect.baseline)
    return f"{effect.baseline / scale:.4g} -> {effect.measured / scale:.4g}{f' {unit}' if unit else ''}"


def _unit(metric: str, value: float) -> tuple[float, str]:
    """What to divide a value of the metric by, and the unit that it then has; empty where the name says none."""
    if metric.endswith("_ms"):
        scale, unit = _time(value / 1000)
        return 1000 * scale, unit
    if metric.endswith("_s"):
        return _time(value)
    if metric.endswith("_bytes"):
        return next(((float(max(size, 1)), unit) for size, unit in _SIZES if abs(value) >= size), (1.0, "B"))
    if metric in _RATES or metric.endswith("_throughput"):
        return 1.0, _RATES.get(metric, "tok/s")
    return 1.0, "tokens" if metric.endswith("_tokens") else ""


def _time(seconds: float) -> tuple[float, str]:
    return next(((size or 1e-9, unit) for size, unit in _TIMES if abs(seconds) >= size), (1.0, "s"))
