"""``sluice verify``: planted differences of every kind are found while writers work, and repaired; nothing else is
reported.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from sluice.model.dumps import Marking
from sluice.operations.verify.log_window import LogWindow
from sluice.operations.verify.result import TableResult, VerifyResult
from sluice.operations.verify.verify import VerifySpec, verify
from sluice.sources.port import ChunkKey
from tests.support.pipelines.case import Case, case
from tests.support.pipelines.dumping import begin, both, delivering
from tests.support.running.waiting import ended

VALUES = """CREATE TABLE vals (id INT PRIMARY KEY, txt VARCHAR(20), pad VARCHAR(20), dbl DOUBLE, flt FLOAT, dec_ DECIMAL(12,4),
  word VARCHAR(20) CHARACTER SET latin1, doc JSON, at_ TIMESTAMP(6) NULL, raw VARBINARY(10), kind ENUM('a','b','c'),
  tags SET('x','y','z'), bits BIT(12), long_ LONGTEXT) DEFAULT CHARSET utf8mb4"""


@pytest.fixture
def shop(tmp_path, twin_source, twin_target, twin_zookeeper, fresh_schema) -> Iterator[Case]:
    schema = fresh_schema(twin_source, twin_target)
    with case(tmp_path, twin_source, twin_target, twin_zookeeper, schema) as made:
        yield made


def at(server: Any, made: Case, *statements: str) -> Any:
    return server.execute(f"USE `{made.schema}`", *statements)


def found(result: VerifyResult | TableResult) -> set[tuple[str, tuple[str, ...], str, tuple[str, ...]]]:
    """(table, key, kind, columns) of every difference."""
    tables = result.tables if isinstance(result, VerifyResult) else (result,)
    return {(t.table.split(".")[1], d.key, d.kind, d.columns) for t in tables for d in t.differences}


def of(result: VerifyResult, table: str) -> TableResult:
    [one] = [one for one in result.tables if one.table.endswith(f".{table}")]
    return one


def verified(made: Case, **asked: Any) -> VerifyResult:
    return verify(made.runtime(), VerifySpec(most=1000, **asked))


@contextmanager
def rewriting(made: Case, table: str, key: int, column: str = "txt") -> Iterator[None]:
    """One row is written again and again."""
    stop = threading.Event()

    def run() -> None:
        with made.source.connect(made.schema) as connection, connection.cursor() as cursor:
            number = 0
            while not stop.wait(0.01):
                number += 1
                cursor.execute(f"UPDATE `{table}` SET {column} = %s WHERE id = %s", (f"now {number}", key))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        ended(thread)


def test_a_row_that_changes_all_the_time_is_compared_with_the_log(shop: Case) -> None:
    both(shop, "CREATE TABLE t (id INT PRIMARY KEY, txt VARCHAR(40))")
    begin(shop)
    at(shop.source, shop, "INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    shop.run_until_head()
    at(shop.target, shop, "UPDATE t SET txt = 'c' WHERE id = 2")
    with rewriting(shop, "t", 1), delivering(shop):
        one = of(verified(shop), "t")
    assert found(one) == {("t", ("2",), "different", ("txt",))}
    assert (one.rows, one.different, one.equal, one.undecided) == (2, 1, 1, 0)


def test_a_batch_without_the_rows_that_are_asked_for_is_passed_by(shop: Case) -> None:
    both(shop, "CREATE TABLE t (id INT PRIMARY KEY, txt VARCHAR(40))")
    begin(shop)
    at(shop.source, shop, "INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    shop.run_until_head()
    for key in (1, 2):
        at(shop.source, shop, f"UPDATE t SET txt = 'new' WHERE id = {key}")
        shop.run_until_head()
    runtime = shop.runtime()
    with runtime.state() as state, runtime.source.open() as source:
        [described] = source.tables(lambda table: table.table == "t")
        schema = described.schema
        window = LogWindow(runtime, state, "copy", Marking.TABLE)
        key = ChunkKey(tuple(one for one in schema.columns if one.name == "id"), "PRIMARY")
        rows, known = window.as_logged(schema, key, frozenset({("1",)}), 1, window.newest())
    assert known == {("1",)}
    assert [row for piece in rows for row in piece.to_pylist()] == [{"id": 1, "txt": "new"}]


def test_a_table_that_the_target_lacks_is_said(shop: Case) -> None:
    both(shop, "CREATE TABLE t (id INT PRIMARY KEY)")
    begin(shop)
    at(shop.target, shop, "DROP TABLE t")
    with delivering(shop):
        assert "no table" in verified(shop).tables[0].skipped
