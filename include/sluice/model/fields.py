"""Metadata of an Arrow field: the column's true name, its SQL type, its place in the key, and whether it is masked.

Rules may make columns. Such a field has ``sluice.name`` alone, or no metadata at all; then its true name is its Arrow
name.
"""

from __future__ import annotations

import pyarrow as pa

from sluice.model.column_types import ColumnType
from sluice.model.tables import stored_name

NAME = b"sluice.name"
"""The column's name as the server spells it (an Arrow name may have a ``$`` before it, see
:func:`sluice.model.tables.stored_name`).
"""

TYPE = b"sluice.type"
"""The column type as SQL, e.g. ``bigint unsigned``."""

KIND = b"sluice.kind"
"""What its values are, whatever the source, as :meth:`sluice.model.column_types.ColumnType.to_text` has it.

Older files do not have it.
"""

KEY = b"sluice.key"
"""Ordinal of the column in the key, from 1."""

DEFERRABLE = b"sluice.deferrable"
"""There where two rows may have one key until their statement or transaction ends."""

REQUIRED = b"sluice.required"
"""There where the column is NOT NULL."""

GENERATED = b"sluice.generated"
"""There where the source's server computes the column from others."""

MASKED = b"sluice.masked"
"""There where values must not be shown."""


def true_name(field: pa.Field) -> str:
    """Return the column's name as the server spells it."""
    return str((field.metadata or {}).get(NAME, field.name.encode()).decode())


def declared_type(field: pa.Field) -> str:
    """Return the column type as SQL, "" for a column that a rule made."""
    return str((field.metadata or {}).get(TYPE, b"").decode())


def neutral_type(field: pa.Field) -> ColumnType | None:
    """Return what the column's values are, whatever the source.

    None if the field does not say, or if its values have another type by now.
    """
    text = (field.metadata or {}).get(KIND)
    if not text:
        return None
    neutral = ColumnType.from_text(text.decode())
    return neutral if neutral.arrow_type == field.type else None


def key_ordinal(field: pa.Field) -> int:
    """Return the column's ordinal in the key, from 1; 0 if it is not in the key."""
    return int((field.metadata or {}).get(KEY, 0))


def is_key(field: pa.Field) -> bool:
    """Return True for a column of the key."""
    return KEY in (field.metadata or {})


def is_deferrable(field: pa.Field) -> bool:
    """Return True for a column of a key that is checked when a statement or a transaction ends."""
    return DEFERRABLE in (field.metadata or {})


def is_required(field: pa.Field) -> bool:
    """Return True for a column that is NOT NULL."""
    return REQUIRED in (field.metadata or {})


def is_generated(field: pa.Field) -> bool:
    """Return True if the source's server computes the column from others."""
    return GENERATED in (field.metadata or {})


def is_masked(field: pa.Field) -> bool:
    """Return True if the column's values must not be shown."""
    return MASKED in (field.metadata or {})


def key_fields(schema: pa.Schema) -> list[pa.Field]:
    """Return the key's columns, in key order."""
    return sorted(filter(is_key, schema), key=key_ordinal)


def key_columns(schema: pa.Schema) -> list[str]:
    """Return the Arrow names of the key's columns, in key order."""
    return [field.name for field in key_fields(schema)]


def made_field(name: str, kind: pa.DataType) -> pa.Field:
    """Return the field of a column that a rule made."""
    return pa.field(stored_name(name), kind, metadata={NAME: name.encode()})


def described(field: pa.Field, **metadata: str) -> pa.Field:
    """Return the field with more metadata: ``described(field, name="a", masked="1")``."""
    more = {f"sluice.{name}".encode(): value.encode() for name, value in metadata.items()}
    return field.with_metadata({**(field.metadata or {}), **more})
