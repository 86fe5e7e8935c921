"""Lake tables clustered by columns: what a reader with a predicate has to open, what is written anew and when, and
loads meanwhile.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sluice.model.column_types import ColumnKind
from sluice.model.schema_changes import ChangeKind
from sluice.model.tables import Column, TableId, TableSchema
from sluice.targets.rows_in_memory import planned_table
from sluice.testing.targets import Pipe, _definition, _schema_change, changed, new, people
from tests.support.benches.delta_bench import DeltaBench
from tests.support.benches.iceberg_bench import IcebergBench
from tests.support.values.lake_keys import KEYS, values_of

K = ColumnKind
TABLE = TableSchema(
    TableId("shop", "t"),
    (
        Column("id", K.INT, "int", nullable=False),
        Column("p", K.INT, "int"),
        Column("v", K.INT, "int"),
        Column("s", K.VARCHAR, "varchar(500)", charset="ascii"),
    ),
    ("id",),
)
CLUSTERED: dict[str, Any] = {"cluster_by": {"shop.t": ["v"]}}
SMALL = {"iceberg": {"file_size": "1MiB"}, "delta": {"maintenance": {"file_size": "1MiB"}}}
BATCHES = 32
BENCHES = {"delta": DeltaBench, "iceberg": IcebergBench}
KINDS = tuple(BENCHES)


class Filled:
    """A table whose rows come in an order that has nothing to do with ``v``."""

    def __init__(self, folder: Path, kind: str, **options: Any) -> None:
        self.bench: Any = BENCHES[kind](folder)
        self.pipe = Pipe(self.bench, config={"options": {**SMALL[kind], **CLUSTERED, **options}})
        self.random, self.next = random.Random(7), 0
        [finding] = self.pipe.target.schema().compare([planned_table(TABLE)])
        self.pipe.target.schema().apply(finding.statement)

    def deliver(self, count: int = 250, part: int = 0) -> None:
        rows = []
        for number in range(self.next, self.next + count):
            value = None if number % 50 == 0 else self.random.randrange(1_000_000)
            rows.append(new(number, part, value, self.random.randbytes(200).hex()))
        self.next += count
        self.pipe.deliver((TABLE, rows))

    def maintain(self) -> Any:
        """None: nothing was done."""
        [done] = self.pipe.target.maintainer().maintain([TABLE.table]) or [None]
        return done

    def files(self) -> list[tuple[Any, int, int]]:
        """Partition and bounds of each, as readers see them."""
        found = self.bench.table(TABLE.table)
        if isinstance(self.bench, DeltaBench):
            rows = pa.table(found.get_add_actions(flatten=True)).to_pylist()
            return [(one.get("partition.p"), one["min.v"], one["max.v"]) for one in rows]
        field = found.schema().find_field("v").field_id
        files = [task.file for task in found.scan().plan_files()]
        bounds = [[int.from_bytes(b[field], "little") for b in (one.lower_bounds, one.upper_bounds)] for one in files]
        return [(str(one.partition), low, high) for one, (low, high) in zip(files, bounds, strict=True)]

    def opened(self) -> int:
        """Files that a reader opens at most for one value."""
        return max(
            sum(low <= value <= high for _, low, high in self.files()) for value in range(50_000, 1_000_000, 50_000)
        )

    def rows(self) -> Counter[Any]:
        return self.pipe.state(TABLE)


@pytest.mark.parametrize("kind", KINDS)
def test_a_reader_opens_few_files_after_maintenance(tmp_path: Path, kind: str) -> None:
    """Rows are the same, now and as of an older batch; without new rows nothing is written anew."""
    filled = Filled(tmp_path, kind)
    for _ in range(BATCHES):
        filled.deliver()
    rows, versions = filled.rows(), filled.pipe.target.versions()
    assert versions is not None
    older = versions.as_of(TABLE.table, BATCHES - 1)
    assert (len(filled.files()), filled.opened()) == (BATCHES, BATCHES)
    [wanted] = filled.pipe.target.maintainer().maintain([TABLE.table], dry_run=True)
    assert (wanted.merged, wanted.written) == (BATCHES, 0)
    done = filled.maintain()
    assert (done.merged, done.error) == (BATCHES, "")
    assert 2 <= len(filled.files()) == done.written < BATCHES / 2
    assert filled.opened() <= 2, "two files share at most the value at their edge"
    assert filled.rows() == rows
    assert filled.maintain() is None
    now = versions.as_of(TABLE.table, BATCHES)
    assert now is not None
    assert (now.rows, now.files) == (rows.total(), len(filled.files()))
    assert older is not None
    again = versions.as_of(TABLE.table, BATCHES - 1)
    assert again is not None
    assert (again.version, again.rows) == (older.version, rows.total() - 250)


@pytest.mark.parametrize("kind", KINDS)
def test_tables_are_clustered_while_batches_are_loaded(tmp_path: Path, kind: str) -> None:
    """The load goes on, and no row is lost, doubled or old, whichever of the commits is refused."""
    filled = Filled(tmp_path, kind, maintenance={**SMALL[kind].get("maintenance", {}), "small_files": 2})
    filled.deliver()
    stop, met = threading.Event(), []

    def look_after() -> None:
        while not stop.is_set():
            met.append(filled.maintain())

    worker = threading.Thread(target=look_after)
    worker.start()
    try:
        rows: dict[int, tuple[int, ...]] = {}
        for step in range(12):
            batch = []
            for number in range(1000, 1006):
                row = (number, 0, filled.random.randrange(1_000_000), "a")
                batch.append(changed(rows[number], row) if step else new(*row))
                rows[number] = row
            filled.pipe.deliver((TABLE, batch))
            filled.deliver(50)
    finally:
        stop.set()
        worker.join()
    assert all("loads" in one.error for one in met if one is not None and one.error)
    state = filled.rows()
    assert state.total() == 250 + 12 * 50 + 6
    assert all(state[row] == 1 for row in rows.values())
    filled.maintain()
    assert filled.rows() == state


def test_delta_is_clustered_anew_when_a_tenth_is_new(tmp_path: Path) -> None:
    """Fewer new files are only put together, and those that are clustered stay as they are."""
    filled = Filled(tmp_path, "delta")
    for _ in range(BATCHES):
        filled.deliver()
    assert filled.maintain().merged == BATCHES
    clustered = set(filled.bench.table(TABLE.table).file_uris())
    said = [one for one in filled.bench.table(TABLE.table).history() if one.get("sluice.doing") == "clustering"]
    assert [one["operation"] for one in said] == ["WRITE", "OPTIMIZE"]
    for _ in range(10):
        filled.deliver(5)
    done = filled.maintain()
    assert (done.merged, done.written) == (10, 1)
    assert clustered < set(filled.bench.table(TABLE.table).file_uris())
    assert filled.maintain() is None
    for _ in range(4):
        filled.deliver()
    done = filled.maintain()
    assert done.merged == len(clustered) + 1 + 4
    assert not clustered & set(filled.bench.table(TABLE.table).file_uris())
    assert filled.opened() <= 2
    assert filled.maintain() is None
    other = Pipe(filled.bench, config={"options": {**SMALL["delta"], "cluster_by": {"shop.t": ["s", "v"]}}})
    [done] = other.target.maintainer().maintain([TABLE.table])
    assert done.merged == done.written >= 2, "other columns are another clustering"


def test_delta_is_clustered_within_partitions_that_have_new_rows(tmp_path: Path) -> None:
    filled = Filled(tmp_path, "delta", partition_by={"shop.t": ["p"]})
    for part in (0, 1):
        for _ in range(BATCHES // 2):
            filled.deliver(600, part)
    assert filled.maintain().merged == BATCHES
    before = {uri for uri in filled.bench.table(TABLE.table).file_uris() if "p=0" in uri}
    assert len(before) > 1
    for _ in range(4):
        filled.deliver(600, 1)
    assert filled.maintain().error == ""
    after = set(filled.bench.table(TABLE.table).file_uris())
    assert {uri for uri in after if "p=0" in uri} == before
    assert filled.opened() <= 4
    assert {part for part, _, _ in filled.files()} == {0, 1}
    assert filled.maintain() is None


PARTITIONS = (
    *(
        (column, values)
        for column, values in KEYS
        if column.kind in {K.BIGINT, K.DATE, K.DATETIME, K.TIMESTAMP, K.TIME}
    ),
    (Column("k", K.VARCHAR, "varchar(20)", charset="utf8mb4"), ("a/b", "ü%=x", " x ", "a'b", "A", "null", "%2F", "..")),
)


@pytest.mark.parametrize("key", PARTITIONS, ids=lambda key: str(key[0].sql_type))
def test_delta_finds_the_partition_of_every_value(tmp_path: Path, key: Any) -> None:
    column, texts = key
    columns = (Column("id", K.INT, "int", nullable=False), column, Column("v", K.INT, "int"))
    table = TableSchema(TABLE.table, columns, ("id",))
    pipe = Pipe(DeltaBench(tmp_path), config={"options": {**CLUSTERED, "partition_by": {"shop.t": ["k"]}}})
    [finding] = pipe.target.schema().compare([planned_table(table)])
    pipe.target.schema().apply(finding.statement)
    values = [*values_of(column, texts), None]
    for first in (0, len(values)):
        pipe.deliver((table, [new(first + n, value, n) for n, value in enumerate(values)]))
    [done] = pipe.target.maintainer().maintain([table.table])
    assert (done.merged, done.written, done.error) == (2 * len(values), len(values), "")
    assert pipe.target.maintainer().maintain([table.table]) == []


def test_iceberg_tables_have_a_sort_order(tmp_path: Path) -> None:
    """Other writers follow it; a column of it may be dropped at the source."""
    filled = Filled(tmp_path, "iceberg", cluster_by={"shop.t": ["v", "s"]})
    found = filled.bench.table(TABLE.table)
    assert [found.schema().find_column_name(one.source_id) for one in found.sort_order().fields] == ["v", "s"]
    _a_column_of_the_order_is_dropped(IcebergBench(tmp_path / "dropped"))


def test_a_rest_catalog_takes_the_sort_order(iceberg_rest: Any) -> None:
    _a_column_of_the_order_is_dropped(IcebergBench.of_rest(iceberg_rest))


def _a_column_of_the_order_is_dropped(bench: IcebergBench) -> None:
    pipe = Pipe(
        bench, config={"options": {"cluster_by": {"shop.people": ["extra"]}, "maintenance": {"small_files": 2}}}
    )
    table = TableSchema(
        TableId("shop", "people"), (*people("shop").columns, Column("extra", K.INT, "int")), people("shop").primary_key
    )
    [finding] = pipe.target.schema().compare([planned_table(table)])
    pipe.target.schema().apply(finding.statement)
    assert len(bench.table(table.table).sort_order().fields) == 1
    pipe.deliver((table, [new(1, "a", 0, 5)]))
    before, after = _definition("shop", "people", "extra"), _definition("shop", "people")
    sql = "ALTER TABLE people DROP COLUMN extra"
    change = replace(_schema_change(pipe, 0, sql, (ChangeKind.DROP_COLUMN,), before, after), before_rows=True)
    pipe.write(pipe.given([(people("shop"), [new(2, "b", 0)])], schema_changes=(change,)))
    assert pipe.target.maintainer().maintain([table.table])[0].error == ""
    assert pipe.state(people("shop")) == Counter([(1, "a", 0), (2, "b", 0)])
    assert bench.table(table.table).sort_order().is_unsorted


@pytest.mark.parametrize("kind", KINDS)
def test_columns_that_do_not_fit_are_said(tmp_path: Path, kind: str) -> None:
    """As an error before the table is made; of a table that is there as a warning, and rows arrive."""
    columns = (*TABLE.columns, Column("b", K.VARBINARY, "varbinary(9)"))
    table = TableSchema(TABLE.table, columns, ("id",))
    bench: Any = BENCHES[kind](tmp_path)

    def findings(name: str) -> list[Any]:
        target = bench.target(options={"cluster_by": {"shop.t": [name]}, "partition_by": {"shop.t": ["p"]}})
        return list(target.schema().compare([planned_table(table)]))

    for name, why in (("absent", "the table does not have"), ("b", "no bounds of BINARY")):
        [finding] = findings(name)
        assert (finding.severity, finding.column, finding.statement, why in finding.why) == ("error", name, "", True)
    [finding] = findings("v")
    bench.target().schema().apply(finding.statement)
    [finding] = findings("v")
    assert (finding.severity, finding.why.endswith(", partitioned by p, clustered by v")) == ("ok", True)
    [finding] = findings("absent")
    assert finding.severity == "warning"
    target = bench.target(options={"cluster_by": {"shop.t": ["p"]}})
    [finding] = target.schema().compare([planned_table(table)])
    assert (finding.severity, "by which the table is partitioned" in finding.why) == ("warning", True)
    pipe = Pipe(bench, config={"options": {"cluster_by": {"shop.t": ["absent"]}, "maintenance": {"small_files": 2}}})
    for number in range(3):
        pipe.deliver((table, [new(number, 0, 1, "a", b"b")]))
    [done] = pipe.target.maintainer().maintain([table.table])
    assert (done.merged, done.written, done.error) == (3, 1, "")
