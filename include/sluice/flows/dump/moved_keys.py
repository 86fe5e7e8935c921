"""Rows that moved past a copy and of which the log has only the changed columns (``binlog_row_image`` MINIMAL or
NOBLOB).

A row that moves from a range that is not read yet to one that has been read is in no chunk. If the log contains whole
rows, it is taken from there. Otherwise neither a chunk nor the log has its other columns, and the target, which waits
for the copy of the row, cannot complete it. So the capture notes the keys of such rows, and a dump of those keys copies
each as it is by then.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog

from sluice.coordination.state import PipelineState
from sluice.flows.dump.key_lists import stored_keys, write_keys
from sluice.merge.column_presence import masks
from sluice.model.batches import Op
from sluice.model.dumps import MOVED, Dump, TablePlanned, TableRequest
from sluice.model.tables import TableId, TableSchema, member, stored_name
from sluice.segments.manifest import SegmentFile
from sluice.segments.reader import read_file
from sluice.segments.store import SegmentStore
from sluice.sources.port import KeyText

_ALL = 2**62
_log = structlog.get_logger()


def dump_moved(
    state: PipelineState,
    store: SegmentStore,
    text_of: KeyText,
    files: Sequence[SegmentFile],
    partial: Mapping[tuple[TableId, str], TableSchema],
    dumps: Sequence[Dump],
    *,
    batch: int,
    epoch: int,
) -> list[str]:
    """Record a dump of the keys of such rows in a batch, for each of ``dumps`` that is not over.

    Dumps for the same targets share one: a dump of moved rows is one of ``dumps`` in the next batch, and with one for
    each of them their number would double with every batch.

    Before the batch is committed: whoever drains it again under another epoch records one of his own, and the other
    does no harm.

    Args:
        partial: definitions of rows of the batch of which the log brought a part, by table and version.

    Returns: the ids of the dumps.
    """
    changed = [f for f in files if f.updates and (f.table_id, f.schema_version) in partial]
    dump_ids: list[str] = []
    keys_by_group: dict[tuple[Any, ...], set[tuple[str, ...]]] = {}
    for dump in dumps if changed else ():
        id_ = f"moved-{batch:010d}-e{epoch:06d}-{len(dump_ids)}"
        requests: list[TableRequest] = []
        for ordinal, request in enumerate(dump.tables):
            own_files = [f for f in changed if f.table_id == request.table]
            if not own_files or request.keyless or _is_over(state, dump, ordinal, request):
                continue
            shared = keys_by_group.setdefault((dump.targets, dump.marking, request.table, request.identity), set())
            keys = [key for key in _moved_keys(store, text_of, own_files, partial, request) if key not in shared]
            shared.update(keys)
            if keys:
                path = f"dumps/{id_}/keys-{len(requests):04d}.parquet"
                write_keys(store, path, keys)
                requests.append(
                    TableRequest(request.table, key_file=path, estimate=len(keys), identity=request.identity)
                )
        if requests:
            now = int(time.time() * 1000)
            again = Dump(
                id_, tuple(requests), dump.targets, tuning=dump.tuning, marking=dump.marking, reason=MOVED, by=dump.by,
                created_ms=now,
                note=f"rows that moved while dump {dump.id} read their tables, and of which the log brought a part",
            )  # fmt: skip
            state.dumps.create(again)
            dump_ids.append(id_)
            _log.info("dump_recorded", dump=id_, tables=len(requests), reason=MOVED, parent=dump.id)
    return dump_ids


def _is_over(state: PipelineState, dump: Dump, ordinal: int, request: TableRequest) -> bool:
    """Return True if a moved row needs no further read.

    That is so if every row of the table is placed, or if none of a whole table is read yet: a later chunk then has the
    row where it is now.
    """
    plan = state.dumps.planned(dump.id, ordinal)
    is_whole_table = not (request.key_file or request.where or request.lower or request.upper)
    if is_whole_table and replace(plan, version=-1) == TablePlanned():
        return True
    return plan.exhausted and not any(chunk.id.table == ordinal for chunk in state.dumps.chunks(dump.id))


def _moved_keys(
    store: SegmentStore,
    text_of: KeyText,
    files: Iterable[SegmentFile],
    partial: Mapping[tuple[TableId, str], TableSchema],
    request: TableRequest,
) -> list[tuple[str, ...]]:
    """Return literals of the keys under which moved rows are now.

    If the dump follows another index than the key, every update may move a row. Of a list of keys, only the rows
    matter that were under one of them.
    """
    every = bool(request.index or request.identity)
    moves: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for file in files:
        if file.moved_partially or every:
            schema = partial[file.table_id, file.schema_version]
            key = request.identity or schema.primary_key
            rows = read_file(store, file, columns=[*map(stored_name, key), "_op", "_present", "_before"], verify=False)
            columns = [next(c for c in schema.columns if c.name == name) for name in key]
            then, now = _keys_of(rows, schema, key, every=every)
            for old, new in zip(text_of.literals(columns, then), text_of.literals(columns, now), strict=True):
                moves.setdefault(old, []).append(new)
    if every or not request.key_file:
        return list(dict.fromkeys(new for news in moves.values() for new in news))
    moved_keys: dict[tuple[str, ...], None] = {}
    waiting = [key for piece in stored_keys(store, request.key_file, 0, _ALL) for key in piece if key in moves]
    while waiting:  # a row that moved several times
        for new in moves[waiting.pop()]:
            if new not in moved_keys:
                moved_keys[new] = None
                waiting += [new] if new in moves else []
    return list(moved_keys)


def _keys_of(rows: pa.Table, schema: TableSchema, key: Sequence[str], *, every: bool) -> tuple[pa.Table, pa.Table]:
    """Return the old and the current keys of updated rows whose present state the log has only in part: those whose
    key changed, or with ``every`` all of them.
    """
    rows = rows.filter(pc.and_(pc.equal(rows["_op"], Op.UPDATE.value), pc.is_valid(rows["_present"])))
    known_mask, _ = masks(rows["_present"], len(schema.columns))
    users = [stored_name(c.name) for c in schema.columns]
    before = rows["_before"].combine_chunks()
    moved, then, now = np.full(rows.num_rows, every), {}, {}
    for name in map(stored_name, key):
        was, own = member(before, name), rows[name].combine_chunks()
        then[name] = was
        now[name] = pc.if_else(pa.array(known_mask[:, users.index(name)]), own, was)
        moved |= ~pc.fill_null(pc.equal(now[name], was), False).to_numpy(zero_copy_only=False)
    chosen = pa.array(moved & ~known_mask.all(axis=1))
    return pa.table(then).filter(chosen), pa.table(now).filter(chosen)


__all__ = ["dump_moved"]
