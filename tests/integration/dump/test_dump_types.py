"""A dumped row is the row of the log: the same definition, the same Arrow types, the same values, for every column
type.
"""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from sluice.config.connections import parse_connection
from sluice.model.column_types import ColumnKind
from sluice.model.tables import META_COLUMNS, Column, TableId
from sluice.mysql.column_types import type_named
from sluice.mysql.key_sql import after, among, literals, read_literals, typed_literal, upto
from sluice.sources.mysql.catalog.live_table import read_definition
from sluice.sources.mysql.server.connection import collations, open_connection
from sluice.sources.mysql.snapshot import result_set
from sluice.sources.mysql.snapshot.result_set import expression, named, open_reader, select
from tests.support.capture.capturing import draining
from tests.support.values.random_values import create, groups, insert, types_of

ROWS = 40


def same(a: pa.ChunkedArray, b: pa.ChunkedArray) -> bool:
    """Equal bit for bit: NaN has no place in MySQL, and special dates must not be looked at as dates."""
    return a.type == b.type and a.combine_chunks().equals(b.combine_chunks())


@pytest.mark.parametrize("kind", ["mysql_source", "mariadb"])
def test_every_type_is_what_the_log_says(kind, request, tmp_path, fresh_schema):
    server = request.getfixturevalue(kind)
    db = fresh_schema(server)
    types = types_of(server)
    dice = random.Random(11)
    tables = groups(types, 24)
    with server.connect(db) as connection, connection.cursor() as cursor, draining(server, tmp_path, db) as drain:
        cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00', NAMES utf8mb4")
        for number, columns in enumerate(tables):
            cursor.execute(create(f"t{number}", columns, types))
        drain.all()
        for number, columns in enumerate(tables):
            cursor.execute(insert(f"t{number}", range(ROWS), columns, types, dice))
        manifests = drain.all()
    for number in range(len(tables)):
        logged = drain.table(manifests, f"t{number}")
        with open_connection(drain.endpoint) as plain:
            definition = read_definition(plain, TableId(db, f"t{number}"), lambda: collations(plain))
        schema = definition.plan.schema
        users = [f for f in logged.schema if f.name not in META_COLUMNS]
        differing = [
            (mine.name, mine.metadata, its.metadata)
            for mine, its in zip([schema.field(c) for c in schema.columns], users, strict=True)
            if not mine.equals(its, check_metadata=True)
        ]
        assert differing == []
        assert schema.version in {f.schema_version for m in manifests for f in m.files if f.table == f"t{number}"}
        with open_reader(drain.endpoint) as reader:
            exprs = ", ".join(expression(c) for c in schema.columns)
            pieces = select(reader, f"SELECT {exprs} FROM `{db}`.t{number} ORDER BY id", schema.columns, "here")
            dumped = pa.concat_tables([named(piece, schema) for piece in pieces])
        assert [f.name for f in dumped.schema] == [f.name for f in users]
        wrong = [f.name for f in users if not same(dumped[f.name], logged[f.name])]
        assert wrong == []
        assert all(dumped.schema.field(f.name).equals(f, check_metadata=True) for f in users)


def test_rows_larger_than_a_packet_and_many_pieces(mysql_source, fresh_schema, monkeypatch):
    db = fresh_schema(mysql_source)
    monkeypatch.setattr(result_set, "PIECE_BYTES", 1 << 16)
    sizes = [17 * 2**20, 5, 2**24 - 20, 2**24 - 1, 0, 70_000, 1]
    with mysql_source.connect(db) as connection, connection.cursor() as cursor:
        cursor.execute("SET GLOBAL max_allowed_packet = 67108864")
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, body LONGBLOB)")
    with mysql_source.connect(db) as connection, connection.cursor() as cursor:
        for i, size in enumerate(sizes):
            cursor.execute(f"INSERT INTO t VALUES ({i}, REPEAT(CHAR({65 + i}), {size}))")
    endpoint = parse_connection("source", mysql_source.connection_json())
    with open_connection(endpoint) as plain:
        schema = read_definition(plain, TableId(db, "t"), lambda: collations(plain)).plan.schema
    with open_reader(endpoint) as reader:
        pieces = list(select(reader, f"SELECT id, body FROM `{db}`.t ORDER BY id", schema.columns, "here"))
        again = list(select(reader, f"SELECT id, body FROM `{db}`.t WHERE id > 100", schema.columns, "here"))
    rows = [row for piece in pieces for row in named(piece, schema).to_pylist()]
    assert [(r["id"], len(r["body"]), r["body"][:1]) for r in rows] == [
        (i, size, bytes([65 + i]) if size else b"") for i, size in enumerate(sizes)
    ]
    assert all(r["body"] == r["body"][:1] * len(r["body"]) for r in rows)
    assert sum(p.num_rows for p in again) == 0


@pytest.mark.parametrize("kind", ["mysql_source", "mariadb"])
def test_a_literal_of_a_key_is_its_value(kind, request, fresh_schema):
    """Read literals back as the values that they were written from, and have the server find them, for every type that
    a key may have.
    """
    server = request.getfixturevalue(kind)
    db = fresh_schema(server)
    types = {name: made for name, made in types_of(server).items() if type_named(made[0], name).key}
    dice = random.Random(5)
    endpoint = parse_connection("source", server.connection_json())
    for number, names in enumerate(groups(types, 24)):
        with server.connect(db) as connection, connection.cursor() as cursor:
            cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00', NAMES utf8mb4")
            cursor.execute(create(f"t{number}", names, types))
            cursor.execute(insert(f"t{number}", range(ROWS), names, types, dice))
        with open_connection(endpoint) as plain:
            schema = read_definition(plain, TableId(db, f"t{number}"), lambda: collations(plain)).plan.schema
        columns = [column for column in schema.columns if column.name in {"id", *names}]
        with open_reader(endpoint) as reader, server.connect(db) as connection, connection.cursor() as cursor:
            cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00', NAMES utf8mb4")
            exprs = ", ".join(expression(c) for c in columns)
            rows = pa.concat_tables(select(reader, f"SELECT {exprs} FROM `{db}`.t{number}", columns, "here"))
            ids = rows.column(0)
            for place, column in enumerate(columns):
                there = rows.column(place).is_valid()
                values = rows.column(place).filter(there).combine_chunks()
                texts = literals(column, values)
                read = read_literals(column.type, texts)
                assert same(pa.chunked_array([read]), pa.chunked_array([values])), column
                assert literals(column, read) == texts
                pairs = list(zip(ids.filter(there).to_pylist(), texts, strict=True))
                found = among(("id", column.name), [(str(id_), text) for id_, text in pairs]) if pairs else "FALSE"
                cursor.execute(f"SELECT COUNT(*) FROM t{number} WHERE {found}")
                assert (column.name, cursor.fetchone()[0]) == (column.name, len(pairs))


@pytest.mark.parametrize("kind", ["mysql_source", "mariadb"])
def test_a_set_of_64_labels_is_cut_in_the_servers_order(kind, request, fresh_schema):
    """Servers sort it by its number, and compare it as a signed one, or as a DOUBLE."""
    server = request.getfixturevalue(kind)
    labels = tuple(f"m{i}" for i in range(64))
    column = Column("s", ColumnKind.SET, f"set({','.join(map(repr, labels))})", labels=labels, charset="utf8mb4")
    with server.connect(fresh_schema(server)) as connection, connection.cursor() as cursor:

        def keys(condition: str = "TRUE") -> list[tuple[str, int]]:
            cursor.execute(f"SELECT s, n FROM t WHERE {condition} ORDER BY s, n")
            return list(cursor.fetchall())

        cursor.execute(f"CREATE TABLE t (s {column.sql_type}, n INT, PRIMARY KEY (s, n)) CHARACTER SET utf8mb4")
        dice = random.Random(64)
        chosen = ["", "m0", "m62", "m63", "m0,m63", ",".join(labels), ",".join(labels[:63])]
        chosen += [",".join(label for label in labels if dice.random() < 0.3) for _ in range(20)]
        cursor.executemany("INSERT IGNORE INTO t VALUES (%s, %s)", [(text, n) for text in chosen for n in (1, 2)])
        every = keys()
        texts = literals(column, pa.array([s for s, _ in every]))
        bounds = [(text, str(n)) for text, (_, n) in zip(texts, every, strict=True)]
        for at, (bound, key) in enumerate(zip(bounds, every, strict=True)):
            assert keys(after(("s", "n"), bound)) == every[at + 1 :]
            assert keys(after(("s", "n"), bound, included=True)) == every[at:]
            assert keys(upto(("s", "n"), bound)) == every[: at + 1]
            assert keys(after(("s",), bound[:1])) == [one for one in every[at:] if one[0] != key[0]]
        assert keys(among(("s", "n"), bounds[::3])) == every[::3]


@pytest.mark.parametrize("kind", ["mysql_source", "mariadb"])
def test_a_text_is_another_bound_of_a_set_than_its_labels(kind, request, fresh_schema):
    """A SET is sorted by its number, and compared with a text as a text: what a person typed is not turned into
    labels.
    """
    server = request.getfixturevalue(kind)
    column = Column("s", ColumnKind.SET, "set('z','y','x')", labels=("z", "y", "x"), charset="utf8mb4")
    with server.connect(fresh_schema(server)) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (s SET('z','y','x') PRIMARY KEY) CHARACTER SET utf8mb4")
        cursor.execute("INSERT INTO t VALUES ('z'), ('y'), ('z,y'), ('x')")

        def at_least(literal: str) -> list[str]:
            cursor.execute(f"SELECT s FROM t WHERE s >= {literal} ORDER BY s")
            return [row[0] for row in cursor.fetchall()]

        typed = typed_literal(column, "y")
        [number] = literals(column, pa.array(["y"]))
        assert at_least(number) == ["y", "z,y", "x"]
        assert at_least(typed) == ["z", "y", "z,y"]
        read = read_literals(column.type, [typed])
        assert literals(column, read) == [typed]


@pytest.mark.parametrize("kind", ["mysql_source", "mariadb"])
def test_a_year_has_a_bit_among_the_signs(kind, request, tmp_path, fresh_schema):
    """The table map's signs are one bit a number, and YEAR is a number there: what follows one keeps its own sign."""
    server = request.getfixturevalue(kind)
    db = fresh_schema(server)
    with server.connect(db) as connection, connection.cursor() as cursor, draining(server, tmp_path, db) as drain:
        cursor.execute(
            "CREATE TABLE t (id INT PRIMARY KEY, y YEAR, n INT, u INT UNSIGNED, d DECIMAL(5,2), last BIGINT)"
        )
        cursor.execute("INSERT INTO t VALUES (-1, 2024, -3, 4000000000, -1.25, -9)")
        rows = drain.table(drain.all(), "t")
    assert [str(rows.schema.field(name).type) for name in ("y", "n", "u", "last")] == [
        "uint16",
        "int32",
        "uint32",
        "int64",
    ]
    assert rows["n"].to_pylist() + rows["u"].to_pylist() + rows["last"].to_pylist() == [-3, 4000000000, -9]
