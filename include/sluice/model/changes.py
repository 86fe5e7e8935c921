"""One change of one row, as Python values: what streams of changes are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa

from sluice.model.tables import TableId


class SourceName(str):
    """The name under which documents speak of their source (the pipeline's), and how they describe it.

    Attributes:
        connector: the connector of Debezium whose ``source`` block they have. database: that of the source.
    """

    connector: str
    database: str

    def __new__(cls, name: str, connector: str, database: str) -> Self:
        """Return the name with both."""
        source = super().__new__(cls, name)
        source.connector, source.database = connector, database
        return source

    def __getnewargs__(self) -> tuple[str, str, str]:  # type: ignore[override]  # for pickle
        return str(self), self.connector, self.database


@dataclass(frozen=True, slots=True)
class PlaceInTransaction:
    """An event's place among those of its transaction, both counted from 1.

    Attributes:
        id: of the transaction. total_order: among all events; table_order: among those of its table.
    """

    id: str
    total_order: int
    table_order: int


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one row. ``after`` is None for a delete, ``before`` for an insert.

    Columns that the log does not carry (``binlog_row_image`` other than FULL) are left out of both, so a name that is
    absent is unknown and a value of None is NULL. Temporal values are ``date``, ``datetime`` and ``timedelta``; a date
    that no calendar has is the server's text of it.

    ``fields`` are the Arrow fields of the user's columns (metadata: ``sluice.type``, ``sluice.name`` …); ``key`` names
    the primary key's columns. ``txn`` is the transaction's ordinal in the batch, ``txn_row`` the change's place in its
    transaction, from 0. ``part`` tells rows apart that a rule made of one change. ``in_transaction``: only where events
    are counted.
    """

    table: TableId
    op: str
    seq: int
    file: str
    offset: int
    row: int
    commit_time_us: int
    gtid: str | None
    txn: int
    origin: int
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    fields: tuple[pa.Field, ...]
    key: tuple[str, ...]
    last_in_txn: bool = False
    txn_row: int = 0
    part: int = 0
    in_transaction: PlaceInTransaction | None = None
