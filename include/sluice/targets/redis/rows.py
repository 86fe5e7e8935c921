"""Rows of a batch in the protocol's own form: keys and words, made column by column."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
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
"""Rows, and bytes of them, in one script at most: the server answers nobody else meanwhile."""
_Mask = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Rows of one table. ``keys``, ``words``: their arguments in a script, packed.

    ``counts``: words of each, with the number of them.

    ``sizes``: bytes of each row, key and values. ``names``: the keys, not packed.
    """

    names: pa.Array
    keys: pa.Array
    words: pa.Array
    counts: _Mask
    sizes: _Mask

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, kept: _Mask) -> PackedRows:
        """Return some of the rows, by a mask."""
        if kept.all():
            return self
        mask = pa.array(kept)
        names, keys, words = (one.filter(mask) for one in (self.names, self.keys, self.words))
        return PackedRows(names, keys, words, self.counts[kept], self.sizes[kept])

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Yield (first, end) of the rows that go into one script."""
        first, total = 0, len(self)
        ends = np.cumsum(self.sizes)
        while first < total:
            done = int(ends[first - 1]) if first else 0
            end = int(np.searchsorted(ends, done + CHUNK_BYTES, side="right"))
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
        made = json_texts if options.form == "json" else texts
        return {
            true_name(one): made(one_chunk(rows[one.name]), self.type_of(one))
            for one in self.sent(rows.schema)
            if options.value_column in {"", true_name(one)}
        }

    def packed(self, keys: pa.Array, values: dict[str, pa.Array], expiries: pa.Array | None) -> PackedRows:
        """Return rows as arguments of the script that writes them.

        ``expiries``: text of each, "" for never; None: no row has one.
        """
        count = len(keys)
        form, words = self.place.options.form, np.ones(count, np.int64)
        if form == "hash":
            given = {name: one for name, one in values.items() if one.null_count < count}
            pairs = [_joined(bulk_of(name.encode()), bulks(one)) for name, one in given.items()]
            words = np.zeros(count, np.int64)
            for one in given.values():
                words += 2 * one.is_valid().to_numpy(zero_copy_only=False)
        elif form == "json":
            given = {name: pc.fill_null(one, "null") for name, one in values.items()}
            pairs = [bulks(image(given).cast(BYTES))]
        else:
            value = values[self.place.options.value_column]
            pairs, words = [bulks(value)], value.is_valid().to_numpy(zero_copy_only=False).astype(np.int64)
        heads = bulks(pa.array(words).cast(pa.large_string()).cast(BYTES))
        parts = [heads, *pairs, *([bulks(expiries.cast(BYTES))] if expiries is not None else ())]
        sent = _joined(*parts, skip=True)
        names = keys.cast(BYTES)
        bulk_keys = bulks(names)
        sizes = (
            pc.add(pc.binary_length(bulk_keys), pc.binary_length(sent)).to_numpy(zero_copy_only=False).astype(np.int64)
        )
        return PackedRows(names, bulk_keys, sent, words + 1 + (expiries is not None), sizes)

    def expiries(self, rows: pa.Table) -> tuple[str, pa.Array | None]:
        """Return the command that lets rows go by themselves, and its argument for each row; ("", None) if none
        does.
        """
        expire = self.place.options.expire
        if expire is None:
            return "", None
        if expire.after is not None:
            return "PEXPIRE", pa.array([str(int(expire.after.total_seconds() * 1000))] * rows.num_rows, pa.string())
        fields = {true_name(one): one for one in self.sent(rows.schema)}
        if expire.column not in fields:
            return "", None
        at = expiry_ms(one_chunk(rows[fields[expire.column].name]))
        return "PEXPIREAT", pc.fill_null(at.cast(pa.string()), "")


def expiry_ms(values: pa.Array) -> pa.Array:
    """Return times as milliseconds since 1970: of dates and times, or of numbers of seconds; null: never.

    A date that no calendar has is long ago in the form in which it is stored, and would remove its row: it is null,
    too.
    """
    kind = values.type
    if pa.types.is_timestamp(kind):
        found = pc.divide(values.cast(pa.timestamp("us", kind.tz)).view(pa.int64()), 1000)
    elif pa.types.is_date32(kind):
        found = pc.multiply(values.view(pa.int32()).cast(pa.int64()), 86_400_000)
    else:
        found = pc.multiply(values.cast(pa.int64(), safe=False), 1000)
    return pc.if_else(pc.greater(found, _FIRST_MS), found, pa.scalar(None, pa.int64()))


_FIRST_MS = -62_135_596_800_000
"""The year 1: anything before it is no time."""
EXPIRY_KINDS = frozenset({
    ColumnKind.DATE, ColumnKind.DATETIME, ColumnKind.TIMESTAMP, ColumnKind.INT, ColumnKind.BIGINT, ColumnKind.DECIMAL,
})  # fmt: skip


def bulk_of(value: bytes) -> bytes:
    """Return one argument as the protocol has it."""
    return b"$%d\r\n%b\r\n" % (len(value), value)


def bulks(values: pa.Array) -> pa.Array:
    """Return arguments as the protocol has them; null stays null."""
    length = pc.binary_length(values).cast(pa.large_string()).cast(BYTES)
    return _joined(b"$", length, b"\r\n", values, b"\r\n")


def _joined(*parts: pa.Array | bytes, skip: bool = False) -> pa.Array:
    """Join bytes row by row. ``skip``: what is null is left out; else the row is null."""
    given = [pa.scalar(part, BYTES) if isinstance(part, bytes) else part for part in parts]
    how: dict[str, Any] = {"null_handling": "skip"} if skip else {}
    return pc.binary_join_element_wise(*given, pa.scalar(b"", BYTES), **how)


def content(values: pa.Array, first: int, end: int) -> memoryview:
    """Return the bytes of some values, one after the other, without a copy."""
    _, ends, data = values.buffers()
    offsets = np.frombuffer(ends, np.int64)[values.offset : values.offset + len(values) + 1]
    return memoryview(data)[int(offsets[first]) : int(offsets[end])] if data is not None else memoryview(b"")


__all__ = ["EXPIRY_KINDS", "PackedRows", "TableRows", "bulk_of", "bulks", "content", "expiry_ms"]
