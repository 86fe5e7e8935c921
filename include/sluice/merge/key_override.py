"""A table without a primary key whose rows a unique key of columns that are never NULL tells apart: the same rows as if
it were the primary key.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import MappingError
from sluice.model.fields import described, true_name
from sluice.model.tables import TableId, member, stored_name


def rekeyed(changes: pa.Table, table: TableId, key: Sequence[str]) -> pa.Table:
    """Return changes that were captured without a key as capture would have written them with ``key``.

    Args:
        changes: CHANGE_ROWS. key: column names in key order.

    Returns:
        CHANGE_ROWS; key columns carry their ordinal, and an update that moves the key is followed by its ``k`` row.

    Raises:
        MappingError: a key column does not exist, or is NULL somewhere.
    """
    fields = list(changes.schema)
    names = {true_name(field): index for index, field in enumerate(fields)}
    for ordinal, column in enumerate(key, 1):
        if column not in names or stored_name(column) not in changes.schema.names:
            raise MappingError(
                f"mapping.key of {table} names the column {column!r}, which it does not have",
                where=str(table),
                hint="fix mapping",
            )
        index = names[column]
        if changes.column(index).null_count:
            raise MappingError(
                f"column {column!r} of {table} is NULL in some rows, and mapping.key says that it tells rows apart",
                where=str(table),
                hint="name the columns of a unique key that are all NOT NULL",
            )
        fields[index] = described(fields[index], key=str(ordinal))
    before = changes["_before"].combine_chunks()
    children = [fields[names[true_name(f)]] if true_name(f) in names else f for f in before.type]
    struct = pa.StructArray.from_arrays(
        [member(before, f.name) for f in before.type], fields=children, mask=pc.is_null(before)
    )
    position = changes.schema.get_field_index("_before")
    fields[position] = pa.field("_before", struct.type)
    columns = [struct if index == position else column for index, column in enumerate(changes.columns)]
    keyed = pa.table(columns, schema=pa.schema(fields))
    moved = _moved(keyed, struct, [stored_name(column) for column in key])
    return pa.concat_tables([keyed, _left(keyed.filter(pa.array(moved)))]) if moved.any() else keyed


def _moved(changes: pa.Table, before: pa.StructArray, key: Sequence[str]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    moved = np.zeros(changes.num_rows, np.bool_)
    for name in key:
        differs = pc.not_equal(changes[name].combine_chunks(), member(before, name))
        moved |= pc.fill_null(differs, False).to_numpy(zero_copy_only=False)
    updates: np.ndarray[tuple[int], np.dtype[np.bool_]] = pc.equal(changes["_op"], "u").to_numpy().astype(np.bool_)
    return moved & updates


def _left(moved: pa.Table) -> pa.Table:
    """Return the rows as they left their old keys."""
    before = moved["_before"].combine_chunks()
    children = {field.name for field in before.type}
    columns = []
    for field in moved.schema:
        if field.name == "_op":
            columns.append(pa.array(["k"] * moved.num_rows, field.type))
        elif field.name == "_before":
            columns.append(pa.nulls(moved.num_rows, field.type))
        else:
            columns.append(member(before, field.name) if field.name in children else moved[field.name])
    return pa.table(columns, schema=moved.schema)
