"""Copies of PostgreSQL's rows: every built-in type, as the server itself prints the value."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from sluice.config.connections import parse_connection
from sluice.model.dumps import Chunk, ChunkId, Marking, TableRequest
from sluice.model.tables import Column, TableId
from sluice.model.temporal import to_text
from sluice.sources.postgresql.snapshot.chunk_reader import open_chunk_reader
from tests.support.values import postgresql_types as types

TYPES = types.BOTH | types.BEYOND


def copied(server: Any, table: TableId) -> tuple[tuple[Column, ...], pa.Table]:
    endpoint = parse_connection("source", server.connection_json())
    with open_chunk_reader(endpoint, Marking.SNAPSHOT, "p") as reader:
        schema = reader.schema(table)
        chunk = Chunk(ChunkId("d", 0, 1))
        with reader.watermarks.reading(chunk):
            return schema.columns, pa.concat_tables(reader.rows(TableRequest(table), chunk))


def shown(column: Column, values: pa.Array) -> list[str | None]:
    """What the server prints for values of the column."""
    kind = values.type
    if pa.types.is_temporal(kind) and not pa.types.is_duration(kind):
        digits = 0 if pa.types.is_date32(kind) else column.fsp
        found = to_text(values, fsp=digits).to_pylist()
        zone = "+00" if column.native.endswith("with time zone") else ""
        return [None if text is None else _short(text, zone) for text in found]
    if pa.types.is_duration(kind):
        return [None if text is None else _short(text, "") for text in to_text(values, fsp=column.fsp).to_pylist()]
    return [None if value is None else _text(column, value) for value in values.to_pylist()]


def _short(text: str, zone: str) -> str:
    """Without zeros at the end of a fraction, as PostgreSQL prints times; with the zone."""
    if text.endswith("infinity"):
        return text
    text, era = (text[:-3], " BC") if text.endswith(" BC") else (text, "")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return text + zone + era


def _text(column: Column, value: Any) -> str:
    if column.native == "boolean":
        return "t" if value else "f"
    if isinstance(value, bytes):
        return rf"\x{value.hex()}"
    if column.kind.value == "bit":
        return format(value, "b").zfill(column.length)
    if column.native.startswith("character("):
        return str(value).ljust(column.length)
    if isinstance(value, float):
        return _float(column, value)
    return f"{value:f}" if column.kind.value == "decimal" else str(value)


def _float(column: Column, value: float) -> str:
    import numpy as np

    if value != value:
        return "NaN"
    if value in {float("inf"), float("-inf")}:
        return "Infinity" if value > 0 else "-Infinity"
    text = np.format_float_scientific(np.float32(value) if column.native == "real" else value, trim="-", exp_digits=2)
    plain = repr(float(np.float32(value))) if column.native == "real" else repr(value)
    return text if abs(value) >= 1e15 or 0 < abs(value) < 1e-4 else ("-0" if plain == "-0.0" else f"{value:.6g}")


@pytest.mark.promise("B50")
def test_every_type_is_copied_exactly(postgresql: Any, fresh_pg_schema: Any) -> None:
    schema = fresh_pg_schema()
    postgresql.execute(f'SET search_path = "{schema}"', *types.USERS)
    types.make(postgresql, schema, "t", TYPES)
    wanted = types.texts(postgresql, schema, "t", list(TYPES))
    columns, rows = copied(postgresql, TableId(schema, "t"))
    ids = rows["id"].to_pylist()
    assert sorted(ids) == sorted(wanted)
    found = {column.name: shown(column, rows[column.name].combine_chunks()) for column in columns}
    for at, number in enumerate(ids):
        differ = {name: (text, found[name][at]) for name, text in wanted[number].items() if found[name][at] != text}
        assert not differ, f"row {number}: {differ}"
