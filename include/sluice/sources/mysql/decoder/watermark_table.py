"""The watermark table: a few rows at the source whose changes say in the log where a chunk of a dump was read."""

from __future__ import annotations

import zlib

import numpy as np

from sluice.errors import DecodeError
from sluice.model.column_types import ColumnKind
from sluice.model.tables import Column, TableId, TableSchema
from sluice.mysql import type_codes
from sluice.mysql.column_types import FORMS
from sluice.sources.mysql.decoder.row_layout import ColumnLayout, RowLayout, width_of
from sluice.sources.mysql.events.table_map import TableMap
from sluice.sources.mysql.events.unreadable import AROUND

PREFIX = "_sluice_mark_"
"""Tables of this name are never captured as a user's."""

MARK_BYTES = 190
COLUMNS = f"slot INT NOT NULL PRIMARY KEY, mark VARCHAR({MARK_BYTES}) CHARACTER SET ascii COLLATE ascii_bin NOT NULL"


def mark_table(schema: str, pipeline: str) -> TableId:
    """Return the watermark table of a pipeline. Each has its own, so that none wakes up for another's marks."""
    name = pipeline if len(pipeline) <= 48 else f"{pipeline[:39]}_{zlib.crc32(pipeline.encode()):08x}"
    return TableId(schema, PREFIX + name)


def mark_plan(table_map: TableMap, where: str) -> RowLayout:
    """Return how its rows are decoded, which is known without the log's column names.

    Raises DecodeError if the table is another than Sluice's.
    """
    if [c.type for c in table_map.columns] != [type_codes.LONG, type_codes.VARCHAR]:
        raise DecodeError(
            f"{table_map.table} is not a Sluice watermark table",
            where=where,
            hint=f"drop it, the next dump makes it anew ({COLUMNS}); {AROUND}",
        )
    columns = (
        Column("slot", ColumnKind.INT, "int", nullable=False),
        Column("mark", ColumnKind.VARCHAR, f"varchar({MARK_BYTES})", nullable=False, length=MARK_BYTES, charset="ascii",
            collation="ascii_bin"),
    )  # fmt: skip
    plans = tuple(
        ColumnLayout(column, mapped.type, mapped.meta, width_of(mapped), column.arrow_type, FORMS[mapped.type].fill)
        for column, mapped in zip(columns, table_map.columns, strict=True)
    )
    schema = TableSchema(table_map.table, columns, ("slot",))
    return RowLayout(schema, plans, np.array([p.width for p in plans], np.int32), np.array([0], np.int64))
