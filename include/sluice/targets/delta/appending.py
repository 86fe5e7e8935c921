"""``changes: all``: every change of a batch is appended to the table of its table, one commit a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from sluice.model.tables import TableId
from sluice.targets.base import ChangePiece, Fence, RowReader, WriteResult
from sluice.targets.delta.client import errors, library
from sluice.targets.delta.committing import committed
from sluice.targets.delta.site import Site
from sluice.targets.delta.tables import info_of
from sluice.targets.lake.appending import SCOPE, change_rows, changes_by_table


def append(site: Site, fence: Fence, reader: RowReader) -> WriteResult:
    """All changes of a batch. Every table is looked for before the first one is written. Raises what the port says."""
    tables = changes_by_table(reader)
    for table in tables:
        site.required(table)
    total = WriteResult()
    for table, pieces in tables.items():

        def write(
            found: Any, noted: Any, table: TableId = table, pieces: Sequence[ChangePiece] = pieces
        ) -> WriteResult:
            schema, info = pa.schema(found.schema().to_arrow()), info_of(found)
            rows = change_rows(pieces, info, schema, fence.batch, site.options.zero_dates)
            with errors(site.place, f"appending batch {fence.batch} to {table}", site.path(table)):
                library().write_deltalake(found, rows, mode="append", commit_properties=noted)
            return WriteResult(appended=rows.num_rows, statements=1)

        total += committed(site, fence, table, SCOPE, "", write)
    return total
