"""A batch on the driver, and the units that write it: an INSERT for each piece of rows, with a token that names it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import LoadError
from sluice.model.batches import Op
from sluice.model.fields import is_masked
from sluice.model.tables import one_chunk
from sluice.targets.clickhouse.checkpoint import ClickHouseCheckpoints, Record, guarded, read_record, shut_out
from sluice.targets.clickhouse.client import CONSTRAINT, OF_ROWS, Client, connected
from sluice.targets.clickhouse.follow import follow, remove_older
from sluice.targets.clickhouse.place import Place
from sluice.targets.clickhouse.rows import TableRows, digest_of, key_tuples
from sluice.targets.clickhouse.sql import names, table_name
from sluice.targets.clickhouse.tables import CHANGE_KEY, HeldTable, held_tables, require, unfit
from sluice.targets.clickhouse.values import ALL_YEARS, FEW_YEARS, Years, sent
from sluice.targets.messages.pieces import merged_parts, plan_of
from sluice.targets.messages.read_back import listed_keys
from sluice.targets.port import (
    BatchInput,
    Checkpoint,
    Fence,
    KeyRange,
    RejectedRows,
    Rejection,
    RowFile,
    RowReader,
    StoredRange,
    TableInput,
    WriteResult,
)

_ROWS_OF_UNIT = 100_000
"""Rows up to which files of a table are one unit: each INSERT makes a part, and the server merges many of them
slowly.
"""
_MOST_REFUSED = 1_000
"""Rows of a unit that the server refuses, at most; with more, the table or the mapping is wrong, and the batch stops.
"""


@dataclass(frozen=True)
class ClickHouseWriter:
    """See :class:`sluice.targets.port.BatchWriter`."""

    place: Place
    batch: BatchInput
    fence: Fence

    def prepare(self) -> None:
        """Follow the schema changes that precede the rows. Raises LoadError, Fenced."""
        self._follow(before_rows=True)

    def _follow(self, *, before_rows: bool) -> None:
        changes = [change for change in self.batch.schema_changes if change.before_rows is before_rows]
        if changes:
            with connected(self.place, slow=True) as client:
                for change in changes:
                    follow(client, self.place, self.fence, change)

    def plan(self, parallelism: int) -> Sequence[Sequence[ClickHouseUnit]]:
        """Return phases of units: what is cleared, then rows; for every change one unit.

        Raises MappingError, Fenced.
        """
        batch, place = self.batch, self.place
        if not (batch.tables or batch.changes or batch.reconcile):
            return []
        with connected(place) as client:
            unit = ClickHouseUnit(place, self.fence, batch.reader, years_of(client), replay=batch.replay)
            if batch.changes:
                return [[replace(unit, changes=batch.changes)]]
            for table in batch.tables if place.every else ():
                raise LoadError(
                    f"rows of {table.plan.source} are not changes, and a table of changes takes nothing else",
                    where=str(table.target),
                    hint=f"`sluice dump start {place.pipeline} --table {table.plan.source}` reads them anew from the "
                    "source",
                )
            plans = [*(table.plan for table in batch.tables), *(stored_range.plan for stored_range in batch.reconcile)]
            existing_tables = held_tables(client, [plan.target for plan in plans], every=False)
            tables = {table.target: require(place, existing_tables, table.plan) for table in batch.tables}
        copied = batch.facts.being_copied() if any(table.partial for table in batch.tables) else frozenset()
        clears = [
            replace(unit, clears=stored_range, held=existing_tables[stored_range.plan.target])
            for stored_range in batch.reconcile
            if stored_range.plan.target in existing_tables
        ]
        puts = [
            replace(unit, table=table, held=tables[table.target], files=files, copied=table.target in copied)
            for table in sorted(batch.tables, key=lambda table_input: table_input.weight)
            for files in _grouped(table.files)
        ]
        return [phase for phase in (clears, puts) if phase]

    def commit(self, results: Sequence[WriteResult]) -> None:
        """Follow later schema changes, then move the checkpoint. A repeat is harmless. Raises Fenced, LoadError."""
        batch, fence, place = self.batch, self.fence, self.place
        with connected(place) as client:
            held_record = read_record(client, place)
            again = held_record is not None and (held_record.checkpoint.epoch, held_record.checkpoint.batch) == (
                fence.epoch,
                batch.number,
            )
            if not again:
                guarded(client, place, fence)
        if batch.replay:
            return
        if not again:
            self._follow(before_rows=False)
        tables = {str(table.target) for table in batch.tables}
        tables |= {str(table) for result in results for table in result.message or ()}
        ClickHouseCheckpoints(place).advance(Checkpoint(fence.epoch, batch.number, batch.position), tables)

    def abort(self) -> None:
        """Do nothing: what was written is written again."""


def _grouped(files: Sequence[RowFile]) -> Iterator[tuple[RowFile, ...]]:
    group: list[RowFile] = []
    for file in files:
        group.append(file)
        if sum(row_file.rows for row_file in group) >= _ROWS_OF_UNIT:
            yield tuple(group)
            group = []
    if group:
        yield tuple(group)


def years_of(client: Client) -> Years:
    """Ask for the first and the last date that Date32 and DateTime64 of the server hold, as it is now."""
    text = "9999-12-31 00:00:00"
    statement = (
        f"SELECT ifNull(toString(toDateTime64OrNull('{text}', 0, 'UTC')), '') = '{text}' FORMAT JSONCompactEachRow"
    )
    [[every]] = client.ask("asking for the range of dates", statement).rows
    return ALL_YEARS if int(every) else FEW_YEARS


@dataclass(frozen=True)
class ClickHouseUnit:
    """See :class:`sluice.targets.port.WriteUnit`: files of one table, all changes, or a range that is cleared.

    ``held``: the table. ``copied``: a dump fills it, so that rows may be missing. ``changes``: how many there are.
    """

    place: Place
    fence: Fence
    reader: RowReader
    years: Years
    table: TableInput | None = None
    held: HeldTable | None = None
    files: tuple[RowFile, ...] = ()
    clears: StoredRange | None = None
    copied: bool = False
    changes: int = 0
    replay: str = ""

    @property
    def cost(self) -> int:
        """The cost of the unit, in rows."""
        return sum(file.rows for file in self.files) or self.changes or 1

    @property
    def memory_bytes(self) -> int:
        """The memory that the unit takes: the rows that are read at a time, as blocks and as they are sent."""
        size = sum(file.arrow_bytes for file in self.files)
        return 3 * self.reader.memory_of(size, len(self.files)) if self.files else 0

    def write(self, rejected: RejectedRows | None = None) -> WriteResult:
        """Check the fence, then write."""
        started = time.monotonic()
        with connected(self.place, slow=self.clears is not None) as client:
            record = guarded(client, self.place, self.fence)
            if self.clears is not None:
                result = self._clear(client, record, self.clears)
            elif self.changes:
                result = self._append(client, record)
            else:
                assert self.table is not None
                assert self.held is not None
                rows = TableRows(self.place, self.table.plan, self.held, self.years)
                result = _TableWork(self, client, record, rows, self.table, rejected).put()
            result = replace(result, retries=result.retries + client.web.retries)
        return replace(result, seconds=time.monotonic() - started)

    def insert(self, client: Client, block: pa.Table, held_table: HeldTable, token: str, *, hidden: bool) -> None:
        """Insert a block as one part (one for each partition), once for each token. Raises LoadError with a code."""
        count = str(block.num_rows)
        settings = {
            "insert_deduplicate": "1",
            "max_insert_block_size": count,
            "min_insert_block_size_rows": count,
            "min_insert_block_size_bytes": "0",
        }
        if not self.replay:  # a dead letter may come in several pieces, and each is written
            settings["insert_deduplication_token"] = token
        statement = f"INSERT INTO {table_name(held_table.table)} ({names(block.schema.names)})"
        try:
            client.insert(f"writing rows of {held_table.table}", statement, block, settings, hidden=hidden)
        except LoadError as error:
            if error.code == CONSTRAINT:  # that of a newer term, unless it is the table's own
                guarded(client, self.place, self.fence)
            raise

    def _clear(self, client: Client, record: Record, stored: StoredRange) -> WriteResult:
        """Remove the rows of a table, or listed keys that the source does not have."""
        item, plan, held_table = self.reader.key_range(stored), stored.plan, self.held
        assert held_table is not None
        if problem := unfit(self.place, held_table):
            raise LoadError(f"rows of {plan.target} cannot be removed: it {problem}", where=str(plan.target))
        if not item.names:
            remove_older(client, self.place, self.fence, held_table)
            return WriteResult(statements=1)
        rows = TableRows(self.place, plan, held_table, self.years)
        removed_keys = self._listed(rows, stored, item)
        block = rows.removed(removed_keys, record, self.fence.batch)
        if block.num_rows:
            self.insert(
                client, block, held_table, f"{self._token(record, held_table)}/removed/{digest_of(block)}", hidden=True
            )
        return WriteResult(deleted=block.num_rows, statements=int(block.num_rows > 0))

    def _listed(self, rows: TableRows, stored: StoredRange, item: KeyRange) -> dict[str, pa.Array]:
        if item.listed is None or item.kept is None:
            raise LoadError(
                f"a range of keys of {stored.plan.target} cannot be removed: only listed keys can",
                where=str(stored.plan.target),
            )
        keys = listed_keys(stored.plan, item.listed, item.kept.schema)
        candidates, stay = (sent_keys(rows, key_rows.select(keys.schema.names)) for key_rows in (keys, item.kept))
        kept_keys = set(key_tuples(stay))
        mask = pa.array([key not in kept_keys for key in key_tuples(candidates)], pa.bool_())
        return {column: values.filter(mask) for column, values in candidates.items()}

    def _append(self, client: Client, record: Record) -> WriteResult:
        """Append all changes of the batch that their tables do not have yet."""
        pieces = [piece for piece in self.reader.change_pieces() if piece.rows.num_rows]
        existing_tables = held_tables(client, {piece.table for piece in pieces}, every=True)
        makers = []
        for piece in pieces:  # all, before the first is written
            plan = plan_of(piece)
            makers.append(TableRows(self.place, plan, require(self.place, existing_tables, plan), self.years))
        shut_out(client, self.place, record, existing_tables.values())
        statements = count = 0
        for piece, rows in zip(pieces, makers, strict=True):
            for start in range(0, piece.rows.num_rows, self.place.options.insert_rows):
                part = piece.slice(start, self.place.options.insert_rows)
                block = rows.changes(part, record, self.fence.batch)
                new = rows.left_out(client, block, record, self.fence.batch)
                count += part.rows.num_rows
                if new.num_rows:
                    token = f"{self.place.owner}/{record.delivery}/{piece.table}/{digest_of(new.select(CHANGE_KEY))}"
                    self.insert(client, new, rows.held, token, hidden=any(map(is_masked, piece.rows.schema)))
                    statements += 1
        return WriteResult(appended=count, statements=statements, message=tuple(existing_tables))

    def _token(self, record: Record, held_table: HeldTable) -> str:
        return f"{self.place.owner}/{record.term}/{self.fence.batch}/{held_table.table}"


def sent_keys(table: TableRows, keys: pa.Table) -> dict[str, pa.Array]:
    """Return keys of the source as they are sent, by column. Raises LoadError for one that the table cannot hold."""
    sent_keys = {}
    for number, column in enumerate(table.plan.key_columns):
        key, kind = keys.schema.field(number), table.held.columns[column.name].type
        sent_keys[column.name], odd = sent(one_chunk(keys.column(number)), table.type_of(key), kind, table.years)
        if odd is not None and odd.any():
            raise LoadError(
                f"no key of {table.held.table} is that date: column {column.name}", where=str(table.held.table)
            )
    return sent_keys


@dataclass
class _TableWork:
    """The rows of one unit on their way."""

    unit: ClickHouseUnit
    client: Client
    record: Record
    made: TableRows
    table: TableInput
    rejected: RejectedRows | None
    refused: list[Rejection] = field(default_factory=list)
    by_server: int = 0

    def put(self) -> WriteResult:
        """Write the rows, in pieces."""
        result, unit, start = WriteResult(), self.unit, 0
        for piece in merged_parts(unit.reader, unit.files, unit.place.options.insert_rows):
            result += self._put(piece.combine_chunks(), start)
            start += piece.num_rows
        if self.rejected is not None:
            self.rejected(f"clickhouse-{unit.files[0].path}", self.table.target, self.refused)
        return replace(result, rejected=len(self.refused))

    def _put(self, rows: pa.Table, start: int) -> WriteResult:
        """Write a piece.

        ``start``: the number of its first row in the unit. Rows that the server refuses are found by halves.
        """
        unit, hidden = self.unit, any(map(is_masked, rows.schema))
        block, refused = self.made.merged(rows, self.record, unit.fence.batch, self.client, copied=unit.copied)
        for number, why in sorted(refused.items()):
            self._refuse(rows, number, why, "refused")
        count = rows.num_rows - len(refused)
        if not count:
            return WriteResult()
        token = f"{unit._token(self.record, self.made.held)}/{unit.files[0].path}/{start}+{rows.num_rows}"
        try:
            unit.insert(self.client, block, self.made.held, token, hidden=hidden)
        except LoadError as error:
            if error.code not in OF_ROWS or self.rejected is None:
                raise
            return self._halved(rows, refused, start, error)
        deleted = np.asarray(pc.equal(one_chunk(rows["_op"]), Op.DELETE.value).to_numpy(zero_copy_only=False))
        deleted[list(refused)] = False
        return WriteResult(count - int(deleted.sum()), int(deleted.sum()), statements=1)

    def _halved(self, rows: pa.Table, refused: dict[int, str], start: int, error: LoadError) -> WriteResult:
        numbers = [number for number in range(rows.num_rows) if number not in refused]
        if len(numbers) == 1:
            self.by_server += 1
            if self.by_server > _MOST_REFUSED:
                raise error
            self._refuse(rows, numbers[0], error.message.partition(": ")[2], str(error.code))
            return WriteResult()
        result, half = WriteResult(), len(numbers) // 2
        for part in (numbers[:half], numbers[half:]):
            result += self._put(rows.take(pa.array(part)).combine_chunks(), start + part[0])
        return result

    def _refuse(self, rows: pa.Table, number: int, why: str, where: str) -> None:
        """Keep a row as rejected. Raises LoadError if none may be."""
        if self.rejected is None:
            key = tuple(rows[field.name][number].as_py() for field in self.made.key_fields(rows.schema))
            key_text = "(masked)" if any(map(is_masked, rows.schema)) else str(key)[:300]
            raise LoadError(
                f"a row of {self.table.target} is refused, key {key_text}: {why}",
                where=str(self.table.target),
                hint="correct the row or the table; on_error: dead_letter leaves such rows out",
            )
        self.refused.append(Rejection(rows.slice(number, 1), why, where))


__all__ = ["ClickHouseUnit", "ClickHouseWriter", "sent_keys", "years_of"]
