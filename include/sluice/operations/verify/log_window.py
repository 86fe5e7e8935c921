"""The changes of the log between the read of the source and the read of the target, and when the target has reached a
position.

Why a difference is one. ``newest`` is read before the low watermark is written: everything in batches up to it was
visible to the read of the source. What the target held when it was read came from batches up to the one after its
checkpoint at that time, as batches are loaded in order. So a key that no batch in between contains was the same at the
source all that time, and the target holds all of the log up to the read: a difference is not in flight.

A key that changes all the time is in every window. Its expected state at the target is what the log left in the newest
batch that the target holds, as long as no later batch contains it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.coordination.cursor import Cursor
from sluice.coordination.state import PipelineState
from sluice.errors import ConfigError, OutOfOrder, Paused, SluiceError
from sluice.flows.runtime import Runtime
from sluice.flows.stored import kept_manifest
from sluice.flows.transform.segment_rows import MergePart, cut, read_changes
from sluice.merge.compact import compact
from sluice.model.batches import Op
from sluice.model.dumps import Marking
from sluice.model.offset import Offset
from sluice.model.packing import MAX_UNIT_ROWS
from sluice.model.tables import KEY_BUCKETS, TableId, TableSchema, distinct, stored_name
from sluice.segments.footers import measured
from sluice.segments.manifest import SegmentFile
from sluice.segments.reader import read_file
from sluice.sources.port import ChunkKey, Key
from sluice.targets.port import CheckpointStore

LOOK_EVERY_S = 0.05
LITERALS_AT_A_TIME = 100_000
REMEMBERED_KEYS = 2_000_000
"""Keys that are kept in memory, of the most recently compared batches together."""


def require_cursor(runtime: Runtime, state: PipelineState) -> Cursor:
    """Return the captured position; to be asked for before connecting to the source, so that a failover in between is
    noticed. Raises ConfigError before the first capture.
    """
    cursor = state.cursor()
    if cursor is None:
        raise ConfigError(
            f"{runtime.name} has not captured anything yet", hint=f"`sluice run {runtime.name}`, then verify"
        )
    return cursor


Hashes = np.ndarray[tuple[int], np.dtype[np.int64]]
"""Hashes of keys, sorted."""


@dataclass(frozen=True, slots=True)
class ChangedKeys:
    """Hashes of changed keys, eight bytes each.

    A key that merely has another one's hash counts as changed and is compared once more.
    """

    batches: tuple[Hashes, ...]

    def __contains__(self, key: Key) -> bool:
        key_hash = hash(key)
        for hashes in self.batches:
            at = int(np.searchsorted(hashes, key_hash))
            if at < len(hashes) and hashes[at] == key_hash:
                return True
        return False


@dataclass
class LogWindow:
    """The batches of one target.

    Attributes:
        patience_s: how long nothing may move before somebody is told.
        epoch: of the log whose places are waited for, see :attr:`Offset.log_epoch`; "": it is not known.
        checkpoints: of the target; None: it is not asked.
    """

    runtime: Runtime
    state: PipelineState
    target: str
    marking: Marking
    patience_s: float = 120.0
    epoch: str = ""
    checkpoints: CheckpointStore | None = None
    waits: Callable[[], None] = lambda: None
    _epoch_of_loads: int = -1
    _held: tuple[Offset | None, int] = (None, 0)
    _keys: dict[tuple[int, TableId], Hashes | None] = field(default_factory=dict)

    def newest(self) -> int:
        """Return the last batch that was captured."""
        cursor = self.state.cursor()
        return cursor.next_batch - 1 if cursor else 0

    def touched(self) -> int:
        """Return the last batch of which the target may have held a part, asked after it was read: at most one batch is
        being loaded.

        If another process took the target over since, it may have been any captured batch.
        """
        newest = self.newest()
        held_checkpoint = self.checkpoints.read() if self.checkpoints is not None else None
        if held_checkpoint is None or held_checkpoint.epoch != self._epoch_of_loads:
            self._epoch_of_loads = held_checkpoint.epoch if held_checkpoint is not None else -1
            return newest
        return min(newest, held_checkpoint.batch + 1)

    def visible(self, low: str, newest: int) -> int:
        """Return the last batch that was completely visible after the low watermark; ``newest`` was asked before it."""
        if self.marking is Marking.TABLE:
            return newest  # the mark was committed after everything that the log had before it
        batch = newest
        while batch > 0 and self._is_after(low, batch):
            batch -= 1
        return batch

    def _is_after(self, low: str, batch: int) -> bool:
        manifest = kept_manifest(self.state, self.runtime.store, batch)
        for file in manifest.files if manifest else ():
            rows = read_file(self.runtime.store, file, columns=["_gtid", "_file", "_offset"], verify=False)
            if rows.num_rows and self.runtime.source.after_low(self.marking, low, rows).any():
                return True
        return False

    def wait_for(self, place: str) -> int:
        """Wait until the target holds all of the log up to ``place``; return the batch that contains it.

        Raises Paused, or OutOfOrder if nothing moves.
        """
        held_offset, batch = self._held
        if held_offset is not None and held_offset.has_reached(place):
            return batch
        reached: Cursor | None = None
        last_state, since = None, time.monotonic()
        while True:
            cursor, process = self.state.cursor(), self.state.acks.get(self.target)
            self._require_log(cursor)
            if reached is None and cursor is not None and cursor.position.has_reached(place):
                reached = cursor
            batch = process.batch if process else 0
            if reached is not None and batch >= reached.next_batch - 1:
                self._held = reached.position, reached.next_batch - 1
                return self._held[1]
            now = (cursor.position.order if cursor else None, batch)
            if now != last_state:
                last_state, since = now, time.monotonic()
            self._require_movement(place, since)
            self.waits()
            time.sleep(LOOK_EVERY_S)

    def _require_log(self, cursor: Cursor | None) -> None:
        if not self.epoch or cursor is None or cursor.position.log_epoch == self.epoch:
            return
        name = self.runtime.name
        raise OutOfOrder(
            f"the source of {name} failed over during the verification: {self.epoch} was read, now it is "
            f"{cursor.position.log_epoch}",
            where=f"target {self.target}",
            hint=f"`sluice verify {name}` compares with the server that is read now",
        )

    def _require_movement(self, place: str, since: float) -> None:
        switch, name = self.state.pause_switch.read(), self.runtime.name
        if not switch.open:
            raise Paused(
                f"{name} is paused by {switch.by}: target {self.target} does not reach the rows that were read at the "
                "source",
                where=f"target {self.target}",
                hint=f"`sluice resume {name}`, then verify again",
            )
        if time.monotonic() - since > self.patience_s:
            raise OutOfOrder(
                f"target {self.target} did not reach {place} of the source's log: nothing moved for "
                f"{self.patience_s:.0f} s",
                where=f"target {self.target}",
                hint=f"the sync DAG or `sluice run {name}` must be running; `sluice status {name}` says what it waits "
                "for",
            )

    @contextmanager
    def while_it_moves(self, stop: threading.Event, what: str) -> Iterator[None]:
        """Set ``stop`` if nothing moves for ``patience_s`` or somebody pauses the pipeline, and raise that when the
        context ends.

        ``what``: is waited for. Raises Paused, OutOfOrder, RetryableError.
        """
        errors: list[SluiceError] = []
        ended = threading.Event()

        def look() -> None:
            last_state, since = None, time.monotonic()
            try:
                while not ended.wait(LOOK_EVERY_S * 10):
                    cursor, process = self.state.cursor(), self.state.acks.get(self.target)
                    now = (cursor and (cursor.position.place, cursor.next_batch), process and process.batch)
                    if now != last_state:
                        last_state, since = now, time.monotonic()
                    self._require_movement(what, since)
            except SluiceError as error:
                errors.append(error)
                stop.set()

        thread = threading.Thread(target=look, name="verify-patience", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        if errors:
            raise errors[0]

    def still_holds(self, batch: int) -> bool:
        """Return False if the target was set back meanwhile, for a redelivery."""
        process = self.state.acks.get(self.target)
        return process is not None and process.batch >= batch

    def settled(self, within_s: float = 2.0) -> int:
        """Return the batch that the target holds, waiting up to ``within_s`` seconds for it to hold the newest one."""
        until = time.monotonic() + within_s
        while True:
            newest, process = self.newest(), self.state.acks.get(self.target)
            held_batch = process.batch if process else 0
            if held_batch >= newest or time.monotonic() > until:
                return held_batch
            time.sleep(LOOK_EVERY_S / 5)

    def as_logged(
        self, schema: TableSchema, key: ChunkKey, wanted_keys: frozenset[Key], after: int, upto: int
    ) -> tuple[list[pa.Table], frozenset[Key]]:
        """Return rows (SELECTED_ROWS) of keys as the newest of the batches ``after`` < n <= ``upto`` left them, and the
        known keys.

        A known key without a row was deleted. Keys are unknown if no batch contains them, or if the log has only some
        of their columns.
        """
        names = [stored_name(column.name) for column in schema.columns]
        keys = [stored_name(name) for name in key.names]
        remaining, known_keys = set(wanted_keys), set[Key]()
        rows: list[pa.Table] = []
        for batch in range(upto, after, -1):
            for piece in self._merged(batch, schema.table) if remaining else ():
                if any(
                    n not in piece.schema.names or piece.schema.field(n).type != schema.arrow_schema.field(n).type
                    for n in names
                ):
                    return rows, frozenset(known_keys)  # the table had another definition
                literals = self.runtime.source.keys.literals(key.columns, piece.select(keys))
                places = [place for place, literal in enumerate(literals) if literal in remaining]
                some = piece.take(pa.array(places, pa.int64()))
                mask = (
                    pc.is_null(some["_present"])
                    if "_present" in some.schema.names
                    else pa.array([True] * len(places), pa.bool_())
                )
                hits = [literals[place] for place in places]
                known_keys.update(literal for literal, is_whole in zip(hits, mask.to_pylist(), strict=True) if is_whole)
                remaining.difference_update(hits)
                rows.append(some.filter(pc.and_(mask, pc.not_equal(some["_op"], "d"))).select(names))
        return rows, frozenset(known_keys)

    def _merged(self, batch: int, table: TableId) -> Iterator[pa.Table]:
        """Yield MERGED_ROWS of one table of a batch."""
        manifest, store = kept_manifest(self.state, self.runtime.store, batch), self.runtime.store
        files = [file for file in manifest.files if file.table_id == table] if manifest else []
        for part in cut(MergePart(table, measured(store, files), (0, KEY_BUCKETS)), MAX_UNIT_ROWS) if files else ():
            read = read_changes(store, part)
            yield compact(read.changes, read.key)

    def changed(self, table: TableId, key: ChunkKey, after: int, upto: int) -> ChangedKeys | None:
        """Return the keys that batches ``after`` < n <= ``upto`` contain; None if that is unknown, so that it may be
        any key.
        """
        hashes: list[Hashes] = []
        for batch in range(after + 1, upto + 1):
            keys = self._changed_in(batch, table, key)
            if keys is None:
                return None
            hashes.append(keys)
        return ChangedKeys(tuple(hashes))

    def _changed_in(self, batch: int, table: TableId, key: ChunkKey) -> Hashes | None:
        cache_key = (batch, table)
        if cache_key not in self._keys:
            keys = self._read(batch, table, key)
            while self._keys and self._remembered() > REMEMBERED_KEYS:
                del self._keys[next(iter(self._keys))]
            self._keys[cache_key] = keys
        return self._keys[cache_key]

    def _remembered(self) -> int:
        return sum(len(keys) + 100 for keys in self._keys.values() if keys is not None)

    def _read(self, batch: int, table: TableId, key: ChunkKey) -> Hashes | None:
        manifest = kept_manifest(self.state, self.runtime.store, batch)
        if manifest is None or any(ddl.table in {None, str(table)} for ddl in manifest.ddl):
            return None
        names = [stored_name(name) for name in key.names]
        hashes: list[Hashes] = [np.zeros(0, np.int64)]
        for file in manifest.files:
            if file.table_id != table or not file.inserts + file.updates + file.deletes:
                continue
            if tuple(file.primary_key) != key.names:
                return None
            rows = read_file(self.runtime.store, file, columns=[*names, "_op"], verify=False)
            rows = distinct(rows.filter(pc.not_equal(rows["_op"], Op.READ.value)).select(names))
            if any(column.null_count for column in rows.columns):
                return None
            for start in range(0, rows.num_rows, LITERALS_AT_A_TIME):
                literals = self.runtime.source.keys.literals(key.columns, rows.slice(start, LITERALS_AT_A_TIME))
                hashes.append(np.fromiter(map(hash, literals), np.int64, len(literals)))
        return np.unique(np.concatenate(hashes))

    def files(self, batch: int, table: TableId, unknown: type[Exception]) -> list[SegmentFile]:
        """Return the files of a batch that change rows of a table.

        Raises ``unknown`` if that is not known, or its definition changed.
        """
        manifest = kept_manifest(self.state, self.runtime.store, batch)
        if manifest is None or any(ddl.table in {None, str(table)} for ddl in manifest.ddl):
            raise unknown
        return [file for file in manifest.files if file.table_id == table and file.rows]


__all__ = ["LogWindow"]
