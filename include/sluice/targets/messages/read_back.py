"""Read the row from a message of any format: one that was just made, or one that a target holds."""

from __future__ import annotations

import io
import json
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Protocol

import pyarrow as pa

from sluice.errors import LoadError
from sluice.formats.debezium import time_number, zoned_number
from sluice.model.batches import Op
from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.fields import true_name
from sluice.model.planned import PlannedTable
from sluice.model.tables import META_COLUMNS, TableId, one_chunk
from sluice.model.temporal import date_number, timestamp_number
from sluice.targets.messages.form import MessageForm

K = ColumnKind
Row = dict[str, Any]
_HEAD_BYTES = 5
"""Bytes before each message of a format with a registry: a zero, and the number of its schema."""
_WHOLE = frozenset({K.TINYINT, K.SMALLINT, K.MEDIUMINT, K.INT, K.BIGINT, K.YEAR})
_TEXTS = frozenset({K.CHAR, K.VARCHAR})
_BYTES = frozenset({K.BINARY, K.VARBINARY})
KEYS = frozenset({*_WHOLE, *_TEXTS, *_BYTES, K.DATE, K.DATETIME, K.TIMESTAMP, K.DECIMAL})
"""Kinds of key columns that are read back from a row."""


@dataclass
class OwnNumbers:
    """Schema numbers that belong to one verification: it registers none.

    See :class:`sluice.targets.messages.envelopes.Numbers`.
    """

    schemas: list[str] = field(default_factory=list)

    def number_of(self, table: TableId | str, side: str, record: str, schema: str, kind: str) -> int:
        """Return the schema's index in :attr:`schemas`."""
        self.schemas.append(schema)
        return len(self.schemas) - 1


class Schemas(Protocol):
    """The texts of schemas, as a registry knows them."""

    def schema(self, number: int) -> str:
        """Return the text of a schema. Raises LoadError, TargetUnavailable, ConfigError."""


@dataclass
class ReadBack:
    """Reads rows from messages. ``pipeline``: for hints. ``own``: the schemas of messages that are made here."""

    form: MessageForm
    pipeline: str
    schemas: Schemas
    own: OwnNumbers = field(default_factory=OwnNumbers)
    _mine: dict[int, Callable[[bytes], Any]] = field(default_factory=dict)
    _theirs: dict[int, Callable[[bytes], Any]] = field(default_factory=dict)

    def entries(self, key: bytes | None, value: bytes | None) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield what tells a row apart and its newest value: one per message, except Arrow's, which have several rows
        and no keys.
        """
        if self.form.arrow:
            yield from arrow_entries(value)
        elif key is not None:
            yield self.key(key), value

    def key(self, key: bytes) -> bytes:
        """Return what tells rows apart: the key without its schema's number, which another table's copy of it may
        have.
        """
        return key[_HEAD_BYTES:] if self.form.registered else key

    def mine(self, value: bytes | None) -> Row | None:
        """Return the row of a message that was made here with :attr:`own`; None: it was deleted."""
        if not self.form.registered or value is None:
            return _row(self.form.format, value)
        number = _number(value)
        if number not in self._mine:
            self._mine[number] = self._reader(self.own.schemas[number])
        return _row_of(self._mine[number](value))

    def theirs(self, value: bytes | None, topic: str) -> Row | None:
        """Return the row of a message of a topic; None: it was deleted. Raises LoadError, TargetUnavailable."""
        form = self.form
        try:
            if not form.registered or value is None:
                return _row(form.format, value)
            number = _number(value)
            if number not in self._theirs:
                self._theirs[number] = self._reader(self.schemas.schema(number))
            return _row_of(self._theirs[number](value))
        except (ValueError, KeyError, TypeError, EOFError, IndexError) as error:
            schema_note = f" with schema {_number(value)} of the registry" if form.registered and value else ""
            raise LoadError(
                f"a message of topic {topic} cannot be read{schema_note}: {error!r}",
                where=topic,
                hint="did another program write to the topic?",
            ) from None

    def _reader(self, schema: str) -> Callable[[bytes], Any]:
        """Return the reader of messages with a schema."""
        if self.form.format == "debezium-protobuf":
            from sluice.formats.protobuf import Decoder  # installed by an extra

            decode = Decoder(schema).decode
            return lambda value: decode(value[_HEAD_BYTES + 1 :])  # a zero: the first message of the schema
        import fastavro  # installed by an extra

        parsed = fastavro.parse_schema(json.loads(schema))
        return lambda value: fastavro.schemaless_reader(io.BytesIO(value[_HEAD_BYTES:]), parsed, None)

    # -- keys ----------------------------------------------------------------------------------------------------------
    def not_listed(self, plan: PlannedTable) -> str:
        """Return why keys of the table cannot be read back, "" if they can."""
        for column in plan.key_columns:
            if column.value_type.kind not in KEYS:
                return f"the key column {column.name} ({column.sql_type}) is not read back from messages"
        return ""

    def keys(self, plan: PlannedTable, rows: Sequence[Row]) -> pa.Table:
        """Return the key's columns of rows of a topic, as the source's values are stored. Raises LoadError."""
        columns = plan.key_columns
        try:
            return pa.table(
                [
                    pa.array([self._stored(c.value_type, _found(row, c.name)) for row in rows], c.value_type.arrow_type)
                    for c in columns
                ],
                names=[column.name for column in columns],
            )
        except (ValueError, KeyError, TypeError, ArithmeticError, pa.ArrowException) as error:
            raise LoadError(
                f"keys of {plan.target} cannot be read back from its messages: {error!r}",
                where=str(plan.target),
                hint="did another program write to the topic, or an earlier version before a column of the key "
                "changed? Then delete the topic, make "
                f"it anew (`sluice check {self.pipeline} --apply`) and copy the table (`sluice dump start "
                f"{self.pipeline} --table {plan.source}`)",
            ) from None

    def _stored(self, column_type: ColumnType, value: Any) -> Any:
        """Invert what the formats make of a value."""
        if column_type.kind in _WHOLE:
            return int(_unscaled(value) if isinstance(value, bytes | str | dict) and self._in_base64 else value)
        if column_type.kind in _BYTES:
            return self._bytes(value)
        if column_type.kind is K.DATE:
            return date_number(value) if isinstance(value, str) else value
        if column_type.kind in {K.DATETIME, K.TIMESTAMP}:
            return self._micros(column_type, value)
        if column_type.kind is K.DECIMAL:
            if isinstance(value, Decimal) or not self._in_base64:
                return Decimal(str(value))
            return _unscaled(value).scaleb(-column_type.scale)
        return str(value)

    def _micros(self, column_type: ColumnType, value: Any) -> int:
        """Return the stored number of a date and time."""
        if isinstance(value, str):
            return zoned_number(value) if "T" in value else timestamp_number(value)
        if self.form.debezium and column_type.kind is K.DATETIME:
            return time_number(value, column_type.digits)
        return int(value)

    @property
    def _in_base64(self) -> bool:
        """True if numbers of any size are written as Kafka Connect's Decimal."""
        return self.form.debezium

    def _bytes(self, value: Any) -> bytes:
        if isinstance(value, bytes):
            return value
        if self.form.arrow:
            return bytes.fromhex(value)
        return value.encode("latin-1") if self.form.format == "canal-json" else b64decode(value)


def listed_keys(plan: PlannedTable, listed: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return keys of the source as ``schema`` describes them.

    Raises LoadError for one that is no value of the key's columns.
    """
    columns = plan.key_columns
    fields = {true_name(field): field for field in schema}
    try:
        values = [
            one_chunk(key_column).cast(column.value_type.arrow_type)
            for column, key_column in zip(columns, listed.columns, strict=True)
        ]
    except pa.ArrowException as error:
        raise LoadError(f"a listed key is none of {plan.source}: {error}", where=str(plan.target)) from error
    return pa.Table.from_arrays(values, schema=pa.schema([fields[column.name] for column in columns]))


def arrow_entries(value: bytes | None) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield, for each row of a record batch, what tells it apart, and the row as JSON; None: it was deleted."""
    if value is None:
        return
    rows = pa.ipc.open_stream(pa.BufferReader(value)).read_all()
    key = json.loads((rows.schema.metadata or {})[b"sluice.key"])
    columns = {true_name(field): _texts(rows[field.name]) for field in rows.schema if field.name not in META_COLUMNS}
    ops = rows["_op"].to_pylist()
    for number, op in enumerate(ops):
        row = {name: values[number] for name, values in columns.items()}
        yield arrow_key([row[name] for name in key]), None if op == Op.DELETE else json.dumps(row).encode()


def arrow_keys(keys: pa.Table) -> list[bytes]:
    """Return what tells rows apart, from the key's columns as they are stored."""
    return [arrow_key(values) for values in zip(*map(_texts, keys.columns), strict=True)]


def arrow_key(values: Sequence[Any]) -> bytes:
    """Return what tells one row apart."""
    return json.dumps(list(values)).encode()


def _texts(column: pa.ChunkedArray) -> list[Any]:
    """Return values that JSON holds exactly."""
    values = column.combine_chunks()
    if pa.types.is_temporal(values.type):
        values = values.view(pa.int32() if values.type.bit_width == 32 else pa.int64())
    texts: list[Any] = values.to_pylist()
    if pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type):
        return [None if content is None else content.hex() for content in texts]
    if pa.types.is_decimal(values.type):
        return [None if number is None else f"{number:f}" for number in texts]
    if pa.types.is_floating(values.type):
        return [None if number is None else {"float": repr(number)} for number in texts]
    return texts


def _found(row: Mapping[str, Any], name: str) -> Any:
    if name in row:
        return row[name]
    from sluice.formats.avro import adjusted  # installed by an extra

    return row[adjusted(name)]


def _unscaled(value: Any) -> Decimal:
    """Return the digits without the point, from bytes, their base64, or a message that has them."""
    digits = value["value"] if isinstance(value, dict) else value
    return Decimal(int.from_bytes(digits if isinstance(digits, bytes) else b64decode(digits), "big", signed=True))


def _number(value: bytes) -> int:
    return int.from_bytes(value[1:_HEAD_BYTES], "big")


def _row_of(document: Any) -> Row | None:
    after = document["after"]
    return None if after is None else {name: _exact(value) for name, value in after.items()}


def _exact(value: Any) -> Any:
    """Return a value that tells 0 and -0 apart."""
    return _Number(repr(value)) if isinstance(value, float) else value


def _row(form: str, value: bytes | None) -> Row | None:
    """Return the current row of a message; None: it was deleted. Numbers are compared by every digit."""
    if value is None:
        return None
    document = json.loads(value, parse_float=_Number)
    if form == "arrow":
        row = document
    elif form == "debezium-json":
        document = document.get("payload", document) if "op" not in document else document
        row = document["after"]
    elif form == "cloudevents-json":
        row = document["data"]["after"]
    elif form == "canal-json":
        row = None if document["type"] == "DELETE" else document["data"][0]
    else:
        row = None if document["type"] == "delete" else document["data"]
    return dict(row) if row is not None else None


class _Number(str):
    """A number with a fraction or an exponent, as it is written."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Number) and repr(float(self)) == repr(float(other))

    def __hash__(self) -> int:
        return hash(repr(float(self)))
