"""Foreign keys at the target (``foreign_keys: ordered``): nothing in a batch violates one, and none of their actions
fires.

Parents are written before children, and the server checks each child that is written. What no order can make right is
checked when all of the batch is written, as a database with deferred constraints does: deleted parents, since their
children may move to others in the same batch, and tables that refer to themselves, directly or indirectly.

Decision: rows are deleted with the server's checks off, and orphans are looked for afterwards. With checks on, ON
DELETE and ON UPDATE would do once more what the log has as rows, and RESTRICT would refuse what is right at the end of
the batch. A server that checks at the commit would make this wrong.
"""

# ruff: noqa: S608 - identifiers are quoted, values are literals made by literals.py

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import LoadError
from sluice.model.fields import is_masked, true_name
from sluice.model.planned import PlannedTable
from sluice.model.tables import TableId, member, quoted, quoted_table
from sluice.mysql.key_sql import among
from sluice.targets.mysql import literals
from sluice.targets.mysql.statements import MAX_KEYS
from sluice.targets.mysql.tables import views_about
from sluice.targets.port import TableFinding
from sluice.targets.sql.rows import user_fields
from sluice.targets.sql.tables import Reference, TableChanges

SHOWN_KEYS = 3


def read_references(cursor: Any, tables: Sequence[TableId]) -> list[Reference]:
    """Read the foreign keys from ``tables`` and to them, in one round trip. Tables have the spelling asked for."""
    if not tables:
        return []
    rest = (
        "constraint_schema, constraint_name, table_schema, table_name, column_name, "
        "referenced_table_schema, referenced_table_name, referenced_column_name"
    )
    behind = (
        "AND referenced_table_name IS NOT NULL ORDER BY constraint_schema, table_name, constraint_name, "
        "ordinal_position"
    )
    ends = ("table_schema, table_name", "referenced_table_schema, referenced_table_name")
    views = [("key_column_usage", f"{first}, {rest}", behind) for first in ends]
    name, answers = views_about(cursor, tables, *views)
    requested_tables = {name(table): table for table in tables}
    columns: dict[tuple[TableId, str, TableId], list[tuple[str, str]]] = {}
    for answer in answers:
        view_columns: dict[tuple[TableId, str, TableId], list[tuple[str, str]]] = {}
        for table in tables:
            for _, constraint, schema, child, column, parent_schema, parent, parent_column in answer[name(table)]:
                own_table, other_table = TableId(schema, child), TableId(parent_schema, parent)
                pair = (
                    requested_tables.get(name(own_table), own_table),
                    constraint,
                    requested_tables.get(name(other_table), other_table),
                )
                view_columns.setdefault(pair, []).append((column, parent_column))
        columns |= view_columns
    return [
        Reference(constraint, child, tuple(c for c, _ in pairs), parent, tuple(p for _, p in pairs))
        for (child, constraint, parent), pairs in sorted(columns.items())
    ]


def verify(cursor: Any, item: TableChanges) -> int:
    """Check that nothing ``item`` wrote leaves a row without its parent. Returns the number of queries.

    Raises:
        LoadError: a row at the target refers to one that does not exist.
    """
    queries = 0
    for reference in item.table.references:
        keys: set[tuple[str, ...]] = set()
        if reference.parent == item.table.table:
            keys |= _gone(item, reference.parent_columns)
        if reference.child == item.table.table and item.table.generation is None:
            live = item.rows.filter(pc.not_equal(item.rows["_op"], "d"))
            keys |= _keys(live, {f.name: live[f.name] for f in user_fields(live.schema)}, reference.columns)
        for some in _pieces(sorted(keys)):
            queries += 1
            _look(cursor, reference, some, hidden=any(map(is_masked, item.rows.schema)))
    return queries


def _gone(item: TableChanges, columns: Sequence[str]) -> set[tuple[str, ...]]:
    """Return the values that a row had, and may have no more."""
    rows = item.rows
    users = user_fields(rows.schema)
    removed = rows.filter(pc.equal(rows["_op"], "d"))
    keys = _keys(removed, {f.name: removed[f.name] for f in users}, columns)
    if {name.casefold() for name in columns} <= {name.casefold() for name in item.table.key}:
        return keys  # a row that changes its key is a delete and an insert
    before = rows["_before"].combine_chunks()
    known_names = {field.name for field in before.type}
    then = {f.name: member(before, f.name) if f.name in known_names else pa.nulls(len(before)) for f in users}
    return keys | _keys(rows, then, columns)


def _keys(rows: pa.Table, values: Mapping[str, Any], columns: Sequence[str]) -> set[tuple[str, ...]]:
    """Return literals of the values that ``rows`` have in ``columns``, each once; none for rows with a NULL and columns
    that are not sent.
    """
    fields = {true_name(field).casefold(): field for field in user_fields(rows.schema)}
    wanted_fields = [fields.get(name.casefold()) for name in columns]
    if not rows.num_rows or any(field is None for field in wanted_fields):
        return set()
    arrays = [values[field.name] for field in wanted_fields if field is not None]
    arrays = [a.combine_chunks() if isinstance(a, pa.ChunkedArray) else a for a in arrays]
    complete = np.logical_and.reduce([pc.is_valid(array).to_numpy(zero_copy_only=False) for array in arrays])
    some = [array.filter(pa.array(complete)) for array in arrays]
    texts = [
        literals.literals(field, array, comparing=True).to_pylist()
        for field, array in zip(wanted_fields, some, strict=True)
        if field is not None
    ]
    return set(zip(*texts, strict=True))


def _pieces(keys: Sequence[tuple[str, ...]]) -> Iterator[Sequence[tuple[str, ...]]]:
    for start in range(0, len(keys), MAX_KEYS):
        yield keys[start : start + MAX_KEYS]


def _look(cursor: Any, reference: Reference, keys: Sequence[tuple[str, ...]], *, hidden: bool) -> None:
    child, parent = quoted_table(reference.child), quoted_table(reference.parent)
    pairs = list(zip(reference.columns, reference.parent_columns, strict=True))
    same = " AND ".join(f"_p.{quoted(parent_column)} = {child}.{quoted(column)}" for column, parent_column in pairs)
    orphans = f"{among(reference.columns, keys)} AND NOT EXISTS (SELECT 1 FROM {parent} _p WHERE {same})"
    names = ", ".join(map(quoted, reference.columns))
    cursor.execute(f"SELECT DISTINCT {names} FROM {child} WHERE {orphans} LIMIT {SHOWN_KEYS + 1}")
    orphan_rows = cursor.fetchall()
    if not orphan_rows:
        return
    values = "" if hidden else " = " + ", ".join(f"({', '.join(map(str, row))})" for row in orphan_rows[:SHOWN_KEYS])
    more = " …" if len(orphan_rows) > SHOWN_KEYS and not hidden else ""
    raise LoadError(
        f"foreign key {reference.name} does not hold after the batch: {reference.child} has rows with "
        f"({', '.join(reference.columns)}){values}{more}, and {reference.parent} has no such row",
        where=f"{reference.child} -> {reference.parent}",
        hint=f"add the missing rows to {reference.parent} at the target, or remove those of {reference.child}, and "
        "the batch is tried again; if "
        "the source itself has such rows (it wrote them with foreign_key_checks = 0), take options.foreign_keys: "
        "unchecked",
    )


def remarks(plans: Sequence[PlannedTable], references: Sequence[Reference]) -> list[TableFinding]:
    """Return, before the first row, what the pipeline's rows alone cannot keep right."""
    planned = {plan.target: {column.name.casefold() for column in plan.columns} for plan in plans}
    remarks = []
    for reference in references:
        if reference.child not in planned:
            why = (
                f"foreign key {reference.name}: rows of {reference.child}, which this pipeline does not write, refer "
                "to this table; the batch that removes a row they refer to stops"
            )
            remarks.append(TableFinding("warning", reference.parent, "", why))
        for table, columns in ((reference.child, reference.columns), (reference.parent, reference.parent_columns)):
            absent = [name for name in columns if table in planned and name.casefold() not in planned[table]]
            if absent:
                why = (
                    f"foreign key {reference.name} ({reference.child} -> {reference.parent}) is not checked for rows "
                    f"of {table}: no such column comes over"
                )
                remarks.append(TableFinding("warning", table, absent[0], why))
    return remarks
