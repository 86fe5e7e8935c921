"""sluice check: what goes where, what is lost on the way, what is missing and the DDL that makes it; on real
servers.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.flows.checks import HEAP, PEOPLE, lines, people_and_heap, report
from tests.support.pipelines.case import Case


@pytest.fixture
def shop(tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any) -> Any:
    with people_and_heap(tmp_path, mysql_source, mysql_target, zookeeper, fresh_schema) as made:
        yield made


def test_missing_tables_are_made_as_the_source_has_them(shop: Case) -> None:
    said = report(shop, code=1)
    assert {value for value, _, _ in lines(said, "error")} == {
        f"{shop.schema}.{t} -> {shop.schema}.{t}" for t in ("people", "heap")
    }
    assert len(said["statements"]) == 2
    assert shop.target.execute(f"SHOW TABLES FROM {shop.schema}") == []
    shop.cli("check", str(shop.path), "--apply")  # nobody says yes
    assert shop.target.execute(f"SHOW TABLES FROM {shop.schema}") == []
    said = report(shop, "--apply", "--yes")
    assert lines(said, "error") == []
    for table in ("people", "heap"):
        definitions = [s.execute(f"SHOW CREATE TABLE {shop.schema}.{table}")[0][1] for s in (shop.source, shop.target)]
        assert definitions[0] == definitions[1]
    [heap] = [why for value, why, _ in lines(said, "warning")]
    assert "no primary key" in heap
    people = next(t for t in said["tables"] if t["source_table"].endswith(".people"))
    assert people["identified_by"] == "primary key"
    assert [c["name"] for c in people["columns"] if c["generated"]] == ["twice"]
    shop.run_until_head()
    shop.source.execute(
        f"INSERT INTO {shop.schema}.people (email, born, name) VALUES ('a', '2020-02-02 02:02:02.123456', 'ä')"
    )
    shop.run_until_head()
    shop.assert_equal("people")


def test_what_is_lost_is_named_column_by_column(shop: Case) -> None:
    shop.target.execute(
        f"CREATE TABLE {shop.schema}.people (id INT PRIMARY KEY, email VARCHAR(50) NOT NULL, born DATETIME, balance "
        "DECIMAL(14,2) NOT NULL, name VARCHAR(40) CHARACTER SET latin1 NOT NULL)",
        HEAP.format(db=shop.schema),
        f"CREATE TABLE {shop.schema}.audit (n INT)",
        f"CREATE TRIGGER {shop.schema}.seen AFTER INSERT ON {shop.schema}.people FOR EACH ROW INSERT INTO "
        f"{shop.schema}.audit VALUES (1)",
    )
    said = report(shop, code=1)
    people = next(t for t in said["tables"] if t["source_table"].endswith(".people"))
    why = {r["column"]: r["why"] for r in people["remarks"]}
    assert "outside of -2147483648..2147483647" in why["id"]
    assert "longer than 50 characters" in why["email"]
    assert "rounded to 0 digits" in why["born"]
    assert "rounded to 2 digits" in why["balance"]
    assert "latin1 lacks" in why["name"]
    assert "trigger seen" in why[""]
    kept = [
        match[1] for r in people["remarks"] if (match := re.search(r"to keep the values, (ALTER .+); or ", r["hint"]))
    ]
    assert len(kept) == 2
    shop.target.execute(*(r["statement"] for r in people["remarks"] if r["statement"]), *kept)
    people = next(t for t in report(shop, code=1)["tables"] if t["source_table"].endswith(".people"))
    assert {r["column"] for r in people["remarks"]} == {"id", ""}


def test_a_seek_into_the_middle_of_an_event_or_a_transaction_is_refused(shop: Case) -> None:
    from sluice.errors import ConfigError
    from sluice.operations.control import seek

    shop.source.execute("FLUSH BINARY LOGS")  # each refusal reads the file from its beginning, which others wrote
    file, start = shop.source.execute("SHOW BINARY LOG STATUS")[0][:2]
    shop.source.execute(*(f"INSERT INTO {shop.schema}.heap VALUES ({n}, REPEAT('x', 100))" for n in range(3)))
    listing = f"SHOW BINLOG EVENTS IN '{file}' FROM {start}"  # what others wrote before may be no text
    events = [(int(e[1]), str(e[2])) for e in shop.source.execute(listing)][-15:]
    assert {kind for _, kind in events} > {"Table_map", "Write_rows", "Xid"}
    for offset, kind in events:
        with pytest.raises(ConfigError, match="in the middle of an event"):
            seek(shop.runtime(), f"{file}:{offset + 7}", by="tester", dry_run=True)
        if kind in {"Table_map", "Write_rows", "Xid"}:
            with pytest.raises(ConfigError, match="inside of a transaction"):
                seek(shop.runtime(), f"{file}:{offset}", by="tester", dry_run=True)
        elif kind in {"Gtid", "Anonymous_Gtid"}:
            seek(shop.runtime(), f"{file}:{offset}", by="tester", dry_run=True)
    with pytest.raises(ConfigError, match="did you mean 'copy'"):
        shop.runtime().pipeline.target("coppy")
    for command in (["skip", "nobody", "1"], ["redeliver", "nobody"]):
        done = shop.cli(command[0], str(shop.path), *command[1:], "--yes")
        assert done.returncode == 1
        assert "its targets are: copy" in done.stderr
        assert "Traceback" not in done.stderr
    done = shop.cli("check", str(shop.path), "--apply")
    assert done.returncode != 0
    assert "--yes" in done.stderr


def test_a_table_that_a_login_may_not_see_is_not_called_missing(shop: Case) -> None:
    """At the target it may exist, and CREATE TABLE is no advice; at the source a pattern may fit more than is seen."""
    shop.target.execute(
        PEOPLE.format(db=shop.schema),
        f"CREATE USER blind_{shop.schema}@'%' IDENTIFIED BY 'x'",
        f"CREATE DATABASE acks_{shop.schema}",
        f"GRANT ALL ON acks_{shop.schema}.* TO blind_{shop.schema}@'%'",
    )
    shop.source.execute(
        f"CREATE USER blind_{shop.schema}@'%' IDENTIFIED BY 'x'",
        f"GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO blind_{shop.schema}@'%'",
    )
    try:
        shop.connections["case_target"] = shop.target.connection_json(
            user=f"blind_{shop.schema}", password="x", schema=f"acks_{shop.schema}"
        )
        said = report(shop, code=1)
        assert said["statements"] == []
        for _, why, fix in lines(said, "error"):
            assert "may not see" in why
            assert fix.startswith("GRANT SELECT, INSERT, UPDATE, DELETE ON")
        statement = next(fix for value, _, fix in lines(said, "error") if ".people" in value)
        shop.target.execute(statement.partition("; then")[0])
        said = report(shop, code=1)
        assert not [value for value, _, _ in lines(said, "error") if ".people" in value]

        shop.connections["case_source"] = shop.source.connection_json(user=f"blind_{shop.schema}", password="x")
        said = report(shop)
        [found] = [f for f in said["findings"] if f["setting"] == "capture.include"]
        assert "does not see" in found["why"]
        assert found["fix"].startswith("GRANT SELECT ON")
    finally:
        for server in (shop.source, shop.target):
            server.execute(
                f"DROP USER IF EXISTS blind_{shop.schema}@'%'", f"DROP DATABASE IF EXISTS acks_{shop.schema}"
            )


def test_a_pipeline_within_one_server_is_a_ring_only_through_captured_tables(shop: Case) -> None:
    other = f"{shop.schema}_copy"
    shop.source.execute(f"CREATE DATABASE `{other}`")
    shop.connections["case_target"] = shop.source.connection_json(schema=other)
    mapping = f"mapping: [{{from: {shop.schema}.*, to: {other}.*}}]\n"

    def rings() -> list[str]:
        shop.path.write_text(shop.yaml + mapping, encoding="utf-8")
        done = shop.cli("check", str(shop.path), "--json")
        return [f["value"] for f in json.loads(done.stdout)["findings"] if f["setting"] == "ring"]

    try:
        assert rings() == []
        mapping = ""
        assert rings() == [f"{shop.schema}.{t} -> {shop.schema}.{t}" for t in ("heap", "people")]
    finally:
        shop.source.execute(f"DROP DATABASE `{other}`")


def test_what_the_log_brings_is_not_made_before_it(shop: Case) -> None:
    """A new name of a column or a table stays free for the statement in the log, which keeps the rows; a column that
    only the target lost is made.
    """
    report(shop, "--apply", "--yes")
    shop.run_until_head()
    shop.source.execute(
        f"USE {shop.schema}",
        "INSERT INTO people (email, born, name) VALUES ('a', '2020-02-02', 'x'), ('b', NULL, 'y')",
        "INSERT INTO heap VALUES (1, 'one')",
    )
    shop.run_until_head()
    shop.source.execute(
        f"USE {shop.schema}",
        "ALTER TABLE people RENAME COLUMN name TO called, ADD COLUMN age INT NOT NULL DEFAULT 5",
        "RENAME TABLE heap TO pile",
        "INSERT INTO people (email, called) VALUES ('c', 'z')",
        "INSERT INTO pile VALUES (2, 'two')",
    )
    shop.target.execute(f"ALTER TABLE {shop.schema}.people DROP COLUMN born")
    said = report(shop, "--apply", "--yes")
    assert said["statements"] == []
    told = {value.rpartition(" ")[2]: why for value, why, fix in lines(said, "warning") if "`sluice run" in fix}
    assert set(told) == {"called", "age", f"{shop.schema}.pile"}
    assert all("arrives with the log" in why for why in told.values())
    names = "SELECT column_name FROM information_schema.columns WHERE table_schema = '{0}' AND table_name = 'people'"
    there = {name for (name,) in shop.target.execute(names.format(shop.schema))}
    assert there >= {"name", "born"}
    assert not there & {"called", "age"}
    shop.run_until_head()
    for query in ("SELECT id, email, called, age FROM {0}.people ORDER BY id", "SELECT * FROM {0}.pile ORDER BY a"):
        ours, theirs = (one.execute(query.format(shop.schema)) for one in (shop.source, shop.target))
        assert theirs == ours
        assert len(ours) in {2, 3}
    shop.source.execute(f"ALTER TABLE {shop.schema}.people RENAME COLUMN called TO name, ADD COLUMN more INT")
    shop.target.execute(f"ALTER TABLE {shop.schema}.people DROP COLUMN age")
    shop.path.write_text(shop.path.read_text().replace("type: mysql", "type: mysql\n    ddl: ignore"))
    said = report(shop, "--apply", "--yes")  # the log brings nothing to a target that ignores it
    assert {name for (name,) in shop.target.execute(names.format(shop.schema))} >= {"called", "name", "more", "age"}
