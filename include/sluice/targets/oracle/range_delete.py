"""Make a range of keys equal to the source's: what the source does not have is deleted.

Only keys that both servers sort alike can be cut into the same ranges; for texts, listed keys are removed.
"""

# ruff: noqa: S608 - identifiers are quoted, values are bound

from __future__ import annotations

from functools import partial
from typing import Any

from sluice.model.planned import PlannedColumn, PlannedTable
from sluice.targets.oracle.catalog import ColumnInfo, TableInfo
from sluice.targets.oracle.column_types import oracle_type
from sluice.targets.oracle.keys import SORTED_ALIKE, TOLD_ALIKE, held_keys, key_types, key_values
from sluice.targets.oracle.values import BoundColumn, Policies, db_type, storable
from sluice.targets.port import KeyRange, WriteResult
from sluice.targets.sql import catalogs
from sluice.targets.sql.names import quoted, quoted_table
from sluice.targets.sql.rows import sent_fields, spelt
from sluice.targets.sql.tables import TargetTable


def clear(cursor: Any, table: TargetTable, item: KeyRange, policies: Policies) -> WriteResult:
    """Delete the rows of a key range whose key is not kept, in a transaction.

    Raises LoadError, and what the driver raises.
    """
    item, place = spelt(table, item), quoted_table(table.place)
    if not item.names:
        cursor.execute(f"DELETE FROM {place}")
        return WriteResult(deleted=cursor.rowcount, statements=1)
    types = key_types(table, item.names)
    retained: set[tuple[Any, ...]] = set()
    if item.kept is not None and item.kept.num_rows:
        fields = {name: field for field, name in sent_fields(item.kept.schema, table)}
        columns = [BoundColumn.of(number, fields[name]) for number, name in enumerate(item.names)]
        rows = storable(item.kept, columns, policies)
        retained = set(key_values(rows.select([column.field.name for column in columns]), types))
    extra = [key for key in held_keys(cursor, table, item, types, " FOR UPDATE") if key not in retained]
    if not extra:
        return WriteResult(statements=1)
    places = [f"k{number}" for number in range(len(types))]
    same = " AND ".join(f"{quoted(name)} = :{parameter}" for name, parameter in zip(item.names, places, strict=True))
    rows_ = [dict(zip(places, key, strict=True)) for key in extra]
    kinds = {
        parameter: db_type(kind, [key[n] for key in extra])
        for n, (parameter, kind) in enumerate(zip(places, types, strict=True))
    }
    deleted = cursor.run(f"DELETE FROM {place} WHERE {same}", rows_, kinds)
    return WriteResult(deleted=deleted, statements=2)


def replaceable(plan: PlannedTable, info: TableInfo | None, *, listed: bool = False) -> tuple[TargetTable | None, str]:
    """Return the table if the target compares the keys of ``plan`` as the source does and, unless they are ``listed``,
    sorts them so.

    Otherwise return None and why not.
    """
    return catalogs.replaceable(plan, info, partial(_otherwise, listed=listed))


def _otherwise(column: PlannedColumn, stored: ColumnInfo, *, listed: bool) -> str:
    """Return why values of a column are not those of the source or, unless they are listed, not in its order; "" if
    they are.
    """
    alike, does = (TOLD_ALIKE, "tell apart") if listed else (SORTED_ALIKE, "sort")
    if oracle_type(stored.declared).word in alike.get(column.sent_type.kind, frozenset()):
        return ""
    return (
        f"column {column.name} is {stored.declared}, which Oracle may {does} otherwise than the source its "
        f"{column.sql_type}"
    )
