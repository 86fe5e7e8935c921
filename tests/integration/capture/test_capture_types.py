"""Every column type with random values: what is in the segment equals what the server's own SELECT says, and so does
the target's checksum.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from devstack.mariadb import MariaDBServer
from sluice.config.connections import parse_connection
from sluice.config.pipeline import CaptureConfig
from sluice.sources.mysql.server.connection import connect_settings, open_connection, server_info
from sluice.sources.mysql.server.preflight import _generated_columns
from sluice.sources.table_filter import Selection
from tests.support.capture.capturing import draining, head, printed, server_text, texts
from tests.support.pipelines.case import case
from tests.support.values.random_values import MODE, OLD_TYPES, ROWS, create, groups, insert, types_of


@pytest.mark.promise("A4")
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mysql_source", "mariadb", "mariadb-old"])
def test_every_type_is_what_select_says(kind, request, tmp_path, fresh_schema):
    server = request.getfixturevalue(kind.partition("-")[0])
    db = fresh_schema(server)
    types = OLD_TYPES if kind == "mariadb-old" else types_of(server)
    r = random.Random(7)
    with server.connect(db) as connection, connection.cursor() as cursor, draining(server, tmp_path, db) as drain:
        cursor.execute(MODE)
        tables = groups(types)
        if kind == "mariadb-old":
            cursor.execute("SET GLOBAL mysql56_temporal_format = OFF")
        for number, columns in enumerate(tables):
            cursor.execute(create(f"t{number}", columns, types))
        if kind == "mariadb-old":
            cursor.execute("SET GLOBAL mysql56_temporal_format = ON")
        drain.all()
        inserted, updated = {}, {}
        for number, columns in enumerate(tables):
            for first in range(0, ROWS, 50):
                cursor.execute(insert(f"t{number}", range(first, min(first + 50, ROWS)), columns, types, r))
            inserted[number] = select(cursor, number, columns, types)
            for i in range(0, ROWS, 3):
                column = r.choice(columns)
                moved = r.choice([0, 100000])
                cursor.execute(
                    f"UPDATE t{number} SET `{column}` = {types[column][1](r)}, id = id + {moved} WHERE id = {i}"
                )
            updated[number] = select(cursor, number, columns, types)
            cursor.execute(f"DELETE FROM t{number}")
        manifests = drain.all()
    with open_connection(drain.endpoint) as connection:
        logs_generated = not _generated_columns(connection, server_info(connection), Selection.compile(CaptureConfig()))
    wrong: list[str] = []
    for number, columns in enumerate(tables):
        stored = drain.table(manifests, f"t{number}")
        ops = stored.column("_op").to_pylist()
        ids = stored.column("id").to_pylist()
        for column in columns:
            sql_type = types[column][0].removesuffix(" null")
            after = texts(stored, column, sql_type)
            before = texts(stored.column("_before").combine_chunks(), column, sql_type)
            at = columns.index(column)
            for position, op in enumerate(ops):
                row = ids[position]
                if op == "u":
                    found, wanted = before[position], inserted[number][row % 100000][at]
                else:
                    found, wanted = after[position], (inserted if op == "i" else updated)[number][row][at]
                if found != wanted:
                    wrong.append(f"{column} {sql_type}, row {row}, {op}: {found!r}, and the server says {wanted!r}")
        logged = [op == "i" or logs_generated for op in ops]
        for name, value in (("gv", lambda i: 2 * i), ("gs", lambda i: f"g{i}")):
            found = stored.column(name).to_pylist()
            assert found == [value(i) if there else None for i, there in zip(ids, logged, strict=True)]
        assert set(stored.column("inv").to_pylist()) == {7}
        assert ops.count("i") == ops.count("d") == ROWS
    assert not wrong, f"{len(wrong)} values, e.g.\n" + "\n".join(wrong[:: max(len(wrong) // 15, 1)])


def select(
    cursor: Any, number: int, columns: list[str], types: dict[str, tuple[str, Any]]
) -> dict[int, list[str | None]]:
    listing = ", ".join(printed(c, types[c][0]) for c in columns)
    cursor.execute(f"SELECT id, {listing} FROM t{number}")
    return {
        row[0]: [server_text(v, types[c][0]) for v, c in zip(row[1:], columns, strict=True)]
        for row in cursor.fetchall()
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_every_type_reaches_a_target_unchanged(kind, request, tmp_path, fresh_schema, zookeeper):
    source = request.getfixturevalue("mysql_source" if kind == "mysql" else "mariadb")
    if kind == "mysql":
        deliver(source, request.getfixturevalue("mysql_target"), tmp_path, fresh_schema, zookeeper)
    else:
        with MariaDBServer(tmp_path / "second", server_id=104) as target:
            deliver(source, target, tmp_path, fresh_schema, zookeeper)


def assert_same(made):
    """By CHECKSUM TABLE; on MariaDB byte by byte, since its CHECKSUM TABLE also tells apart tables of equal rows."""
    if not isinstance(made.source, MariaDBServer):
        made.assert_equal()
        return
    for (table,) in made.source.execute("SHOW TABLES", database=made.schema):
        columns = [row[0] for row in made.source.execute(f"SHOW COLUMNS FROM `{table}`", database=made.schema)]
        listing = ", ".join(f"HEX(`{column}`)" for column in columns)
        ours, theirs = (
            s.execute(f"SELECT {listing} FROM `{table}` ORDER BY id", database=made.schema)
            for s in (made.source, made.target)
        )
        assert len(ours) > 0
        assert ours == theirs


def deliver(source, target, folder, fresh_schema, zookeeper):
    db = fresh_schema(source, target, options="CHARACTER SET utf8mb4")
    types = types_of(source)
    r = random.Random(8)
    for server in (source, target):
        for number, columns in enumerate(groups(types)):
            server.execute(create(f"t{number}", columns, types), database=db)
    with case(folder, source, target, zookeeper, db) as made:
        made.run_until_head()
        with source.connect(db) as connection, connection.cursor() as cursor:
            cursor.execute(MODE)
            for number, columns in enumerate(groups(types)):
                cursor.execute(insert(f"t{number}", range(ROWS), columns, types, r))
        made.run_until_head()
        assert_same(made)
        with source.connect(db) as connection, connection.cursor() as cursor:
            cursor.execute(MODE)
            for number, columns in enumerate(groups(types)):
                for i in range(0, ROWS, 2):
                    column = r.choice(columns)
                    cursor.execute(
                        f"UPDATE t{number} SET `{column}` = {types[column][1](r)}, id = id + {r.choice([0, 100000])} "
                        f"WHERE id = {i}"
                    )
                cursor.execute(f"DELETE FROM t{number} WHERE id % 5 = 3")
        made.run_until_head()
        assert_same(made)


RIGHT = (
    "i8", "un8", "i16", "un16", "i24", "un24", "i32", "un32", "i64", "un64", "dec9_9", "dec10_2", "dec20_10",
    "dec65_30", "fl", "db", "vc",
    "vcl", "tt", "tx",
)  # fmt: skip
"""Where mysql-replication is right."""


@pytest.mark.parametrize("kind", ["mysql_source", "mariadb"])
def test_mysql_replication_reads_the_same_event_by_event(kind, request, tmp_path, fresh_schema):
    from pymysqlreplication import BinLogStreamReader
    from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

    server = request.getfixturevalue(kind)
    db = fresh_schema(server)
    types = types_of(server)
    r = random.Random(9)
    with server.connect(db) as connection, connection.cursor() as cursor, draining(server, tmp_path, db) as drain:
        cursor.execute(MODE)
        names = ", ".join(f"`{c}` {types[c][0]}" for c in RIGHT)
        cursor.execute(f"CREATE TABLE t (id INT PRIMARY KEY, {names}) CHARACTER SET utf8mb4")
        drain.all()
        start = drain.position
        for first in range(0, ROWS, 7):
            cursor.execute(insert("t", range(first, first + 7), list(RIGHT), types, r))
            cursor.execute(f"UPDATE t SET vc = {types['vc'][1](r)}, i64 = {types['i64'][1](r)} WHERE id % 3 = 0")
        cursor.execute("DELETE FROM t WHERE id % 2 = 0")
        changes = drain.changes(drain.all())
    end = head(drain.endpoint)
    endpoint = parse_connection("source", server.connection_json())
    reader = BinLogStreamReader(
        connection_settings=connect_settings(endpoint) | {"password": endpoint.password},
        server_id=77_123, log_file=start.file, log_pos=start.offset, resume_stream=True, blocking=False,
        only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent],
    )  # fmt: skip
    theirs = []
    try:
        for event in reader:
            for row in event.rows if event.schema == db else ():
                theirs.append((
                    row.get("before_values"),
                    row.get("after_values", row.get("values")),
                    type(event).__name__[0].lower(),
                ))
            if (reader.log_file, reader.log_pos) == (end.file, end.offset):
                break
    finally:
        reader.close()
    assert len(changes) == len(theirs) > ROWS
    for change, (before, values, kind_of_event) in zip(changes, theirs, strict=True):
        assert change.op == {"w": "i", "u": "u", "d": "d"}[kind_of_event]
        if change.op == "u":
            assert change.before == before
        assert (change.before if change.op == "d" else change.after) == values
