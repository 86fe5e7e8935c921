"""``changes: all``: append every change of a batch to its table of changes, one snapshot per table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sluice.model.tables import TableId
from sluice.targets.iceberg.committing import committed
from sluice.targets.iceberg.site import Site
from sluice.targets.iceberg.tables import arrow_schema
from sluice.targets.lake.appending import SCOPE, change_rows
from sluice.targets.lake.site import Note
from sluice.targets.port import ChangePiece, Fence, WriteResult


def append(site: Site, fence: Fence, table: TableId, pieces: Sequence[ChangePiece]) -> WriteResult:
    """Append all changes of a batch for one table. Raises what the port says."""

    def write(found: Any, change: Any, note: Note) -> WriteResult:
        schema = arrow_schema(found.metadata)
        rows = change_rows(pieces, site.info(found), schema, fence.batch, site.options.zero_dates, note.known)
        change.append(rows.cast(schema), snapshot_properties=dict(note.said))
        return WriteResult(appended=rows.num_rows, statements=1)

    return committed(site, fence, table, SCOPE, "", write)
