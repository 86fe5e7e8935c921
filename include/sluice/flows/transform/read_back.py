"""Rows of old changes as the source has them now: ``read_back_after`` of a channel.

What was changed long ago (the link was cut, a pipeline was paused) may have been changed again since. Sent as logged,
it would overwrite newer rows with older ones at a site that users write to. So the row of an old change is read by its
key at the source, and its current state is sent; or a delete.

Why this is correct. Whatever changed the row after this batch is in a later batch, and is sent then, too, as logged or
as it is at that time. The last of these changes leaves the row as it is at the source. Until then the target may see a
state twice, or an older one once more. Rows are read after the merge and before the rules, which see what is sent. A
batch that is merged again reads again: each state of a row since its change is a right one, and the acknowledgement
still says how far the *log* is delivered. A repeated load writes what the first attempt did, unless its changeset is
old itself by then: it is merged again (:mod:`sluice.flows.load.load`).

The following is sent as logged all the same, because later rows cannot be told apart, would not fit, or stop the batch:

* rows of a table without a primary key, and rows whose key is unknown;
* rows of a table that has other columns or another key now, or is gone: the statements come later in the log;
* rows of a table with further unique keys, or written with foreign keys checked: the value that a row has now may still
  be that of another row at the target, or refer to a row that is not there yet;
* keys that the source finds under another spelling;
* everything while the source does not answer: it may be gone for good, and what was captured of it is delivered.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog

from sluice.config.pipeline import PipelineConfig
from sluice.coordination.state import PipelineState
from sluice.errors import SourceUnavailable
from sluice.flows.runtime import Runtime
from sluice.mapping.changed import differs
from sluice.merge.compact import user_columns
from sluice.merge.group_codes import dense, group_codes
from sluice.model.dumps import Chunk, ChunkId, Marking, TableRequest
from sluice.model.fields import KIND, key_columns
from sluice.model.tables import TableId, TableSchema, member, stored_name
from sluice.segments.manifest import SegmentManifest

_log = structlog.get_logger()

KEYS_A_SELECT = 2_000
_ABSENT = -1


@dataclass(frozen=True, slots=True)
class ReadBack:
    """Reads rows at the source again. Picklable.

    Attributes:
        runtime: knows the source's connection.
        before_us: changes committed earlier (microseconds since 1970) are old.
        tables: whose rows may be read.
    """

    runtime: Runtime
    before_us: int
    tables: frozenset[TableId]

    def renewed(self, rows: pa.Table, source: TableId) -> tuple[pa.Table, int]:
        """Return MERGED_ROWS with rows of old changes as the source has them now, and how many were read.

        Raises ConfigError.
        """
        if source not in self.tables:
            return rows, 0
        names = key_columns(rows.schema)
        old = pc.less(rows["_commit_ts"].cast(pa.int64()), self.before_us)
        for name in names:
            old = pc.and_(old, pc.is_valid(rows[name]))
        places = np.flatnonzero(old.to_numpy())
        if not names or not len(places):
            return rows, 0
        old_keys = rows.select(names).take(pa.array(places))
        try:
            fresh = self._now(source, rows.schema, old_keys)
        except SourceUnavailable as error:
            _not_read(self.runtime.name, error)
            return rows, 0
        if fresh is None:
            return rows, 0
        codes, count = dense(group_codes(pa.concat_tables([old_keys, fresh.select(names)]), names))
        row_of = np.full(count, _ABSENT, np.int64)
        row_of[codes[len(places) :]] = np.arange(fresh.num_rows)
        at = row_of[codes[: len(places)]]
        alive = at != _ABSENT
        if alive.sum() < fresh.num_rows:  # some keys have another spelling, so that it is unknown which key is missing
            places, at = places[alive], at[alive]
        return replaced(rows, places, at, fresh), len(places)

    def _now(self, source: TableId, row_schema: pa.Schema, key_rows: pa.Table) -> pa.Table | None:
        """Read the rows of keys, with the user columns of ``row_schema``; None if the table has others by now."""
        users = user_columns(row_schema)
        with self.runtime.source.open_chunks(Marking.GTID, "read-back") as reader:
            schema = reader.schema(source)
            if not _same_columns(schema, pa.schema([row_schema.field(name) for name in users])):
                return None
            by_name = {stored_name(column.name): column for column in schema.columns}
            keys = self.runtime.source.keys.literals([by_name[name] for name in key_rows.column_names], key_rows)
            some = [keys[at : at + KEYS_A_SELECT] for at in range(0, len(keys), KEYS_A_SELECT)]
            request = TableRequest(source, key_file="-")
            pieces = list(reader.rows(request, Chunk(ChunkId("read-back", 0, 0)), some))
        named = [piece.rename_columns([stored_name(column.name) for column in schema.columns]) for piece in pieces]
        fields = pa.schema([row_schema.field(name) for name in users])
        return pa.concat_tables([fields.empty_table(), *(piece.select(users).cast(fields) for piece in named)])


def replaced(rows: pa.Table, places: np.ndarray[Any, Any], at: np.ndarray[Any, Any], fresh: pa.Table) -> pa.Table:
    """Return MERGED_ROWS in which the rows ``places`` are replaced by the rows ``at`` of ``fresh``, or deleted (-1).

    The columns that count as changed stay as the log has them: a column that an update does not change gets its current
    value in the state before the batch, too (another writer's, which may be newer at the target). Likewise for a row of
    which the log has only some columns.
    """
    users = user_columns(rows.schema)
    exists = at != _ABSENT
    sources = np.arange(rows.num_rows)
    sources[places[exists]] = rows.num_rows + at[exists]
    images = pa.concat_tables([rows.select(users), fresh.select(users)]).take(pa.array(sources))
    ops = np.asarray(rows["_op"].to_pylist(), object)
    updated = np.zeros(rows.num_rows, bool)
    updated[places[exists & (ops[places] == "u")]] = True
    came_back = places[exists & (ops[places] == "d")]
    ops[came_back], ops[places[~exists]] = "i", "d"
    renewed = rows
    for number, name in enumerate(rows.schema.names):
        field = rows.schema.field(number)
        if name in users:
            renewed = renewed.set_column(number, field, images[name])
        elif name == "_before":
            renewed = renewed.set_column(number, field, _before(rows, images, updated))
        elif name == "_op":
            renewed = renewed.set_column(number, field, pa.array(ops.tolist(), field.type))
        elif name == "_present":
            is_whole = np.zeros(rows.num_rows, bool)
            is_whole[came_back] = True
            present = pc.if_else(pa.array(is_whole), pa.scalar(None, field.type), rows[name])
            renewed = renewed.set_column(number, field, present)
    return renewed.combine_chunks()


def _before(rows: pa.Table, images: pa.Table, updated: np.ndarray[Any, Any]) -> pa.StructArray:
    """Return the state before the batch, with ``updated`` rows as :func:`replaced` describes."""
    stored = rows["_before"].combine_chunks()
    children = []
    for child in stored.type:
        then = member(stored, child.name)
        same = updated & ~differs(rows[child.name].combine_chunks(), stored, child.name)
        children.append(pc.if_else(pa.array(same), images[child.name].combine_chunks(), then))
    return pa.StructArray.from_arrays(children, fields=list(stored.type), mask=pc.is_null(stored))


def plan_read_back(runtime: Runtime, state: PipelineState, manifest: SegmentManifest) -> ReadBack | None:
    """Return the reader of the rows of a batch that are read at the source again; None if there are none.

    Raises ConfigError.
    """
    after = runtime.read_back_after
    if after is None or not manifest.files:
        return None
    before_us = age_limit_us(after)
    oldest_us = manifest.first_commit_time_us
    if not oldest_us or oldest_us >= before_us or _checks_foreign_keys(runtime.pipeline):
        return None
    keyless = {file.table_id for file in manifest.files if not file.primary_key}
    changed = {file.table_id for file in manifest.files} - keyless
    at_workers = runtime.at_workers(state)
    try:
        with at_workers.source.open() as session:
            known_tables = session.tables(changed.__contains__)
    except SourceUnavailable as error:
        _not_read(runtime.name, error)
        return None
    tables = frozenset(table.id for table in known_tables if not table.unknown and len(table.unique) <= 1)
    return ReadBack(at_workers, before_us, tables) if tables else None


def _not_read(name: str, error: SourceUnavailable) -> None:
    """Warn that rows are delivered as the log has them, because the source does not answer."""
    _log.warning("reselect_skipped", pipeline=name, error=error.message)


def age_limit_us(after: timedelta) -> int:
    """Return the time, in microseconds since 1970, before which a commit counts as old."""
    return (time.time_ns() - round(after.total_seconds() * 1e9)) // 1000


def _checks_foreign_keys(pipeline: PipelineConfig) -> bool:
    return any(target.options.get("foreign_keys") == "ordered" for target in pipeline.targets)


def _same_columns(now: TableSchema, then: pa.Schema) -> bool:
    fields = {field.name: field for field in map(now.field, now.columns)}
    if set(fields) != set(then.names) or [stored_name(name) for name in now.primary_key] != key_columns(then):
        return False
    return all(_kind(fields[field.name]) == _kind(field) for field in then)


def _kind(field: pa.Field) -> Sequence[Any]:
    return field.type, (field.metadata or {}).get(KIND)


__all__ = ["ReadBack", "plan_read_back", "replaced"]
