"""Decoding of row images in an arena to Arrow tables with the layout of segment files, in (bucket, sequence) order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import DecodeError, UnsupportedType
from sluice.model.row_ops import OP_INSERT, OP_UPDATE
from sluice.model.tables import ENUM_ERROR_VALUE, META_FIELDS, TableSchema
from sluice.mysql.column_defaults import default_scalar
from sluice.mysql.column_types import Fill
from sluice.mysql.mariadb_types import inet4_text, inet6_text, uuid_text
from sluice.sources import arrow_buffers
from sluice.sources.mysql.decoder import column_kernels, json_diff, json_text
from sluice.sources.mysql.decoder import scan_kernel as sc
from sluice.sources.mysql.decoder.row_layout import ColumnLayout, RowLayout
from sluice.sources.mysql.decoder.transcode import to_utf8
from sluice.sources.mysql.events.unreadable import AROUND

Ints = np.ndarray[Any, Any]
"""int64: offsets, images, ends."""
Bytes = np.ndarray[Any, Any]
"""uint8."""
FillFunction = Callable[["_TableDecoder", ColumnLayout, Ints, Ints, Bytes], pa.Array]
"""(decoder, layout, offset of each image's value, image of each row, what to fill with 1 where a row has a value) ->
the Arrow column.
"""
Bucketer = Callable[[TableSchema, Sequence[pa.Array], int], "np.ndarray[Any, Any]"]
"""(definition, key columns, rows) -> uint8 bucket of each row."""

_OP_NAMES = arrow_buffers.strings(["i", "u", "d", "k"])
_OP_KEY_MOVED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RowEvents:
    """Row events of one arena, ready to decode: values only, nothing shared with the scanner.

    Attributes:
        arena: uint8, with sixteen spare bytes after ``used``. rev: int64[REV_FIELDS, events]. images: int64, offset of
            each row image.
        txn_first: ordinal of the first transaction described; gtids, commit_us: one a transaction.
        files: names by number (R_FILE). plans: by slot.
    """

    arena: np.ndarray[Any, Any]
    rev: np.ndarray[Any, Any]
    images: np.ndarray[Any, Any]
    txn_first: int
    gtids: pa.Array
    commit_us: np.ndarray[Any, Any]
    files: list[str]
    plans: list[RowLayout | None]


def decode_arena(rows: RowEvents, bucketer: Bucketer) -> Iterator[tuple[TableSchema, pa.Table]]:
    """Yield a table (of ``schema.arrow_schema``, sorted by ``_bucket``, ``_seq``) for every definition met.

    Raises DecodeError.
    """
    slots = rows.rev[sc.R_SLOT]
    order = np.argsort(slots, kind="stable")
    borders = np.flatnonzero(np.diff(slots[order])) + 1
    for group in np.split(order, borders):
        if len(group):
            plan = rows.plans[int(slots[group[0]])]
            assert plan is not None
            yield plan.schema, _TableDecoder(rows, plan, group, bucketer).table()


class _TableDecoder:
    def __init__(self, rows: RowEvents, plan: RowLayout, events: np.ndarray[Any, Any], bucketer: Bucketer) -> None:
        self.rows = rows
        self.plan = plan
        self.arena = rows.arena
        self.bucketer = bucketer
        rev = rows.rev if len(events) == rows.rev.shape[1] else rows.rev[:, events]
        op = rev[sc.R_OP]
        image_counts = rev[sc.R_IMAGES]
        update = op == OP_UPDATE
        counts = np.where(update, image_counts >> 1, image_counts)
        total = int(counts.sum())
        self.event = np.repeat(np.arange(len(events)), counts)
        within = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
        local_first = np.cumsum(image_counts) - image_counts
        is_update = update[self.event]
        self.rev = rev
        self.within = within
        self.op = op[self.event].astype(np.int8)
        first = local_first[self.event]
        self.main = np.where(is_update, first + 2 * within + 1, first + within)
        self.before = np.where(is_update, first + 2 * within, np.int64(-1))
        # every image of these events, in log order
        image_event = np.repeat(np.arange(len(events)), image_counts)
        image_within = np.arange(len(image_event)) - local_first[image_event]
        starts = rows.images[rev[sc.R_IMAGE][image_event] + image_within]
        self.partial: np.ndarray[Any, Any] | None = None
        if rev[sc.R_PARTIAL].any():  # where the bits of an image with JSON differences stand, 0 for other images
            marked = starts >= sc.PARTIAL_IMAGE
            starts = np.where(marked, starts - sc.PARTIAL_IMAGE, starts)
            size = (sum(p.fill is Fill.JSON for p in plan.columns) + 7) >> 3
            self.partial = np.where(marked, starts - size, 0)
        after = update[image_event] & (image_within & 1 == 1)
        self.bitmaps = np.where(after, rev[sc.R_BM2][image_event], rev[sc.R_BM1][image_event])
        self.offsets = np.empty((len(plan.columns), len(starts)), np.int64)
        bad = column_kernels.walk_values(
            self.arena,
            starts,
            rev[sc.R_END][image_event],
            self.bitmaps,
            len(plan.columns),
            plan.widths,
            0,
            self.offsets,
        )
        if bad >= 0:
            raise self._error("a row image does not fit its event", int(image_event[bad]))
        self.incomplete = not column_kernels.all_present(
            self.arena, self.bitmaps, np.arange(len(starts)), len(plan.columns)
        )
        if self.incomplete:
            self._take_unchanged()

    def _take_unchanged(self) -> None:
        """Take a column that the after image leaves out from the before image, where that has it: it has not
        changed.
        """
        updates = self.before >= 0
        after, before = self.main[updates], self.before[updates]
        now = self.offsets[:, after]
        self.offsets[:, after] = np.where(now == column_kernels.ABSENT_COLUMN, self.offsets[:, before], now)

    def table(self) -> pa.Table:
        plan, schema = self.plan, self.plan.schema
        self._key_moves()
        keys = [self._column(plan.columns[c], self.offsets[c], self._key_images(int(c))) for c in plan.key]
        buckets = self.bucketer(schema, keys, len(self.main))
        order = np.argsort(buckets, kind="stable") if len(plan.key) else np.arange(len(self.main))
        if self.moved:  # the rows added after the others are not in sequence order yet
            seq = self.rev[sc.R_SEQ][self.event] + self.within
            order = np.lexsort((seq, buckets))
        self.main, self.before, self.op = self.main[order], self.before[order], self.op[order]
        self.event, self.within = self.event[order], self.within[order]
        main = [self._column(plan.columns[i], self.offsets[i], self.main) for i in plan.captured]
        if self.incomplete:
            main = [self._with_default(i, values) for i, values in zip(plan.captured, main, strict=True)]
        fields = list(plan.arrow_schema)[: len(main)]
        has_before = self.before >= 0
        if has_before.any():
            children = [self._column(plan.columns[i], self.offsets[i], self.before) for i in plan.captured]
            mask = None if has_before.all() else arrow_buffers.booleans(~has_before)
            before = pa.StructArray.from_arrays(children, fields=fields, mask=mask)
        else:
            before = pa.nulls(len(self.main), pa.struct(fields))
        return pa.Table.from_arrays([*main, *self._meta(buckets[order]), before], schema=plan.arrow_schema)

    def _key_moves(self) -> None:
        self.moved = 0
        plan = self.plan
        updates = np.flatnonzero(self.op == OP_UPDATE)
        if not len(updates) or not len(plan.key):
            return
        mark = np.zeros(len(updates), np.uint8)
        self.moved = column_kernels.keys_moved(
            self.arena, self.offsets, self.before[updates], self.main[updates], plan.key, plan.widths, 0, mark
        )
        if not self.moved:
            return
        rows = updates[mark == 1]
        self.main = np.concatenate([self.main, self.before[rows]])
        self.before = np.concatenate([self.before, np.full(len(rows), -1)])
        self.op = np.concatenate([self.op, np.full(len(rows), _OP_KEY_MOVED, np.int8)])
        self.event = np.concatenate([self.event, self.event[rows]])
        self.within = np.concatenate([self.within, self.within[rows]])

    def _key_images(self, column: int) -> np.ndarray[Any, Any]:
        """Return the image that holds each row's value of a key column.

        It is the after image, or the before image where that leaves the column out.
        """
        absent = (self.offsets[column][self.main] == column_kernels.ABSENT_COLUMN) & (self.before >= 0)
        return np.where(absent, self.before, self.main)

    # -- values -------------------------------------------------------------------------------------------------------
    def _column(self, plan: ColumnLayout, offsets: Ints, select: Ints) -> pa.Array:
        return FILLS[plan.fill](self, plan, offsets, select, np.empty(len(select), np.uint8))

    def _copied(self, plan: ColumnLayout, offsets: Ints, select: Ints, valid: Bytes) -> pa.Array:
        out = np.zeros(len(select) * plan.width, np.uint8)
        nulls = column_kernels.fill_copy(self.arena, offsets, select, plan.width, out, valid)
        return _array(plan.arrow_type, len(select), valid, nulls, out)

    def _little(
        self, plan: ColumnLayout, offsets: Ints, select: Ints, valid: Bytes, *, signed: bool = False
    ) -> tuple[Ints, int]:
        numbers = np.empty(len(select), np.int64)
        nulls = column_kernels.fill_little(self.arena, offsets, select, plan.width, signed, numbers, valid)
        return numbers, nulls

    def _medium(self, plan: ColumnLayout, offsets: Ints, select: Ints, valid: Bytes) -> pa.Array:
        numbers, nulls = self._little(plan, offsets, select, valid, signed=not plan.column.unsigned)
        return _array(plan.arrow_type, len(select), valid, nulls, numbers.astype(np.int32))

    def _year(self, plan: ColumnLayout, offsets: Ints, select: Ints, valid: Bytes) -> pa.Array:
        numbers, nulls = self._little(plan, offsets, select, valid)
        years = np.where(numbers == 0, 0, numbers + 1900).astype(np.uint16)
        return _array(plan.arrow_type, len(select), valid, nulls, years)

    def _bits(self, plan: ColumnLayout, offsets: Ints, select: Ints, valid: Bytes) -> pa.Array:
        numbers = np.empty(len(select), np.int64)
        nulls = column_kernels.fill_big(self.arena, offsets, select, plan.width, numbers, valid)
        return _array(plan.arrow_type, len(select), valid, nulls, numbers)

    def _decimal(self, plan: ColumnLayout, offsets: Ints, select: Ints, valid: Bytes) -> pa.Array:
        column = plan.column
        limbs = 8 if column.precision > 38 else 4
        words = np.empty((len(select), limbs), np.uint32)
        nulls = column_kernels.fill_decimal(
            self.arena, offsets, select, column.precision, column.scale, limbs, words, valid
        )
        return _array(plan.arrow_type, len(select), valid, nulls, words)

    def _temporal(
        self,
        plan: ColumnLayout,
        offsets: Ints,
        select: Ints,
        valid: Bytes,
        *,
        mode: int,
        with_digits: int | None = None,
    ) -> pa.Array:
        """Decode a temporal column. ``with_digits``: the mode of an old type that has digits."""
        digits = plan.column.fsp
        if digits and with_digits is not None:
            mode = with_digits
        numbers = np.empty(len(select), np.int64)
        nulls = column_kernels.fill_temporal(self.arena, offsets, select, mode, digits, numbers, valid)
        if mode == column_kernels.MODE_DATE:
            numbers = numbers.astype(np.int32)
        return _array(plan.arrow_type, len(select), valid, nulls, numbers)

    def _label(self, plan: ColumnLayout, offsets: Ints, select: Ints, valid: Bytes) -> pa.Array:
        numbers, nulls = self._little(plan, offsets, select, valid)
        return self._enum(plan.column.name, plan.column.labels, numbers, valid, nulls)

    def _labels(self, plan: ColumnLayout, offsets: Ints, select: Ints, valid: Bytes) -> pa.Array:
        numbers, nulls = self._little(plan, offsets, select, valid)
        return _sets(plan.column.labels, numbers, valid, nulls)

    def _pieces(self, plan: ColumnLayout, offsets: Ints, select: Ints, valid: Bytes) -> tuple[Bytes, Ints, int]:
        """Return the bytes of variable values, where each ends, and the number of nulls."""
        prefix = -plan.width
        ends = np.empty(len(select) + 1, np.int64)
        nulls = column_kernels.fill_ends(self.arena, offsets, select, prefix, ends, valid)
        data = np.empty(int(ends[-1]), np.uint8)
        column_kernels.fill_bytes(self.arena, offsets, select, prefix, ends, data)
        return data, ends, nulls

    def _padded_pieces(self, plan: ColumnLayout, offsets: Ints, select: Ints, valid: Bytes) -> tuple[Bytes, Ints, int]:
        """Return the :meth:`_pieces` of values of one length, whose last zero bytes the log leaves out."""
        column = plan.column
        ends = np.empty(len(select) + 1, np.int64)
        data = np.zeros(len(select) * column.length, np.uint8)
        nulls = column_kernels.fill_padded(self.arena, offsets, select, -plan.width, column.length, ends, data, valid)
        if nulls < 0:
            raise self._error(f"column {column.name}: a value is longer than the column")
        return data[: int(ends[-1])], ends, nulls

    def _bytes(self, plan: ColumnLayout, offsets: Ints, select: Ints, valid: Bytes) -> pa.Array:
        data, ends, nulls = self._pieces(plan, offsets, select, valid)
        return self._text(plan, data, ends, valid, nulls)

    def _compressed(self, plan: ColumnLayout, offsets: Ints, select: Ints, valid: Bytes) -> pa.Array:
        data, ends, nulls = self._pieces(plan, offsets, select, valid)
        data, ends = self._inflate(plan.column.name, data, ends)
        return self._text(plan, data, ends, valid, nulls)

    def _padded(self, plan: ColumnLayout, offsets: Ints, select: Ints, valid: Bytes) -> pa.Array:
        data, ends, nulls = self._padded_pieces(plan, offsets, select, valid)
        return _binary(plan.arrow_type, len(select), valid, nulls, ends, data)

    def _printed(
        self, plan: ColumnLayout, offsets: Ints, select: Ints, valid: Bytes, *, text: Callable[[bytes], str]
    ) -> pa.Array:
        data, ends, _ = self._padded_pieces(plan, offsets, select, valid)
        raw, size, bounds = data.tobytes(), plan.column.length, ends.tolist()
        return arrow_buffers.strings([
            text(raw[bounds[i] : bounds[i] + size]) if valid[i] else None for i in range(len(select))
        ])

    def _text(self, plan: ColumnLayout, data: Bytes, ends: Ints, valid: Bytes, nulls: int) -> pa.Array:
        column = plan.column
        if column.charset is not None:
            try:
                data, ends = to_utf8(column.charset, data, ends)
            except DecodeError as error:
                raise self._error(f"column {column.name}: {error.message}", hint=error.hint) from error
        return _binary(plan.arrow_type, len(valid), valid, nulls, ends, data)

    def _documents(self, plan: ColumnLayout, offsets: Ints, select: Ints, valid: Bytes) -> pa.Array:
        data, ends, _ = self._pieces(plan, offsets, select, valid)
        return self._json(plan, offsets, select, data, ends, valid)

    def _json(
        self,
        plan: ColumnLayout,
        offsets: np.ndarray[Any, Any],
        select: np.ndarray[Any, Any],
        data: np.ndarray[Any, Any],
        ends: np.ndarray[Any, Any],
        valid: np.ndarray[Any, Any],
    ) -> pa.Array:
        changed = self._differences(plan, select, valid)
        try:
            if not len(changed):
                return json_text.json_texts(data, ends, valid)
            raw = data.tobytes()
            texts = []
            for i in changed.tolist():
                before = int(offsets[select[i] - 1])
                if before < 0:
                    raise DecodeError("differences came without the value they apply to")
                size = int.from_bytes(self.arena[before : before + 4].tobytes(), "little")
                document = self.arena[before + 4 : before + 4 + size].tobytes()
                texts.append(json_diff.patched_text(document, raw[int(ends[i]) : int(ends[i + 1])]))
            mask = np.zeros(len(valid), bool)
            mask[changed] = True
            others = json_text.json_texts(data, ends, np.where(mask, 0, valid).astype(np.uint8))
            return pc.replace_with_mask(others, arrow_buffers.booleans(mask), arrow_buffers.strings(texts))
        except DecodeError as error:
            hint = None
            if "without" in error.message:
                hint = f"a session set binlog_row_image = 'MINIMAL' beside PARTIAL_JSON: set it to FULL; {AROUND}"
            raise self._error(f"column {plan.column.name}: {error.message}", hint=hint) from error

    def _differences(
        self, plan: ColumnLayout, select: np.ndarray[Any, Any], valid: np.ndarray[Any, Any]
    ) -> np.ndarray[Any, Any]:
        """Return the indexes into ``select`` of the values that are differences to the before image."""
        if self.partial is None:
            return np.empty(0, np.int64)
        bit = [p.column.name for p in self.plan.columns if p.fill is Fill.JSON].index(plan.column.name)
        at = np.where(select >= 0, self.partial[select], 0)
        flags = np.where(at > 0, self.arena[at + (bit >> 3)] >> (bit & 7) & 1, 0)
        return np.flatnonzero((flags == 1) & (valid == 1))

    def _inflate(
        self, name: str, data: np.ndarray[Any, Any], ends: np.ndarray[Any, Any]
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Inflate MariaDB's COMPRESSED columns.

        A value has a header byte (8: zlib, low bits: length bytes), the length, then the deflated value.
        """
        import zlib

        raw = data.tobytes()
        bounds = ends.tolist()
        pieces = []
        for i in range(len(bounds) - 1):
            value = raw[bounds[i] : bounds[i + 1]]
            if value and value[0] == 0:
                value = value[1:]
            elif value:
                try:
                    value = zlib.decompress(value[1 + (value[0] & 7) :], -15 if value[0] & 8 else 15)
                except zlib.error as error:
                    raise self._error(f"column {name}: a compressed value is broken: {error}") from error
            pieces.append(value)
        new_ends = np.concatenate([[0], np.cumsum([len(p) for p in pieces])]).astype(np.int64)
        return np.frombuffer(bytearray(b"".join(pieces)), np.uint8), new_ends

    def _enum(
        self, name: str, labels: tuple[str, ...], numbers: np.ndarray[Any, Any], valid: np.ndarray[Any, Any], nulls: int
    ) -> pa.Array:
        if len(numbers) and int(numbers.max()) > len(labels):
            raise self._error(f"column {name}: ENUM index {int(numbers.max())} has no label")
        zero = ENUM_ERROR_VALUE if "" in labels else ""
        texts = arrow_buffers.strings([zero, *labels])
        index = pa.Array.from_buffers(
            pa.int64(), len(numbers), [_validity(valid, nulls), pa.py_buffer(numbers)], null_count=nulls
        )
        return texts.take(index)

    # -- the metadata columns ------------------------------------------------------------------------------------------
    def _meta(self, buckets: np.ndarray[Any, Any]) -> list[pa.Array]:
        rows, rev, event = self.rows, self.rev, self.event
        count = len(event)
        txn = rev[sc.R_TXN][event]
        local = txn - rows.txn_first
        first_file, last_file = int(rev[sc.R_FILE].min()), int(rev[sc.R_FILE].max())
        if first_file == last_file:
            file = pa.repeat(arrow_buffers.strings([rows.files[first_file]])[0], count)
        else:
            file = arrow_buffers.strings(rows.files).take(arrow_buffers.numbers(rev[sc.R_FILE][event]))
        present: pa.Array = self._present() if self.incomplete else pa.nulls(count, pa.binary())
        values = {
            "_op": _OP_NAMES.take(arrow_buffers.numbers(self.op)),
            "_seq": arrow_buffers.numbers((rev[sc.R_SEQ][event] + self.within).astype(np.uint64)),
            "_file": file,
            "_offset": arrow_buffers.numbers(rev[sc.R_OFFSET][event].astype(np.uint64)),
            "_row": arrow_buffers.numbers((rev[sc.R_ROW][event] + self.within).astype(np.uint32)),
            "_commit_ts": arrow_buffers.numbers(rows.commit_us[local], pa.timestamp("us", tz="UTC")),
            "_gtid": rows.gtids.take(arrow_buffers.numbers(local)),
            "_txn": arrow_buffers.numbers(txn.astype(np.uint64)),
            "_origin": arrow_buffers.numbers(rev[sc.R_ORIGIN][event].astype(np.uint32)),
            "_bucket": arrow_buffers.numbers(buckets),
            "_present": present,
        }
        return [values[f.name] for f in META_FIELDS]

    def _present(self) -> pa.Array:
        """Return bitmaps of the known columns of each row, and after them of its before image.

        A bitmap is null where nothing is missing.
        """
        captured = np.array(self.plan.captured)
        generated = np.array([self.plan.columns[i].column.generated for i in captured])[:, None]
        offsets = self.offsets[captured]
        after = offsets[:, self.main] != column_kernels.ABSENT_COLUMN
        after |= (self.op == OP_INSERT)[None, :] & ~generated  # an insert's other columns have their defaults
        before = (offsets[:, self.before] != column_kernels.ABSENT_COLUMN) | (self.before < 0)[None, :]
        complete = ((after | generated) & (before | generated)).all(axis=0)
        both = np.concatenate([np.packbits(part, axis=0, bitorder="little") for part in (after, before)])
        maps = np.ascontiguousarray(both.T)
        return arrow_buffers.blobs([None if w else maps[i].tobytes() for i, w in enumerate(complete.tolist())])

    def _with_default(self, index: int, values: pa.Array) -> pa.Array:
        """Fill in the default where an inserted row's image leaves the column out (binlog_row_image=MINIMAL)."""
        plan = self.plan.columns[index]
        left_out = (self.op == OP_INSERT) & (self.offsets[index][self.main] == column_kernels.ABSENT_COLUMN)
        if plan.column.generated or not left_out.any():
            return values
        definition = self.plan.definition
        try:
            if definition is None:
                raise UnsupportedType("its default is not known")
            default = default_scalar(definition.column(plan.column.name), plan.column.type)
        except UnsupportedType as error:
            raise self._error(
                f"an inserted row leaves column {plan.column.name} out: {error.message}",
                int(self.event[int(np.argmax(left_out))]),
                hint="SET GLOBAL binlog_row_image = 'NOBLOB' or 'FULL' logs it from then on; `sluice schema show` "
                "prints what is known",
            ) from error
        return pc.if_else(arrow_buffers.booleans(left_out), default, values) if default.is_valid else values

    def _error(self, what: str, event: int = 0, hint: str | None = None) -> DecodeError:
        number = int(self.rev[sc.R_FILE][event])
        file, offset = self.rows.files[number], int(self.rev[sc.R_OFFSET][event])
        return DecodeError(
            f"decoding rows of {self.plan.schema.table}: {what}",
            where=f"{file}:{offset}",
            hint=hint or f"mysqlbinlog -vvv --start-position={offset} {file}",
        )


def _temporal(mode: int, with_digits: int | None = None) -> FillFunction:
    return partial(_TableDecoder._temporal, mode=mode, with_digits=with_digits)


def _printed(text: Callable[[bytes], str]) -> FillFunction:
    return partial(_TableDecoder._printed, text=text)


FILLS: Mapping[Fill, FillFunction] = {
    Fill.COPY: _TableDecoder._copied,
    Fill.MEDIUM: _TableDecoder._medium,
    Fill.YEAR: _TableDecoder._year,
    Fill.BITS: _TableDecoder._bits,
    Fill.DECIMAL: _TableDecoder._decimal,
    Fill.DATE: _temporal(column_kernels.MODE_DATE),
    Fill.DATETIME: _temporal(column_kernels.MODE_DATETIME, column_kernels.MODE_OLD_DATETIME),
    Fill.DATETIME2: _temporal(column_kernels.MODE_DATETIME2),
    Fill.TIMESTAMP: _temporal(column_kernels.MODE_TIMESTAMP, column_kernels.MODE_OLD_TIMESTAMP),
    Fill.TIMESTAMP2: _temporal(column_kernels.MODE_TIMESTAMP2),
    Fill.TIME: _temporal(column_kernels.MODE_TIME, column_kernels.MODE_OLD_TIME),
    Fill.TIME2: _temporal(column_kernels.MODE_TIME2),
    Fill.LABEL: _TableDecoder._label,
    Fill.LABELS: _TableDecoder._labels,
    Fill.BYTES: _TableDecoder._bytes,
    Fill.COMPRESSED: _TableDecoder._compressed,
    Fill.PADDED: _TableDecoder._padded,
    Fill.JSON: _TableDecoder._documents,
    Fill.UUID: _printed(uuid_text),
    Fill.INET4: _printed(inet4_text),
    Fill.INET6: _printed(inet6_text),
}
"""The function of each way in which a type's bytes are read (:class:`sluice.mysql.column_types.Fill`)."""


def _validity(valid: np.ndarray[Any, Any], nulls: int) -> pa.Buffer | None:
    return pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None


def _array(
    kind: pa.DataType, rows: int, valid: np.ndarray[Any, Any], nulls: int, data: np.ndarray[Any, Any]
) -> pa.Array:
    return pa.Array.from_buffers(kind, rows, [_validity(valid, nulls), pa.py_buffer(data)], null_count=nulls)


def _binary(
    kind: pa.DataType,
    rows: int,
    valid: np.ndarray[Any, Any],
    nulls: int,
    ends: np.ndarray[Any, Any],
    data: np.ndarray[Any, Any],
) -> pa.Array:
    if int(ends[-1]) >= 2**31:
        raise DecodeError("the values of one column of one arena take 2 GiB or more")
    buffers = [_validity(valid, nulls), pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, rows, buffers, null_count=nulls)


def _sets(labels: tuple[str, ...], numbers: np.ndarray[Any, Any], valid: np.ndarray[Any, Any], nulls: int) -> pa.Array:
    masks, inverse = np.unique(numbers, return_inverse=True)
    if any((mask & 0xFFFFFFFFFFFFFFFF) >> len(labels) for mask in masks.tolist()):
        raise DecodeError("a SET value has a bit without a label")
    texts = [",".join(label for i, label in enumerate(labels) if mask >> i & 1) for mask in masks.tolist()]
    index = pa.Array.from_buffers(
        pa.int64(), len(numbers), [_validity(valid, nulls), pa.py_buffer(inverse.astype(np.int64))], null_count=nulls
    )
    return arrow_buffers.strings(texts).take(index)


def gtid_texts(sids: list[str], sid: np.ndarray[Any, Any], gno: np.ndarray[Any, Any], tail: str = ":") -> pa.Array:
    """Return GTIDs as text, null where ``sid`` is -1.

    ``sids``: text of each source (and tag) id; ``tail`` joins it with the number.
    """
    if not len(sid) or int(sid.max()) < 0:
        return pa.nulls(len(sid), pa.string())
    known_mask = sid >= 0
    index = _array(
        pa.int64(), len(sid), known_mask.view(np.uint8), int(len(sid) - known_mask.sum()), np.ascontiguousarray(sid)
    )
    names = arrow_buffers.strings(sids).take(index)
    return pc.binary_join_element_wise(
        names, arrow_buffers.numbers(gno).cast(pa.string()), arrow_buffers.strings([tail])[0]
    )
