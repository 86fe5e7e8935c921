"""The view of rules that work on whole tables: the user's columns, and Sluice's in a form that is hard to misuse.

=============  ===================================================================================================
``_row``       number of the row; has to stay, since it says what row a result came from
``_op``        i, u or d, after the batch was merged
``_before``    struct: the row as it was before the batch; null for inserts; where ``_image`` is ``before``, that row
``_image``     ``after``, or ``before`` for the row that the rule is shown as it was (see RuleContext.image)
``_commit_ts`` when the source committed the last change, UTC; ``_seq`` its number in the batch
``_origin``    where the last change was made: a server's id, or the number of the pipeline that loaded it; 0: not known
``_table``     not there: a rule adds it to send rows to another table (``schema.table``; null: their own)
=============  ===================================================================================================
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.model.tables import TableId, one_chunk
from sluice.rules import images

_KEPT = ("_op", "_seq", "_commit_ts", "_origin")


def view(rows: pa.Table) -> pa.Table:
    """Return IMAGE_ROWS as a rule sees them."""
    rows = with_origin(rows).combine_chunks()
    before = before_images(rows)
    columns = {name: rows[name] for name in (*images.user_columns(rows.schema), *_KEPT)}
    fields = [rows.schema.field(name) for name in columns]
    return pa.table(
        [
            *columns.values(),
            before,
            pc.if_else(pc.equal(rows["_image"], images.SHADOW), "before", "after"),
            pa.array(np.arange(rows.num_rows, dtype=np.int64)),
        ],
        schema=pa.schema([
            *fields,
            pa.field("_before", before.type),
            pa.field("_image", pa.string()),
            pa.field("_row", pa.int64()),
        ]),
    )


def before_images(rows: pa.Table) -> pa.StructArray:
    """Return each row as it was before the batch, as a rule sees it.

    The image ``before`` has itself there, so that a rule which passes only what changed passes no such image: nothing
    leaves the target. A column that an earlier rule took away, or gave another type, is null there.
    """
    before = one_chunk(rows["_before"])
    shadow = one_chunk(pc.equal(rows["_image"], images.SHADOW))
    if not pc.any(shadow).as_py() or not before.type.num_fields:
        return before
    children = []
    for number, field in enumerate(before.type):
        place = rows.schema.get_field_index(field.name)
        same = place >= 0 and rows.schema.field(place).type == field.type
        own = one_chunk(rows.column(place)) if same else pa.nulls(len(before), field.type)
        children.append(pc.if_else(shadow, own, before.field(number)))
    absent = pc.and_not(before.is_null(), shadow)
    return pa.StructArray.from_arrays(children, fields=list(before.type), mask=absent)


def with_origin(rows: pa.Table) -> pa.Table:
    """Add ``_origin`` to rows that lack it.

    It is 0 for rows that came from no log (a verification reads rows), and for those of an older file.
    """
    if "_origin" in rows.schema.names:
        return rows
    return rows.append_column(pa.field("_origin", pa.uint32()), pa.array(np.zeros(rows.num_rows, np.uint32)))


def by_table(rows: pa.Table, names: pa.ChunkedArray, own: TableId) -> dict[TableId, pa.Table]:
    """Divide rows by the table that ``_table`` names. The rule's own table is always among them."""
    names = names.cast(pa.string()).combine_chunks()
    away = pc.is_valid(names)
    table = {own: rows.filter(pc.invert(away))}
    for name in pc.unique(names).drop_null().to_pylist():
        place = table_id(name, own)
        part = rows.filter(pc.fill_null(pc.equal(names, name), False))
        table[place] = pa.concat_tables([table[place], part]) if place in table else part
    return table


def table_id(name: str, own: TableId) -> TableId:
    """Parse ``schema.table``, or the name of a table in the schema of ``own``."""
    schema, dot, table = name.partition(".")
    return TableId(schema, table) if dot else TableId(own.schema, name)
