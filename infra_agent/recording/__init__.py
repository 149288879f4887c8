"""A session written down: as a script that replays it, and as a transcript for people.

Neither holds what is nobody's business but this machine's: see `redaction`.
"""

from __future__ import annotations

from pathlib import Path

from infra_agent.errors import PlatformFailed, WrongUse
from infra_agent.recording.redaction import Redaction
from infra_agent.recording.script import as_script
from infra_agent.recording.session import Session
from infra_agent.recording.transcript import as_transcript
from sandboxes.files import refusal

SCRIPT, TRANSCRIPT = "script.toml", "transcript.md"

__all__ = ["SCRIPT", "TRANSCRIPT", "Redaction", "Session", "as_script", "as_transcript", "write"]


def write(session: Session, redaction: Redaction, directory: Path) -> tuple[Path, ...]:
    """Write the recording into `directory`, which is absent or empty; returns the files written.

    Raises WrongUse if the session proposed nothing or the directory is in use, PlatformFailed if it can't be written.
    """
    script = as_script(session, redaction)
    files = {SCRIPT: script.text, **script.patches, TRANSCRIPT: as_transcript(session, redaction)}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise WrongUse(f"{directory} is not empty; give a directory that is, or a new one")
        for name, text in files.items():
            (directory / name).write_bytes(text.encode("utf-8", "replace"))
    except FileExistsError as error:
        raise WrongUse(f"{directory} is no directory; give a new one") from error
    except OSError as error:
        raise PlatformFailed(refusal(error, directory)) from error
    return tuple(directory / name for name in files)
