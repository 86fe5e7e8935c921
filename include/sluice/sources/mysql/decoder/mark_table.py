"""The marking table in the log: the rows that stand around what Sluice loaded (:mod:`sluice.model.load_marks`)."""

from __future__ import annotations

import numpy as np

from sluice.model.column_types import ColumnKind
from sluice.model.load_marks import TOKEN_BYTES
from sluice.model.tables import Column, TableSchema
from sluice.mysql import type_codes
from sluice.mysql.column_types import FORMS
from sluice.sources.mysql.decoder.row_layout import ColumnLayout, RowLayout, width_of
from sluice.sources.mysql.events.control import HEADER
from sluice.sources.mysql.events.table_map import TableMap

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
