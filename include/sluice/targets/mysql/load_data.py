"""LOAD DATA LOCAL, if it is switched on: a quarter to a half less work for the server than INSERT … VALUES.

Decision: measured by processor time of the server, sysbench's table, 4 connections, rows in key order. 600,000 new
rows: LOAD DATA 3.7 s (in random order 7.7 s). 120,000 rows that exist among 400,000: LOAD DATA REPLACE 1.1 s, multi-row
upsert 1.6 s (in random order 2.2 s), staging table and upsert from it 1.4 s, staging table and joined update 2.1 s,
REPLACE … VALUES 1.6 s. So rows that are sent with all of the target's columns are loaded, and the others upserted,
because REPLACE would reset the target's own columns to their defaults. A server that reads LOAD DATA much slower than
VALUES would make this wrong.

REPLACE makes a repeat harmless. With foreign_key_checks = 0 it cascades nothing, and a row it removes for another
unique value is one that the batch itself writes (the source's rows are free of conflict at the end of a batch).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.model.tables import quoted, quoted_table
from sluice.targets.mysql import labelled, literals
from sluice.targets.mysql.statements import Statement, slices
from sluice.targets.sql.rows import sent_fields, target_type
from sluice.targets.sql.tables import TargetTable

BULK_ROWS = 2_000
"""Rows from which on a LOAD DATA is worth its set-up."""


def wanted(table: TargetTable, rows: pa.Table) -> pa.Array:
    """Return a mask of the rows that LOAD DATA stores exactly."""
    mask = np.ones(rows.num_rows, bool)
    for field, _ in sent_fields(rows.schema, table):
        if pa.types.is_string(field.type):
            mask &= ~literals.in_statements_only(field, rows[field.name].combine_chunks())
    return pa.array(mask)


def loads(table: TargetTable, rows: pa.Table) -> Iterator[Statement]:
    """Yield LOAD DATA statements with their data. ``rows`` hold nothing that :func:`wanted` leaves out."""
    fields = sent_fields(rows.schema, table)
    targets, settings = [], []
    for index, (field, name) in enumerate(fields):
        conversion = _conversion(field)
        targets.append(f"@v{index}" if conversion else quoted(name))
        if conversion:
            settings.append(f"{quoted(name)} = {conversion.format(f'@v{index}')}")
    sql = (
        f"LOAD DATA LOCAL INFILE 'rows' {'REPLACE ' if table.key else ''}INTO TABLE {quoted_table(table.table)} "
        "CHARACTER SET utf8mb4 FIELDS TERMINATED BY '\\t' ESCAPED BY '\\\\' LINES TERMINATED BY '\\n' "
        f"({', '.join(targets)})" + (f" SET {', '.join(settings)}" if settings else "")
    ).encode()
    for piece in slices(rows):
        columns = [_text(field, piece[field.name].combine_chunks()) for field, _ in fields]
        ends = ["\t"] * (len(columns) - 1) + ["\n"]
        parts = [part for pair in zip(columns, ends, strict=True) for part in pair]
        lines = pc.binary_join_element_wise(*parts, "", null_handling="replace", null_replacement="\\N")
        yield Statement(sql, piece.num_rows, computed=table.computed, data=_bytes_of(lines))


def _conversion(field: pa.Field) -> str:
    declared = literals.sql_type(field)
    if declared.startswith("bit") or labelled.is_labelled(target_type(field)):
        return "CAST({} AS UNSIGNED)"
    return "UNHEX({})" if pa.types.is_binary(field.type) else ""


def _text(field: pa.Field, values: pa.Array) -> pa.Array:
    """Return the column as LOAD DATA reads it."""
    kind = values.type
    if pa.types.is_binary(kind):
        return literals.hexadecimal(values)
    if pa.types.is_string(kind) and not labelled.is_labelled(target_type(field)):
        stored = bytes(_bytes_of(values))
        for raw, safe in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\x00", "\\0")):
            if stored.find(raw.encode()) >= 0:
                values = pc.replace_substring(values, raw, safe)
        return values
    return pc.utf8_trim(literals.literals(field, values), "'")


def _bytes_of(texts: pa.StringArray) -> memoryview:
    """Return the bytes of all strings, one after the other, without a copy."""
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int32, len(texts) + 1, texts.offset * 4)
    return memoryview(data)[int(ends[0]) : int(ends[-1])] if data is not None else memoryview(b"")
