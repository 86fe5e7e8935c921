"""Schemas of Kafka Connect's JsonConverter for documents of debezium-json: the types that Debezium's MySQL connector
gives the same values.

Where the connector has a choice, this is ``bigint.unsigned.handling.mode=precise``: a BIGINT UNSIGNED is a Decimal, as
an int64 cannot hold it. So documents with schemas must be made of rows that :func:`exact` returned.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from sluice.errors import LoadError
from sluice.formats import debezium
from sluice.formats.columns import json_column
from sluice.formats.common import Column, after_of, changed, columns_of, json_text
from sluice.formats.source_blocks import connector_of
from sluice.model.changes import Change
from sluice.model.column_types import ColumnKind
from sluice.model.default_values import DefaultValue
from sluice.model.fields import true_name
from sluice.model.tables import META_COLUMNS, TableId
from sluice.model.whole_rows import LOG_WHOLE_ROWS

Schema = dict[str, Any]

_TIME = "io.debezium.time"
_DATA = "io.debezium.data"
_NO_DATE = "0000-00-00 00:00:00"
_JSON = f"{_DATA}.Json"
DECIMAL = "org.apache.kafka.connect.data.Decimal"
_UNSIGNED = pa.decimal128(20, 0)
_SNAPSHOT = "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"


def exact(rows: pa.Table) -> pa.Table:
    """Convert unsigned 64-bit columns of SEGMENT_ROWS or CHANGESET_ROWS to decimals, in ``_before`` too."""
    fields = tuple(field for field in rows.schema if field.name not in META_COLUMNS)
    words = {field.name: column.word for field, column in zip(fields, columns_of(fields).values(), strict=True)}
    wide = [field.name for field in fields if pa.types.is_uint64(field.type) and words[field.name] != "bit"]
    if not wide:
        return rows
    for name in wide:
        number = rows.schema.get_field_index(name)
        field = rows.schema.field(number)
        rows = rows.set_column(number, field.with_type(_UNSIGNED), rows.column(number).cast(_UNSIGNED))
    number = rows.schema.get_field_index("_before")
    field = rows.schema.field(number)
    kind = pa.struct([
        member_field.with_type(_UNSIGNED) if member_field.name in wide else member_field for member_field in field.type
    ])
    return rows.set_column(number, field.with_type(kind), rows.column(number).cast(kind))


def key_schema(rows: pa.Schema, table: TableId, names: Sequence[str], source: str) -> str:
    """Return the schema of a message key, as JSON text."""
    columns = _columns(rows)
    fields = [_field(*columns[name], required=columns[name][0].required) | {"field": name} for name in names]
    return json_text(_struct(fields, name=f"{_place(table, source)}.Key"))


def value_schema(
    rows: pa.Schema,
    table: TableId,
    source: str,
    *,
    whole: bool = True,
    defaults: Mapping[str, DefaultValue] = MappingProxyType({}),
) -> str:
    """Return the schema of a document, as JSON text.

    Args:
        whole: False if rows before a change may lack columns, so that none is required.
        defaults: of columns, as far as they are known.
    """
    fields = []
    for name, (column, kind) in _columns(rows).items():
        field = _field(column, kind, required=whole and column.required)
        fields.append(field | _default(column, kind, field["type"], defaults.get(name)) | {"field": name})
    place = _place(table, source)
    image = _struct(fields, name=f"{place}.Value", optional=True)
    times = [_plain("int64", field=name) for name in ("ts_ms", "ts_us", "ts_ns")]
    return json_text(
        _struct(
            [image | {"field": "before"}, image | {"field": "after"}, _source(source), _BLOCK,
                _plain("string", "op", required=True), *times],
            name=f"{place}.Envelope",
            version=2,
        )
    )  # fmt: skip


def _default(column: Column, kind: pa.DataType, type_: str, known_default: DefaultValue | None) -> Schema:
    """Return the default of a column as its schema has it, in the form that documents give its value.

    One that is computed is unknown; a date's is the epoch then if the column is NOT NULL, as with Debezium.
    """
    if known_default is None or type_ in {"struct", "array"}:
        return {}
    if known_default.value is None:
        dated = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
        return {"default": debezium.value_of(_NO_DATE, column)} if dated and column.required else {}
    if not known_default.value.is_valid:
        return {}
    try:
        value = json.loads(json_column(pa.array([known_default.value]).cast(kind), column)[0].as_py())
    except pa.ArrowException:  # the column has another type than at the source
        return {}
    if value is None or (type_ in {"float", "double"} and isinstance(value, str)):
        return {}  # NaN is no number of JSON
    return {"default": value}


def completed(change: Change, placeholder: str) -> Change:
    """Return the change with ``placeholder`` in texts and bytes that the log lacks after it, as Debezium's
    unavailable.value.placeholder does.

    A schema has no word for a value that is not known, and null would be a value. Raises LoadError for a column of
    another type. The row before an update is left out if the log has no more than its key, as Debezium does; else it
    has null for what the log lacks.
    """
    before, after = change.before, after_of(change)
    if after is None:
        return change
    if before is not None and len(before) < len(change.fields) and before.keys() <= set(change.key):
        before = before if set(change.key) & set(changed(change)) else None
    if len(after) == len(change.fields):
        return replace(change, before=before, after=after)
    row = {}
    for field, (name, column) in zip(change.fields, columns_of(change.fields).items(), strict=True):
        schema = _field(column, field.type, required=False)
        if name in after:
            row[name] = after[name]
        elif schema["type"] in {"string", "bytes"} and schema.get("name", _JSON) == _JSON:
            row[name] = placeholder.encode() if schema["type"] == "bytes" else placeholder
        else:
            raise LoadError(
                f"the log lacks {name} of an updated row of {change.table}: the format's schema cannot say so, and a "
                f"column of type {column.declared or field.type} has no placeholder",
                where=f"{change.table}.{name}",
                hint=f"{LOG_WHOLE_ROWS}; or format: debezium-json without schemas, which leaves the column out; for "
                "what is in the log already: `sluice skip PIPELINE TARGET BATCH`, then `sluice dump start PIPELINE "
                "--table SCHEMA.TABLE`",
            )
    return replace(change, before=before, after=row)


def _place(table: TableId, source: str) -> str:
    return f"{source}.{table.schema}.{table.table}"


def _columns(rows: pa.Schema) -> dict[str, tuple[Column, pa.DataType]]:
    fields = tuple(field for field in rows if field.name not in META_COLUMNS)
    columns = columns_of(fields)
    return {true_name(field): (columns[true_name(field)], field.type) for field in fields}


def _struct(fields: Sequence[Schema], *, name: str, optional: bool = False, version: int | None = None) -> Schema:
    struct: Schema = {"type": "struct", "fields": list(fields), "optional": optional, "name": name}
    return struct if version is None else struct | {"version": version}


def _plain(kind: str, field: str, *, required: bool = False) -> Schema:
    return {"type": kind, "optional": not required, "field": field}


def _field(column: Column, kind: pa.DataType, *, required: bool) -> Schema:
    """Return the schema of a column, without the field's name."""
    base: Schema = {"optional": not required}
    if column.temporal:
        return base | _temporal(column, kind)
    word, sql = column.word, column.sql
    if word == "bit":
        bits = sql.first or 1
        if bits == 1:
            return base | {"type": "boolean"}
        return base | {"type": "bytes", "name": f"{_DATA}.Bits", "version": 1, "parameters": {"length": str(bits)}}
    if column.geometry:
        return base | _geometry(word)
    if word in _NAMED:
        kind_name, name = _NAMED[word]
        named_field = base | {"type": kind_name, "name": name, "version": 1}
        if word in {"enum", "set"}:
            named_field["parameters"] = {"allowed": ",".join(sql.labels)}
        if word == "vector":
            named_field["items"] = {"type": "float", "optional": False}
        return named_field
    if pa.types.is_decimal(kind):
        parameters = {"scale": str(kind.scale), "connect.decimal.precision": str(kind.precision)}
        return base | {"type": "bytes", "name": DECIMAL, "version": 1, "parameters": parameters}
    return base | {"type": _plain_type(column, kind)}


_NAMED = {
    "year": ("int32", f"{_TIME}.Year"),
    "json": ("string", _JSON),
    "enum": ("string", f"{_DATA}.Enum"),
    "set": ("string", f"{_DATA}.EnumSet"),
    "vector": ("array", f"{_DATA}.FloatVector"),
}


def _plain_type(column: Column, kind: pa.DataType) -> str:
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_floating(kind):
        return "float" if column.word == "float" else "double"
    if pa.types.is_integer(kind):
        if column.sql.kind is ColumnKind.MEDIUMINT:
            return "int32"
        bits = kind.bit_width * 2 if pa.types.is_unsigned_integer(kind) else kind.bit_width
        return f"int{min(max(bits, 16), 64)}"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return "bytes"
    return "string"


def _temporal(column: Column, kind: pa.DataType) -> Schema:
    if pa.types.is_duration(kind):
        kind_name, name = "int64", "MicroTime"
    elif pa.types.is_date(kind):
        kind_name, name = "int32", "Date"
    elif column.utc:
        kind_name, name = "string", "ZonedTimestamp"
    else:
        kind_name, name = "int64", "MicroTimestamp" if column.digits > 3 else "Timestamp"
    return {"type": kind_name, "name": f"{_TIME}.{name}", "version": 1}


def _geometry(word: str) -> Schema:
    srid = _plain("int32", "srid")
    if word == "point":
        ordinates = [_plain("double", name, required=True) for name in ("x", "y")]
        fields = [*ordinates, _plain("bytes", "wkb"), srid]
        return {"type": "struct", "fields": fields, "name": f"{_DATA}.geometry.Point", "version": 1}
    fields = [_plain("bytes", "wkb", required=True), srid]
    return {"type": "struct", "fields": fields, "name": f"{_DATA}.geometry.Geometry", "version": 1}


_ALLOWED: Schema = {
    "name": f"{_DATA}.Enum", "version": 1, "parameters": {"allowed": _SNAPSHOT}, "default": "false",
}  # fmt: skip


def _source(source: str) -> Schema:
    """Return the schema of the block that :mod:`sluice.formats.source_blocks` describes."""
    connector = connector_of(source)
    fields = [
        _plain(field.type, field.name, required=field.required) | (_ALLOWED if field.name == "snapshot" else {})
        for field in connector.fields
    ]
    return _struct(fields, name=f"io.debezium.connector.{connector.name}.Source") | {"field": "source"}


_BLOCK = _struct(
    [
        _plain("string", "id", required=True),
        *(_plain("int64", name, required=True) for name in ("total_order", "data_collection_order")),
    ],
    name="event.block",
    optional=True,
    version=1,
) | {"field": "transaction"}


def _array(items: Schema, name: str) -> Schema:
    return {"type": "array", "items": items, "optional": False, "field": name}


def _named(fields: Sequence[Schema], name: str) -> Schema:
    return _struct(fields, name=name, version=1)


TRANSACTION_KEY = json_text(
    _named([_plain("string", "id", required=True)], "io.debezium.connector.common.TransactionMetadataKey")
)
TRANSACTION_VALUE = json_text(
    _named(
        [
            *(_plain("string", name, required=True) for name in ("status", "id")),
            _plain("int64", "event_count"),
            _array(
                _named(
                    [
                        _plain("string", "data_collection", required=True),
                        _plain("int64", "event_count", required=True),
                    ],
                    "event.collection",
                ),
                "data_collections",
            )
            | {"optional": True},
            _plain("int64", "ts_ms", required=True),
        ],
        "io.debezium.connector.common.TransactionMetadataValue",
    )
)
"""The schema of the events of :func:`sluice.formats.debezium.transaction_event`."""

_TEXT_ITEM: Schema = {"type": "string", "optional": False}
_COLUMN = _named(
    [
        _plain("string", "name", required=True),
        _plain("int32", "jdbcType", required=True),
        _plain("int32", "nativeType"),
        _plain("string", "typeName", required=True),
        *(_plain("string", name) for name in ("typeExpression", "charsetName")),
        *(_plain("int32", name) for name in ("length", "scale")),
        _plain("int32", "position", required=True),
        *(_plain("boolean", name) for name in ("optional", "autoIncremented", "generated")),
        *(_plain("string", name) for name in ("comment", "defaultValueExpression")),
        _array(_TEXT_ITEM, "enumValues") | {"optional": True},
    ],
    "io.debezium.connector.schema.Column",
)
_TABLE = _named(
    [
        _plain("string", "defaultCharsetName"),
        _array(_TEXT_ITEM, "primaryKeyColumnNames") | {"optional": True},
        _array(_COLUMN, "columns"),
        _plain("string", "comment"),
    ],
    "io.debezium.connector.schema.Table",
) | {"field": "table", "optional": True}
_CHANGE = _named(
    [*(_plain("string", name, required=True) for name in ("type", "id")), _TABLE], "io.debezium.connector.schema.Change"
)


def schema_change_schemas(source: str) -> tuple[str, str]:
    """Return the schemas of the keys and of the events of :func:`sluice.formats.debezium.statement`."""
    place = f"io.debezium.connector.{connector_of(source).name}"
    fields = [
        _source(source),
        _plain("int64", "ts_ms", required=True),
        *(_plain("string", name) for name in ("databaseName", "schemaName", "ddl")),
        _array(_CHANGE, "tableChanges"),
    ]
    key = _named([_plain("string", "databaseName", required=True)], f"{place}.SchemaChangeKey")
    return json_text(key), json_text(_named(fields, f"{place}.SchemaChangeValue"))
