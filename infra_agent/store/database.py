"""The Store: one database, opened, brought up to date, and used through transactions."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.pool import NullPool

from infra_agent.errors import StoreUnavailable, WrongUse
from infra_agent.store.failures import refused_file, translated
from infra_agent.store.ledger import Ledger
from infra_agent.store.locks import waiting_lock
from infra_agent.store.rows import encode_json
from infra_agent.store.schema import MIGRATIONS, is_current, migrate

_BUSY_TIMEOUT_MS = 15_000
_MIGRATION_TIMEOUT_S = 120.0
_MOUNTS = Path("/proc/self/mounts")
_NETWORK_FILE_SYSTEMS = frozenset(
    ("afs", "beegfs", "ceph", "cifs", "fuse.sshfs", "fuse.glusterfs", "gpfs", "lustre", "nfs", "nfs4", "smb3")
)
_FORMS = "sqlite:///PATH or postgresql+psycopg://USER@HOST/NAME"


class Store:
    """A database at the newest revision; made by `open_store`. Threads may share it, forked processes not."""

    def __init__(self, engine: Engine, place: str, refused: StoreUnavailable | None = None) -> None:
        self._engine = engine
        self._refused = refused
        """Why nothing can be written, if only reading is possible."""
        self.place = place
        """Which database this is, for people."""

    @contextmanager
    def transaction(self, *, read_only: bool = False) -> Iterator[Ledger]:
        """A Ledger whose writes are stored together when the block ends, or not at all if it raises.

        On SQLite there is one writer at a time: the block waits up to 15 s for another to end, so do nothing
        slow inside. A read-only block sees one moment of the database and waits for nobody; writing in it
        raises.

        Raises StoreUnavailable when the database can't be reached, is locked for longer, or its disk is full.
        """
        if self._refused is not None and not read_only:
            raise self._refused
        with translated(self.place), self._engine.connect() as connection:
            connection.execution_options(read_only=read_only)
            if read_only and connection.dialect.name == "postgresql":
                connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            with connection.begin():
                yield Ledger(connection, self.place)

    def close(self) -> None:
        """Close all connections. The Store is of no use after that."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_store(url: str, *, migrations: Path = MIGRATIONS) -> Store:
    """Open the database at an SQLAlchemy URL, made or upgraded as needed, also by several processes at once.

    `sqlite:///relative.db`, `sqlite:////absolute.db` (missing directories are made) or
    `postgresql+psycopg://user@host/name` (needs the psycopg package). Where an SQLite file of this version can be
    read but not written, as on a full disk, transactions that write raise StoreUnavailable.

    Raises:
        WrongUse: the URL is not one of these.
        StoreUnavailable: the database can't be opened, is not one of infra-agent's, was written by a newer
            version, or lies on a network file system, where SQLite's WAL loses data.
    """
    engine = _engine(url)
    path = _sqlite_path(engine.url)
    if path is not None:
        _refuse_network(path)
    store = Store(engine, engine.url.render_as_string(hide_password=True))
    try:
        lock = path.with_name(f"{path.name}.lock") if path is not None else None
        with waiting_lock(lock, timeout_s=_MIGRATION_TIMEOUT_S) if lock else nullcontext():
            _prepare(engine, store.place, migrations)
    except StoreUnavailable as error:
        store.close()
        if path is None or (reading := _reading(path, migrations)) is None:
            raise
        return Store(reading, store.place, refused=error)
    except BaseException:
        store.close()
        raise
    return store


def _reading(path: Path, migrations: Path) -> Engine | None:
    """An engine that reads an SQLite file of this version where nothing can be written, or None if it can't.

    SQLite must make a file beside a database in WAL mode even to read it. Where it can't, the database is taken as
    unchanging, which is right unless a writer that was killed left changes in the WAL.
    """
    modes = ("mode=ro",) if _has_content(path.with_name(f"{path.name}-wal")) else ("mode=ro", "mode=ro&immutable=1")
    for mode in modes if _has_content(path) else ():
        uri = f"file:{quote(str(path.absolute()))}?{mode}"
        engine = create_engine("sqlite://", creator=partial(sqlite3.connect, uri, uri=True), poolclass=NullPool)
        _listen(engine)
        with suppress(StoreUnavailable), translated(uri), engine.connect() as connection:
            connection.execution_options(read_only=True)
            with connection.begin():
                if is_current(connection, migrations):
                    return engine
    return None


def _has_content(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


def _engine(url: str) -> Engine:
    try:
        parsed = make_url(url)
        if parsed.get_backend_name() not in ("sqlite", "postgresql"):
            raise WrongUse(f"{parsed.get_backend_name()} databases are not supported; use {_FORMS}")
        engine = create_engine(parsed, json_serializer=encode_json, pool_pre_ping=True)
    except (ArgumentError, NoSuchModuleError) as error:
        raise WrongUse(f"this is not the URL of a database; use {_FORMS}") from error
    except ModuleNotFoundError as error:
        advice = "; pip install 'psycopg[binary]'" if error.name == "psycopg" else ""
        message = f"{parsed.drivername}: the Python module {error.name} is missing{advice}"
        raise StoreUnavailable(message) from error
    if engine.dialect.name == "sqlite":
        _listen(engine)
    return engine


def _listen(engine: Engine) -> None:
    event.listen(engine, "connect", _configure)
    event.listen(engine, "begin", _begin)


def _configure(connection: Any, _: object) -> None:
    """Settings of one SQLite connection. The driver begins no transactions itself; `_begin` does."""
    connection.isolation_level = None
    for setting in (f"busy_timeout={_BUSY_TIMEOUT_MS}", "synchronous=NORMAL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {setting}")


def _begin(connection: Connection) -> None:
    """Begin as a writer, so that two transactions never both read and then both want to write."""
    read_only = connection.get_execution_options().get("read_only", False)
    connection.exec_driver_sql(f"PRAGMA query_only={'ON' if read_only else 'OFF'}")
    connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")


def _prepare(engine: Engine, place: str, migrations: Path) -> None:
    with translated(place), engine.connect() as connection:
        prepared = _without_checks(connection) if engine.dialect.name == "sqlite" else nullcontext()
        with prepared, connection.begin():
            migrate(connection, place, migrations)


@contextmanager
def _without_checks(connection: Connection) -> Iterator[None]:
    """Turn WAL on, for good, and foreign keys off meanwhile; neither can be done within a transaction."""
    with closing(connection.connection.cursor()) as driver:
        driver.execute("PRAGMA journal_mode=WAL")
        driver.execute("PRAGMA foreign_keys=OFF")
        try:
            yield
        finally:
            driver.execute("PRAGMA foreign_keys=ON")


def _sqlite_path(url: URL) -> Path | None:
    """The file of an SQLite database, or None for one in memory and for other databases."""
    if url.get_backend_name() != "sqlite" or not url.database or url.database == ":memory:":
        return None
    return Path(url.database)


def _refuse_network(path: Path) -> None:
    """Make the database's directory, and refuse one that is mounted from another machine."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        directory = path.parent.resolve()
        mounts = _MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return
    except OSError as error:
        raise refused_file(error, str(path)) from error
    kinds = {fields[1]: fields[2] for line in mounts if len(fields := line.split(" ")) > 2}
    for place in (directory, *directory.parents):
        if kind := kinds.get(str(place)):
            if kind in _NETWORK_FILE_SYSTEMS:
                message = f"{path} lies on a network file system ({kind}), where SQLite is not safe; "
                raise StoreUnavailable(message + "choose a local disk, or use PostgreSQL")
            return
