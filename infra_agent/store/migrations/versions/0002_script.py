"""A campaign keeps the proposals of its script.

Revision 0002, after 0001.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; campaigns of earlier versions kept none."""
    op.add_column("campaign", sa.Column("script", sa.JSON))


def downgrade() -> None:
    """Drop it."""
    op.drop_column("campaign", "script")
