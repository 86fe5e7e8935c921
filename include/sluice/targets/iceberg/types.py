"""Columns of tables, in the library's terms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import pyarrow as pa

from sluice.targets.lake.types import DECIMAL, LakeColumn, Shape, TableInfo, arrow_of

MERGE_MANIFESTS: Mapping[str, str] = {
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "20",
    "commit.manifest.target-size-bytes": str(8 * 2**20),
}
"""The properties of tables that Sluice creates: every commit adds a manifest, and a merge of rows reads all of them."""

_NAMES: Mapping[str, str] = {
    "integer": "int", "byte": "int", "short": "int", "timestamp": "timestamptz", "timestamp_ntz": "timestamp",
}  # fmt: skip
"""Names of types: Delta's -> Iceberg's, if they differ. Iceberg has no narrower integers."""
_KINDS = {"int": "integer", "timestamptz": "timestamp", "timestamp": "timestamp_ntz"}


def info_of(table: Any) -> TableInfo:
    """Return the columns of a ``Table``. Its partitions are the columns by which it is partitioned unchanged."""
    return info_in(table.metadata)


def info_in(metadata: Any, as_of: Any = None) -> TableInfo:
    """Return the columns of a ``TableMetadata``; ``as_of``: with an older ``Schema``."""
    schema, spec = as_of or metadata.schema(), metadata.spec()
    by = [schema.find_column_name(field.source_id) for field in spec.fields if str(field.transform) == "identity"]
    columns = tuple(_column(field, field.name in by) for field in schema.fields)
    return TableInfo(columns, tuple(filter(None, by)))


def _column(field: Any, partition: bool = False) -> LakeColumn:
    return LakeColumn(field.name, _shape(field.field_type), not field.required, partition=partition)


def _shape(kind: Any) -> Shape:
    if kind.is_struct:
        return tuple(_column(field) for field in kind.fields)
    name = str(kind)
    decimal = DECIMAL.fullmatch(name)
    return f"decimal({decimal[1]},{decimal[2]})" if decimal else _KINDS.get(name, name)


def type_of(kind: Shape, number: Callable[[], int] = lambda: 0) -> Any:
    """Convert a type to the library's; ``number``: gives ids to a struct's parts."""
    from pyiceberg.types import DecimalType, NestedField, PrimitiveType, StructType

    if not isinstance(kind, str):
        return StructType(
            *(NestedField(number(), part.name, type_of(part.kind, number), required=False) for part in kind)
        )
    decimal = DECIMAL.fullmatch(kind)
    if decimal:
        return DecimalType(int(decimal[1]), int(decimal[2]))
    return PrimitiveType.model_validate(_NAMES.get(kind, kind))


def schema_of(columns: Sequence[LakeColumn]) -> Any:
    """Convert columns to the library's schema; a catalog numbers the columns anew."""
    from pyiceberg.schema import Schema
    from pyiceberg.types import NestedField

    number = count(1).__next__
    fields = [NestedField(number(), column.name, type_of(column.kind, number), required=False) for column in columns]
    return Schema(*fields)


def arrow_schema(metadata: Any) -> pa.Schema:
    """Return the Arrow schema of rows for the table (``TableMetadata``).

    Columns of types that no source has get the library's type.
    """
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    library_schema = schema_to_pyarrow(metadata.schema(), include_field_ids=False)
    return pa.schema([_arrow(column, library_schema.field(column.name).type) for column in info_in(metadata).columns])


def _arrow(column: LakeColumn, library_type: pa.DataType) -> pa.Field:
    try:
        arrow_type = arrow_of(column.kind) if isinstance(column.kind, str) else _struct(column.kind, library_type)
    except KeyError:
        arrow_type = library_type
    return pa.field(column.name, arrow_type, nullable=column.nullable)


def _struct(parts: Sequence[LakeColumn], library_type: pa.DataType) -> pa.DataType:
    return pa.struct([_arrow(part, library_type.field(part.name).type) for part in parts])


def promotes(old_type: str, new_type: str) -> bool:
    """Return True if the format itself promotes a column of one type to the other without touching files."""
    old, new = DECIMAL.fullmatch(old_type), DECIMAL.fullmatch(new_type)
    if old is not None and new is not None:
        return old[2] == new[2] and int(old[1]) <= int(new[1])
    return (old_type, new_type) in {("integer", "long"), ("float", "double")} or _NAMES.get(
        old_type, old_type
    ) == _NAMES.get(new_type, new_type)
