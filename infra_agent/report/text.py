"""A report as text for a terminal: wrapped, without colours, safe to print whatever a program said."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence

from feedback.observations import Scalar
from feedback.wording import count, cut
from infra_agent import forecast
from infra_agent.report import budgets, words
from infra_agent.report.facts import Report, Tried

PATCH_LINES = 40
"""So many lines of a patch are shown; the rest is counted."""
_NO_BREAK = "\u00a0"
_REASON_CHARACTERS = 240
_CLAIM_CHARACTERS = 200
ROUTINE = ("search", "random")
"""Planners that predict the same of every change."""


def render_text(report: Report, width: int = 100) -> str:
    """The whole report, at most `width` columns wide where a word or a diff allows it."""
    sections: Sequence[tuple[str, Callable[[Report, int], Iterator[str]]]] = (
        ("Result", _result),
        ("Held against", _against),
        ("What each change is worth in the result", _layers),
        ("What the result changes", _changes),
        ("What was tried", _tried),
        ("What each knob did", _knobs),
        ("Who proposed", _shares),
        ("Guardrails and gates of the result", _held),
        ("How it was measured", _measured),
        ("Warnings", _warnings),
        ("Patch", _patch),
        ("Next", _next),
    )
    lines = [plain(f"{report.target}, campaign {report.campaign}: {_status(report)}"), *_ending(report, width)]
    for title, section in sections:
        body = list(section(report, width))
        if body:
            lines += ["", title, *body]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def plain(text: str) -> str:
    """The text on one line without control characters; it may come from a model or a candidate."""
    return "".join(c for c in " ".join(text.split()) if c.isprintable())


def short(text: str, limit: int) -> str:
    """The text on one line, cut at `limit` characters."""
    return cut(plain(text), limit)


def duration(seconds: float) -> str:
    """`42 s`, `3 min 05 s`, `2 h 10 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _status(report: Report) -> str:
    said = {"interrupted": "interrupted: no process runs it", "waiting": "waiting for its planner"}
    return said.get(report.state.value, report.state.value)


def _ending(report: Report, width: int) -> list[str]:
    """Why it stopped. A search says at length what it has covered."""
    if not report.stop_reason:
        return []
    label = f"ended by the {report.ended_by}: " if report.ended_by else "why it stopped: "
    return wrap(report.stop_reason, width, f"  {label}", "    ")


def wrap(text: str, width: int, first: str = "  ", rest: str = "  ") -> list[str]:
    """A text as lines, at most `width` columns wide where a word allows it."""
    kept = plain(text).replace(" %", f"{_NO_BREAK}%")  # a number stays with its unit
    wrapped = textwrap.wrap(
        kept, width, initial_indent=first, subsequent_indent=rest,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return [line.replace(_NO_BREAK, " ") for line in wrapped] or [first]


def _result(report: Report, width: int) -> Iterator[str]:
    yield from wrap(report.headline, width)
    if not report.n_accepted and report.tried:
        yield from wrap(words.sensitivity(report), width)


def _against(report: Report, width: int) -> Iterator[str]:
    original = report.comparisons[0]
    names = [c.against if c.kind == "original" else f"control {c.against}" for c in report.comparisons]
    column = min(max(map(len, names)), 34)
    for name, comparison in zip(names, report.comparisons, strict=True):
        said = words.against(comparison, original)
        yield from wrap(said, width, f"  {plain(name):<{column}}  ", " " * (column + 4))


def _layers(report: Report, width: int) -> Iterator[str]:
    for layer in report.layers:
        share = words.gain(layer.effect) if layer.effect else "not measured"
        said = f"{share}{f' ({layer.finding})' if layer.finding else ''}  {layer.change}"
        yield from wrap(said, width, f"  {f'#{layer.number}':<4}  ", " " * 8)


def _changes(report: Report, width: int) -> Iterator[str]:
    names = [k.name for k in report.knobs]
    column = max(map(len, names), default=0)
    for knob in report.knobs:
        was, now = _value(knob.was, knob.engine_default), _value(knob.now, knob.engine_default)
        yield from wrap(f"{was} -> {now}", width, f"  {knob.name:<{column}}  ", " " * (column + 4))
    if report.files:
        yield from wrap(f"files: {', '.join(report.files)}", width, "  ", "    ")


def _value(value: Scalar | None, engine_default: Scalar | None) -> str:
    if value is not None:
        return str(value).lower() if isinstance(value, bool) else str(value)
    return "the engine's default" + (f" ({engine_default})" if engine_default is not None else "")


def _tried(report: Report, width: int) -> Iterator[str]:
    if not report.tried:
        return
    meaning = words.meaning(report.metric, report.direction)
    yield from wrap(f"gain: {meaning}, against the state before it; negative is a loss", width)
    gains = [words.gain(t.effect) if t.effect else "not measured" for t in report.tried]
    column = max(map(len, gains))
    yield f"  {'#':>3}  {'verdict':<12}  {'gain':<{column}}  change"
    for tried, gain in zip(report.tried, gains, strict=True):
        yield from _row(
            tried,
            (tried.planner or report.planner) in ROUTINE,
            f"  {tried.number:>3}  {tried.outcome:<12}  {gain:<{column}}  ",
            width,
        )


def _row(tried: Tried, is_routine: bool, head: str, width: int) -> Iterator[str]:
    """One change. What a search predicts is routine: of every change alike that it gains what the target asks for,
    which is what the verdict says already."""
    yield from wrap(tried.change, width, head, " " * len(head))
    indent = " " * 7
    if "patch of" in tried.change:
        yield from wrap(short(tried.claim, _CLAIM_CHARACTERS), width, f"{indent}claim: ", indent + " " * 7)
    if tried.reason and tried.outcome != "accept":
        yield from wrap(short(tried.reason, _REASON_CHARACTERS), width, f"{indent}why: ", indent + " " * 5)
    if tried.forecast is not None and not is_routine:
        yield from wrap(forecast.said(tried.forecast, tried.effect), width, f"{indent}predicted: ", indent + " " * 11)
    for counted in tried.work:
        yield from wrap(short(counted, _REASON_CHARACTERS), width, f"{indent}counted: ", indent + " " * 9)


def _knobs(report: Report, width: int) -> Iterator[str]:
    """What steps of each knob alone measured, and how much of the differences it explains."""
    found = report.knob_effects
    if found is None:
        return
    column = max(len(knob.name) for knob in found.knobs)
    for knob in found.knobs if found.method or any(k.n_steps for k in found.knobs) else ():
        if not knob.n_trials:
            continue
        share = "  —  " if knob.share is None else f"{100 * knob.share:3.0f} %"
        yield from wrap(words.knob_effect(knob), width, f"  {share}  {knob.name:<{column}}  ", " " * (column + 11))
    yield from wrap(found.caveat, width)


def _shares(report: Report, width: int) -> Iterator[str]:
    """Where several planners shared the budget."""
    if not report.planner.startswith("portfolio"):
        return
    column = max((len(share.planner) for share in report.shares), default=0)
    for share in report.shares:
        yield from wrap(words.share(share), width, f"  {share.planner:<{column}}  ", " " * (column + 4))


def _held(report: Report, width: int) -> Iterator[str]:
    for held in report.held:
        yield from wrap(words.held(held), width, f"  {held.finding:<12}  ", " " * 16)


def _measured(report: Report, width: int) -> Iterator[str]:
    said = [words.itself(report), words.sensitivity(report) if report.n_accepted else "", words.scale(report)]
    if any(c.effect for c in report.comparisons):
        said.append(words.MEDIANS)
    for sentence in filter(None, said):
        yield from wrap(sentence, width)
    if report.confidence is not None:
        low, high = (f"{100 * value:.1f} %" for value in report.confidence)
        level = low if low == high else f"{low} to {high}"
        yield from wrap(
            f"Intervals: {report.method}, confidence {level} each (two-sided, at one of several looks that share "
            "an error budget).", width,
        )  # fmt: skip
    yield from wrap(
        f"Error budget: at most {100 * report.error_budget:g} % probability of any false accept in the whole "
        f"campaign; {100 * report.error_spent:.2g} % given to the changes so far.", width,
    )  # fmt: skip
    for used in filter(None, (_used(report), budgets.model_use(report), budgets.accelerator_use(report))):
        yield from wrap(used, width)


def _used(report: Report) -> str:
    limit = f" of {report.budget.minutes:g} min" if report.budget.minutes is not None else ""
    return (
        f"Used: {report.n_changes} of {report.budget.experiments} experiments, "
        f"{duration(report.elapsed_s)}{limit}, {duration(report.sandbox_s)} of it measuring."
    )


def _warnings(report: Report, width: int) -> Iterator[str]:
    for warning in report.warnings:
        yield from wrap(warning, width, "  - ", "    ")


def _patch(report: Report, width: int) -> Iterator[str]:
    lines = report.patch.splitlines()
    for line in lines[:PATCH_LINES]:
        yield "  " + "".join(c for c in line.replace("\t", "    ") if c.isprintable())
    if (left := len(lines) - PATCH_LINES) > 0:
        yield f"  … {count(left, 'more line')}: infra-agent show {report.campaign} --patch"


def _next(report: Report, width: int) -> Iterator[str]:
    for command in report.next:
        line, _, comment = command.partition("  # ")
        yield from wrap(f"# {comment}", width) if comment else ()
        yield f"  {line}"
