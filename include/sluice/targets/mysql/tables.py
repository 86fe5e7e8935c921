"""Compare the target's tables, from its information_schema, with what will be sent."""

# ruff: noqa: S608 - identifiers are quoted, values are parameters

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from sluice.errors import MappingError, UnsupportedType
from sluice.model.column_types import ColumnKind as K
from sluice.model.labels import declared, labels_of
from sluice.model.planned import PlannedColumn, PlannedTable
from sluice.model.tables import TableId, quoted, quoted_table
from sluice.mysql.client import create_table_of, without_counter
from sluice.mysql.ddl.ast import ColumnSpec, CreateTable
from sluice.mysql.ddl.lexer import Dialect
from sluice.mysql.ddl.parser import parse_statement
from sluice.mysql.exact_labels import exact_labels, may_hide
from sluice.mysql.literals import text_literal
from sluice.targets.mysql.column_types import Server, column_type, is_long_key, lost
from sluice.targets.mysql.extras import attributes, default_here, identified, index_lines, is_foreign
from sluice.targets.mysql.table_info import ColumnInfo, TableInfo, UniqueKey
from sluice.targets.mysql.uniqueness import padded_keys, refuse_merging
from sluice.targets.sql.problems import applied
from sluice.targets.sql.tables import TargetTable

Name = tuple[str, str]


def rows_about(
    cursor: Any, tables: Iterable[TableId], view: str, columns: str, more: str = ""
) -> tuple[Callable[[TableId], Name], dict[Name, list[tuple[Any, ...]]]]:
    """Read what a view of information_schema has about the schemas of ``tables``: how the server compares names, and
    the rows by name.

    One query. ``columns``: the first two are schema and table, and are not in the rows; ``more``: follows the condition
    on the schema.
    """
    name, (rows_by_name,) = views_about(cursor, tables, (view, columns, more))
    return name, rows_by_name


def views_about(
    cursor: Any, tables: Iterable[TableId], *views: tuple[str, str, str]
) -> tuple[Callable[[TableId], Name], list[dict[Name, list[tuple[Any, ...]]]]]:
    """Read :func:`rows_about` for several views (view, columns, more), in one round trip."""
    schemas = sorted({table.schema for table in tables})
    places = ", ".join(["%s"] * len(schemas))
    answers = cursor.connection.ask_all([
        cursor.mogrify(
            f"SELECT @@lower_case_table_names, {columns} FROM information_schema.{view} "
            f"WHERE {columns.partition(',')[0]} IN ({places}) {more}",
            schemas,
        )
        for view, columns, more in views
    ])
    fold = any(rows[0][0] for rows in answers if rows)

    def name(table: TableId) -> Name:
        return (table.schema.casefold(), table.table.casefold()) if fold else (table.schema, table.table)

    rows_of_views: list[dict[Name, list[tuple[Any, ...]]]] = []
    for rows in answers:
        by_name: dict[Name, list[tuple[Any, ...]]] = defaultdict(list)
        for _, schema, table, *rest in rows:
            by_name[name(TableId(schema, table))].append(tuple(rest))
        rows_of_views.append(by_name)
    return name, rows_of_views


def read_tables(cursor: Any, tables: Sequence[TableId]) -> dict[TableId, TableInfo]:
    """Read the existing tables, by the ids asked for, in one round trip."""
    if not tables:
        return {}
    name, (columns, indexes, kinds) = views_about(
        cursor, tables,
        ("columns",
         "table_schema, table_name, column_name, is_nullable, column_default IS NULL, extra, column_type, "
         "character_set_name, collation_name, COALESCE(column_default, 'NULL') = 'NULL'",
         "ORDER BY table_schema, table_name, ordinal_position"),
        ("statistics", "table_schema, table_name, index_name, column_name, sub_part",
         "AND non_unique = 0 ORDER BY table_schema, table_name, index_name <> 'PRIMARY', index_name, seq_in_index"),
        ("tables", "table_schema, table_name, table_type, engine", ""),
    )  # fmt: skip
    infos = {}
    for table in tables:
        if name(table) in columns:
            uniques: dict[str, list[tuple[str, int]]] = defaultdict(list)
            for index, column, prefix in indexes[name(table)]:
                uniques[index].append((column or "", int(prefix or 0)))
            kind, engine = next(iter(kinds[name(table)]), ("", ""))
            infos[table] = TableInfo(
                tuple(_with_exact_labels(cursor, table, _column(*row)) for row in columns[name(table)]),
                tuple(tuple(column for column, _ in key) for key in uniques.values()),
                tuple(UniqueKey(index, tuple(key)) for index, key in uniques.items()),
                view="VIEW" in str(kind).upper(),
                engine=str(engine or ""),
            )
    return infos


def _with_exact_labels(cursor: Any, table: TableId, column: ColumnInfo) -> ColumnInfo:
    """Return the column with label characters that information_schema does not print, if the target tells them."""
    labels = labels_of(column.sql_type)
    if not may_hide(labels, column.charset):
        return column

    def ask(sql: str) -> Sequence[tuple[Any, ...]]:
        cursor.execute(sql)
        return list(cursor.fetchall())

    family = column.sql_type.partition("(")[0].lower()
    with suppress(UnsupportedType):  # a value whose label is not known is refused when it comes
        return replace(
            column, sql_type=declared(family, exact_labels(ask, table, column.name, family, labels, column.charset))
        )
    return column


def _column(
    name: str,
    nullable: str,
    no_default: int,
    extra: str | None,
    declared: str,
    charset: str | None,
    collation: str | None,
    null_by_default: int,
) -> ColumnInfo:
    extra = (extra or "").lower()
    generated = "generated" in extra.replace("default_generated", "") or extra in {"virtual", "persistent", "stored"}
    required = nullable == "NO" and bool(no_default) and not generated and "auto_increment" not in extra
    counts = "auto_increment" in extra or (nullable == "YES" and bool(null_by_default) and not generated)
    return ColumnInfo(
        name,
        required,
        generated,
        declared,
        nullable == "YES",
        charset or "",
        collation or "",
        counts,
        "on update" in extra,
    )


def has_rows(cursor: Any, table: TableId) -> bool:
    """Return True if a table has a row."""
    return bool(cursor.execute(f"SELECT 1 FROM {quoted_table(table)} LIMIT 1"))


def default_collation(cursor: Any, table: TableId) -> str:
    """Return the collation that a table gives to columns without one, "" if there is no such table."""
    cursor.execute(
        "SELECT table_collation FROM information_schema.tables WHERE table_schema = %s AND table_name = %s",
        (table.schema, table.table),
    )
    row = cursor.fetchone()
    return str(row[0] or "") if row else ""


def definitions_of(cursor: Any, tables: Sequence[TableId]) -> list[str]:
    """Return SHOW CREATE TABLE of each, without its counter; "" for a table that does not exist."""
    definitions = []
    for table in tables:
        cursor.execute(
            "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = %s AND table_name = %s",
            (table.schema, table.table),
        )
        if not cursor.fetchone()[0]:
            definitions.append("")
            continue
        shown_table = create_table_of(cursor.connection, table)
        definitions.append(
            without_counter(shown_table.decode(errors="backslashreplace"))
        )  # definitions are only compared
    return definitions


def column_specs(cursor: Any, table: TableId, *, mariadb: bool) -> Mapping[str, ColumnSpec]:
    """Return the columns of a table as SHOW CREATE TABLE writes them, by their names in lower case.

    Raises DecodeError for a definition that is not understood.
    """
    [text] = definitions_of(cursor, [table])
    statement = parse_statement(text, table.schema, Dialect(mariadb))
    return {column.name.lower(): column for column in statement.columns} if isinstance(statement, CreateTable) else {}


def index_names(cursor: Any, table: TableId) -> frozenset[str]:
    """Return the names of a table's indexes, in lower case."""
    cursor.execute(
        "SELECT DISTINCT index_name FROM information_schema.statistics WHERE table_schema = %s AND table_name = %s",
        (table.schema, table.table),
    )
    return frozenset(str(name).lower() for (name,) in cursor.fetchall())


def compare(plan: PlannedTable, info: TableInfo | None, server: Server, *, columns: bool = True) -> TargetTable:
    """Check one table. Raises MappingError with the statement that would fix it.

    ``columns`` False: missing ones are somebody else's.
    """
    if info is None:
        raise MappingError(
            f"the target has no table {plan.target} for {plan.source}",
            where=str(plan.target),
            hint=applied(create_table(plan, server)),
        )
    if info.view:
        raise MappingError(
            f"{plan.target} at the target is a view: rows are told apart by a key, and it has none",
            where=str(plan.target),
            hint="write into its table (mapping: to), or make it a table",
        )
    present = {column.name.casefold(): column for column in info.columns}
    for column in plan.columns:
        target_column = present.get(column.name.casefold())
        if target_column is not None and target_column.generated and not column.generated:
            raise MappingError(
                f"column {column.name!r} of table {plan.target} at the target is a generated one: the values that "
                f"{plan.source} has in it would never be written",
                where=f"{plan.target}.{column.name}",
                hint=f"drop it: ALTER TABLE {quoted_table(plan.target)} DROP COLUMN {quoted(target_column.name)}; the "
                "next attempt stops for the missing column, and says how it is added as a plain one, and then copied; "
                "or leave it out: mapping.columns.exclude",
            )
        if columns and column.name.casefold() not in present and not column.generated:
            raise MappingError(
                f"table {plan.target} at the target has no column {column.name!r}, which {plan.source} has",
                where=f"{plan.target}.{column.name}",
                hint=f"{applied(add_column(plan, column, present, server))}; or leave it out: mapping.columns.exclude",
            )
    sent = {column.name.casefold() for column in plan.columns}
    for info_column in info.columns:
        if info_column.required and info_column.name.casefold() not in sent:
            raise MappingError(
                f"column {info_column.name!r} of table {plan.target} at the target needs a value, and {plan.source} "
                "has no such column",
                where=f"{plan.target}.{info_column.name}",
                hint=f"give it a default: ALTER TABLE {quoted_table(plan.target)} ALTER COLUMN "
                f"{quoted(info_column.name)} SET DEFAULT …;",
            )
    key = tuple(present[name.casefold()].name if name.casefold() in present else name for name in plan.key)
    identity = {name.casefold() for name in key}
    keys = [unique for unique in info.unique_keys if {c.casefold() for c in unique} == identity]
    if key and not keys:
        raise MappingError(
            f"rows of {plan.source} are told apart by ({', '.join(key)}), and table {plan.target} at the target has "
            "no such key",
            where=str(plan.target),
            hint=f"add it: ALTER TABLE {quoted_table(plan.target)} ADD PRIMARY KEY ({', '.join(map(quoted, key))});",
        )
    refuse_merging(plan, info, server)
    others = tuple(
        tuple(name for name, _ in unique.parts)
        for unique in info.keys
        if {name.casefold() for name, _ in unique.parts} != identity or any(prefix for _, prefix in unique.parts)
    )
    return replace(target_table(plan, info, key, others), padded=padded_keys(plan, info))


def target_table(
    plan: PlannedTable, info: TableInfo, key: tuple[str, ...], others: tuple[tuple[str, ...], ...]
) -> TargetTable:
    """Return the table with the columns that take a value."""
    taking = [c for c in info.columns if not c.generated]
    columns = {c.name.casefold(): c for c in info.columns}
    alike = not any(
        lost(c, columns[c.name.casefold()]) for c in plan.key_columns if c.name.casefold() in columns
    )  # otherwise only a strict session prevents that a key compares as another value
    computed = {c.name.casefold() for c in plan.columns if c.generated and alike}
    return TargetTable(
        plan.target,
        tuple(c.name for c in taking),
        key,
        others,
        types=tuple(c.sql_type for c in taking),
        clocks=tuple(c.name for c in taking if c.clock),
        computed=tuple(c.name for c in info.columns if c.generated and c.name.casefold() in computed),
    )


def compare_all(
    plans: Sequence[PlannedTable], infos: Mapping[TableId, TableInfo], server: Server
) -> dict[TableId, TargetTable]:
    """Compare all tables; several sources may be loaded into one target table.

    Raises MappingError for the first that does not fit.
    """
    return {plan.target: compare(plan, infos.get(plan.target), server) for plan in plans}


_NEEDS_A_VALUE = frozenset({K.DATE, K.DATETIME, K.TIMESTAMP, K.GEOMETRY, K.VECTOR})
"""The types whose new NOT NULL column a table with rows refuses without a default: a strict server does not accept
their implied value.
"""


def add_column(plan: PlannedTable, column: PlannedColumn, target_columns: Collection[str], server: Server) -> str:
    """Return the ALTER TABLE that adds a column as the source defines it: with NOT NULL and DEFAULT, as far as known,
    and at its place.

    ``target_columns``: those that the target has, case folded.
    """
    source, words = column.definition, column_type(column, server)
    foreign = is_foreign(plan.dialect)
    keeps_clauses = source is not None and source.generated is None and not column.wanted and not foreign
    default = source.default if source is not None and keeps_clauses else None
    nullable = column.nullable if source is None else source.nullable
    if foreign:
        has_default = bool(default_here(column).later) or column.value_type.kind not in _NEEDS_A_VALUE
        words += f" {attributes(column, nullable=nullable or not has_default)}"
    elif not nullable and (default is not None or column.value_type.kind not in _NEEDS_A_VALUE):
        words += " NOT NULL"
    elif column.sql_type.lower().startswith("timestamp"):
        words += " NULL"  # a server without explicit_defaults_for_timestamp would make it NOT NULL
    if default is not None:
        words += f" DEFAULT {default}"
    if source is not None and keeps_clauses and source.on_update:
        words += f" ON UPDATE {source.on_update}"
    words += _place(plan, column, target_columns)
    return f"ALTER TABLE {quoted_table(plan.target)} ADD COLUMN {quoted(column.name)} {words}"


def _place(plan: PlannedTable, column: PlannedColumn, target_columns: Collection[str]) -> str:
    """Return AFTER and the column that it follows at the source; earlier columns that the target also lacks are added
    before it.
    """
    number = plan.columns.index(column)
    for earlier in reversed(plan.columns[:number]):
        if earlier.name.casefold() in target_columns or not earlier.generated:
            return f" AFTER {quoted(earlier.name)}"
    return "" if number else " FIRST"


def create_table(plan: PlannedTable, server: Server) -> str:
    """Return a CREATE TABLE that the planned rows fit into.

    Of a source of another dialect, it has the defaults, comments and indexes that this server can have, as far as they
    are known.
    """
    foreign = is_foreign(plan.dialect)
    plan = identified(plan) if foreign else plan
    columns = [column for column in plan.columns if not column.generated]
    long = max(1, sum(map(is_long_key, columns)))
    lines = []
    for column in columns:
        required = bool(column.key) or not column.nullable
        more = f" {attributes(column, nullable=not required)}" if foreign else " NOT NULL" if required else ""
        lines.append(f"{quoted(column.name)} {column_type(column, server, key_parts=long)}{more}")
    if plan.key:
        lines.append(f"PRIMARY KEY ({', '.join(map(quoted, plan.key))})")
    options = ""
    if foreign and plan.created is not None:
        lines += index_lines(plan.created.indexes, {column.name.casefold(): column for column in columns}).values()
        options = f" COMMENT = {text_literal(plan.created.comment)}" if plan.created.comment else ""
    return f"CREATE TABLE {quoted_table(plan.target)} ({', '.join(lines)}){options}"
