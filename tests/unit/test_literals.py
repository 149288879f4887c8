"""What a line must hold before patterns are searched in it: never a reason to miss a match."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from feedback.readers import patterns
from feedback.readers.literals import Screened, needed

TABLES = ("engine_log", "jit")
LOGS = sorted(p for p in (Path(__file__).parents[1] / "data").rglob("*") if p.suffix in (".log", ".txt"))


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        ("cancel task", ("cancel task",)),
        (r"failed to .{0,300}lock .{0,300}memory|out of memory", ("failed to ", "out of memory")),
        (r"^llama_context: n_batch += (\d+)", ("llama_context: n_batch ",)),
        (r"[Cc]apture (?:\w+ ){0,4}graph end", ("graph end",)),
        (r"is preempted(?: by mode)?", ("is preempted",)),
        (r"colou?r of", ("colo",)),
        (r"tokens?$", ("token",)),
        (r"'?quoted\.name", ("quoted.name",)),
        (r"\bOverriding (?!draft)", ("Overriding ",)),
        (r"[^\]]*]abcdef", ("abcdef",)),
        (r"(?i)falling back", ()),
        (r"(?i:falling) back", ()),
        (r"(?:alpha|beta)", ()),
        (r"alpha|b\d", ()),
        (r"\d+", ()),
        ("", ()),
    ],
)
def test_what_a_match_must_hold(pattern: str, texts: tuple[str, ...]) -> None:
    assert needed(pattern) == texts


def _choices(name: str) -> list[str]:
    table = patterns.table(name)
    return [
        *(row.pattern for row in (*table.event, *table.setting, *table.ignore)), *(row.trigger for row in table.stat),
        *(row.ready for row in table.engine), *(row.request for row in table.engine),
    ]  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_no_recorded_line_is_missed(name: str) -> None:
    choices = _choices(name)
    lines = {text for path in LOGS for _, text in patterns.lines(path)}
    assert len(lines) > 500
    hits = 0
    for choice in choices:
        screened, plain = Screened([choice]), re.compile(choice)
        for line in lines:
            found = plain.search(line) is not None
            hits += found
            assert screened.fits(line) is found, (choice, line)
    assert hits or name != "engine_log"


PIECES = ["abcd", "wxyz", " ", "q", ".", r"\.", r"\d", "[ab]", "[^c]", "(?:abcd|x)", "(wxyz)",
          "|", "?", "*", "+", "{0,3}", "^", "$"]  # fmt: skip
TEXTS = ["abcd", "wxyz", "abc", "q", ".", "7", "x", " "]


def test_a_screen_finds_what_the_expression_finds() -> None:
    chance = random.Random(1)
    tried = found = 0
    for _ in range(20_000):
        pattern = "".join(chance.choices(PIECES, k=chance.randint(1, 7)))
        try:
            plain = re.compile(pattern)
        except re.error:
            continue
        line = "".join(chance.choices(TEXTS, k=chance.randint(0, 6)))
        fits = plain.search(line) is not None
        tried, found = tried + 1, found + fits
        assert Screened([pattern]).fits(line) is fits, (pattern, line)
    assert tried > 5_000
    assert 1_000 < found < tried - 1_000


def test_nothing_fits_no_patterns() -> None:
    assert not Screened([]).fits("anything")
