"""DDL reaches the target: as recorded, renamed by the mapping, by policy, behind the rows before it, exactly once;
cut-overs included.
"""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sluice.config.connections import parse_connection
from sluice.errors import LoadError, TargetUnavailable
from sluice.model.tables import TableId
from sluice.targets.mysql import target as mysql_target_module
from sluice.targets.mysql.connection import connect
from sluice.targets.mysql.tables import definitions_of
from tests.support.crashes.cuts import Budget
from tests.support.pipelines.case import Case, case


@pytest.fixture
def shop(tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any) -> Any:
    schema = fresh_schema(mysql_source, mysql_target, options="CHARACTER SET utf8mb4")
    with case(tmp_path, mysql_source, mysql_target, zookeeper, schema) as made:
        made.run_until_head()
        yield made


def run(made: Case, *statements: str) -> None:
    with made.source.connect(made.schema) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        connection.commit()


def configured(made: Case, *, target: str = "", extra: str = "") -> None:
    text = made.yaml.replace("    connection: case_target\n", f"    connection: case_target\n{target}")
    made.path.write_text(text + extra, encoding="utf-8")


def definition(server: Any, schema: str, table: str) -> str:
    return str(server.execute(f"SHOW CREATE TABLE `{schema}`.`{table}`")[0][1]).split(" AUTO_INCREMENT=")[0]


def assert_same(made: Case, *tables: str) -> None:
    for table in tables:
        sides = [definition(server, made.schema, table) for server in (made.source, made.target)]
        assert sides[0] == sides[1]
    made.assert_equal(*tables)


@pytest.mark.promise("A23")
def test_tables_come_change_and_go_with_their_rows(shop: Case) -> None:
    run(
        shop,
        "CREATE TABLE people (id INT AUTO_INCREMENT PRIMARY KEY, name VARCHAR(20) COLLATE utf8mb4_bin DEFAULT 'x''y', "
        "note TEXT, KEY (name)) COMMENT='it''s'",
        "INSERT INTO people (name) VALUES ('a'), ('b'), ('ä')",
        "ALTER TABLE people ADD COLUMN age INT NOT NULL DEFAULT 7 AFTER id, ADD UNIQUE KEY by_age (age, id)",
        "UPDATE people SET note = 'seen' WHERE id = 1",
        "INSERT INTO people (name, age) VALUES ('c', 9)",
        "ALTER TABLE people RENAME COLUMN note TO remark, MODIFY name VARCHAR(200), DROP KEY name",
        "INSERT INTO people (name, remark) VALUES (REPEAT('ö', 200), 'r')",
        "CREATE INDEX by_remark ON people (remark(10))",
        "CREATE TABLE `odd ``name` LIKE people",
        "INSERT INTO `odd ``name` SELECT * FROM people",
        "TRUNCATE TABLE people",
        "INSERT INTO people (name) VALUES ('after')",
        "CREATE TABLE copied (PRIMARY KEY (id)) SELECT id, name FROM people",
        "RENAME TABLE `odd ``name` TO plain",
        "DELETE FROM plain WHERE id = 2",
        "CREATE TABLE gone (a INT PRIMARY KEY)",
        "DROP TABLE gone",
    )
    shop.run_until_head()
    assert {row[0] for row in shop.target.execute(f"SHOW TABLES FROM {shop.schema}")} >= {"people", "plain", "copied"}
    assert not shop.target.execute(f"SHOW TABLES FROM {shop.schema} LIKE 'gone'")
    assert_same(shop, "people", "plain", "copied")


def test_rows_before_a_new_column_get_its_default(shop: Case) -> None:
    run(shop, "CREATE TABLE t (id INT PRIMARY KEY, a INT)", "INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)")
    shop.run_until_head()
    run(
        shop,
        "UPDATE t SET a = 11 WHERE id = 1",
        "INSERT INTO t VALUES (4, 4)",
        "ALTER TABLE t ADD COLUMN b VARCHAR(5) NOT NULL DEFAULT 'new'",
        "UPDATE t SET b = 'set' WHERE id = 2",
    )
    shop.run_until_head()
    assert shop.target.execute(f"SELECT id, a, b FROM {shop.schema}.t ORDER BY id") == [
        (1, 11, "new"), (2, 2, "set"), (3, 3, "new"), (4, 4, "new"),
    ]  # fmt: skip
    assert_same(shop, "t")


def test_names_go_through_the_mapping(shop: Case, fresh_schema: Any) -> None:
    other = fresh_schema(shop.target)
    lines = f"mapping:\n  - {{from: {shop.schema}.*, to: {other}.*}}\n"
    lines += (
        f"  - {{from: {shop.schema}.secret, to: {other}.open, columns: {{exclude: [word], rename: {{name: title}}}}}}\n"
    )
    configured(shop, extra=lines)
    run(
        shop,
        "CREATE TABLE parent (id INT PRIMARY KEY)",
        f"CREATE TABLE child (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES {shop.schema}.parent (id))",
        "CREATE TABLE secret (id INT PRIMARY KEY, word VARCHAR(9), name VARCHAR(9) NOT NULL DEFAULT 'n')",
        "INSERT INTO parent VALUES (1)",
        "INSERT INTO child VALUES (1, 1)",
        "INSERT INTO secret VALUES (1, 'w', 'one')",
        "ALTER TABLE secret ADD COLUMN rank_ INT DEFAULT 3, MODIFY COLUMN word VARCHAR(99), MODIFY COLUMN name "
        "VARCHAR(30) NOT NULL DEFAULT 'm'",
        "ALTER TABLE parent ADD COLUMN extra INT",
        "INSERT INTO secret (id) VALUES (2)",
    )
    shop.run_until_head()
    assert shop.target.execute(f"SELECT * FROM {other}.open ORDER BY id") == [(1, "one", 3), (2, "m", 3)]
    assert "REFERENCES `parent` (`id`)" in definition(shop.target, other, "child")
    assert "extra" in definition(shop.target, other, "parent")
    assert not shop.target.execute(f"SHOW TABLES FROM {shop.schema} LIKE 'parent'")


def test_policies_by_kind(shop: Case) -> None:
    run(shop, "CREATE TABLE t (id INT PRIMARY KEY, a SMALLINT, b INT)", "CREATE TABLE u (id INT PRIMARY KEY)")
    shop.run_until_head()
    configured(
        shop,
        target="    ddl: {drop_table: ignore, drop_column: stop, change_column: widen_only, indexes: ignore, default: "
        "apply}\n",
    )
    run(
        shop,
        "DROP TABLE u",
        "ALTER TABLE t MODIFY a BIGINT, ADD COLUMN c INT, ADD KEY (b)",
        "INSERT INTO t VALUES (1, 5000000000, 2, 3)",
    )
    shop.run_until_head()
    assert shop.target.execute(f"SHOW TABLES FROM {shop.schema} LIKE 'u'")
    assert "KEY `b`" not in definition(shop.target, shop.schema, "t")
    shop.assert_equal("t")
    run(shop, "ALTER TABLE t MODIFY c TINYINT", "ALTER TABLE t DROP COLUMN b", "INSERT INTO t VALUES (2, 1, 1)")
    with pytest.raises(LoadError, match="MODIFY c TINYINT"):
        shop.run_until_head()
    configured(shop, target="    ddl: {change_column: apply, drop_column: stop}\n")
    with pytest.raises(LoadError, match="DROP COLUMN b") as caught:
        shop.run_until_head()
    assert "by hand" in (caught.value.hint or "")
    shop.target.execute(f"ALTER TABLE {shop.schema}.t DROP COLUMN b")  # a person does it
    shop.run_until_head()
    assert_same(shop, "t")


AGAIN = {
    "swapped": "RENAME COLUMN a TO b, RENAME COLUMN b TO a",
    "changed and swapped": "CHANGE a b VARCHAR(9), CHANGE b a INT",
    "in a ring": "RENAME COLUMN a TO b, RENAME COLUMN b TO c, RENAME COLUMN c TO a",
    "added anew": "DROP COLUMN a, ADD COLUMN a INT DEFAULT 7",
    "added anew with another type": "DROP COLUMN a, ADD COLUMN a VARCHAR(20) DEFAULT 'x' FIRST",
    "taken over": "DROP COLUMN a, RENAME COLUMN b TO a",
    "renamed and added": "RENAME COLUMN a TO d, ADD COLUMN a INT DEFAULT 3",
}


@pytest.mark.parametrize("name", AGAIN)
def test_names_that_a_statement_uses_again(shop: Case, name: str) -> None:
    """The target's columns are named as after the statement before it has run."""
    run(
        shop,
        "CREATE TABLE t (id INT PRIMARY KEY, a INT DEFAULT 1, b INT DEFAULT 2, c INT DEFAULT 3)",
        "INSERT INTO t VALUES (1, 10, 20, 30), (2, 11, 21, 31)",
    )
    shop.run_until_head()
    run(shop, f"ALTER TABLE t {AGAIN[name]}", "INSERT INTO t (id) VALUES (3)", "UPDATE t SET a = 5 WHERE id = 2")
    shop.run_until_head()
    assert_same(shop, "t")


@pytest.mark.parametrize("name", [name for name in AGAIN if name != "changed and swapped"])
def test_names_that_a_statement_uses_again_are_never_guessed(shop: Case, name: str) -> None:
    """Neither where the policy wants a person, nor where the statement cannot be run as it is."""
    run(shop, "CREATE TABLE t (id INT PRIMARY KEY, a INT DEFAULT 1, b INT DEFAULT 2, c INT DEFAULT 3, s INT)")
    run(shop, "INSERT INTO t VALUES (1, 10, 20, 30, 40)")
    shop.run_until_head()
    run(shop, f"ALTER TABLE t {AGAIN[name]}")
    configured(shop, target="    ddl: stop\n")
    with pytest.raises(LoadError, match="policy of target"):
        shop.run_until_head()
    rename = f"mapping:\n  - {{from: {shop.schema}.t, to: {shop.schema}.t, columns: {{rename: {{s: other}}}}}}\n"
    shop.target.execute(f"ALTER TABLE {shop.schema}.t RENAME COLUMN s TO other")
    configured(shop, extra=rename)
    with pytest.raises(LoadError, match="the two definitions do not tell"):
        shop.run_until_head()
    assert shop.target.execute(f"SELECT id, a, b, c FROM {shop.schema}.t") == [(1, 10, 20, 30)]


def databases(made: Case, fresh_schema: Any) -> str:
    """A second database that is captured, but for its tables ``kept_…``, with rows."""
    other = str(fresh_schema(made.source, made.target))
    text = made.path.read_text(encoding="utf-8")
    text = text.replace(
        f'include: ["{made.schema}', f'exclude: ["{other}[.]kept_.*"]\n  include: ["{other}[.].*", "{made.schema}'
    )
    made.path.write_text(text, encoding="utf-8")
    for server in (made.source, made.target):
        server.execute(
            f"CREATE TABLE `{other}`.kept_1 (id INT PRIMARY KEY)", f"INSERT INTO `{other}`.kept_1 VALUES (1)"
        )
    made.source.execute(
        f"CREATE TABLE `{other}`.t (id INT PRIMARY KEY)", f"INSERT INTO `{other}`.t VALUES (1), (2)",
        f"CREATE TABLE `{other}`.child (id INT PRIMARY KEY, FOREIGN KEY (id) REFERENCES `{other}`.t (id))",
        f"INSERT INTO `{other}`.child VALUES (1)",
    )  # fmt: skip
    made.run_until_head()
    assert made.target.execute(f"SELECT COUNT(*) FROM `{other}`.child")[0][0] == 1
    return other


def tables_of(server: Any, schema: str) -> set[str]:
    return {row[0] for row in server.execute(f"SHOW TABLES FROM `{schema}`")}


def test_a_dropped_database_takes_its_captured_tables_along(shop: Case, fresh_schema: Any) -> None:
    other = databases(shop, fresh_schema)
    run(
        shop,
        f"DROP DATABASE `{other}`",
        f"CREATE DATABASE `{other}`",
        f"CREATE TABLE `{other}`.t (id INT PRIMARY KEY, v INT)",
    )
    run(shop, f"INSERT INTO `{other}`.t VALUES (2, 7)")
    shop.run_until_head()
    assert tables_of(shop.target, other) == {"t", "kept_1"}
    assert list(shop.target.execute(f"SELECT * FROM `{other}`.t")) == [(2, 7)]
    run(shop, f"DROP SCHEMA IF EXISTS `{other}`")
    shop.run_until_head()
    assert tables_of(shop.target, other) == {"kept_1"}


def test_a_dropped_database_stops_where_the_policy_says_so(shop: Case, fresh_schema: Any) -> None:
    other = databases(shop, fresh_schema)
    with_policy = shop.path.read_text(encoding="utf-8").replace(
        "    connection: case_target\n", "    connection: case_target\n    ddl: {drop_table: stop}\n"
    )
    shop.path.write_text(with_policy, encoding="utf-8")
    run(shop, f"DROP DATABASE `{other}`")
    with pytest.raises(LoadError, match="DROP DATABASE"):
        shop.run_until_head()
    assert tables_of(shop.target, other) == {"t", "child", "kept_1"}
    shop.target.execute(f"DROP TABLE `{other}`.child", f"DROP TABLE `{other}`.t")  # a person does it
    shop.run_until_head()
    shop.source.execute(f"CREATE DATABASE `{other}`")  # for whoever cleans up


@pytest.mark.parametrize(
    "swap",
    [
        "RENAME TABLE t TO _t_del, _t_gho TO t",
        "RENAME TABLE t TO _t_old, _t_new TO t",
    ],
)
def test_cut_overs_of_online_schema_changes(shop: Case, swap: str) -> None:
    ghost = "_t_gho" if "gho" in swap else "_t_new"
    run(shop, "CREATE TABLE t (id INT PRIMARY KEY, a INT)", "INSERT INTO t VALUES (1, 1), (2, 2)")
    shop.run_until_head()
    run(
        shop,
        f"CREATE TABLE {ghost} LIKE t",
        f"ALTER TABLE {ghost} ADD COLUMN fresh VARCHAR(9) NOT NULL DEFAULT 'f' AFTER id, MODIFY a BIGINT, ADD KEY (a)",
        f"INSERT INTO {ghost} (id, a) SELECT id, a FROM t",
        "UPDATE t SET a = 22 WHERE id = 2",
        f"REPLACE INTO {ghost} (id, a) VALUES (2, 22)",
        swap,
        "INSERT INTO t VALUES (3, 'x', 3)",
        "UPDATE t SET fresh = 'y' WHERE id = 1",
    )
    shop.run_until_head()
    assert_same(shop, "t")
    assert not shop.target.execute(f"SHOW TABLES FROM {shop.schema} LIKE '\\_t%'")


def test_a_cut_over_that_renames_a_column_stops_until_a_person_renames_it(shop: Case) -> None:
    run(shop, "CREATE TABLE t (id INT PRIMARY KEY, a INT)", "INSERT INTO t VALUES (1, 1), (2, 2)")
    shop.run_until_head()
    rename = "CHANGE a wide BIGINT"
    run(
        shop,
        "CREATE TABLE _t_gho LIKE t",
        f"ALTER TABLE _t_gho {rename}",
        "INSERT INTO _t_gho SELECT * FROM t",
        "RENAME TABLE t TO _t_del, _t_gho TO t",
        "INSERT INTO t VALUES (3, 3)",
    )
    with pytest.raises(LoadError, match="may have been renamed, or dropped and added") as stopped:
        shop.run_until_head()
    assert "make the change at the target by hand" in str(stopped.value.hint)
    shop.target.execute(f"ALTER TABLE `{shop.schema}`.t {rename}")
    shop.run_until_head()
    assert_same(shop, "t")


def test_shards_share_a_table(shop: Case) -> None:
    configured(shop, extra=f"mapping:\n  - {{from: '{shop.schema}\\.orders_\\d+', to: {shop.schema}.orders}}\n")
    run(
        shop,
        *(f"CREATE TABLE orders_{n} (id INT PRIMARY KEY, a INT)" for n in (1, 2)),
        "INSERT INTO orders_1 VALUES (1, 1)",
    )
    run(
        shop,
        *(f"ALTER TABLE orders_{n} ADD COLUMN b INT DEFAULT {n}" for n in (1, 2)),
        "INSERT INTO orders_2 VALUES (2, 2, 9)",
    )
    shop.run_until_head()
    assert shop.target.execute(f"SELECT * FROM {shop.schema}.orders ORDER BY id") == [(1, 1, 1), (2, 2, 9)]
    run(shop, "DROP TABLE orders_1")
    with pytest.raises(LoadError, match="several tables"):
        shop.run_until_head()
    assert len(shop.target.execute(f"SELECT * FROM {shop.schema}.orders")) == 2


def test_a_refused_statement_stops_with_it(shop: Case) -> None:
    run(shop, "CREATE TABLE t (id INT PRIMARY KEY, a INT)", "INSERT INTO t VALUES (1, 1)")
    shop.run_until_head()
    shop.target.execute(f"INSERT INTO {shop.schema}.t VALUES (7, 1)")  # somebody wrote to the target
    run(shop, "ALTER TABLE t ADD UNIQUE KEY one (a)", "INSERT INTO t VALUES (2, 2)")
    for _ in range(2):
        with pytest.raises(LoadError, match="ADD UNIQUE KEY one") as caught:
            shop.run_until_head()
        assert "Duplicate entry" in caught.value.message
    shop.target.execute(f"DELETE FROM {shop.schema}.t WHERE id = 7")
    shop.run_until_head()
    assert_same(shop, "t")


@pytest.mark.parametrize("consistency", ["row", "batch"])
def test_a_crash_at_any_statement_and_a_repeat(shop: Case, monkeypatch: pytest.MonkeyPatch, consistency: str) -> None:
    """The connection is lost before or behind each statement in turn (each third of them, or SLUICE_CUTS), until a run
    gets through.
    """
    configured(shop, target=f"    consistency: {consistency}\n")
    run(shop, "CREATE TABLE t (id INT PRIMARY KEY, a INT)", "CREATE TABLE heap (a INT)", "INSERT INTO t VALUES (1, 1)")
    shop.run_until_head()
    run(
        shop,
        "INSERT INTO t VALUES (2, 2)",
        "INSERT INTO heap VALUES (1), (1)",
        "ALTER TABLE t ADD COLUMN b INT NOT NULL DEFAULT 4, RENAME COLUMN a TO c",
        "INSERT INTO t VALUES (3, 3, 3)",
        "ALTER TABLE t DROP COLUMN c",
        "RENAME TABLE t TO t2, heap TO h2",
        "INSERT INTO h2 VALUES (2)",
        "TRUNCATE TABLE t2",
        "INSERT INTO t2 VALUES (9, 9)",
    )
    budget = Budget()
    monkeypatch.setattr(mysql_target_module, "connect", budget.wrap(mysql_target_module.connect))
    for number in range(0, 400, int(os.environ.get("SLUICE_CUTS", "3"))):
        budget.left, budget.after = number // 2, number % 2 == 1
        try:
            shop.run_until_head()
            if budget.left >= 0:
                break
        except TargetUnavailable:
            continue
    else:
        raise AssertionError("no run got through")
    budget.left = 10**9
    shop.run_until_head()
    assert_same(shop, "t2", "h2")
    assert number > 10


@pytest.mark.parametrize("server", ["mysql_source", "mariadb"])
def test_a_new_column_is_filled_as_at_the_source(
    tmp_path: Path, request: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any, server: str
) -> None:
    """Time with microseconds, time zone, steps of numbers and the language of dates are those of the statement."""
    source = request.getfixturevalue(server)
    schema = fresh_schema(source, mysql_target, options="CHARACTER SET utf8mb4")
    with case(tmp_path, source, mysql_target, zookeeper, schema) as made:
        made.run_until_head()
        run(
            made,
            "CREATE TABLE t (id INT PRIMARY KEY) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
            "INSERT INTO t VALUES (1), (2), (3)",
            "SET time_zone = '+05:30', auto_increment_increment = 10, auto_increment_offset = 3, lc_time_names = "
            "'de_DE'",
            "ALTER TABLE t ADD a TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)",
            "ALTER TABLE t ADD b DATETIME(3) DEFAULT CURRENT_TIMESTAMP(3), ADD n INT NOT NULL AUTO_INCREMENT UNIQUE",
            "ALTER TABLE t ADD c VARCHAR(40) DEFAULT (CONCAT(NOW(6), ' ', DATE_FORMAT('2024-03-01', '%M')))",
            "ALTER TABLE t ADD d TIMESTAMP DEFAULT '2024-03-01 00:00:00'",
            "SET NAMES latin1",
        )
        with source.connect(schema) as connection, connection.cursor() as cursor:
            cursor.execute("SET NAMES latin1")
            connection.encoding = "latin1"
            cursor.execute("ALTER TABLE t ADD e VARCHAR(9) DEFAULT 'é'")
        made.run_until_head()
        rows = [
            s.execute("SET time_zone = '+00:00'", f"SELECT * FROM {schema}.t ORDER BY id")
            for s in (source, mysql_target)
        ]
        assert rows[0] == rows[1]


def test_what_no_second_server_can_compute_is_not_guessed(
    tmp_path: Path, mariadb: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    schema = fresh_schema(mariadb, mysql_target, options="CHARACTER SET utf8mb4")
    with case(tmp_path, mariadb, mysql_target, zookeeper, schema) as made:
        made.run_until_head()
        run(made, "CREATE TABLE t (id INT PRIMARY KEY)", "CREATE TABLE bare (id INT)")
        run(made, "INSERT INTO t VALUES (1), (2)", "ALTER TABLE t ADD u VARCHAR(40) DEFAULT (UUID())")
        with pytest.raises(LoadError, match="other values in the new column u"):
            made.run_until_head()
        assert [row[0] for row in mysql_target.execute(f"SHOW COLUMNS FROM {schema}.t")] == ["id"]
        mysql_target.execute(f"ALTER TABLE {schema}.t ADD u VARCHAR(40)")  # as the hint says
        made.run_until_head()
        run(made, "INSERT INTO t (id) VALUES (3)", "INSERT INTO bare VALUES (1), (2)")
        run(made, "ALTER TABLE bare ADD n INT AUTO_INCREMENT UNIQUE")
        with pytest.raises(LoadError, match="no order that two servers share"):
            made.run_until_head()
        query = f"SELECT u FROM {schema}.t WHERE id = 3"
        assert mariadb.execute(query) == mysql_target.execute(query)


def test_a_definition_with_bytes_that_are_no_text_can_be_compared(mariadb: Any, fresh_schema: Any) -> None:
    """MariaDB prints the bytes of a binary default as they are."""
    schema = fresh_schema(mariadb)
    table = TableId(schema, "t")
    mariadb.execute(f"CREATE TABLE `{schema}`.t (id INT PRIMARY KEY, b VARBINARY(4) DEFAULT 0xFF00FE)")
    with closing(connect(parse_connection("c", mariadb.connection_json()))) as there, there.cursor() as cursor:
        before = definitions_of(cursor, [table])
        cursor.execute(f"ALTER TABLE `{schema}`.t ALTER b SET DEFAULT 0xFF00FD")
        assert definitions_of(cursor, [table]) != before
