"""Logs that carry no names: the schema history says what each row's columns were called where it was written, on real servers."""

from __future__ import annotations

import pytest

from tests.support.pipelines import assert_same_rows, case
from tests.support.servers import setting

TABLE = """CREATE TABLE t (
    id INT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, e ENUM('a','ü') CHARACTER SET latin1, s SET('x','y'), v VARCHAR(20) DEFAULT 'q',
    b TINYINT UNSIGNED, u BIGINT UNSIGNED, ts TIMESTAMP(3) NULL, d DECIMAL(10,3) UNSIGNED, bl BLOB,
    c CHAR(5) CHARACTER SET utf8mb4) CHARACTER SET latin2"""
STEPS = (
    (None, "INSERT INTO t (e, s, v, b, u, ts, d, bl, c) VALUES "
           "('ü', 'x,y', 'hé', 200, 18446744073709551615, NOW(3), 1.5, 'abc', '😀'), "
           "('a', '', 'z', 0, 1, NULL, 2, NULL, NULL)"),
    ("ALTER TABLE t ADD COLUMN n INT UNSIGNED FIRST, CHANGE v w VARCHAR(20), MODIFY e ENUM('b','a','ü') CHARACTER SET latin1 AFTER bl, DROP COLUMN b",
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


def test_rows_are_read_with_the_definition_of_their_time(bare) -> None:
    for definition, change in STEPS:
        if definition:
            bare.source.execute(definition, database=bare.schema)
            bare.run_until_head()
        bare.source.execute(change, database=bare.schema)
        bare.run_until_head()
        assert_same_rows(bare)
