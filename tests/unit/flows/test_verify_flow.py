"""``sluice verify``: planted differences of every kind are found while writers work, and repaired; nothing else is
reported.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sluice.model.dumps import Marking
from sluice.operations.verify.log_window import LogWindow
from sluice.sources.port import ChunkKey
from tests.support.flows.verifying import at, found, of, rewriting, verified
from tests.support.pipelines.case import Case, case
from tests.support.pipelines.dumping import begin, both, delivering


@pytest.fixture
def shop(tmp_path, twin_source, twin_target, twin_zookeeper, fresh_schema) -> Iterator[Case]:
    schema = fresh_schema(twin_source, twin_target)
    with case(tmp_path, twin_source, twin_target, twin_zookeeper, schema) as made:
        yield made


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
