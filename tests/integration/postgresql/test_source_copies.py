"""Copies of PostgreSQL's rows: every built-in type, as the server itself prints the value."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from sluice.config.connections import parse_connection
from sluice.errors import ConfigError
from sluice.model.dumps import Chunk, ChunkId, Marking, TablePlanned, TableRequest
from sluice.model.tables import Column, TableId
from sluice.model.temporal import to_text
from sluice.postgresql.column_types import neutral_column
from sluice.postgresql.names import quoted
from sluice.sources.postgresql.server.connection import connected
from sluice.sources.postgresql.snapshot import copy_rows as copies
from sluice.sources.postgresql.snapshot.chunk_reader import open_chunk_reader
from sluice.sources.postgresql.snapshot.condition import rendered
from sluice.sources.postgresql.snapshot.copy_rows import copy_rows
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


KEYS = {
    "bigint": ("id bigint", "g - 20"),
    "numeric": ("id numeric", "(g - 20) / 7.0"),
    "decimal": ("id numeric(12,3)", "(g - 20) * 1000.125"),
    "text": ("id text", "chr(65 + g % 57) || '''' || g"),
    "icu": ('id text COLLATE "und-x-icu"', "(ARRAY['É','e','z ','Z','ß'])[1 + g % 5] || g"),
    "char": ("id char(8)", "'k' || g"),
    "uuid": ("id uuid", "md5(g::text)::uuid"),
    "bytea": ("id bytea", r"decode(md5(g::text), 'hex')"),
    "timestamptz": ("id timestamptz", "CASE WHEN g = 1 THEN 'infinity' WHEN g = 2 THEN '0044-03-15 BC'::timestamptz "
    "ELSE '2024-01-01'::timestamptz + g * interval '1.000001 hour' END"),
    "date": ("id date", "CASE WHEN g = 1 THEN '-infinity'::date ELSE '2024-01-01'::date + g END"),
    "time": ("id time", "'00:00'::time + g * interval '17 minutes'"),
    "double": ("id double precision", "CASE WHEN g = 1 THEN 'NaN' ELSE (g - 20) / 3.0 END"),
    "real": ("id real", "(g - 20) / 3.0"),
    "inet": ("id inet", "('10.0.' || g || '.1/24')::inet"),
    "interval": ("id interval", "g * interval '1 day 00:00:00.5'"),
    "range": ("id int4range", "int4range(g, g * 2 + 1)"),
    "array": ("id integer[]", "ARRAY[g % 3, g]"),
    "bit": ("id bit(8)", "g::bit(8)"),
}  # fmt: skip


def chunks(server: Any, request: TableRequest, size: int) -> list[list[Any]]:
    """The rows of each chunk: the values of column n."""
    endpoint, found, planned, last = parse_connection("source", server.connection_json()), [], TablePlanned(), False
    with open_chunk_reader(endpoint, Marking.SNAPSHOT, "p") as reader:
        while not last:
            upto, last = reader.next_border(request, planned, size)
            chunk = Chunk(ChunkId("d", 0, planned.chunks + 1), after=planned.upto, upto=upto)
            found.append([n for piece in reader.rows(request, chunk) for n in piece["n"].to_pylist()])
            planned = TablePlanned(upto, planned.chunks + 1)
    return found


@pytest.mark.parametrize("kind", KEYS)
def test_chunks_of_any_key_have_every_row_once(postgresql: Any, fresh_pg_schema: Any, kind: str) -> None:
    schema, (column, value) = fresh_pg_schema(), KEYS[kind]
    name = column.removesuffix(' COLLATE "und-x-icu"').partition(" ")[0]
    postgresql.execute(
        f"CREATE TABLE {schema}.t ({column}, n int, PRIMARY KEY ({name}))",
        f"INSERT INTO {schema}.t SELECT {value}, g FROM generate_series(1, 40) g",
    )
    found = chunks(postgresql, TableRequest(TableId(schema, "t")), 7)
    assert len(found) == 6
    assert sorted(n for some in found for n in some) == list(range(1, 41))


def test_chunks_of_several_columns_and_of_an_index_with_nulls(postgresql: Any, fresh_pg_schema: Any) -> None:
    schema = fresh_pg_schema()
    table = TableId(schema, "t")
    postgresql.execute(
        f"CREATE TABLE {schema}.t (a text, b int, c date, n int, other int, PRIMARY KEY (b, a))",
        f"CREATE INDEX by_other ON {schema}.t (other, n)",
        f"INSERT INTO {schema}.t SELECT 'x' || g % 5, g % 9, '2024-01-01', g, nullif(g % 4, 0) FROM "
        "generate_series(1, 40) g",
    )
    for request in (TableRequest(table), TableRequest(table, index="by_other")):
        found = chunks(postgresql, request, 6)
        assert sorted(n for some in found for n in some) == list(range(1, 41))
        assert len(found) > 5
    some = chunks(postgresql, TableRequest(table, where='"n" > 10 AND "a" = \'x1\'', lower=("3",), upper=("6",)), 4)
    wanted = postgresql.execute(f"SELECT n FROM {schema}.t WHERE n > 10 AND a = 'x1' AND b BETWEEN 3 AND 6")
    assert sorted(n for part in some for n in part) == sorted(n for (n,) in wanted)
    assert wanted


def test_columns_of_a_condition_are_no_functions(postgresql: Any, fresh_pg_schema: Any) -> None:
    """Names of functions, types and keywords are columns; a column before a parenthesis or a text is refused."""
    schema = fresh_pg_schema()
    table = TableId(schema, "t")
    names = ("pg_sleep", "user", "current_user", "a b", "left", "date", "in", "set_config", 'q"q')
    made = ", ".join(f"{quoted(name)} int" for name in names)
    postgresql.execute(
        f"CREATE TABLE {schema}.t (id int PRIMARY KEY, n int, {made})",
        f"INSERT INTO {schema}.t SELECT g, g, {', '.join('g' for _ in names)} FROM generate_series(1, 9) g",
    )

    def where(text: str) -> TableRequest:
        return TableRequest(table, where=rendered(text, table, names))

    for name in names:
        some = chunks(postgresql, where(f"{quoted(name)} IN (4, 5)"), 4)
        assert sorted(n for part in some for n in part) == [4, 5], name
        for attack in (
            f"{quoted(name)}(1) IS NULL",
            f"{quoted(name)} ('a', 'b', true) = 'b'",
            f"{quoted(name)} 'x' = 1",
        ):
            with pytest.raises(ConfigError, match="known here"):
                where(attack)
    some = chunks(postgresql, where("date < 3 and pg_sleep < left + 1 and user = current_user"), 4)
    assert sorted(n for part in some for n in part) == [1, 2]
    with pytest.raises(ConfigError, match="no function"):
        where("pg_sleep(1) IS NULL")


@contextmanager
def copying(server: Any, sql: str, *columns: Column) -> Iterator[tuple[Any, Iterator[pa.Table]]]:
    with connected(parse_connection("source", server.connection_json()), "test") as connection:
        yield connection, copy_rows(connection, sql, columns)


@pytest.mark.parametrize("through", ["the library", "psycopg"])
def test_rows_of_any_size_arrive_in_pieces(postgresql: Any, monkeypatch: Any, through: str) -> None:
    """A piece ends within a row, rows are larger than a piece, and none has no bytes."""
    monkeypatch.setattr(copies, "PIECE_BYTES", 10_000)
    monkeypatch.setattr(copies, "_ROOM", 5_000)
    if through == "psycopg":
        monkeypatch.setattr(copies.copy_kernel, "library_of", lambda connection: None)
    sql = "SELECT g::text, repeat(chr(65 + g % 26), (g * 7919) % 30001), NULL::text FROM generate_series(0, 300) g"
    columns = [neutral_column(name, words) for name, words in (("n", "bigint"), ("long", "text"), ("none", "text"))]
    with copying(postgresql, sql, *columns) as (connection, pieces):
        found = list(pieces)
        assert len(found) > 10
        rows = pa.concat_tables(found)
        assert rows["n"].to_pylist() == list(range(301))
        assert rows["long"].to_pylist() == [chr(65 + g % 26) * (g * 7919 % 30001) for g in range(301)]
        assert rows["none"].null_count == 301
        assert connection.execute("SELECT 1").fetchone() == (1,), "the connection takes the next question"


@pytest.mark.parametrize("through", ["the library", "psycopg"])
def test_a_copy_that_fails_or_is_left_says_so_and_leaves_the_connection_whole(
    postgresql: Any, monkeypatch: Any, through: str
) -> None:
    monkeypatch.setattr(copies, "PIECE_BYTES", 10_000)
    if through == "psycopg":
        monkeypatch.setattr(copies.copy_kernel, "library_of", lambda connection: None)
    column = neutral_column("n", "text")
    failing = "SELECT repeat((100 / (5000 - g))::text, 30) FROM generate_series(1, 9000) g"
    with copying(postgresql, failing, column) as (connection, pieces):
        with pytest.raises(psycopg.errors.DivisionByZero):
            list(pieces)
        assert connection.execute("SELECT 1").fetchone() == (1,)
    endless = "SELECT repeat('x', 100) FROM (SELECT generate_series(1, 100000000)) s"
    with copying(postgresql, endless, column) as (connection, pieces):
        assert next(pieces).num_rows
        pieces.close()  # type: ignore[attr-defined]
        assert connection.execute("SELECT 1").fetchone() == (1,)
    with copying(postgresql, endless, column) as (connection, pieces):
        assert next(pieces).num_rows
        postgresql.execute(f"SELECT pg_terminate_backend({connection.info.backend_pid})")
        with pytest.raises(psycopg.OperationalError):
            list(pieces)


def test_char_loses_the_spaces_at_its_end_and_an_array_of_it_nothing(postgresql: Any, fresh_pg_schema: Any) -> None:
    schema = fresh_pg_schema()
    postgresql.execute(
        f"CREATE TABLE {schema}.t (id int PRIMARY KEY, short character(6), long bpchar, several character(3)[])",
        f"INSERT INTO {schema}.t VALUES (1, ' ä ', 'b  ', '{{a,NULL,\" b\"}}'), (2, '', '', '{{}}')",
    )
    _, rows = copied(postgresql, TableId(schema, "t"))
    wanted = postgresql.execute(f"SELECT rtrim(short), rtrim(long), several::text FROM {schema}.t ORDER BY id")
    assert list(zip(*(rows[name].to_pylist() for name in ("short", "long", "several")), strict=True)) == wanted
