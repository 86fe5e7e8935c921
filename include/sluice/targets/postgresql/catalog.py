"""Compare the target's tables, from its catalogs, with what will be sent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sluice.errors import MappingError
from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.losses import Loss, together
from sluice.model.planned import PlannedColumn, PlannedTable
from sluice.model.tables import TableId
from sluice.postgresql.names import LONGEST_BYTES, quoted, quoted_table
from sluice.postgresql.type_names import LABEL, pg_type
from sluice.targets.port import TableFinding, about_values
from sluice.targets.postgresql import extras
from sluice.targets.postgresql.collations import NO_COLLATIONS, Collation, Collations, clause
from sluice.targets.postgresql.column_types import is_sent, lost, made_type, takes
from sluice.targets.postgresql.defaults import default_of
from sluice.targets.sql.catalogs import as_target
from sluice.targets.sql.names import refuse_long
from sluice.targets.sql.problems import Problem, applied, error_of, warning_of
from sluice.targets.sql.tables import Reference, TargetTable


@dataclass(frozen=True, slots=True)
class ColumnInfo:
    """A column; ``required``: an insert has to give it a value; ``fixed``: GENERATED ALWAYS AS IDENTITY; ``exact``:
    equal texts are the same.
    """

    name: str
    declared: str
    nullable: bool = True
    required: bool = False
    generated: bool = False
    fixed: bool = False
    collation: str = ""
    exact: bool = True


@dataclass(frozen=True, slots=True)
class UniqueKey:
    """A unique index; ``arbiter``: ON CONFLICT can use it.

    Of one with an expression, a condition or an exclusion: all columns of the table.
    """

    name: str
    columns: tuple[str, ...]
    arbiter: bool
    primary: bool = False


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A table; ``kind``: pg_class.relkind; ``triggers``: (name, tgenabled) of the user's; ``guarded``: row security is
    on for this login.
    """

    kind: str
    columns: tuple[ColumnInfo, ...]
    keys: tuple[UniqueKey, ...]
    triggers: tuple[tuple[str, str], ...] = ()
    foreign_keys: tuple[str, ...] = ()
    guarded: bool = False

    @property
    def primary(self) -> str:
        """Name of the primary key, "" if there is none."""
        return next((key.name for key in self.keys if key.primary), "")


_PLACES = "(SELECT * FROM unnest(%s::text[], %s::text[]))"
_TABLES = f"""SELECT n.nspname, c.relname, c.oid, c.relkind, row_security_active(c.oid),
  ARRAY(SELECT ARRAY[t.tgname::text, t.tgenabled::text] FROM pg_trigger t WHERE t.tgrelid = c.oid AND NOT t.tgisinternal AND t.tgenabled <> 'D'),
  ARRAY(SELECT f.conname::text FROM pg_constraint f WHERE f.contype = 'f' AND c.oid IN (f.conrelid, f.confrelid))
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE (n.nspname, c.relname) IN {_PLACES} AND c.relkind IN ('r', 'p', 'v', 'm', 'f')"""  # noqa: E501, S608
_COLUMNS = """SELECT a.attrelid, a.attname, t.typtype, b.typtype, NOT (a.attnotnull OR t.typnotnull),
  a.atthasdef OR t.typdefault IS NOT NULL,
  a.attidentity, a.attgenerated, COALESCE(l.collname, ''), COALESCE(l.collisdeterministic, true),
  format_type(CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE a.atttypid END, CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE a.atttypmod END)
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_type b ON b.oid = t.typbasetype
LEFT JOIN pg_collation l ON l.oid = a.attcollation
WHERE a.attrelid = ANY(%s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attrelid, a.attnum"""  # noqa: E501
_KEYS = """SELECT i.indrelid, x.relname, i.indpred IS NULL AND i.indexprs IS NULL AND NOT i.indisexclusion, i.indimmediate AND i.indisvalid,
  i.indisprimary,
  ARRAY(SELECT a.attname::text FROM unnest(i.indkey::int2[]) WITH ORDINALITY k(n, place)
        JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.n WHERE k.place <= i.indnkeyatts ORDER BY k.place)
FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
WHERE i.indrelid = ANY(%s) AND (i.indisunique OR i.indisexclusion) ORDER BY i.indrelid, NOT i.indisprimary, x.relname"""  # noqa: E501
_REFERENCES = f"""SELECT f.conname, cn.nspname, c.relname, pn.nspname, p.relname,
  ARRAY(SELECT a.attname::text FROM unnest(f.conkey) WITH ORDINALITY k(n, place)
        JOIN pg_attribute a ON a.attrelid = f.conrelid AND a.attnum = k.n ORDER BY k.place),
  ARRAY(SELECT a.attname::text FROM unnest(f.confkey) WITH ORDINALITY k(n, place)
        JOIN pg_attribute a ON a.attrelid = f.confrelid AND a.attnum = k.n ORDER BY k.place)
FROM pg_constraint f JOIN pg_class c ON c.oid = f.conrelid JOIN pg_namespace cn ON cn.oid = c.relnamespace
JOIN pg_class p ON p.oid = f.confrelid JOIN pg_namespace pn ON pn.oid = p.relnamespace
WHERE f.contype = 'f' AND f.conparentid = 0
  AND ((cn.nspname, c.relname) IN {_PLACES} OR (pn.nspname, p.relname) IN {_PLACES}) ORDER BY f.conname, c.relname"""  # noqa: S608 - fixed words


def _places(tables: Iterable[TableId]) -> tuple[list[str], list[str]]:
    once = sorted(set(tables))
    return [table.schema for table in once], [table.table for table in once]


def read_tables(cursor: Any, tables: Sequence[TableId]) -> dict[TableId, TableInfo]:
    """Read the existing tables, by the ids asked for, with three queries."""
    if not tables:
        return {}
    table_rows = cursor.execute(_TABLES, _places(tables)).fetchall()
    oids = [row[2] for row in table_rows]
    columns: dict[int, list[ColumnInfo]] = defaultdict(list)
    for oid, *rest in cursor.execute(_COLUMNS, (oids,)).fetchall():
        columns[oid].append(_column(*rest))
    keys: dict[int, list[UniqueKey]] = defaultdict(list)
    for oid, name, plain, ready, primary, names in cursor.execute(_KEYS, (oids,)).fetchall():
        every = tuple(names) if plain else tuple(column.name for column in columns[oid])
        keys[oid].append(UniqueKey(name, every, bool(plain and ready), bool(primary)))
    return {
        TableId(schema, table): TableInfo(
            kind, tuple(columns[oid]), tuple(keys[oid]), tuple((a, b) for a, b in triggers), tuple(foreign),
            bool(guarded)
        )
        for schema, table, oid, kind, guarded, triggers, foreign in table_rows
    }  # fmt: skip


def _column(
    name: str, kind: str, base: str | None, nullable: bool, default: bool, identity: str, generated: str,
    collation: str, exact: bool, declared: str
) -> ColumnInfo:  # fmt: skip
    label = (base if kind == "d" else kind) == "e"
    required = not nullable and not default and not identity and not generated
    return ColumnInfo(
        name,
        (LABEL if label else "") + declared,
        nullable,
        required,
        bool(generated),
        identity == "a",
        collation,
        exact,
    )


def read_references(cursor: Any, tables: Sequence[TableId]) -> list[Reference]:
    """Read the foreign keys from ``tables`` and to them."""
    places = _places(tables)
    return [
        Reference(name, TableId(schema, child), tuple(columns), TableId(parent_schema, parent), tuple(parent_columns))
        for name, schema, child, parent_schema, parent, columns,
        parent_columns in cursor.execute(_REFERENCES, (*places, *places)).fetchall()
    ]  # fmt: skip


# -- comparing ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wanted:
    """The settings that come from the target's options and login.

    They are: the type for documents; whether triggers may fire; whether the login may switch them off; whether new
    tables get the source's secondary indexes; which of their columns get an ICU collation; PostGIS's type, "" if it is
    not installed; how dates are treated that no calendar has.
    """

    json: str = "jsonb"
    fire: bool = False
    replica: bool = True
    user: str = ""
    indexes: bool = False
    collations: Collations = NO_COLLATIONS
    spatial: str = ""
    zero_dates: str = "refuse"


def compare(plan: PlannedTable, info: TableInfo | None, setup: Wanted) -> TargetTable:
    """Check one table. Raises MappingError with the statement that would fix it."""
    refuse_long(plan, LONGEST_BYTES, "PostgreSQL")
    if info is None:
        raise MappingError(
            f"the target has no table {plan.target} for {plan.source}",
            where=str(plan.target),
            hint=applied(create_table(plan, setup)),
        )
    for problem in _problems(plan, info, setup):
        if problem.severity == "error":
            where = f"{plan.target}.{problem.column}" if problem.column else str(plan.target)
            raise MappingError(
                f"{plan.target} at the target: {problem.why}",
                where=where,
                hint=problem.hint or problem.statement or None,
            )
    return as_target(plan, info, is_arbiter)


def is_arbiter(key: UniqueKey) -> bool:
    """Return True for a unique key by which an INSERT … ON CONFLICT finds rows."""
    return key.arbiter


def compare_all(
    plans: Sequence[PlannedTable], infos: Mapping[TableId, TableInfo], setup: Wanted
) -> dict[TableId, TargetTable]:
    """Compare all tables; several sources may be loaded into one target table.

    Raises MappingError for the first that does not fit.
    """
    return {plan.target: compare(plan, infos.get(plan.target), setup) for plan in plans}


def review(plans: Sequence[PlannedTable], infos: Mapping[TableId, TableInfo], setup: Wanted) -> list[TableFinding]:
    """Return everything to say about the planned tables, with the statements that correct it."""
    review: list[TableFinding] = []
    for plan in plans:
        info = infos.get(plan.target)
        try:
            refuse_long(plan, LONGEST_BYTES, "PostgreSQL")
        except MappingError as error:
            review.append(TableFinding("error", plan.target, "", error.message, hint=error.hint or ""))
            continue
        if info is None:
            sql = create_table(plan, setup)
            review += [
                TableFinding("error", plan.target, "", f"the table is to have the collation {name}", statement)
                for name, statement in _collations(plan, setup)
            ]
            why = f"the target has no such table for {plan.source}"
            review.append(TableFinding("error", plan.target, "", why, sql, absent=True))
            review += [_loss_of(plan, column, setup) for column in plan.columns if _loss(plan, column, setup)]
            review += [
                TableFinding("error", plan.target, "", f"the table is to have {what}", sql)
                for what, sql in extras.of_plan(plan, indexes=setup.indexes)
            ]
            continue
        review += [problem.finding(plan.target) for problem in _problems(plan, info, setup)]
    return review


def _collations(plan: PlannedTable, setup: Wanted) -> list[tuple[str, str]]:
    """Return the ICU collations of a table that is to be created: name, and the statement that creates it."""
    collations = (_collation(plan, column, setup) for column in plan.columns if not column.generated)
    return list(dict.fromkeys((collation.name, collation.create) for collation in collations if collation is not None))


def _collation(plan: PlannedTable, column: PlannedColumn, setup: Wanted) -> Collation | None:
    """Return the ICU collation that the column is to have, None for the database's own."""
    return None if column.wanted else setup.collations.of(plan.target, column.sent_type, key=bool(column.key))


def _loss(plan: PlannedTable, column: PlannedColumn, setup: Wanted) -> str:
    """Return what a new column does not keep of the values, or of how they compare."""
    column_type, kind = column.sent_type, pg_type(made_type(column, setup.json, setup.spatial))
    if column.generated:
        return ""
    return together(lost(column_type, kind) if takes(column_type, kind) else "", _compares(plan, column, setup))


def _compares(plan: PlannedTable, column: PlannedColumn, setup: Wanted) -> str:
    """Return what to know about how its texts compare, if the options name its table."""
    if column.wanted:
        return ""
    return setup.collations.lost(plan.target, column.sent_type, key=bool(column.key))


def _typed(plan: PlannedTable, column: PlannedColumn, setup: Wanted) -> str:
    """Return the type for a column definition, with its collation."""
    return made_type(column, setup.json, setup.spatial) + clause(_collation(plan, column, setup))


def _loss_of(plan: PlannedTable, column: PlannedColumn, setup: Wanted) -> TableFinding:
    types = f"{_said(column)} -> {_typed(plan, column, setup)}"
    return about_values(plan.target, column.name, types, _loss(plan, column, setup))


def _said(column: PlannedColumn) -> str:
    """Return the column's type at the source for a message."""
    return column.value_type.native or column.sql_type or column.arrow_type


def _preset(column: PlannedColumn, column_type: ColumnType) -> str:
    """Return the source's DEFAULT and NOT NULL of a column that is added: without a default no table with rows accepts
    NOT NULL.
    """
    source, known_default = column.definition, column.default
    if (
        source is None
        or known_default is None
        or source.default is None
        or source.generated is not None
        or column.wanted
    ):
        return ""
    default = default_of(source, column_type, known_default).later
    return f" DEFAULT {default}{'' if source.nullable else ' NOT NULL'}" if default else ""


def _problems(plan: PlannedTable, info: TableInfo, setup: Wanted) -> list[Problem]:
    place = quoted_table(plan.target)
    if info.kind not in {"r", "p"}:
        why = "it is a view or a foreign table: rows are told apart by a key, and it has none"
        return [error_of("", why, hint="write into its table (mapping: to), or make it a table")]
    problems: list[Problem] = []
    if info.guarded:
        why = f"row security hides rows from the user {setup.user!r}: an update would not find them"
        problems.append(error_of("", why, hint=f"ALTER ROLE {quoted(setup.user)} BYPASSRLS, or let it own the table"))
    problems += _triggers(plan, info, setup)
    columns: dict[str, list[ColumnInfo]] = defaultdict(list)
    for actual in info.columns:
        columns[actual.name.casefold()].append(actual)
    for column in plan.columns:
        if not column.generated:
            problems += _of_column(plan, column, columns[column.name.casefold()], setup)
    sent = {column.name.casefold() for column in plan.columns if not column.generated}
    for actual in info.columns:
        if actual.required and actual.name.casefold() not in sent:
            why = f"column {actual.name!r} needs a value, and {plan.source} has no such column"
            alter = f"ALTER TABLE {place} ALTER COLUMN {quoted(actual.name)}"
            problems.append(
                error_of(actual.name, why, hint=f"give it a default: {alter} SET DEFAULT …, or {alter} DROP NOT NULL")
            )
    key = {name.casefold() for name in plan.key}
    if key and not any(column.arbiter and {c.casefold() for c in column.columns} == key for column in info.keys):
        own = [columns[name.casefold()][0].name if columns[name.casefold()] else name for name in plan.key]
        why = (
            f"rows of {plan.source} are told apart by ({', '.join(plan.key)}), and the table has no such key that "
            "is checked at once"
        )
        problems.append(error_of("", why, f"ALTER TABLE {place} ADD PRIMARY KEY ({', '.join(map(quoted, own))})"))
    return problems


def _triggers(plan: PlannedTable, info: TableInfo, setup: Wanted) -> list[Problem]:
    if (info.triggers or info.foreign_keys) and not setup.replica:
        what = "foreign keys" if info.foreign_keys else "triggers"
        why = (
            f"the table has {what}, which the source has checked and fired already, and the user {setup.user!r} "
            "may not switch them off"
        )
        grant = f"GRANT SET ON PARAMETER session_replication_role TO {quoted(setup.user)}"
        return [error_of("", why, hint=f"{grant} (as a superuser, PostgreSQL 15 or newer), or drop them at the target")]
    firing = [name for name, enabled in info.triggers if enabled in {"R", "A"}]
    if not firing or setup.fire:
        return []
    why = f"trigger {', '.join(firing)} is ENABLE ALWAYS or REPLICA and fires for rows that Sluice writes"
    off = "; ".join(f"ALTER TABLE {quoted_table(plan.target)} ENABLE TRIGGER {quoted(name)}" for name in firing)
    return [error_of("", why, hint=f"{off}; or options.triggers: fire, if it is meant for these rows")]


def _of_column(
    plan: PlannedTable, column: PlannedColumn, columns: Sequence[ColumnInfo], setup: Wanted
) -> list[Problem]:
    column_type, place = column.sent_type, quoted_table(plan.target)
    own, typed = made_type(column, setup.json, setup.spatial), _typed(plan, column, setup)
    collation = _collation(plan, column, setup)
    if not columns:
        add = f"ALTER TABLE {place} ADD COLUMN {quoted(column.name)} {typed}{_preset(column, column_type)}"
        why = f"it has no column {column.name!r}, which {plan.source} has"
        hint = f"{applied(add)}; or leave it out: mapping.columns.exclude"
        problem = error_of(column.name, why, add, hint, absent=True)
        return [problem] if collation is None else [error_of(column.name, why, collation.create), problem]
    if len(columns) > 1:
        names = ", ".join(repr(column.name) for column in columns)
        why = f"the columns {names} differ in case only: {column.name!r} of {plan.source} may be either"
        return [error_of(column.name, why, hint="rename one of them")]
    [actual] = columns
    alter = f"ALTER TABLE {place} ALTER COLUMN {quoted(actual.name)}"
    change = f"{alter} TYPE {typed}"
    if actual.generated:
        why = f"column {actual.name!r} is a generated one: the source's values would never be written"
        hint = (
            f"drop it: ALTER TABLE {place} DROP COLUMN {quoted(actual.name)}; the next attempt stops for the missing "
            "column, and says how it is added as a plain one, and then copied; or leave it out: mapping.columns.exclude"
        )
        return [error_of(actual.name, why, hint=hint)]
    if actual.fixed and not column.key:
        why = f"column {actual.name!r} is GENERATED ALWAYS AS IDENTITY, and no update may change it"
        return [error_of(actual.name, why, f"{alter} SET GENERATED BY DEFAULT")]
    kind, described = pg_type(actual.declared), _said(column)
    if not takes(column_type, kind) or not is_sent(column_type, kind):
        why = f"column {actual.name!r} is {kind.declared}, which cannot hold values of {described}"
        return [error_of(actual.name, why, change)]
    if column.key and not actual.exact and not _promised(plan):
        why = (
            f"key column {actual.name!r} is compared by {actual.collation}, which holds different texts for equal: "
            "rows would overwrite each other"
        )
        return [error_of(actual.name, why, f'{change} COLLATE "C"')]
    why = lost(column_type, kind)
    if collation is not None and actual.collation != collation.name:
        comparison = f"compared by {actual.collation}, not by {collation.name} as options.icu_collations says"
        words = together(why if isinstance(why, Loss) else "", comparison)
        return [warning_of(actual.name, f"{described} -> {kind.declared}", words, f"{collation.create}; {change}")]
    if not why and not actual.nullable and column.nullable and not column.key:
        why, change = "NULL is refused", f"{alter} DROP NOT NULL"
    elif column.key or kind.declared == own or column_type.kind is ColumnKind.GEOMETRY:
        change = ""
    why = together(why, _compares(plan, column, setup))
    return [warning_of(actual.name, f"{described} -> {kind.declared}", why, change)] if why else []


def _promised(plan: PlannedTable) -> bool:
    key = {name.casefold() for name in plan.key}
    return any({name.casefold() for name in names} == key for names in plan.promised)


def create_table(plan: PlannedTable, setup: Wanted) -> str:
    """Return a CREATE TABLE that the planned rows fit into."""
    lines = [
        f"{quoted(c.name)} {_typed(plan, c, setup)}{' NOT NULL' if c.key or not c.nullable else ''}"
        for c in plan.columns
        if not c.generated
    ]
    if plan.key:
        lines.append(f"PRIMARY KEY ({', '.join(map(quoted, plan.key))})")
    return f"CREATE TABLE {quoted_table(plan.target)} ({', '.join(lines)})"
