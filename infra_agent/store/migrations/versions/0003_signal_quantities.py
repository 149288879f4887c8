"""What a signal measured, expected and warns of.

Revision 0003, after 0002.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; signals of before have none of them."""
    for name in ("measured", "expected", "caveats"):
        op.add_column("signal", sa.Column(name, sa.JSON(none_as_null=True)))


def downgrade() -> None:
    """Drop the columns again."""
    for name in ("measured", "expected", "caveats"):
        op.drop_column("signal", name)
