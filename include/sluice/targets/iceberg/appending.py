"""``changes: all``: every change of a batch is appended to the table of its table, one snapshot a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sluice.targets.base import ChangePiece, Fence, RowReader, WriteResult
from sluice.targets.iceberg.committing import committed
from sluice.targets.iceberg.site import Site
from sluice.targets.iceberg.tables import arrow_schema, info_of
from sluice.targets.lake.appending import SCOPE, change_rows, changes_by_table


def append(site: Site, fence: Fence, reader: RowReader) -> WriteResult:
    """All changes of a batch. Every table is looked for before the first one is written. Raises what the port says."""
    tables = changes_by_table(reader)
    for table in tables:
        site.required(table)
    total = WriteResult()
    for table, pieces in tables.items():

        def write(found: Any, change: Any, said: dict[str, str], pieces: Sequence[ChangePiece] = pieces) -> WriteResult:
            info = info_of(found)
            schema = arrow_schema(found.metadata)
            rows = change_rows(pieces, info, schema, fence.batch, site.options.zero_dates)
            change.append(rows.cast(schema), snapshot_properties=said)
            return WriteResult(appended=rows.num_rows, statements=1)

        total += committed(site, fence, table, SCOPE, "", write)
    return total
