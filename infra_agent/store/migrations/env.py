"""Alembic's entry: run revisions on the connection that `schema.migrate` hands over, or, when the `alembic`
command runs it to write a new revision, on the URL of alembic.ini."""

from __future__ import annotations

from typing import Literal

from alembic import context
from alembic.autogenerate.api import AutogenContext
from sqlalchemy import Connection, create_engine
from sqlalchemy.types import TypeDecorator

from infra_agent.store.tables import metadata


def render(kind: str, item: object, _: AutogenContext) -> str | Literal[False]:
    """Write the types of `tables` as the plain ones below them: a revision must not change when they do."""
    return f"sa.{item.impl_instance!r}" if kind == "type" and isinstance(item, TypeDecorator) else False


def run(connection: Connection) -> None:
    """Run what was asked for in the caller's transaction."""
    context.configure(
        connection=connection,
        target_metadata=metadata,
        render_item=render,
        render_as_batch=connection.dialect.name == "sqlite",
        transactional_ddl=True,
    )
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    url = context.config.get_main_option("sqlalchemy.url")
    engine = create_engine(url or "sqlite://")
    with engine.begin() as scratch:
        run(scratch)
    engine.dispose()
