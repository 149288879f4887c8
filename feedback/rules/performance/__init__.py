"""Rules on how fast: objective and guardrails, effects by case, series, scaling, roofline, amount of work."""

from feedback.rules.performance.answer import measured
from feedback.rules.performance.by_case import by_case
from feedback.rules.performance.coverage import cases_differ
from feedback.rules.performance.objective import METHOD, METHOD_IN_TURN, bench_delta, effect, gain_text
from feedback.rules.performance.question import question
from feedback.rules.performance.scaling import roofline, scaling
from feedback.rules.performance.series import drift, slow_starts
from feedback.rules.performance.work import instructions, instructions_by_function

__all__ = [
    "METHOD",
    "METHOD_IN_TURN",
    "bench_delta",
    "by_case",
    "cases_differ",
    "drift",
    "effect",
    "gain_text",
    "instructions",
    "instructions_by_function",
    "measured",
    "question",
    "roofline",
    "scaling",
    "slow_starts",
]
