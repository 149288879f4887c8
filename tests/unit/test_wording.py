"""Text of others that is shown, and words beside numbers."""

from __future__ import annotations

import pytest

from feedback.wording import count, one_line, plain, short


def test_nothing_steers_a_terminal_or_a_build_log() -> None:
    assert plain("a\x1b[2Jb\u202ec") == "a [2Jb c"
    assert plain("##[error] not ours") == "## [error] not ours"


def test_text_on_one_line_is_cut_at_its_limit() -> None:
    assert one_line(" a\tb\r\n\x00c ") == "a b c"
    assert short("a b\nc", 5) == "a b c"
    assert short("abc defg", 5) == "abc…"
    assert all(len(short("a b " * 9, n)) <= n for n in range(1, 40))


@pytest.mark.parametrize(("number", "said"), [(0, "0 pairs"), (1, "1 pair"), (2, "2 pairs")])
def test_a_noun_follows_its_number(number: int, said: str) -> None:
    assert count(number, "pair") == said
