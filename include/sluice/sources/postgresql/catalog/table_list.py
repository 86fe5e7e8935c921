"""The tables a source has now, for a look before the first batch, and what copies ask of many tables.

Rows of the log are never read with these definitions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import psycopg
import pyarrow as pa

from sluice.model.tables import TableId
from sluice.postgresql.connection import Connection
from sluice.postgresql.names import quoted_table
from sluice.sources.port import Asked, Blindness, SourceTable
from sluice.sources.postgresql.catalog.table import KEPT, CatalogTable, read_tables
from sluice.sources.postgresql.server.connection import rows_of

_ROWS = f"""
SELECT n.nspname::text, c.relname::text, c.reltuples::bigint, c.relkind::text
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND {KEPT}
ORDER BY 1, 2"""  # noqa: S608 - a fixed condition

_NUMBERED = """
SELECT DISTINCT n.nspname::text, c.relname::text
FROM pg_sequence s JOIN pg_depend d ON d.objid = s.seqrelid AND d.classid = 'pg_class'::regclass
JOIN pg_class c ON c.oid = d.refobjid AND d.refclassid = 'pg_class'::regclass
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE d.deptype IN ('a', 'i') AND d.refobjsubid > 0 AND s.seqincrement = 1 ORDER BY 1, 2"""

_CUT_SHORT = f"""
SELECT n.nspname::text, c.relname::text, m.nspname::text, l.relname::text
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN LATERAL (SELECT c.oid AS place UNION SELECT relid FROM pg_partition_tree(c.oid) WHERE isleaf) t
JOIN pg_class l ON l.oid = t.place JOIN pg_namespace m ON m.oid = l.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND {KEPT} AND l.reltoastrelid <> 0 AND l.relreplident <> 'f'
ORDER BY 1, 2, 3, 4"""  # noqa: S608 - a fixed condition


def source_tables(connection: Connection, wants: Callable[[TableId], bool]) -> list[SourceTable]:
    """Return every table that ``wants`` accepts, by name; a partition is no table of its own."""
    tables = [table for table in read_tables(connection, wants) if not table.partition]
    counted = estimates(connection, [table.id for table in tables if not table.rows])
    return [_source_table(table, counted.get(table.id, table.rows)) for table in tables]


def _source_table(table: CatalogTable, rows: int) -> SourceTable:
    definition = table.definition
    others = () if definition.primary_key else definition.row_key
    unique = tuple(index.columns for index in definition.indexes if index.unique)
    return SourceTable(table.schema, rows, table.size_bytes, others, unique=unique)


def table_rows(connection: Connection) -> dict[TableId, int]:
    """Return every table, with the server's last count of its rows; 0 if it never counted them."""
    return {TableId(schema, name): max(rows, 0) for schema, name, rows, _ in rows_of(connection, _ROWS)}


def estimates(connection: Connection, tables: Sequence[TableId]) -> dict[TableId, int]:
    """Return the planner's present estimate of the tables' rows; 0 for a table that may not be read."""
    estimates = {}
    for table in tables:
        estimates[table] = 0
        with suppress(psycopg.errors.InsufficientPrivilege, psycopg.errors.UndefinedTable):
            estimates[table] = planned_rows(connection, f"SELECT 1 FROM {quoted_table(table)}")  # noqa: S608 - quoted
    return estimates


def planned_rows(connection: Connection, sql: str) -> int:
    """Return how many rows the planner expects of a select."""
    [(plan,)] = rows_of(connection, f"EXPLAIN (FORMAT JSON) {sql}")
    read = json.loads(plan) if isinstance(plan, str) else plan
    return int(read[0]["Plan"]["Plan Rows"])


def empty_tables(connection: Connection, tables: Sequence[TableId]) -> list[TableId]:
    """Return those of ``tables`` that have no row; each is asked."""
    empty_tables = []
    for table in tables:
        with suppress(psycopg.errors.InsufficientPrivilege, psycopg.errors.UndefinedTable):
            if not rows_of(connection, f"SELECT 1 FROM {quoted_table(table)} LIMIT 1"):  # noqa: S608 - quoted
                empty_tables.append(table)
    return empty_tables


def keyless_tables(connection: Connection) -> set[TableId]:
    """Return the tables without a primary key and without a unique key of whole columns that are never null."""
    tables = read_tables(connection, lambda _: True)
    return {table.id for table in tables if not table.partition and not table.definition.row_key}


def create_statement(connection: Connection, table: TableId, named: TableId) -> str:
    """Return "": PostgreSQL prints no CREATE TABLE, and a target makes its own from the definition."""
    return ""


def numbered_tables(connection: Connection) -> list[TableId]:
    """Return the tables with a sequence of their own that goes in steps of 1."""
    return [TableId(*row) for row in rows_of(connection, _NUMBERED)]


def cut_short_tables(connection: Connection) -> list[tuple[TableId, TableId]]:
    """Return (table, the table or partition that holds the rows) where the log may lack unchanged values: they can be
    stored out of line, and the old row is not logged whole.
    """
    rows = rows_of(connection, _CUT_SHORT)
    return [(TableId(schema, table), TableId(place, name)) for schema, table, place, name in rows]


def numbering(connection: Connection) -> tuple[int, int] | None:
    """Return None: sequences are no part of a table, and their values are not captured."""
    return None


def blindness(connection: Connection) -> Blindness | None:
    """Return None: the catalogs show every table to every login."""
    return None


def same_keys(fields: Sequence[pa.Field], questions: Sequence[Asked]) -> Iterator[tuple[int, bool]]:
    """Yield (number, is_same): texts are the same if their bytes are, as the server's own collations compare them."""
    for number, key, others in questions:
        yield number, any(tuple(key) == tuple(other_key) for other_key in others)


__all__ = [
    "blindness", "create_statement", "empty_tables", "estimates", "keyless_tables", "numbered_tables", "numbering",
    "planned_rows", "same_keys", "source_tables", "table_rows",
]  # fmt: skip
