"""A batch's commit to one Iceberg table: rows and note in one transaction of the catalog."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sluice.model.tables import TableId
from sluice.targets.iceberg.client import errors, transaction
from sluice.targets.iceberg.site import Site
from sluice.targets.lake import committing
from sluice.targets.lake.site import Note
from sluice.targets.port import Fence, WriteResult


def committed(
    site: Site,
    fence: Fence,
    table: TableId,
    scope: str,
    replay: str,
    write: Callable[[Any, Any, Note], WriteResult],
) -> WriteResult:
    """See :func:`sluice.targets.lake.committing.committed`; ``write`` is given Table, Transaction, and what its commit notes.

    It makes a snapshot with the note's words, also of no rows: by it a commit is refused if any other came since the table was read.
    """

    def commit(found: Any, note: Note) -> WriteResult:
        with errors(site.place, f"writing batch {fence.batch} to {table}", site.uri(table)):
            change = transaction(found)
            result = write(found, change, note)
            site.write_note(change, note)
            change.commit_transaction()
        return result

    with site.place.turn():
        return committing.committed(site, fence, table, scope, replay, commit)
