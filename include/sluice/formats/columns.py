"""Documents of debezium-json from columns: the texts of :mod:`sluice.formats.debezium`, without an object per row.

Each column becomes an array of JSON texts, and these are joined row by row. A type for which no vector operation gives
the exact text is converted value by value with the function of the format itself.
``tests/unit/formats/test_columns.py`` compares both ways over all types.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.formats import debezium
from sluice.formats.common import Column, columns_of, json_text
from sluice.formats.keys import key_document
from sluice.formats.source_blocks import connector_of, lsn_sequence
from sluice.kernels import kernel
from sluice.merge.column_presence import masks
from sluice.model.batches import Op
from sluice.model.fields import true_name
from sluice.model.offset import Offset
from sluice.model.tables import ENUM_ERROR_VALUE, META_COLUMNS, TableId
from sluice.model.temporal import is_special, to_python, to_text

_TEXT = pa.large_string()
_NULL = pa.scalar("null", _TEXT)
_ESCAPED = r'["\\\x00-\x1f]'
_SHORT = (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"), ("\b", "\\b"), ("\f", "\\f"))
_OTHERS = [chr(n) for n in range(32) if chr(n) not in "\n\r\t\b\f"]
_OPS = {Op.INSERT: "c", Op.UPDATE: "u", Op.DELETE: "d", Op.READ: "r"}


def joined(*parts: pa.Array | str) -> pa.Array:
    """Join texts row by row; null where one is. At least one part is an array."""
    scalars = [pa.scalar(part, _TEXT) if isinstance(part, str) else part.cast(_TEXT) for part in parts]
    return pc.binary_join_element_wise(*scalars, pa.scalar("", _TEXT))


def quoted(texts: pa.Array) -> pa.Array:
    """Return texts as JSON strings."""
    texts = texts.cast(_TEXT)
    if pc.any(pc.match_substring_regex(texts, _ESCAPED)).as_py():
        for plain, escaped in _SHORT:
            texts = pc.replace_substring(texts, plain, escaped)
        if pc.any(pc.match_substring_regex(texts, r"[\x00-\x1f]")).as_py():
            for plain in _OTHERS:
                texts = pc.replace_substring(texts, plain, f"\\u{ord(plain):04x}")
    return joined('"', texts, '"')


@kernel
def _base64(
    data: np.ndarray[Any, Any],
    offsets: np.ndarray[Any, Any],
    alphabet: np.ndarray[Any, Any],
    encoded: np.ndarray[Any, Any],
    places: np.ndarray[Any, Any],
) -> None:
    """Write each value in quotes and with padding, at its place."""
    for number in range(places.size - 1):
        at, end, out = offsets[number], offsets[number + 1], places[number]
        encoded[out] = 34
        out += 1
        while at < end:
            remaining = end - at
            first = np.int64(data[at])
            second = np.int64(data[at + 1]) if remaining > 1 else np.int64(0)
            third = np.int64(data[at + 2]) if remaining > 2 else np.int64(0)
            encoded[out] = alphabet[first >> 2]
            encoded[out + 1] = alphabet[(first & 3) << 4 | second >> 4]
            encoded[out + 2] = alphabet[(second & 15) << 2 | third >> 6] if remaining > 1 else 61
            encoded[out + 3] = alphabet[third & 63] if remaining > 2 else 61
            at += 3
            out += 4
        encoded[out] = 34


_ALPHABET = np.frombuffer((string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/").encode(), np.uint8)


def base64(values: pa.Array) -> pa.Array:
    """Return binary values as JSON strings of base64."""
    plain = pc.fill_null(values.cast(pa.large_binary()), b"")
    _, ends, data = plain.buffers()
    offsets = np.frombuffer(ends, np.int64)[plain.offset : plain.offset + len(plain) + 1]
    content = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)
    places = np.concatenate(([0], np.cumsum((np.diff(offsets) + 2) // 3 * 4 + 2)))
    encoded = np.empty(places[-1], np.uint8)
    _base64(content, offsets, _ALPHABET, encoded, places)
    buffers = pa.Array.from_buffers(_TEXT, len(plain), [None, pa.py_buffer(places), pa.py_buffer(encoded)])
    return pc.if_else(values.is_valid(), buffers, pa.scalar(None, _TEXT)) if values.null_count else buffers


def numbers(values: pa.Array) -> pa.Array:
    """Return integers as JSON numbers."""
    return values.cast(_TEXT)


def floats(values: pa.Array) -> pa.Array:
    """Return the shortest number that reads back the same, as :func:`json_text` has it."""
    plain = pc.fill_null(values, 0.0).to_numpy(zero_copy_only=False)
    size = np.abs(plain)
    same = ((size >= 1e-4) & (size < 1e10)) | (plain == 0)
    texts = values.cast(_TEXT)
    integral = same & (plain == np.floor(plain))
    if integral.any():
        texts = pc.if_else(pa.array(integral), joined(texts, ".0"), texts)
    if not same.all():
        others = [json_text(float(value)) for value in plain[~same]]
        texts = pc.replace_with_mask(texts, pa.array(~same), pa.array(others, _TEXT))
    return pc.if_else(values.is_valid(), texts, pa.scalar(None, _TEXT)) if values.null_count else texts


def unscaled(values: pa.Array) -> pa.Array:
    """Return decimals as the shortest two's complement of their digits, most significant byte first."""
    width = values.type.byte_width
    data = values.buffers()[1]
    start = values.offset * width
    raw = np.frombuffer(data, np.uint8)[start : start + len(values) * width].reshape(-1, width)[:, ::-1]
    sign = np.where(raw[:, :1] >= 128, 255, 0)
    differs = raw != sign
    first = np.where(differs.any(axis=1), differs.argmax(axis=1), width - 1)
    # the first byte that stays must have the sign's bit
    needs = (raw[np.arange(len(raw)), first] >= 128) != (sign[:, 0] == 255)
    first = np.maximum(first - needs, 0)
    significant = np.arange(width) >= first[:, None]
    offsets = np.concatenate(([0], np.cumsum(width - first))).astype(np.int32)
    buffers = pa.Array.from_buffers(
        pa.binary(), len(raw), [None, pa.py_buffer(offsets), pa.py_buffer(raw[significant].tobytes())]
    )
    return pc.if_else(values.is_valid(), buffers, pa.scalar(None, pa.binary())) if values.null_count else buffers


def _one_by_one(values: pa.Array, column: Column) -> list[Any]:
    temporal = (
        pa.types.is_date32(values.type) or pa.types.is_timestamp(values.type) or pa.types.is_duration(values.type)
    )
    if temporal and pa.types.is_timestamp(values.type):
        values = values.cast(pa.timestamp("us"))
    plain = to_python(values) if temporal else values.to_pylist()
    return [None if v is None else debezium.value_of(v, column) for v in plain]


def _temporal(values: pa.Array, column: Column) -> pa.Array | list[Any]:
    kind = values.type
    if pa.types.is_duration(kind):
        return values.view(pa.int64())
    if not (pa.types.is_date32(kind) or pa.types.is_timestamp(kind)) or is_special(values).any():
        return _one_by_one(values, column)
    if pa.types.is_date32(kind):
        return values.view(pa.int32())
    if column.utc:
        return joined(pc.replace_substring(to_text(values, fsp=column.digits), " ", "T"), "Z")
    micros = values.view(pa.int64())
    if column.digits > 3:
        return micros
    millis = np.floor_divide(pc.fill_null(micros, 0).to_numpy(zero_copy_only=False), 1000)
    return pc.if_else(values.is_valid(), pa.array(millis), pa.scalar(None, pa.int64()))


def plain_column(values: pa.Array, column: Column) -> pa.Array | list[Any]:
    """Return what debezium-json shows of a column: numbers, texts, or bytes, which are base64 in JSON; else a list of
    values of JSON. Null stays null.
    """
    kind = values.type
    if column.temporal:
        return _temporal(values, column)
    if column.word == "bit" and (column.sql.first or 1) == 1:
        return pc.not_equal(values, 0)
    if column.word == "bit" or column.geometry:
        return _one_by_one(values, column)
    if pa.types.is_decimal(kind):
        return unscaled(values)
    if column.word == "enum" and (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return pc.if_else(pc.equal(values, ENUM_ERROR_VALUE), pa.scalar("", kind), values)
    return values if any(is_plain(kind) for is_plain in _PLAIN) else _one_by_one(values, column)


_PLAIN = (
    pa.types.is_integer, pa.types.is_boolean, pa.types.is_floating, pa.types.is_string, pa.types.is_large_string,
    pa.types.is_binary, pa.types.is_large_binary,
)  # fmt: skip


def json_column(values: pa.Array, column: Column) -> pa.Array:
    """Return a column as JSON texts of debezium-json; null stays null."""
    narrow = pa.types.is_floating(values.type) and (column.word == "float" or not pa.types.is_float64(values.type))
    plain = _one_by_one(values, column) if narrow or column.word == "vector" else plain_column(values, column)
    if isinstance(plain, list):
        valid = values.is_valid().to_pylist()
        texts = (json_text(value) if is_valid else None for value, is_valid in zip(plain, valid, strict=True))
        return pa.array(texts, _TEXT)
    return joined('"', plain, '"') if column.temporal and column.utc else _json_of(plain)


def _json_of(values: pa.Array) -> pa.Array:
    """Return the JSON texts of numbers, texts and bytes."""
    kind = values.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return numbers(values)
    if pa.types.is_floating(kind):
        return floats(values)
    return quoted(values) if pa.types.is_string(kind) or pa.types.is_large_string(kind) else base64(values)


Texts = dict[str, pa.Array]
PlacesInTransaction = tuple[pa.Array, pa.Array, pa.Array]
"""Columns: the id of each change's transaction (null: none), its place there, its place among those of its table."""


def texts_of(arrays: Sequence[tuple[str, pa.Array]], columns: dict[str, Column]) -> Texts:
    """Return the JSON texts of columns by true name; "null" for null."""
    named_texts = ((name, json_column(values, columns[name])) for name, values in arrays)
    return {name: pc.fill_null(texts, _NULL) if texts.null_count else texts for name, texts in named_texts}


def image(texts: Texts) -> pa.Array:
    """Return rows as JSON objects."""
    return joined(*_parts(texts), "}")


def _parts(texts: Mapping[str, pa.Array | str]) -> list[pa.Array | str]:
    """Return a JSON object without its end."""
    parts: list[pa.Array | str] = []
    for name, values in texts.items():
        parts += [("," if parts else "{") + json_text(name) + ":", values]
    return parts


@dataclass(frozen=True, slots=True)
class Image:
    """A row in each document. ``which``: one of ``rows``, the columns as they are and as they were; -1: none."""

    which: np.ndarray[Any, Any]
    rows: tuple[Mapping[str, Any], ...]


class Rows:
    """Rows as columns (SEGMENT_ROWS, or CHANGESET_ROWS with ``at``), whose documents and keys are made together.

    None may be partial.

    ``at``: the end of the batch: what merged rows have for a place in the log.
    """

    def __init__(self, rows: pa.Table, table: TableId, *, at: Offset | None = None) -> None:
        self.rows = rows = rows.combine_chunks()
        self.table, self._at = table, at
        fields = tuple(field for field in rows.schema if field.name not in META_COLUMNS)
        self._columns = columns_of(fields)
        self._now = {true_name(f): _whole(rows[f.name]) for f in fields}
        before = _whole(rows["_before"])
        self.existed = before.is_valid()
        self.gone = pc.equal(_whole(rows["_op"]), Op.DELETE.value)
        self._any_before = bool(pc.any(self.existed).as_py())
        self._then = dict(zip(self._now, before.flatten(), strict=True)) if self._any_before else {}
        self._texts: Texts = {}

    def _texts_of(self, names: Iterable[str]) -> Texts:
        """Return the JSON texts of columns, each made when it is first asked for: documents and keys share them."""
        self._texts |= texts_of([(name, self._now[name]) for name in names if name not in self._texts], self._columns)
        return {name: self._texts[name] for name in names}

    def keys(self, format_name: str, names: Sequence[str]) -> pa.Array:
        """Return the key documents."""
        opening, before, closing = key_document(format_name, self.table, names)
        parts: list[pa.Array | str] = [opening]
        texts = self._texts_of(names)
        for text, name in zip(before, names, strict=True):
            parts += [text, texts[name]]
        return joined(*parts, closing)

    def plain(self, names: Sequence[str], then: bool = False) -> dict[str, pa.Array | list[Any]]:
        """Return columns as :func:`plain_column` has them. ``then``: those of the rows as they were."""
        values = self._then if then else self._now
        return {name: plain_column(values[name], self._columns[name]) for name in names}

    def moved(self, names: Sequence[str]) -> np.ndarray[Any, Any]:
        """See :func:`moved`."""
        return moved(self.rows, names)

    def _images(self) -> tuple[pa.Array | str, pa.Array | str]:
        """Return ``before`` and ``after`` of each document."""
        now = image(self._texts_of(self._now))
        then = pa.nulls(self.rows.num_rows, _TEXT)
        if self._any_before:
            then = image(texts_of(list(self._then.items()), self._columns))
        if not pc.any(self.gone).as_py():  # most batches: texts are not copied once more
            if not self._any_before:
                return "null", now
            if pc.all(self.existed).as_py():
                return then, now
        was = then if self._at is not None else now  # a deleted row of the log is in the columns themselves
        was = pc.if_else(self.existed, was, now)
        old = pc.if_else(self.existed, then, _NULL)
        return pc.if_else(self.gone, was, old), pc.if_else(self.gone, _NULL, now)

    def documents(self, source: str, in_transaction: PlacesInTransaction | None = None) -> pa.Array:
        """Return one document per row, for rows that did not change their key."""
        before, after = self._images()
        values = self._contents(source)
        texts = {name: json_value(value) for name, value in values.items()}
        block = {field.name: texts[field.shows] for field in connector_of(source).fields}
        times: list[pa.Array | str] = []
        for name in _TIMES:
            times += [f',"{name}":', texts[name]]
        place = "null" if in_transaction is None else _place(in_transaction)
        return joined(
            '{"before":', before, ',"after":', after, ',"source":', *_parts(block), '},"transaction":', place,
            ',"op":', texts["op"], *times, "}",
        )  # fmt: skip

    def plain_documents(self, source: str, in_transaction: PlacesInTransaction | None = None) -> dict[str, Any]:
        """Return the fields of the same documents, as :func:`sluice.formats.binary.encoded` takes them."""
        names, values = list(self._now), self._contents(source)
        rows = (self.plain(names), *((self.plain(names, then=True),) if self._any_before else ()))
        existed, deleted = (np.asarray(mask.to_numpy(zero_copy_only=False)) for mask in (self.existed, self.gone))
        was = np.where(deleted & (self._at is None), 0, np.where(existed, 1, np.where(deleted, 0, -1)))
        return {
            "before": Image(was, rows), "after": Image(np.where(deleted, -1, 0), rows),
            "source": {field.name: values[field.shows] for field in connector_of(source).fields},
            "transaction": None if in_transaction is None else {
                "": in_transaction[0].is_valid(),
                **dict(zip(("id", "total_order", "data_collection_order"), in_transaction, strict=True)),
            },
            "op": values["op"], **{name: values[name] for name in _TIMES},
        }  # fmt: skip

    def _contents(self, source: str) -> dict[str, Any]:
        """Return what documents have besides rows: an array, or the value that all have, by the name that a block
        gives it.
        """
        us, ops, connector = (
            _whole(self.rows["_commit_ts"]).view(pa.int64()),
            _whole(self.rows["_op"]),
            connector_of(source),
        )
        values = {
            **connector.names(source), "schema": self.table.schema, "table": self.table.table,
            "snapshot": _mapped(ops, lambda code: "true" if code == Op.READ else "false"),
            "op": _mapped(ops, lambda code: _OPS[Op(code)]),
            "ts_ms": pa.array(np.floor_divide(us.to_numpy(zero_copy_only=False), 1000)), "ts_us": us,
            "ts_ns": pc.multiply_checked(us, 1000),
        }  # fmt: skip
        if self._at is not None:
            file, offset = self._at.row_place
            values |= {"origin": 0, "row": 0, "file": file, "offset": offset, "lsn_sequence": lsn_sequence(offset)}
        else:
            in_log = {field.shows for field in connector.fields} & _IN_LOG.keys()
            values |= {name: _IN_LOG[name](self.rows) for name in in_log}
        return {field.shows: None for field in connector.fields} | values


_TIMES = ("ts_ms", "ts_us", "ts_ns")
_IN_LOG: Mapping[str, Callable[[pa.Table], pa.Array]] = {
    "origin": lambda rows: _whole(rows["_origin"]),
    "gtid": lambda rows: _whole(rows["_gtid"]),
    "gtid_number": lambda rows: _whole(rows["_gtid"]).cast(pa.int64()),
    "file": lambda rows: _whole(rows["_file"]),
    "offset": lambda rows: _whole(rows["_offset"]),
    "row": lambda rows: _whole(rows["_row"]),
    "lsn_sequence": lambda rows: joined('[null,"', numbers(_whole(rows["_offset"])), '"]'),
}
"""The place of rows in the log, by the name that a block gives it."""


def json_value(value: Any) -> pa.Array | str:
    """Return the JSON of a value that all rows have, or of an array, many of whose texts are equal."""
    if not isinstance(value, pa.Array):
        return json_text(value)
    texts = _json_of(value) if pa.types.is_integer(value.type) else _repeated(value, quoted)
    return pc.fill_null(texts, _NULL) if texts.null_count else texts


def moved(rows: pa.Table, names: Sequence[str]) -> np.ndarray[Any, Any]:
    """Return a mask of the updates (SEGMENT_ROWS or CHANGESET_ROWS, none partial) that change one of these columns."""
    changed = np.zeros(rows.num_rows, bool)
    before = _whole(rows["_before"])
    if before.null_count == len(before):
        return changed
    fields = [field for field in rows.schema if field.name not in META_COLUMNS]
    old = dict(zip((true_name(field) for field in fields), before.flatten(), strict=True))
    for field in fields:
        if true_name(field) in names:
            changed |= _differ(_whole(rows[field.name]), old[true_name(field)])
    update = pc.and_(pc.equal(_whole(rows["_op"]), Op.UPDATE.value), before.is_valid())
    changed &= update.to_numpy(zero_copy_only=False)
    return changed


def _place(places: PlacesInTransaction) -> pa.Array:
    """Return what documents say of their place in a transaction."""
    blocks = joined(
        '{"id":', _repeated(places[0], quoted), ',"total_order":', numbers(places[1]),
        ',"data_collection_order":', numbers(places[2]), "}",
    )  # fmt: skip
    return pc.fill_null(blocks, _NULL)


def _differ(values: pa.Array, old_values: pa.Array) -> np.ndarray[Any, Any]:
    if pa.types.is_floating(values.type):  # minus zero is not zero
        bits_type = pa.int64() if pa.types.is_float64(values.type) else pa.int32()
        values, old_values = values.view(bits_type), old_values.view(bits_type)
    unlike = pc.fill_null(pc.not_equal(values, old_values), pc.xor(values.is_null(), old_values.is_null()))
    mask: np.ndarray[Any, Any] = unlike.to_numpy(zero_copy_only=False)
    return mask


def _whole(column: pa.ChunkedArray) -> pa.Array:
    combine_chunks = column.combine_chunks()
    return combine_chunks if isinstance(combine_chunks, pa.Array) else combine_chunks.chunk(0)


def _repeated(values: pa.Array, work: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Call ``work`` once per distinct value, where many are equal."""
    coded = values.dictionary_encode()
    return work(coded.dictionary.cast(_TEXT)).take(coded.indices)


def _mapped(values: pa.Array, work: Callable[[str], str]) -> pa.Array:
    coded = values.dictionary_encode()
    return pa.array([work(distinct_value) for distinct_value in coded.dictionary.to_pylist()], _TEXT).take(
        coded.indices
    )


def can(rows: pa.Table) -> bool:
    """Return True if the documents of these rows can be made from columns: the log has all of each row."""
    return "_present" not in rows.schema.names or rows["_present"].null_count == rows.num_rows


def old_rows_whole(rows: pa.Table, key: Sequence[str]) -> bool:
    """Return True if documents with schemas have all of each row as it was before its change, or nothing of it: see
    :func:`sluice.formats.connect.completed`.
    """
    if can(rows):
        return True
    names = [true_name(field) for field in rows.schema if field.name not in META_COLUMNS]
    now, then = masks(rows["_present"], len(names))
    is_deleted = pc.equal(_whole(rows["_op"]), Op.DELETE.value).to_numpy(zero_copy_only=False)
    existed = _whole(rows["_before"]).is_valid().to_numpy(zero_copy_only=False)
    key_alone = ~then[:, [name not in key for name in names]].any(axis=1) & ~moved(rows, key)
    return bool(now[is_deleted].all() and then[existed & ~key_alone].all())
