"""Quoting of text that someone else wrote (the target's files, logs, a model's own words) for a prompt.

Bounded in length, without control characters, between marks that the text can't contain: they carry its hash.
"""

from __future__ import annotations

import hashlib
import unicodedata

LIMIT_CHARACTERS = 8_000
_KEPT = "\n\t"


def fence(text: str, source: str, limit: int = LIMIT_CHARACTERS) -> str:
    """`text` as a quoted block that says where it is from. Longer text loses its middle, and says so."""
    clean = neutral(cut(text, limit))
    mark = hashlib.sha256(clean.encode("utf-8", "replace")).hexdigest()[:12]
    label = " ".join(neutral(source).split())[:200].replace('"', "'")
    return f'<quoted id="{mark}" source="{label}">\n{clean}\n</quoted id="{mark}">'


def cut(text: str, limit: int) -> str:
    """At most about `limit` characters: the head and the tail, and how much is left out between them."""
    if len(text) <= limit:
        return text
    head, tail = limit * 2 // 3, limit - limit * 2 // 3
    return f"{text[:head]}\n[... {len(text) - limit} characters left out ...]\n{text[-tail:]}"


def neutral(text: str) -> str:
    """Text whose control and formatting characters (escapes, overrides of direction, zero-width ones) show as
    `\\u....` instead of acting; line ends become plain ones."""
    plain = text.replace("\r\n", "\n")
    if plain.isascii() and plain.isprintable():
        return plain
    return "".join(_shown(character) for character in plain)


def _shown(character: str) -> str:
    if character in _KEPT or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp"):
        return character
    return f"\\u{ord(character):04x}"
