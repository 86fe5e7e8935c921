"""What an error says to do next is done, word for word, until the pipeline goes on: commands by the command line, SQL
by the server that is meant.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from click.testing import CliRunner

from sluice.cli import all_commands
from sluice.errors import MappingError, SluiceError
from sluice.flows.dump.progress import views
from sluice.flows.run import run
from tests.support.flows.hints import at_source, commands, does, orders_to_hint_at, stops
from tests.support.pipelines.case import Case, case
from tests.support.readers.lakes import Lake
from tests.support.running.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def shop(
    tmp_path: Any, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any, monkeypatch: Any
) -> Iterator[Case]:
    with orders_to_hint_at(tmp_path, mysql_source, mysql_target, zookeeper, fresh_schema, monkeypatch) as made:
        yield made


@contextmanager
def going(made: Case) -> Iterator[None]:
    """The pipeline goes on beside, and tries again what fails, as Airflow's tasks do."""
    stop = threading.Event()

    def loop() -> None:
        while not stop.is_set():
            try:
                for _ in run(made.runtime(), until_head=True):
                    pass
            except SluiceError:
                stop.wait(0.2)

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def same(made: Case, table: str = "orders") -> bool:
    """Rows, and the order of the columns."""
    rows = [
        server.execute(f"SELECT * FROM `{made.schema}`.{table} ORDER BY 1, 2") for server in (made.source, made.target)
    ]
    return bool(rows[0] == rows[1])


def test_a_statement_without_rows_in_the_log(shop: Case) -> None:
    at_source(shop, "INSERT INTO orders VALUES (1, 'a', 1)")
    at_source(shop, "SET SESSION binlog_format = 'STATEMENT'", "INSERT INTO orders VALUES (2, 'b', 2)")
    at_source(shop, "DELETE FROM orders WHERE id = 1", "INSERT INTO orders VALUES (3, 'c', 3)")
    error = stops(shop, "without its rows")
    seek, dump = commands(shop, error)
    does(shop, seek)
    with going(shop):
        does(shop, dump)
        wait_until(lambda: same(shop), "equal sides")


def test_the_copies_of_each_target_are_those_that_its_kind_takes(
    tmp_path: Any, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A dump that replaces is refused by Delta, and by a command without a target if one of them is Delta."""
    schema, lake = fresh_schema(mysql_source, mysql_target), Lake(tmp_path / "lake")
    for server in (mysql_source, mysql_target):
        server.execute(f"CREATE TABLE `{schema}`.orders (id INT PRIMARY KEY, note VARCHAR(40), total INT)")
    second = "  - {name: lake, type: delta, connection: lake}"
    with case(tmp_path, mysql_source, mysql_target, zookeeper, schema, target_extra=second) as made:
        made.connections["lake"] = lake.connection_json()
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        made.make_missing()
        made.run_until_head()
        at_source(made, "SET SESSION binlog_format = 'STATEMENT'", "INSERT INTO orders VALUES (2, 'b', 2)")
        seek, *copies = commands(made, stops(made, "without its rows"))
        assert [("lake" in one, one[:2], "--replace" in one) for one in copies] == [
            (False, ["dump", "start"], True), (True, ["dump", "start"], False), (True, ["verify", "run"], False),
        ]  # fmt: skip
        does(made, seek)
        with going(made):
            for command in copies[:2]:
                does(made, command)
            wait_until(lambda: same(made), "equal sides")
            wait_until(lambda: all(one.state == "done" for one in views(made.runtime())), "both copies")
        assert "equal" in does(made, copies[2])


def test_differences_of_json_without_the_value_they_apply_to(shop: Case) -> None:
    for server in (shop.source, shop.target):
        server.execute(f"ALTER TABLE `{shop.schema}`.orders ADD j JSON")
    shop.run_until_head()
    at_source(shop, """INSERT INTO orders VALUES (1, 'a', 1, '{"a": 1, "b": "some text that is long enough"}')""")
    at_source(
        shop,
        "SET binlog_row_value_options = 'PARTIAL_JSON', binlog_row_image = 'MINIMAL'",
        "UPDATE orders SET j = JSON_SET(j, '$.a', 2)",
    )
    at_source(shop, "DELETE FROM orders WHERE id = 7", "INSERT INTO orders VALUES (3, 'c', 3, NULL)")
    seek, dump = commands(shop, stops(shop, "without the value"))
    does(shop, seek)
    with going(shop):
        does(shop, dump)
        wait_until(lambda: same(shop), "equal sides")


def test_a_key_that_the_target_lacks(shop: Case) -> None:
    """The hint ends in a statement for the target; those for a table and a column: load/test_target_mysql.py."""
    shop.target.execute(f"ALTER TABLE `{shop.schema}`.orders DROP PRIMARY KEY")
    at_source(shop, "INSERT INTO orders VALUES (3, 'c', 3)")
    statement = re.search(r"ALTER TABLE .*?;", str(stops(shop, "told apart by").hint), re.DOTALL)
    assert statement
    shop.target.execute(statement[0].rstrip(";"))
    shop.run_until_head()
    assert same(shop)


def test_a_column_that_the_target_lacks_is_added_as_the_source_defines_it(shop: Case) -> None:
    """The error's statement and the one that `check --apply` runs: NOT NULL and DEFAULT included."""
    more = (
        "n INT NOT NULL DEFAULT 7", "u INT UNSIGNED NOT NULL", "s VARCHAR(9) DEFAULT 'it''s'", "d DATE NOT NULL",
        "e ENUM('a','b') NOT NULL DEFAULT 'b'", "t TIMESTAMP(3) NULL", "c DATETIME DEFAULT CURRENT_TIMESTAMP ON "
        "UPDATE CURRENT_TIMESTAMP",
        "j JSON NOT NULL", "x VARBINARY(4) DEFAULT 0x00FF", "k VARCHAR(36) DEFAULT (UPPER('q'))",
        "b BIT(3) NOT NULL DEFAULT b'101'",
    )  # fmt: skip
    at_source(shop, "INSERT INTO orders VALUES (1, 'a', 1)")
    shop.run_until_head()
    names = [one.split()[0] for one in more]
    for times, makes in enumerate(("hint", "check")):
        if not times:
            for one in more:
                value = "'2020-01-01'" if one.startswith("d ") else None
                definition = one if value is None else f"{one} DEFAULT {value}"
                at_source(shop, f"ALTER TABLE orders ADD COLUMN {definition}")
            at_source(
                shop, "ALTER TABLE orders ALTER COLUMN d DROP DEFAULT", "UPDATE orders SET j = '{}', u = 5, s = 'old'"
            )
            shop.run_until_head()
            assert same(shop)
        shop.target.execute(f"ALTER TABLE `{shop.schema}`.orders {', '.join(f'DROP COLUMN {name}' for name in names)}")
        at_source(shop, f"INSERT INTO orders (id, d, j, u) VALUES ({times + 2}, '2021-01-01', '[]', 1)")
        error = stops(shop, "has no column")
        if makes == "hint":
            for statement in re.findall(r"ALTER TABLE .*?;(?= |$)", str(error.hint)):
                shop.target.execute(statement.rstrip(";"))
        else:
            does(shop, ["check", "case", "--apply", "--yes"])
        assert _defined(shop, shop.source) == _defined(shop, shop.target), makes
        shop.run_until_head()
        [dump] = [one for one in commands(shop, error) if one[0] == "dump"]
        with going(shop):
            does(shop, dump)
            wait_until(lambda: same(shop), "equal sides")


def _defined(made: Case, server: Any) -> list[Any]:
    """Columns as the server has them; a DATE without a default is nullable at the target, as no rows that are there
    could have a value.
    """
    rows = server.execute(
        "SELECT column_name, column_type, IF(column_name = 'd', '', is_nullable), column_default, extra FROM "
        f"information_schema.columns WHERE table_schema = '{made.schema}' AND table_name = 'orders' ORDER BY "
        "column_name"
    )
    return list(rows)


def test_a_changed_definition_under_the_policy_to_stop(shop: Case) -> None:
    ddl = "    ddl: {add_column: stop, drop_column: stop}\n"
    shop.path.write_text(shop.yaml.replace("    connection: case_target\n", f"    connection: case_target\n{ddl}"))
    at_source(shop, "ALTER TABLE orders ADD COLUMN more INT", "INSERT INTO orders VALUES (1, 'a', 1, 1)")
    error = stops(shop, "the policy of target copy is to stop")
    assert "make the change at the target by hand" in str(error.hint)
    shop.target.execute(f"ALTER TABLE `{shop.schema}`.orders ADD COLUMN more INT")
    shop.run_until_head()
    assert same(shop)
    at_source(shop, "ALTER TABLE orders DROP COLUMN more", "INSERT INTO orders VALUES (2, 'b', 2)")
    assert "to apply" in str(stops(shop, "the policy of target copy is to stop").hint)
    shop.path.write_text(shop.path.read_text().replace("drop_column: stop", "drop_column: apply"))
    shop.run_until_head()
    assert same(shop)


def test_a_row_that_the_target_lacks_of_which_a_part_came(shop: Case) -> None:
    at_source(shop, "INSERT INTO orders VALUES (1, 'a', 1), (2, 'b', 2)")
    shop.run_until_head()
    shop.target.execute(f"DELETE FROM `{shop.schema}`.orders WHERE id = 1")
    at_source(shop, "SET SESSION binlog_row_image = 'MINIMAL'", "UPDATE orders SET note = 'c' WHERE id = 1")
    [dump] = commands(shop, stops(shop, "the target has no row"))
    with going(shop):
        does(shop, dump)
        wait_until(lambda: same(shop), "equal sides")


def test_a_dump_of_a_table_that_was_dropped(shop: Case) -> None:
    at_source(shop, "CREATE TABLE gone (id INT PRIMARY KEY)", "INSERT INTO gone VALUES (1)")
    shop.run_until_head()
    does(shop, ["dump", "start", "case", "--table", f"{shop.schema}.gone", "--detach"])
    [waiting] = views(shop.runtime())
    at_source(shop, "DROP TABLE gone", "INSERT INTO orders VALUES (1, 'a', 1)")
    done = CliRunner().invoke(all_commands(), ["dump", "work", "case", waiting.id], env=dict(os.environ))
    assert isinstance(done.exception, SluiceError)
    listed, cancel = commands(shop, done.exception, ID=waiting.id)
    assert waiting.id in does(shop, listed)
    does(shop, cancel)
    assert views(shop.runtime())[0].state == "cancelled"
    shop.run_until_head()
    assert same(shop)


def test_a_column_that_the_target_computes(shop: Case) -> None:
    """Its hint drops it; the next error adds it as a plain one and copies what the rows had in it."""
    at_source(shop, "INSERT INTO orders VALUES (1, 'a', 1)")
    shop.run_until_head()
    shop.target.execute(
        f"ALTER TABLE `{shop.schema}`.orders DROP COLUMN total, ADD COLUMN total INT AS (id * 100) STORED"
    )
    at_source(shop, "INSERT INTO orders VALUES (2, 'b', 2)")
    dropped = re.search(r"ALTER TABLE .*?;", str(stops(shop, "'total'", "is a generated one").hint))
    assert dropped
    shop.target.execute(dropped[0].rstrip(";"))
    error = stops(shop, "has no column 'total'")
    added = re.search(r"ALTER TABLE .*?;", str(error.hint))
    assert added
    shop.target.execute(added[0].rstrip(";"))
    shop.run_until_head()
    assert not same(shop), "the row from before has no total"
    [dump] = [one for one in commands(shop, error) if one[0] == "dump"]
    with going(shop):
        does(shop, dump)
        wait_until(lambda: same(shop), "equal sides")


def test_a_column_that_the_target_cuts(shop: Case) -> None:
    """What check prints widens it, and names the command that repairs the rows that were cut."""
    at_source(shop, "ALTER TABLE orders ADD COLUMN f DOUBLE")
    shop.run_until_head()
    shop.target.execute(f"ALTER TABLE `{shop.schema}`.orders MODIFY f FLOAT")
    at_source(shop, "INSERT INTO orders VALUES (1, 'a', 1, 1.23456789012345)")
    with pytest.raises(MappingError, match="values would be lost") as stopped:
        shop.run_until_head()
    line = re.search(r"accept_loss: \[.*?\]", str(stopped.value))
    assert line
    shop.path.write_text(
        shop.path.read_text().replace("connection: case_target", f"connection: case_target\n    {line[0]}")
    )
    shop.run_until_head()
    assert not same(shop)
    said = does(shop, ["check", "case", "--json"])
    [fix] = [f["fix"] for f in json.loads(said)["findings"] if f["setting"] == "table" and f["fix"]]
    widened, verify = re.search(r"ALTER TABLE [^;]*", fix), re.search(r"`sluice (verify [^`]*)`", fix)
    assert widened
    shop.target.execute(widened[0])
    assert not same(shop), "the row from before stays cut"
    assert verify
    assert verify[1] == f"verify case --table {shop.schema}.orders --target copy --repair"
    at_source(shop, "INSERT INTO orders VALUES (2, 'b', 2, 1.23456789012345)")
    shop.run_until_head()
    assert [
        row[0] for row in shop.target.execute(f"SELECT id FROM `{shop.schema}`.orders WHERE f > 1.234567890123")
    ] == [2]
