"""Quoting of text that someone else wrote (the target's files, logs, a model's own words) for a prompt.

Bounded in length, without control characters, without what a chat template would take for the end of a message,
without what looks like a key, between marks that the text can't contain: they carry its hash.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Mapping

LIMIT_CHARACTERS = 8_000
SECRET_CHARACTERS = 16
"""Real keys are longer than this. A short one is a dummy of a local endpoint; hiding it would garble plain words."""
LEFT_OUT = "[a key was left out]"
_KEPT = "\n\t"
_LETTERS = str.maketrans("0123456789abcdef", "ghijklmnopqrstuv")

_TEMPLATE = re.compile(
    r"<(?=[|｜][^\n<>]{1,60}>)"  # <|im_start|>, <|eot_id|> and those with the full-width bar
    r"|<(?=/?(?:s|start_of_turn|end_of_turn|bos|eos|pad|unk|tool_call|tool_response|think)>)"
    r"|<(?=</?SYS>>)"
    r"|\[(?=/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|gMASK)\])"
)
"""Where a word begins that tokenizers of chat models read as a token of its own, wherever it stands: servers do not
tell a file that holds `<|im_start|>system` from a message of the system."""
_SECRETS = re.compile(
    r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,30}PRIVATE KEY-----|\Z)"
    r"|\b(?:sk-[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,}|glpat-[A-Za-z0-9_-]{18,}"
    r"|hf_[A-Za-z0-9]{30,}|xox[abeoprs]-[A-Za-z0-9-]{16,}|AKIA[0-9A-Z]{16}|AIza[A-Za-z0-9_-]{35}"
    r"|eyJ[A-Za-z0-9_-]{15,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{20,})",
    re.DOTALL,
)
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)
_PASSWORD_IN_URL = re.compile(r"://[^/\s:@]*:([^/\s@]+)@")


def fence(text: str, source: str, limit: int = LIMIT_CHARACTERS) -> str:
    """`text` as a quoted block that says where it is from. Longer text loses its middle, and says so."""
    clean = neutral(_SECRETS.sub(LEFT_OUT, cut(text, limit)))
    mark = _mark(clean)
    while mark in clean:  # somebody had the time to search for a text that holds its own hash
        mark = _mark(mark)
    label = " ".join(neutral(_SECRETS.sub(LEFT_OUT, source)).split())[:200].replace('"', "'")
    return f'<quoted mark="{mark}" source="{label}">\n{clean}\n</quoted mark="{mark}">'


def _mark(text: str) -> str:
    """A hash in letters that no hexadecimal number has: a mark is no signal's id, and must not look like one."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12].translate(_LETTERS)


def cut(text: str, limit: int) -> str:
    """At most about `limit` characters: the head and the tail, and how much is left out between them."""
    if len(text) <= limit:
        return text
    head, tail = limit * 2 // 3, limit - limit * 2 // 3
    return f"{text[:head]}\n[... {len(text) - limit} characters left out ...]\n{text[len(text) - tail :]}"


def neutral(text: str) -> str:
    """Text whose control and formatting characters (escapes, overrides of direction, zero-width ones) show as
    `\\u....` instead of acting, as does the first character of a chat template's own words; line ends become plain
    ones. Whoever copies such text into JSON gets the original back."""
    plain = inert(text.replace("\r\n", "\n"))
    if plain.isascii() and plain.isprintable():
        return plain
    return "".join(_shown(character) for character in plain)


def inert(text: str) -> str:
    """Text in which no word acts in a chat template."""
    return _TEMPLATE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def secrets(environment: Mapping[str, str], *more: str) -> tuple[str, ...]:
    """The values that must never be told to anybody: those of variables whose names say so, passwords in addresses,
    and `more`. The longest come first, so that one which holds another is hidden whole."""
    values = [value for name, value in environment.items() if _SECRET_NAME.search(name)]
    values += [found for value in environment.values() for found in _PASSWORD_IN_URL.findall(value)]
    values = [value.strip() for value in (*values, *more)]
    return tuple(sorted({v for v in values if len(v) >= SECRET_CHARACTERS}, key=lambda v: (-len(v), v)))


def hide(text: str, values: Iterable[str]) -> str:
    """`text` without any of these values."""
    for value in values:
        text = text.replace(value, LEFT_OUT)
    return text


def _shown(character: str) -> str:
    if character in _KEPT or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp"):
        return character
    return f"\\u{ord(character):04x}"
