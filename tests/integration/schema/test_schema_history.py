"""Logs that carry no names: the schema history says what each row's columns were called where it was written, on real
servers.
"""

from __future__ import annotations

import threading
from dataclasses import replace

import pymysql
import pytest

from sluice.config.connections import parse_connection
from sluice.errors import SchemaUnknown
from sluice.model.tables import TableId
from sluice.sources.mysql.catalog.information_schema import read_state
from sluice.sources.mysql.history.schema_snapshot import reread_table
from sluice.sources.mysql.server.connection import open_connection, server_info
from tests.support.pipelines.case import assert_same_rows, case
from tests.support.servers.fixtures import setting

TABLE = """CREATE TABLE t (
    id INT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, e ENUM('a','ü') CHARACTER SET latin1, s SET('x','y'), v VARCHAR(20) DEFAULT 'q',
    b TINYINT UNSIGNED, u BIGINT UNSIGNED, ts TIMESTAMP(3) NULL, d DECIMAL(10,3) UNSIGNED, bl BLOB,
    c CHAR(5) CHARACTER SET utf8mb4) CHARACTER SET latin2"""
STEPS = (
    (None, "INSERT INTO t (e, s, v, b, u, ts, d, bl, c) VALUES "
           "('ü', 'x,y', 'hé', 200, 18446744073709551615, NOW(3), 1.5, 'abc', '😀'), "
           "('a', '', 'z', 0, 1, NULL, 2, NULL, NULL)"),
    ("ALTER TABLE t ADD COLUMN n INT UNSIGNED FIRST, CHANGE v w VARCHAR(20), MODIFY e ENUM('b','a','ü') CHARACTER SET "
    "latin1 AFTER bl, DROP COLUMN b",
     "INSERT INTO t (n, e, s, w, u) VALUES (4000000000, 'ü', 'x', 'Ł', 5), (1, 'b', '', 'z', 1)"),
    (None, "UPDATE t SET w = 'changed' WHERE id = 1"),
    ("RENAME TABLE t TO old, old TO other", "DELETE FROM other WHERE id = 2"),
    ("CREATE TABLE t LIKE other", "INSERT INTO t SELECT * FROM other WHERE id > 1"),
    ("ALTER TABLE t MODIFY w VARCHAR(20) CHARACTER SET utf8mb4, ADD UNIQUE (id, u)", "UPDATE t SET w = '😀', u = u + 1"),
    ("RENAME TABLE t TO t2, other TO t, t2 TO other", "UPDATE t SET w = 'swapped'"),
)  # fmt: skip
BARE = {"mysql_source": "MINIMAL", "mariadb": "NO_LOG"}


@pytest.fixture(params=["mysql_source", "mariadb"])
def bare(request, tmp_path, mysql_target, zookeeper, fresh_schema):
    """A pipeline whose source logs as little as it can."""
    source = request.getfixturevalue(request.param)
    with setting(source, binlog_row_metadata=BARE[request.param]):
        schema = fresh_schema(source, mysql_target, options="CHARACTER SET utf8mb4")
        for server in (source, mysql_target):
            server.execute(TABLE, database=schema)
        with case(tmp_path, source, mysql_target, zookeeper, schema) as made:
            made.run_until_head()
            yield made


@pytest.mark.promise("A10")
def test_rows_are_read_with_the_definition_of_their_time(bare) -> None:
    for definition, change in STEPS:
        if definition:
            bare.source.execute(definition, database=bare.schema)
            bare.run_until_head()
        bare.source.execute(change, database=bare.schema)
        bare.run_until_head()
        assert_same_rows(bare)


FOUR_BYTES = ("😀", "?", "😁", "a?", "𠀋?", "it's 🐄", "b\\c?", "x")
WIDE = {
    "mysql_source": ("utf8mb4", "utf16", "utf16le", "utf32", "gb18030"),
    "mariadb": ("utf8mb4", "utf16", "utf16le", "utf32"),
}


def labelled(kind: str) -> str:
    """Columns whose labels the server prints as ``?`` in part."""
    labels = ", ".join("'" + label.replace("\\", "\\\\").replace("'", "''") + "'" for label in FOUR_BYTES)
    many = ", ".join(f"'{number}?'" for number in range(1200)) + ", '🎲'"
    columns = [
        f"e_{c} ENUM({labels}) CHARACTER SET {c} COLLATE {c}_bin NOT NULL DEFAULT '🐄', "
        f"s_{c} SET({labels}) CHARACTER SET {c} COLLATE {c}_bin"
        for c in WIDE[kind]
    ]
    return f"CREATE TABLE t (id INT PRIMARY KEY, {', '.join(columns)}, m ENUM({many}) CHARACTER SET utf8mb4)".replace(
        "'🐄'", "'it''s 🐄'"
    )


@pytest.mark.parametrize("kind", ["mysql_source", "mariadb"])
@pytest.mark.parametrize("start", ["latest", "dump"])
def test_labels_of_four_bytes(request, tmp_path, mysql_target, zookeeper, fresh_schema, kind: str, start: str) -> None:
    """The server prints them as ``?`` wherever it describes a table."""
    source = request.getfixturevalue(kind)
    with setting(source, binlog_row_metadata=BARE[kind]):
        schema = fresh_schema(source, mysql_target, options="CHARACTER SET utf8mb4")
        source.execute(labelled(kind), database=schema)
        values = [*range(1, len(FOUR_BYTES) + 1)]
        rows = [f"({n}{f', {n}, {1 << (n - 1) | 1}' * len(WIDE[kind])}, {n if n % 2 else 1201})" for n in values]
        with case(tmp_path, source, mysql_target, zookeeper, schema, start=start) as made:
            if kind == "mysql_source":
                done = made.cli("check", str(made.path), "--apply", "--yes")
                assert done.returncode == 0, done.stdout + done.stderr
            else:
                mysql_target.execute(labelled(kind), database=schema)
            if start == "latest":
                made.run_until_head()
            source.execute(f"INSERT INTO t VALUES {', '.join(rows)}", database=schema)
            if start == "latest":
                source.execute("INSERT INTO t (id) VALUES (100)", database=schema)
            made.run_until_head()
            made.run_until_head()
            assert_same_rows(made)
            source.execute("UPDATE t SET m = 1201", "DELETE FROM t WHERE id = 3", database=schema)
            made.run_until_head()
            assert_same_rows(made)


@pytest.mark.parametrize("kind", ["mysql_source", "mariadb"])
def test_labels_that_the_user_may_not_ask_for(request, fresh_schema, kind: str) -> None:
    source = request.getfixturevalue(kind)
    schema = fresh_schema(source)
    table = TableId(schema, "t")
    user = f"'blind'@'%' IDENTIFIED BY 'b{schema}'"
    source.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, e ENUM('😀', '?') CHARACTER SET utf8mb4 COLLATE utf8mb4_bin)",
        "CREATE TABLE other (id INT PRIMARY KEY, e ENUM('ж', 'x') CHARACTER SET utf8mb4)",
        f"CREATE USER {user}",
        "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'blind'@'%'",
        f"GRANT INSERT ON `{schema}`.* TO 'blind'@'%'",
        database=schema,
    )
    try:
        endpoint = replace(parse_connection("source", source.connection_json()), user="blind", password=f"b{schema}")
        with open_connection(endpoint) as connection:
            info = server_info(connection)
            state = read_state(connection, info)
            assert state.find(TableId(schema, "other")) is not None
            why = state.why_unknown(table)
            assert why is not None
            assert "labels of e" in why.reason
            with pytest.raises(SchemaUnknown, match=r"labels of e.*SELECT command denied") as caught:
                reread_table(endpoint, connection, info, table, info.head, server_id=4_000_000_125)
            assert "schema set" in str(caught.value)
    finally:
        source.execute("DROP USER 'blind'@'%'")


def alter_in_two_phases(server, schema: str, *statements: str) -> None:
    """Run statements whose ALTERs MariaDB logs twice: as begun, and as committed or rolled back."""
    with server.connect(schema) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION binlog_alter_two_phase = 1")
        for statement in statements:
            cursor.execute(statement)


@pytest.mark.parametrize("names", ["FULL", "NO_LOG"])
def test_an_alter_in_two_phases_counts_when_it_is_committed(
    tmp_path, mariadb, mysql_target, zookeeper, fresh_schema, names: str
) -> None:
    """One that is rolled back changes nothing, and rows that others write meanwhile have the old definition."""
    schema = fresh_schema(mariadb, mysql_target, options="CHARACTER SET utf8mb4")
    created = "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, v DECIMAL(10,2), c INT, s VARCHAR(99))"
    with setting(mariadb, binlog_row_metadata=names), case(tmp_path, mariadb, mysql_target, zookeeper, schema) as made:
        made.run_until_head()
        mariadb.execute(f"USE {schema}", created, "INSERT INTO t VALUES (1, 1.45, 7, 'a'), (2, 2.5, 7, 'b')")
        made.run_until_head()
        log, begin = mariadb.execute("SHOW MASTER STATUS")[0][:2]
        for refused in ("ADD UNIQUE (c), MODIFY v DECIMAL(10,0)", "DROP COLUMN v, ADD UNIQUE (c)"):
            with pytest.raises(pymysql.err.IntegrityError, match="Duplicate"):
                alter_in_two_phases(mariadb, schema, f"ALTER TABLE t {refused}, ALGORITHM=COPY")
        events = mariadb.execute(f"SHOW BINLOG EVENTS IN '{log}' FROM {begin}")
        assert sum("ROLLBACK ALTER" in str(event[5]) for event in events) == 2
        mariadb.execute(f"USE {schema}", "INSERT INTO t VALUES (3, 3.55, 8, 'c')")
        made.run_until_head()
        made.assert_equal("t")
        mariadb.execute(f"USE {schema}", "INSERT INTO t (v, c, s) SELECT seq / 100, seq, 'x' FROM seq_10_to_60000")
        alters = ("ALTER TABLE t ADD COLUMN e INT NOT NULL DEFAULT 5", "ALTER TABLE t DROP COLUMN c, ADD KEY (s)")
        altering = threading.Thread(target=alter_in_two_phases, args=(mariadb, schema, *alters), daemon=True)
        altering.start()
        with mariadb.connect(schema) as connection, connection.cursor() as cursor:
            while altering.is_alive():
                cursor.execute("INSERT INTO t (v, s) VALUES (9.99, 'meanwhile')")
                connection.commit()
        altering.join()
        made.run_until_head()
        made.run_until_head()
        made.assert_equal("t")


OTHERS = {
    "mysql_source": (
        "RENAME TABLE early TO v",
        "CREATE ALGORITHM=MERGE SQL SECURITY INVOKER VIEW w AS SELECT id FROM t",
        "RENAME TABLE w TO x, t TO t9, t9 TO t",
        "CREATE OR REPLACE VIEW x AS SELECT id + 1 AS id FROM t",
        "DROP VIEW IF EXISTS x, v",
    ),
    "mariadb": (
        "RENAME TABLE early TO v",
        "CREATE OR REPLACE VIEW w AS SELECT id FROM t",
        "RENAME TABLE w TO x, t TO t9, t9 TO t",
        "DROP VIEW x",
        "ALTER SEQUENCE first RESTART 50",
        "ALTER SEQUENCE IF EXISTS first INCREMENT 7 CYCLE",
        "RENAME TABLE first TO second",
        "SELECT nextval(second)",
        "ALTER TABLE second RENAME TO third",
        "DROP SEQUENCE third",
        "CREATE OR REPLACE SEQUENCE fourth START 5",
        "DROP TABLE fourth",
    ),
}


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("names", ["full", "bare"])
def test_views_and_sequences_are_renamed_and_dropped_beside_tables(
    request, tmp_path, mysql_target, zookeeper, fresh_schema, kind: str, names: str
) -> None:
    """They share the names and some statements of tables, and no pipeline follows them."""
    source = request.getfixturevalue(kind)
    schema = fresh_schema(source, mysql_target, options="CHARACTER SET utf8mb4")
    sequences = ["CREATE SEQUENCE first"] if kind == "mariadb" else []
    with setting(source, binlog_row_metadata=BARE[kind] if names == "bare" else "FULL"):
        for server in (source, mysql_target):
            server.execute("CREATE TABLE t (id INT PRIMARY KEY)", database=schema)
        source.execute(f"USE {schema}", "CREATE VIEW early AS SELECT id FROM t", *sequences)
        with case(tmp_path, source, mysql_target, zookeeper, schema) as made:
            made.run_until_head()
            for number, statement in enumerate(OTHERS[kind]):
                source.execute(f"USE {schema}", statement, f"INSERT INTO t VALUES ({number})")
                made.run_until_head()
            made.assert_equal("t")
