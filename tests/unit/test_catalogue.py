"""The tables in the documentation are those of the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from feedback.readers.formats import FORMATS
from feedback.rules import catalogue
from feedback.rules.derive import RULES

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["signals.md", "feedback.md"])
def test_pages_are_current(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    assert catalogue.filled(text) == text, "run `make docs`"


def test_every_rule_and_every_format_has_its_row() -> None:
    rules, known = (DOCS / "signals.md").read_text(), (DOCS / "feedback.md").read_text()
    assert all(f"`{rule_id}`" in rules for rule in RULES for rule_id in rule.ids)
    assert all(f"| `{format.name}` |" in known for format in FORMATS)


def test_a_page_out_of_date_is_filled_anew_and_its_words_stay() -> None:
    text = (DOCS / "signals.md").read_text()
    old = "\n".join(line for n, line in enumerate(text.split("\n")) if not line.startswith("| `performance"))
    assert old != text
    assert catalogue.filled(old) == text
    assert catalogue.filled("words\n") == "words\n"


def test_ids_are_made_by_one_rule_each() -> None:
    ids = [rule_id for rule in RULES for rule_id in rule.ids]
    assert len(ids) == len(set(ids))
