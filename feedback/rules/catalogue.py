"""The tables of rules and of formats as Markdown, for `docs/`. A filter: `python -m feedback.rules.catalogue < page`.

`make docs` writes them into `docs/signals.md` and `docs/feedback.md`, between the marks; a test holds them current.
"""

from __future__ import annotations

import re
import sys
from itertools import groupby

from feedback.readers.formats import FORMATS
from feedback.rules.derive import RULES

_MARK = "<!-- table of {name}: made by `make docs` -->"


def rules() -> str:
    """Every rule: its ids, what it says and what it needs, by family."""
    rows = ["| rule | says | from |", "|---|---|---|"]
    families = sorted(RULES, key=lambda rule: rule.family)
    for family, group in groupby(families, key=lambda rule: rule.family):
        rows.append(f"| **{family}** | | |")
        for rule in group:
            rows.append(f"| {', '.join(f'`{i}`' for i in rule.ids)} | {_cell(rule.says)} | {_cell(rule.needs)} |")
    return "\n".join(rows)


def formats() -> str:
    """Every format, in the order in which they are tried."""
    rows = ["| format | what it is |", "|---|---|"]
    return "\n".join([*rows, *(f"| `{format.name}` | {_cell(format.about)} |" for format in FORMATS)])


_TABLE = re.compile(r"\A(?:\|.*\n)*")

TABLES = {"rules": rules, "formats": formats}


def filled(text: str) -> str:
    """A page with its tables made anew: each stands between a mark that names it and the next empty line."""
    for name, made in TABLES.items():
        mark = _MARK.format(name=name)
        before, found, after = text.partition(mark + "\n")
        if found:
            text = f"{before}{found}{made()}\n{re.sub(_TABLE, '', after, count=1)}"
    return text


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(filled(sys.stdin.read()))
