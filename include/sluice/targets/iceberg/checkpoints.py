"""The checkpoint of an Iceberg target, see :mod:`sluice.targets.lake.checkpoints`.

Each move is an empty snapshot and the property in one commit: a catalog refuses it if the branch has another snapshot than the one that was read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sluice.targets.iceberg.client import Identifier, Place, errors, transaction
from sluice.targets.iceberg.tables import schema_of
from sluice.targets.lake.checkpoints import PROPERTY, Held, LakeCheckpoints
from sluice.targets.lake.columns import LakeColumn
from sluice.targets.lake.names import RESERVED, legal

_TABLE = {
    "format-version": "2",
    "commit.retry.num-retries": "0",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "10",
}
_MOST_SNAPSHOTS = 20


@dataclass(frozen=True)
class IcebergCheckpoints(LakeCheckpoints):
    """The checkpoint of an Iceberg target, in the namespace ``_sluice.PIPELINE``."""

    tables: Place
    owner: str

    @property
    def identifier(self) -> Identifier:
        """The identifier of the small table."""
        return (RESERVED, *map(legal, self.owner.split("/", 1)))

    @property
    def place(self) -> str:
        """The location of the checkpoint, for messages."""
        return f"Iceberg table {'.'.join(self.identifier)} in {self.tables.said}"

    def _open(self) -> Any:
        return self.tables.open(self.identifier, "reading the target's checkpoint")

    def _text(self, table: Any) -> str:
        return str(table.properties.get(PROPERTY, ""))

    def _create(self) -> None:
        catalog = self.tables.catalog()
        with errors(self.tables, "making the table of the target's checkpoint", ".".join(self.identifier)):
            for depth in (1, 2):
                catalog.create_namespace_if_not_exists(self.identifier[:depth])
            schema = schema_of([LakeColumn("unused", "string")])
            catalog.create_table_if_not_exists(self.identifier, schema, properties=_TABLE)

    def _commit(self, table: Any, wanted: Held | None, doing: str) -> None:
        old = sorted(table.snapshots(), key=lambda one: int(one.sequence_number or 0))[:-1]
        gone = old if len(old) >= _MOST_SNAPSHOTS else []
        with errors(self.tables, doing, ".".join(self.identifier)):
            change = transaction(table)
            with change.update_snapshot(snapshot_properties={"sluice.doing": doing}).fast_append():
                pass
            change.set_properties({PROPERTY: wanted.to_text(self.owner) if wanted is not None else ""})
            change.commit_transaction()
            if gone:
                self._expire(gone)

    def _expire(self, gone: list[Any]) -> None:
        """Expire snapshots of earlier moves and delete their files, which list nothing."""
        table = self._open()
        table.maintenance.expire_snapshots().by_ids([one.snapshot_id for one in gone]).commit()
        for one in gone:
            table.io.delete(one.manifest_list)
