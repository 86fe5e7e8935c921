"""What an Iceberg target asks of its catalog: files are read once, metadata is not copied again and again, and
handles go.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sluice.model.tables import TableId
from sluice.targets.rows_in_memory import planned_table
from sluice.testing.targets import Pipe, changed, gone, new, people
from tests.support.readers import duckdb_reader

pytest.importorskip("pyiceberg")

import pyiceberg.catalog
import pyiceberg.table
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import PyArrowFile
from pyiceberg.serializers import FromInputFile

from sluice.targets.iceberg import client
from sluice.targets.iceberg.catalog import KeptCatalog
from sluice.targets.iceberg.client import Place
from sluice.targets.iceberg.manifest_files import CONTENTS
from tests.support.benches.iceberg_bench import IcebergBench


def test_a_metadata_file_is_read_once_and_never_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever looks at a table: the plan, the commit, the fence for each of three tables, the library.

    A process does not read what it wrote. Manifests are read once, too. No commit copies metadata.
    """
    bench = IcebergBench(tmp_path)
    tables = [people("shop"), *(_named(f"t{number}") for number in range(2))]
    for table in tables:
        bench.create_table(table)
    pipe = Pipe(bench)
    pipe.deliver(*((table, [new(1, "a", 1)]) for table in tables))
    read: Counter[str] = Counter()
    copies = []
    reads, copied, opened = FromInputFile.table_metadata, pyiceberg.catalog.update_table_metadata, PyArrowFile.open

    def counted(file: Any, *more: Any) -> Any:
        read[file.location] += 1
        return reads(file, *more)

    def copying(*args: Any, **more: Any) -> Any:
        copies.append(args)
        return copied(*args, **more)

    def opening(file: Any, *more: Any) -> Any:
        read[file.location] += file.location.endswith(".avro")
        return opened(file, *more)

    monkeypatch.setattr(FromInputFile, "table_metadata", staticmethod(counted))
    for module in (pyiceberg.catalog, pyiceberg.table):
        monkeypatch.setattr(module, "update_table_metadata", copying)
    monkeypatch.setattr(PyArrowFile, "open", opening)
    pipe.deliver(*((table, [changed((1, "a", 1), (1, "b", 2))]) for table in tables))
    assert copies == []
    assert not +read
    client._catalogs.begin()  # as another process
    CONTENTS.begin()
    read.clear()
    pipe.deliver(*((table, [changed((1, "b", 2), (1, "c", 3))]) for table in tables))
    assert sum(path.endswith(".json") for path in read) == len(tables) + 1
    assert sum(path.endswith(".avro") for path in read) >= len(tables)
    assert set((+read).values()) == {1}
    monkeypatch.undo()
    assert [pipe.state(table) for table in tables] == [Counter([(1, "c", 3)])] * len(tables)
    for table in tables:
        found = bench.table(table.table)  # as it is kept
        assert found.metadata == reads(found.io.new_input(found.metadata_location))


def test_manifests_are_kept_as_they_are_stored(tmp_path: Path) -> None:
    """Those of rows and of delete files, also of manifests that were put together; the least recently used go first."""
    bench = IcebergBench(tmp_path, mode="merge")
    table = people("shop")
    bench.create_table(table)
    pipe = Pipe(bench)
    CONTENTS.begin()
    for number in range(24):
        keys = range(10 * number, 10 * number + 10)
        pipe.deliver((table, [*(new(key, "a", 1) for key in keys), *([gone(keys[0] - 1, "a", 1)] * (number > 0))]))
    current = bench.table(table.table)
    manifests = current.current_snapshot().manifests(current.io)
    assert {str(manifest.content) for manifest in manifests} == {"ManifestContent.DATA", "ManifestContent.DELETES"}
    for path in (current.current_snapshot().manifest_list, *(manifest.manifest_path for manifest in manifests)):
        assert CONTENTS.get(path) == Path(path.removeprefix("file://")).read_bytes()


def test_a_commit_from_an_older_state_is_made_on_the_newest_if_it_can_be(tmp_path: Path) -> None:
    """A property fits whatever was committed meanwhile; rows do not. Neither leaves a file of metadata behind."""
    bench = IcebergBench(tmp_path)
    bench.create_table(people("shop"))
    first, second, third = (bench.table(people("shop").table) for _ in range(3))
    first.transaction().set_properties({"first": "1"}).commit_transaction()
    second.transaction().set_properties({"second": "2"}).commit_transaction()
    there = bench.table(people("shop").table)
    assert {"first", "second"} <= set(there.properties)
    Pipe(bench).deliver((people("shop"), [new(1, "a", 1)]))
    with pytest.raises(CommitFailedException):
        third.append(there.scan().to_arrow().slice(0, 0))
    now = bench.table(people("shop").table)
    named = {now.metadata_location, *(one.metadata_file for one in now.metadata.metadata_log)}
    folder = Path(now.metadata_location.removeprefix("file://")).parent
    assert {f"file://{one}" for one in folder.glob("*.json")} == named


def _named(name: str) -> Any:
    from dataclasses import replace

    return replace(people("shop"), table=TableId("shop", name))


def test_threads_take_turns_where_the_catalog_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nowhere else: another catalog is waited for, which threads do at the same time."""
    bench = IcebergBench(tmp_path)
    bench.create_table(people("shop"))
    commit, held = KeptCatalog.commit_table, []

    def looked(catalog: KeptCatalog, one: Any, *more: Any) -> Any:
        if one.name() == ("shop", "people"):
            held.append(client._catalogs.turn.locked())
        return commit(catalog, one, *more)

    monkeypatch.setattr(KeptCatalog, "commit_table", looked)
    Pipe(bench).deliver((people("shop"), [new(1, "a", 1)]))
    assert held == [True]
    file, folder = {"uri": "sqlite:////there/catalog.db"}, {"warehouse": "file:///there"}
    for waited_for in (
        {"uri": "postgresql+psycopg://db/catalog", **folder},
        {"type": "rest", "uri": "http://localhost:8181", **folder},
        {**file, "warehouse": "s3://bucket"},
        file,
    ):
        place = Place("elsewhere", waited_for)
        with place.turn(), place.turn():
            assert not client._catalogs.turn.locked()
    with Place("here", {**file, **folder}).turn():
        assert client._catalogs.turn.locked()


def test_catalogs_that_nothing_asks_for_are_closed(tmp_path: Path) -> None:
    """A process that has many targets, or runs for long, does not keep all of their files open; one that is closed
    opens again.
    """
    bench = IcebergBench(tmp_path / "first")
    bench.create_table(people("shop"))
    assert _handles(bench)
    for number in range(client._MOST_OPEN):
        IcebergBench(tmp_path / f"other{number}").create_table(people("shop"))
    assert not _handles(bench)
    pipe = Pipe(bench)
    pipe.deliver((people("shop"), [new(1, "a", 1)]))
    assert pipe.state(people("shop")) == Counter([(1, "a", 1)])


def _handles(bench: IcebergBench) -> list[str]:
    """Open files of the catalog."""
    found = []
    for one in Path("/proc/self/fd").iterdir():
        try:
            found.append(os.readlink(one))
        except OSError:  # the one that lists them
            continue
    return [name for name in found if name.startswith(f"{bench.root}/catalog.db")]


def test_a_forked_child_opens_its_own(tmp_path: Path) -> None:
    bench = IcebergBench(tmp_path)
    bench.create_table(people("shop"))
    assert client._catalogs._open
    child = os.fork()
    if not child:
        os._exit(0 if not client._catalogs._open and not client._catalogs.turn.locked() else 3)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("changes", ["latest", "all"])
def test_manifests_are_put_together(tmp_path: Path, changes: str) -> None:
    """Else each commit costs more than the one before it. Older batches stay readable, and others read the newest."""
    bench = IcebergBench(tmp_path, changes)
    table = people("shop")
    [finding] = (schema := bench.target().schema()).compare([planned_table(table)])
    bench.made(table, [])
    schema.apply(finding.statement)
    pipe = Pipe(bench)
    last = 45
    for number in range(last):
        news = (
            [new(number, "a", 0)]
            if number % 9
            else [new(number, "a", 0), changed((number - 5, "a", 0), (number - 5, "b", 1))][: 1 + (number > 5)]
        )
        pipe.deliver((table, news))
    found = bench.table(table.table)
    counts = [len(one.manifests(found.io)) for one in found.snapshots()]
    assert max(counts) <= 21
    assert counts[-1] < 21
    expected = Counter((n, "b", 1) if n in {4, 13, 22, 31} else (n, "a", 0) for n in range(last))
    assert pipe.state(table) == expected
    batch = {one.summary.additional_properties["sluice.batch"]: one.snapshot_id for one in found.snapshots()}
    rows = found.scan(snapshot_id=batch["12"]).to_arrow()
    assert len(set(rows["id"].to_pylist())) == 12
    ids = duckdb_reader.iceberg(found.metadata_location, "DISTINCT id")
    assert sorted(ids) == [(n,) for n in range(last)]
