"""Rows of a batch as every SQL target sees them: the user's columns under the target's names, and what has to be
deleted first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.model.fields import described, is_generated, true_name
from sluice.model.tables import META_COLUMNS, member
from sluice.targets.port import KeyRange
from sluice.targets.sql.tables import TargetTable

_TARGET = b"sluice.target"


def target_type(field: pa.Field) -> str:
    """Return the column's type at the target as it is declared there, ``""`` if it was not read."""
    return str((field.metadata or {}).get(_TARGET, b"").decode())


def at_target(field: pa.Field, target: str) -> pa.Field:
    """Return the field with the target type that :func:`target_type` reads."""
    return described(field, target=target)


def user_fields(schema: pa.Schema) -> list[pa.Field]:
    """Return the fields that belong to the user."""
    return [field for field in schema if field.name not in META_COLUMNS]


def sent_fields(schema: pa.Schema, table: TargetTable) -> list[tuple[pa.Field, str]]:
    """Return the fields that are written, with their target types and the column's spelling there; generated columns
    are left out.
    """
    spelling = {name.casefold(): name for name in table.columns}
    types = dict(zip(table.columns, table.types, strict=True)) if table.types else {}
    named_fields = [(field, spelling.get(true_name(field).casefold())) for field in user_fields(schema)]
    return [(at_target(field, types.get(name, "")), name) for field, name in named_fields if name is not None]


def key_fields(schema: pa.Schema, table: TargetTable) -> list[tuple[pa.Field, str]]:
    """Return the fields of the table's key in its order.

    A generated column is never written, but still tells rows apart.
    """
    sent = {name.casefold(): (field, name) for field, name in sent_fields(schema, table)}
    others = {true_name(field).casefold(): field for field in user_fields(schema)}
    return [sent.get(name.casefold()) or (at_target(others[name.casefold()], ""), name) for name in table.key]


def identifying(rows: pa.Table) -> pa.Table:
    """Return rows without a key that are to be deleted, without generated columns: they follow from others, and the log
    may lack them.
    """
    users = user_fields(rows.schema)
    computed = [field.name for field in users if is_generated(field)]
    return rows.drop_columns(computed) if len(computed) < len(users) else rows


def leaving_unique_values(table: TargetTable, rows: pa.Table) -> pa.Table:
    """Return the rows to delete before any upsert: their value in another unique key changes, so that its old value has
    to be free.

    ``rows``: i and u rows. The result has them as they were before the batch (the key is theirs, too).
    """
    if not table.unique_keys or not rows.num_rows:
        return rows.slice(0, 0)
    before = rows["_before"].combine_chunks()
    stored = {true_name(field).casefold(): field.name for field in user_fields(rows.schema)}
    names = {stored[column.casefold()] for key in table.unique_keys for column in key if column.casefold() in stored}
    changed = np.zeros(rows.num_rows, bool)
    for name in names:
        now, then = rows[name].combine_chunks(), member(before, name)
        same = pc.fill_null(pc.equal(now, then), False)
        both_null = pc.and_(pc.is_null(now), pc.is_null(then))
        changed |= ~pc.or_(same, both_null).to_numpy(zero_copy_only=False)
    existed = pc.is_valid(before).to_numpy(zero_copy_only=False)
    return rows.filter(pa.array(changed & existed))


def may_lack(rows: pa.Table) -> bool:
    """Return True if columns of some rows may be missing, judged by the rows' schema."""
    return "_present" in rows.schema.names


def row_text(rows: pa.Table, number: int, table: TargetTable, *, hidden: bool = False) -> str:
    """Return a row for display: its key, or the first columns of a table without one."""
    key = {name.casefold() for name in table.key}
    fields = [f for f in user_fields(rows.schema) if true_name(f).casefold() in key] or user_fields(rows.schema)[:5]
    if hidden:
        return f"with ({', '.join(map(true_name, fields))}) = ***"
    values = [_shown(rows[field.name][number]) for field in fields]
    return f"with ({', '.join(map(true_name, fields))}) = ({', '.join(values)})"


def _shown(value: Any) -> str:
    try:
        return repr(value.as_py())[:80]
    except (ValueError, OverflowError):  # a date that no calendar has
        return "?"


def removals(table: TargetTable, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the rows that are gone, and those that give a unique value away: both are deleted first."""
    delete_mask = pc.equal(rows["_op"], "d")
    live = only(rows, pc.invert(delete_mask)) if table.unique_keys else rows
    return only(rows, delete_mask), leaving_unique_values(table, live)


def only(rows: pa.Table, mask: Any) -> pa.Table:
    """Return the rows of a mask; all of them without a copy."""
    return rows if pc.all(mask).as_py() else rows.filter(mask)


def spelt(table: TargetTable, item: KeyRange) -> KeyRange:
    """Return the range with the names of the columns as the target spells them."""
    names = {name.casefold(): name for name in table.columns}
    return replace(item, names=tuple(names[name.casefold()] for name in item.names))
