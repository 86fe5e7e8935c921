"""The checkpoint of a Delta target, see :mod:`sluice.targets.lake.checkpoints`: the table's properties are in the log and its checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sluice.targets.delta.client import Place, errors, library
from sluice.targets.delta.options import RESERVED
from sluice.targets.lake.checkpoints import PROPERTY, Held, LakeCheckpoints, Raced

_TABLE = {
    "delta.checkpointInterval": "50",
    "delta.logRetentionDuration": "interval 1 days",
    "delta.enableExpiredLogCleanup": "true",
}


@dataclass(frozen=True)
class DeltaCheckpoints(LakeCheckpoints):
    """The checkpoint of a Delta target. ``owner``: pipeline/target."""

    tables: Place
    owner: str

    @property
    def path(self) -> str:
        """The path of the small table."""
        return f"{RESERVED}/{self.owner}"

    @property
    def place(self) -> str:
        """The location of the checkpoint, for messages."""
        return f"Delta table {self.tables.uri(self.path)}"

    def _open(self) -> Any:
        return self.tables.open(self.path, "reading the target's checkpoint")

    def _text(self, table: Any) -> str:
        return str(table.metadata().configuration.get(PROPERTY, ""))

    def _create(self) -> None:
        schema = pa.schema([pa.field("unused", pa.string())])
        doing = "making the table of the target's checkpoint"
        try:
            with errors(self.tables, doing, self.path):
                library().DeltaTable.create(
                    self.tables.uri(self.path),
                    schema,
                    mode="ignore",
                    name=f"checkpoint of {self.owner}",
                    configuration=_TABLE,
                    storage_options=dict(self.tables.storage) or None,
                )
        except Raced:
            return

    def _commit(self, table: Any, wanted: Held | None, doing: str) -> None:
        delta = library()
        text = wanted.to_text(self.owner) if wanted is not None else ""
        epoch = wanted.checkpoint.epoch if wanted is not None else 0
        # all commits carry the same application, so that of two that read the same version one is refused
        noted = delta.CommitProperties(
            custom_metadata={"sluice.doing": doing},
            max_commit_retries=0,
            app_transactions=[delta.Transaction(f"sluice/{self.owner}", epoch)],
        )
        with errors(self.tables, doing, self.path):
            table.alter.set_table_properties({PROPERTY: text}, raise_if_not_exists=False, commit_properties=noted)
