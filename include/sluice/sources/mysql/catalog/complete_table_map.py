"""A table map that the log leaves bare (``binlog_row_metadata`` MINIMAL, NO_LOG, MySQL 5.7), completed from the schema
history.

What both say has to agree: the number of columns, each type with its length, signs and charsets. A history that was
folded wrong, or a log that was written by another server, is found here and stops the capture.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from sluice.errors import DecodeError
from sluice.model.definitions import ColumnDefinition, TableDefinition
from sluice.mysql.charsets import MAX_BYTES
from sluice.mysql.column_types import FORMS, Brackets, Collated, Fill, Meta, label_bytes, type_named
from sluice.mysql.ddl.keys import hashed_keys
from sluice.mysql.ddl.types import Flavour
from sluice.mysql.type_codes import LONGLONG
from sluice.sources.mysql.events import table_map as t

MYSQL = Flavour()
_HASH_NAME = re.compile(r"DB_ROW_HASH_\d+")
BINARY_COLLATION = 63


def complete(
    table_map: t.TableMap,
    definition: TableDefinition,
    collation_ids: Mapping[str, int],
    flavour: Flavour = MYSQL,
    *,
    trust_key: bool = True,
) -> t.TableMap:
    """Return the table map with names, signs, collations, labels and key filled in.

    Args:
        collation_ids: collation -> number at the server.
        trust_key: take the key from the definition where the map has none.

    Raises:
        DecodeError: the two contradict each other; the message says in what.
    """
    have, want = len(table_map.columns), len(definition.columns)
    hashes = table_map.columns[want:]
    are, may_be = hashed_keys(definition, flavour)
    if have != want and not (are <= have - want <= may_be and all(map(is_hash_column, hashes))):
        raise DecodeError(f"the log's rows have {have} columns, and the schema history has {want}")
    columns = []
    for mapped, column in zip(table_map.columns[:want], definition.columns, strict=True):
        _compare(mapped, column, collation_ids)
        columns.append(_completed(mapped, column, collation_ids))
    key = table_map.primary_key
    if key is None and trust_key:
        key = tuple(definition.index_of(name) for name in definition.row_key)
    return replace(table_map, columns=columns + [replace(c, skipped=True) for c in hashes], primary_key=key)


def is_hash_column(mapped: t.MappedColumn) -> bool:
    """Return True if a column may be one that MariaDB keeps for a unique key over a hash.

    It stands at the end of rows, and in no catalog. MariaDB takes the next number if the user has a column of the name.
    """
    named = mapped.name is None or _HASH_NAME.fullmatch(mapped.name) is not None
    return named and mapped.type == LONGLONG and mapped.unsigned is not False


def _completed(mapped: t.MappedColumn, column: ColumnDefinition, collation_ids: Mapping[str, int]) -> t.MappedColumn:
    collation, form, row = mapped.collation, FORMS.get(mapped.type), type_named(column.type)
    if collation is None and form is not None and form.collated in {Collated.CHARACTER, Collated.LABELS}:
        collation = collation_ids[column.collation] if column.collation else BINARY_COLLATION
    dimension = column.arguments[0] if row.brackets is Brackets.DIMENSION and column.arguments else None
    return replace(
        mapped,
        name=mapped.name if mapped.name is not None else column.name,
        unsigned=column.unsigned if mapped.unsigned is None else mapped.unsigned,
        collation=collation,
        labels=column.labels if mapped.labels is None and column.labels else mapped.labels,
        geometry=mapped.geometry if row.shape is None else row.shape,
        dimension=dimension if mapped.dimension is None else mapped.dimension,
    )


def _compare(mapped: t.MappedColumn, column: ColumnDefinition, collation_ids: Mapping[str, int]) -> None:
    def contradiction(what: str) -> DecodeError:
        return DecodeError(f"column {column.name} is {column.type} in the schema history, and the log says {what}")

    if not _fits(mapped, column):
        raise contradiction(f"type {mapped.type} with metadata {mapped.meta}")
    if mapped.name is not None and mapped.name.lower() != column.name.lower():
        raise contradiction(f"that it is called {mapped.name}")
    if mapped.nullable != column.nullable:
        raise contradiction("that it may be null" if mapped.nullable else "that it is not null")
    if mapped.unsigned is not None and type_named(column.type).signed and mapped.unsigned != column.unsigned:
        raise contradiction("unsigned" if mapped.unsigned else "signed")
    if mapped.collation is not None and column.collation is not None:
        expected = collation_ids.get(column.collation)
        if expected is not None and expected != mapped.collation:
            raise contradiction(f"collation {mapped.collation}, where {column.collation} is {expected}")


def _fits(mapped: t.MappedColumn, column: ColumnDefinition) -> bool:
    row, arguments, meta = type_named(column.type), column.arguments, mapped.meta
    if mapped.type in row.logged_as:
        return True
    form = row.form(mapped.type)
    if form is None:
        return False
    match form.meta:
        case Meta.NONE | Meta.UNSAID | Meta.SIZE:
            return True
        case Meta.DIGITS:
            return meta == (arguments[0] if arguments else 0)
        case Meta.PRECISION:
            return meta == arguments[0] << 8 | arguments[1]
        case Meta.BITS:
            return meta == arguments[0]
        case Meta.LABELS:
            return meta == label_bytes(len(column.labels), several=form.fill is Fill.LABELS)
        case Meta.LENGTH_BYTES:
            return meta == row.length_bytes
        case Meta.BYTES | Meta.STRING:
            return form.fill is Fill.COMPRESSED or meta == (row.binary_bytes or _bytes(column))


def _bytes(column: ColumnDefinition) -> int:
    return column.arguments[0] * (MAX_BYTES.get(column.charset, 1) if column.charset else 1)
