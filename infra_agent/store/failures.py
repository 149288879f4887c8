"""What went wrong in a database or on its disk, in the project's own exceptions, with what to do about it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import exc

from infra_agent.errors import AlreadyRecorded, InfraAgentError, NotFound, StoreUnavailable
from sandboxes.files import refusal

_ADVICE = {
    "SQLITE_BUSY": "another process kept it locked; wait for that process or end it",
    "SQLITE_CANTOPEN": "it can't be opened; check that you may write to it and to its directory",
    "SQLITE_CORRUPT": "the file is damaged; restore it from a backup or move it away to start a new one",
    "SQLITE_FULL": "the disk is full; free some space, then resume the campaign",
    "SQLITE_IOERR": "reading or writing failed; check that its disk is healthy and not full",
    "SQLITE_NOTADB": "the file is not a database; move it away or choose another path",
    "53100": "the server's disk is full; free some space, then resume the campaign",
    "SQLITE_READONLY": "it can't be written; check that you may write to it and to its directory",
}
"""Advice by the start of SQLite's error name or PostgreSQL's SQLSTATE."""
_CONNECTION = ("08", "57P")
_UNIQUE = ("SQLITE_CONSTRAINT_UNIQUE", "SQLITE_CONSTRAINT_PRIMARYKEY", "23505")
_FOREIGN_KEY = ("SQLITE_CONSTRAINT_FOREIGNKEY", "23503")


@contextmanager
def translated(place: str) -> Iterator[None]:
    """Turn a database's exceptions into the project's. `place` names the database, without a password.

    Raises:
        AlreadyRecorded: an id, or a number within its campaign, is there already.
        NotFound: the record belongs to a campaign or experiment that is not stored.
        ValueError: a value that no database takes, such as a time without a zone.
        StoreUnavailable: anything else; the message says what to do.
    """
    try:
        yield
    except exc.DBAPIError as error:
        raise _own(error.orig, place) from error
    except sqlite3.Error as error:
        raise _own(error, place) from error
    except exc.StatementError as error:
        raise error.orig or error from error
    except exc.TimeoutError as error:
        message = f"{place}: all its connections are in use; run fewer requests at once"
        raise StoreUnavailable(message) from error


def _own(original: BaseException | None, place: str) -> InfraAgentError:
    said = str(original).strip().partition("\n")[0]
    code = str(getattr(original, "sqlite_errorname", None) or getattr(original, "sqlstate", None) or "")
    if code in _UNIQUE:
        return AlreadyRecorded(f"{place}: already recorded ({said}); records of a campaign are never replaced")
    if code in _FOREIGN_KEY:
        return NotFound(f"{place}: the campaign or experiment that this belongs to is not stored ({said})")
    for name, advice in _ADVICE.items():
        if code.startswith(name):
            return StoreUnavailable(f"{place}: {advice} ({said})")
    if code.startswith(_CONNECTION) or (not code and type(original).__name__ == "OperationalError"):
        return StoreUnavailable(f"{place}: can't be reached; check that it runs and that its URL is right ({said})")
    return StoreUnavailable(f"{place}: the database refused ({said})")


def refused_file(error: OSError, place: str) -> StoreUnavailable:
    """The exception for a file or directory that can't be made, read or written."""
    return StoreUnavailable(refusal(error, place))
