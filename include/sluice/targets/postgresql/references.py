"""Foreign keys at the target (``foreign_keys: ordered``): nothing in a batch violates one, and none of their actions
fires.

Rows are deleted with the server's checks off, and orphans are looked for when all of the batch is written, as deferred
constraints do; the server checks each child that is written. See :mod:`sluice.targets.sql.foreign_keys` for the order.
"""

# ruff: noqa: S608 - identifiers are quoted, values are staged

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import LoadError
from sluice.model.fields import is_masked
from sluice.model.tables import member
from sluice.postgresql.names import quoted, quoted_table
from sluice.targets.postgresql.staging import ROWS, Stage, StagedColumn
from sluice.targets.sql.rows import sent_fields
from sluice.targets.sql.tables import Reference, TableChanges

SHOWN_KEYS = 3


def verify(stage: Stage, item: TableChanges) -> int:
    """Check that nothing ``item`` wrote leaves a row without its parent. Returns the number of queries.

    Raises:
        LoadError: a row at the target refers to one that does not exist.
    """
    queries = 0
    for reference in item.table.references:
        if reference.parent == item.table.table:
            queries += _look(stage, item, reference, reference.parent_columns, gone=True)
        if reference.child == item.table.table and item.table.generation is None:
            queries += _look(stage, item, reference, reference.columns, gone=False)
    return queries


def _look(stage: Stage, item: TableChanges, reference: Reference, names: Sequence[str], *, gone: bool) -> int:
    columns = {name: field for field, name in sent_fields(item.rows.schema, item.table)}
    if not all(name in columns for name in names):
        return 0
    fields = [columns[name] for name in names]
    keys = (
        _gone(item, fields, names) if gone else _arrays(item.rows.filter(pc.not_equal(item.rows["_op"], "d")), fields)
    )
    keys = keys.filter(_whole(keys))
    if not keys.num_rows:
        return 0
    staged_columns = [StagedColumn.of(n, field) for n, field in enumerate(fields)]
    pairs = list(zip(reference.columns, reference.parent_columns, strict=True))
    child, parent = quoted_table(reference.child), quoted_table(reference.parent)
    staged_same = " AND ".join(
        f"c.{quoted(own)} = {column.compared}" for (own, _), column in zip(pairs, staged_columns, strict=True)
    )
    parent_same = " AND ".join(f"p.{quoted(referred)} = c.{quoted(own)}" for own, referred in pairs)
    values = ", ".join(f"c.{quoted(own)}::text" for own, _ in pairs)
    with stage.unordered(), stage.rows(keys, staged_columns) as staged:
        staged.run(
            f"SELECT DISTINCT {values} FROM {child} AS c JOIN {ROWS} ON {staged_same} "
            f"WHERE NOT EXISTS (SELECT 1 FROM {parent} AS p WHERE {parent_same}) LIMIT {SHOWN_KEYS + 1}"
        )
        orphans = stage.cursor.fetchall()
    if orphans:
        raise _broken(reference, orphans, hidden=any(map(is_masked, item.rows.schema)))
    return 1


def _arrays(rows: pa.Table, fields: Sequence[pa.Field]) -> pa.Table:
    return pa.Table.from_arrays([rows[field.name].combine_chunks() for field in fields], schema=pa.schema(fields))


def _gone(item: TableChanges, fields: Sequence[pa.Field], names: Sequence[str]) -> pa.Table:
    """Return the values that a row had, and may have no more."""
    removed = _arrays(item.rows.filter(pc.equal(item.rows["_op"], "d")), fields)
    if {name.casefold() for name in names} <= {name.casefold() for name in item.table.key}:
        return removed  # a row that changes its key is a delete and an insert
    before = item.rows["_before"].combine_chunks()
    held_names = {field.name for field in before.type}
    then = [member(before, f.name) if f.name in held_names else pa.nulls(len(before), f.type) for f in fields]
    return pa.concat_tables([removed, pa.Table.from_arrays(then, schema=pa.schema(fields))])


def _whole(keys: pa.Table) -> Any:
    mask = pa.array([True] * keys.num_rows, pa.bool_())
    for column in keys.columns:
        mask = pc.and_(mask, pc.is_valid(column))
    return mask


def _broken(reference: Reference, orphans: Sequence[tuple[Any, ...]], *, hidden: bool) -> LoadError:
    values = "" if hidden else " = " + ", ".join(f"({', '.join(map(str, row))})" for row in orphans[:SHOWN_KEYS])
    more = " …" if len(orphans) > SHOWN_KEYS and not hidden else ""
    return LoadError(
        f"foreign key {reference.name} does not hold after the batch: {reference.child} has rows with "
        f"({', '.join(reference.columns)}){values}{more}, and {reference.parent} has no such row",
        where=f"{reference.child} -> {reference.parent}",
        hint=f"add the missing rows to {reference.parent} at the target, or remove those of {reference.child}, and "
        "the batch is tried again; if "
        "the source itself has such rows (it wrote them with foreign_key_checks = 0), take options.foreign_keys: "
        "unchecked",
    )
