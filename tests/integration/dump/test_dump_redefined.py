"""A table that is altered between the look at its definition and the select of its rows: the chunk is read again."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.errors import SourceUnavailable
from sluice.model.dumps import Chunk, ChunkId, Marking, TableRequest
from sluice.model.tables import TableId
from tests.support.pipelines.case import assert_same_rows, case
from tests.support.pipelines.pg_source import pg_case

TABLE = "CREATE TABLE t (id INT PRIMARY KEY, v INT, u INT {unsigned}, s VARCHAR(20), d DATE, f FLOAT, n DECIMAL(5, 2))"
ROWS = "INSERT INTO t VALUES (1, 2, 3, 'ä', '2020-01-02', 1.5, 1.25), (2, NULL, 4, 'x', NULL, NULL, NULL)"
ALTERS = {
    "wider": "MODIFY v BIGINT",
    "two that change places": "MODIFY v BIGINT, MODIFY u SMALLINT UNSIGNED",
    "signed": "MODIFY u INT",
    "text": "MODIFY v VARCHAR(20)",
    "number": "MODIFY d BIGINT",
    "day and time": "MODIFY d DATETIME",
    "real": "MODIFY f DOUBLE",
    "year": "MODIFY v SMALLINT, MODIFY f INT",
    "renamed": "RENAME COLUMN v TO w",
    "dropped": "DROP COLUMN s",
}


def read(made: Any, marking: Marking, alter: str) -> list[Any]:
    """The rows that one attempt reads, if the table is altered after its definition was read."""
    asked = TableRequest(TableId(made.schema, "t"))
    with made.runtime().source.open_chunks(marking, "w") as chunks:
        chunks.schema(asked.table)
        made.source.execute(f"ALTER TABLE {made.schema}.t {alter}")
        return list(chunks.rows(asked, Chunk(ChunkId("d", 0, 1))))


@pytest.mark.parametrize("name", ALTERS)
@pytest.mark.parametrize("kind", ["mysql_source", "mariadb"])
def test_rows_are_not_read_by_an_old_definition(
    kind: str, name: str, request: Any, tmp_path: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    source = request.getfixturevalue(kind)
    schema = fresh_schema(source, mysql_target, options="CHARACTER SET utf8mb4")
    source.execute("SET sql_mode = ''", TABLE.format(unsigned="UNSIGNED"), ROWS, database=schema)
    with (
        case(tmp_path, source, mysql_target, zookeeper, schema) as made,
        pytest.raises(SourceUnavailable, match=r"definition of .*\.t changed"),
    ):
        read(made, Marking.TABLE, ALTERS[name])


@pytest.mark.parametrize("alter", ["ALTER COLUMN v TYPE text USING 'a'", "RENAME COLUMN v TO w", "DROP COLUMN s"])
def test_rows_of_postgresql_are_not_read_by_an_old_definition(
    alter: str, tmp_path: Any, postgresql_source: Any, zookeeper: Any, fresh_pg_schema: Any
) -> None:
    tables = (TABLE.format(unsigned=""), ROWS)
    schema = f"redefined_{abs(hash(alter)) % 10**8}"
    with (
        pg_case(tmp_path, postgresql_source, zookeeper, schema=schema, tables=tables) as made,
        pytest.raises(SourceUnavailable, match=r"definition of .*\.t changed"),
    ):
        read(made, Marking.SNAPSHOT, alter)


@pytest.mark.parametrize("kind", ["mysql_source", "mariadb"])
def test_a_dump_goes_on_with_the_new_definition(
    kind: str, request: Any, tmp_path: Any, monkeypatch: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    from sluice.sources.mysql.snapshot.chunk_reader import MySQLChunkReader

    source = request.getfixturevalue(kind)
    schema = fresh_schema(source, mysql_target, options="CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
    for server in (source, mysql_target):
        server.execute(TABLE.format(unsigned="UNSIGNED"), database=schema)
    source.execute(ROWS, database=schema)
    plain, altered = MySQLChunkReader.schema, []

    def then_altered(self: MySQLChunkReader, table: TableId) -> Any:
        found = plain(self, table)
        if not altered:
            altered.append(table)
            source.execute("ALTER TABLE t MODIFY v BIGINT", "UPDATE t SET v = 5000000000 WHERE id = 2", database=schema)
        return found

    monkeypatch.setattr(MySQLChunkReader, "schema", then_altered)
    with case(tmp_path, source, mysql_target, zookeeper, schema, start="dump") as made:
        made.run_until_head()
        assert altered
        assert_same_rows(made)
