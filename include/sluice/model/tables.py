"""Tables, columns and how they look in Arrow: values only.

Arrow types keep full fidelity. Two conventions a reader of the Parquet files has to know:

* zero and partial dates (``0000-00-00``, ``2024-00-15``) and year-0 dates live in the same ``date32`` /
  ``timestamp[us]`` column as numbers that no calendar date uses, see :mod:`sluice.model.temporal`;
* every field carries metadata: ``sluice.type`` (the column type in MySQL's words, e.g. ``bigint unsigned``),
  ``sluice.kind`` (the same for everybody, see :class:`~sluice.model.column_types.ColumnType`; older files do not have
  it), ``sluice.name`` (the true column name), ``sluice.charset`` for text, ``sluice.required`` for NOT NULL,
  ``sluice.key`` (ordinal from 1) for primary-key columns, with ``sluice.deferrable`` if the key is.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.model.column_types import ColumnKind, ColumnType

META_COLUMNS = (
    "_op", "_seq", "_file", "_offset", "_row", "_commit_ts", "_gtid", "_txn", "_origin", "_bucket", "_present",
    "_before",
)  # fmt: skip

META_FIELDS: tuple[pa.Field, ...] = (
    pa.field("_op", pa.string(), nullable=False),
    pa.field("_seq", pa.uint64(), nullable=False),
    pa.field("_file", pa.string(), nullable=False),
    pa.field("_offset", pa.uint64(), nullable=False),
    pa.field("_row", pa.uint32(), nullable=False),
    pa.field("_commit_ts", pa.timestamp("us", tz="UTC"), nullable=False),
    pa.field("_gtid", pa.string()),
    pa.field("_txn", pa.uint64(), nullable=False),
    pa.field("_origin", pa.uint32(), nullable=False),
    pa.field("_bucket", pa.uint8(), nullable=False),
    pa.field("_present", pa.binary()),
)
"""``_seq`` counts row changes within the batch over all tables; ``_offset`` is the row event's offset in ``_file``;
``_row`` the row within that event; ``_txn`` the transaction's ordinal in the batch; ``_origin`` the server_id that
first wrote it, or the number of the pipeline that loaded it (:func:`sluice.model.load_marks.origin_number`);
``_bucket`` is ``hash(schema, table, key) % 64``; ``_present`` a bitmap (LSB first, one bit a column) of the columns
whose value is known, and after it one of the before image's; null = all (``binlog_row_image=FULL``).
"""

RULE_COLUMNS = ("_image", "_source_row", "_table")
"""Columns that exist only while rules run."""

KEY_BUCKETS = 64


def stored_name(column: str) -> str:
    """Return the Parquet name of a user's column: its own, or with a ``$`` before it to hide no metadata column."""
    return f"${column}" if column.lower() in META_COLUMNS + RULE_COLUMNS or column.startswith("$") else column


def member(struct: pa.Array, name: str) -> pa.Array:
    """Return a column of a struct, null where the struct is. Raises KeyError if there is none of that name.

    It is taken by number, since pyarrow reads a name that begins with ``.`` or ``[`` as a path.
    """
    number = struct.type.get_field_index(name)
    if number < 0:
        raise KeyError(name)
    return pc.struct_field(struct, [number])


def user_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns that belong to the user, in order."""
    return pa.schema([field for field in schema if field.name not in META_COLUMNS])


def one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """Return the values as one array. A column of one chunk is not copied, as ``combine_chunks`` would."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def plain_numbers(column: pa.ChunkedArray | pa.Array) -> np.ndarray[Any, Any]:
    """Return the integers of a column that holds no null, in its own width.

    They are read where they lie: ``to_numpy`` loads pandas, half of the CPU time in which a capture starts.
    """
    values = one_chunk(column) if isinstance(column, pa.ChunkedArray) else column
    if values.null_count:
        raise ValueError(f"{values.null_count} of {len(values)} values are null")
    kind = np.dtype(str(values.type))
    data = values.buffers()[1]
    return np.frombuffer(data, kind, len(values), values.offset * kind.itemsize) if data else np.empty(0, kind)


def distinct(rows: pa.Table) -> pa.Table:
    """Return each row once, in any order. Columns are passed to pyarrow by number, see :func:`member`."""
    numbers = [str(number) for number in range(rows.num_columns)]
    once = rows.rename_columns(numbers).group_by(numbers).aggregate([]).select(numbers)
    return once.rename_columns(rows.schema.names)


@dataclass(frozen=True, slots=True, order=True)
class TableId:
    """A schema and a table, as the server spells them."""

    schema: str
    table: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}"


def quoted(name: str) -> str:
    """Quote an identifier in backticks, as MySQL and MariaDB read it."""
    return "`" + name.replace("`", "``") + "`"


def quoted_table(table: TableId) -> str:
    """Return ``schema``.``table``, quoted."""
    return f"{quoted(table.schema)}.{quoted(table.table)}"


ENUM_ERROR_VALUE = "\x00"
"""Stored for ENUM index 0 only where the column also has a label ``''``; elsewhere index 0 is stored as ``''``."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column as of a position.

    Attributes:
        kind, sql_type: what its values are, and the type in MySQL's words (``decimal(12,2)``, ``enum('a','b')``),
            which a MySQL source has, and which are the nearest that one of another kind has.
        unsigned, precision, scale, fsp (digits of fractional seconds), length, charset, collation, labels, shape,
            native: see :class:`ColumnType`.
        generated: a generated column (present in the row image, never written to a target).
    """

    name: str
    kind: ColumnKind
    sql_type: str
    nullable: bool = True
    unsigned: bool = False
    precision: int = 0
    scale: int = 0
    fsp: int = 0
    length: int = 0
    charset: str | None = None
    collation: str | None = None
    labels: tuple[str, ...] = ()
    generated: bool = False
    shape: str = ""
    native: str = ""

    @property
    def type(self) -> ColumnType:
        """The type of its values, whatever the source."""
        charset, collation = self.charset or "", self.collation or ""
        return ColumnType(
            self.kind, self.precision, self.scale, self.fsp, self.length, self.unsigned, self.labels, charset,
            collation, self.shape, self.native
        ).plain  # fmt: skip

    @property
    def arrow_type(self) -> pa.DataType:
        """The Arrow type of stored values."""
        return self.type.arrow_type


@dataclass(frozen=True, slots=True)
class TableSchema:
    """A table's definition as of a position.

    ``primary_key`` holds column names in key order, empty if there is none. ``deferrable``: two rows may have one key
    until their statement or transaction ends; without a primary key that is so of the keys that a mapping may name.
    """

    table: TableId
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...] = ()
    deferrable: bool = False

    @property
    def version(self) -> str:
        """Eight hex digits that change whenever the definition does."""
        text = json.dumps(
            [
                [
                    *(c.name, c.sql_type, c.nullable, c.unsigned, c.charset, c.collation, c.labels, c.generated),
                    *([c.native] if c.native else []),
                ]
                for c in self.columns
            ]
            + [list(self.primary_key)]
            + (["deferrable"] if self.deferrable else []),
            ensure_ascii=False,
        )
        return f"{zlib.crc32(text.encode()):08x}"

    def field(self, column: Column) -> pa.Field:
        """Return the Arrow field of a column, with the metadata described at the top of this module.

        Always nullable.
        """
        metadata = {"sluice.type": column.sql_type, "sluice.name": column.name, "sluice.kind": column.type.to_text()}
        if column.charset:
            metadata["sluice.charset"] = column.charset
        if column.collation:
            metadata["sluice.collation"] = column.collation
        if column.generated:
            metadata["sluice.generated"] = "1"
        if not column.nullable:
            metadata["sluice.required"] = "1"
        if column.name in self.primary_key:
            metadata["sluice.key"] = str(self.primary_key.index(column.name) + 1)
        if self.deferrable and (column.name in self.primary_key or not self.primary_key):
            metadata["sluice.deferrable"] = "1"
        return pa.field(stored_name(column.name), column.arrow_type, metadata=metadata)

    @property
    def arrow_schema(self) -> pa.Schema:
        """Schema of a segment file: the user's columns, then META_FIELDS, then ``_before`` (a struct of the user's
        columns).
        """
        fields = [self.field(c) for c in self.columns]
        return pa.schema([*fields, *META_FIELDS, pa.field("_before", pa.struct(fields))])
