"""Tools that change a table by building another one beside it, under write load: the target's columns and rows end
right, the tables in between are not captured."""

from __future__ import annotations

import shutil
import subprocess
import threading

import pytest

from sluice.operations.stored import segments
from tests.support.pipelines.case import case
from tests.support.servers.fixtures import setting

TABLE = "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, v VARCHAR(20) NOT NULL, n INT UNSIGNED)"
CHANGE = "ADD COLUMN extra BIGINT UNSIGNED DEFAULT 18446744073709551615 AFTER id, MODIFY v VARCHAR(40) NOT NULL"
"""A change that also drops a column stops at the cut-over: the dropped one may be the added one, renamed."""


@pytest.fixture(params=["FULL", "MINIMAL"])
def made(request, tmp_path, mysql_source, mysql_target, zookeeper, fresh_schema):
    with setting(mysql_source, binlog_row_metadata=request.param):
        schema = fresh_schema(mysql_source, mysql_target, options="CHARACTER SET utf8mb4")
        for server in (mysql_source, mysql_target):
            server.execute(TABLE, database=schema)
        with case(tmp_path, mysql_source, mysql_target, zookeeper, schema) as built:
            built.run_until_head()
            built.source.execute(
                "INSERT INTO t (v, n) WITH RECURSIVE s (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < 900) "
                "SELECT CONCAT('v', i), i FROM s",
                database=schema,
            )
            built.run_until_head()
            yield built


def writing(made, stop: threading.Event) -> None:
    """Writes that fit before and after the change."""
    number = 0
    with made.source.connect(made.schema) as connection, connection.cursor() as cursor:
        while not stop.is_set():
            number += 1
            cursor.execute("INSERT INTO t (v) VALUES (%s)", (f"w{number}",))
            cursor.execute("UPDATE t SET v = CONCAT('u', %s) WHERE id = %s", (number, number % 900 + 1))
            cursor.execute("DELETE FROM t WHERE id = %s", (number * 7 % 900 + 1,))


def settle(made) -> None:
    """Deliver all; the target gets the change with it."""
    made.run_until_head()
    columns = (
        "SELECT COLUMN_NAME, COLUMN_TYPE FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE() AND "
        "TABLE_NAME = 't' ORDER BY ORDINAL_POSITION"
    )
    assert made.source.execute(columns, database=made.schema) == made.target.execute(columns, database=made.schema)
    made.assert_equal("t")
    stored = {
        row["table"] for batch in segments(made.runtime()) for row in segments(made.runtime(), batch=batch["batch"])
    }
    assert stored == {f"{made.schema}.t"}


@pytest.mark.skipif(shutil.which("pt-online-schema-change") is None, reason="percona-toolkit is not installed")
def test_pt_online_schema_change(made) -> None:
    stop = threading.Event()
    writer = threading.Thread(target=writing, args=(made, stop))
    writer.start()
    try:
        tool = subprocess.run(
            ["pt-online-schema-change", "--alter", CHANGE, "--execute", "--charset=utf8mb4", "--chunk-size=100",
                "--no-check-replication-filters",
             "--recursion-method=none", f"h=127.0.0.1,P={made.source.port},u=root,D={made.schema},t=t"],
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
    finally:
        stop.set()
        writer.join()
    assert tool.returncode == 0, tool.stdout + tool.stderr
    settle(made)


def test_the_statements_of_ghost(made) -> None:
    """What gh-ost runs, in its order: ghost table, rows copied in pieces, the log applied to it, and the cut-over of
    two renames in one.
    """
    stop = threading.Event()
    writer = threading.Thread(target=writing, args=(made, stop))
    writer.start()
    db = made.schema
    try:
        made.source.execute(
            "CREATE /* gh-ost */ TABLE `_t_ghc` (id BIGINT UNSIGNED AUTO_INCREMENT, last_update TIMESTAMP NOT NULL "
            "DEFAULT CURRENT_TIMESTAMP "
            "ON UPDATE CURRENT_TIMESTAMP, hint VARCHAR(64) CHARSET ascii NOT NULL, value VARCHAR(4096) CHARSET ascii "
            "NOT NULL, PRIMARY KEY (id), UNIQUE KEY hint_uidx (hint)) AUTO_INCREMENT=256 COMMENT='gh-ost changelog'",
            f"CREATE /* gh-ost */ TABLE `{db}`.`_t_gho` LIKE `{db}`.`t`",
            f"ALTER /* gh-ost */ TABLE `{db}`.`_t_gho` {CHANGE}",
            "INSERT /* gh-ost */ INTO `_t_ghc` (hint, value) VALUES ('state', 'GhostTableMigrated')",
            database=db,
        )
        for low in range(0, 900, 300):
            made.source.execute(
                "INSERT /* gh-ost */ IGNORE INTO `_t_gho` (id, v, n) (SELECT id, v, n FROM t FORCE INDEX (PRIMARY) WHERE "
                f"id > {low} AND id <= {low + 300} LOCK IN SHARE MODE)",
                database=db,
            )
            made.run_until_head()
    finally:
        stop.set()
        writer.join()
    made.source.execute(  # the last of the log is applied to the ghost, then the sentry makes way for the renames
        "REPLACE INTO `_t_gho` (id, v, n) SELECT id, v, n FROM t",
        "DELETE FROM `_t_gho` WHERE id NOT IN (SELECT id FROM t)",
        "CREATE /* gh-ost */ TABLE `_t_del` (id INT AUTO_INCREMENT PRIMARY KEY) ENGINE=InnoDB "
        "COMMENT='ghost-cut-over-sentry'",
        "DROP /* gh-ost */ TABLE IF EXISTS `_t_del`",
        f"RENAME /* gh-ost */ TABLE `{db}`.`t` TO `{db}`.`_t_del`, `{db}`.`_t_gho` TO `{db}`.`t`",
        "DROP /* gh-ost */ TABLE IF EXISTS `_t_ghc`",
        database=db,
    )
    after = threading.Event()
    threading.Timer(0.5, after.set).start()
    writing(made, after)
    settle(made)
