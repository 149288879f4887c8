"""Investigations and their parameters, evidence of hypotheses, which planner proposed what, against what.

Revision 0005, after 0004.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; experiments of before have none of these."""
    op.add_column("experiment", sa.Column("params", sa.JSON(none_as_null=True)))
    op.add_column("experiment", sa.Column("planner", sa.String()))
    op.add_column("experiment", sa.Column("against", sa.String()))
    op.add_column("hypothesis", sa.Column("evidence", sa.JSON(none_as_null=True)))


def downgrade() -> None:
    """Drop them again."""
    op.drop_column("hypothesis", "evidence")
    op.drop_column("experiment", "against")
    op.drop_column("experiment", "planner")
    op.drop_column("experiment", "params")
