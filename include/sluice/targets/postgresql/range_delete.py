"""Make a range of keys equal to the source's: what the source does not have is deleted.

Only keys that both servers sort alike can be cut into the same ranges; for texts, listed keys are removed. The target
reads each value as text of its own column's type.
"""

# ruff: noqa: S608 - identifiers are quoted, values are literals made here

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import pyarrow as pa

from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.planned import PlannedColumn, PlannedTable
from sluice.postgresql.names import quoted, quoted_table, text_literal
from sluice.postgresql.type_names import pg_type
from sluice.targets.port import KeyRange, WriteResult
from sluice.targets.postgresql.catalog import ColumnInfo, TableInfo, is_arbiter
from sluice.targets.postgresql.keys import texts
from sluice.targets.postgresql.staging import ROWS, Stage, StagedColumn
from sluice.targets.sql import catalogs
from sluice.targets.sql.rows import sent_fields, spelt
from sluice.targets.sql.tables import TargetTable

K = ColumnKind
LISTED_KEYS = 1_000
SORTED_ALIKE: Mapping[ColumnKind, frozenset[str]] = {
    **dict.fromkeys((K.TINYINT, K.SMALLINT, K.MEDIUMINT, K.INT, K.BIGINT, K.YEAR),
        frozenset({"smallint", "integer", "bigint", "numeric"})),
    K.DECIMAL: frozenset({"numeric"}),
    K.DATE: frozenset({"date"}),
    K.DATETIME: frozenset({"timestamp without time zone"}),
    **dict.fromkeys((K.BINARY, K.VARBINARY), frozenset({"bytea"})),
}  # fmt: skip
TOLD_ALIKE: Mapping[ColumnKind, frozenset[str]] = {
    **SORTED_ALIKE,
    **dict.fromkeys((K.CHAR, K.VARCHAR), frozenset({"text", "character varying", "character"})),
}
"""The types that tell values of a kind apart as their bytes do, and are read back as the source wrote them.

Each server may sort texts in its own way.
"""
_OWN_ORDER = frozenset({"uuid", "timestamp with time zone", "bytea"})
"""The types whose values two servers of PostgreSQL sort alike, and write alike."""
_NUL = "\0"
"""The character that no text of PostgreSQL can have."""


def clear(stage: Stage, item: KeyRange) -> WriteResult:
    """Delete what the stretch holds beyond the kept keys. In a transaction.

    Raises LoadError, and what the driver raises.
    """
    table, cursor, item = stage.table, stage.cursor, spelt(stage.table, item)
    place = quoted_table(table.place)
    if not item.names:
        cursor.execute(f"DELETE FROM {place}")
        return WriteResult(deleted=int(cursor.rowcount), statements=1)
    statements = [f"DELETE FROM {place} AS t WHERE {condition}" for condition in stretches(table, item)]
    deleted = _but_kept(stage, item, statements) if statements else 0
    return WriteResult(deleted=deleted, statements=len(statements))


def _but_kept(stage: Stage, item: KeyRange, statements: Sequence[str]) -> int:
    """Run deletes of rows ``t``, but for those with a kept key. Keys that the target cannot hold keep nothing there."""
    assert item.kept is not None  # a range with keys
    fields = {name: field for field, name in sent_fields(item.kept.schema, stage.table)}
    columns = [StagedColumn.of(n, fields[name]) for n, name in enumerate(item.names)]
    spared_keys = stage.storable(item.kept, columns)
    if not spared_keys.num_rows:
        return sum(int(stage.cursor.execute(sql).rowcount) for sql in statements)
    same = " AND ".join(f"t.{quoted(n)} = {c.compared}" for n, c in zip(item.names, columns, strict=True))
    with stage.unordered(), stage.rows(spared_keys, columns) as staged:
        return sum(staged.run(f"{sql} AND NOT EXISTS (SELECT 1 FROM {ROWS} WHERE {same})") for sql in statements)


def stretches(table: TargetTable, item: KeyRange) -> list[str]:
    """Return conditions on ``t`` that together are the range, which is :func:`spelt`; none if no row can be in it."""
    types = dict(zip(table.columns, table.types, strict=True))

    def key(texts: Sequence[str]) -> str:
        return f"({', '.join(_constant(text, types[name]) for text, name in zip(texts, item.names, strict=False))})"

    def names(values: pa.Table) -> str:
        return f"({', '.join(f't.{quoted(name)}' for name in item.names[: values.num_columns])})"

    if item.listed is None:
        bounds = ((">=", item.lower), ("<=", item.upper), (">", item.after), ("<=", item.upto))
        bounds_set = [(sign, bound) for sign, bound in bounds if bound is not None]
        return [" AND ".join(f"{names(bound)} {sign} {key(*texts(bound))}" for sign, bound in bounds_set) or "TRUE"]
    able = [text for text in texts(item.listed) if not any(_NUL in text for text in text)]
    pieces = [able[i : i + LISTED_KEYS] for i in range(0, len(able), LISTED_KEYS)]
    return [f"{names(item.listed)} IN ({', '.join(map(key, some))})" for some in pieces]


def _constant(text: str, declared: str) -> str:
    """Return a value's text as a constant of the target's type."""
    kind = pg_type(declared)
    own = "bpchar" if kind.word == "character" else kind.sent  # has any length, and lets the column's index be used
    return f"CAST({text_literal(text)} AS {own})"


def replaceable(plan: PlannedTable, info: TableInfo | None, *, listed: bool = False) -> tuple[TargetTable | None, str]:
    """Return the table if the target compares the keys of ``plan`` as the source does and, unless they are ``listed``,
    sorts them so.

    Otherwise return None and why not.
    """
    return catalogs.replaceable(plan, info, partial(_otherwise, listed=listed), is_arbiter)


def is_alike(column_type: ColumnType, word: str, alike: Mapping[ColumnKind, frozenset[str]]) -> bool:
    """Return True if the type ``word`` of the target treats values as ``alike`` says for them, or is the source's own
    type.
    """
    own = bool(column_type.native) and pg_type(column_type.native).word == word and word in _OWN_ORDER
    return own or word in alike.get(column_type.kind, frozenset())


def _otherwise(column: PlannedColumn, own_column: ColumnInfo, *, listed: bool) -> str:
    """Return why values of a column are not those of the source or, unless they are listed, not in its order; "" if
    they are.
    """
    alike, does = (TOLD_ALIKE, "tell apart") if listed else (SORTED_ALIKE, "sort")
    word = pg_type(own_column.declared).word
    if not is_alike(column.sent_type, word, alike):
        return (
            f"column {column.name} is {own_column.declared}, which PostgreSQL may {does} otherwise than the source its "
            f"{column.sql_type}"
        )
    if not own_column.exact:
        return f"column {column.name} has the collation {own_column.collation}, to which different texts are equal"
    return ""
