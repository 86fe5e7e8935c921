"""A message format of your own, in its smallest complete form: the row as it is now, its table, and what happened.

Both functions return texts that are JSON on one line. A retry sends a batch again, so they return the same each time.
The suite in sluice.formats.contract proves that a format keeps to this.
"""

from __future__ import annotations

from sluice.formats.common import Format, Statement, after_of, converted, json_text
from sluice.formats.maxwell import value_of
from sluice.model.changes import Change


def row(change: Change, source: str) -> tuple[str, ...]:
    """Return the document of a change: one, or for an update at most two, of the row before it and of the row after it.

    A column that the log lacks is in neither image; NULL is None.
    """
    image = change.before if change.after is None else after_of(change)
    document = {
        "source": source,
        "table": str(change.table),
        "op": change.op,  # i, u, d; r: read by a snapshot
        "at_us": change.commit_time_us,
        "row": converted(change, image, value_of),  # dates as the server prints them, bytes in Base64
    }
    return (json_text(document),)


def statement(ddl: Statement, source: str) -> tuple[str, ...]:
    """Return the documents of a statement that changed definitions; () for none."""
    return (json_text({"source": source, "tables": [str(table) for table in ddl.tables], "sql": ddl.sql}),)


FORMAT = Format(row, statement)
