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
        found: list[TableFinding] = []
        with connected(self.place) as client:
            try:
                held = held_tables(client, [plan.target for plan in tables], every=self.place.every)
                for plan in tables:
                    found += self._about(client, plan, held)
            except SluiceError as error:
                found.append(TableFinding("error", tables[0].target, "", error.message, hint=error.hint or ""))
        return found

    def _about(self, client: Client, plan: PlannedTable, held: Mapping[TableId, HeldTable]) -> Iterator[TableFinding]:
        place, there = self.place, held.get(plan.target)
        if not plan.key and not place.every:
            yield without_key(plan)
            return
        if there is None:
            yield from self._proposed(plan)
            why = f"there is no table {plan.target} for {plan.source}"
            yield TableFinding(
                "error", plan.target, "", why, _SEPARATOR.join(make_statements(place, plan)), absent=True
            )
            return
        if problem := unfit(place, there):
            yield TableFinding("error", plan.target, "", f"it {problem}", hint="name another table, or remove it")
            return
        new = [one.name for one in sent_columns(plan) if column_name(place, one.name) not in there.columns]
        if new:
            made = {one: declared for one, declared in columns_of(place, plan).items() if one not in there.columns}
            view = place.view_of(plan.target)
            statements = [
                add_columns(plan.target, made),
                *([create_view(view, plan.target)] if view is not None else []),
            ]
            for given in new:
                why = f"it has no column {given!r}, which {plan.source} has"
                yield TableFinding("error", plan.target, given, why, _SEPARATOR.join(statements), absent=True)
            return
        try:
            require(place, held, plan)
        except MappingError as error:
            yield TableFinding("error", plan.target, "", error.message, hint=error.hint or "")
            return
        yield from self._columns(client, plan, there)
        yield from self._durable(there)
        what = "every change is appended to" if place.every else "rows are merged into"
        yield TableFinding("ok", plan.target, "", f"{what} {there.engine} {table_name(plan.target)}")

    def _proposed(self, plan: PlannedTable) -> Iterator[TableFinding]:
        """Yield types of the options that cannot hold the values."""
        for column in sent_columns(plan):
            declared = self.place.options.types.get(f"{plan.target}.{column.name}")
            if declared is not None and not takes(column.sent_type, held_type(declared)):
                said = column.sql_type or column.arrow_type
                why = f"options.types makes it {declared}, which cannot hold values of {said}"
                yield TableFinding("error", plan.target, column.name, why)

    def _columns(self, client: Client, plan: PlannedTable, there: HeldTable) -> Iterator[TableFinding]:
        few = years_of(client) == FEW_YEARS
        for column in sent_columns(plan):
            held = there.columns[column_name(self.place, column.name)].type
            why = lost(column.sent_type, held)
            if not why and column.sent_type.kind in DATES and held.word in {"Date32", "DateTime64"}:
                why = "dates that no calendar has" + (
                    f", and those before {FEW_YEARS[0].year} or after {FEW_YEARS[1].year}," if few else ""
                )
                why += " are refused, or become NULL: options.unfit_dates"
            if not why and not held.nullable and column.nullable and not column.key:
                why = "NULL is refused"
            if why:
                yield about_values(plan.target, column.name, f"{column.sql_type} -> {held.declared}", why)

    def _durable(self, there: HeldTable) -> Iterator[TableFinding]:
        if there.engine.startswith(("Replicated", "Shared")):
            return
        if "fsync_after_insert = 1" not in there.settings:
            why = "fsync_after_insert is off: a crash of the machine may lose rows that the checkpoint says are there"
            hint = (
                f"ALTER TABLE {table_name(there.table)} MODIFY SETTING fsync_after_insert = 1, fsync_part_directory = 1"
            )
            yield TableFinding("warning", there.table, "", why, hint=hint)
        if self.place.every and not re.search(r"non_replicated_deduplication_window = [1-9]", there.settings):
            why = "non_replicated_deduplication_window is 0: the table forgets at once which changes it has"
            hint = f"ALTER TABLE {table_name(there.table)} MODIFY SETTING non_replicated_deduplication_window = 10000"
            yield TableFinding("error", there.table, "", why, hint=hint)

    def apply(self, statement: str) -> None:
        """Run what a finding proposes. Raises LoadError."""
        statements = statement.split(_SEPARATOR)
        for one in statements:
            if not _ALLOWED.match(one):
                raise LoadError(
                    f"this is no statement that `sluice check` proposes for a target of type clickhouse: {one[:300]}"
                )
        with connected(self.place, slow=True) as client:
            for one in statements:
                client.ask("making a table", one)


__all__ = ["ClickHouseSchema"]
