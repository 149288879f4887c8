"""Lessons that outlive their campaigns, and those that each campaign was told of when it began.

Revision 0006, after 0005.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make both tables; earlier campaigns left no lessons."""
    moment = sa.DateTime(timezone=True)
    op.create_table(
        "lesson",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("campaign_id", sa.String(), nullable=False),
        sa.Column("experiment_id", sa.String(), nullable=False),
        sa.Column("target_name", sa.String(), nullable=False),
        sa.Column("engine", sa.String(), nullable=False),
        sa.Column("host_fingerprint", sa.String(), nullable=False),
        sa.Column("verdict", sa.String(), nullable=False),
        sa.Column("learned", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("edited_by", sa.String(), nullable=False),
        sa.Column("edited_at", moment),
        sa.Column("created_at", moment, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_lesson"),
        sa.UniqueConstraint("experiment_id", name="uq_lesson_experiment_id"),
    )
    op.create_index("ix_lesson_target_name", "lesson", ["target_name"])
    op.create_table(
        "campaign_lesson",
        sa.Column("campaign_id", sa.String(), nullable=False),
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("lesson", sa.JSON(none_as_null=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["campaign_id"], ["campaign.id"], name="fk_campaign_lesson_campaign_id_campaign", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("campaign_id", "position", name="pk_campaign_lesson"),
    )


def downgrade() -> None:
    """Drop them, with all they hold."""
    op.drop_table("campaign_lesson")
    op.drop_table("lesson")
