"""Compare planned tables with those at the server: say what is lost of values, and what a crash of the machine would
lose.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sluice.errors import LoadError, MappingError, SluiceError
from sluice.model.planned import PlannedTable
from sluice.model.tables import TableId
from sluice.targets.clickhouse.client import Client, connected
from sluice.targets.clickhouse.column_types import DATES, held_type, lost, takes
from sluice.targets.clickhouse.place import Place
from sluice.targets.clickhouse.sql import table_name
from sluice.targets.clickhouse.tables import (
    HeldTable,
    add_columns,
    column_name,
    columns_of,
    create_view,
    held_tables,
    make_statements,
    require,
    sent_columns,
    unfit,
)
from sluice.targets.clickhouse.values import FEW_YEARS
from sluice.targets.clickhouse.writer import years_of
from sluice.targets.feature_check import without_key
from sluice.targets.port import TableFinding, about_values

_SEPARATOR = ";\n"
_ALLOWED = re.compile(
    r"(?:CREATE (?:DATABASE IF NOT EXISTS|TABLE IF NOT EXISTS|OR REPLACE VIEW) "
    r"|ALTER TABLE \S+ ADD COLUMN IF NOT EXISTS )"
)


@dataclass(frozen=True)
class ClickHouseSchema:
    """See :class:`sluice.targets.port.TargetSchema`."""

    place: Place

    def compare(self, tables: Sequence[PlannedTable]) -> Sequence[TableFinding]:
        """Return findings on each table."""
        if not tables:
            return ()
        findings: list[TableFinding] = []
        with connected(self.place) as client:
            try:
                existing_tables = held_tables(client, [plan.target for plan in tables], every=self.place.every)
                for plan in tables:
                    findings += self._about(client, plan, existing_tables)
            except SluiceError as error:
                findings.append(TableFinding("error", tables[0].target, "", error.message, hint=error.hint or ""))
        return findings

    def _about(
        self, client: Client, plan: PlannedTable, held_tables: Mapping[TableId, HeldTable]
    ) -> Iterator[TableFinding]:
        place, held_table = self.place, held_tables.get(plan.target)
        if not plan.key and not place.every:
            yield without_key(plan)
            return
        if held_table is None:
            yield from self._proposed(plan)
            why = f"there is no table {plan.target} for {plan.source}"
            yield TableFinding(
                "error", plan.target, "", why, _SEPARATOR.join(make_statements(place, plan)), absent=True
            )
            return
        if problem := unfit(place, held_table):
            yield TableFinding("error", plan.target, "", f"it {problem}", hint="name another table, or remove it")
            return
        new = [
            column.name for column in sent_columns(plan) if column_name(place, column.name) not in held_table.columns
        ]
        if new:
            columns = columns_of(place, plan).items()
            new_columns = {name: declared for name, declared in columns if name not in held_table.columns}
            view = place.view_of(plan.target)
            statements = [
                add_columns(plan.target, new_columns),
                *([create_view(view, plan.target)] if view is not None else []),
            ]
            for new_column in new:
                why = f"it has no column {new_column!r}, which {plan.source} has"
                yield TableFinding("error", plan.target, new_column, why, _SEPARATOR.join(statements), absent=True)
            return
        try:
            require(place, held_tables, plan)
        except MappingError as error:
            yield TableFinding("error", plan.target, "", error.message, hint=error.hint or "")
            return
        yield from self._columns(client, plan, held_table)
        yield from self._durable(held_table)
        what = "every change is appended to" if place.every else "rows are merged into"
        yield TableFinding("ok", plan.target, "", f"{what} {held_table.engine} {table_name(plan.target)}")

    def _proposed(self, plan: PlannedTable) -> Iterator[TableFinding]:
        """Yield types of the options that cannot hold the values."""
        for column in sent_columns(plan):
            declared = self.place.options.types.get(f"{plan.target}.{column.name}")
            if declared is not None and not takes(column.sent_type, held_type(declared)):
                sql_type = column.sql_type or column.arrow_type
                why = f"options.types makes it {declared}, which cannot hold values of {sql_type}"
                yield TableFinding("error", plan.target, column.name, why)

    def _columns(self, client: Client, plan: PlannedTable, held_table: HeldTable) -> Iterator[TableFinding]:
        few = years_of(client) == FEW_YEARS
        for column in sent_columns(plan):
            held_type = held_table.columns[column_name(self.place, column.name)].type
            why = lost(column.sent_type, held_type)
            if not why and column.sent_type.kind in DATES and held_type.word in {"Date32", "DateTime64"}:
                why = "dates that no calendar has" + (
                    f", and those before {FEW_YEARS[0].year} or after {FEW_YEARS[1].year}," if few else ""
                )
                why += " are refused, or become NULL: options.unfit_dates"
            if not why and not held_type.nullable and column.nullable and not column.key:
                why = "NULL is refused"
            if why:
                yield about_values(plan.target, column.name, f"{column.sql_type} -> {held_type.declared}", why)

    def _durable(self, existing: HeldTable) -> Iterator[TableFinding]:
        if existing.engine.startswith(("Replicated", "Shared")):
            return
        if "fsync_after_insert = 1" not in existing.settings:
            why = "fsync_after_insert is off: a crash of the machine may lose rows that the checkpoint says are there"
            to_disk = "fsync_after_insert = 1, fsync_part_directory = 1"
            hint = f"ALTER TABLE {table_name(existing.table)} MODIFY SETTING {to_disk}"
            yield TableFinding("warning", existing.table, "", why, hint=hint)
        if self.place.every and not re.search(r"non_replicated_deduplication_window = [1-9]", existing.settings):
            why = "non_replicated_deduplication_window is 0: the table forgets at once which changes it has"
            hint = (
                f"ALTER TABLE {table_name(existing.table)} MODIFY SETTING non_replicated_deduplication_window = 10000"
            )
            yield TableFinding("error", existing.table, "", why, hint=hint)

    def apply(self, statement: str) -> None:
        """Run what a finding proposes. Raises LoadError."""
        statements = statement.split(_SEPARATOR)
        for sql in statements:
            if not _ALLOWED.match(sql):
                raise LoadError(
                    f"this is no statement that `sluice check` proposes for a target of type clickhouse: {sql[:300]}"
                )
        with connected(self.place, slow=True) as client:
            for sql in statements:
                client.ask("making a table", sql)


__all__ = ["ClickHouseSchema"]
