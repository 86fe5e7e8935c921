"""Indexes of a MySQL table that are built after its rows."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from sluice.model.tables import TableId
from sluice.targets.mysql import connection
from sluice.targets.port import Fence
from tests.support.benches.target_benches import MySQLBench


@pytest.mark.full
def test_a_build_may_take_longer_than_a_silent_session_lives(
    mysql_target: Any, fresh_schema: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends silent sessions, also the one that keeps other processes from taking the target over."""
    monkeypatch.setattr(connection, "IDLE_S", 4)
    schema = fresh_schema(mysql_target)
    bench = MySQLBench(mysql_target, schema)
    bench.kill()  # sessions of other tests have another limit
    target, table = bench.target(), TableId(schema, "t")
    target.schema().apply(f"CREATE TABLE `{schema}`.`t` (id INT PRIMARY KEY, v INT, KEY by_v (v))")  # type: ignore[union-attr]
    target.checkpoints.take_over(1)  # type: ignore[union-attr]
    fence = Fence(1, 0, 1)
    assert target.leave_out_indexes(fence, [table]) == (table,)  # type: ignore[attr-defined]
    with mysql_target.connect(schema, autocommit=False) as reader, reader.cursor() as cursor:
        cursor.execute("SELECT * FROM t")
        release = threading.Timer(3 * connection.IDLE_S, reader.rollback)
        release.start()
        try:
            target.build_indexes(fence, [table])  # type: ignore[attr-defined]
        finally:
            release.join()
    assert bench.indexes(table) == ["by_v"]
    assert not target.left_out_indexes()  # type: ignore[attr-defined]
    bench.kill()
