"""Columns that the target computes by itself, in keys and in updates of single columns."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.pipelines.case import case


@pytest.mark.parametrize("kind", ["mysql_source", "mariadb"])
@pytest.mark.parametrize("image", ["FULL", "MINIMAL"])
def test_rows_are_told_apart_by_a_generated_column(
    kind: str, image: str, request: Any, tmp_path: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    source = request.getfixturevalue(kind)
    schema = fresh_schema(source, mysql_target)
    key = "PRIMARY KEY" if kind == "mysql_source" else "UNIQUE"  # MariaDB has no generated column in a primary key
    create = (
        f"CREATE TABLE {schema}.t (a INT NOT NULL, v INT, w INT, g INT AS (a % 7) STORED "
        f"{'NOT NULL' if kind == 'mysql_source' else ''}, {key} (a, g))"
    )
    source.execute(create)
    with case(tmp_path, source, mysql_target, zookeeper, schema) as made:
        made.make_missing()
        made.run_until_head()
        rows = ", ".join(f"({n}, 0, 0)" for n in range(20))
        source.execute(f"INSERT INTO {schema}.t (a, v, w) VALUES {rows}")
        made.run_until_head()
        source.execute(
            f"USE {schema}",
            f"SET SESSION binlog_row_image = '{image}'",
            "UPDATE t SET v = 1 WHERE a < 5",
            "UPDATE t SET a = a + 100 WHERE a IN (6, 7)",
            "DELETE FROM t WHERE a BETWEEN 10 AND 14",
        )
        made.run_until_head()
        columns = "*" if kind == "mysql_source" else "a, v, w"  # what Sluice creates for MariaDB's rows lacks g
        rows_of = [server.execute(f"SELECT {columns} FROM {schema}.t ORDER BY a") for server in (source, mysql_target)]
        assert rows_of[0] == rows_of[1]


@pytest.mark.parametrize("image", ["FULL", "MINIMAL"])
def test_the_targets_clock_does_not_write_into_columns_that_did_not_change(
    image: str, tmp_path: Any, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    """Only the target has ON UPDATE, or the source's statement kept the value; a column that the source has no part in
    is the target's own.
    """
    schema = fresh_schema(mysql_source, mysql_target)
    mysql_source.execute(
        f"CREATE TABLE {schema}.t (id INT PRIMARY KEY, v INT, here DATETIME, both_ TIMESTAMP NULL ON UPDATE "
        "CURRENT_TIMESTAMP)"
    )
    line = f"mapping: [{{from: {schema}.t, to: {schema}.t, send: changed_columns}}]"
    with case(tmp_path, mysql_source, mysql_target, zookeeper, schema, extra=line) as made:
        made.make_missing()
        made.run_until_head()
        mysql_target.execute(
            f"ALTER TABLE {schema}.t MODIFY here DATETIME ON UPDATE CURRENT_TIMESTAMP, ADD mine DATETIME ON UPDATE "
            "CURRENT_TIMESTAMP"
        )
        mysql_source.execute(
            f"INSERT INTO {schema}.t VALUES (1, 1, '2001-01-01', '2001-01-01'), (2, 2, NULL, NULL), (3, 3, "
            "'2002-02-02', NULL)"
        )
        made.run_until_head()
        mysql_source.execute(
            f"USE {schema}",
            f"SET SESSION binlog_row_image = '{image}'",
            "UPDATE t SET v = v + 1, both_ = both_ WHERE id < 3",
        )
        made.run_until_head()
        columns = "id, v, here, both_"
        found = mysql_target.execute(f"SELECT {columns} FROM {schema}.t ORDER BY id")
        assert found == mysql_source.execute(f"SELECT {columns} FROM {schema}.t ORDER BY id")
        touched = mysql_target.execute(f"SELECT id FROM {schema}.t WHERE mine IS NOT NULL ORDER BY id")
        assert [row[0] for row in touched] == [1, 2]


def test_the_targets_clock_does_not_write_where_rows_are_mended(
    tmp_path: Any, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    """A dead letter that is replayed, and a row that moves to another key."""
    schema = fresh_schema(mysql_source, mysql_target)
    mysql_source.execute(f"CREATE TABLE {schema}.t (id INT PRIMARY KEY, v INT, here DATETIME)")
    line = f"mapping: [{{from: {schema}.t, to: {schema}.t, send: changed_columns}}]"
    options = "    on_error: dead_letter"
    with case(tmp_path, mysql_source, mysql_target, zookeeper, schema, extra=line, target_extra=options) as made:
        made.make_missing()
        made.run_until_head()
        mysql_target.execute(
            f"ALTER TABLE {schema}.t MODIFY here DATETIME ON UPDATE CURRENT_TIMESTAMP, ADD CONSTRAINT low CHECK (v < "
            "100)"
        )
        mysql_source.execute(f"INSERT INTO {schema}.t VALUES (1, 1, '2001-01-01'), (2, 2, NULL), (3, 3, '2003-03-03')")
        made.run_until_head()
        mysql_source.execute(
            f"UPDATE {schema}.t SET v = 200 WHERE id = 1", f"UPDATE {schema}.t SET id = 20, v = 5 WHERE id = 2"
        )
        made.run_until_head()
        assert mysql_target.execute(f"SELECT v FROM {schema}.t WHERE id = 1") == [(1,)]
        mysql_target.execute(
            f"ALTER TABLE {schema}.t DROP CHECK low", f"UPDATE {schema}.t SET v = 9, here = here WHERE id = 3"
        )
        replayed = made.cli("dead-letters", "replay", "case", "--yes")
        assert replayed.returncode == 0, replayed.stdout + replayed.stderr
        mysql_target.execute(f"UPDATE {schema}.t SET v = 3, here = here WHERE id = 3")
        made.assert_equal("t")
