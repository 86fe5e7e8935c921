"""Rows of a batch as messages: keys, values, headers, and what keeps messages in order."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import MappingError
from sluice.formats import cloudevents, columns, connect, format_of
from sluice.formats.common import changed, columns_of
from sluice.formats.keys import key_text
from sluice.formats.rows import changes_of
from sluice.model.batches import Op
from sluice.model.changes import Change
from sluice.model.default_values import DefaultValue
from sluice.model.fields import true_name
from sluice.model.offset import Offset
from sluice.model.tables import META_COLUMNS, TableId, one_chunk
from sluice.targets.messages.envelopes import Encoder, Envelope, Numbers, Registered, WithSchemas, encoder_of
from sluice.targets.messages.form import MessageForm
from sluice.targets.messages.pieces import holding
from sluice.targets.messages.transactions import NumberedPiece, places_of
from sluice.targets.port import ChangePiece

Header = tuple[str, bytes]
_BINARY = pa.large_binary()
_CONTENT_TYPES = {"cloudevents-json": [("content-type", f"{cloudevents.CONTENT_TYPE}; charset=UTF-8".encode())]}


_HEADERS = ("content-type", "sluice.batch", "sluice.change", "sluice.position", "sluice.origin", "sluice.gtid")


@dataclass(frozen=True, slots=True)
class Headers:
    """The headers of messages.

    Iteration yields the list of each message, which exists while its message is sent: the garbage collector would look
    through the lists of a whole piece again and again, a quarter of what a message costs.

    Attributes:
        columns: the values by name, in order (large_binary; null: the message does not have that header).
    """

    columns: Mapping[str, pa.Array]

    @classmethod
    def of(cls, messages: Sequence[Sequence[Header]]) -> Self:
        """Return the headers of these messages."""
        by_name = [dict(headers) for headers in messages]
        names = [name for name in _HEADERS if any(name in headers for headers in by_name)]
        return cls({name: pa.array([headers.get(name) for headers in by_name], _BINARY) for name in names})

    def __iter__(self) -> Iterator[list[Header]]:
        """Yield the headers of each message."""
        each = zip(
            *(zip(itertools.repeat(name), values.to_pylist()) for name, values in self.columns.items()), strict=True
        )
        if not any(values.null_count for values in self.columns.values()):
            return map(list, each)
        return ([header for header in headers if header[1] is not None] for headers in each)


_RARE = 50
"""One row in this number: if more change their key, the whole piece is made the slow way."""


@dataclass(slots=True)
class Messages:
    """Messages of one table, in order.

    Attributes:
        rows: for each message, the number of the row it was made from.
        keys, values: bytes, or null.
        routes: the bytes that messages have in common which stay in order; a queue with partitions hashes them.
        headers: of each message; None: no message has any.
    """

    rows: np.ndarray[Any, Any]
    keys: pa.Array
    values: pa.Array
    routes: pa.Array
    headers: Headers | None = None

    def __len__(self) -> int:
        return len(self.values)

    def too_large(self, limit: int) -> list[tuple[int, int]]:
        """Return (number, bytes) of each message of more than ``limit`` bytes, key and value together."""
        key, value = (pc.fill_null(pc.binary_length(part), 0) for part in (self.keys, self.values))
        sizes = pc.add(key, value).to_numpy(zero_copy_only=False)
        return [(int(number), int(sizes[number])) for number in np.flatnonzero(sizes > limit)]


@dataclass(frozen=True, slots=True)
class MessageWriter:
    """Makes messages as the options say.

    Args:
        source: the name under which documents refer to their source.
        at: the end of the batch, for changes: latest; None: changes: all.
        numbers: of the schemas, for formats with a registry.
        defaults: of the columns of tables, for schemas.
    """

    form: MessageForm
    source: str
    batch: int
    at: Offset | None = None
    numbers: Numbers | None = None
    defaults: Mapping[TableId, Mapping[str, DefaultValue]] = field(default_factory=dict)
    _encoders: dict[tuple[TableId | str, str, str], tuple[bytes, Encoder]] = field(default_factory=dict, init=False)

    def key_of(self, table: TableId, key: tuple[str, ...]) -> tuple[str, ...]:
        """Return the columns of the message key."""
        return self.form.key_columns.get(str(table), key)

    def messages(self, piece: ChangePiece) -> Messages:
        """Return the messages of the rows of a piece, in its order."""
        piece, envelope = self._enveloped(holding(piece))
        if not self.form.enveloped or not columns.can(piece.rows):
            return self._one_by_one(piece, envelope)
        key = self.key_of(piece.table, piece.key)
        rows = columns.Rows(piece.rows, piece.table, at=self.at)
        moved = np.flatnonzero(rows.moved(tuple(dict.fromkeys((*key, *piece.key)))))
        if not len(moved):
            return self._together(piece, rows, key, envelope)
        if len(moved) * _RARE > piece.rows.num_rows:
            return self._one_by_one(piece, envelope)
        parts, begin = [], 0
        for end in (*moved.tolist(), piece.rows.num_rows):  # a row whose key changed is more than one message
            if end > begin:
                part = piece.slice(begin, end - begin)
                parts.append((
                    begin,
                    self._together(part, columns.Rows(part.rows, part.table, at=self.at), key, envelope),
                ))
            if end < piece.rows.num_rows:
                parts.append((end, self._one_by_one(piece.slice(end, 1), envelope)))
            begin = end + 1
        return _after_another(parts)

    def tombstones(self, piece: ChangePiece) -> Messages:
        """Return a message without a value for each row's key. Only the key's columns of the rows are needed."""
        key, form = self.key_of(piece.table, piece.key), self.form
        piece = holding(piece)
        rows, envelope = piece.rows, Envelope()
        if form.has_schemas:
            rows = connect.exact(rows)
            envelope = self._keys_alone(piece.table, connect.key_schema(rows.schema, piece.table, key, self.source))
        keys: list[bytes] = []
        routes: list[bytes] = []
        headers: list[list[Header]] = []
        for change, part in zip(
            changes_of(rows, piece.table, piece.key, at=self.at), piece.part.to_pylist(), strict=True
        ):
            image = change.before or {}
            keys.append(envelope.key(self._key(change, image, key)))
            routes.append(self._route(change, image, keys[-1]))
            headers.append(self._headers(change, part, 0))
        count = len(keys)
        arrays = pa.array(keys, _BINARY), pa.nulls(count, _BINARY), pa.array(routes, _BINARY)
        return Messages(np.arange(count), *arrays, Headers.of(headers) if form.headers else None)

    def _keys_alone(self, table: TableId, key_schema: str) -> Envelope:
        if self.form.schemas:
            return WithSchemas(key_schema, "")
        encoder = self._encoder(table, "key", key_schema)
        return Registered(encoder, encoder)

    def _require_columns(self, piece: ChangePiece) -> None:
        """Raise MappingError if the rows lack a column that the options name, for example as it was renamed."""
        names = {true_name(field) for field in piece.rows.schema if field.name not in META_COLUMNS}
        chosen_by_option = {"key_columns": self.form.key_columns, "partition_columns": self.form.order_columns or {}}
        for option, chosen in chosen_by_option.items():
            for name in chosen.get(str(piece.table), ()):
                if name not in names:
                    raise MappingError(
                        f"options.{option} names {name} of {piece.table}, and rows of the batch have no such column: "
                        "was it renamed or dropped?",
                        where=f"{piece.table}.{name}",
                        hint="if it was renamed, give it its old name again (mapping: columns: rename: {NEW: OLD}); "
                        f"else name columns in options.{option} that all rows of the batch have, or none for this "
                        "table",
                    )

    def _enveloped(self, piece: ChangePiece) -> tuple[ChangePiece, Envelope]:
        """Return the rows as they go into documents, and the envelope around these."""
        self._require_columns(piece)
        if not self.form.has_schemas:
            return piece, Envelope()
        rows, key = connect.exact(piece.rows), self.key_of(piece.table, piece.key)
        key_schema = connect.key_schema(rows.schema, piece.table, key, self.source) if key else ""
        complete, defaults = columns.old_rows_whole(rows, piece.key), self.defaults.get(piece.table, {})
        value_schema = connect.value_schema(rows.schema, piece.table, self.source, whole=complete, defaults=defaults)
        return replace(piece, rows=rows), self.envelope(piece.table, key_schema, value_schema)

    def envelope(self, table: TableId | str, key_schema: str, value_schema: str) -> Envelope:
        """Return the envelope for a table, or for a topic without rows, whose schemas these are.

        ``key_schema``: "" for no keys.
        """
        if self.form.schemas:
            return WithSchemas(key_schema, value_schema)
        if not self.form.registered:
            return Envelope()
        keyed = self._encoder(table, "key", key_schema) if key_schema else None
        return Registered(keyed, self._encoder(table, "value", value_schema))

    def _encoder(self, table: TableId | str, side: str, connect_schema: str) -> tuple[bytes, Encoder]:
        """Return what precedes each message, and the encoder. Raises what :class:`Numbers` raises."""
        encoding = self._encoders.get((table, side, connect_schema))
        if encoding is None:
            assert self.numbers is not None
            encoder, kind, head = encoder_of(self.form.format, connect_schema)
            number = self.numbers.number_of(table, side, encoder.name, encoder.schema, kind)
            encoding = self._encoders[table, side, connect_schema] = struct.pack(">bI", 0, number) + head, encoder
        return encoding

    def _together(self, piece: ChangePiece, rows: columns.Rows, key: tuple[str, ...], envelope: Envelope) -> Messages:
        """Make messages the fast way, for rows whose keys did not change."""
        count, ops = piece.rows.num_rows, piece.rows["_op"].combine_chunks()
        places: columns.PlacesInTransaction | None = None
        if isinstance(piece, NumberedPiece):
            places = piece.transaction, piece.total_order, piece.table_order
        values = envelope.values(rows, self.source, places).cast(pa.large_binary())
        keys = pa.nulls(count, pa.large_binary())
        if key:
            keys = envelope.keys(rows, key).cast(pa.large_binary())
        routes = self._routes(piece, rows, keys)
        number, step = np.arange(count), np.zeros(count, np.int64)
        is_delete = pc.equal(ops, Op.DELETE.value).to_numpy(zero_copy_only=False)
        if key and self.form.tombstones and is_delete.any():
            if self.at is not None:
                values = pc.if_else(pa.array(is_delete), pa.scalar(None, pa.large_binary()), values)
            else:
                number = np.repeat(number, is_delete + 1)
                step = np.concatenate(([False], number[1:] == number[:-1])).astype(np.int64)
                values = values.take(pa.array(number, mask=step.astype(bool)))
                keys, routes = keys.take(pa.array(number)), routes.take(pa.array(number))
        headers = self._all_headers(piece, number, step) if self.form.headers else None
        return Messages(number, keys, values, routes, headers)

    def _routes(self, piece: ChangePiece, rows: columns.Rows, keys: pa.Array) -> pa.Array:
        names = self.form.ordered_by(piece.table)
        if names is None and not keys.null_count:
            return keys
        if names:
            return rows.keys("debezium-json", names).cast(pa.large_binary())
        return pa.repeat(pa.scalar(str(piece.table).encode(), pa.large_binary()), piece.rows.num_rows)

    def _all_headers(self, piece: ChangePiece, number: Any, step: Any) -> Headers:
        merged = self.at is not None
        names = ["_seq", "_op"] if merged else ["_seq", "_row", "_file", "_offset", "_origin", "_gtid"]
        rows = piece.rows.select(names).append_column("part", piece.part).take(pa.array(number))
        column = {name: one_chunk(rows[name]) for name in rows.schema.names}
        change = (column["_seq"], ".", column[names[1]], ".", column["part"], ".", pa.array(step))
        headers = {"sluice.batch": pa.repeat(str(self.batch), len(number)), "sluice.change": columns.joined(*change)}
        if not merged:
            gtids = column["_gtid"]
            headers |= {
                "sluice.position": columns.joined(column["_file"], ":", column["_offset"]),
                "sluice.origin": column["_origin"].cast(pa.large_string()),
                "sluice.gtid": pc.if_else(pc.equal(gtids, ""), pa.scalar(None, gtids.type), gtids),
            }
        return Headers({name: values.cast(_BINARY) for name, values in headers.items()})

    def one_by_one(self, piece: ChangePiece) -> Messages:
        """Make messages the slow way, which is right for every row: through the formats of single changes."""
        return self._one_by_one(*self._enveloped(piece))

    def _one_by_one(self, piece: ChangePiece, envelope: Envelope) -> Messages:
        headers: list[list[Header]] = []
        key = self.key_of(piece.table, piece.key)
        form = format_of("debezium-json" if self.form.registered else self.form.format)
        parts = piece.part.to_pylist()
        rows = changes_of(piece.rows, piece.table, piece.key, txn_row=piece.txn_row, at=self.at)
        numbers: list[int] = []
        keys: list[bytes | None] = []
        values: list[bytes | None] = []
        routes: list[bytes] = []
        for number, (change, place) in enumerate(zip(rows, places_of(piece), strict=True)):
            change = change if place is None else replace(change, in_transaction=place)
            shown_change = (
                connect.completed(change, self.form.unavailable_value_placeholder) if self.form.has_schemas else change
            )
            for step, (image, text) in enumerate(self._documents(form.row(shown_change, self.source), change, key)):
                key_bytes = envelope.key(self._key(change, image, key)) if key else None
                numbers.append(number)
                keys.append(key_bytes)
                values.append(None if text is None else envelope.value(text))
                routes.append(self._route(change, image, key_bytes))
                if self.form.headers:
                    typed = _CONTENT_TYPES.get(self.form.format, ()) if text is not None else ()
                    headers.append([*typed, *self._headers(change, parts[number], step)])
        arrays = pa.array(keys, _BINARY), pa.array(values, _BINARY), pa.array(routes, _BINARY)
        return Messages(np.array(numbers, np.int64), *arrays, Headers.of(headers) if self.form.headers else None)

    def _documents(
        self, texts: tuple[str, ...], change: Change, key: tuple[str, ...]
    ) -> list[tuple[dict[str, Any], str | None]]:
        """Return (the row whose key it is, document) for each message; a document of None is a tombstone."""
        before, after = change.before or {}, change.after if change.after is not None else change.before or {}
        tombstone: list[tuple[dict[str, Any], str | None]] = [(before, None)] if key and self.form.tombstones else []
        if change.op == Op.DELETE:
            if self.at is not None and tombstone:
                return tombstone
            return [(before, texts[0]), *tombstone]
        moved = change.op == Op.UPDATE and not set(changed(change)).isdisjoint(key)
        if len(texts) == 2:
            return [(before, texts[0]), *tombstone, (after, texts[1])]
        return [*(tombstone if moved else ()), (after, texts[0])]

    def _key(self, change: Change, image: dict[str, Any], key: tuple[str, ...]) -> str:
        full_image = {**(change.before or {}), **image}  # an after image may lack unchanged columns
        return key_text(self.form.format, change.table, key, full_image, columns_of(change.fields))

    def _route(self, change: Change, image: dict[str, Any], key: bytes | None) -> bytes:
        columns = self.form.ordered_by(change.table)
        if columns is None and key is not None:
            return key
        if columns:
            full_image = {**(change.before or {}), **image}
            return key_text("debezium-json", change.table, columns, full_image, columns_of(change.fields)).encode()
        return str(change.table).encode()

    def _headers(self, change: Change, part: int, step: int) -> list[Header]:
        headers = [("sluice.batch", str(self.batch).encode())]
        if self.at is not None:
            return [*headers, ("sluice.change", f"{change.seq}.{change.op}.{part}.{step}".encode())]
        headers += [
            ("sluice.change", f"{change.seq}.{change.row}.{part}.{step}".encode()),
            ("sluice.position", f"{change.file}:{change.offset}".encode()),
            ("sluice.origin", str(change.origin).encode()),
        ]
        return [*headers, ("sluice.gtid", change.gtid.encode())] if change.gtid else headers


def _after_another(numbered_parts: list[tuple[int, Messages]]) -> Messages:
    """Concatenate messages; each part comes with the number of its first row."""
    rows = np.concatenate([part.rows + begin for begin, part in numbered_parts])
    parts = [part for _, part in numbered_parts]
    listed = [(part.headers.columns, len(part)) for part in parts if part.headers is not None]
    names = [name for name in _HEADERS if any(name in own for own, _ in listed)]
    headers = {
        name: pa.concat_arrays([own.get(name, pa.nulls(count, _BINARY)) for own, count in listed]) for name in names
    }
    return Messages(
        rows,
        pa.concat_arrays([part.keys for part in parts]),
        pa.concat_arrays([part.values for part in parts]),
        pa.concat_arrays([part.routes for part in parts]),
        Headers(headers) if listed else None,
    )
