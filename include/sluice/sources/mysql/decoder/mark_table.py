"""The marking table in the log: the rows that stand around what Sluice loaded (:mod:`sluice.model.load_marks`)."""

from __future__ import annotations

import zlib

import numpy as np

from sluice.errors import DecodeError
from sluice.model.column_types import ColumnKind
from sluice.model.load_marks import TOKEN_BYTES
from sluice.model.tables import Column, TableId, TableSchema
from sluice.mysql import type_codes
from sluice.mysql.column_types import FORMS
from sluice.sources.mysql.decoder.row_layout import ColumnLayout, RowLayout, width_of
from sluice.sources.mysql.events.control import HEADER
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


_INSERTS = frozenset({23, 30})
_DELETES = frozenset({25, 32})
_TABLE_ID_AND_FLAGS = 8


def mark_layout(table_map: TableMap) -> RowLayout | None:
    """Return the layout of its rows; None for a table of the same name with other columns, which says nothing."""
    if [c.type for c in table_map.columns] != [type_codes.VARCHAR] or width_of(table_map.columns[0]) != -2:
        return None
    [mapped] = table_map.columns
    column = Column(
        "token",
        ColumnKind.VARCHAR,
        f"varchar({TOKEN_BYTES})",
        nullable=False,
        length=TOKEN_BYTES,
        charset="ascii",
        collation="ascii_bin",
    )
    layout = ColumnLayout(column, mapped.type, mapped.meta, -2, column.arrow_type, FORMS[mapped.type].fill)
    schema = TableSchema(table_map.table, (column,), ("token",))
    return RowLayout(schema, (layout,), np.array([-2], np.int32), np.array([0], np.int64), marks=True)


def written_token(event: bytes) -> str:
    """Return the token that a row event (without its checksum) inserts; "" for one that inserts none."""
    return _token(event) if event[4] in _INSERTS else ""


def removed_token(event: bytes) -> str:
    """Return the token that a row event deletes; "" for one that deletes none."""
    return _token(event) if event[4] in _DELETES else ""


def _token(event: bytes) -> str:
    """Return the value of the first row.

    Before it are: header, table id and flags, extra data, number of columns, bitmap of columns, bitmap of nulls.
    """
    at = HEADER + _TABLE_ID_AND_FLAGS
    if event[4] >= 30:
        at += int.from_bytes(event[at : at + 2], "little")
    at += 3
    size = int.from_bytes(event[at : at + 2], "little")
    return event[at + 2 : at + 2 + size].decode("ascii", "replace")
