"""Dumps that make both sides equal: what the target holds and the source does not, goes, and nothing else ever does."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from sluice.errors import ConfigError
from sluice.flows.dump.start import start
from tests.support.pipelines.case import Case, case
from tests.support.pipelines.dumping import begin, both, dumped
from tests.support.running.waiting import ended

ALL = bool(os.environ.get("SLUICE_FAULTS"))
"""Every case; some of them otherwise, as with the faults."""

TABLE = "CREATE TABLE t (id INT PRIMARY KEY, version BIGINT NOT NULL, note VARCHAR(40))"


@pytest.fixture
def shop(tmp_path, twin_source, twin_target, twin_zookeeper, fresh_schema) -> Iterator[Case]:
    schema = fresh_schema(twin_source, twin_target)
    with case(tmp_path, twin_source, twin_target, twin_zookeeper, schema) as made:
        settings(made, "dump: {chunk_rows: 50, parallelism: 2}")
        yield made


def settings(made: Case, text: str) -> None:
    made.yaml += f"\n{text}\n"
    made.path.write_text(made.yaml, encoding="utf-8")


def at_target(made: Case, *statements: str) -> Any:
    return made.target.execute(f"USE `{made.schema}`", *statements)


def at_source(made: Case, *statements: str) -> Any:
    return made.source.execute(f"USE `{made.schema}`", *statements)


@pytest.mark.promise("E13")
def test_an_empty_table_empties_the_target(shop: Case) -> None:
    both(shop, TABLE)
    both(shop, "CREATE TABLE log (a INT, b VARCHAR(20))")
    begin(shop)
    at_target(shop, "INSERT INTO t VALUES (1, 1, 'x'), (5, 1, 'y')", "INSERT INTO log VALUES (1, 'a'), (1, 'a')")
    dumped(shop, replace=True)
    shop.assert_equal("t", "log")


def test_a_rule_keeps_rows_from_being_replaced(shop: Case) -> None:
    both(shop, TABLE)
    begin(shop)
    (shop.folder / "rules" / "small.py").write_text(
        "def apply(row, context):\n    return row if row['id'] < 5 else None\n", encoding="utf-8"
    )
    (shop.folder / "rules" / "engine.yaml").write_text(
        "rules: [{name: small, path: small.py, type: row}]\n", encoding="utf-8"
    )
    settings(shop, "rules: engine.yaml")
    with pytest.raises(ConfigError, match="rules apply"):
        start(shop.runtime(), tables=[f"{shop.schema}.t"], replace=True)


@pytest.mark.parametrize("consistency", ["row", "table", "batch"] if ALL else ["row"])
def test_a_table_without_a_key_is_replaced_whole(shop: Case, consistency: str) -> None:
    """Duplicates counted, written before, while and after it is copied, onto a target that holds other rows."""
    shop.yaml = shop.yaml.replace(
        "connection: case_target\n", f"connection: case_target\n    consistency: {consistency}\n"
    )
    shop.path.write_text(shop.yaml, encoding="utf-8")
    both(shop, "CREATE TABLE log (a INT, b VARCHAR(20))")
    values = ",".join(f"({i % 50}, 'x{i % 7}')" for i in range(400))
    at_source(shop, f"INSERT INTO log VALUES {values}, (NULL, NULL), (NULL, NULL)")
    begin(shop)
    at_target(shop, f"INSERT INTO log VALUES {values}, (7, 'lost'), (7, 'lost')")
    stop = threading.Event()

    def write() -> None:
        with shop.source.connect(shop.schema) as connection, connection.cursor() as cursor:
            for i in range(60):
                cursor.execute("INSERT INTO log VALUES (%s, 'new'), (1, 'x1')", (i,))
                cursor.execute("DELETE FROM log WHERE a = %s LIMIT 2", (i % 50,))
                cursor.execute("UPDATE log SET b = 'upd' WHERE a = %s LIMIT 1", ((i + 3) % 50,))
                if stop.wait(0.02 if i < 40 else 0.15):
                    return

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    dumped(shop, tables=[f"{shop.schema}.log"], replace=True)
    ended(writer)
    at_source(shop, "INSERT INTO log VALUES (7, 'x1')", "DELETE FROM log WHERE a IS NULL LIMIT 1")
    shop.run_until_head()
    rows = [sorted(map(str, s.execute(f"SELECT a, b FROM `{shop.schema}`.log"))) for s in (shop.source, shop.target)]
    assert rows[0] == rows[1]


def test_a_cancelled_copy_of_a_table_without_a_key_loses_no_change(shop: Case) -> None:
    from sluice.flows.dump.progress import cancel

    both(shop, "CREATE TABLE log (a INT, b VARCHAR(20))")
    begin(shop)
    at_source(shop, "INSERT INTO log VALUES (1, 'before'), (1, 'before')")
    shop.run_until_head()
    runtime = shop.runtime()
    dump = start(runtime, tables=[f"{shop.schema}.log"], replace=True)  # nobody reads it
    at_source(shop, "INSERT INTO log VALUES (2, 'while it waits')", "UPDATE log SET b = 'changed' LIMIT 1")
    shop.run_until_head()
    assert at_target(shop, "SELECT a, b FROM log ORDER BY a, b") == [
        (1, "before"),
        (1, "changed"),
        (2, "while it waits"),
    ]
    cancel(runtime, dump.id, by="tester")
    at_source(shop, "INSERT INTO log VALUES (3, 'after')")
    shop.run_until_head()
    assert len(at_target(shop, "SELECT a, b FROM log")) == 4
