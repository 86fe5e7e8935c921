"""Iceberg tables whose rows are deleted by position delete files (``write_mode: merge-on-read``), read by pyiceberg and
by DuckDB.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import TargetUnavailable
from sluice.model.column_types import ColumnKind
from sluice.model.tables import Column, TableId, TableSchema
from sluice.targets.iceberg.catalog import KeptCatalog
from sluice.targets.rows_in_memory import planned_table
from sluice.testing.targets import Op, Pipe, changed, gone, new, people
from tests.support.readers import duckdb_reader

pytest.importorskip("pyiceberg")


from tests.support.benches.iceberg_bench import IcebergBench
from tests.support.readers.lakes import delete_by_position

NEVER = {"maintenance": {"compact": False, "expire": False, "orphans": False}}


def begun(folder: Path, table: TableSchema, **options: Any) -> Pipe:
    bench = IcebergBench(folder, mode="merge")
    pipe = Pipe(bench, config={"options": {**bench.options, **options}})
    [finding] = pipe.target.schema().compare([planned_table(table)])
    pipe.target.schema().apply(finding.statement)
    bench.types[str(table.table)] = table
    return pipe


def opened(pipe: Pipe, table: TableSchema) -> Any:
    bench: Any = pipe.bench
    return bench.table(table.table)


def marked(pipe: Pipe, table: TableSchema) -> list[tuple[int, list[int]]]:
    """Of each data file: its rows, and those that each of its delete files names."""
    tasks = opened(pipe, table).scan().plan_files()
    return sorted((task.file.record_count, sorted(one.record_count for one in task.delete_files)) for task in tasks)


def maintained(pipe: Pipe, table: TableSchema) -> Any:
    found: Any = pipe.target
    return found.maintainer().maintain([table.table])


def by_duckdb(pipe: Pipe, table: TableSchema) -> Counter[tuple[Any, ...]]:
    names = ", ".join(column.name for column in table.columns)
    return Counter(duckdb_reader.iceberg(opened(pipe, table).metadata_location, names))


def step(choose: random.Random, there: dict[int, tuple[Any, ...]], parts: int) -> list[Op]:
    """New rows, changes, keys that move, rows that go; ``there`` follows."""
    ops, touched = [], set()
    for _ in range(choose.randrange(1, 25)):
        old = choose.choice([*there, 0])
        key = choose.randrange(1, 200)
        if old in touched or key in touched:
            continue
        row = (key, choose.choice("abc"), choose.randrange(parts))
        if old and choose.random() < 0.3:
            ops.append(gone(*there.pop(old)))
            touched.add(old)
        elif old and choose.random() < 0.3 and key not in there:
            ops += [gone(*there.pop(old)), new(*row)]  # as a changeset has a key that moves
            there[key] = row
            touched |= {old, key}
        else:
            ops.append(changed(there[key], row) if key in there else new(*row))
            there[key] = row
            touched.add(key)
    return ops


@pytest.mark.parametrize("parts", [1, 3], ids=["whole", "partitioned"])
@pytest.mark.parametrize("seed", range(4))
def test_random_batches_and_maintenance_leave_what_a_dictionary_has(tmp_path: Path, seed: int, parts: int) -> None:
    """After each batch, and as of each older one; whatever is folded, and however many rows a file may have that are
    deleted.
    """
    choose, table = random.Random(seed), people("shop")
    options = {
        "small_file": choose.choice(["1", "1KiB"]),
        "maintenance": {"small_files": choose.choice([2, 5]), "deleted_share": choose.choice([0.05, 0.2, 1])},
        **({"partition_by": {"shop.people": ["points"]}} if parts > 1 else {}),
    }
    pipe = begun(tmp_path, table, **options)
    there: dict[int, tuple[Any, ...]] = {n: (n, "a", n % parts) for n in range(1, 90)}
    pipe.deliver((table, [new(*row) for row in there.values()]))
    states = {1: Counter(there.values())}
    marks = 0
    for _ in range(12):
        pipe.deliver((table, step(choose, there, parts)))
        states[pipe.batch] = Counter(there.values())
        assert pipe.state(table) == states[pipe.batch]
        marks += sum(len(files) for _, files in marked(pipe, table))
        if choose.random() < 0.3:
            assert not any(one.error for one in maintained(pipe, table))
            assert pipe.state(table) == states[pipe.batch]
    assert marks > 3
    reader: Any = pipe.target
    for batch, rows in states.items():
        version = reader.versions().as_of(table.table, batch)
        assert version.rows == rows.total()
        pieces = list(reader.versions().rows(version, [table.field(column) for column in table.columns]))
        names = [column.name for column in table.columns]
        assert Counter(tuple(row[name] for name in names) for piece in pieces for row in piece.to_pylist()) == rows
    assert by_duckdb(pipe, table) == Counter(there.values())


def test_a_data_file_has_one_delete_file_however_many_batches_deleted_rows_of_it(tmp_path: Path) -> None:
    """And the file stays, with the rows that are as they were; a file without rows goes."""
    table = people("shop")
    pipe = begun(tmp_path, table, **NEVER)
    pipe.deliver((table, [new(n, "a", 0) for n in range(100)]))
    [first] = [task.file.file_path for task in opened(pipe, table).scan().plan_files()]
    for points in range(1, 4):
        pipe.deliver((table, [changed((n, "a", points - 1), (n, "a", points)) for n in range(10)]))
    assert marked(pipe, table) == [(10, []), (100, [10])]
    assert first in [task.file.file_path for task in opened(pipe, table).scan().plan_files()]
    pipe.deliver((table, [gone(n, "a", 0) for n in range(50, 60)]))
    assert marked(pipe, table) == [(10, []), (100, [20])]
    said = opened(pipe, table).current_snapshot().summary.additional_properties
    assert (said["total-position-deletes"], said["total-delete-files"], said["total-records"]) == ("20", "1", "110")
    assert by_duckdb(pipe, table) == pipe.state(table)
    pipe.deliver((table, [gone(n, "a", 0) for n in [*range(10, 50), *range(60, 100)]]))
    assert marked(pipe, table) == [(10, [])]
    said = opened(pipe, table).current_snapshot().summary.additional_properties
    assert (said["total-position-deletes"], said["total-delete-files"]) == ("0", "0")
    assert by_duckdb(pipe, table) == Counter((n, "a", 3) for n in range(10))


def test_columns_that_only_the_table_has_keep_the_values_of_the_live_row(tmp_path: Path) -> None:
    """Not those of a version that was deleted before."""
    table = people("shop")
    wide = TableSchema(table.table, (*table.columns, Column("more", ColumnKind.INT, "int")), ("id",))
    pipe = begun(tmp_path, wide, **NEVER)
    pipe.deliver((wide, [new(n, "a", 0, n) for n in range(20)]))
    pipe.deliver((wide, [changed((n, "a", 0, n), (n, "a", 0, n + 100)) for n in range(3)]))
    pipe.deliver((table, [changed((n, "a", 0), (n, "b", 1)) for n in (1, 2, 7)]))
    expected = {n: (n, "a", 0, n) for n in range(20)} | {0: (0, "a", 0, 100), 7: (7, "b", 1, 7)}
    expected |= {n: (n, "b", 1, n + 100) for n in (1, 2)}
    assert pipe.state(wide) == Counter(expected.values())
    assert sum(len(files) for _, files in marked(pipe, wide))


def test_maintenance_folds_deletes_of_other_writers_and_of_its_own(tmp_path: Path) -> None:
    """A delete file that names rows of several files stays until no file needs it, and no longer."""
    table = people("shop")
    pipe = begun(tmp_path, table, **NEVER)
    for first in (0, 100):
        pipe.deliver((table, [new(first + n, "b" if n % 10 else "a", 0) for n in range(50)]))
    delete_by_position(opened(pipe, table), "email", "a")  # 5 rows of each
    pipe.deliver((table, [changed((n, "b", 0), (n, "c", 1)) for n in range(1, 9)]))
    rows = Counter([
        *((n, "c", 1) for n in range(1, 9)),
        *((first + n, "b", 0) for first in (0, 100) for n in range(50) if n % 10 and (first or n > 8)),
    ])
    assert pipe.state(table) == by_duckdb(pipe, table) == rows
    assert marked(pipe, table) == [(8, []), (50, [10]), (50, [10, 13])]
    for share, left in ((0.2, [(8, []), (37, []), (50, [10])]), (0.05, [(8, []), (37, []), (45, [])])):
        folding = Pipe(pipe.bench, config={"options": {"maintenance": {"small_files": 100, "deleted_share": share}}})
        [done] = maintained(folding, table)
        assert (done.error, marked(pipe, table)) == ("", left)
        assert pipe.state(table) == by_duckdb(pipe, table) == rows
    [done] = maintained(folding, table)  # the delete file that no data file needs any more
    assert (done.merged, done.written) == (1, 0)
    found = opened(pipe, table)
    assert found.current_snapshot().summary.additional_properties["total-delete-files"] == "0"
    assert maintained(folding, table) == []
    pipe.deliver((table, [new(1_000, "z", 0)]))
    assert by_duckdb(pipe, table) == rows + Counter([(1_000, "z", 0)])


def test_the_mode_can_change_at_any_time(tmp_path: Path) -> None:
    """A file that copy-on-write writes anew takes its delete file along."""
    table = people("shop")
    pipe = begun(tmp_path, table, **NEVER)
    pipe.deliver((table, [new(n, "a", 0) for n in range(100)]))
    pipe.deliver((table, [gone(n, "a", 0) for n in range(10)]))
    pipe.config = {"options": {**NEVER, "write_mode": "copy-on-write"}}
    pipe.deliver((table, [gone(n, "a", 0) for n in range(10, 20)]))
    assert marked(pipe, table) == [(80, [])]
    said = opened(pipe, table).current_snapshot().summary.additional_properties
    assert (said["total-delete-files"], said["total-records"]) == ("0", "80")
    assert pipe.state(table) == by_duckdb(pipe, table) == Counter((n, "a", 0) for n in range(20, 100))


@pytest.mark.parametrize("kept", [True, False], ids=["made", "not-made"])
def test_a_commit_whose_answer_is_lost_is_not_made_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    """The batch comes again: each row is there once, and deleted rows stay deleted, whether the commit was made."""
    table = people("shop")
    pipe = begun(tmp_path, table, **NEVER)
    pipe.deliver((table, [new(n, "a", 0) for n in range(50)]))
    commit = KeptCatalog.commit_table

    def lost(catalog: KeptCatalog, one: Any, *more: Any) -> Any:
        if one.name() != ("shop", "people"):
            return commit(catalog, one, *more)
        monkeypatch.setattr(KeptCatalog, "commit_table", commit)
        if kept:
            commit(catalog, one, *more)
        raise OSError("the answer is lost")

    monkeypatch.setattr(KeptCatalog, "commit_table", lost)
    batch = pipe.given([(table, [*(changed((n, "a", 0), (n, "b", 1)) for n in range(5)), gone(9, "a", 0)])])
    with pytest.raises(TargetUnavailable, match="the answer is lost"):
        pipe.write(batch)
    before = len(opened(pipe, table).snapshots())
    pipe.write(batch)
    rows = Counter([*((n, "b", 1) for n in range(5)), *((n, "a", 0) for n in range(5, 50) if n != 9)])
    assert pipe.state(table) == by_duckdb(pipe, table) == rows
    assert len(opened(pipe, table).snapshots()) == before + (0 if kept else 1)
    assert marked(pipe, table) == [(5, []), (50, [6])]
    pipe.deliver((table, [changed((0, "b", 1), (0, "c", 2))]))
    assert pipe.state(table) == rows - Counter([(0, "b", 1)]) + Counter([(0, "c", 2)])


@pytest.mark.parametrize("kind", [ColumnKind.VARCHAR, ColumnKind.BIGINT], ids=["text", "number"])
@pytest.mark.parametrize("names", [("k",), ("k", "n")], ids=["one", "two"])
def test_keys_in_any_order_within_a_file_are_found(tmp_path: Path, kind: ColumnKind, names: Sequence[str]) -> None:
    """In order, out of it, and of two columns."""
    columns = (
        Column("k", kind, "bigint" if kind is ColumnKind.BIGINT else "varchar(20)", nullable=False, charset="utf8mb4"),
        Column("n", ColumnKind.INT, "int", nullable=False),
        Column("v", ColumnKind.INT, "int"),
    )
    table = TableSchema(TableId("shop", "t"), columns, tuple(names))

    def key(number: int) -> Any:
        return number if kind is ColumnKind.BIGINT else f"key {number}"

    choose = random.Random(1)
    pipe = begun(tmp_path, table, **NEVER)
    for first, mix in ((0, False), (100, True)):
        numbers = [first + n for n in range(60)]
        if mix:
            choose.shuffle(numbers)
        pipe.deliver((table, [new(key(n), 1, 0) for n in numbers]))
    chosen = choose.sample([*range(60), *range(100, 160)], 40)
    for points in range(2):
        pipe.deliver((table, [changed((key(n), 1, points), (key(n), 1, points + 1)) for n in chosen]))
    rows = Counter((key(n), 1, 2 * (n in chosen)) for n in [*range(60), *range(100, 160)])
    assert pipe.state(table) == by_duckdb(pipe, table) == rows
    assert sum(sum(files) for _, files in marked(pipe, table)) == 40
