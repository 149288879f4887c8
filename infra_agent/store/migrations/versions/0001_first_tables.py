"""The first tables.

Revision 0001, the first.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.types import TypeEngine

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TABLES = (
    "campaign",
    "experiment",
    "hypothesis",
    "signal",
    "sample",
    "artefact",
    "experiment_artefact",
    "model_call",
    "noise_unit",
    "event",
)


def upgrade() -> None:
    """Make the tables, owners before what they own."""
    _make_campaign()
    _make_experiment()
    _make_hypothesis()
    _make_signal()
    _make_sample()
    _make_artefacts()
    _make_model_call()
    _make_noise_unit()
    _make_event()


def downgrade() -> None:
    """Drop them, with all they hold."""
    for table in reversed(TABLES):
        op.drop_table(table)


def _required(name: str, kind: type[TypeEngine[Any]] | TypeEngine[Any]) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False)


def _time(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def _belongs(table: str, owner: str) -> sa.ForeignKeyConstraint:
    name = f"fk_{table}_{owner}_id_{owner}"
    return sa.ForeignKeyConstraint([f"{owner}_id"], [f"{owner}.id"], name=name, ondelete="CASCADE")


def _index(table: str, *columns: str) -> None:
    op.create_index(f"ix_{table}_{'_'.join(columns)}", table, list(columns))


def _make_campaign() -> None:
    op.create_table(
        "campaign",
        _required("id", sa.String),
        _required("target_name", sa.String),
        _required("state", sa.String),
        _required("stop_reason", sa.Text),
        _required("spec", sa.JSON),
        _required("target_toml", sa.Text),
        _required("source_commit", sa.String),
        _required("base_commit", sa.String),
        _required("host_fingerprint", sa.String),
        _required("elapsed_s", sa.Double),
        _time("created_at"),
        _time("finished_at", nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_campaign"),
    )
    _index("campaign", "state")


def _make_experiment() -> None:
    op.create_table(
        "experiment",
        _required("id", sa.String),
        _required("campaign_id", sa.String),
        _required("number", sa.Integer),
        _required("role", sa.String),
        _required("state", sa.String),
        _required("probe", sa.String),
        _required("change", sa.JSON),
        _required("change_fingerprint", sa.String),
        _required("parent_commit", sa.String),
        sa.Column("commit", sa.String),
        _required("patch", sa.Text),
        _required("alpha", sa.Double),
        sa.Column("verdict_kind", sa.String),
        sa.Column("verdict_reasons", sa.JSON),
        _required("effects", sa.JSON),
        _required("confirmed", sa.Boolean),
        _required("run_directory", sa.String),
        _required("sandbox_s", sa.Double),
        _required("model_s", sa.Double),
        _time("created_at"),
        _time("started_at", nullable=True),
        _time("finished_at", nullable=True),
        _belongs("experiment", "campaign"),
        sa.PrimaryKeyConstraint("id", name="pk_experiment"),
        sa.UniqueConstraint("campaign_id", "number", name="uq_experiment_campaign_id_number"),
    )
    for column in ("state", "change_fingerprint", "verdict_kind"):
        _index("experiment", column)


def _make_hypothesis() -> None:
    op.create_table(
        "hypothesis",
        _required("experiment_id", sa.String),
        _required("claim", sa.Text),
        _required("mechanism", sa.Text),
        _required("location", sa.Text),
        _required("question", sa.Text),
        _required("lever_family", sa.Text),
        _required("falsifier", sa.Text),
        sa.Column("predicted_metric", sa.String),
        sa.Column("predicted_direction", sa.String),
        sa.Column("predicted_low", sa.Double),
        sa.Column("predicted_high", sa.Double),
        _belongs("hypothesis", "experiment"),
        sa.PrimaryKeyConstraint("experiment_id", name="pk_hypothesis"),
    )
    _index("hypothesis", "lever_family")


def _make_signal() -> None:
    op.create_table(
        "signal",
        _required("experiment_id", sa.String),
        sa.Column("position", sa.Integer, autoincrement=False, nullable=False),
        _required("rule_id", sa.String),
        _required("fingerprint", sa.String),
        _required("level", sa.String),
        _required("finding", sa.String),
        _required("role", sa.String),
        _required("message", sa.Text),
        _required("reason", sa.Text),
        _required("locations", sa.JSON),
        sa.Column("effect", sa.JSON),
        _required("causes", sa.JSON),
        _required("next", sa.JSON),
        _required("evidence", sa.JSON),
        _belongs("signal", "experiment"),
        sa.PrimaryKeyConstraint("experiment_id", "position", name="pk_signal"),
    )
    for column in ("rule_id", "fingerprint"):
        _index("signal", column)


def _make_sample() -> None:
    op.create_table(
        "sample",
        _required("id", sa.Integer),
        _required("experiment_id", sa.String),
        _required("probe", sa.String),
        _required("metric", sa.String),
        sa.Column("value", sa.Double),
        _required("arm", sa.String),
        _required("stage", sa.String),
        _required("pair", sa.Integer),
        _required("block", sa.Integer),
        _required("position", sa.Integer),
        _required("disturbed", sa.Boolean),
        _belongs("sample", "experiment"),
        sa.PrimaryKeyConstraint("id", name="pk_sample"),
    )
    _index("sample", "experiment_id", "metric")


def _make_artefacts() -> None:
    op.create_table(
        "artefact",
        _required("sha256", sa.String(64)),
        _required("size_bytes", sa.BigInteger),
        _required("media_type", sa.String),
        _time("created_at"),
        sa.PrimaryKeyConstraint("sha256", name="pk_artefact"),
    )
    op.create_table(
        "experiment_artefact",
        _required("experiment_id", sa.String),
        _required("path", sa.String),
        _required("format", sa.String),
        _required("probe", sa.String),
        sa.Column("arm", sa.String),
        _required("stage", sa.String),
        _required("sha256", sa.String(64)),
        _belongs("experiment_artefact", "experiment"),
        sa.ForeignKeyConstraint(["sha256"], ["artefact.sha256"], name="fk_experiment_artefact_sha256_artefact"),
        sa.PrimaryKeyConstraint("experiment_id", "path", name="pk_experiment_artefact"),
    )
    _index("experiment_artefact", "sha256")


def _make_model_call() -> None:
    op.create_table(
        "model_call",
        _required("id", sa.Integer),
        _required("campaign_id", sa.String),
        _required("request_hash", sa.String),
        _required("model", sa.String),
        _required("request", sa.Text),
        _required("response", sa.Text),
        _required("prompt_tokens", sa.Integer),
        _required("completion_tokens", sa.Integer),
        _required("duration_s", sa.Double),
        _time("created_at"),
        _belongs("model_call", "campaign"),
        sa.PrimaryKeyConstraint("id", name="pk_model_call"),
        sa.UniqueConstraint("campaign_id", "request_hash", name="uq_model_call_campaign_id_request_hash"),
    )


def _make_noise_unit() -> None:
    place = ("host_fingerprint", "target_name", "probe", "metric")
    op.create_table(
        "noise_unit",
        _required("id", sa.Integer),
        *(_required(name, sa.String) for name in place),
        _required("direction", sa.String),
        _time("measured_at"),
        _required("position", sa.Integer),
        sa.Column("value", sa.Double),
        sa.PrimaryKeyConstraint("id", name="pk_noise_unit"),
        sa.UniqueConstraint(*place, "measured_at", "position", name="uq_noise_unit_place"),
    )


def _make_event() -> None:
    op.create_table(
        "event",
        _required("id", sa.Integer),
        _required("campaign_id", sa.String),
        _required("type", sa.String),
        _required("data", sa.JSON),
        _time("created_at"),
        _belongs("event", "campaign"),
        sa.PrimaryKeyConstraint("id", name="pk_event"),
        sqlite_autoincrement=True,
    )
    _index("event", "campaign_id", "id")
