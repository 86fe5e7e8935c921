"""Rows as blocks of an INSERT: merged rows with what they leave, or every change with its envelope; and rows that a
table holds.
"""

# ruff: noqa: S608 - identifiers and texts are quoted

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import LoadError
from sluice.formats.columns import image
from sluice.model.batches import Op
from sluice.model.fields import is_masked, true_name
from sluice.model.planned import PlannedTable
from sluice.model.tables import member, one_chunk
from sluice.model.whole_rows import LOG_WHOLE_ROWS
from sluice.targets.clickhouse.checkpoint import Record
from sluice.targets.clickhouse.client import Client, stream_of
from sluice.targets.clickhouse.place import Place
from sluice.targets.clickhouse.sql import literal, name, names, table_name
from sluice.targets.clickhouse.tables import CHANGE_KEY, DELETED, VERSION, WRITER, HeldTable, column_name
from sluice.targets.clickhouse.values import Years, comparable, read_back, read_expression, sent
from sluice.targets.messages.keyed_rows import KeyedRows
from sluice.targets.messages.row_texts import json_texts
from sluice.targets.port import ChangePiece

_HELD = 1_000
"""Keys that are asked for at a time: a statement has 256 KiB at most."""
_Mask = np.ndarray[Any, Any]
_WIDE_KEY = 64
"""Bytes of a key up to which as many are asked for."""


@dataclass
class Block:
    """Rows on their way.

    ``columns``: as they are sent, by name; ``refused``: rows that are left out, by number, and why.
    """

    columns: dict[str, pa.Array]
    refused: dict[int, str] = field(default_factory=dict)

    def refuse(self, mask: _Mask, column: str, why: str) -> None:
        """Leave out the rows of a mask."""
        for number in np.flatnonzero(mask).tolist():
            self.refused.setdefault(number, f"column {column}: {why}")


class TableRows(KeyedRows):
    """Makes blocks for a table, and reads what it holds."""

    def __init__(self, place: Place, plan: PlannedTable, held_table: HeldTable, years: Years) -> None:
        super().__init__(plan)
        self.place, self.held, self.years = place, held_table, years
        self._generated = {column.name for column in plan.columns if column.generated}

    def fields(self, schema: pa.Schema) -> list[pa.Field]:
        """Return the columns that are sent."""
        return [arrow_field for arrow_field in self.sent(schema) if true_name(arrow_field) not in self._generated]

    def converted(self, rows: pa.Table, fields: Sequence[pa.Field], stays: _Mask) -> Block:
        """Convert columns of rows. ``stays``: the rows whose values count."""
        block, refuses, masks = Block({}), self.place.options.unfit_dates == "refuse", self.known(rows)
        for arrow_field in fields:
            source_column, counts = true_name(arrow_field), stays & masks[arrow_field.name] if masks else stays
            column = self.held.columns[column_name(self.place, source_column)]
            values, odd = sent(one_chunk(rows[arrow_field.name]), self.type_of(arrow_field), column.type, self.years)
            needed = source_column in self.plan.key or not column.type.nullable
            if odd is not None and pa.types.is_decimal(values.type):
                block.refuse(odd & counts, source_column, f"NaN, which {column.type.declared} cannot hold")
            elif odd is not None and (refuses or needed):
                block.refuse(
                    odd & counts, source_column, f"{column.type.declared} cannot hold this date (options.unfit_dates)"
                )
            if needed:
                null = np.asarray(values.is_null().to_numpy(zero_copy_only=False))
                block.refuse(null & counts, source_column, "NULL in a column that takes none")
            block.columns[column.name] = values
        return block

    # -- merged rows -------------------------------------------------------------------------------------------------
    def merged(
        self, rows: pa.Table, record: Record, batch: int, client: Client, *, copied: bool
    ) -> tuple[pa.Table, dict[int, str]]:
        """Return the block of merged rows, and those that are left out.

        ``copied``: a dump fills the table, so that rows may be missing.
        """
        fields = self.fields(rows.schema)
        gone = np.asarray(pc.equal(one_chunk(rows["_op"]), Op.DELETE.value).to_numpy(zero_copy_only=False))
        stays, moved = ~gone, self._moved(rows, gone)
        block = self.converted(rows, fields, stays)
        lacks = self.lacking(rows)
        if lacks.any():
            self._complete(client, rows, block, fields, lacks, moved, copied=copied)
        old = self._old_keys_sent(rows) if gone.any() or moved.any() else {}
        keep = np.ones(rows.num_rows, bool)
        keep[list(block.refused)] = False
        for column, values in old.items():  # a deleted row has the key under which the target holds it
            block.columns[column] = pc.if_else(pa.array(gone), values, block.columns[column])
        marks = pa.array(gone.astype(np.uint8))
        merged_block = self._block(block.columns, marks, record, batch, stays, keep)
        moved &= keep
        if moved.any():
            nothing = {
                column: values if column in old else pa.nulls(rows.num_rows, values.type)
                for column, values in (block.columns | old).items()
            }
            ones = pa.array(np.ones(rows.num_rows, np.uint8))
            tombstones = self._block(nothing, ones, record, batch, np.zeros(rows.num_rows, bool), moved)
            merged_block = pa.concat_tables([merged_block, tombstones]).combine_chunks()
        return self._signed(merged_block), block.refused

    def _moved(self, rows: pa.Table, deleted: _Mask) -> _Mask:
        """Return a mask of the rows that stay under another key than the one under which the target holds them."""
        mask = np.asarray(one_chunk(rows["_before"]).is_valid().to_numpy(zero_copy_only=False)) & ~deleted
        changed = np.zeros(rows.num_rows, bool)
        for key, old in zip(self.key_fields(rows.schema), self.old_columns(rows), strict=True) if mask.any() else ():
            differs = pc.fill_null(pc.not_equal(one_chunk(rows[key.name]), old), False)
            changed |= np.asarray(differs.to_numpy(zero_copy_only=False))
        return changed & mask

    def removed(self, keys: Mapping[str, pa.Array], record: Record, batch: int) -> pa.Table:
        """Return the block that removes keys, by name of column as they are sent."""
        count = len(next(iter(keys.values())))
        ones, no = pa.array(np.ones(count, np.uint8)), np.zeros(count, bool)
        return self._signed(self._block(dict(keys), ones, record, batch, no, ~no))

    def _block(
        self, columns: Mapping[str, pa.Array], marks: pa.Array, record: Record, batch: int, stays: _Mask, keep: _Mask
    ) -> pa.Table:
        versions = np.where(stays, record.version(batch, stays=True), record.version(batch, stays=False)).astype(
            np.uint64
        )
        table = pa.table({**columns, VERSION: pa.array(versions), DELETED: marks})
        return table if keep.all() else table.filter(pa.array(keep))

    def _signed(self, block: pa.Table) -> pa.Table:
        numbers = pa.array(np.zeros(block.num_rows, np.int32))
        return block.append_column(WRITER, pa.DictionaryArray.from_arrays(numbers, pa.array([self.place.owner])))

    def _old_keys_sent(self, rows: pa.Table) -> dict[str, pa.Array]:
        """Return the key's columns with the values that the target has, as they are sent."""
        old_keys = {}
        for key, values in zip(self.key_fields(rows.schema), self.old_columns(rows), strict=True):
            column = self.held.columns[true_name(key)]
            old_keys[column.name], _ = sent(values, self.type_of(key), column.type, self.years)
        return old_keys

    def _complete(
        self,
        client: Client,
        rows: pa.Table,
        block: Block,
        fields: Sequence[pa.Field],
        lacks: _Mask,
        moved: _Mask,
        *,
        copied: bool,
    ) -> None:
        """Fill in the columns that the log lacks with the target's."""
        hidden, masks = any(map(is_masked, rows.schema)), self.known(rows)
        if (moved & lacks).any():
            raise LoadError(
                f"the key of a row of {self.plan.source} changed, and the log has only its changed columns",
                where=str(self.plan.target),
                hint=f"{LOG_WHOLE_ROWS}; then `sluice dump start PIPELINE --table SCHEMA.TABLE` copies the table anew",
            )
        key = {true_name(key): block.columns[true_name(key)] for key in self.key_fields(rows.schema)}
        lacking = {column: values.filter(pa.array(lacks)) for column, values in key.items()}
        stored = self.held_rows(client, lacking, {column: values.type for column, values in block.columns.items()})
        places = {
            key_tuple: number for number, key_tuple in enumerate(key_tuples({column: stored[column] for column in key}))
        }
        ops, at = rows["_op"].to_pylist(), np.full(rows.num_rows, -1)
        for number, key_tuple in zip(np.flatnonzero(lacks).tolist(), key_tuples(lacking), strict=True):
            at[number] = places.get(key_tuple, -1)
            if at[number] < 0 and ops[number] == Op.UPDATE and not copied:
                key_text = "(masked)" if hidden else str(key_tuple)[:300]
                raise LoadError(
                    f"the target has no row {key_text}, but the log only contains the changed columns of this row",
                    where=str(self.plan.target),
                    hint="`sluice dump start PIPELINE --table SCHEMA.TABLE` copies the table anew",
                )
        for arrow_field in fields:
            absent, column = lacks & ~masks[arrow_field.name], true_name(arrow_field)
            if absent.any():
                filled = stored[column].take(pa.array(at, mask=at < 0))
                own_column = block.columns[column]
                block.columns[column] = pc.if_else(pa.array(absent), filled.cast(own_column.type), own_column)

    # -- rows that are there -----------------------------------------------------------------------------------------
    def held_rows(
        self, client: Client, keys: Mapping[str, pa.Array], types: Mapping[str, pa.DataType]
    ) -> dict[str, pa.Array]:
        """Return columns of the rows with these keys, in any order.

        ``types``: what is sent of each column; texts are bytes.
        """
        parts: list[pa.Table] = []
        columns = ", ".join(
            f"{read_expression(f't.{name(column)}', self.held.columns[column].type)} AS {name(column)}"
            for column in types
        )
        structure = ", ".join(f"{name(key)} {self.held.columns[key].type.declared}" for key in keys)
        requested_table = pa.table(dict(keys))
        size = max(1, requested_table.nbytes // max(1, requested_table.num_rows))
        step = max(1, _HELD * _WIDE_KEY // max(_WIDE_KEY, size))
        for first in range(0, requested_table.num_rows, step):
            part = stream_of(requested_table.slice(first, step).combine_chunks())
            listed = f"SELECT {names(keys)} FROM format(ArrowStream, {literal(structure)}, unhex('{part.hex()}'))"
            key_columns = ", ".join(f"t.{name(key)}" for key in keys)
            statement = (
                f"SELECT {columns} FROM {table_name(self.held.table)} AS t FINAL WHERE ({key_columns}) IN ({listed}) "
                "SETTINGS output_format_arrow_string_as_string = 0 FORMAT ArrowStream"
            )
            parts.append(client.ask(f"reading rows of {self.held.table}", statement).table)
        concat_tables = pa.concat_tables(parts) if parts else None
        return {
            column: read_back(one_chunk(concat_tables[column]), kind)
            if concat_tables is not None
            else read_back(pa.array([], kind), kind)
            for column, kind in types.items()
        }

    # -- every change ------------------------------------------------------------------------------------------------
    def changes(self, piece: ChangePiece, record: Record, batch: int) -> pa.Table:
        """Return the block of changes. Raises LoadError for a value that the table cannot hold."""
        rows, count = piece.rows, piece.rows.num_rows
        if "_present" in rows.schema.names and rows["_present"].null_count < count:
            raise LoadError(
                f"the log has only the changed columns of rows of {piece.table}, and a table of changes would show "
                "NULL for the others",
                where=str(piece.table),
                hint=LOG_WHOLE_ROWS,
            )
        fields = self.fields(rows.schema)
        block = self.converted(rows, fields, np.ones(count, bool))
        for number, why in sorted(block.refused.items()):
            file, offset = rows["_file"][number].as_py(), rows["_offset"][number].as_py()
            raise LoadError(
                f"{why}, in a row of {piece.table}",
                where=f"{file}:{offset}",
                hint="options: {unfit_dates: 'null'} writes NULL for such dates; or change the value by a rule",
            )
        before = one_chunk(rows["_before"])
        old = {
            true_name(field): json_texts(_plain(member(before, field.name)), self.type_of(field)) for field in fields
        }
        texts = image({column: pc.fill_null(values, "null") for column, values in old.items()})
        unsigned = np.uint64
        own = {
            "_op": one_chunk(rows["_op"]),
            "_batch": pa.array(np.full(count, batch, unsigned)),
            **{column: one_chunk(rows[column]).cast(pa.uint64()) for column in ("_seq", "_row", "_txn", "_origin")},
            "_part": piece.part,
            "_txn_row": piece.txn_row,
            "_commit_time": one_chunk(rows["_commit_ts"]),
            "_file": one_chunk(rows["_file"]),
            "_offset": one_chunk(rows["_offset"]).cast(pa.uint64()),
            "_gtid": pc.fill_null(one_chunk(rows["_gtid"]), ""),
            "_before": pc.if_else(before.is_valid(), texts, pa.scalar(None, texts.type)),
            "_delivery": pa.array(np.full(count, record.delivery, unsigned)),
            VERSION: pa.array(np.full(count, record.version(batch, stays=True), unsigned)),
        }
        return self._signed(pa.table({**block.columns, **own}))

    def left_out(self, client: Client, block: pa.Table, record: Record, batch: int) -> pa.Table:
        """Return the changes of a block that the table does not have yet, from an earlier attempt."""
        condition = f"_batch = {batch} AND _delivery = {record.delivery} AND {WRITER} = {literal(self.place.owner)}"
        statement = (
            f"SELECT {names(CHANGE_KEY[1:])} FROM {table_name(self.held.table)} WHERE {condition} FORMAT ArrowStream"
        )
        table = client.ask(f"looking for changes of batch {batch} in {self.held.table}", statement).table
        if not table.num_rows:
            return block
        stored_changes = set(zip(*(table[column].to_pylist() for column in CHANGE_KEY[1:]), strict=True))
        block_changes = zip(*(block[column].to_pylist() for column in CHANGE_KEY[1:]), strict=True)
        return block.filter(pa.array([change not in stored_changes for change in block_changes]))


def _plain(values: pa.Array) -> pa.Array:
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values


def digest_of(rows: pa.Table) -> str:
    """Return a name of rows, the same in every process."""
    return hashlib.blake2b(stream_of(rows.combine_chunks()), digest_size=16).hexdigest()


def key_tuples(columns: Mapping[str, pa.Array]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a key's columns as tuples; equal keys are equal tuples."""
    return zip(*(_plain_values(comparable(column)) for column in columns.values()), strict=True)


def _plain_values(values: pa.Array) -> list[Any]:
    if pa.types.is_temporal(values.type):  # not limited to the range of Python's calendar
        values = values.view(pa.int32() if values.type.bit_width == 32 else pa.int64())
    plain_values: list[Any] = values.to_pylist()
    return plain_values


__all__ = ["Block", "TableRows", "digest_of", "key_tuples"]
