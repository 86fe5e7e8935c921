"""Which batches are written as one, and what they are joined to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from sluice.errors import SegmentError
from sluice.model.offset import Offset
from sluice.model.planned import PlannedColumn, PlannedTable
from sluice.model.tables import TableId
from sluice.targets import bundles as module
from sluice.targets.bundles import bundles, joined
from sluice.targets.port import BatchInput, SchemaChange, TableInput
from sluice.targets.rows_in_memory import MemoryReader, RowsInMemory


def table(name: str = "t", source: str = "t", rows: int = 1, column: str = "v") -> TableInput:
    at, columns = TableId("shop", name), (PlannedColumn("id", "int", 1), PlannedColumn(column, "int"))
    return TableInput(
        PlannedTable(at, TableId("shop", source), columns), (RowsInMemory(at, pa.table({"id": range(rows)})),)
    )


def batch(number: int, *tables: TableInput, **more: Any) -> BatchInput:
    return BatchInput(number, Offset.at("uuid", "log.000001", number), number - 1, MemoryReader(), tables, **more)


def runs(*batches: BatchInput) -> list[list[int]]:
    return [[one.number for one in run] for run in bundles(batches)]


ALONE: SchemaChange = object()  # type: ignore[assignment] - only that there is one


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ([], []),
        ([batch(1, table()), batch(2), batch(3, table("u", "u"), table())], [[1, 2, 3]]),
        (
            [batch(1, table()), batch(2, schema_changes=(ALONE,)), batch(3, table()), batch(4, table())],
            [[1], [2], [3, 4]],
        ),
        ([batch(1, table()), batch(2, table(column="w")), batch(3, table(column="w"))], [[1], [2, 3]]),
        (
            [batch(1, table()), batch(2, table(source="other")), batch(3, table(), table(source="other"))],
            [[1], [2], [3]],
        ),
        (
            [batch(1, table(rows=6)), batch(2, table(rows=4)), batch(3, table()), batch(4, table(rows=11))],
            [[1, 2], [3], [4]],
        ),
        ([batch(1, changes=6), batch(2, changes=5), batch(3, changes=5)], [[1], [2, 3]]),
        (
            [batch(1, table()), batch(2, table()), batch(3, apart=True), batch(4, table()), batch(5, table())],
            [[1, 2], [3], [4, 5]],
        ),
    ],
    ids=["none", "all", "definitions", "columns", "two sources", "rows", "changes", "a start from the snapshot"],
)
def test_runs(monkeypatch: pytest.MonkeyPatch, batches: list[BatchInput], expected: list[list[int]]) -> None:
    monkeypatch.setattr(module, "MOST_ROWS", 10)
    assert runs(*batches) == expected


def test_what_precedes_a_batch_that_cannot_be_read_is_given_first() -> None:
    def read() -> Iterator[BatchInput]:
        yield from (batch(1, table()), batch(2, table()))
        raise SegmentError("gone")

    given = bundles(read())
    assert [one.number for one in next(given)] == [1, 2]
    with pytest.raises(SegmentError, match="gone"):
        next(given)


def test_a_batch_that_stays_alone_is_given_before_the_next_is_read() -> None:
    def read() -> Iterator[BatchInput]:
        yield batch(1, schema_changes=(ALONE,))
        raise AssertionError("read too early")

    assert [one.number for one in next(bundles(read()))] == [1]


def test_joined() -> None:
    one = joined([batch(4, table(), changes=1), batch(5), batch(6, table("u", "u"), table(), changes=2)])
    assert (one.held, one.number, one.position.row_place[1], one.changes) == (3, 6, 6, 3)
    assert {str(t.target): t.batches for t in one.tables} == {"shop.t": (4, 6), "shop.u": (6,)}
    assert all(len(t.files) == len(t.batches) for t in one.tables)
    alone = batch(7, table())
    assert joined([alone]) is alone
