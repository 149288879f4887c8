"""What a text must hold before a regular expression is worth a search: most lines of a log fit none of many.

Finding a fixed text is cheap beside a search, and a table of fifty patterns is fifty searches in every line.
"""

from __future__ import annotations

import re

LEAST = 4
"""Characters; shorter texts are in too many lines to be worth a look."""

_TOKEN = re.compile(
    r"""
      (?P<repeat> [*?+][?+]? | \{\d*(?:,\d*)?\}[?+]? )
    | (?P<class>  \[\^?\]?(?:\\.|[^\]\\])*\] )
    | (?P<open>   \( (?:\?(?:P<\w+>|<?[=!]|[:>]|[aiLmsux-]+[:)]))? )
    | (?P<close>  \) )
    | (?P<or>     \| )
    | (?P<plain>  [^\\.^$*+?{}\[\]()|] | \\[^\w\s] )
    | (?P<other>  \\. | . )
    """,
    re.VERBOSE | re.DOTALL,
)


def needed(pattern: str) -> tuple[str, ...]:
    """Texts of which any match holds at least one; empty if none can be told.

    Only what stands outside of all groups counts, and of each alternative the longest run of plain characters.
    """
    runs: list[str] = [""]
    alternatives: list[list[str]] = [runs]
    depth = 0
    for token in _TOKEN.finditer(pattern):
        kind, text = token.lastgroup, token.group()
        if kind == "open":
            if text.endswith(")") or "i" in text.partition("?")[2].split("<")[0]:
                return ()  # flags: letters may stand for others
            depth += 1
            runs.append("")
        elif kind == "close":
            depth -= 1
        elif depth:
            continue
        elif kind == "or":
            runs = [""]
            alternatives.append(runs)
        elif kind == "plain":
            runs[-1] += text[-1]
        else:
            if kind == "repeat" and not text.startswith("+"):
                runs[-1] = runs[-1][:-1]  # the last character may be missing
            runs.append("")
    longest = [max(of, key=len) for of in alternatives]
    return tuple(dict.fromkeys(longest)) if all(len(text) >= LEAST for text in longest) else ()


class Screened:
    """Patterns of which any may fit a text, searched only in a text that holds what one of them needs."""

    def __init__(self, choices: list[str]) -> None:
        needs = {choice: needed(choice) for choice in choices}
        self._texts = tuple(dict.fromkeys(text for texts in needs.values() for text in texts))
        self._always = _either([choice for choice, texts in needs.items() if not texts])
        self._pattern = _either(choices) or re.compile(r"(?!)")

    def fits(self, text: str) -> bool:
        """Whether one of the patterns is found in `text`."""
        for needed in self._texts:
            if needed in text:
                return self._pattern.search(text) is not None
        return self._always is not None and self._always.search(text) is not None


def _either(choices: list[str]) -> re.Pattern[str] | None:
    """One expression for all, without group names, which may stand only once in it; None for no choices."""
    if not choices:
        return None
    return re.compile("|".join(f"(?:{re.sub(r'[(][?]P<[^>]+>', '(?:', choice)})" for choice in choices))
