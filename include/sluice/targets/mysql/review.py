"""What a MySQL target would make of the planned tables: what is missing, what would lose digits, what fires by itself, and the DDL that helps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sluice.errors import MappingError
from sluice.mapping.types import SqlType, loss
from sluice.model.tables import TableId, quoted, quoted_table
from sluice.targets.base import PlannedColumn, PlannedTable, Remark
from sluice.targets.mysql.tables import ColumnInfo, TableInfo, column_type, compare, create_table, rows_about


def review(
    plans: Sequence[PlannedTable],
    infos: Mapping[TableId, TableInfo],
    triggers: Mapping[TableId, Sequence[str]],
    flavour: str,
    *,
    fire: bool = False,
) -> list[Remark]:
    """One remark for each thing to know, in the order of ``plans``. ``flavour``: MySQL or MariaDB, the target's; ``fire``: triggers are meant."""
    remarks: list[Remark] = []
    for plan in plans:
        info = infos.get(plan.target)
        if info is None:
            same = plan.create_sql and plan.flavour == flavour
            statement = plan.create_sql if same else create_table(plan)
            remarks.append(Remark("error", plan.target, "", "the target has no such table", statement))
            continue
        remarks += _missing_columns(plan, info)
        try:
            compare(plan, info, columns=False)
        except MappingError as error:
            remarks.append(Remark("error", plan.target, "", error.message, _statement(error.hint)))
        remarks += _losses(plan, info)
        names = triggers.get(plan.target, ())
        if names:
            why = (
                f"{_fires(names)} (options.triggers: fire)" if fire else f"{_fires(names)}; {_hint(plan.target, names)}"
            )
            remarks.append(Remark("warning" if fire else "error", plan.target, "", why))
    return remarks


def refuse_triggers(triggers: Mapping[TableId, Sequence[str]]) -> None:
    """Raises MappingError if there is one."""
    for table, names in sorted(triggers.items()):
        raise MappingError(_fires(names), where=str(table), hint=_hint(table, names))


def _fires(names: Sequence[str]) -> str:
    return (
        f"trigger {', '.join(names)} at the target fires for rows that Sluice writes; what the source's trigger wrote arrives as rows too: "
        "its effect would be there twice"
    )


def _hint(table: TableId, names: Sequence[str]) -> str:
    drop = "; ".join(f"DROP TRIGGER {quoted(table.schema)}.{quoted(name)}" for name in names)
    return f"drop it, if the source has it too ({drop}); options.triggers: fire, if it is meant for these rows, or begins with IF @sluice IS NULL"


def _statement(hint: str | None) -> str:
    text = (hint or "").partition(": ")[2].partition("; or ")[0].rstrip(";")
    return text if text.startswith(("ALTER", "CREATE")) and "…" not in text else ""


def _missing_columns(plan: PlannedTable, info: TableInfo) -> list[Remark]:
    there = {column.name.casefold() for column in info.columns}
    return [
        Remark(
            "error",
            plan.target,
            column.name,
            f"the target has no such column, which {plan.source} has",
            f"ALTER TABLE {quoted_table(plan.target)} ADD COLUMN {quoted(column.name)} {column_type(column)}",
        )
        for column in plan.columns
        if column.name.casefold() not in there and not column.generated
    ]


def _losses(plan: PlannedTable, info: TableInfo) -> list[Remark]:
    there = {column.name.casefold(): column for column in info.columns}
    remarks = []
    for column in plan.columns:
        found = there.get(column.name.casefold())
        if found is None or found.generated or not column.sql_type:
            continue
        sent = declared_word(column)
        why = loss(SqlType.parse(sent, column.charset), SqlType.parse(found.sql_type, found.charset)) or column.loses
        if not why and not found.nullable and column.nullable and not column.key:
            why = "NULL is refused"
        if not why and column.key and column.collation and found.collation and found.collation != column.collation:
            why = f"keys are compared by {found.collation}, at the source by {column.collation}: rows may fall together"
        if why:
            change = ""
            if column.sql_type and not column.key:
                change = f"ALTER TABLE {quoted_table(plan.target)} MODIFY COLUMN {quoted(found.name)} {_widened(column, found)}"
            remarks.append(
                Remark("warning", plan.target, column.name, f"{column.sql_type} -> {found.sql_type}: {why}", change)
            )
    return remarks


def declared_word(column: PlannedColumn) -> str:
    """The type as which values are sent: a moment in time stays one, whatever its column was; the rest as the source has it."""
    ends = (column.sql_type.lower().partition("(")[0], column.wanted.lower().partition("(")[0])
    swapped = ends in {("datetime", "timestamp"), ("timestamp", "datetime")}
    return column.sql_type.lower().replace(*ends, 1) if swapped else column.sql_type


def _widened(column: PlannedColumn, found: ColumnInfo) -> str:
    return column_type(column) + (" NOT NULL" if not found.nullable and not column.nullable else "")


def read_triggers(cursor: Any, tables: Sequence[TableId]) -> dict[TableId, list[str]]:
    """Triggers by table, of the tables asked for."""
    if not tables:
        return {}
    name, found = rows_about(cursor, tables, "triggers", "event_object_schema, event_object_table, trigger_name")
    return {table: [trigger for (trigger,) in found[name(table)]] for table in tables if name(table) in found}
