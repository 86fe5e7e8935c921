"""Whether rows of a batch may have one unique value."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from sluice.targets.sql.rows import sent_fields
from sluice.targets.sql.tables import TargetTable


def may_meet(table: TargetTable, rows: pa.Table) -> bool:
    """Return False if no two of ``rows`` have one unique value, whatever the collations are."""
    sent = {name.casefold(): field.name for field, name in sent_fields(rows.schema, table)}
    for key in table.unique_keys:
        names = [sent.get(column.casefold()) for column in key]
        values = [_told_apart(rows[name].combine_chunks()) if name is not None else None for name in names]
        if any(value is None for value in values):
            return True
        key_values = pa.table(
            values, names=[str(number) for number in range(len(values))]
        ).drop_null()  # any number of rows may have NULL
        if key_values.group_by(key_values.column_names).aggregate([]).num_rows < key_values.num_rows:
            return True
    return False


def _told_apart(values: pa.Array) -> pa.Array | None:
    """Return values that differ if no collation compares two of them as equal; None if it could for others."""
    if pa.types.is_floating(values.type):
        return pc.add(values, 0.0)  # -0 is 0
    if not pa.types.is_string(values.type):
        return None if pa.types.is_nested(values.type) or pa.types.is_dictionary(values.type) else values
    if pc.any(pc.match_substring_regex(values, "[^ -~]")).as_py():
        return None
    return pc.ascii_lower(pc.ascii_rtrim(values, " "))
