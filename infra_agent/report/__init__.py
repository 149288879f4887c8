"""What a campaign found: the result against the original and the control arms, what was tried, what held, and
how the numbers were made. Pure; `build` makes a Report from records, `render_text` turns it into text."""

from infra_agent.report.build import Result, build, screening_rule
from infra_agent.report.effort import CallUse
from infra_agent.report.facts import Report
from infra_agent.report.text import render_text
from infra_agent.report.versus import Side, Versus, compare, render_versus

__all__ = [
    "CallUse",
    "Report",
    "Result",
    "Side",
    "Versus",
    "build",
    "compare",
    "render_text",
    "render_versus",
    "screening_rule",
]
