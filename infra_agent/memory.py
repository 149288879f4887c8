"""What people do with the lessons that campaigns left: read, correct, delete."""

from __future__ import annotations

from feedback.wording import short
from infra_agent.errors import WrongUse
from infra_agent.lessons import MAX_TEXT, Lesson, change_text, effect_text
from infra_agent.settings import Settings
from infra_agent.store import open_store

WIDEST_CELL = 60


def lessons(settings: Settings, target: str | None = None) -> tuple[Lesson, ...]:
    """All lessons, or those of targets of this name, newest first. Raises StoreUnavailable."""
    with open_store(settings.database_url) as store, store.transaction(read_only=True) as ledger:
        return ledger.lessons(target)


def lesson(settings: Settings, lesson_id: str) -> Lesson:
    """The lesson with this id, or a unique part of it. Raises NotFound."""
    with open_store(settings.database_url) as store, store.transaction(read_only=True) as ledger:
        return ledger.lesson(lesson_id)


def edit(settings: Settings, lesson_id: str, text: str, by: str) -> Lesson:
    """Put a person's words in place of the machine's. Raises NotFound, and WrongUse for no words or too many."""
    if not short(text, MAX_TEXT):
        raise WrongUse("--text is empty: say what the lesson should say, or `infra-agent lessons delete` it")
    if len(text) > MAX_TEXT:
        raise WrongUse(f"--text has {len(text)} characters; a lesson may have {MAX_TEXT}")
    with open_store(settings.database_url) as store, store.transaction() as ledger:
        return ledger.edit_lesson(lesson_id, short(text, MAX_TEXT), short(by, 100) or "somebody")


def delete(settings: Settings, lesson_id: str) -> Lesson:
    """Delete a lesson; returns it as it was. Raises NotFound."""
    with open_store(settings.database_url) as store, store.transaction() as ledger:
        return ledger.delete_lesson(lesson_id)


def as_text(found: tuple[Lesson, ...], target: str | None) -> str:
    """A line a lesson, for people."""
    if not found:
        of = f" of a target {short(target, 64)!r}" if target else ""
        return f"no lessons{of} yet: a campaign leaves one for each change that it measures"
    lines = []
    for one in found:
        mark = "  (corrected)" if one.edited_at else ""
        change = short(one.text, WIDEST_CELL) if one.text else short(change_text(one), WIDEST_CELL)
        lines.append(f"{one.id}  {one.created_at:%Y-%m-%d}  {one.target_name}  {change}  {effect_text(one)}{mark}")
    return "\n".join(lines)


def details(one: Lesson) -> str:
    """One lesson whole, for people."""
    told = {
        "target": one.target_name + (f" (engine {one.engine})" if one.engine else ""),
        "host": one.host_fingerprint,
        "from": f"campaign {one.campaign_id}, experiment {one.number}, planner {one.planner}",
        "when": f"{one.created_at:%Y-%m-%d %H:%M} UTC",
        "lever family": one.lever_family,
        "claim": one.claim,
        "because of": "; ".join(f"{s.rule_id}: {s.message}" for s in one.symptoms),
        "change": change_text(one),
        "effect": effect_text(one),
        "prediction": one.outcome or "",
        "verdict": "; ".join(one.reasons),
        "corrected": one.text,
        "by": f"{one.edited_by} on {one.edited_at:%Y-%m-%d %H:%M} UTC" if one.edited_at else "",
    }
    lines = [f"lesson {one.id}"]
    return "\n".join(lines + [f"  {name + ':':<14}{short(text, 600)}" for name, text in told.items() if text])
