"""The Iceberg target with a REST catalog, Apache Iceberg's own server: the contract, lost races, a catalog that dies,
other readers, maintenance.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from devstack.iceberg_rest import RestCatalogServer
from sluice.errors import TargetUnavailable
from sluice.testing.targets import CHECKS, Check, Pipe, changed, gone, new, people
from tests.support.readers import duckdb_reader

pytest.importorskip("pyiceberg")

from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import CommitFailedException

from tests.support.benches.iceberg_bench import IcebergBench
from tests.support.tables.offsets import committed_at


@pytest.mark.parametrize("changes", ["latest", "all"])
@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_contract(check: Check, changes: str, iceberg_rest: RestCatalogServer) -> None:
    bench = IcebergBench.of_rest(iceberg_rest, changes)
    if changes == "all" and check.number not in {2, 3, 22}:
        pytest.skip("what differs from rows by key is the table, not the catalog")
    if not check.applies(bench):
        pytest.skip("the target does not offer it")
    check.run(bench)


@pytest.fixture
def bench(iceberg_rest: RestCatalogServer) -> IcebergBench:
    """With the table ``shop.people``."""
    made = IcebergBench.of_rest(iceberg_rest)
    made.create_table(people("shop"))
    return made


def test_a_lost_race_is_a_conflict_and_begins_again(bench: IcebergBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else's commit comes between reading and writing, twice: the catalog answers 409, the client does not try
    again by itself.
    """
    table = people("shop")
    pipe = Pipe(bench)
    pipe.deliver((table, [new(1, "a", 1), new(2, "b", 2)]))
    commit, lost = RestCatalog.commit_table, []

    def late(catalog: RestCatalog, one: Any, requirements: Any, updates: Any) -> Any:
        if one.name() == ("shop", "people") and len(lost) < 2:
            lost.append(None)
            with monkeypatch.context() as plain:
                plain.setattr(RestCatalog, "commit_table", commit)
                other = bench.table(table.table)
                other.overwrite(other.scan("id = 2").to_arrow(), "id = 2")
            with pytest.raises(CommitFailedException) as refused:
                commit(catalog, one, requirements, updates)
            raise refused.value
        return commit(catalog, one, requirements, updates)

    monkeypatch.setattr(RestCatalog, "commit_table", late)
    pipe.deliver((table, [changed((1, "a", 1), (1, "c", 3)), new(3, "d", 4)]))
    assert len(lost) == 2
    assert pipe.state(table) == Counter([(1, "c", 3), (2, "b", 2), (3, "d", 4)])
    snapshots = bench.table(table.table).snapshots()
    assert [one.summary.additional_properties.get("sluice.batch") for one in snapshots].count("2") == 1


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_the_catalog_is_killed_at_a_commit(
    bench: IcebergBench, iceberg_rest: RestCatalogServer, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """Of the rows: before it, nothing is there; after it, the answer is lost. The batch is there once in the end."""
    table = people("shop")
    pipe = Pipe(bench)
    pipe.deliver((table, [new(1, "a", 1)]))
    batch = pipe.given([(table, [changed((1, "a", 1), (1, "b", 2)), new(2, "c", 3)])])
    commit = RestCatalog.commit_table

    def struck(catalog: RestCatalog, one: Any, *more: Any) -> Any:
        if one.name() == ("shop", "people"):
            if after:
                commit(catalog, one, *more)
            iceberg_rest.kill()
        return commit(catalog, one, *more)  # nobody answers

    with monkeypatch.context() as patch:
        patch.setattr(RestCatalog, "commit_table", struck)
        with pytest.raises(TargetUnavailable, match=iceberg_rest.url):
            pipe.write(batch)
    iceberg_rest.start()
    assert pipe.held == 1
    assert pipe.state(table) == Counter([(1, "b", 2), (2, "c", 3)] if after else [(1, "a", 1)])
    pipe.write(batch)
    assert pipe.held == 2
    assert pipe.state(table) == Counter([(1, "b", 2), (2, "c", 3)])
    snapshots = bench.table(table.table).snapshots()
    assert [one.summary.additional_properties["sluice.batch"] for one in snapshots] == ["1", "2"]


def test_others_read_it_and_older_batches_and_old_files_go(bench: IcebergBench) -> None:
    """Time travel by batch and by the time at the source; DuckDB by the metadata; then old snapshots are given up, and
    what nothing names.
    """
    table = people("shop")
    pipe = Pipe(bench)
    for number, rows in enumerate((
        [new(n, "a", 0) for n in range(5)],
        [changed((0, "a", 0), (0, "b", 1)), gone(4, "a", 0)],
    )):
        batch = pipe.given([(table, rows)])
        pipe.write(replace(batch, position=committed_at(batch.position, 1_763_683_200_000_000 + number)))
    found = bench.table(table.table)
    said = [one.summary.additional_properties for one in found.snapshots()]
    assert [one["sluice.batch"] for one in said] == ["1", "2"]
    times = ["2025-11-21T00:00:00.000000+00:00", "2025-11-21T00:00:00.000001+00:00"]
    assert [one["sluice.commit_time"] for one in said] == times
    assert [found.scan(snapshot_id=one.snapshot_id).to_arrow().num_rows for one in found.snapshots()] == [5, 4]
    assert Counter(duckdb_reader.iceberg(found.metadata_location, "id, email, points")) == pipe.state(table)
    left = Path(found.location().removeprefix("file://")) / "data/of-no-commit.parquet"
    left.write_bytes(b"left behind")
    maintainer = pipe.target.maintainer()
    object.__setattr__(maintainer.tables.options.maintenance, "keep", timedelta(seconds=-1))  # all are old
    [done] = maintainer.maintain([table.table])
    assert (done.expired, done.error) == (1, "")
    assert not left.exists()
    assert pipe.state(table) == Counter([(0, "b", 1), *((n, "a", 0) for n in range(1, 4))])
    pipe.deliver((table, [gone(0, "b", 1)]))
    assert len(pipe.state(table)) == 3
