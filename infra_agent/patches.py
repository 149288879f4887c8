"""What a patch touches, read from its text: a unified diff, by git or by hand."""

from __future__ import annotations

import re
from typing import NamedTuple

_FILE = re.compile(
    r"^diff --git a/(?P<git>.+) b/(?P=git)$"  # all that stands there of an empty file or a new mode
    r"|^--- (?:a/)?(?P<old>[^\t\r\n]+).*\n\+\+\+ (?:b/)?(?P<new>[^\t\r\n]+)",
    re.MULTILINE,
)
_NOTHING = "/dev/null"


class Touched(NamedTuple):
    """The files of a patch, in order, and its lines."""

    files: tuple[str, ...]
    added: int
    removed: int


def touched(patch: str) -> Touched:
    """What a patch touches. Never raises: of a text that is no patch it names no files."""
    found = list(_FILE.finditer(patch))
    names = [m["git"] or (m["old"] if m["new"] == _NOTHING else m["new"]) for m in found]
    headers = sum(m["new"] is not None for m in found)
    added, removed = (len(re.findall(sign, patch, re.MULTILINE)) for sign in (r"^\+", r"^-"))
    return Touched(tuple(dict.fromkeys(names)), added - headers, removed - headers)
