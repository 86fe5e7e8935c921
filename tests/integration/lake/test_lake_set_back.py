"""A lake table that was set back by another program (restore, rollback, another branch): the load stops before it writes
anything, and each way out that the error names ends equal. What other programs rewrite or expire is no set-back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sluice.errors import CheckpointError
from sluice.operations.check import check
from sluice.targets.port.versions import versions_of
from sluice.targets.rows_in_memory import planned_table
from sluice.testing.targets import Pipe, changed, new, people
from tests.support.pipelines.case import Case, case

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

import deltalake

from tests.support.benches.delta_bench import DeltaBench
from tests.support.benches.iceberg_bench import IcebergBench
from tests.support.benches.lake_bench import LakeBench
from tests.support.readers.lakes import IcebergLake, Lake

KINDS = ("delta", "iceberg", "iceberg-merge")
ONE, TWO, THREE = (people("shop", name) for name in ("one", "two", "three"))


def bench_of(kind: str, folder: Path, changes: str) -> LakeBench:
    if kind == "delta":
        return DeltaBench(folder, changes)
    return IcebergBench(folder, changes, mode=kind.partition("-")[2])


def versions(found: Any) -> list[Any]:
    """The versions of a table, oldest first."""
    if isinstance(found, deltalake.DeltaTable):
        return list(range(found.version() + 1))
    return [one.snapshot_id for one in sorted(found.snapshots(), key=lambda one: one.sequence_number)]


def restore(found: Any, version: Any) -> None:
    """Set a table back as another program does: Delta's RESTORE, or Iceberg's set_current_snapshot."""
    if isinstance(found, deltalake.DeltaTable):
        found.restore(version)
    else:
        found.manage_snapshots().set_current_snapshot(version).commit()


@contextmanager
def pipeline(folder: Path, source: Any, zookeeper: Any, schema: str, kind: str, *lines: str) -> Iterator[Case]:
    lake: Any = (Lake if kind == "delta" else IcebergLake)(folder / "lake")
    with case(folder, source, lake, zookeeper, schema, kind=kind, target_extra="\n".join(lines)) as made:
        yield made


def beside(made: Case, *command: str) -> Any:
    """Run a command while the pipeline runs; a person says yes if it deletes rows."""
    yes = ["--yes"] if {"--repair", "--replace"} & set(command) else []
    with ThreadPoolExecutor(1) as pool:
        ran = pool.submit(made.cli, *command, *yes)
        while not ran.done():
            made.run_until_head()
        return ran.result()


def delivered(kind: str, folder: Path, changes: str) -> Pipe:
    """Three tables with a batch of rows each; the second one got two more."""
    bench = bench_of(kind, folder, changes)
    pipe = Pipe(bench, config={"options": {"maintenance": {"small_files": 2}}})
    for table in (ONE, TWO, THREE):
        bench.create_table(table)
    pipe.deliver(*((table, [new(1, "a", 0)]) for table in (ONE, TWO, THREE)))
    pipe.deliver((TWO, [changed((1, "a", 0), (1, "b", 1))]))
    pipe.deliver((TWO, [changed((1, "b", 1), (1, "c", 2)), new(2, "c", 2)]))
    return pipe


def again(pipe: Pipe, first: int) -> None:
    """Rewind the target as ``sluice redeliver`` does: batches from ``first`` on are to come again."""
    checkpoints = pipe.checkpoints
    held = checkpoints.read()
    assert held is not None
    checkpoints.rewind(type(held)(pipe.epoch, first - 1, pipe.position(first - 1), held.identity))
    pipe.batch = first - 1


@pytest.mark.parametrize("changes", ["latest", "all"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_table_in_the_middle_that_was_set_back_stops_the_batch(tmp_path: Path, kind: str, changes: str) -> None:
    pipe = delivered(kind, tmp_path, changes)
    bench: Any = pipe.bench
    schema: Any = pipe.target.schema()
    assert not [one for one in schema.compare([planned_table(TWO)]) if one.severity == "error"]
    restore(bench.table(TWO.table), versions(bench.table(TWO.table))[-2])  # as after batch 2
    [finding] = schema.compare([planned_table(TWO)])
    assert finding.severity == "error"
    assert "was set back by a restore or a rollback: batch 3 was committed to it, and it holds batch 2" in finding.why
    before = {table: versions(bench.table(table.table)) for table in (ONE, TWO, THREE)}
    work = [(table, [changed((1, was, n), (1, "z", 9))]) for table, was, n in ((ONE, "a", 0), (TWO, "b", 1))]
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"shop.two was set back.*batch 3.*holds batch 2") as stop:
            pipe.deliver(*work, (THREE, [changed((1, "a", 0), (1, "z", 9))]))
        pipe.batch -= 1
        assert stop.value.kind == "behind"
        assert "`sluice redeliver p copy --from-batch 3`" in str(stop.value)
    assert {table: versions(bench.table(table.table)) for table in before} == before, "nothing was written"
    assert pipe.held == 3
    pipe.deliver((ONE, [changed((1, "a", 0), (1, "b", 1))]))  # tables that were not set back go on
    again(pipe, 3)
    pipe.deliver((TWO, [changed((1, "b", 1), (1, "c", 2)), new(2, "c", 2)]))
    pipe.deliver((ONE, [changed((1, "b", 1), (1, "b", 1))]))
    assert sorted(pipe.state(TWO)) == [(1, "c", 2), (2, "c", 2)]
    pipe.deliver((TWO, [changed((1, "c", 2), (1, "d", 3))]))
    assert sorted(pipe.state(TWO)) == [(1, "d", 3), (2, "c", 2)]


@pytest.mark.parametrize("changes", ["latest", "all"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_table_that_was_set_forward_again_goes_on(tmp_path: Path, kind: str, changes: str) -> None:
    pipe = delivered(kind, tmp_path, changes)
    bench: Any = pipe.bench
    there = versions(bench.table(TWO.table))
    restore(bench.table(TWO.table), there[1])
    restore(bench.table(TWO.table), there[-1])
    pipe.deliver((TWO, [changed((1, "c", 2), (1, "d", 3))]))
    assert sorted(pipe.state(TWO)) == [(1, "d", 3), (2, "c", 2)]


def other_rows(bench: Any) -> pa.Table:
    """A row as another program adds one."""
    rows = bench.read(TWO.table)
    row = {**rows.slice(0, 1).to_pylist()[0], "id": 77}
    return pa.Table.from_pylist([row], schema=rows.schema)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_commits_of_others_after_it_hide_no_set_back(tmp_path: Path, kind: str) -> None:
    pipe = delivered(kind, tmp_path, "latest")
    bench: Any = pipe.bench
    found = bench.table(TWO.table)
    restore(found, versions(found)[-2])
    for _ in range(3):
        if kind == "delta":
            deltalake.write_deltalake(bench.uri(TWO.table), other_rows(bench), mode="append")
        else:
            bench.table(TWO.table).append(other_rows(bench))
    with pytest.raises(CheckpointError, match="holds batch 2"):
        pipe.deliver((TWO, [changed((1, "b", 1), (1, "z", 9))]))


def compacted(pipe: Pipe) -> None:
    """Maintenance of the target's own."""
    for _ in range(3):
        pipe.deliver((TWO, [new(100 + pipe.batch, "m", 0)]))
    target: Any = pipe.target
    [done] = target.maintainer().maintain([TWO.table])
    assert done.written


def optimized(pipe: Pipe) -> None:
    bench: Any = pipe.bench
    bench.table(TWO.table).optimize.compact()


def z_ordered(pipe: Pipe) -> None:
    bench: Any = pipe.bench
    bench.table(TWO.table).optimize.z_order(["email"])


def vacuumed(pipe: Pipe) -> None:
    bench: Any = pipe.bench
    found = bench.table(TWO.table)
    found.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    found.create_checkpoint()


def log_cut(pipe: Pipe) -> None:
    """The log begins with its newest commit."""
    bench: Any = pipe.bench
    found = bench.table(TWO.table)
    found.create_checkpoint()
    for one in sorted(Path(bench.uri(TWO.table), "_delta_log").glob("*.json"))[:-1]:
        one.unlink()


def deleted_by_others(pipe: Pipe) -> None:
    bench: Any = pipe.bench
    bench.table(TWO.table).delete("id = 2")


def appended_by_others(pipe: Pipe) -> None:
    bench: Any = pipe.bench
    bench.table(TWO.table).append(other_rows(bench))


def expired(pipe: Pipe) -> None:
    """After a commit of another program all other snapshots go."""
    appended_by_others(pipe)
    bench: Any = pipe.bench
    found = bench.table(TWO.table)
    older = [one for one in versions(found) if one != found.current_snapshot().snapshot_id]
    found.maintenance.expire_snapshots().by_ids(older).commit()


def branched(pipe: Pipe) -> None:
    """A branch of an older snapshot changes nothing on main."""
    bench: Any = pipe.bench
    found = bench.table(TWO.table)
    found.manage_snapshots().create_branch(versions(found)[0], "audit").commit()


@pytest.mark.parametrize(
    ("kind", "work"),
    [
        *(("delta", one) for one in (compacted, optimized, z_ordered, vacuumed, log_cut, deleted_by_others)),
        *(("iceberg", one) for one in (compacted, expired, branched, deleted_by_others, appended_by_others)),
        *(("iceberg-merge", one) for one in (compacted, expired)),
    ],
)
def test_what_others_rewrite_or_expire_is_no_set_back(tmp_path: Path, kind: str, work: Callable[[Pipe], None]) -> None:
    pipe = delivered(kind, tmp_path, "latest")
    for step in range(2):
        work(pipe)
        pipe.deliver((TWO, [changed((1, "c", 2), (1, "d", 3)), new(10 + step, "n", 0)]))
    assert not [one for one in pipe.target.schema().compare([planned_table(TWO)]) if one.severity == "error"]


def test_a_branch_that_leaves_out_what_was_committed_is_a_set_back(tmp_path: Path) -> None:
    """The tip of the branch is newer than the last batch."""
    pipe = delivered("iceberg", tmp_path, "latest")
    bench: Any = pipe.bench
    found = bench.table(TWO.table)
    found.manage_snapshots().create_branch(versions(found)[0], "audit").commit()
    found = bench.table(TWO.table)
    found.append(other_rows(bench), branch="audit")
    found = bench.table(TWO.table)
    restore(found, found.refs()["audit"].snapshot_id)
    with pytest.raises(CheckpointError, match="holds batch 1"):
        pipe.deliver((TWO, [new(5, "z", 9)]))
    found = bench.table(TWO.table)  # and so it is when what was set back is expired
    lost = [one for one in versions(found) if one not in {found.current_snapshot().snapshot_id, versions(found)[0]}]
    found.maintenance.expire_snapshots().by_ids(lost).commit()
    with pytest.raises(CheckpointError, match="holds batch 1"):
        pipe.deliver((TWO, [new(5, "z", 9)]))


def test_a_restore_by_time_is_seen_and_older_versions_are_found(tmp_path: Path) -> None:
    """A restore by time does not name its version."""
    pipe = delivered("delta", tmp_path, "latest")
    bench: Any = pipe.bench
    found = bench.table(TWO.table)
    entry = next(one for one in found.history() if one.get("sluice.batch") == "2")
    found.restore(datetime.fromtimestamp((entry["timestamp"] + 1) / 1000, UTC))
    with pytest.raises(CheckpointError, match="holds batch 2"):
        pipe.deliver((TWO, [changed((1, "b", 1), (1, "z", 9))]))
    reader = versions_of(pipe.target)
    assert reader is not None
    version = reader.as_of(TWO.table, 3)
    assert version is not None
    assert (version.batch, version.rows) == (2, 1), "batch 3 is no longer part of the table"


@pytest.mark.parametrize("kind", KINDS)
def test_a_replayed_letter_of_an_earlier_batch_is_no_set_back(tmp_path: Path, kind: str) -> None:
    pipe = delivered(kind, tmp_path, "latest")
    letter = replace(pipe.given([(TWO, [new(9, "l", 0)])]), number=1, held=3, replay="letter")
    pipe.write(letter)
    pipe.batch = 3
    compacted(pipe)  # which repeats what the table holds
    pipe.deliver((TWO, [changed((1, "c", 2), (1, "d", 3))]))
    assert {(1, "d", 3), (9, "l", 0)} <= set(pipe.state(TWO))


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_table_set_back_to_before_a_schema_change_stops(
    tmp_path: Path, mysql_source: Any, zookeeper: Any, fresh_schema: Any, kind: str
) -> None:
    """The TRUNCATE is the last commit of the table, and the next batch begins with another."""
    schema = fresh_schema(mysql_source)
    mysql_source.execute(f"CREATE TABLE {schema}.t (id INT PRIMARY KEY)")
    with pipeline(tmp_path, mysql_source, zookeeper, schema, kind) as made:
        made.make_missing()
        made.run_until_head()
        for work in ("INSERT INTO t VALUES (1), (2)", "TRUNCATE TABLE t"):
            mysql_source.execute(work, database=schema)
            made.run_until_head()
        found = made.target.table(schema, "t")
        assert made.target.rows(schema, "t").num_rows == 0
        restore(found, versions(found)[-2])
        mysql_source.execute("ALTER TABLE t ADD COLUMN v INT NOT NULL DEFAULT 7", database=schema)
        mysql_source.execute("INSERT INTO t VALUES (3, 3)", database=schema)
        with pytest.raises(CheckpointError, match=r"\.t was set back"):
            made.run_until_head()
        assert made.target.rows(schema, "t").column_names == ["id"]


@pytest.mark.parametrize("way", ["redeliver", "adopt", "forward"])
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_the_ways_out_that_the_error_names_run(
    tmp_path: Path, mysql_source: Any, zookeeper: Any, fresh_schema: Any, kind: str, way: str
) -> None:
    """Each command is taken from the error as it is printed."""
    schema = fresh_schema(mysql_source)
    mysql_source.execute(f"CREATE TABLE {schema}.t (id INT PRIMARY KEY, v INT)")
    with pipeline(tmp_path, mysql_source, zookeeper, schema, kind) as made:
        lake = made.target
        made.make_missing()
        made.run_until_head()
        for work in (
            "INSERT INTO t VALUES (1, 0), (2, 0)",
            "UPDATE t SET v = 1 WHERE id = 1",
            "DELETE FROM t WHERE id = 2",
        ):
            mysql_source.execute(work, database=schema)
            made.run_until_head()
        found = lake.table(schema, "t")
        there = versions(found)
        restore(found, there[-2])
        mysql_source.execute("INSERT INTO t VALUES (3, 3)", database=schema)
        with pytest.raises(CheckpointError) as stop:
            made.run_until_head()
        assert [one for one in check(made.runtime()).findings if "was set back" in one.why]
        commands = {one.split()[1]: one.split() for one in re.findall(r"`(sluice [^`]*)`", str(stop.value))}
        if way == "forward":
            restore(lake.table(schema, "t"), there[-1])
        else:
            ran = made.cli(*commands[way][1:], "--yes")
            assert ran.returncode == 0, ran.stdout + ran.stderr
        made.run_until_head()
        if way == "adopt":
            for command, codes in (("dump", {0}), ("verify", {0, 3})):
                ran = beside(made, *commands[command][1:])
                assert ran.returncode in codes, ran.stdout + ran.stderr
                made.run_until_head()
        rows = sorted((row["id"], row["v"]) for row in lake.rows(schema, "t").to_pylist())
        assert rows == [(1, 1), (3, 3)]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_what_a_refused_replacement_prints_makes_the_table_equal(
    tmp_path: Path, mysql_source: Any, zookeeper: Any, fresh_schema: Any, kind: str
) -> None:
    """A lake table is not replaced by ranges of keys; the hint names commands that remove the same rows."""
    schema = fresh_schema(mysql_source)
    mysql_source.execute(
        f"CREATE TABLE {schema}.t (id INT PRIMARY KEY, v INT)", f"INSERT INTO {schema}.t VALUES (1, 1)"
    )
    with pipeline(tmp_path, mysql_source, zookeeper, schema, kind) as made:
        made.make_missing()
        made.run_until_head()
        extra = pa.table({"id": pa.array([7], pa.int32()), "v": pa.array([7], pa.int32())})
        if kind == "delta":
            deltalake.write_deltalake(made.target.table(schema, "t"), extra, mode="append")
        else:
            made.target.table(schema, "t").append(extra)
        refused = made.cli("dump", "start", "case", "--target", "copy", "--table", f"{schema}.t", "--replace", "--yes")
        assert refused.returncode
        said = " ".join((refused.stdout + refused.stderr).split())
        commands = [one.split()[1:] for one in re.findall(r"`(sluice [^`]*)`", said)]
        assert [one[0] for one in commands] == ["dump", "verify"]
        for command in commands:
            ran = beside(made, *command)
            assert ran.returncode in {0, 3}, ran.stdout + ran.stderr
            made.run_until_head()
        assert made.target.rows(schema, "t").to_pylist() == [{"id": 1, "v": 1}]
