"""Rows of a batch as every SQL target looks at them: the user's columns under the target's names, and what has to go first."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.model.fields import described, true_name
from sluice.model.tables import META_COLUMNS, member
from sluice.targets.sql.tables import TargetTable

_TARGET = b"sluice.target"


def target_type(field: pa.Field) -> str:
    """The column's type at the target as it is declared there, ``""`` if it was not read."""
    return str((field.metadata or {}).get(_TARGET, b"").decode())


def at_target(field: pa.Field, target: str) -> pa.Field:
    """The field with what :func:`target_type` gives."""
    return described(field, target=target)


def user_fields(schema: pa.Schema) -> list[pa.Field]:
    """The fields that belong to the user."""
    return [field for field in schema if field.name not in META_COLUMNS]


def sent_fields(schema: pa.Schema, table: TargetTable) -> list[tuple[pa.Field, str]]:
    """Fields that are written with the column's spelling at the target; generated columns are left out. The fields know the target's types."""
    spelling = {name.casefold(): name for name in table.columns}
    types = dict(zip(table.columns, table.types, strict=True)) if table.types else {}
    found = [(field, spelling.get(true_name(field).casefold())) for field in user_fields(schema)]
    return [(at_target(field, types.get(name, "")), name) for field, name in found if name is not None]


def key_fields(schema: pa.Schema, table: TargetTable) -> list[tuple[pa.Field, str]]:
    """Fields of the table's key in its order. A generated column is never written, and rows are told apart by it all the same."""
    sent = {name.casefold(): (field, name) for field, name in sent_fields(schema, table)}
    others = {true_name(field).casefold(): field for field in user_fields(schema)}
    return [sent.get(name.casefold()) or (at_target(others[name.casefold()], ""), name) for name in table.key]


def leaving_unique_values(table: TargetTable, rows: pa.Table) -> pa.Table:
    """Rows to delete before anything is upserted: their value in another unique key changes, so that its old value has to be free.

    ``rows``: i and u rows. Returns their rows as they were before the batch (the key is theirs, too).
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
    """True if columns of some rows may be missing, by what the rows' columns are."""
    return "_present" in rows.schema.names
