"""What model calls may cost and did cost, and the time of killed attempts of an experiment.

Revision 0007, after 0006.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table and the column. Calls of before count with their recorded tokens, at no known price."""
    reservation = op.create_table(
        "model_reservation",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("campaign_id", sa.String(), nullable=False),
        sa.Column("request_hash", sa.String(), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("reserved_prompt_tokens", sa.Integer(), nullable=False),
        sa.Column("reserved_completion_tokens", sa.Integer(), nullable=False),
        sa.Column("prompt_tokens", sa.Integer(), nullable=False),
        sa.Column("cached_tokens", sa.Integer(), nullable=False),
        sa.Column("completion_tokens", sa.Integer(), nullable=False),
        sa.Column("nanodollars", sa.BigInteger()),
        sa.Column("is_estimated", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["campaign_id"], ["campaign.id"], name="fk_model_reservation_campaign_id_campaign", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_model_reservation"),
    )
    op.create_index("ix_model_reservation_campaign_id_id", "model_reservation", ["campaign_id", "id"])
    call = sa.table(
        "model_call",
        *(sa.column(name) for name in ("id", "campaign_id", "request_hash", "model", "created_at")),
        sa.column("prompt_tokens", sa.Integer()),
        sa.column("completion_tokens", sa.Integer()),
    )
    before = {
        "campaign_id": call.c.campaign_id, "request_hash": call.c.request_hash, "model": call.c.model,
        "state": sa.literal("settled"), "reserved_prompt_tokens": call.c.prompt_tokens,
        "reserved_completion_tokens": call.c.completion_tokens, "prompt_tokens": call.c.prompt_tokens,
        "cached_tokens": sa.literal(0), "completion_tokens": call.c.completion_tokens,
        "is_estimated": call.c.prompt_tokens + call.c.completion_tokens == 0, "created_at": call.c.created_at,
    }  # fmt: skip
    op.execute(reservation.insert().from_select(list(before), sa.select(*before.values()).order_by(call.c.id)))
    op.add_column("experiment", sa.Column("lost_s", sa.Double()))


def downgrade() -> None:
    """Drop both again."""
    op.drop_column("experiment", "lost_s")
    op.drop_index("ix_model_reservation_campaign_id_id", "model_reservation")
    op.drop_table("model_reservation")
