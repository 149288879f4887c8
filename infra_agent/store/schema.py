"""Bring a database to the tables of this version. Each change of `tables` is a revision in `migrations`.

To write the next revision: `alembic -c infra_agent/store/alembic.ini upgrade head`, then the same with
`revision --autogenerate -m "what changes"`, on a scratch database; read what it wrote before keeping it.
"""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text

from infra_agent.errors import StoreUnavailable
from infra_agent.store.tables import metadata

MIGRATIONS = Path(__file__).with_name("migrations")
_ADVISORY_LOCK = 0x696E_6672_6161
"""Key of PostgreSQL's lock under which one process at a time migrates; any fixed number."""


def migrate(connection: Connection, place: str, migrations: Path = MIGRATIONS) -> None:
    """Upgrade to the newest revision, inside the transaction that `connection` is in.

    On SQLite that transaction must be an immediate one without foreign key checks: changing a table there
    means copying and dropping it.

    Raises StoreUnavailable when a newer version, or another program, made the database.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})"))
    scripts = ScriptDirectory(str(migrations))
    known = {script.revision for script in scripts.walk_revisions()}
    heads = MigrationContext.configure(connection).get_current_heads()
    if newer := sorted(set(heads) - known):
        message = f"{place} was written by a newer version of infra-agent (revision {newer[0]}); "
        raise StoreUnavailable(message + "upgrade infra-agent: pip install --upgrade infra-agent")
    if heads == (scripts.get_current_head(),):
        return
    if not heads:
        _refuse_strangers(connection, place)
    config = Config()
    config.set_main_option("script_location", str(migrations).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def is_current(connection: Connection, migrations: Path = MIGRATIONS) -> bool:
    """Whether the database is at the newest revision."""
    heads = MigrationContext.configure(connection).get_current_heads()
    return heads == (ScriptDirectory(str(migrations)).get_current_head(),)


def _refuse_strangers(connection: Connection, place: str) -> None:
    """Never add tables to another program's SQLite file, nor beside PostgreSQL tables named alike."""
    there = set(inspect(connection).get_table_names()) - {"alembic_version"}
    if connection.dialect.name != "sqlite":
        there &= set(metadata.tables)
    if there:
        names = ", ".join(sorted(there)[:3])
        raise StoreUnavailable(f"{place} holds another program's tables ({names}); choose another database")
