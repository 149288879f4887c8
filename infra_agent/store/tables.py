"""The tables. Columns are named as the records' fields; what is searched is a column, the rest is JSON."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.types import TypeDecorator

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


class UtcDateTime(TypeDecorator[datetime]):
    """A moment, stored as UTC and read back with its time zone, on SQLite too."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """UTC as the database takes it. Raises ValueError for a time without a zone."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value} has no time zone; times are UTC, see infra_agent.domain.now")
        moment = value.astimezone(UTC)
        return moment.replace(tzinfo=None) if dialect.name == "sqlite" else moment

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """The moment with its time zone."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Number(TypeDecorator[float]):
    """A measured number. A probe may well say `nan`, which SQLite does not have: it is stored as NULL."""

    impl = Double
    cache_ok = True

    def process_bind_param(self, value: float | None, dialect: Dialect) -> float | None:
        """NULL for NaN."""
        return None if value is None or math.isnan(value) else value

    def process_result_value(self, value: float | None, dialect: Dialect) -> float:
        """NaN for NULL."""
        return math.nan if value is None else value


class FreeText(TypeDecorator[str]):
    """Text from a model or a program. PostgreSQL takes no NUL characters; there they become U+FFFD."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """The text as the database can take it."""
        return value.replace("\0", "�") if value is not None and dialect.name == "postgresql" else value


Json = JSON(none_as_null=True)


def _owner(table: str, *, primary_key: bool = False) -> Column[str]:
    """The column that says which campaign or experiment a row belongs to."""
    key = ForeignKey(f"{table}.id", ondelete="CASCADE")
    return Column(f"{table}_id", String, key, primary_key=primary_key, nullable=False)


def _time(name: str, *, nullable: bool = False) -> Column[datetime]:
    return Column(name, UtcDateTime, nullable=nullable)


campaign = Table(
    "campaign",
    metadata,
    Column("id", String, primary_key=True),
    Column("target_name", String, nullable=False),
    Column("state", String, nullable=False, index=True),
    Column("stop_reason", FreeText, nullable=False),
    Column("spec", Json, nullable=False),
    Column("target_toml", FreeText, nullable=False),
    Column("source_commit", String, nullable=False),
    Column("base_commit", String, nullable=False),
    Column("host_fingerprint", String, nullable=False),
    Column("script", Json),
    Column("elapsed_s", Double, nullable=False),
    _time("created_at"),
    _time("finished_at", nullable=True),
)

experiment = Table(
    "experiment",
    metadata,
    Column("id", String, primary_key=True),
    _owner("campaign"),
    Column("number", Integer, nullable=False),
    Column("role", String, nullable=False),
    Column("state", String, nullable=False, index=True),
    Column("probe", String, nullable=False),
    Column("params", Json),
    Column("planner", String),
    Column("change", Json, nullable=False),
    Column("change_fingerprint", String, nullable=False, index=True),
    Column("parent_commit", String, nullable=False),
    Column("against", String),
    Column("commit", String),
    Column("patch", FreeText, nullable=False),
    Column("alpha", Double, nullable=False),
    Column("verdict_kind", String, index=True),
    Column("verdict_reasons", Json),
    Column("effects", Json, nullable=False),
    Column("confirmed", Boolean, nullable=False),
    Column("run_directory", String, nullable=False),
    Column("sandbox_s", Double, nullable=False),
    Column("lost_s", Double),
    Column("model_s", Double, nullable=False),
    _time("created_at"),
    _time("started_at", nullable=True),
    _time("finished_at", nullable=True),
    UniqueConstraint("campaign_id", "number"),
)

hypothesis = Table(
    "hypothesis",
    metadata,
    _owner("experiment", primary_key=True),
    Column("claim", FreeText, nullable=False),
    Column("mechanism", FreeText, nullable=False),
    Column("location", FreeText, nullable=False),
    Column("question", FreeText, nullable=False),
    Column("lever_family", FreeText, nullable=False, index=True),
    Column("falsifier", FreeText, nullable=False),
    Column("evidence", Json),
    Column("predicted_metric", String),
    Column("predicted_direction", String),
    Column("predicted_low", Double),
    Column("predicted_high", Double),
)

signal = Table(
    "signal",
    metadata,
    _owner("experiment", primary_key=True),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("rule_id", String, nullable=False, index=True),
    Column("fingerprint", String, nullable=False, index=True),
    Column("level", String, nullable=False),
    Column("finding", String, nullable=False),
    Column("role", String, nullable=False),
    Column("message", FreeText, nullable=False),
    Column("reason", FreeText, nullable=False),
    Column("locations", Json, nullable=False),
    Column("effect", Json),
    Column("causes", Json, nullable=False),
    Column("next", Json, nullable=False),
    Column("evidence", Json, nullable=False),
    Column("measured", Json),
    Column("expected", Json),
    Column("caveats", Json),
    Column("subject", FreeText),
)

sample = Table(
    "sample",
    metadata,
    Column("id", Integer, primary_key=True),
    _owner("experiment"),
    Column("probe", String, nullable=False),
    Column("metric", String, nullable=False),
    Column("value", Number),
    Column("arm", String, nullable=False),
    Column("stage", String, nullable=False),
    Column("pair", Integer, nullable=False),
    Column("block", Integer, nullable=False),
    Column("position", Integer, nullable=False),
    Column("disturbed", Boolean, nullable=False),
    Index(None, "experiment_id", "metric"),
)

artefact = Table(
    "artefact",
    metadata,
    Column("sha256", String(64), primary_key=True),
    Column("size_bytes", BigInteger, nullable=False),
    Column("media_type", String, nullable=False),
    _time("created_at"),
)

experiment_artefact = Table(
    "experiment_artefact",
    metadata,
    _owner("experiment", primary_key=True),
    Column("path", String, primary_key=True),
    Column("format", String, nullable=False),
    Column("probe", String, nullable=False),
    Column("arm", String),
    Column("stage", String, nullable=False),
    Column("sha256", String(64), ForeignKey("artefact.sha256"), nullable=False, index=True),
)

model_call = Table(
    "model_call",
    metadata,
    Column("id", Integer, primary_key=True),
    _owner("campaign"),
    Column("request_hash", String, nullable=False),
    Column("model", String, nullable=False),
    Column("request", FreeText, nullable=False),
    Column("response", FreeText, nullable=False),
    Column("prompt_tokens", Integer, nullable=False),
    Column("completion_tokens", Integer, nullable=False),
    Column("duration_s", Double, nullable=False),
    _time("created_at"),
    UniqueConstraint("campaign_id", "request_hash"),
)

model_reservation = Table(
    "model_reservation",
    metadata,
    Column("id", Integer, primary_key=True),
    _owner("campaign"),
    Column("request_hash", String, nullable=False),
    Column("model", String, nullable=False),
    Column("state", String, nullable=False),
    Column("reserved_prompt_tokens", Integer, nullable=False),
    Column("reserved_completion_tokens", Integer, nullable=False),
    Column("prompt_tokens", Integer, nullable=False),
    Column("cached_tokens", Integer, nullable=False),
    Column("completion_tokens", Integer, nullable=False),
    Column("nanodollars", BigInteger),
    Column("is_estimated", Boolean, nullable=False),
    _time("created_at"),
    Index(None, "campaign_id", "id"),
)

noise_unit = Table(
    "noise_unit",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("host_fingerprint", String, nullable=False),
    Column("target_name", String, nullable=False),
    Column("probe", String, nullable=False),
    Column("metric", String, nullable=False),
    Column("direction", String, nullable=False),
    _time("measured_at"),
    Column("position", Integer, nullable=False),
    Column("value", Number),
    UniqueConstraint(
        "host_fingerprint",
        "target_name",
        "probe",
        "metric",
        "measured_at",
        "position",
        name="uq_noise_unit_place",
    ),
)

lesson = Table(
    "lesson",
    metadata,
    Column("id", String, primary_key=True),
    Column("campaign_id", String, nullable=False),
    Column("experiment_id", String, nullable=False, unique=True),
    Column("target_name", String, nullable=False, index=True),
    Column("engine", String, nullable=False),
    Column("host_fingerprint", String, nullable=False),
    Column("verdict", String, nullable=False),
    Column("learned", Json, nullable=False),
    Column("text", FreeText, nullable=False),
    Column("edited_by", String, nullable=False),
    _time("edited_at", nullable=True),
    _time("created_at"),
)
"""Refers to its campaign and experiment by name only: it outlives them."""

campaign_lesson = Table(
    "campaign_lesson",
    metadata,
    _owner("campaign", primary_key=True),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("lesson", Json, nullable=False),
)
"""What a campaign was told of when it began, as it was then."""

event = Table(
    "event",
    metadata,
    Column("id", Integer, primary_key=True),
    _owner("campaign"),
    Column("type", String, nullable=False),
    Column("data", Json, nullable=False),
    _time("created_at"),
    Index(None, "campaign_id", "id"),
    sqlite_autoincrement=True,
)
