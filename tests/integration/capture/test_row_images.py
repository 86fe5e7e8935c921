"""Every combination of binlog_row_image and binlog_row_metadata, on both servers: the target ends equal."""

from __future__ import annotations

import random

import pytest

from sluice.config.pipeline import PipelineConfig
from sluice.errors import LoadError, RuleError
from sluice.sources.mysql.server.connection import open_connection, server_info
from sluice.sources.mysql.server.preflight import preflight
from tests.support.capture.capturing import draining
from tests.support.pipelines.case import assert_same_rows, case
from tests.support.pipelines.small_units import small_units
from tests.support.servers.fixtures import setting

TABLES = (
    """CREATE TABLE t (
        id INT AUTO_INCREMENT PRIMARY KEY, a INT DEFAULT 5, b VARCHAR(20) NOT NULL DEFAULT 'it''s', c INT, d INT AS (a + 1), e INT AS (a + 2) STORED,
        f DECIMAL(9,3) DEFAULT -1.5, g DATETIME(3) DEFAULT '2020-01-02 03:04:05.678', h ENUM('x','y') DEFAULT 'y', i BIT(5) DEFAULT b'101',
        j VARBINARY(9) DEFAULT 'ab', k DOUBLE NOT NULL DEFAULT 1.25, l TEXT, m MEDIUMBLOB, n FLOAT, o TIME(2) DEFAULT '-01:02:03.45', p DATE)""",
    """CREATE TABLE u (x INT NOT NULL, y VARCHAR(9) NOT NULL, v INT, w TEXT, z INT, PRIMARY KEY (x, y), UNIQUE (v))""",
    """CREATE TABLE keyed_by_unique (v INT NOT NULL, w TEXT, z INT, UNIQUE (v))""",
    """CREATE TABLE keyless (v INT, w TEXT, z INT DEFAULT 3)""",
)
SETTINGS = {
    "mysql_source": [
        ("MINIMAL", "MINIMAL"),
        ("MINIMAL", "FULL"),
        ("NOBLOB", "MINIMAL"),
        ("NOBLOB", "FULL"),
        ("FULL", "MINIMAL"),
    ],
    "mariadb": [("MINIMAL", "NO_LOG"), ("MINIMAL", "FULL"), ("NOBLOB", "MINIMAL"), ("FULL", "NO_LOG")],
}


FIRST = {("mysql_source", "MINIMAL", "MINIMAL"), ("mysql_source", "NOBLOB", "FULL"), ("mariadb", "MINIMAL", "NO_LOG")}
EVERY = [(s, i, m) for s, pairs in SETTINGS.items() for i, m in pairs]


@pytest.fixture(
    params=[pytest.param(p, id="-".join(p), marks=() if p in FIRST else pytest.mark.slow) for p in EVERY],
)
def made(request, tmp_path, mysql_target, zookeeper, fresh_schema):
    name, image, metadata = request.param
    source = request.getfixturevalue(name)
    with setting(source, binlog_row_image=image, binlog_row_metadata=metadata):
        schema = fresh_schema(source, mysql_target, options="CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci")
        for server in (source, mysql_target):
            server.execute(*TABLES, database=schema)
        with case(tmp_path, source, mysql_target, zookeeper, schema) as built:
            built.run_until_head()
            yield built


def test_the_target_ends_equal(made) -> None:
    choose = random.Random(made.schema)
    with made.source.connect(made.schema) as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO t (c) VALUES (1), (2), (3)")
        cursor.execute(
            "INSERT INTO t (a, l, m, n, p) VALUES (7, 'text', x'00ff00', 1.1, '1999-12-31'), (8, '', '', 0.1, NULL)"
        )
        cursor.execute("INSERT INTO u VALUES (1,'a',1,'w',NULL), (2,'a',2,'v',5), (3,'b',3,'u',5), (4,'b',NULL,'',1)")
        cursor.execute("INSERT INTO keyed_by_unique VALUES (1,'a',1), (2,'b',2), (3,'c',3)")
        cursor.execute("INSERT INTO keyless (v, w) VALUES (1,'a'), (1,'a'), (2,'b')")
        made.run_until_head()
        assert_same_rows(made)
        for statement in (
            "UPDATE t SET c = 9 WHERE id = 1",
            "UPDATE t SET id = 100, c = 10 WHERE id = 1",  # the key moves
            "UPDATE t SET l = 'new' WHERE id = 4",
            "UPDATE t SET id = 4000 + id WHERE id IN (2, 4)",
            "UPDATE t SET id = id - 4000 + 10 WHERE id > 4000",  # and on, to places that others left
            "DELETE FROM t WHERE id = 5",
            "INSERT INTO t (id, c) VALUES (1, 77)",
            "UPDATE t SET id = 200, b = 'first' WHERE id = 1",  # inserted and moved in one batch
            "UPDATE u SET v = NULL WHERE x = 1",
            "UPDATE u SET v = 1 WHERE x = 2",  # unique values change hands
            "UPDATE u SET v = 2 WHERE x = 1",
            "UPDATE u SET x = 9, y = 'c' WHERE x = 3",
            "UPDATE u SET x = 3, y = 'b' WHERE x = 4",
            "UPDATE keyed_by_unique SET w = 'z' WHERE v = 2",
            "UPDATE keyed_by_unique SET v = v + 10 ORDER BY v DESC",
            "DELETE FROM keyed_by_unique WHERE v = 11",
            "UPDATE keyless SET w = 'q' WHERE v = 1 LIMIT 1",
            "DELETE FROM keyless WHERE v = 2",
        ):
            cursor.execute(statement)
    made.run_until_head()
    assert_same_rows(made)
    for _ in range(3):
        write(made, choose)
        made.run_until_head()
        assert_same_rows(made)


@pytest.mark.parametrize("made", [("mysql_source", "MINIMAL", "MINIMAL")], indirect=True, ids=["minimal"])
def test_a_large_batch_of_partial_rows_is_written_once_and_whole(made, monkeypatch) -> None:
    """More rows than a unit takes: the target's memory of the batch must not make one unit hide another."""
    small_units(monkeypatch, 20)
    with made.source.connect(made.schema) as connection, connection.cursor() as cursor:
        cursor.executemany("INSERT INTO u VALUES (%s, 'a', %s, 'w', 0)", [(i, i) for i in range(300)])
        cursor.executemany("INSERT INTO t (c) VALUES (%s)", [(i,) for i in range(300)])
    made.run_until_head()
    with made.source.connect(made.schema) as connection, connection.cursor() as cursor:
        cursor.execute("UPDATE u SET z = x WHERE x % 3")
        cursor.execute("UPDATE t SET c = c + 1 WHERE id % 2")
        cursor.execute("DELETE FROM t WHERE id % 7 = 0")
        cursor.execute("UPDATE u SET v = v + 1000 WHERE x < 100")
    made.run_until_head()
    assert_same_rows(made)


@pytest.mark.promise("A4")
def test_the_preflight_names_generated_columns_that_updates_lack(mariadb, tmp_path, fresh_schema) -> None:
    db = fresh_schema(mariadb)
    mariadb.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, a INT, v INT AS (a + 1), s INT AS (a + 2) STORED)", database=db
    )
    pipeline = PipelineConfig.model_validate({
        "pipeline": "p",
        "source": {"connection": "test_mariadb"},
        "targets": [{"name": "t", "type": "mysql", "connection": "test_mariadb"}],
        "capture": {"include": [f"{db}.*"]},
    })
    with draining(mariadb, tmp_path, db) as drain:
        mariadb.execute("INSERT INTO t (id, a) VALUES (1, 1)", "UPDATE t SET a = 5", database=db)
        rows = drain.table(drain.all(), "t")
        with open_connection(drain.endpoint) as connection:
            found = preflight(connection, server_info(connection), pipeline, None)
    has_all = rows.column("v").to_pylist() == [2, 6] and rows.column("s").to_pylist() == [3, 7]
    assert [f.value for f in found if f.setting == "generated columns"] == ([] if has_all else [f"{db}.t.v, {db}.t.s"])


def write(made, choose: random.Random) -> None:
    """Random statements, many of which move keys."""
    with made.source.connect(made.schema) as connection, connection.cursor() as cursor:
        for _ in range(60):
            one, other = choose.randint(1, 30), choose.randint(1, 30)
            cursor.execute(
                choose.choice([
                    f"INSERT IGNORE INTO t (id, c) VALUES ({one}, {other})",
                    f"INSERT IGNORE INTO t (id, a, l) VALUES ({one}, {other}, REPEAT('l', {other}))",
                    f"UPDATE t SET c = {other} WHERE id = {one}",
                    f"UPDATE t SET l = CONCAT(IFNULL(l, ''), 'x'), n = n + 1 WHERE id = {one}",
                    f"UPDATE IGNORE t SET id = {other} WHERE id = {one}",
                    f"UPDATE IGNORE t SET id = {other}, b = 'm{other}' WHERE id = {one}",
                    f"DELETE FROM t WHERE id = {one}",
                    f"UPDATE IGNORE u SET v = {other} WHERE x = {one}",
                    f"INSERT IGNORE INTO u (x, y, v) VALUES ({one}, 'q', {other})",
                    f"UPDATE IGNORE u SET x = {other}, z = {one} WHERE x = {one}",
                    f"UPDATE IGNORE keyed_by_unique SET v = {other} WHERE v = {one}",
                ])
            )


@pytest.mark.parametrize("made", [("mysql_source", "MINIMAL", "MINIMAL")], indirect=True, ids=["minimal"])
def test_an_update_of_a_row_that_the_target_lacks_stops(made) -> None:
    made.source.execute("INSERT INTO u VALUES (1, 'a', 1, 'w', NULL)", database=made.schema)
    made.run_until_head()
    made.target.execute("DELETE FROM u", database=made.schema)
    made.source.execute("UPDATE u SET z = 7 WHERE x = 1", database=made.schema)
    with pytest.raises(LoadError, match=r"no row of .*u with .x. = 1 AND .y. = 'a'"):
        made.run_until_head()
    made.target.execute("INSERT INTO u VALUES (1, 'a', 1, 'w', NULL)", database=made.schema)
    made.run_until_head()
    assert_same_rows(made)


@pytest.mark.parametrize("made", [("mysql_source", "MINIMAL", "MINIMAL")], indirect=True, ids=["minimal"])
def test_rules_stop_at_rows_that_are_not_whole(made) -> None:
    (made.folder / "rules" / "engine.yaml").write_text(
        "rules: [{name: r, path: r.py, type: row, order: 1, match: {table: u}}]"
    )
    (made.folder / "rules" / "r.py").write_text("def transform(row, context):\n    return row\n")
    made.path.write_text(made.yaml + "\nrules: engine.yaml\n")
    made.source.execute("INSERT INTO u VALUES (1, 'a', 1, 'w', NULL)", database=made.schema)
    made.run_until_head()
    made.source.execute("UPDATE u SET z = 7 WHERE x = 1", database=made.schema)
    with pytest.raises(RuleError, match="only the columns that changed"):
        made.run_until_head()


@pytest.mark.parametrize("there", ["v INT", "v INT AS (a + 1) STORED"], ids=["ordinary", "generated"])
def test_rows_without_a_key_are_told_apart_without_generated_columns(
    tmp_path, mariadb, mysql_target, zookeeper, fresh_schema, there: str
) -> None:
    """MariaDB 11.8 logs images before without them: what a batch inserts and deletes is the same row."""
    schema = fresh_schema(mariadb, mysql_target, options="CHARACTER SET utf8mb4")
    mariadb.execute("CREATE TABLE t (a INT, v INT AS (a + 1) STORED)", database=schema)
    mysql_target.execute(f"CREATE TABLE t (a INT, {there})", database=schema)
    with case(tmp_path, mariadb, mysql_target, zookeeper, schema) as made:
        made.run_until_head()
        for statements in (
            ("INSERT INTO t (a) VALUES (1), (1), (2), (3)", "DELETE FROM t WHERE a = 1 LIMIT 1"),
            ("DELETE FROM t WHERE a = 2", "INSERT INTO t (a) VALUES (4)"),
            ("INSERT INTO t (a) VALUES (5), (6)", "UPDATE t SET a = 7 WHERE a = 5", "DELETE FROM t WHERE a = 3"),
        ):
            mariadb.execute(f"USE {schema}", *statements)
            made.run_until_head()
            columns = "a, v" if "AS" in there else "a"  # the pre-flight warns of updates without the values of v
            rows = [sorted(server.execute(f"SELECT {columns} FROM {schema}.t")) for server in (mariadb, mysql_target)]
            assert rows[1] == rows[0]
