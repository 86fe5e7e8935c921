"""A batch on the driver, and the units that write it: first the keys that rows leave, then the rows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import LoadError
from sluice.model.batches import Op
from sluice.model.fields import is_masked, true_name
from sluice.targets.messages.definitions import require_not_converted, require_not_stopped
from sluice.targets.messages.pieces import merged_parts
from sluice.targets.messages.read_back import listed_keys
from sluice.targets.messages.row_texts import BYTES
from sluice.targets.port import (
    BatchInput,
    Checkpoint,
    Fence,
    Input,
    KeyRange,
    RejectedRows,
    Rejection,
    RowFile,
    RowReader,
    StoredRange,
    TableInput,
    WriteResult,
)
from sluice.targets.redis.checkpoint import RedisCheckpoints, guarded, read_checkpoint
from sluice.targets.redis.client import Client, connected
from sluice.targets.redis.follow import follow
from sluice.targets.redis.held_rows import held_rows, shown_key
from sluice.targets.redis.place import Place
from sluice.targets.redis.rows import PackedRows, TableRows, content
from sluice.targets.redis.scripts import MOVE
from sluice.targets.redis.sender import RowSender
from sluice.targets.redis.streams import StreamUnit
from sluice.targets.redis.tables import definitions, index_spec, require

_ROWS = 20_000
"""Rows that become arguments at a time."""
_MARK = "moved:"


@dataclass(frozen=True)
class RedisWriter:
    """See :class:`sluice.targets.port.BatchWriter`."""

    place: Place
    input: Input
    batch: BatchInput
    fence: Fence

    def prepare(self) -> None:
        """Follow the schema changes that precede the rows. Raises LoadError, Fenced."""
        self._follow(before_rows=True)

    def _follow(self, *, before_rows: bool) -> None:
        changes = [
            schema_change for schema_change in self.batch.schema_changes if schema_change.before_rows is before_rows
        ]
        if not changes:
            return
        if self.input is Input.CHANGES:
            for change in changes:
                require_not_stopped(change)
                require_not_converted(change)
            return
        with connected(self.place) as client:
            for change in changes:
                follow(client, self.place, self.fence, change)

    def plan(self, parallelism: int) -> Sequence[Sequence[Any]]:
        """Return phases of units: ranges, keys that rows leave, rows that move and lack columns, rows.

        Raises MappingError.
        """
        batch, place = self.batch, self.place
        if batch.changes:
            source = batch.facts.document_name(place.pipeline)
            return [[StreamUnit(place, self.fence, batch.reader, batch.changes, source, batch.replay)]]
        if not batch.tables and not batch.reconcile:
            return []
        with connected(place) as client:
            stored_definitions = definitions(client, place)
        for table in batch.tables:
            require(place, stored_definitions, table.plan)
        copied = batch.facts.being_copied() if any(table.partial for table in batch.tables) else frozenset()
        unit = RedisUnit(place, self.fence, batch.reader)
        clears = [replace(unit, clears=stored_range) for stored_range in batch.reconcile]
        leaves, moves, puts = [], [], []
        for table in sorted(batch.tables, key=lambda table_batch: table_batch.weight):
            table_unit = replace(unit, table=table, copied=table.target in copied)
            leaves += [
                replace(table_unit, act="leave", files=(file,)) for file in table.files if file.deletes or file.updates
            ]
            if table.partial:
                moves.append(replace(table_unit, act="move", files=table.files))
            puts += [replace(table_unit, act="put", files=(file,)) for file in table.files]
        return [phase for phase in (clears, leaves, moves, puts) if phase]

    def commit(self, results: Sequence[WriteResult]) -> None:
        """Follow later schema changes, then move the checkpoint. A repeat is harmless. Raises Fenced, LoadError."""
        batch, fence = self.batch, self.fence
        with connected(self.place) as client:
            stored = read_checkpoint(client, self.place)
            again = stored is not None and (stored.checkpoint.epoch, stored.checkpoint.batch) == (
                fence.epoch,
                batch.number,
            )
            if not again:
                guarded(client, self.place, fence)
        if batch.replay:
            return
        if not again:
            self._follow(before_rows=False)
        tables = [str(table.target) for table in batch.tables]
        RedisCheckpoints(self.place).advance(Checkpoint(fence.epoch, batch.number, batch.position), tables)

    def abort(self) -> None:
        """Do nothing: what was written is written again."""


@dataclass(frozen=True)
class RedisUnit:
    """See :class:`sluice.targets.port.WriteUnit`: files of one table, or a range that is cleared."""

    place: Place
    fence: Fence
    reader: RowReader
    table: TableInput | None = None
    files: tuple[RowFile, ...] = ()
    act: str = "clear"
    clears: StoredRange | None = None
    copied: bool = False

    @property
    def cost(self) -> int:
        """The cost of the unit, in rows."""
        return sum(file.rows for file in self.files) or 1

    @property
    def memory_bytes(self) -> int:
        """The memory that the unit takes: the rows that are read at a time, and their arguments."""
        return (
            2 * self.reader.memory_of(sum(file.arrow_bytes for file in self.files), len(self.files))
            if self.files
            else 0
        )

    def write(self, rejected: RejectedRows | None = None) -> WriteResult:
        """Check the fence, then write; each script checks it, too."""
        started = time.monotonic()
        with connected(self.place) as client:
            guarded(client, self.place, self.fence)
            if self.clears is not None:
                result = self._clear(client, self.clears)
            else:
                assert self.table is not None
                spec = index_spec(self.place.indexes_of(self.table.target))
                sender = RowSender(client, self.place, self.fence, spec)
                work = _TableWork(self, client, sender, TableRows(self.place, self.table.plan), self.table, rejected)
                result = {"leave": work.leave, "move": work.move, "put": work.put}[self.act]()
                result = replace(result, statements=sender.scripts)
        return replace(result, seconds=time.monotonic() - started)

    def _clear(self, client: Client, stored: StoredRange) -> WriteResult:
        """Remove the rows of a table, or listed keys that the source does not have."""
        item, plan = self.reader.key_range(stored), stored.plan
        sender = RowSender(client, self.place, self.fence, index_spec(self.place.indexes_of(plan.target)))
        if not item.names:
            key_pages = client.scan(*self.place.row_affixes(plan.target))
            return WriteResult(deleted=sum(sender.remove(keys) for keys in key_pages))
        return WriteResult(deleted=sender.remove(self._listed(stored, item)))

    def _listed(self, stored: StoredRange, item: KeyRange) -> list[bytes]:
        if item.listed is None or item.kept is None:
            raise LoadError(
                f"a range of keys of {stored.plan.target} cannot be removed: keys are in no order",
                where=str(stored.plan.target),
            )
        rows = TableRows(self.place, stored.plan)
        keys = listed_keys(stored.plan, item.listed, item.kept.schema)
        target_keys, at_source = (
            rows.keys([column.combine_chunks() for column in key_columns.columns], list(keys.schema)).to_pylist()
            for key_columns in (keys, item.kept.select(keys.schema.names))
        )
        source_keys = frozenset(at_source)
        return [key.encode() for key in dict.fromkeys(target_keys) if key not in source_keys]


@dataclass
class _TableWork:
    """The rows of one unit on their way."""

    unit: RedisUnit
    client: Client
    sender: RowSender
    rows: TableRows
    table: TableInput
    rejected: RejectedRows | None
    refused: list[Rejection] = field(default_factory=list)

    def pieces(self) -> Iterator[pa.Table]:
        for piece in merged_parts(self.unit.reader, self.unit.files, _ROWS):
            yield piece.combine_chunks()

    def leave(self) -> WriteResult:
        """Remove the keys that rows leave, but for rows that are refused: these stay as they are."""
        removed = 0
        for piece in () if self._moved_before() else self.pieces():
            keys = self.rows.keys_of(piece)
            moved = keys.moved
            stays = moved & self.rows.lacking(piece)
            if self.rejected is not None and moved.any():
                where = np.flatnonzero(moved & ~stays)
                part = piece.take(pa.array(where))
                stays[where] = self._too_large(self._packed(part, self.rows.expiries(part)[1]))
            removed += self.sender.remove(keys.left(stays).cast(BYTES).to_pylist())
        return WriteResult(deleted=removed)

    def move(self) -> WriteResult:
        """Give rows that lack columns their new keys, all of a table in one script: their old values are nowhere
        else.
        """
        if self._moved_before():
            return WriteResult()
        olds: list[bytes] = []
        packed_pieces: list[PackedRows] = []
        for piece in self.pieces():
            keys = self.rows.keys_of(piece)
            some = keys.moved & self.rows.lacking(piece)
            if some.any():
                old = keys.old.filter(pa.array(some))
                olds += old.cast(BYTES).to_pylist()
                packed_pieces.append(self._packed(piece.filter(pa.array(some)), None, old))
        if olds:
            both = [*olds, *(key for packed in packed_pieces for key in packed.names.to_pylist())]
            words = [word for packed in packed_pieces for word in _words(packed)]
            place = self.unit.place
            spec = index_spec(place.indexes_of(self.table.target))
            head = [place.options.form, f"{_MARK}{self.table.target}", self.unit.fence.batch, len(olds), spec]
            self.sender.run(MOVE, both, [*head, *words])
        return WriteResult()

    def put(self) -> WriteResult:
        """Write the rows that stay."""
        upserted = 0
        for piece in self.pieces():
            live = piece.filter(pc.not_equal(piece["_op"], Op.DELETE.value))
            if live.num_rows:
                upserted += self._put(live.combine_chunks())
        if self.rejected is not None:
            part = "-".join(file.path.replace("/", "_") for file in self.unit.files)[-60:]
            self.rejected(part, self.table.target, self.refused)
        return WriteResult(upserted=upserted, rejected=len(self.refused))

    def _put(self, live: pa.Table) -> int:
        command, expiries = self.rows.expiries(live)
        packed = self._packed(live, expiries)
        large = self._too_large(packed)
        for number in np.flatnonzero(large).tolist():
            limit = self.unit.place.options.max_row_bytes
            why = f"a row of {packed.sizes[number]:,} bytes is larger than options.max_row_bytes, {limit:,}"
            self._refuse(live, packed, number, why, "row too large")
        numbers = np.flatnonzero(~large)
        for number, why in self.sender.put(packed.take(~large), command):
            self._refuse(live, packed, int(numbers[number]), why, "index")
            numbers[number] = -1
        return int((numbers >= 0).sum())

    def _refuse(self, rows: pa.Table, packed: PackedRows, number: int, why: str, where: str) -> None:
        """Keep a row as rejected. Raises LoadError if none may be."""
        if self.rejected is None:
            key = shown_key(packed.names[number].as_py(), hidden=any(map(is_masked, rows.schema)))
            raise LoadError(
                f"{why}: a row of {self.table.target}, key {key}",
                where=str(self.table.target),
                hint="leave the column out: mapping.columns.exclude; on_error: dead_letter leaves such rows out",
            )
        self.refused.append(Rejection(rows.slice(number, 1), why, where))

    def _too_large(self, packed: PackedRows) -> np.ndarray[Any, Any]:
        large: np.ndarray[Any, Any] = packed.sizes > self.unit.place.options.max_row_bytes
        return large

    def _packed(self, rows: pa.Table, expiries: pa.Array | None, olds: pa.Array | None = None) -> PackedRows:
        """Return rows as arguments; columns that the log lacks are the target's.

        ``olds``: the keys that have them now; None: the rows' own.
        """
        keys, values = self.rows.row_keys(rows), self.rows.texts_of(rows)
        lacks = self.rows.lacking(rows)
        if lacks.any():
            self._complete(rows, keys if olds is None else olds, values, lacks)
        return self.rows.packed(keys, values, expiries)

    def _complete(
        self, rows: pa.Table, keys: pa.Array, values: dict[str, pa.Array], lacks: np.ndarray[Any, Any]
    ) -> None:
        logged = self.rows.known(rows)
        stored = {true_name(field): field.name for field in self.rows.sent(rows.schema)}
        places = np.flatnonzero(lacks).tolist()
        names = keys.cast(BYTES).to_pylist()
        ops = rows["_op"].to_pylist()
        texts = {name: array.to_pylist() for name, array in values.items()}
        incomplete_keys = [names[place] for place in places]
        hidden = any(map(is_masked, rows.schema))
        stored_rows = held_rows(self.client, self.unit.place, incomplete_keys, list(values), hidden=hidden)
        for place, stored_row in zip(places, stored_rows, strict=True):
            if (
                stored_row is None
                and ops[place] == Op.UPDATE
                and not self.unit.copied
                and self.unit.place.options.expire is None
            ):
                raise LoadError(
                    f"the target has no row {shown_key(names[place], hidden=hidden)}, but the log only contains the "
                    "changed columns of this row",
                    where=str(self.table.target),
                    hint="`sluice dump start PIPELINE --table SCHEMA.TABLE` copies the table anew",
                )
            for name, column in texts.items():
                if not logged[stored[name]][place]:
                    stored_text = (stored_row or {}).get(name)
                    column[place] = (
                        stored_text if stored_text is None or values[name].type == BYTES else stored_text.decode()
                    )
        for name, column in texts.items():
            values[name] = pa.array(column, values[name].type)

    def _moved_before(self) -> bool:
        """Return True if an earlier attempt moved the rows that lack columns, so that others may stand under the keys
        which rows left.
        """
        if not self.table.partial:
            return False
        mark = f"{_MARK}{self.table.target}"
        mark_batch = self.client.ask("reading the checkpoint", "HGET", self.unit.place.checkpoint_key, mark)
        return bool(mark_batch == str(self.unit.fence.batch).encode())


def _words(rows: PackedRows) -> Iterator[bytes]:
    """Yield the arguments of rows, one by one."""
    sent, _ = rows.arguments()
    for number in range(len(rows)):
        data, at = bytes(content(sent, number, number + 1)), 0
        while at < len(data):
            end = data.index(b"\r\n", at)
            size = int(data[at + 1 : end])
            yield data[end + 2 : end + 2 + size]
            at = end + 2 + size + 2
