"""A comparison in a pull request: everything is there, and nothing in it acts."""

from __future__ import annotations

import html
import re

import pytest
from signals_of_all_kinds import EVIL, everything, signal

from feedback.markdown import MAX_ROWS, markdown, safe

OURS = re.compile(r"</?(?:details|summary|code)>")


def test_all_signals_are_rows_with_their_details() -> None:
    found = everything()
    text = markdown(found)
    for s in found.signals:
        assert f"| `{s.rule_id}` | `{s.fingerprint}` |" in text
        assert text.count("<details>") == text.count("</details>") == len(found.signals)  # one has none; the files do
    assert "gain +20.0% [+18.0%, +22.0%]" in html.unescape(text)
    assert "not read: c: ?" in text


def test_nothing_in_it_acts() -> None:
    text = markdown(everything())
    bare = OURS.sub("", text)
    assert "<" not in bare
    assert ">" not in bare
    assert re.search(r"@\w", text) is None
    assert re.search(r"#\d", re.sub(r"&#\d+;", "", text)) is None
    assert re.search(r"GH-\d", text) is None
    assert "](" not in text
    assert "://" not in text
    assert re.search(r"www\.", text) is None
    assert "{0}" not in text
    assert all(c.isprintable() or c == "\n" for c in text)


def test_rows_of_tables_stay_rows() -> None:
    for line in markdown(everything()).splitlines():
        if line.startswith("|"):
            assert line.endswith("|")
            assert line.count("|") in (5, 6)


@pytest.mark.parametrize(
    "text", ["# title", "- item", "+ item", "1. one", "12) two", "> quote", "=====", ": x", "a\nb", "    code"]
)
def test_no_text_begins_a_block(text: str) -> None:
    assert re.match(r"&#|\w", safe(text))
    assert not re.match(r"\d+[.)]", safe(text))


def test_what_is_shown_is_what_was_said() -> None:
    shown = html.unescape(safe(EVIL)).replace("\u200b", "")
    assert shown == " ".join("".join(c if c.isprintable() else " " for c in EVIL).split())


def test_a_mention_stays_broken_after_entities_are_decoded() -> None:
    shown = html.unescape(safe("@octocat #12 GH-3 https://x www.x a@b.c"))
    assert re.search(r"@\w|#\d|GH-\d|://|www\.", shown) is None


def test_very_many_signals_are_cut_and_counted() -> None:
    found = everything().model_copy(update={"signals": (signal("observed", "note"),) * (MAX_ROWS + 7)})
    assert "7 more signals are left out here." in markdown(found)


def test_no_signals() -> None:
    text = markdown(everything().model_copy(update={"signals": ()}))
    assert "- open? nothing" in text
