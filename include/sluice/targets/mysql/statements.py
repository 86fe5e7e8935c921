"""Statements of one table, cut to size: multi-row upserts and deletes by key."""

# ruff: noqa: S608 - identifiers are quoted, values are literals made by literals.py

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.model.sizes import cuts, row_bytes
from sluice.model.tables import META_COLUMNS, member, quoted, quoted_table
from sluice.targets.base import TargetTable
from sluice.targets.mysql import literals

MAX_ROWS = 5_000
MAX_BYTES = 4 * 2**20
SLICE_ROWS = 20_000
SLICE_BYTES = 8 * 2**20
MAX_KEYS = 1_000
"""Keys a DELETE: the range optimizer falls back to a full scan when its memory (8 MiB, some 230 bytes a key part) is used up."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """What the server understands.

    Attributes:
        row_alias: ``VALUES … AS _n ON DUPLICATE KEY UPDATE a = _n.a`` (MySQL 8.0.19); else ``VALUES(a)``.
        row_constructors: ``(a, b) IN ((1, 2))`` uses the index.
        max_bytes: of a statement.
        exact_collation: a collation that tells all strings apart, trailing blanks too.
    """

    row_alias: bool = True
    row_constructors: bool = True
    max_bytes: int = MAX_BYTES
    exact_collation: str = "utf8mb4_0900_bin"


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement.

    Attributes:
        rows: rows it writes or deletes.
        lax: it needs a session that is not strict.
        data: what the server will ask for (LOAD DATA LOCAL).
    """

    sql: bytes
    rows: int
    lax: bool = False
    data: bytes | memoryview | None = None


def user_fields(schema: pa.Schema) -> list[pa.Field]:
    """The fields that belong to the user."""
    return [field for field in schema if field.name not in META_COLUMNS]


def sent_fields(schema: pa.Schema, table: TargetTable) -> list[tuple[pa.Field, str]]:
    """Fields that are written with the column's spelling at the target; generated columns are left out."""
    spelling = {name.casefold(): name for name in table.columns}
    found = [(field, spelling.get(literals.column_name(field).casefold())) for field in user_fields(schema)]
    return [(field, name) for field, name in found if name is not None]


def upserts(table: TargetTable, rows: pa.Table, dialect: Dialect) -> Iterator[Statement]:
    """``INSERT … ON DUPLICATE KEY UPDATE`` of all columns, the key too: the server may hold two spellings for equal."""
    if not rows.num_rows:
        return
    fields = sent_fields(rows.schema, table)
    names = [quoted(name) for _, name in fields]
    head = f"INSERT INTO {quoted_table(table.table)} ({', '.join(names)}) VALUES "
    if not table.key:
        tail = ""
    elif dialect.row_alias:
        tail = " AS _n ON DUPLICATE KEY UPDATE " + ", ".join(f"{name} = _n.{name}" for name in names)
    else:
        tail = " ON DUPLICATE KEY UPDATE " + ", ".join(f"{name} = VALUES({name})" for name in names)
    for piece in slices(rows):
        arrays = [(field, piece[field.name].combine_chunks()) for field, _ in fields]
        lax = any(literals.has_enum_errors(field, array) for field, array in arrays)
        texts = literals.rows([literals.literals(field, array) for field, array in arrays])
        for start, stop in _cuts(texts, dialect.max_bytes - len(head) - len(tail) - 64, MAX_ROWS):
            body = "),(".join(texts[start:stop].to_pylist())
            yield Statement(f"{head}({body}){tail}".encode(), stop - start, lax)


def deletes(table: TargetTable, rows: pa.Table, dialect: Dialect) -> Iterator[Statement]:
    """Deletes of the keys of ``rows``."""
    if not rows.num_rows:
        return
    spelling = {name.casefold(): (field, name) for field, name in sent_fields(rows.schema, table)}
    parts = [spelling[name.casefold()] for name in table.key]
    values = [literals.literals(f, rows[f.name].combine_chunks(), comparing=True) for f, _ in parts]
    names = [quoted(name) for _, name in parts]
    head = f"DELETE FROM {quoted_table(table.table)} WHERE "
    if len(parts) == 1:
        texts, open_, between, close = values[0], f"{names[0]} IN (", ",", ")"
    elif dialect.row_constructors:
        texts = literals.rows(values)
        open_, between, close = f"({', '.join(names)}) IN ((", "),(", "))"
    else:
        pieces: list[pa.Array | pa.Scalar] = []
        for index, (name, value) in enumerate(zip(names, values, strict=True)):
            pieces += [pa.scalar(f"{' AND ' if index else ''}{name} = "), value]
        texts = pc.binary_join_element_wise(*pieces, "")
        open_, between, close = "(", ") OR (", ")"
    for start, stop in _cuts(texts, dialect.max_bytes - len(head) - 1024, MAX_KEYS):
        body = between.join(texts[start:stop].to_pylist())
        yield Statement(f"{head}{open_}{body}{close}".encode(), stop - start)


def keyless_deletes(table: TargetTable, rows: pa.Table, dialect: Dialect) -> Iterator[Statement]:
    """For a table without a key: as many rows of exactly this image go as ``rows`` has of it. A scan of the table each."""
    fields = sent_fields(rows.schema, table)
    conditions = []
    for field, name in fields:
        column = quoted(name)
        array = rows[field.name].combine_chunks()
        conditions.append(_exactly(field, column, array, dialect))
    texts = pc.binary_join_element_wise(*conditions, " AND ").to_pylist()
    counts: dict[str, int] = {}
    for text in texts:
        counts[text] = counts.get(text, 0) + 1
    for text, count in counts.items():
        yield Statement(f"DELETE FROM {quoted_table(table.table)} WHERE {text} LIMIT {count}".encode(), count)


def _exactly(field: pa.Field, column: str, array: pa.Array, dialect: Dialect) -> pa.Array:
    declared = literals.sql_type(field)
    values = literals.literals(field, array, comparing=True)
    if declared.startswith("json"):
        pieces: list[pa.Array | pa.Scalar] = [
            pa.scalar(f"CAST({column} AS CHAR) <=> CAST("),
            values,
            pa.scalar(" AS CHAR)"),
        ]
    elif pa.types.is_string(field.type):
        exact = f"CONVERT({column} USING utf8mb4) COLLATE {dialect.exact_collation}"
        pieces = [pa.scalar(f"{column} <=> "), values, pa.scalar(f" AND {exact} <=> "), values]
    else:
        pieces = [pa.scalar(f"{column} <=> "), values]
    known = pc.binary_join_element_wise(*pieces, "")
    return pc.fill_null(known, f"{column} IS NULL")


def leaving_unique_values(table: TargetTable, rows: pa.Table) -> pa.Table:
    """Rows to delete before anything is upserted: their value in another unique key changes, so that its old value has to be free.

    ``rows``: i and u rows. Returns their rows as they were before the batch (the key is theirs, too).
    """
    if not table.unique_keys or not rows.num_rows:
        return rows.slice(0, 0)
    before = rows["_before"].combine_chunks()
    stored = {literals.column_name(field).casefold(): field.name for field in user_fields(rows.schema)}
    names = {stored[column.casefold()] for key in table.unique_keys for column in key if column.casefold() in stored}
    changed = np.zeros(rows.num_rows, bool)
    for name in names:
        now, then = rows[name].combine_chunks(), member(before, name)
        same = pc.fill_null(pc.equal(now, then), False)
        both_null = pc.and_(pc.is_null(now), pc.is_null(then))
        changed |= ~pc.or_(same, both_null).to_numpy(zero_copy_only=False)
    existed = pc.is_valid(before).to_numpy(zero_copy_only=False)
    return rows.filter(pa.array(changed & existed))


def slices(rows: pa.Table) -> Iterator[pa.Table]:
    """Text of so many rows, and of so many bytes of them, is made at a time: the memory of a unit does not grow with the batch."""
    for start, stop in cuts(row_bytes(rows), SLICE_BYTES, SLICE_ROWS):
        yield rows.slice(start, stop - start)


def _cuts(texts: pa.Array, max_bytes: int, max_rows: int) -> Sequence[tuple[int, int]]:
    """(start, stop) of runs of rows that fit: at most ``max_bytes`` and ``max_rows``, but at least one row."""
    ends = np.cumsum(pc.binary_length(texts).to_numpy(zero_copy_only=False).astype(np.int64) + 4)
    cuts, start = [], 0
    while start < len(ends):
        base = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, base + max_bytes, side="right"))
        stop = min(max(stop, start + 1), start + max_rows)
        cuts.append((start, stop))
        start = stop
    return cuts
