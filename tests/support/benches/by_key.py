"""Promises that targets with rows by key keep alike, beside the contract suite, and how their tests begin."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from typing import Any

import pyarrow as pa

from sluice.model.dialects import UNKNOWN
from sluice.model.tables import TableId, TableSchema
from sluice.targets.port import KeyRange, StoredRange
from sluice.targets.rows_in_memory import planned_table
from sluice.testing.targets import Pipe, new, people


def prepared(bench: Any, table: TableSchema | None = None, **config: Any) -> tuple[TableSchema, Pipe]:
    """Make a table, ``people`` where none is given, in the bench's schema, which SCHEMA in keys of its options means."""
    table = (
        replace(table, table=TableId(bench.schema, table.table.table)) if table is not None else people(bench.schema)
    )
    bench.options = {
        name: {key.replace("SCHEMA", bench.schema): one for key, one in value.items()}
        if isinstance(value, dict)
        else value
        for name, value in bench.options.items()
    }
    bench.create_table(table)
    return table, Pipe(bench, config=config)


def listed_keys_and_whole_tables_are_removed(table: TableSchema, pipe: Pipe) -> None:
    """Listed keys stay if the source has them, as do keys that are not listed."""
    pipe.deliver((table, [new(n, "a", n) for n in range(6)]))
    plan = planned_table(table)
    key = replace(plan, columns=plan.columns[:1], dialect=UNKNOWN)
    kept = pa.table({"id": pa.array([3], pa.int32())}, schema=pa.schema([table.field(table.columns[0])]))
    item = KeyRange(("id",), listed=pa.table({"id": pa.array([2, 3, 77], pa.int32())}), kept=kept)
    pipe.write(pipe.given([], reconcile=(StoredRange(key, item, listed=True),)))
    assert {row[0] for row in pipe.state(table)} == {0, 1, 3, 4, 5}
    whole = replace(plan, columns=())
    batch = pipe.given([(table, [new(9, "b", 9)])], reconcile=(StoredRange(whole, KeyRange()),))
    pipe.write(batch, times=2)
    assert pipe.state(table) == Counter([(9, "b", 9)])


def a_pipeline_that_begins_anew_is_newer(table: TableSchema, pipe: Pipe) -> None:
    """Its epochs and batches count from the beginning again; its versions do not."""
    pipe.epoch = 900
    for number in range(3):
        pipe.deliver((table, [new(1, f"a{number}", number)]))
    pipe.checkpoints.forget()
    time.sleep(1.1)  # a term is a second
    again = Pipe(pipe.bench)
    again.deliver((table, [new(1, "b", 7)]))
    assert again.state(table) == Counter([(1, "b", 7)])


def way_to_forget_another_pipeline(table: TableSchema, pipe: Pipe) -> str:
    """Another pipeline writes the table: it is named with its tables. Return the statement that forgets it."""
    reconciler = pipe.target.reconciler()
    assert reconciler is not None
    assert reconciler.others() == (), "no pipeline has made a checkpoint yet"
    Pipe(pipe.bench, pipeline="other").deliver((table, [new(1, "a", 1)]))
    [found] = reconciler.others()
    assert (found.pipeline, found.tables) == ("other", frozenset({str(table.table)}))
    return found.forget
