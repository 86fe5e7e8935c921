"""What the history cannot follow: read again where that is proven right, else a stop that says what to do; and what
people do about it.
"""

from __future__ import annotations

import pytest

from sluice.errors import DecodeError, SchemaUnknown
from sluice.mysql.ddl.catalog import SchemaState
from sluice.operations.schema import reload_tables, set_table, show
from tests.support.pipelines.case import assert_same_rows, case
from tests.support.servers.fixtures import setting

CREATE = "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))"


@pytest.fixture
def made(tmp_path, mysql_source, mysql_target, zookeeper, fresh_schema):
    with setting(mysql_source, binlog_row_metadata="MINIMAL"):
        schema = fresh_schema(mysql_source, mysql_target)
        for server in (mysql_source, mysql_target):
            server.execute(CREATE, database=schema)
        with case(tmp_path, mysql_source, mysql_target, zookeeper, schema, target_extra="    ddl: ignore") as built:
            built.run_until_head()
            yield built


@pytest.fixture
def deaf(monkeypatch):
    """A history that does not understand ALTER TABLE, as if a newer server had a new syntax."""
    understood = SchemaState.fold

    def fold(self, sql, *rest, **more):
        if sql.startswith("ALTER TABLE"):
            raise DecodeError("a clause of ALTER TABLE is not understood")
        return understood(self, sql, *rest, **more)

    monkeypatch.setattr(SchemaState, "fold", fold)


def test_a_statement_that_is_not_understood_is_made_up_for(made, deaf) -> None:
    for server in (made.source, made.target):
        server.execute("ALTER TABLE t ADD COLUMN n INT FIRST, DROP COLUMN v", database=made.schema)
    made.source.execute("INSERT INTO t VALUES (5, 1)", database=made.schema)
    made.run_until_head()
    assert_same_rows(made)


def test_a_later_statement_makes_it_impossible_and_a_person_tells(made, deaf, tmp_path) -> None:
    table = f"{made.schema}.t"
    made.source.execute(
        "ALTER TABLE t ADD COLUMN n INT",
        "INSERT INTO t VALUES (1, 'a', 10)",
        "ALTER TABLE t DROP COLUMN v",
        "INSERT INTO t VALUES (2, 20)",
        database=made.schema,
    )
    with pytest.raises(SchemaUnknown) as caught:
        made.run_until_head()
    assert "DROP COLUMN v" in str(caught.value)
    assert "sluice schema set" in str(caught.value)
    assert show(made.runtime(), table)["unknown"]["sql"].startswith("ALTER TABLE t ADD")
    with pytest.raises(SchemaUnknown):
        reload_tables(made.runtime(), [table], by="test", dry_run=False)
    file = tmp_path / "create.sql"
    file.write_text(
        "CREATE TABLE t (id INT NOT NULL, v VARCHAR(20) DEFAULT NULL, n INT, PRIMARY KEY (id)) ENGINE=InnoDB"
    )
    done = made.cli("schema", "set", "case", table, "--file", str(file), "--yes")
    assert done.returncode == 0, done.stderr
    made.target.execute("ALTER TABLE t ADD COLUMN n INT", database=made.schema)
    made.run_until_head()
    assert list(made.target.execute("SELECT id, v, n FROM t ORDER BY id", database=made.schema)) == [
        (1, "a", 10),
        (2, None, 20),
    ]
    assert "schema set" in made.cli("audit", "case").stdout
    assert table in made.cli("schema", "show", "case").stdout
    assert "varchar" not in made.cli("schema", "show", "case", table).stdout  # as of now, without v
    assert '"position"' in made.cli("schema", "show", "case", "--json").stdout


def test_a_definition_that_contradicts_the_log_stops(made) -> None:
    table = f"{made.schema}.t"
    set_table(made.runtime(), table, "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(21))", by="test", dry_run=False)
    made.source.execute("INSERT INTO t VALUES (1, 'x')", database=made.schema)
    with pytest.raises(DecodeError, match="varchar\\(21\\) in the schema history"):
        made.run_until_head()
    reload_tables(made.runtime(), [], by="test", dry_run=False)
    made.run_until_head()
    assert_same_rows(made)


def test_seek_finds_the_definitions_of_its_position(made) -> None:
    with made.source.connect(made.schema) as latin, latin.cursor() as cursor:  # the log has bytes that are no UTF-8
        cursor.execute("SET NAMES latin1")
        cursor.execute(b"CREATE VIEW w AS SELECT '\xfc' AS u")
        cursor.execute("DROP VIEW w")
    before = made.source.execute("SHOW BINARY LOG STATUS")[0]
    made.source.execute("INSERT INTO t VALUES (1, 'a')", database=made.schema)
    made.run_until_head()
    for server in (made.source, made.target):
        server.execute("ALTER TABLE t CHANGE v w VARCHAR(20)", "ALTER TABLE t ADD COLUMN x INT", database=made.schema)
    made.source.execute("INSERT INTO t VALUES (2, 'b', 3)", database=made.schema)
    made.run_until_head()
    assert [c["name"] for c in show(made.runtime(), f"{made.schema}.t")["table"]["columns"]] == ["id", "w", "x"]
    done = made.cli("seek", "case", f"{before[0]}:{before[1]}", "--yes")
    assert done.returncode == 0, done.stderr
    with pytest.raises(Exception, match="no column 'v'"):  # the rows of then have their columns of then
        made.run_until_head()
    made.target.execute("ALTER TABLE t ADD COLUMN v VARCHAR(20)", database=made.schema)
    made.run_until_head()
    made.target.execute("ALTER TABLE t DROP COLUMN v", database=made.schema)
    assert_same_rows(made)
