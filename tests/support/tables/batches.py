"""Batches made by hand, without a log: tables of changes go through the real store, merge, rules, mapping and
target.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from sluice.config.connections import Endpoint, parse_connection
from sluice.config.pipeline import PipelineConfig
from sluice.flows.load.units import batch_input, load_units, run_load_unit
from sluice.flows.transform.changeset_writer import write_changeset_manifest
from sluice.flows.transform.merge_units import plan_merge, run_merge_unit
from sluice.model.column_types import ColumnKind
from sluice.model.offset import Offset
from sluice.model.tables import Column, TableId, TableSchema
from sluice.segments.buckets import key_bucket
from sluice.segments.changeset import Changeset
from sluice.segments.manifest import SegmentManifest
from sluice.segments.store import SegmentStore
from sluice.segments.writer import SegmentWriter
from sluice.spark.local import LocalRunner
from sluice.targets import open_target
from sluice.targets.port import BatchWriter, Checkpoint, CheckpointStore, Target, WriteResult

COMMIT = dt.datetime(2026, 11, 21, tzinfo=dt.UTC)
Row = dict[str, Any]


class Delivery:
    """One pipeline with one target: writes batches, merges them, loads them."""

    def __init__(
        self, folder: Path, server: Any, *, rules: Path | None = None, runner: Any = None, **pipeline: Any
    ) -> None:
        target = {"name": "copy", "type": "mysql", "connection": "target", **pipeline.pop("target", {})}
        self.config = PipelineConfig.model_validate({
            "pipeline": pipeline.pop("name", "p"),
            "source": {"connection": "source"},
            "targets": [target],
            **pipeline,
        })
        self.folder, self.rules, self.runner = folder, rules, runner or LocalRunner()
        self.server = server
        self.store = SegmentStore(folder.as_uri(), self.config.pipeline)
        self.batch = 0
        self.attempt = 0
        self.epoch = 1

    def resolver(self, connection_id: str) -> Endpoint:
        return parse_connection(connection_id, self.server.connection_json())

    @property
    def target(self) -> Target:
        return open_target(self.config.targets[0], self.resolver, self.config.pipeline)

    def write(self, tables: Mapping[TableSchema, Sequence[Row] | pa.Table]) -> SegmentManifest:
        """The next batch.

        Rows are dicts of column values with ``_op`` and, for updates, ``_before``; a key change makes its ``k`` row.
        """
        self.batch += 1
        writer = SegmentWriter(self.store, self.batch, 1)
        changes = 0
        for schema, rows in tables.items():
            table = rows if isinstance(rows, pa.Table) else segment_rows(schema, rows)
            writer.add(schema, table)
            changes += table.num_rows
        return self._finished(writer, changes)

    def write_parts(self, schema: TableSchema, parts: Sequence[pa.Table]) -> SegmentManifest:
        """The next batch, in so many files."""
        self.batch += 1
        writer = SegmentWriter(self.store, self.batch, 1, part_bytes=1)
        for part in parts:
            writer.add(schema, part)
        return self._finished(writer, sum(part.num_rows for part in parts))

    def _finished(self, writer: SegmentWriter, changes: int) -> SegmentManifest:
        position = Offset.at("uuid", "binlog.000001", 4 + self.batch)
        return writer.finish(
            first=Offset.at("uuid", "binlog.000001", 3 + self.batch),
            last=position,
            first_commit_time_us=0,
            last_commit_time_us=0,
            changes=changes,
            transactions=1,
            log_bytes=changes * 100,
        )

    def merge(self, manifest: SegmentManifest) -> Changeset:
        self.attempt += 1
        attempt = f"a{self.attempt}"
        units = plan_merge(self.store, manifest, self.config, self.rules, attempt)
        return write_changeset_manifest(self.store, manifest, attempt, self.runner.run(run_merge_unit, units))

    def writer(self, changeset: Changeset, epoch: int | None = None) -> BatchWriter:
        """A batch of the target's own, begun."""
        with self.target.open(epoch or self.epoch) as session:
            return session.begin(batch_input(self.store, changeset))

    def plan(self, changeset: Changeset, epoch: int | None = None) -> Any:
        """Phases of units that can travel."""
        config = self.config.targets[0]
        phases = self.writer(changeset, epoch).plan(config.parallelism)
        return load_units(phases, self.store, config, changeset.manifest.batch, "")

    def load(self, changeset: Changeset, *, phases: int | None = None, finish: bool = True) -> list[WriteResult]:
        """Begin, load (only the first ``phases``), finish."""
        self.begin(self.epoch)
        results: list[WriteResult] = []
        for phase in self.plan(changeset)[:phases]:
            results += self.runner.run(run_load_unit, phase, parallelism=self.config.targets[0].parallelism)
        if finish and phases is None:
            self.finish(self.epoch, changeset.manifest.batch, changeset.manifest.last)
        return results

    @property
    def held(self) -> int:
        """The batch that the target says it holds."""
        found = self.checkpoints.read()
        return found.batch if found else 0

    @property
    def checkpoints(self) -> CheckpointStore:
        """The target's."""
        found = self.target.checkpoints
        assert found is not None
        return found

    def begin(self, epoch: int, first: int = 0) -> int:
        """Take the target over; the batch that it holds."""
        return self.checkpoints.take_over(epoch, first).batch

    def finish(self, epoch: int, batch: int, position: Offset) -> None:
        """The batch is written."""
        self.checkpoints.advance(Checkpoint(epoch, batch, position))

    def reset(self, epoch: int, batch: int, position: Offset) -> None:
        """An earlier batch is what the target holds."""
        self.checkpoints.rewind(Checkpoint(epoch, batch, position))

    def deliver(self, tables: Mapping[TableSchema, Sequence[Row] | pa.Table]) -> Changeset:
        changeset = self.merge(self.write(tables))
        self.load(changeset)
        return changeset


def segment_rows(schema: TableSchema, rows: Sequence[Row]) -> pa.Table:
    """Rows as capture writes them."""
    stored: list[Row] = []
    for seq, row in enumerate(rows):
        before = row.get("_before")
        full = {**before, **row} if before else dict(row)
        if before is not None:
            full["_before"] = {c.name: before.get(c.name) for c in schema.columns}
        meta = {
            "_seq": seq,
            "_file": "binlog.000001",
            "_offset": seq,
            "_row": 0,
            "_commit_ts": COMMIT,
            "_txn": 0,
            "_origin": 1,
            "_bucket": 0,
        }
        stored.append({**full, **meta})
        if full["_op"] == "u" and any(full["_before"][k] != full[k] for k in schema.primary_key):
            stored.append({**full["_before"], **meta, "_op": "k"})
    return with_buckets(schema, pa.Table.from_pylist(stored, schema=schema.arrow_schema))


def with_buckets(schema: TableSchema, table: pa.Table) -> pa.Table:
    """``_bucket`` filled in."""
    keys = [table[name].combine_chunks() for name in schema.primary_key]
    buckets = key_bucket(schema.table.schema, schema.table.table, keys, table.num_rows)
    index = table.schema.get_field_index("_bucket")
    return table.set_column(index, table.schema.field(index), pa.array(buckets))


def checksum(server: Any, table: str) -> int:
    """``CHECKSUM TABLE``."""
    return int(server.execute(f"CHECKSUM TABLE {table}")[0][1])


def one_row(number: int) -> tuple[TableSchema, pa.Table]:
    """(definition, a table of one row) of table ``number``."""
    schema = TableSchema(TableId("s", f"t{number:05d}"), (Column("id", ColumnKind.INT, "int", False),), ("id",))
    row = {
        "id": 0,
        "_op": "i",
        "_seq": number,
        "_file": "b.1",
        "_offset": 4,
        "_row": 0,
        "_txn": 0,
        "_origin": 1,
        "_bucket": 0,
    }
    columns = [
        pa.array([row.get(f.name)], f.type) if f.name != "_commit_ts" else pa.array([0], f.type)
        for f in schema.arrow_schema
    ]
    return schema, pa.Table.from_arrays(columns, schema=schema.arrow_schema)
