"""Compare the target's tables, from its dictionary, with what will be sent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sluice.errors import MappingError
from sluice.model.losses import Loss, together
from sluice.model.planned import PlannedColumn, PlannedTable
from sluice.model.tables import TableId
from sluice.targets.oracle.column_types import lost, made_type, oracle_type, own_type, takes
from sluice.targets.oracle.defaults import default_of
from sluice.targets.port import TableFinding, about_values
from sluice.targets.sql.catalogs import as_target
from sluice.targets.sql.names import quoted, quoted_table, refuse_long
from sluice.targets.sql.problems import Problem, applied, error_of, warning_of
from sluice.targets.sql.tables import TargetTable

LONGEST_BYTES = 128
"""Bytes of a name since version 12.2."""

OLDER_BYTES = 30
"""Bytes of a name before that, and while COMPATIBLE says an older version."""


@dataclass(frozen=True, slots=True)
class ColumnInfo:
    """A column.

    ``required``: an insert has to give it a value; ``fixed``: GENERATED ALWAYS AS IDENTITY; ``default``: it has a
    default other than NULL.
    """

    name: str
    declared: str
    nullable: bool = True
    required: bool = False
    generated: bool = False
    fixed: bool = False
    default: bool = False


@dataclass(frozen=True, slots=True)
class UniqueKey:
    """A unique constraint or index.

    Of one with an expression: all columns of the table.
    """

    name: str
    columns: tuple[str, ...]
    primary: bool = False


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A table; ``triggers``, ``foreign_keys``: names of those that are enabled."""

    columns: tuple[ColumnInfo, ...]
    keys: tuple[UniqueKey, ...]
    triggers: tuple[str, ...] = ()
    foreign_keys: tuple[str, ...] = ()
    temporary: bool = False

    @property
    def primary(self) -> str:
        """Name of the primary key, "" if there is none."""
        return next((key.name for key in self.keys if key.primary), "")


_AT_ONCE = 400
"""Tables in one question to the dictionary; the server takes 1,000 in a list."""
_TABLES = "SELECT owner, table_name, temporary FROM sys.all_tables WHERE (owner, table_name) IN ({places})"
_COLUMNS = (
    "SELECT owner, table_name, column_name, data_type, data_length, data_precision, data_scale, char_length, "
    "char_used, nullable, data_default, virtual_column FROM sys.all_tab_cols "
    "WHERE (owner, table_name) IN ({places}) AND hidden_column = 'NO' ORDER BY owner, table_name, column_id"
)
_IDENTITY = (
    "SELECT owner, table_name, column_name FROM sys.all_tab_identity_cols WHERE generation_type = 'ALWAYS' "
    "AND (owner, table_name) IN ({places})"
)
_CONSTRAINTS = (
    "SELECT k.owner, k.table_name, k.constraint_name, k.constraint_type, c.column_name "
    "FROM sys.all_constraints k JOIN sys.all_cons_columns c ON c.owner = k.owner "
    "AND c.constraint_name = k.constraint_name AND c.table_name = k.table_name "
    "WHERE k.constraint_type IN ('P', 'U') AND k.status = 'ENABLED' AND (k.owner, k.table_name) IN ({places}) "
    "ORDER BY k.owner, k.table_name, k.constraint_name, c.position"
)
_REFERENCES = (
    "SELECT owner, table_name, constraint_name FROM sys.all_constraints WHERE constraint_type = 'R' "
    "AND status = 'ENABLED' AND (owner, table_name) IN ({places}) ORDER BY constraint_name"
)
_REFERRED = (
    "SELECT p.owner, p.table_name, k.constraint_name FROM sys.all_constraints k JOIN sys.all_constraints p "
    "ON p.owner = k.r_owner AND p.constraint_name = k.r_constraint_name WHERE k.constraint_type = 'R' "
    "AND k.status = 'ENABLED' AND (p.owner, p.table_name) IN ({places}) ORDER BY k.constraint_name"
)
_INDEXES = (
    "SELECT i.table_owner, i.table_name, i.index_name, c.column_name FROM sys.all_indexes i "
    "JOIN sys.all_ind_columns c ON c.index_owner = i.owner AND c.index_name = i.index_name "
    "WHERE i.uniqueness = 'UNIQUE' AND i.index_type <> 'LOB' AND (i.table_owner, i.table_name) IN ({places}) "
    "ORDER BY i.table_owner, i.table_name, i.index_name, c.column_position"
)
_TRIGGERS = (
    "SELECT table_owner, table_name, trigger_name FROM sys.all_triggers WHERE status = 'ENABLED' "
    "AND (table_owner, table_name) IN ({places}) ORDER BY trigger_name"
)


def read_tables(cursor: Any, tables: Sequence[TableId]) -> dict[TableId, TableInfo]:
    """Read the definitions of the tables that exist, by id."""
    once = sorted(set(tables))
    infos: dict[TableId, TableInfo] = {}
    for start in range(0, len(once), _AT_ONCE):
        infos.update(_read(cursor, once[start : start + _AT_ONCE]))
    return infos


def _read(cursor: Any, tables: Sequence[TableId]) -> dict[TableId, TableInfo]:
    names = [name for table in tables for name in (table.schema, table.table)]
    places = ", ".join(["(%s, %s)"] * len(tables))

    def ask(query: str) -> list[tuple[Any, ...]]:
        return list(cursor.execute(query.format(places=places), names).fetchall())

    temporary_by_table = {TableId(owner, name): temporary == "Y" for owner, name, temporary in ask(_TABLES)}
    if not temporary_by_table:
        return {}
    always = {(TableId(owner, name), column) for owner, name, column in ask(_IDENTITY)}
    columns: dict[TableId, list[ColumnInfo]] = defaultdict(list)
    for owner, name, *rest in ask(_COLUMNS):
        table = TableId(owner, name)
        columns[table].append(_column(rest, fixed=(table, rest[0]) in always))
    keys = _keys(ask(_CONSTRAINTS), ask(_INDEXES), columns)
    triggers, references = _named(ask(_TRIGGERS)), _named([*ask(_REFERENCES), *ask(_REFERRED)])
    return {
        table: TableInfo(tuple(columns[table]), tuple(keys[table]), triggers[table], references[table], temporary)
        for table, temporary in temporary_by_table.items()
    }


def _named(rows: Sequence[tuple[Any, ...]]) -> dict[TableId, tuple[str, ...]]:
    names_by_table: dict[TableId, tuple[str, ...]] = defaultdict(tuple)
    for owner, table, name in rows:
        names_by_table[TableId(owner, table)] = (*names_by_table[TableId(owner, table)], str(name))
    return names_by_table


def _keys(
    constraints: Sequence[tuple[Any, ...]],
    indexes: Sequence[tuple[Any, ...]],
    columns: Mapping[TableId, Sequence[ColumnInfo]],
) -> dict[TableId, list[UniqueKey]]:
    keys: dict[TableId, list[UniqueKey]] = defaultdict(list)
    grouped: dict[tuple[TableId, str, bool], list[str]] = defaultdict(list)
    for owner, table, name, kind, column in constraints:
        grouped[TableId(owner, table), str(name), kind == "P"].append(str(column))
    for owner, table, name, column in indexes:
        grouped[TableId(owner, table), str(name), False].append(str(column))
    for (place, name, primary), names in sorted(grouped.items(), key=lambda item: not item[0][2]):
        column_names = {column.name for column in columns[place]}
        every = tuple(names) if set(names) <= column_names else tuple(column.name for column in columns[place])
        if all(set(key.columns) != set(every) for key in keys[place]):
            keys[place].append(UniqueKey(name, every, primary))
    return keys


def _column(row: Sequence[Any], *, fixed: bool) -> ColumnInfo:
    name, word, bytes_, precision, scale, characters, used, nullable, text, virtual = row
    generated, optional = virtual == "YES", nullable == "Y"
    default = (text or "NULL").strip().upper() != "NULL"
    required = not optional and not default and not generated and not fixed
    declared = _declared(word, bytes_, precision, scale, characters, used)
    return ColumnInfo(name, declared, optional, required, generated, fixed, default)


def _declared(word: str, bytes_: Any, precision: Any, scale: Any, characters: Any, used: str | None) -> str:
    """Return the type as a definition has it."""
    if word == "NUMBER":
        if precision is None:
            return "NUMBER" if scale is None else f"NUMBER(38,{int(scale)})"
        return f"NUMBER({int(precision)},{int(scale)})" if scale else f"NUMBER({int(precision)})"
    if word in {"VARCHAR2", "CHAR"}:
        return f"{word}({int(characters)} CHAR)" if used == "C" else f"{word}({int(bytes_)} BYTE)"
    if word in {"NVARCHAR2", "NCHAR"}:
        return f"{word}({int(characters)})"
    return f"RAW({int(bytes_)})" if word == "RAW" else str(word)


# -- comparing ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wanted:
    """The settings that come from the target's options and the server.

    They are: bytes of a VARCHAR2 at most; whether triggers may fire; how empty texts and dates that no calendar has
    are treated; bytes of a name at most.
    """

    string_bytes: int = 4_000
    fire: bool = False
    empty_strings: str = "refuse"
    zero_dates: str = "refuse"
    longest_bytes: int = LONGEST_BYTES

    def required(self, column: PlannedColumn) -> bool:
        """Return True if a new column is to be NOT NULL: not if NULL stands for an empty text."""
        if column.key:
            return True
        return not column.nullable and not self.may_be_null(column.sent_type.arrow_type)

    def may_be_null(self, arrow_type: Any) -> bool:
        """Return True if a value of this Arrow type that is not NULL may be NULL there."""
        word = str(arrow_type)
        if word in {"string", "large_string", "binary", "large_binary"}:
            return self.empty_strings == "null"
        return self.zero_dates == "null" and word.startswith(("timestamp", "date32"))


def compare(plan: PlannedTable, info: TableInfo | None, settings: Wanted) -> TargetTable:
    """Check one table. Raises MappingError with the statement that would fix it."""
    refuse_long(plan, settings.longest_bytes, "Oracle")
    if info is None:
        raise MappingError(
            f"the target has no table {plan.target} for {plan.source}",
            where=str(plan.target),
            hint=applied(create_table(plan, settings)),
        )
    for problem in _problems(plan, info, settings):
        if problem.severity == "error":
            where = f"{plan.target}.{problem.column}" if problem.column else str(plan.target)
            raise MappingError(
                f"{plan.target} at the target: {problem.why}",
                where=where,
                hint=problem.hint or problem.statement or None,
            )
    return as_target(plan, info)


def compare_all(
    plans: Sequence[PlannedTable], infos: Mapping[TableId, TableInfo], settings: Wanted
) -> dict[TableId, TargetTable]:
    """Compare all tables; several sources may be loaded into one target table.

    Raises MappingError for the first that does not fit.
    """
    return {plan.target: compare(plan, infos.get(plan.target), settings) for plan in plans}


def review(plans: Sequence[PlannedTable], infos: Mapping[TableId, TableInfo], settings: Wanted) -> list[TableFinding]:
    """Return everything to say about the planned tables, with the statements that correct it."""
    findings: list[TableFinding] = []
    for plan in plans:
        info = infos.get(plan.target)
        try:
            refuse_long(plan, settings.longest_bytes, "Oracle")
        except MappingError as error:
            findings.append(TableFinding("error", plan.target, "", error.message, hint=error.hint or ""))
            continue
        if info is None:
            why = f"the target has no such table for {plan.source}"
            findings.append(TableFinding("error", plan.target, "", why, create_table(plan, settings), absent=True))
            findings += [_loss_of(plan, column, settings) for column in plan.columns if _loss(column, settings)]
            findings += [
                TableFinding("error", plan.target, "", "the table is to have the source's comment", statement)
                for statement in comments_of(plan)
            ]
            continue
        findings += [problem.finding(plan.target) for problem in _problems(plan, info, settings)]
    return findings


def _loss(column: PlannedColumn, settings: Wanted) -> str:
    """Return what a new column loses of the values, "" for nothing."""
    sent_type, kind = column.sent_type, oracle_type(made_type(column, settings.string_bytes))
    return lost(sent_type, kind) if takes(sent_type, kind) and not column.generated else ""


def _loss_of(plan: PlannedTable, column: PlannedColumn, settings: Wanted) -> TableFinding:
    conversion = f"{column.sql_type or column.arrow_type} -> {made_type(column, settings.string_bytes)}"
    return about_values(plan.target, column.name, conversion, _loss(column, settings))


def _preset(column: PlannedColumn, settings: Wanted) -> str:
    """Return the source's DEFAULT and NOT NULL of a column that is added: without a default no table with rows accepts
    NOT NULL.
    """
    source, value = column.definition, column.default
    if source is None or value is None or source.default is None or source.generated is not None or column.wanted:
        return ""
    default = default_of(source, column.sent_type, value, settings.empty_strings, settings.zero_dates).later
    return f" DEFAULT {default}{' NOT NULL' if settings.required(column) else ''}" if default else ""


def _problems(plan: PlannedTable, info: TableInfo, settings: Wanted) -> list[Problem]:
    place = quoted_table(plan.target)
    if info.temporary:
        return [error_of("", "it is a temporary table, which keeps no rows", hint="write into another (mapping: to)")]
    problems = [*_guards(plan, info, settings)]
    by_name: dict[str, list[ColumnInfo]] = defaultdict(list)
    for stored in info.columns:
        by_name[stored.name.casefold()].append(stored)
    for column in plan.columns:
        if not column.generated:
            problems += _of_column(plan, column, by_name[column.name.casefold()], settings)
    sent = {column.name.casefold() for column in plan.columns if not column.generated}
    for stored in info.columns:
        if stored.required and stored.name.casefold() not in sent:
            why = f"column {stored.name!r} needs a value, and {plan.source} has no such column"
            alter = f"ALTER TABLE {place} MODIFY ({quoted(stored.name)}"
            problems.append(error_of(stored.name, why, hint=f"give it a default: {alter} DEFAULT …), or {alter} NULL)"))
        if not plan.key and stored.name.casefold() in sent and oracle_type(stored.declared).is_lob:
            why = (
                f"column {stored.name!r} is {stored.declared}, which Oracle does not compare, and rows of a table "
                "without a key are found by all of their values"
            )
            problems.append(
                error_of(stored.name, why, hint="give the table a key, or leave the column out: columns.exclude")
            )
    key = {name.casefold() for name in plan.key}
    if key and not any({c.casefold() for c in unique_key.columns} == key for unique_key in info.keys):
        own = [by_name[name.casefold()][0].name if by_name[name.casefold()] else name for name in plan.key]
        why = f"rows of {plan.source} are told apart by ({', '.join(plan.key)}), and the table has no such key"
        problems.append(error_of("", why, f"ALTER TABLE {place} ADD PRIMARY KEY ({', '.join(map(quoted, own))})"))
    return problems


def _guards(plan: PlannedTable, info: TableInfo, settings: Wanted) -> list[Problem]:
    """Return the problems of triggers and foreign keys: Oracle switches neither off for a session."""
    problems = []
    if info.foreign_keys:
        named = ", ".join(info.foreign_keys)
        why = f"the foreign keys {named} are checked for each row that is written, in no order of theirs"
        own = "; ".join(f"ALTER TABLE … DISABLE CONSTRAINT {quoted(name)}" for name in info.foreign_keys)
        problems.append(error_of("", why, hint=f"the source has checked them already: {own}"))
    if info.triggers and not settings.fire:
        named = ", ".join(info.triggers)
        why = f"the triggers {named} fire for rows that Sluice writes"
        off = "; ".join(f"ALTER TRIGGER {quoted(plan.target.schema)}.{quoted(name)} DISABLE" for name in info.triggers)
        problems.append(error_of("", why, hint=f"{off}; or options.triggers: fire, if they are meant for these rows"))
    return problems


def _of_column(
    plan: PlannedTable, column: PlannedColumn, candidates: Sequence[ColumnInfo], settings: Wanted
) -> list[Problem]:
    sent_type, place = column.sent_type, quoted_table(plan.target)
    own = made_type(column, settings.string_bytes)
    if not candidates:
        add = f"ALTER TABLE {place} ADD ({quoted(column.name)} {own}{_preset(column, settings)})"
        why = f"it has no column {column.name!r}, which {plan.source} has"
        hint = f"{applied(add)}; or leave it out: mapping.columns.exclude"
        return [error_of(column.name, why, add, hint, absent=True)]
    if len(candidates) > 1:
        names = ", ".join(repr(stored.name) for stored in candidates)
        why = f"the columns {names} differ in case only: {column.name!r} of {plan.source} may be either"
        return [error_of(column.name, why, hint="rename one of them")]
    [stored] = candidates
    modify = f"ALTER TABLE {place} MODIFY ({quoted(stored.name)}"
    change = f"{modify} {own})"
    if stored.generated:
        why = f"column {stored.name!r} is a virtual one: the source's values would never be written"
        hint = (
            f"drop it: ALTER TABLE {place} DROP COLUMN {quoted(stored.name)}; or leave it out: mapping.columns.exclude"
        )
        return [error_of(stored.name, why, hint=hint)]
    if stored.fixed:
        why = f"column {stored.name!r} is GENERATED ALWAYS AS IDENTITY, and takes no value"
        return [error_of(stored.name, why, f"{modify} GENERATED BY DEFAULT AS IDENTITY)")]
    kind, source_type = oracle_type(stored.declared), column.sql_type or column.arrow_type
    if not takes(sent_type, kind):
        why = f"column {stored.name!r} is {kind.declared}, which cannot hold values of {source_type}"
        return [error_of(stored.name, why, change)]
    why = lost(sent_type, kind)
    nulls = column.nullable or settings.may_be_null(sent_type.arrow_type)
    if not stored.nullable and nulls and not column.key:
        why, change = together(why if isinstance(why, Loss) else "", "NULL is refused"), f"{modify} NULL)"
    elif column.key or kind.declared == own:
        change = ""
    return [warning_of(stored.name, f"{source_type} -> {kind.declared}", why, change)] if why else []


def create_table(plan: PlannedTable, settings: Wanted) -> str:
    """Return a CREATE TABLE that the planned rows fit into."""
    lines = [
        f"{quoted(c.name)} {made_type(c, settings.string_bytes)}{' NOT NULL' if settings.required(c) else ''}"
        for c in plan.columns
        if not c.generated
    ]
    if plan.key:
        lines.append(f"PRIMARY KEY ({', '.join(map(quoted, plan.key))})")
    return f"CREATE TABLE {quoted_table(plan.target)} ({', '.join(lines)})"


def comments_of(plan: PlannedTable) -> list[str]:
    """Return the statements for the source's comments of a planned table."""
    created = plan.created
    if created is None:
        return []
    sent = {column.name.casefold(): column for column in plan.columns if not column.generated}
    statements = [comment_on_table(plan.target, created.comment)] if created.comment else []
    return statements + [
        comment_on_column(plan.target, sent[name.casefold()].name, comment)
        for name, comment in created.comments
        if name.casefold() in sent
    ]


def comment_on_table(table: TableId, comment: str) -> str:
    """Return the statement that sets the comment; "" removes it."""
    return f"COMMENT ON TABLE {quoted_table(table)} IS {_text(comment)}"


def comment_on_column(table: TableId, column: str, comment: str) -> str:
    """Return the statement that sets the comment; "" removes it."""
    return f"COMMENT ON COLUMN {quoted_table(table)}.{quoted(column)} IS {_text(comment)}"


def _text(value: str) -> str:
    return "'" + value.replace("\0", "").replace("'", "''") + "'"


__all__ = [
    "ColumnInfo", "TableInfo", "UniqueKey", "Wanted", "comment_on_column", "comment_on_table", "compare",
    "compare_all", "create_table", "own_type", "read_tables", "review",
]  # fmt: skip
