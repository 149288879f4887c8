"""What tells a signal from others of its rule at the same places.

Revision 0004, after 0003.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; signals of before have none."""
    op.add_column("signal", sa.Column("subject", sa.Text()))


def downgrade() -> None:
    """Drop the column again."""
    op.drop_column("signal", "subject")
