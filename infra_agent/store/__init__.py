"""The campaigns' memory: SQLite by default, PostgreSQL by URL. The only home of SQLAlchemy and Alembic.

Use it so; everything in one block is stored together, or not at all:

    with open_store("sqlite:////home/me/.infra-agent/store.db") as store:
        with store.transaction() as ledger:
            ledger.add_campaign(campaign)

A transaction lasts milliseconds: none stays open across sandboxed work or a call to a model. Contents of
artefacts lie beside the database, see `ArtefactFiles`.
"""

from infra_agent.store.artefacts import ArtefactFiles, StoredArtefact
from infra_agent.store.database import Store, open_store
from infra_agent.store.ids import new_id
from infra_agent.store.ledger import Ledger
from infra_agent.store.locks import campaign_lock, is_locked

__all__ = ["ArtefactFiles", "Ledger", "Store", "StoredArtefact", "campaign_lock", "is_locked", "new_id", "open_store"]
