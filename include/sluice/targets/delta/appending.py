"""``changes: all``: append every change of a batch to its table of changes, one commit per table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from sluice.model.tables import TableId
from sluice.targets.delta.client import errors, library
from sluice.targets.delta.site import Site
from sluice.targets.lake.appending import SCOPE, change_rows
from sluice.targets.lake.committing import committed
from sluice.targets.lake.site import Note
from sluice.targets.port import ChangePiece, Fence, WriteResult


def append(site: Site, fence: Fence, table: TableId, pieces: Sequence[ChangePiece]) -> WriteResult:
    """Append all changes of a batch for one table. Raises what the port says."""

    def write(found: Any, note: Note) -> WriteResult:
        schema = pa.schema(found.schema().to_arrow())
        rows = change_rows(pieces, site.info(found), schema, fence.batch, site.options.zero_dates, note.known)
        with errors(site.place, f"appending batch {fence.batch} to {table}", site.path(table)):
            library().write_deltalake(found, rows, mode="append", commit_properties=site.noting(found, note))
        return WriteResult(appended=rows.num_rows, statements=1)

    return committed(site, fence, table, SCOPE, "", write)
