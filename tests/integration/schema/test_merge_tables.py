"""Tables whose rows are stored under another name or elsewhere: MERGE tables are refused before a row is read, remote
ones are warned of.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from devstack.mysql import MySQLServer
from sluice.config.connections import parse_connection
from sluice.config.pipeline import PipelineConfig
from sluice.errors import ConfigError, PreflightError, UnsupportedType
from sluice.flows.dump.start import start
from sluice.sources.mysql.server.connection import open_connection, server_info
from sluice.sources.mysql.server.preflight import preflight
from tests.support.pipelines.case import Case, case
from tests.support.servers.fixtures import setting

COLUMNS = "(id INT NOT NULL, v INT, PRIMARY KEY (id))"
MEMBERS = (f"CREATE TABLE a {COLUMNS} ENGINE=MyISAM", f"CREATE TABLE `b ``x` {COLUMNS} ENGINE=MyISAM")
MERGE = f"CREATE TABLE m {COLUMNS} ENGINE=MERGE UNION=(a, `b ``x`) INSERT_METHOD=LAST"


@pytest.fixture(params=["mysql_source", "mariadb"])
def source(request):
    return request.getfixturevalue(request.param)


def findings(source: Any, schema: str, *exclude: str, setting: str = "MERGE table") -> list[tuple[str, str, str, str]]:
    """(severity, table, why, fix) of what the pre-flight says of MERGE tables, or of another setting."""
    pipeline = PipelineConfig.model_validate({
        "pipeline": "p", "source": {"connection": "c"}, "targets": [{"name": "t", "type": "mysql", "connection": "c"}],
        "capture": {"include": [rf"{schema}\..*"], "exclude": list(exclude)},
    })  # fmt: skip
    with open_connection(parse_connection("c", source.connection_json())) as connection:
        found = preflight(connection, server_info(connection), pipeline, None)
    return [(f.severity, f.value, f.why, f.fix or "") for f in found if f.setting == setting]


def test_a_change_is_logged_under_the_name_that_was_used(source, fresh_schema) -> None:
    """What the refusal stands on."""
    schema = fresh_schema(source)
    source.execute(*MEMBERS, MERGE, database=schema)
    status = source.execute("SHOW MASTER STATUS" if "Maria" in type(source).__name__ else "SHOW BINARY LOG STATUS")
    file, offset = status[0][:2]
    source.execute(
        "INSERT INTO a VALUES (1, 1)",
        "INSERT INTO m VALUES (1, 2)",  # a primary key twice
        "UPDATE m SET v = 5 WHERE id = 1",
        "DELETE FROM `b ``x`",
        database=schema,
    )
    events = source.execute(f"SHOW BINLOG EVENTS IN '{file}' FROM {offset}")
    numbers: dict[str, str] = {}  # of a table in the log; a statement's members are announced with it, and have no rows
    named = []
    for event in events:
        found = re.search(r"table_id: (\d+)(?: \(\w+\.(.*)\))?", event[5])
        if found and event[2] == "Table_map":
            numbers[found[1]] = found[2]
        elif found and "rows" in event[2].lower():
            named.append(numbers[found[1]])
    assert named == ["a", "m", "m", "b `x"]


def test_they_are_refused_with_their_members(source, fresh_schema) -> None:
    schema = fresh_schema(source)
    source.execute(*MEMBERS, MERGE, database=schema)
    ((severity, table, why, fix),) = findings(source, schema)
    assert (severity, table) == ("error", f"{schema}.m")
    assert f"over {schema}.a, {schema}.b `x" in why
    assert f"capture.exclude: ['{schema}\\.m']" in fix
    ((severity, _, why, fix),) = findings(source, schema, rf"{schema}\.m")
    assert severity == "error"
    assert f"rows of {schema}.a, {schema}.b `x" in why
    source.execute(re.findall(r"ALTER TABLE.*INSERT_METHOD=NO", fix)[0])
    ((severity, _, why, _),) = findings(source, schema, rf"{schema}\.m")
    assert severity == "warning"
    assert "UPDATE and DELETE" in why
    assert findings(source, schema, rf"{schema}\.m", rf"{schema}\.[ab].*") == []
    source.execute("DROP TABLE m", database=schema)
    assert findings(source, schema) == []


def test_one_whose_members_are_not_alike(source, fresh_schema) -> None:
    schema = fresh_schema(source)
    source.execute(*MEMBERS, MERGE, "ALTER TABLE a ADD COLUMN w INT", database=schema)
    ((severity, table, _, _),) = findings(source, schema)
    assert (severity, table) == ("error", f"{schema}.m")


@pytest.fixture(params=["FULL", "bare"])
def made(request, tmp_path, source, mysql_target, zookeeper, fresh_schema):
    bare = "NO_LOG" if "Maria" in type(source).__name__ else "MINIMAL"
    with setting(source, binlog_row_metadata="FULL" if request.param == "FULL" else bare):
        schema = fresh_schema(source, mysql_target)
        for server in (source, mysql_target):
            server.execute(*MEMBERS, database=schema)
        with case(tmp_path, source, mysql_target, zookeeper, schema) as built:
            built.run_until_head()
            yield built


def test_a_drain_and_a_check_stop_before_a_row_is_read(made: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    made.source.execute(MERGE, "INSERT INTO m VALUES (1, 1)", database=made.schema)
    with pytest.raises(PreflightError, match="MERGE table over"):
        made.run_until_head()
    done = made.cli("check", str(made.path))
    assert done.returncode == 1
    assert "a MERGE table over" in re.sub(r"\s+", " ", done.stdout)
    with pytest.raises(ConfigError, match="copied twice"):
        start(made.runtime(), tables=[f"{made.schema}.m"])
    monkeypatch.setattr("sluice.sources.mysql.server.preflight.merge_findings", lambda *_: [])
    with pytest.raises(UnsupportedType, match=r"\.m is a MERGE table"):
        made.run_until_head()
    assert list(made.target.execute("SELECT * FROM `b ``x`", database=made.schema)) == []


def test_a_table_whose_rows_another_server_stores_is_warned_of(
    tmp_path: Any, mysql_target: Any, fresh_schema: Any
) -> None:
    """Its changes at the other server are not in this server's log."""
    schema = fresh_schema(mysql_target)
    mysql_target.execute(f"CREATE TABLE {schema}.far (id INT PRIMARY KEY)")
    at = f"mysql://root@{mysql_target.host}:{mysql_target.port}/{schema}/far"
    with MySQLServer(tmp_path / "s", server_id=8, options={"federated": "ON"}) as server:
        server.execute(
            f"CREATE DATABASE {schema}",
            f"CREATE TABLE {schema}.far (id INT PRIMARY KEY) ENGINE=FEDERATED CONNECTION='{at}'",
            f"CREATE TABLE {schema}.near (id INT PRIMARY KEY)",
        )
        [said] = findings(server, schema, setting="engine")
    assert said[:2] == ("warning", f"FEDERATED ({schema}.far)")
    assert "are not in its log" in said[2]
