"""What must not leave this machine in a recording: paths, the user's and the host's name, secrets.

Text is made for people and may lose a word too many; a patch must still apply, so of it only lines that it adds lose
what is surely private.
"""

from __future__ import annotations

import getpass
import os
import re
import socket
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from feedback.observations import Scalar
from infra_agent.domain import Campaign
from infra_agent.planner.fence import secrets
from infra_agent.settings import Settings

SECRET = "[secret]"
_SECRET_NAMES = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
_MIN_SECRET, _MIN_PASSWORD = 8, 4
"""Fewer characters than where a planner is told of things: a word too many that is lost from a page does no harm."""
_SECRETS = re.compile(
    r"\b(?:sk|pk|rk)-[\w-]{16,}|\bgh[pousr]_\w{20,}|\bgithub_pat_\w{20,}|\bglpat-[\w-]{16,}|\bhf_\w{20,}"
    r"|\bAKIA[0-9A-Z]{16}\b|\bxox[abprs]-[\w-]{10,}|(?<=Bearer )[\w.~+/=-]{8,}|(?<=://)[^\s/@:]+:[^\s/@]+(?=@)"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    re.DOTALL,
)
"""Forms of secrets that are known by sight."""
_BEFORE = r"(?:(?<![\w./~-])|(?<=[^\w]-[A-Z])|(?<=file://))"
"""In front of an absolute path: not the rest of a relative one, but perhaps a flag such as -I."""
_PATH = re.compile(_BEFORE + r"/(?P<first>[\w.@+~-]+)(?:/[\w.@+~=,-]+)+/?|" + _BEFORE + r"/(?P<alone>root|home)\b")
_PRIVATE_ROOTS = frozenset([
    "home", "Users", "root", "tmp", "var", "mnt", "media", "data", "work", "workspace", "srv", "nfs",
    "private", "Volumes", "run", "export", "shared", "opt",
])  # fmt: skip
_PUBLIC_ROOTS = frozenset(
    ["tree", "scratch", "usr", "bin", "sbin", "lib", "lib32", "lib64", "dev", "proc", "sys", "etc", "boot"]
)
"""Directories that every machine has, and those of the sandbox."""
_NOBODY = frozenset(["root", "user", "admin", "ubuntu", "debian", "nobody", "runner", "localhost", "infra", "agent"])
"""Names that tell nothing of whom or what they name."""


class Redaction(NamedTuple):
    """Replaces what is private."""

    secrets: tuple[str, ...] = ()
    places: tuple[tuple[str, str], ...] = ()
    """Known absolute paths and what stands for each, longest first."""
    names: tuple[str, ...] = ()
    """Of the user and the host."""
    roots: frozenset[str] = _PRIVATE_ROOTS
    """Top-level directories below which a path is private."""

    def text(self, text: str) -> str:
        """A text for people without what is private."""
        text = self._surely(text)
        text = _PATH.sub(self._path, text)
        for name in self.names:
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", "[name]", text)
        return text

    def patch(self, patch: str) -> str:
        """A patch whose added lines hold nothing that is surely private."""
        lines = patch.split("\n")
        return "\n".join(self._surely(line) if line[:1] == "+" and line[:4] != "+++ " else line for line in lines)

    def value(self, value: Scalar) -> Scalar:
        """A knob's or parameter's value, in which only secrets and known paths are replaced."""
        return self._surely(value) if isinstance(value, str) else value

    def _surely(self, text: str) -> str:
        for secret in self.secrets:
            text = text.replace(secret, SECRET)
        text = _SECRETS.sub(SECRET, text)
        for place, instead in self.places:
            text = re.sub(rf"{_BEFORE}{re.escape(place)}(?![\w-])", lambda _, i=instead: i, text)  # type: ignore[misc]
        return text

    def _path(self, match: re.Match[str]) -> str:
        if (match["first"] or match["alone"]) not in self.roots:
            return match[0]
        return "[path]" if match["alone"] else f"[path]/{match[0].rstrip('/').rsplit('/', 1)[1]}"


def redaction(settings: Settings, campaign: Campaign, environment: Mapping[str, str] | None = None) -> Redaction:
    """What is private here: of these settings, this campaign, this machine and this environment."""
    env = os.environ if environment is None else environment
    known = {
        campaign.spec.target: campaign.target_name, str(settings.home): "[home of infra-agent]",
        str(Path(__file__).resolve().parents[2]): "[infra-agent]", sys.prefix: "[python]",
        tempfile.gettempdir(): "[temporary]",
    }  # fmt: skip
    if campaign.spec.planner.startswith("script:"):
        script = Path(campaign.spec.planner.partition(":")[2])
        known[str(script)] = script.name
    known.setdefault(env.get("HOME", ""), "~")
    resolved = {str(Path(place).resolve()): instead for place, instead in known.items() if place}
    places = {place: instead for place, instead in (known | resolved).items() if place.count("/") and len(place) > 1}
    return Redaction(
        secrets=tuple(sorted(_secrets(settings, env), key=len, reverse=True)),
        places=tuple(sorted(places.items(), key=lambda pair: -len(pair[0]))),
        names=tuple(sorted(_names(), key=len, reverse=True)),
        roots=_PRIVATE_ROOTS | ({path.name for path in Path("/").iterdir() if path.is_dir()} - _PUBLIC_ROOTS),
    )


def _secrets(settings: Settings, env: Mapping[str, str]) -> set[str]:
    passwords = {urlsplit(url).password or "" for url in (settings.database_url, settings.openai_base_url)}
    passwords |= {unquote(password) for password in passwords}
    known = {password for password in passwords if len(password) >= _MIN_PASSWORD}
    named = {value for name, value in env.items() if _SECRET_NAMES.search(name)} | {settings.openai_api_key}
    return known | {value for value in named if len(value) >= _MIN_SECRET} | set(secrets(env))


def _names() -> set[str]:
    names = {socket.gethostname(), socket.gethostname().partition(".")[0]}
    with suppress(KeyError, OSError):  # a user without a name
        names.add(getpass.getuser())
    return {name for name in names if len(name) > 2 and name not in _NOBODY}
