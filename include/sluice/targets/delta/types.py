"""Columns and properties of tables, in the library's terms."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sluice.targets.delta.client import library
from sluice.targets.lake.types import LakeColumn, Shape, TableInfo

_LENGTH = "__CHAR_VARCHAR_TYPE_STRING"
"""The metadata key in which Spark keeps the type of CHAR(n) and VARCHAR(n) columns.

It refuses longer texts, and so does Sluice.
"""
_ODD = frozenset(" ,;{}()\n\t=")
"""The characters that Delta does not accept in column names, unless they are mapped."""


_AS_NULL = ("", "__HIVE_DEFAULT_PARTITION__")
"""The texts that are NULL to readers of Delta tables in a column by which a table is partitioned."""
_WRITTEN = frozenset({
    "appendOnly", "changeDataFeed", "checkConstraints", "columnMapping", "deletionVectors", "generatedColumns",
    "invariants", "timestampNtz", "v2Checkpoint", "variantType", "variantType-preview",
})  # fmt: skip
"""The writer features of tables to which the client commits. It refuses all others, as though it had lost a race."""
_FEATURES = 7
"""The version of the writer protocol that names its features; 6 means identity columns, later ones are unknown."""


def info_of(table: Any) -> TableInfo:
    """Return the columns and partitions of a ``DeltaTable``."""
    meta = table.metadata()
    partitions = tuple(meta.partition_columns)
    columns = map(_column, table.schema().fields)
    parted = (
        replace(column, partition=True, as_null=_AS_NULL) if column.name in partitions else column for column in columns
    )
    return TableInfo(tuple(parted), partitions)


def _column(field: Any) -> LakeColumn:
    length = re.fullmatch(r"(?:var)?char\((\d+)\)", str((field.metadata or {}).get(_LENGTH, "")))
    return LakeColumn(field.name, _shape(field.type), bool(field.nullable), int(length[1]) if length else 0)


def _shape(kind: Any) -> Shape:
    if type(kind).__name__ == "StructType":
        return tuple(map(_column, kind.fields))
    return str(kind.type) if type(kind).__name__ == "PrimitiveType" else type(kind).__name__


def odd_name(name: str) -> bool:
    """Return True for a name that Delta does not accept."""
    return bool(_ODD & set(name)) or not name


def field_of(column: LakeColumn) -> Any:
    """Convert a column to the library's field."""
    delta = library()
    metadata = {_LENGTH: f"varchar({column.length})"} if column.length else None
    return delta.Field(column.name, _type(column.kind), nullable=column.nullable, metadata=metadata)


def _type(kind: Shape) -> Any:
    from deltalake.schema import PrimitiveType, StructType

    return PrimitiveType(kind) if isinstance(kind, str) else StructType([field_of(part) for part in kind])


def schema_of(columns: Sequence[LakeColumn]) -> Any:
    """Convert columns to the library's schema."""
    return library().Schema([field_of(column) for column in columns])


def refusal(table: Any, *, appends: bool) -> str:
    """Return why the client cannot write to a ``DeltaTable``, "" if it can."""
    protocol, configuration = table.protocol(), table.metadata().configuration
    features = set(protocol.writer_features or ()) | (
        {"identityColumns"} if protocol.min_writer_version == 6 else set()
    )
    if features - _WRITTEN:
        names = ", ".join(sorted(features - _WRITTEN))
        return f"the table has the writer features {names}, which the client (delta-rs) does not have"
    if protocol.min_writer_version > _FEATURES:
        return f"the table needs version {protocol.min_writer_version} of the writer protocol, newer than the client's"
    for field in table.schema().fields:
        if expression := (field.metadata or {}).get("delta.generationExpression"):
            return (
                f"the column {field.name!r} is generated ({expression}), and the client (delta-rs) does not compute it "
                "in a MERGE"
            )
    if configuration.get("delta.columnMapping.mode", "none") != "none":
        return (
            "the table maps its columns to other names (delta.columnMapping.mode), which the client (delta-rs) "
            "does not write"
        )
    if configuration.get("delta.enableDeletionVectors", "false") == "true":
        return (
            "the table has deletion vectors (delta.enableDeletionVectors), which the client (delta-rs) does not write"
        )
    if not appends and configuration.get("delta.appendOnly", "false") == "true":
        return "the table takes appends only (delta.appendOnly)"
    return ""
