"""Compare planned tables with the existing Iceberg tables."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.errors import LoadError
from sluice.model.planned import PlannedTable
from sluice.model.tables import TableId
from sluice.targets.iceberg.client import errors, transaction
from sluice.targets.iceberg.notes import still_holding
from sluice.targets.iceberg.site import RETRIES, RETRIES_HINT, Site, retries_said
from sluice.targets.iceberg.tables import type_of
from sluice.targets.lake.schema import LakeSchema, wanting
from sluice.targets.lake.statements import Statement, quoted
from sluice.targets.port import Finding

_SET = f"SET TBLPROPERTIES ('{RETRIES}'='0')"


@dataclass(frozen=True)
class IcebergSchema(LakeSchema):
    """See :class:`sluice.targets.lake.schema.LakeSchema`."""

    site: Site

    def apply(self, statement: str) -> None:
        """Run a statement, or set the property without which a table is not written to. Raises LoadError."""
        head, found, _ = statement.partition(f" {_SET}")
        if not found:
            super().apply(statement)
            return
        names = tuple(part.strip("`").replace("``", "`") for part in head.removeprefix("ALTER TABLE ").split("`.`"))
        table = self.site.place.open(names, f"reading the metadata of {head}")
        if table is None:
            raise LoadError(f"there is no such Iceberg table: {statement[:200]}")
        with errors(self.site.place, "setting a property", ".".join(names)):
            table.transaction().set_properties({RETRIES: "0"}).commit_transaction()

    def _apply(self, told: Statement, text: str) -> None:
        if told.create:
            self.site.create(told.names, told.columns, told.partitions)
            return
        table = self.site.place.open(told.names, f"reading the metadata of {'.'.join(told.names)}")
        if table is None:
            raise LoadError(f"there is no such Iceberg table: {text[:200]}")
        info = self.site.info(table)
        with errors(self.site.place, "adding columns", ".".join(told.names)):
            change = transaction(table)
            with change.update_schema() as schema:
                for column in wanting(told.columns, info):
                    inner = info.find(column.name) is not None and not isinstance(column.kind, str)
                    for part in column.kind if inner and not isinstance(column.kind, str) else (column,):
                        path = (column.name, part.name) if inner else (part.name,)
                        schema.add_column(path, type_of(part.kind))
            if table.current_snapshot() is not None:  # a snapshot is read with the columns of its time
                said = {"sluice.doing": "columns", **still_holding(table)}
                with change.update_snapshot(snapshot_properties=said).fast_append():
                    pass
            change.commit_transaction()

    def _compare(self, plan: PlannedTable) -> list[Finding]:
        table = self.site.open(plan.target)
        if table is not None and str(table.properties.get(RETRIES)) != "0":
            place = f"ALTER TABLE {self._place(plan.target)} {_SET}"
            return [Finding("error", plan.target, "", retries_said(self.site.uri(plan.target)), place, RETRIES_HINT)]
        return super()._compare(plan)

    def _place(self, table: TableId) -> str:
        return ".".join(map(quoted, self.site.identifier(table)))
