"""The mapping of each kind of values, how a value is written in a document, and what searches lose of it."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sluice.formats.columns import quoted
from sluice.model.column_types import ColumnKind, ColumnType
from sluice.targets.messages.row_texts import iso_texts, json_texts, read_text

K = ColumnKind
_KEYWORD_CHARACTERS = 8_191
"""Characters of a keyword that is searchable: Lucene takes terms of 32,766 bytes."""


@dataclass(frozen=True, slots=True)
class FieldType:
    """The mapping of a kind. ``loses``: what searches and sums lose; the document always has the whole value."""

    mapping: Mapping[str, Any]
    loses: str = ""


_LONG = FieldType({"type": "long"})
_KEYWORD = FieldType({"type": "keyword", "ignore_above": _KEYWORD_CHARACTERS})
_WORDS = FieldType({**_KEYWORD.mapping, "fields": {"text": {"type": "text"}}})
_BYTES = FieldType({"type": "binary"}, "bytes are not searchable")
_DIGITS = FieldType(_KEYWORD.mapping, "it is sorted and searched as text, since a long ends at 2^63-1")
FIELDS: Mapping[ColumnKind, FieldType] = {
    **dict.fromkeys((K.TINYINT, K.SMALLINT, K.MEDIUMINT, K.INT, K.BIGINT, K.YEAR), _LONG),
    K.BIT: _DIGITS,
    K.DECIMAL: FieldType({"type": "double", "ignore_malformed": True}, "searches and sums see about 15 digits"),
    **dict.fromkeys((K.FLOAT, K.DOUBLE), FieldType({"type": "double", "ignore_malformed": True})),
    K.DATE: FieldType({"type": "date", "format": "strict_date", "ignore_malformed": True}),
    **dict.fromkeys((K.DATETIME, K.TIMESTAMP), FieldType({"type": "date", "ignore_malformed": True})),
    K.TIME: _KEYWORD,
    **dict.fromkeys((K.CHAR, K.VARCHAR), _WORDS),
    **dict.fromkeys((K.UUID, K.ENUM, K.SET), _KEYWORD),
    K.TEXT: FieldType({"type": "text"}),
    K.JSON: FieldType({"type": "keyword", "index": False, "doc_values": False}, "it is a text that is not searchable"),
    **dict.fromkeys((K.BINARY, K.VARBINARY, K.BLOB, K.GEOMETRY, K.VECTOR), _BYTES),
    **dict.fromkeys((K.INET4, K.INET6), FieldType({"type": "ip"})),
}
_MILLISECONDS = 3
_TIMES = frozenset({K.DATETIME, K.TIMESTAMP})


def field_type(column_type: ColumnType) -> FieldType:
    """Return the mapping that is proposed for a column."""
    if column_type.kind is K.BIGINT and column_type.unsigned:
        return _DIGITS
    field_type = FIELDS[column_type.kind]
    if column_type.kind in _TIMES and column_type.digits > _MILLISECONDS:
        return FieldType(field_type.mapping, "searches see milliseconds")
    return field_type


def document_texts(values: pa.Array, column_type: ColumnType) -> pa.Array:
    """Return values as JSON (large_string); null stays null."""
    if column_type.kind not in _TIMES or not pa.types.is_timestamp(values.type):
        return json_texts(values, column_type)
    return quoted(iso_texts(values, column_type))


def key_value(column_type: ColumnType, value: Any) -> Any:
    """Return a value of a key's column as the source's values are stored, from a document.

    Raises ValueError, ArithmeticError.
    """
    if column_type.kind in {K.BINARY, K.VARBINARY}:
        return b64decode(value)
    return read_text(column_type, str(value))


__all__ = ["FIELDS", "FieldType", "document_texts", "field_type", "key_value"]
