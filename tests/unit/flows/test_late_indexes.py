"""Which batches leave indexes out, and which build them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from sluice.flows.load import late_indexes
from sluice.flows.load.late_indexes import LateIndexes
from sluice.model.offset import Offset
from sluice.model.tables import TableId
from sluice.targets.memory.target import MemoryTarget
from sluice.targets.port import BatchInput, TableInput
from sluice.targets.rows_in_memory import MemoryReader, RowsInMemory, planned_table
from tests.support.benches.target_benches import MemoryBench, closing

TABLE = TableId("shop", "orders")
COPY, LOG = SimpleNamespace(snapshot=1), SimpleNamespace(snapshot=0)
LEASE: Any = SimpleNamespace(epoch=1)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryBench]:
    monkeypatch.setattr(late_indexes, "LEAST_ROWS", 2)
    with closing(MemoryBench()) as made:
        statement = {"create": ["shop", "orders"], "columns": ["id"], "key": ["id"], "indexes": {"by_id": "by_id"}}
        target = made.target()
        target.schema().apply(json.dumps(statement))  # type: ignore[union-attr]
        target.checkpoints.take_over(1)  # type: ignore[union-attr]
        yield made


def given(number: int, rows: int = 2) -> BatchInput:
    from sluice.testing.targets import people

    plan = planned_table(people("shop", "orders"))
    data = pa.table({"_op": ["i"] * rows})
    position = Offset.at("uuid", "log.000001", 4)
    return BatchInput(number, position, number - 1, MemoryReader(()), (TableInput(plan, (RowsInMemory(TABLE, data),)),))


def indexes(bench: MemoryBench, **config: Any) -> LateIndexes:
    target = bench.target(**config)
    assert isinstance(target, MemoryTarget)
    return LateIndexes.of("p", target, LEASE)


def test_a_copy_leaves_indexes_out_and_a_repeat_of_it_in_another_process_builds_them_at_its_end(
    bench: MemoryBench,
) -> None:
    indexes(bench).leave_out(COPY, given(1))  # type: ignore[arg-type]
    assert bench.indexes(TABLE) == []
    again = indexes(bench)
    again.build(given(1), before=COPY)  # type: ignore[arg-type]
    assert bench.indexes(TABLE) == [], "the rest of its rows are written without it"
    again.leave_out(COPY, given(1))  # type: ignore[arg-type]
    again.build(given(1))
    assert bench.indexes(TABLE) == ["by_id"]
    assert not indexes(bench).left


def test_a_batch_that_comes_instead_of_the_copy_builds_them_first(bench: MemoryBench) -> None:
    indexes(bench).leave_out(COPY, given(1))  # type: ignore[arg-type]
    indexes(bench).build(given(1), before=LOG)  # type: ignore[arg-type]
    assert bench.indexes(TABLE) == ["by_id"]


@pytest.mark.parametrize(
    ("record", "rows", "config"),
    [(LOG, 2, {}), (COPY, 1, {}), (COPY, 2, {"consistency": "batch"})],
    ids=["a batch of the log", "few rows", "rows and checkpoint in one transaction"],
)
def test_other_batches_leave_none_out(bench: MemoryBench, record: Any, rows: int, config: dict[str, Any]) -> None:
    bench.consistency = config.get("consistency", "row")
    indexes(bench).leave_out(record, given(1, rows))
    assert bench.indexes(TABLE) == ["by_id"]
