"""A range of keys made equal to the source's: what the source does not have goes.

Only keys that both servers sort alike can be cut into the same ranges. Bounds come as literals of the source's dialect; the target reads each as
text of its own column's type.
"""

# ruff: noqa: S608 - identifiers are quoted, values are literals made here

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sluice.errors import LoadError
from sluice.model.column_types import ColumnKind
from sluice.model.planned import PlannedTable
from sluice.targets.base import KeyRange, WriteResult
from sluice.targets.postgresql.catalog import TableInfo
from sluice.targets.postgresql.column_types import pg_type, sent_type
from sluice.targets.postgresql.names import quoted, quoted_table
from sluice.targets.postgresql.staging import ROWS, Stage, StagedColumn
from sluice.targets.sql.rows import sent_fields
from sluice.targets.sql.tables import TargetTable

K = ColumnKind
LISTED_KEYS = 1_000
SORTED_ALIKE: Mapping[ColumnKind, frozenset[str]] = {
    **dict.fromkeys((K.TINYINT, K.SMALLINT, K.MEDIUMINT, K.INT, K.BIGINT, K.YEAR), frozenset({"smallint", "integer", "bigint", "numeric"})),
    K.DECIMAL: frozenset({"numeric"}),
    K.DATE: frozenset({"date"}),
    K.DATETIME: frozenset({"timestamp without time zone"}),
    **dict.fromkeys((K.BINARY, K.VARBINARY), frozenset({"bytea"})),
}  # fmt: skip
_HEX = re.compile(r"(_utf8mb4 )?[xX]'([0-9a-fA-F]*)'")
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e0)?")


def clear(stage: Stage, item: KeyRange) -> WriteResult:
    """Delete what the stretch holds beyond the kept keys. In a transaction. Raises LoadError, and what the driver raises."""
    table, cursor, item = stage.table, stage.cursor, spelt(stage.table, item)
    place = quoted_table(table.place)
    if not item.names:
        cursor.execute(f"DELETE FROM {place}")
        return WriteResult(deleted=int(cursor.rowcount), statements=1)
    deleted = sent = 0
    for condition in stretches(table, item):
        sql = f"DELETE FROM {place} AS t WHERE {condition}"
        sent += 1
        if item.kept is None or not item.kept.num_rows:
            cursor.execute(sql)
            deleted += int(cursor.rowcount)
            continue
        fields = {name: field for field, name in sent_fields(item.kept.schema, table)}
        columns = [StagedColumn.of(n, fields[name]) for n, name in enumerate(item.names)]
        same = " AND ".join(f"t.{quoted(n)} = {c.compared}" for n, c in zip(item.names, columns, strict=True))
        with stage.unordered(), stage.rows(item.kept, columns) as staged:
            deleted += staged.run(f"{sql} AND NOT EXISTS (SELECT 1 FROM {ROWS} WHERE {same})")
    return WriteResult(deleted=deleted, statements=sent)


def spelt(table: TargetTable, item: KeyRange) -> KeyRange:
    """The range with the names of the columns as the target spells them."""
    there = {name.casefold(): name for name in table.columns}
    return replace(item, names=tuple(there[name.casefold()] for name in item.names))


def stretches(table: TargetTable, item: KeyRange) -> list[str]:
    """Conditions on ``t`` that together are the range, which is :func:`spelt`."""
    types = dict(zip(table.columns, table.types, strict=True))

    def key(values: Sequence[str]) -> str:
        shown = [_literal(value, types[name], table) for name, value in zip(item.names, values, strict=False)]
        return f"({', '.join(shown)})"

    def names(values: Sequence[str]) -> str:
        return f"({', '.join(f't.{quoted(name)}' for name in item.names[: len(values)])})"

    if item.listed is None:
        bounds = ((">=", item.lower), ("<=", item.upper), (">", item.after), ("<=", item.upto))
        return [" AND ".join(f"{names(b)} {sign} {key(b)}" for sign, b in bounds if b) or "TRUE"]
    pieces = [item.listed[i : i + LISTED_KEYS] for i in range(0, len(item.listed), LISTED_KEYS)]
    return [f"{names(item.names)} IN ({', '.join(map(key, some))})" for some in pieces]


def _literal(literal: str, declared: str, table: TargetTable) -> str:
    """A literal of the source as a constant of the target's type. Raises LoadError for one that is not understood."""
    found = _HEX.fullmatch(literal)
    if found is not None:
        text = bytes.fromhex(found[2]).decode() if found[1] else rf"\x{found[2]}"
    elif _NUMBER.fullmatch(literal):
        text = literal.removesuffix("e0")
    elif literal[:1] == literal[-1:] == "'" and "'" not in literal[1:-1]:
        text = literal[1:-1]
    else:
        raise LoadError(
            f"the bound {literal[:100]} of a range of {table.table} is not understood",
            where=str(table.table),
            hint="copy the table without replacing: `sluice dump start` without --replace",
        )
    escaped = text.replace("'", "''")
    return f"CAST('{escaped}' AS {pg_type(declared).sent})"


def replaceable(plan: PlannedTable, info: TableInfo | None) -> tuple[TargetTable | None, str]:
    """The table, if the target sorts and compares the keys of ``plan`` as the source does; else None and why not."""
    if info is None:
        return None, f"the target has no table {plan.target}"
    there = {column.name.casefold(): column for column in info.columns}
    for column in plan.columns:
        mine = there.get(column.name.casefold())
        why = "" if mine is not None else f"it has no column {column.name}"
        if mine is not None and pg_type(mine.declared).word not in SORTED_ALIKE.get(
            sent_type(column).kind, frozenset()
        ):
            why = f"column {column.name} is {mine.declared}, which PostgreSQL may sort otherwise than the source its {column.sql_type}"
        if why:
            return None, f"{plan.target} at the target: {why}"
    key = tuple(there[name.casefold()].name for name in plan.key)
    if key and not any(one.arbiter and set(one.columns) == set(key) for one in info.keys):
        return None, f"{plan.target} at the target has no key ({', '.join(key)})"
    taking = [column for column in info.columns if not column.generated]
    others = tuple(
        dict.fromkeys(one.columns for one in info.keys if not (one.arbiter and set(one.columns) == set(key)))
    )
    return TargetTable(
        plan.target, tuple(c.name for c in taking), key, others, types=tuple(c.declared for c in taking)
    ), ""
