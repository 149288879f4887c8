"""Contents of artefacts, each file kept once under its SHA-256. Rows about them are the Ledger's.

Store the content first and its row after: then no row ever names a file that is not there. Contents are
copied as they are, neither compressed nor interpreted.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import tempfile
from pathlib import Path
from typing import BinaryIO

from infra_agent.errors import NotFound, PlatformFailed
from infra_agent.store.failures import refused_file
from sandboxes.files import open_regular
from sandboxes.results import Artefact, sha256_file

_CHUNK_BYTES = 1 << 20
_SNIFFED_BYTES = 8192


class StoredArtefact(Artefact):
    """An artefact of a run whose content is kept."""

    sha256: str
    size_bytes: int
    media_type: str = "application/octet-stream"


class ArtefactFiles:
    """A directory of files named by their content: `ab/abcdef…`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def add(self, path: Path) -> str:
        """Keep a copy of the file at `path`; returns its hex SHA-256. The same content is kept once.

        The copy is on disk, complete, before this returns: written aside, synced, then renamed.

        Raises:
            PlatformFailed: `path` is not a regular file; a symbolic link is refused, since what a sandbox
                left behind must not name files outside it.
            StoreUnavailable: a full disk or missing permission.
        """
        source = _open_regular(path)
        with source:
            try:
                return self._keep(source)
            except OSError as error:
                raise refused_file(error, str(self._directory)) from error

    def keep(self, run_directory: Path, artefact: Artefact) -> StoredArtefact:
        """`add` the file of a run's artefact, and describe it as `Ledger.finish_experiment` wants it.

        Raises as `add` does, and PlatformFailed when its path leads out of the run directory.
        """
        path = run_directory / artefact.path
        if not path.resolve().is_relative_to(run_directory.resolve()):
            raise PlatformFailed(f"artefact {artefact.path} leads out of {run_directory}; it is not kept")
        sha256 = self.add(path)
        kept = self._path(sha256)
        return StoredArtefact(
            **artefact.model_dump(),
            sha256=sha256,
            size_bytes=kept.stat().st_size,
            media_type=_media_type(kept, artefact.path),
        )

    def open(self, sha256: str) -> BinaryIO:
        """The content as a binary file for the caller to close. Raises NotFound when it is not kept."""
        try:
            return self._path(sha256).open("rb")
        except FileNotFoundError as error:
            raise NotFound(f"no artefact with SHA-256 {sha256} is kept in {self._directory}") from error
        except OSError as error:
            raise refused_file(error, str(self._path(sha256))) from error

    def verify(self, sha256: str) -> bool:
        """Whether the kept content still has its hash. Raises NotFound when it is not kept."""
        with self.open(sha256):
            return sha256_file(self._path(sha256)) == sha256

    def _path(self, sha256: str) -> Path:
        if not re.fullmatch("[0-9a-f]{64}", sha256):
            raise NotFound(f"{sha256[:80]!r} is not a SHA-256 in lower-case hex")
        return self._directory / sha256[:2] / sha256

    def _keep(self, source: BinaryIO) -> str:
        self._directory.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        with tempfile.NamedTemporaryFile(dir=self._directory, prefix=".incoming-", delete=False) as copy:
            incoming = Path(copy.name)
            try:
                while chunk := source.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    copy.write(chunk)
                kept = self._path(digest.hexdigest())
                if not kept.exists():
                    copy.flush()
                    os.fsync(copy.fileno())
                    kept.parent.mkdir(exist_ok=True)
                    incoming.rename(kept)
                    _sync_directory(kept.parent)
            finally:
                incoming.unlink(missing_ok=True)
        return digest.hexdigest()


def _open_regular(path: Path) -> BinaryIO:
    """Open a regular file: no symbolic link, and no pipe or device to hang on."""
    try:
        return open_regular(path)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EINVAL):
            raise PlatformFailed(f"artefact {path} is not a regular file; it is not kept") from error
        raise refused_file(error, str(path)) from error


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _media_type(content: Path, name: str) -> str:
    """What a browser may be told the content is: JSON or plain text if it reads as text, else bytes."""
    with content.open("rb") as file:
        head = file.read(_SNIFFED_BYTES)
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 3:
            return "application/octet-stream"
    if b"\0" in head:
        return "application/octet-stream"
    return "application/json" if name.endswith(".json") else "text/plain"
