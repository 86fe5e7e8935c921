"""Statements of one table, cut to size: multi-row upserts and deletes by key."""

# ruff: noqa: S608 - identifiers are quoted, values are literals made by literals.py

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import LoadError
from sluice.model.fields import is_masked
from sluice.model.sizes import cuts, row_bytes
from sluice.model.tables import quoted, quoted_table
from sluice.mysql.column_types import find_type
from sluice.targets.mysql import documents, labelled, literals
from sluice.targets.sql.rows import key_fields, sent_fields, target_type
from sluice.targets.sql.tables import TargetTable

MAX_ROWS = 5_000
MAX_BYTES = 4 * 2**20
SLICE_ROWS = 20_000
SLICE_BYTES = 4 * 2**20
LAX_ROWS = 200
"""Rows per statement in a session that is not strict: the server keeps 1,024 warnings (``max_error_count``), and each
is checked.
"""
MAX_KEYS = 1_000
"""Keys per DELETE: the range optimizer falls back to a full scan when its memory (8 MiB, some 230 bytes per key part)
is used up.
"""


@dataclass(frozen=True, slots=True)
class Dialect:
    """The syntax and limits of the server.

    Attributes:
        row_alias: ``VALUES … AS _n ON DUPLICATE KEY UPDATE a = _n.a`` (MySQL 8.0.19); else ``VALUES(a)``.
        row_constructors: ``(a, b) IN ((1, 2))`` uses the index.
        max_bytes: of a statement.
        exact_collation: a collation that tells all strings apart, including trailing blanks.
    """

    row_alias: bool = True
    row_constructors: bool = True
    max_bytes: int = MAX_BYTES
    exact_collation: str = "utf8mb4_0900_bin"


@dataclass(frozen=True, slots=True)
class Absent:
    """A check for a row: ``error`` is raised if ``query`` does not find it."""

    query: str
    error: LoadError


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement.

    Attributes:
        rows: rows it writes or deletes.
        lax: columns whose values a strict session refuses; about others the server must not warn.
        computed: columns that the server computes: what it cuts in them to fit, the source has cut as well.
        data: what the server will ask for (LOAD DATA LOCAL).
        removes: a DELETE; it must not remove more rows than that.
        exactly: it has to change this number of rows.
        wanted: what it looks for, for an error; "" if values of the table are masked. where: the table, for an error.
        absent: an UPDATE, whose row has to be there.
    """

    sql: bytes
    rows: int
    lax: tuple[str, ...] = ()
    computed: tuple[str, ...] = ()
    data: bytes | memoryview | None = None
    removes: bool = False
    exactly: bool = False
    wanted: str = ""
    where: str = ""
    absent: Absent | None = None


def upserts(table: TargetTable, rows: pa.Table, dialect: Dialect) -> Iterator[Statement]:
    """Yield ``INSERT … ON DUPLICATE KEY UPDATE`` of all columns, including the key: the server may compare two
    spellings as equal.
    """
    fields = sent_fields(rows.schema, table)
    return _inserts("INSERT", on_duplicate(fields, dialect) if table.key else "", table, rows, dialect)


def replaces(table: TargetTable, rows: pa.Table, dialect: Dialect) -> Iterator[Statement]:
    """Yield ``REPLACE`` of whole rows: each removes what holds one of its unique values, including earlier rows of the
    batch.
    """
    return _inserts("REPLACE", "", table, rows, dialect)


def _inserts(verb: str, tail: str, table: TargetTable, rows: pa.Table, dialect: Dialect) -> Iterator[Statement]:
    if not rows.num_rows:
        return
    fields = sent_fields(rows.schema, table)
    names = [quoted(name) for _, name in fields]
    head = f"{verb} INTO {quoted_table(table.table)} ({', '.join(names)}) VALUES "
    for piece in slices(rows):
        arrays = [(field, piece[field.name].combine_chunks()) for field, _ in fields]
        lax, names_of_lax = lax_rows(arrays, [name for _, name in fields])
        texts = literals.rows([literals.literals(field, array) for field, array in arrays])
        for first, last in _runs(lax):
            most = LAX_ROWS if lax[first] else MAX_ROWS
            for start, stop in _cuts(
                texts.slice(first, last - first), dialect.max_bytes - len(head) - len(tail) - 64, most
            ):
                body = "),(".join(texts[first + start : first + stop].to_pylist())
                sql = f"{head}({body}){tail}".encode()
                yield Statement(sql, stop - start, names_of_lax if lax[first] else (), table.computed)


def on_duplicate(fields: Sequence[tuple[pa.Field, str]], dialect: Dialect) -> str:
    """Return the end of an INSERT that changes existing rows.

    From column to column the server copies ENUM and SET by their text.
    """
    settings = []
    for field, name in fields:
        new = f"_n.{quoted(name)}" if dialect.row_alias else f"VALUES({quoted(name)})"
        by_number = labelled.is_labelled(target_type(field))
        settings.append(f"{quoted(name)} = {f'CAST({new} AS UNSIGNED)' if by_number else new}")
    return f"{' AS _n' if dialect.row_alias else ''} ON DUPLICATE KEY UPDATE {', '.join(settings)}"


def lax_rows(
    arrays: Sequence[tuple[pa.Field, pa.Array]], names: Sequence[str]
) -> tuple[np.ndarray[Any, Any], tuple[str, ...]]:
    """Return a mask of the rows that a strict session refuses, and the names of the columns that cause it."""
    lax = np.zeros(len(arrays[0][1]), bool)
    lax_names = []
    for (field, array), name in zip(arrays, names, strict=True):
        mask = literals.enum_errors(field, array)
        if mask.any():
            lax |= mask
            lax_names.append(name)
    return lax, tuple(lax_names)


def _runs(flags: np.ndarray[Any, Any]) -> list[tuple[int, int]]:
    """Return (start, stop) of runs of equal flags."""
    edges = [0, *(np.flatnonzero(np.diff(flags)) + 1).tolist(), len(flags)]
    return list(pairwise(edges))


def deletes(table: TargetTable, rows: pa.Table, dialect: Dialect) -> Iterator[Statement]:
    """Yield DELETEs of the keys of ``rows``."""
    if not rows.num_rows:
        return
    head = f"DELETE FROM {quoted_table(table.table)} WHERE "
    for condition, keys in _of_keys(table, rows, dialect, len(head)):
        yield Statement(
            f"{head}{condition}".encode(), keys, computed=table.computed, removes=True, where=str(table.table)
        )


def key_conditions(table: TargetTable, rows: pa.Table, dialect: Dialect) -> Iterator[str]:
    """Yield conditions that the keys of ``rows`` meet, and no other row; each key is in one of them."""
    return (condition for condition, _ in _of_keys(table, rows, dialect, MAX_BYTES // 4)) if rows.num_rows else iter(())


def _of_keys(table: TargetTable, rows: pa.Table, dialect: Dialect, head: int) -> Iterator[tuple[str, int]]:
    """Yield conditions for the keys of ``rows``, and the number of keys. ``head``: bytes of the statement besides."""
    parts = key_fields(rows.schema, table)
    values = [literals.literals(f, rows[f.name].combine_chunks(), comparing=True) for f, _ in parts]
    names = [quoted(name) for _, name in parts]
    by_number = any(labelled.is_labelled(target_type(field)) for field, _ in parts)
    if len(parts) == 1 and not by_number:
        texts, open_, between, close = values[0], f"{names[0]} IN (", ",", ")"
    elif dialect.row_constructors and not by_number:  # a list of rows compares ENUM and SET by their text
        texts = literals.rows(values)
        open_, between, close = f"({', '.join(names)}) IN ((", "),(", "))"
    else:
        texts = pc.binary_join_element_wise(*_equal(parts, rows), "")
        open_, between, close = "(", ") OR (", ")"
    for start, stop in _cuts(texts, dialect.max_bytes - head - 1024, MAX_KEYS):
        body = between.join(texts[start:stop].to_pylist())
        yield f"{open_}{body}{close}", stop - start


def displacing(table: TargetTable, rows: pa.Table, dialect: Dialect) -> Iterator[Statement]:
    """Yield DELETEs of other rows that hold a unique value of one of ``rows``."""
    spelling = {name.casefold(): (field, name) for field, name in sent_fields(rows.schema, table)}
    head = f"DELETE FROM {quoted_table(table.table)} WHERE "
    for key in table.unique_keys:
        if not all(name.casefold() in spelling for name in key):
            continue
        values, own = [spelling[name.casefold()] for name in key], key_fields(rows.schema, table)
        for piece in slices(rows):
            parts = [*_equal(values, piece), pa.scalar(" AND NOT ("), *_equal(own, piece), pa.scalar(")")]
            texts = pc.binary_join_element_wise(*parts, "").drop_null()  # any number of rows may have NULL
            for start, stop in _cuts(texts, dialect.max_bytes - len(head) - 1024, MAX_KEYS):
                body = ") OR (".join(texts[start:stop].to_pylist())
                yield Statement(
                    f"{head}({body})".encode(), stop - start, computed=table.computed, where=str(table.table)
                )


def _equal(columns: Sequence[tuple[pa.Field, str]], rows: pa.Table) -> list[pa.Array | pa.Scalar]:
    """Return ``a = 1 AND b = 2`` in pieces to be joined; null for a row in which one of them is null."""
    pieces: list[pa.Array | pa.Scalar] = []
    for number, (field, name) in enumerate(columns):
        value = literals.literals(field, rows[field.name].combine_chunks(), comparing=True)
        pieces += [pa.scalar(f"{' AND ' if number else ''}{quoted(name)} = "), value]
    return pieces


def keyless_deletes(table: TargetTable, rows: pa.Table, dialect: Dialect) -> Iterator[Statement]:
    """Yield DELETEs for a table without a key: for each image in ``rows`` as many rows as ``rows`` has of it.

    Each scans the table.

    As the table itself remembers the batch, all of them have to exist, unless a dump is to copy them.
    """
    fields = sent_fields(rows.schema, table)
    masked = any(is_masked(field) for field, _ in fields)
    for piece in slices(rows):
        conditions = [
            _exactly(field, quoted(name), piece[field.name].combine_chunks(), dialect) for field, name in fields
        ]
        texts = pc.binary_join_element_wise(*conditions, " AND ").to_pylist()
        counts: dict[str, int] = {}
        for text in texts:
            counts[text] = counts.get(text, 0) + 1
        for text, count in counts.items():
            sql = f"DELETE FROM {quoted_table(table.table)} WHERE {text} LIMIT {count}".encode()
            yield Statement(
                sql,
                count,
                computed=table.computed,
                removes=True,
                exactly=not table.being_copied,
                wanted="" if masked else f" WHERE {text[:1000]}",
                where=str(table.table),
            )


def _exactly(field: pa.Field, column: str, array: pa.Array, dialect: Dialect) -> pa.Array:
    """Return the condition that ``column`` holds exactly this value, NULL included, and not one that the server
    compares as equal.
    """
    target = target_type(field)
    values = literals.literals(field, array, comparing=True)
    pieces: list[pa.Array | pa.Scalar]
    if documents.is_json(target):  # compared by text: JSON values of different types may be equal
        pieces = [pa.scalar(f"CAST({column} AS CHAR) <=> CAST(CAST("), values, pa.scalar(" AS JSON) AS CHAR)")]
    elif labelled.is_labelled(target):
        pieces = [pa.scalar(f"{column} <=> "), values]
    elif pa.types.is_string(field.type):
        exact = f"CONVERT({column} USING utf8mb4) COLLATE {dialect.exact_collation}"
        pieces = [pa.scalar(f"{column} <=> "), values, pa.scalar(f" AND {exact} <=> "), values]
    elif any(row is not None and not row.equals for row in (find_type(literals.sql_type(field)), find_type(target))):
        pieces = [pa.scalar(f"HEX({column}) <=> '"), literals.hexadecimal(array), pa.scalar("'")]
    elif pa.types.is_floating(
        field.type
    ):  # 0 and -0 are equal; the column itself is not searched for a number beyond FLOAT(M,D)
        pieces = [pa.scalar(f"{column} + 0e0 <=> "), values, _sign_of_zero(column, array)]
    else:
        pieces = [pa.scalar(f"{column} <=> "), values]
    condition = pc.binary_join_element_wise(*pieces, "")
    return pc.fill_null(condition, f"{column} IS NULL")


def _sign_of_zero(column: str, array: pa.Array) -> pa.Array:
    zero = pc.fill_null(pc.equal(array, 0.0), False).to_numpy(zero_copy_only=False)
    if not zero.any():
        return pa.array([""] * len(array), pa.string())
    negative = np.signbit(pc.fill_null(array, 0.0).to_numpy(zero_copy_only=False))
    signs = np.where(negative, f" AND CAST({column} AS CHAR) LIKE '-%'", f" AND CAST({column} AS CHAR) NOT LIKE '-%'")
    return pa.array(np.where(zero, signs, "").tolist(), pa.string())


def slices(rows: pa.Table) -> Iterator[pa.Table]:
    """Yield slices of at most SLICE_ROWS rows and SLICE_BYTES bytes: text is made of one at a time, so that memory does
    not grow with the batch.
    """
    for start, stop in cuts(row_bytes(rows), SLICE_BYTES, SLICE_ROWS):
        yield rows.slice(start, stop - start)


def _cuts(texts: pa.Array, max_bytes: int, max_rows: int) -> Sequence[tuple[int, int]]:
    """Return (start, stop) of runs of rows that fit: at most ``max_bytes`` and ``max_rows``, but at least one row."""
    ends = np.cumsum(pc.binary_length(texts).to_numpy(zero_copy_only=False).astype(np.int64) + 4)
    cuts, start = [], 0
    while start < len(ends):
        base = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, base + max_bytes, side="right"))
        stop = min(max(stop, start + 1), start + max_rows)
        cuts.append((start, stop))
        start = stop
    return cuts
