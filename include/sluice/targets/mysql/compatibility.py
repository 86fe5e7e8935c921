"""Review planned tables at a MySQL target: what is missing, what would lose digits, which triggers fire, and the DDL
that helps.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pymysql

from sluice.errors import DecodeError, MappingError, UnsupportedType
from sluice.model import dialects
from sluice.model.planned import PlannedColumn, PlannedTable
from sluice.model.rights import Scope, rights_on
from sluice.model.tables import TableId, quoted, quoted_table
from sluice.mysql.ddl.ast import CreateTable
from sluice.mysql.ddl.lexer import Dialect
from sluice.mysql.ddl.parser import parse_statement
from sluice.mysql.rights import DENIED, TARGET, GrantedRights
from sluice.mysql.type_loss import SqlType
from sluice.targets.mysql.column_types import Server, column_type, lost
from sluice.targets.mysql.extras import is_foreign
from sluice.targets.mysql.table_info import ColumnInfo, TableInfo
from sluice.targets.mysql.tables import add_column, compare, create_table, rows_about
from sluice.targets.port import TableFinding, about_values

_TRANSACTIONAL = {"INNODB", "ROCKSDB", "TOKUDB", "NDBCLUSTER"}


def review(
    plans: Sequence[PlannedTable],
    infos: Mapping[TableId, TableInfo],
    triggers: Mapping[TableId, Sequence[str]],
    server: Server,
    *,
    fire: bool = False,
    hidden: Mapping[TableId, str] | None = None,
) -> list[TableFinding]:
    """Return a finding for each thing to know, in the order of ``plans``.

    Args:
        server: the target.
        fire: triggers are meant.
        hidden: tables that the login may not see, with the GRANT that it needs.
    """
    remarks: list[TableFinding] = []
    dialect = dialects.MARIADB if server.mariadb else dialects.MYSQL
    for plan in plans:
        info = infos.get(plan.target)
        if info is None and hidden and plan.target in hidden:
            remarks.append(
                TableFinding("error", plan.target, "", HIDDEN, hint=f"{hidden[plan.target]}; then look again")
            )
            continue
        if info is None:
            same = bool(plan.create_sql) and plan.dialect == dialect
            statement = plan.create_sql if same else create_table(plan, server)
            remarks.append(
                TableFinding("error", plan.target, "", "the target has no such table", statement, absent=True)
            )
            remarks += _without_transactions(plan.target, _engine_of(statement, plan.dialect))
            if same:  # the source's own statement lacks them
                columns = (column for column in plan.columns if column.name in plan.made)
                remarks += [_missing_column(plan, column, (), server) for column in columns]
            elif is_foreign(plan.dialect):
                remarks += _losses_of_new(plan, server)
            continue
        remarks += _missing_columns(plan, info, server)
        try:
            compare(plan, info, server, columns=False)
        except MappingError as error:
            remarks.append(
                TableFinding("error", plan.target, "", error.message, _statement(error.hint), error.hint or "")
            )
        remarks += _without_transactions(plan.target, info.engine)
        remarks += _losses(plan, info, server)
        names = triggers.get(plan.target, ())
        if names:
            why = (
                f"{_fires(names)} (options.triggers: fire)" if fire else f"{_fires(names)}; {_hint(plan.target, names)}"
            )
            remarks.append(TableFinding("warning" if fire else "error", plan.target, "", why))
    return remarks


def _without_transactions(table: TableId, engine: str) -> list[TableFinding]:
    if not engine or engine.upper() in _TRANSACTIONAL:
        return []
    why = (
        f"its engine {engine} has no transactions: rows are not written exactly once, as a batch that is tried again "
        "may find half of its rows there, and a server with enforce_gtid_consistency=ON refuses the batch (error 1785)"
    )
    hint = f"ALTER TABLE {quoted_table(table)} ENGINE = InnoDB at the target; the source's table may stay as it is"
    return [TableFinding("warning", table, "", why, hint=hint)]


def _engine_of(statement: str, dialect: dialects.Dialect) -> str:
    """Return the engine that a CREATE TABLE names, "" for none."""
    try:
        parsed_statement = parse_statement(statement, "", Dialect(dialect == dialects.MARIADB))
    except (DecodeError, UnsupportedType):
        return ""
    return (parsed_statement.options.engine or "") if isinstance(parsed_statement, CreateTable) else ""


HIDDEN = "the login of the target's connection may not see this table, whether it exists or not"


def hidden_tables(cursor: Any, tables: Sequence[TableId]) -> dict[TableId, str]:
    """Return the ``tables`` (that information_schema does not show) on which the login has no privilege, each with the
    GRANT that it lacks.
    """
    hidden_tables, granted = {}, None
    for table in tables:
        try:
            cursor.execute(f"SELECT 1 FROM {quoted_table(table)} LIMIT 0")  # noqa: S608 - quoted
        except pymysql.err.MySQLError as error:
            if error.args[:1] and error.args[0] in DENIED:
                granted = granted or GrantedRights.read(cursor.connection)
                lacks = granted.missing(rights_on(Scope.TABLES, TARGET), table.schema, [table.table])
                hidden_tables[table] = lacks[0].fix if lacks else getattr(error, "grant", "")
            elif error.args[:1] and error.args[0] not in {1146, 1049, 1356}:
                raise
    return hidden_tables


def refuse_hidden(hidden: Mapping[TableId, str]) -> None:
    """Raise MappingError if a table is hidden."""
    for table, grant in sorted(hidden.items()):
        raise MappingError(HIDDEN, where=str(table), hint=f"{grant}; if it does not exist yet, also CREATE")


def refuse_triggers(triggers: Mapping[TableId, Sequence[str]]) -> None:
    """Raise MappingError if a table has triggers."""
    for table, names in sorted(triggers.items()):
        raise MappingError(_fires(names), where=str(table), hint=_hint(table, names))


def _fires(names: Sequence[str]) -> str:
    return (
        f"trigger {', '.join(names)} at the target fires for rows that Sluice writes; what the source's trigger wrote "
        "arrives as rows too: its effect would be there twice"
    )


def _hint(table: TableId, names: Sequence[str]) -> str:
    drop = "; ".join(f"DROP TRIGGER {quoted(table.schema)}.{quoted(name)}" for name in names)
    return (
        f"drop it, if the source has it too ({drop}); options.triggers: fire, if it is meant for these rows, or "
        "begins with IF @sluice IS NULL"
    )


def _statement(hint: str | None) -> str:
    text = (hint or "").partition(": ")[2].partition("; or ")[0].rstrip(";")
    return text if text.startswith(("ALTER", "CREATE")) and "…" not in text else ""


def _missing_columns(plan: PlannedTable, info: TableInfo, server: Server) -> list[TableFinding]:
    target_names = {column.name.casefold() for column in info.columns}
    return [
        _missing_column(plan, column, target_names, server)
        for column in plan.columns
        if column.name.casefold() not in target_names and not column.generated
    ]


def _missing_column(
    plan: PlannedTable, column: PlannedColumn, target_names: Collection[str], server: Server
) -> TableFinding:
    return TableFinding(
        "error",
        plan.target,
        column.name,
        f"the target has no such column, which {plan.source} has",
        add_column(plan, column, target_names, server),
        absent=True,
    )


def _losses_of_new(plan: PlannedTable, server: Server) -> list[TableFinding]:
    """Return what the columns of a table that is to be made cannot hold of the values."""
    losses = []
    for column in plan.columns:
        declared = column_type(column, server)
        held_column = ColumnInfo(
            column.name, False, False, declared.partition(" CHARACTER SET")[0], charset=column.charset
        )
        why = "" if column.generated else lost(column, held_column, column.sent_type)
        if why:
            types = f"{column.value_type.native or column.sql_type} -> {held_column.sql_type}"
            losses.append(about_values(plan.target, column.name, types, why))
    return losses


def _losses(plan: PlannedTable, info: TableInfo, server: Server) -> list[TableFinding]:
    columns = {column.name.casefold(): column for column in info.columns}
    remarks = []
    for column in plan.columns:
        target_column = columns.get(column.name.casefold())
        if target_column is None or target_column.generated or not column.sql_type:
            continue
        why = lost(column, target_column, column.sent_type)
        if not why and not target_column.nullable and column.nullable and not column.key:
            why = "NULL is refused"
        if why:
            change = ""
            if not column.key and not _is_own_type(column, target_column, server):
                change = (
                    f"ALTER TABLE {quoted_table(plan.target)} MODIFY COLUMN {quoted(target_column.name)} "
                    f"{_widened(column, target_column, server)}"
                )
            types = f"{column.value_type.native or column.sql_type} -> {target_column.sql_type}"
            remarks.append(about_values(plan.target, column.name, types, why, change))
    return remarks


def _is_own_type(column: PlannedColumn, target_column: ColumnInfo, server: Server) -> bool:
    """Return True if the column has the type that it would be made with, so that no other one holds more."""
    own = column_type(column, server).partition(" CHARACTER SET")[0]
    same_charset = not column.charset or column.charset == target_column.charset
    json = SqlType.parse(own).word == SqlType.parse(target_column.sql_type).word == "json"
    return json or (own == target_column.sql_type and same_charset)


def _widened(column: PlannedColumn, target_column: ColumnInfo, server: Server) -> str:
    return column_type(column, server) + (" NOT NULL" if not target_column.nullable and not column.nullable else "")


def read_triggers(cursor: Any, tables: Sequence[TableId]) -> dict[TableId, list[str]]:
    """Return the triggers of the given tables, by table."""
    if not tables:
        return {}
    name, triggers = rows_about(cursor, tables, "triggers", "event_object_schema, event_object_table, trigger_name")
    return {table: [trigger for (trigger,) in triggers[name(table)]] for table in tables if name(table) in triggers}
