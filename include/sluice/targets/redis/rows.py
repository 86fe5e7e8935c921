"""Rows of a batch in the protocol's own form: keys and words, made column by column."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.formats.columns import image
from sluice.model.column_types import ColumnKind
from sluice.model.fields import true_name
from sluice.model.planned import PlannedTable
from sluice.model.tables import one_chunk
from sluice.targets.messages.keyed_rows import KeyedRows
from sluice.targets.messages.row_texts import BYTES, json_texts, texts
from sluice.targets.redis.place import Place

CHUNK_ROWS, CHUNK_BYTES = 1_000, 1 << 20
"""Rows, and bytes of them, in one script or transaction at most: the server answers nobody else meanwhile."""
_Mask = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Rows of one table, packed.

    Attributes:
        names: the keys as they are; keys: as arguments.
        pairs: the fields and values of each, or its one value; written: words that these are, 0 for a row without any.
        expiries: when each goes, "" for never; None: no row does.
        sizes: bytes of each row, key and values.
    """

    names: pa.Array
    keys: pa.Array
    pairs: pa.Array
    written: _Mask
    expiries: pa.Array | None
    sizes: _Mask

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, row_mask: _Mask) -> PackedRows:
        """Return some of the rows, by a mask."""
        if row_mask.all():
            return self
        mask = pa.array(row_mask)
        names, keys, pairs = (array.filter(mask) for array in (self.names, self.keys, self.pairs))
        expiries = None if self.expiries is None else self.expiries.filter(mask)
        return PackedRows(names, keys, pairs, self.written[row_mask], expiries, self.sizes[row_mask])

    def arguments(self) -> tuple[pa.Array, _Mask]:
        """Return the rows as arguments of a script, and how many each has: its number of words, and these."""
        return _joined(_numbers(self.written), self.pairs, skip=True), self.written + 1

    def commands(self, form: str, expiry: str) -> tuple[pa.Array, _Mask]:
        """Return the commands that write each row where no key of its name is, and how many these are.

        ``expiry``: the command that lets it go.
        """
        some = self.written > 0
        word = b"HSET" if form == "hash" else b"SET"
        heads = pa.array(self.written + 2).cast(pa.large_string()).cast(BYTES)
        writes = _joined(b"*", heads, b"\r\n" + bulk_of(word), self.keys, self.pairs, skip=True)
        commands, counts = pc.if_else(pa.array(some), writes, pa.scalar(b"", BYTES)), some.astype(np.int64)
        if self.expiries is not None:
            goes = some & pc.not_equal(self.expiries, "").to_numpy(zero_copy_only=False)
            last = _joined(b"*3\r\n" + bulk_of(expiry.encode()), self.keys, bulks(self.expiries.cast(BYTES)))
            commands = _joined(commands, pc.if_else(pa.array(goes), last, pa.scalar(b"", BYTES)))
            counts += goes
        return commands, counts

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Yield (first, end) of the rows that go into one script or transaction."""
        first, total = 0, len(self)
        ends = np.cumsum(self.sizes)
        while first < total:
            offset = int(ends[first - 1]) if first else 0
            end = int(np.searchsorted(ends, offset + CHUNK_BYTES, side="right"))
            end = max(first + 1, min(end, first + CHUNK_ROWS, total))
            yield first, end
            first = end


class TableRows(KeyedRows):
    """Makes the rows of a table as the options say."""

    def __init__(self, place: Place, plan: PlannedTable) -> None:
        super().__init__(plan, *place.row_affixes(plan.target))
        self.place = place

    def texts_of(self, rows: pa.Table) -> dict[str, pa.Array]:
        """Return the texts of what is sent, by true name: large_binary, or JSON texts in form: json."""
        options = self.place.options
        to_texts = json_texts if options.form == "json" else texts
        return {
            true_name(field): to_texts(one_chunk(rows[field.name]), self.type_of(field))
            for field in self.sent(rows.schema)
            if options.value_column in {"", true_name(field)}
        }

    def packed(self, keys: pa.Array, values: dict[str, pa.Array], expiries: pa.Array | None) -> PackedRows:
        """Return rows as they are sent.

        ``expiries``: text of each, "" for never; None: no row has one.
        """
        count = len(keys)
        form, words = self.place.options.form, np.ones(count, np.int64)
        if form == "hash":
            columns = {name: column for name, column in values.items() if column.null_count < count}
            parts = [_joined(bulk_of(name.encode()), bulks(column)) for name, column in columns.items()]
            words = np.zeros(count, np.int64)
            for column in columns.values():
                words += 2 * column.is_valid().to_numpy(zero_copy_only=False)
        elif form == "json":
            columns = {name: pc.fill_null(column, "null") for name, column in values.items()}
            parts = [bulks(image(columns).cast(BYTES))]
        else:
            value = values[self.place.options.value_column]
            parts, words = [bulks(value)], value.is_valid().to_numpy(zero_copy_only=False).astype(np.int64)
        pairs = _joined(pa.array([b""] * count, BYTES), *parts, skip=True)
        names = keys.cast(BYTES)
        bulk_keys = bulks(names)
        packed = PackedRows(names, bulk_keys, pairs, words, expiries, np.zeros(count, np.int64))
        sent = [bulk_keys, packed.arguments()[0], *([] if expiries is None else [bulks(expiries.cast(BYTES))])]
        return replace(
            packed,
            sizes=sum(pc.binary_length(column).to_numpy(zero_copy_only=False).astype(np.int64) for column in sent),
        )

    def expiries(self, rows: pa.Table) -> tuple[str, pa.Array | None]:
        """Return the command that lets rows go by themselves, and its argument for each row; ("", None) if none
        does.
        """
        expire = self.place.options.expire
        if expire is None:
            return "", None
        if expire.after is not None:
            return "PEXPIRE", pa.array([str(int(expire.after.total_seconds() * 1000))] * rows.num_rows, pa.string())
        fields = {true_name(field): field for field in self.sent(rows.schema)}
        if expire.column not in fields:
            return "", None
        at = expiry_ms(one_chunk(rows[fields[expire.column].name]))
        return "PEXPIREAT", pc.fill_null(at.cast(pa.string()), "")


def expiry_ms(values: pa.Array) -> pa.Array:
    """Return times as milliseconds since 1970: of dates and times, or of numbers of seconds; null: never.

    A date that no calendar has is long ago in the form in which it is stored, and would remove its row: it is null,
    too, as is what lies after the year 9999.
    """
    kind = values.type
    if pa.types.is_timestamp(kind):
        milliseconds = pc.divide(values.cast(pa.timestamp("us", kind.tz)).view(pa.int64()), 1000)
    elif pa.types.is_date32(kind):
        milliseconds = pc.multiply(values.view(pa.int32()).cast(pa.int64()), 86_400_000)
    else:
        seconds = _within(values.cast(_SECONDS, safe=False), _FIRST_MS // 1000, _LAST_MS // 1000)
        milliseconds = pc.multiply_checked(seconds.cast(pa.decimal128(16, 3)), pa.scalar(Decimal(1000))).cast(
            pa.int64()
        )
    return _within(milliseconds, _FIRST_MS, _LAST_MS)


def _within(values: pa.Array, low: int, high: int) -> pa.Array:
    """Return the values, null where they are not between ``low`` and ``high``."""
    in_range = pc.and_(pc.greater(values, pa.scalar(low)), pc.less(values, pa.scalar(high)))
    return pc.if_else(in_range, values, pa.scalar(None, values.type))


_SECONDS = pa.decimal256(76, 3)
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_800_000
"""The years 1 and 10,000: before and after them is no time."""
EXPIRY_KINDS = frozenset({
    ColumnKind.DATE, ColumnKind.DATETIME, ColumnKind.TIMESTAMP, ColumnKind.INT, ColumnKind.BIGINT, ColumnKind.DECIMAL,
})  # fmt: skip


def bulk_of(value: bytes) -> bytes:
    """Return one argument as the protocol has it."""
    return b"$%d\r\n%b\r\n" % (len(value), value)


def command_of(*words: bytes) -> bytes:
    """Return a command as the protocol has it."""
    return b"*%d\r\n%b" % (len(words), b"".join(map(bulk_of, words)))


def _numbers(values: _Mask) -> pa.Array:
    return bulks(pa.array(values).cast(pa.large_string()).cast(BYTES))


def bulks(values: pa.Array) -> pa.Array:
    """Return arguments as the protocol has them; null stays null."""
    length = pc.binary_length(values).cast(pa.large_string()).cast(BYTES)
    return _joined(b"$", length, b"\r\n", values, b"\r\n")


def _joined(*parts: pa.Array | bytes, skip: bool = False) -> pa.Array:
    """Join bytes row by row. ``skip``: what is null is left out; else the row is null."""
    arrays = [pa.scalar(part, BYTES) if isinstance(part, bytes) else part for part in parts]
    how: dict[str, Any] = {"null_handling": "skip"} if skip else {}
    return pc.binary_join_element_wise(*arrays, pa.scalar(b"", BYTES), **how)


def content(values: pa.Array, first: int, end: int) -> memoryview:
    """Return the bytes of some values, one after the other, without a copy."""
    _, ends, data = values.buffers()
    offsets = np.frombuffer(ends, np.int64)[values.offset : values.offset + len(values) + 1]
    return memoryview(data)[int(offsets[first]) : int(offsets[end])] if data is not None else memoryview(b"")
