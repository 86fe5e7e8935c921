"""The tables of a target: what the server says of them, and the statements that make and extend them."""

# ruff: noqa: S608 - identifiers and texts are quoted

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sluice.errors import MappingError
from sluice.model.column_types import ColumnType
from sluice.model.planned import PlannedColumn, PlannedTable
from sluice.model.tables import TableId
from sluice.targets.clickhouse.client import Client
from sluice.targets.clickhouse.column_types import HeldType, held_type, own_type, takes, unescaped
from sluice.targets.clickhouse.place import Place
from sluice.targets.clickhouse.sql import literal, name, names, table_name
from sluice.targets.schema.names import require_names

VERSION, DELETED, WRITER = "_sluice_version", "_sluice_deleted", "_sluice_writer"
OWN: Mapping[str, str] = {VERSION: "UInt64", DELETED: "UInt8", WRITER: "LowCardinality(String)"}
"""Sluice's columns of a table with the newest row of each key."""
ENVELOPE: Mapping[str, str] = {
    "_op": "LowCardinality(String)", "_batch": "UInt64", "_seq": "UInt64", "_row": "UInt64", "_part": "UInt32",
    "_txn": "UInt64", "_txn_row": "UInt64", "_commit_time": "DateTime64(6, 'UTC')", "_file": "LowCardinality(String)",
    "_offset": "UInt64", "_gtid": "String", "_origin": "UInt64", "_before": "Nullable(String)",
    "_delivery": "UInt64", VERSION: "UInt64", WRITER: "LowCardinality(String)",
}  # fmt: skip
"""Sluice's columns of a table of changes. ``_batch``, ``_seq``, ``_row`` and ``_part`` together identify a change,
and are the order of the log. ``_before``: the row before the change, as JSON.
"""
CHANGE_KEY = ("_batch", "_seq", "_row", "_part")
_WINDOW = 10_000
"""Tokens of inserts that a table remembers."""
_FENCE = re.compile(rf"CONSTRAINT `?(\w+)`? CHECK \({WRITER} != '((?:[^'\\]|\\.)*)'\) OR \({VERSION} >= (\d+)\)")
_PLAIN = re.compile(r"`((?:[^`\\]|\\.)*)`|([A-Za-z_]\w*)")
_AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class HeldColumn:
    """A column of a table that is there."""

    name: str
    type: HeldType
    key: bool = False


@dataclass(frozen=True, slots=True)
class HeldTable:
    """A table that is there.

    Attributes:
        columns: the user's, by name. own: Sluice's, name -> type. key: columns by which it is sorted; None: it is
            sorted by expressions.
        engine, settings: as the server writes them. fences: constraints by which older writers are shut out: name ->
            (writer, version).
    """

    table: TableId
    columns: Mapping[str, HeldColumn]
    own: Mapping[str, str]
    key: tuple[str, ...] | None
    engine: str = ""
    settings: str = ""
    fences: Mapping[str, tuple[str, int]] = field(default_factory=dict)

    def fence_of(self, writer: str) -> int:
        """Return the version below which rows of a writer are refused."""
        return max((version for owner, version in self.fences.values() if owner == writer), default=0)


def held_tables(client: Client, tables: Iterable[TableId], *, every: bool) -> dict[TableId, HeldTable]:
    """Return those of the tables that are there."""
    wanted_tables, existing_tables = sorted(set(tables), key=str), {}
    own = ENVELOPE if every else OWN
    for first in range(0, len(wanted_tables), _AT_ONCE):
        table_list = ", ".join(
            f"({literal(place.schema)}, {literal(place.table)})" for place in wanted_tables[first : first + _AT_ONCE]
        )
        columns: dict[TableId, list[tuple[str, str, bool]]] = {}
        statement = (
            "SELECT database, table, name, type, is_in_sorting_key FROM system.columns "
            f"WHERE (database, table) IN ({table_list}) ORDER BY database, table, position FORMAT JSONCompactEachRow"
        )
        for database, table, column, declared, key in client.ask("reading columns", statement).rows:
            columns.setdefault(TableId(database, table), []).append((column, declared, bool(int(key))))
        statement = (
            "SELECT database, name, engine, engine_full, sorting_key, create_table_query FROM system.tables "
            f"WHERE (database, name) IN ({table_list}) FORMAT JSONCompactEachRow"
        )
        for database, table, engine, engine_full, sorted_by, create in client.ask("reading tables", statement).rows:
            place = TableId(database, table)
            rows = columns.get(place, [])
            fences = {label: (unescaped(owner), int(version)) for label, owner, version in _FENCE.findall(create)}
            existing_tables[place] = HeldTable(
                place,
                {column: HeldColumn(column, held_type(kind), key) for column, kind, key in rows if column not in own},
                {column: kind for column, kind, _ in rows if column in own},
                _key(sorted_by),
                engine_full.partition(" ")[0] if engine_full.startswith(engine) else engine,
                engine_full,
                fences,
            )
    return existing_tables


def _key(sorted_by: str) -> tuple[str, ...] | None:
    key, rest = [], sorted_by.strip()
    rest = rest[1:-1].strip() if rest.startswith("(") and rest.endswith(")") else rest
    while rest:
        match = _PLAIN.match(rest)
        if match is None:
            return None
        key.append(unescaped(match[1]) if match[1] is not None else match[2])
        rest = rest[match.end() :].strip()
        if rest and not rest.startswith(","):
            return None
        rest = rest[1:].strip()
    return tuple(key)


# -- statements --------------------------------------------------------------------------------------------------------
def column_name(place: Place, column: str) -> str:
    """Return the name of a user's column: in a table of changes one that Sluice has gets a ``$`` before it."""
    return f"${column}" if place.every and (column in ENVELOPE or column.startswith("$")) else column


def declared_type(place: Place, table: TableId, column: str, sent_type: ColumnType, *, nullable: bool) -> str:
    """Return the type of a column that is made: that of the options, or the proposed one."""
    wanted_type = place.options.types.get(f"{table}.{column}")
    column_type = held_type(wanted_type or own_type(sent_type, place.options.enums))
    return column_type.as_nullable(column_type.nullable or nullable)


def sent_columns(plan: PlannedTable) -> tuple[PlannedColumn, ...]:
    """Return the columns that are sent; generated ones are the source's own."""
    return tuple(column for column in plan.columns if not column.generated)


def columns_of(place: Place, plan: PlannedTable) -> dict[str, str]:
    """Return the user's columns of the table of a planned one: name -> type."""
    return {
        column_name(place, column.name): declared_type(
            place,
            plan.target,
            column.name,
            column.sent_type,
            nullable=place.every or (column.nullable and not column.key),
        )
        for column in sent_columns(plan)
    }


def create_table(place: Place, table: TableId, columns: Mapping[str, str], key: Sequence[str]) -> str:
    """Return the statement that makes a table."""
    options, kind = place.options, "Replicated" if place.options.replicated else ""
    window = f"{'' if options.replicated else 'non_'}replicated_deduplication_window"
    settings: dict[str, str | int] = {window: _WINDOW}
    if not options.replicated:  # a crash of the machine must not lose what the checkpoint says is there
        settings |= {"fsync_after_insert": 1, "fsync_part_directory": 1}
    settings |= options.settings
    own, sort = (ENVELOPE, CHANGE_KEY) if place.every else (OWN, tuple(key))
    engine = "MergeTree" if place.every else f"ReplacingMergeTree({VERSION}, {DELETED})"
    lines = [f"    {name(column)} {declared}" for column, declared in {**columns, **own}.items()]
    by = options.partition_by.get(str(table))
    settings_sql = ", ".join(
        f"{setting} = {value if isinstance(value, int) else literal(value)}" for setting, value in settings.items()
    )
    return "\n".join([
        f"CREATE TABLE IF NOT EXISTS {table_name(table)} (",
        ",\n".join(lines),
        f") ENGINE = {kind}{engine}",
        *([f"PARTITION BY {by}"] if by else []),
        f"ORDER BY ({names(sort)})",
        f"SETTINGS {settings_sql}",
    ])


def add_columns(table: TableId, columns: Mapping[str, str]) -> str:
    """Return the statement that adds columns."""
    parts = ", ".join(f"ADD COLUMN IF NOT EXISTS {name(column)} {declared}" for column, declared in columns.items())
    return f"ALTER TABLE {table_name(table)} {parts}"


def create_view(view: TableId, table: TableId) -> str:
    """Return the statement that makes the view with the newest rows of a table."""
    return f"CREATE OR REPLACE VIEW {table_name(view)} AS SELECT * EXCEPT ({names(OWN)}) FROM {table_name(table)} FINAL"


def make_statements(place: Place, plan: PlannedTable) -> list[str]:
    """Return the statements that make the table of a planned one, its database and its view."""
    view = place.view_of(plan.target)
    return [
        f"CREATE DATABASE IF NOT EXISTS {name(plan.target.schema)}",
        create_table(place, plan.target, columns_of(place, plan), plan.key),
        *([create_view(view, plan.target)] if view is not None else []),
    ]


# -- what fits ---------------------------------------------------------------------------------------------------------
def require(place: Place, existing_tables: Mapping[TableId, HeldTable], plan: PlannedTable) -> HeldTable:
    """Return the table of a planned one. Raises MappingError unless its rows can be written."""
    held_table, apply = existing_tables.get(plan.target), f"`sluice check {place.pipeline} --apply`"
    if held_table is None:
        raise MappingError(
            f"the target has no table {plan.target} for {plan.source}", where=str(plan.target), hint=f"{apply} makes it"
        )
    problem = unfit(place, held_table)
    if problem:
        raise MappingError(
            f"table {plan.target} {problem}", where=str(plan.target), hint="name another table, or remove it"
        )
    sent = sent_columns(plan)
    for column in sent if not place.every else ():
        if column.name in OWN:
            raise MappingError(
                f"column {column.name!r} of {plan.source} has the name of one that Sluice keeps in each table",
                where=f"{plan.target}.{column.name}",
                hint="give it another name: mapping.columns.rename",
            )
    by_name = {column.name: column_name(place, column.name) for column in sent}
    present_columns = [column for column, named in by_name.items() if named in held_table.columns]
    key = plan.key if place.every else held_table.key or ()
    require_names(
        plan,
        present_columns,
        key,
        column_hint=f"{apply} adds it, or leave it out: mapping.columns.exclude",
        key_hint="name the same key in the mapping: key; or remove the table and copy it anew",
    )
    for column in sent:
        if not takes(column.sent_type, held_table.columns[by_name[column.name]].type):
            raise does_not_fit(plan, column, held_table.columns[by_name[column.name]])
    parted = place.options.partition_by.get(str(plan.target), "")
    others = {column.name for column in sent} - set(plan.key)
    for word in re.findall(r"\w+", parted) if not place.every else ():
        if word in others:
            raise MappingError(
                f"options.partition_by names {word!r}, which is no column of the key of {plan.target}",
                where=f"{plan.target}.{word}",
                hint="a row must not move to another partition while its key stays",
            )
    return held_table


def does_not_fit(plan: PlannedTable, column: PlannedColumn, stored: HeldColumn) -> MappingError:
    """Return the error for a column whose type cannot hold the values."""
    sql_type = column.sql_type or column.arrow_type
    return MappingError(
        f"column {stored.name!r} of {plan.target} is {stored.type.declared}, which cannot hold values of {sql_type}",
        where=f"{plan.target}.{stored.name}",
        hint="change its type (ALTER TABLE … MODIFY COLUMN), or leave the column out: mapping.columns.exclude",
    )


def unfit(place: Place, held_table: HeldTable) -> str:
    """Return why Sluice cannot write to a table; "" if it can."""
    own, engine = (ENVELOPE, "MergeTree") if place.every else (OWN, "ReplacingMergeTree")
    missing = [column for column in own if column not in held_table.own]
    if missing:
        changes_option = "latest" if place.every else "all"
        return f"has no column {missing[0]!r}: Sluice did not make it, or made it for changes: {changes_option}"
    if not re.match(rf"(Replicated|Shared)?{engine}\b", held_table.engine):
        return f"has the engine {held_table.engine}, and needs {engine}"
    if not place.every and not re.search(rf"ReplacingMergeTree\((?:.*, )?{VERSION}, {DELETED}\)", held_table.settings):
        return f"replaces rows by something else than ({VERSION}, {DELETED})"
    return "" if held_table.key is not None else "is sorted by expressions, so that its key is not known"


__all__ = [
    "CHANGE_KEY", "DELETED", "ENVELOPE", "OWN", "VERSION", "WRITER", "HeldColumn", "HeldTable", "add_columns",
    "column_name", "columns_of", "create_table", "create_view", "declared_type", "held_tables", "make_statements",
    "require", "sent_columns", "unfit",
]  # fmt: skip
