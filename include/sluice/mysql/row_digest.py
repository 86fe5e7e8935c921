"""The checksums of :mod:`sluice.mysql.range_digest`, computed from decoded rows instead of by the server.

A row has the same hash here as in the SQL of :func:`sluice.mysql.range_digest.digest_sql`, bit by bit. So the sum of
the rows that the log brings and takes can be kept, and compared with what a server says of the whole table.

A type whose text the server prints in its own way (FLOAT, DOUBLE), or whose bytes cannot be told from its characters (a
charset of several bytes other than UTF-8), is not covered: :func:`not_covered` names it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.digests import RangeDigest, hashes_of_texts
from sluice.model.tables import Column, one_chunk
from sluice.model.temporal import to_text
from sluice.mysql.charsets import UTF8, tables_of
from sluice.mysql.column_types import Literal, MysqlType, type_named
from sluice.mysql.range_digest import digest_word, number_bits, word_places

ROWS_AT_A_TIME = 32_768
_PLAIN = UTF8 | {"ascii"}
_TEMPORAL = frozenset({ColumnKind.DATE, ColumnKind.DATETIME, ColumnKind.TIMESTAMP, ColumnKind.TIME})


@dataclass(frozen=True, slots=True)
class HashedColumn:
    """A column whose values enter a row's hash."""

    name: str
    declared: str
    type: ColumnType

    @classmethod
    def of(cls, column: Column) -> HashedColumn:
        """Return the column of a definition."""
        return cls(column.name, column.sql_type, column.type)


def not_covered(column: HashedColumn) -> str:
    """Return why a column's values cannot be hashed here as the server does, "" if they can."""
    if not digest_word(column.declared, column.type.charset or None):
        return f"column {column.name} ({column.declared}) has no checksum"
    row = type_named(column.declared, column.name)
    if row.literal is Literal.FLOAT:
        return f"column {column.name} ({column.declared}) is printed by the server in its own way"
    charset = column.type.charset
    if row.charset and row.literal is Literal.TEXT and charset not in _PLAIN and _bytes_of_characters(charset) is None:
        return f"the bytes of column {column.name} (character set {charset or 'unknown'}) cannot be told"
    return ""


def digest_of(columns: Sequence[HashedColumn], values: Sequence[pa.Array | pa.ChunkedArray]) -> RangeDigest:
    """Return the digest of rows: ``values`` has an array for each of ``columns``, each covered."""
    return RangeDigest.of(hashes_of(columns, values))


def hashes_of(columns: Sequence[HashedColumn], values: Sequence[pa.Array | pa.ChunkedArray]) -> np.ndarray[Any, Any]:
    """Return the hash of each row (uint64), see :func:`digest_of`."""
    arrays = [one_chunk(each) if isinstance(each, pa.ChunkedArray) else each for each in values]
    hashes = [
        hashes_of_texts(_bytes(_texts(columns, [array.slice(start, ROWS_AT_A_TIME) for array in arrays])))
        for start in range(0, len(arrays[0]) if arrays else 0, ROWS_AT_A_TIME)
    ]
    return np.concatenate(hashes) if hashes else np.zeros(0, np.uint64)


def _bytes(texts: pa.Array) -> Iterator[memoryview]:
    """Yield the values of a large_binary array without a copy of each."""
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int64, len(texts) + 1, texts.offset * 8).tolist()
    view = memoryview(data) if data is not None else memoryview(b"")
    start = ends[0]
    for end in ends[1:]:
        yield view[start:end]
        start = end


# -- the text of a row -------------------------------------------------------------------------------------------------
def _texts(columns: Sequence[HashedColumn], arrays: Sequence[pa.Array]) -> pa.Array:
    """Return the text of each row as :func:`sluice.mysql.range_digest.row_text` has it (large_binary)."""
    numbers: list[tuple[Any, int]] = []
    texts, strings, lengths = [], [], []
    for column, array in zip(columns, arrays, strict=True):
        row = type_named(column.declared, column.name)
        numbers.append((array.is_null().to_numpy(zero_copy_only=False).astype(np.uint64), 1))
        bits = number_bits(row)
        if bits:
            numbers.append((_number(column, row, array), bits))
        elif row.most_bytes or row.kind is ColumnKind.JSON:
            texts.append(_hashed(_stored_bytes(column, array)))
        elif row.literal is Literal.BYTES or (row.literal is Literal.TEXT and row.charset):
            stored = _stored_bytes(column, array)
            lengths.append((_filled(pc.binary_length(stored)), 16))
            strings.append(stored)
        else:
            texts.append(_printed(row, column, array))
    rows, comma, empty = len(arrays[0]), pa.scalar(b",", pa.large_binary()), pa.scalar(b"", pa.large_binary())
    text = pc.binary_join_element_wise(*_packed([*numbers, *lengths[:-1]], rows), comma)
    if texts:
        nothing = pa.repeat(empty, rows)  # Arrow leaves out rows all of whose values are NULL
        listed = pc.binary_join_element_wise(nothing, *texts, comma, null_handling="skip")
        listed = pc.if_else(pc.equal(pc.binary_length(listed), 0), comma, listed)
        text = pc.binary_join_element_wise(text, listed, empty)
    if strings:
        stored = pc.binary_join_element_wise(*(pc.fill_null(each, empty) for each in strings), empty)
        text = pc.binary_join_element_wise(text, stored, comma)
    return text


def _packed(numbers: Sequence[tuple[Any, int]], rows: int) -> list[pa.Array]:
    words: list[Any] = []
    for (values, _), (word, shift) in zip(numbers, word_places([width for _, width in numbers]), strict=True):
        if word == len(words):
            words.append(np.zeros(rows, np.uint64))
        words[word] |= values << np.uint64(shift)
    return [pa.array(word).cast(pa.string()).cast(pa.large_binary()) for word in words]


def _filled(values: pa.Array) -> Any:
    return pc.fill_null(values, 0).to_numpy(zero_copy_only=False).astype(np.uint64)


def _number(column: HashedColumn, row: MysqlType, array: pa.Array) -> Any:
    """Return the values as unsigned numbers, 0 for NULL."""
    if row.literal is Literal.LABEL:
        return _label_numbers(column.type.labels, array)
    if row.literal is Literal.LABELS:
        return _label_bits(column.type.labels, array)
    numbers = pc.fill_null(array, 0).to_numpy(zero_copy_only=False)
    if numbers.dtype.kind == "i":
        numbers = numbers.astype(np.int64).astype(np.uint64)
    mask = np.uint64(2**row.bits - 1) if row.bits else np.uint64(2**64 - 1)
    return numbers.astype(np.uint64) & mask


def _label_numbers(labels: Sequence[str], array: pa.Array) -> Any:
    """Return the numbers of ENUM values; 0 for the value that stands for no label, and for NULL."""
    return _filled(pc.add(pc.index_in(array, pa.array(labels, pa.string())), 1))


def _label_bits(labels: Sequence[str], array: pa.Array) -> Any:
    bit = {label: 1 << number for number, label in enumerate(labels)}
    distinct = array.dictionary_encode()
    values = [sum(bit[label] for label in text.split(",")) if text else 0 for text in distinct.dictionary.to_pylist()]
    label_bits = np.array(values or [0], np.uint64)[pc.fill_null(distinct.indices, 0).to_numpy(zero_copy_only=False)]
    label_bits[array.is_null().to_numpy(zero_copy_only=False)] = 0
    return label_bits


def _stored_bytes(column: HashedColumn, array: pa.Array) -> pa.Array:
    """Return the bytes that the server stores, as large_binary. JSON is hashed as text in UTF-8."""
    charset = column.type.charset
    if pa.types.is_binary(array.type) or column.type.kind is ColumnKind.JSON or charset in _PLAIN:
        return array.cast(pa.binary()).cast(pa.large_binary())
    table = _bytes_of_characters(charset)
    assert table is not None
    encoded = [None if text is None else text.translate(table).encode("latin-1") for text in array.to_pylist()]
    return pa.array(encoded, pa.large_binary())


@cache
def _bytes_of_characters(charset: str) -> dict[int, int] | None:
    """Return the byte of each character of a charset of single bytes; None for others, and if two bytes are one."""
    tables = tables_of(charset) if charset else None
    if tables is None or any(point < -1 for point in tables.first.tolist()):
        return None
    pairs = [(int(point), byte) for byte, point in enumerate(tables.first.tolist()) if point >= 0]
    byte_of = dict(pairs)
    return byte_of if len(byte_of) == len(pairs) else None


def _hashed(stored: pa.Array) -> pa.Array:
    """Return the SHA-256 of each value as hexadecimal digits."""
    hashes = [None if value is None else hashlib.sha256(value).hexdigest().encode() for value in stored.to_pylist()]
    return pa.array(hashes, pa.large_binary())


def _printed(row: MysqlType, column: HashedColumn, array: pa.Array) -> pa.Array:
    """Return the text that the server prints of a decimal, temporal or fixed value."""
    if row.kind in _TEMPORAL:
        text = to_text(array, fsp=column.type.digits)
    elif row.kind is ColumnKind.DECIMAL:
        text = _decimal_text(array)
    else:
        text = array.cast(pa.string())
    return text.cast(pa.binary()).cast(pa.large_binary())


def _decimal_text(array: pa.Array) -> pa.Array:
    text = array.cast(pa.string())
    scientific = pc.fill_null(pc.match_substring(text, "E"), False)
    if not pc.any(scientific).as_py():
        return text
    return pa.array([None if value is None else f"{value:f}" for value in array.to_pylist()], pa.string())
