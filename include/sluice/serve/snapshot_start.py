"""The rows that a read begins with which starts from the pipeline's snapshot: those of a batch, as reads of a copy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from sluice.config.pipeline import SNAPSHOT
from sluice.coordination.acknowledgements import Acknowledgement
from sluice.coordination.state import PipelineState
from sluice.errors import ConfigError, SegmentError, TargetUnavailable
from sluice.flows.runtime import Runtime
from sluice.flows.snapshot.rows import SnapshotTable, SnapshotTables
from sluice.flows.snapshot.versions import snapshot_reader, whole_batch
from sluice.flows.stored import known_again
from sluice.model.batches import BatchNumber, Op
from sluice.model.tables import META_FIELDS, TableId, user_schema
from sluice.operations.snapshot import snapshot_tables
from sluice.serve.batch_rows import BatchRows, Shaped, Wants
from sluice.sources import executed
from sluice.targets.port import VersionReader


@dataclass(frozen=True)
class SnapshotStart:
    """The snapshot as of ``held.batch``: the read goes on with the batch after it."""

    rows: BatchRows
    reader: VersionReader
    held: Acknowledgement
    tables: tuple[SnapshotTable, ...]
    source_type: str

    @classmethod
    def of(cls, runtime: Runtime, state: PipelineState, rows: BatchRows, wants: Wants) -> SnapshotStart:
        """Start from the newest batch that the snapshot holds.

        Raises ConfigError, MappingError, LoadError, TargetUnavailable.

        While batches that were written together are acknowledged one by one, the newest is the one before them, if what
        follows it is stored.
        """
        held_acknowledgement = state.acks.get(SNAPSHOT) if runtime.pipeline.snapshot is not None else None
        if held_acknowledgement is None:
            raise ConfigError(
                f"{runtime.name} has no snapshot to start from", hint="docs/snapshot.md says how to keep one"
            )
        reader = snapshot_reader(runtime.open_target(SNAPSHOT))
        held_acknowledgement = _whole(runtime, state, reader, held_acknowledgement)
        tables = SnapshotTables(runtime, reader, held_acknowledgement.batch, held_acknowledgement.position).every(
            state, wants
        )
        return cls(rows, reader, held_acknowledgement, tuple(tables), runtime.pipeline.source.type)

    @property
    def batch(self) -> int:
        """The batch as of which the rows are."""
        return self.held.batch

    def columns(self) -> Iterator[tuple[TableId, pa.Schema]]:
        """Yield the user's columns of the tables, as readers get them."""
        for table in self.tables:
            shown_schema = self.rows.without_hidden(table.schema.empty_table(), table.source).schema
            yield table.route.target, user_schema(shown_schema)

    def pieces(self, shaped: Shaped) -> Iterator[tuple[TableId, pa.Table]]:
        """Yield all rows, table by table. Raises MappingError, LoadError, TargetUnavailable, SchemaMoved."""
        position = self.held.position
        file, offset = position.row_place
        constants = {
            "_op": Op.READ.value, "_commit_ts": position.commit_time_us, "_file": file, "_offset": offset, "_row": 0,
            "_txn": 0,
            "_origin": 0,
        }  # fmt: skip
        for table in self.tables:
            more = [field for field in META_FIELDS if field.name not in table.schema.names and field.name != "_present"]
            for rows in table.pieces(self.reader, constants, more):
                yield table.route.target, shaped(table.route.target, self.rows.without_hidden(rows, table.source))

    @property
    def reset(self) -> bytes:
        """The message before the first row: the reader drops what it has of these tables, as all of their rows
        follow.
        """
        return json.dumps({"reset": {"batch": self.batch}}, separators=(",", ":")).encode()

    @property
    def mark(self) -> bytes:
        """The mark after the last row: as after a stored batch, and that these were rows of the snapshot."""
        position = self.held.position
        fields = {
            "batch": self.batch,
            "position": position.place,
            "gtid_set": executed(self.source_type, position),
            "commit_time_us": position.commit_time_us,
            "statements": [],
            "snapshot": True,
        }
        return json.dumps(fields, separators=(",", ":")).encode()


def _whole(runtime: Runtime, state: PipelineState, reader: VersionReader, held_ack: Acknowledgement) -> Acknowledgement:
    """Return ``held_ack``, or an earlier batch of which all tables can be read. Raises TargetUnavailable, LoadError."""
    batch = whole_batch(reader, snapshot_tables(runtime, state), held_ack.batch)
    if batch == held_ack.batch:
        return held_ack
    try:
        first, *_ = [
            known_again(runtime.state, runtime.store, SNAPSHOT, number) for number in range(batch, held_ack.batch + 1)
        ]
        return replace(held_ack, batch=BatchNumber(batch), position=first.last)
    except SegmentError as error:
        raise TargetUnavailable(
            f"the snapshot of {runtime.name} is being written, and cannot be read as of batch {held_ack.batch}",
            hint=f"read again soon; `sluice targets commit {runtime.name} {SNAPSHOT}` writes all of it",
        ) from error
