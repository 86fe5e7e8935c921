"""The same batches through a Spark standalone cluster of two workers, with segments on a shared path and on S3: the
same rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devstack.debian import FetchFailed
from devstack.spark import SparkConnectServer, SparkStandalone
from sluice.config.connections import parse_connection
from sluice.merge.compact import compact
from sluice.segments.store import SegmentStore
from sluice.spark.connect import ConnectRunner
from sluice.spark.local import LocalRunner
from tests.support.pipelines.small_units import small_units
from tests.support.servers.s3.server import S3Server, moto_server
from tests.support.tables.batches import Delivery, checksum, segment_rows
from tests.support.tables.people import DDL, delete, insert, people, update

ROWS = 3000


@pytest.fixture(scope="module")
def s3(server_folder: Path) -> Iterator[S3Server]:
    try:
        moto_server()
    except FetchFailed as error:
        pytest.skip(f"the S3 server cannot be installed here: {error}")
    with pytest.MonkeyPatch.context() as patch, S3Server(server_folder / "s3") as server:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield server


@pytest.fixture(scope="module")
def cluster(server_folder: Path, s3: S3Server) -> Iterator[ConnectRunner]:
    """Two workers of one core each; the driver is a Spark Connect server."""
    folder = server_folder / "cluster"
    with (
        SparkStandalone(folder, env=s3.environment) as spark,
        SparkConnectServer(
            folder / "connect", name="connect-on-cluster", master=spark.master_url, env=s3.environment
        ) as connect,
    ):
        yield ConnectRunner(parse_connection("spark", connect.connection_json()))


class Counting:
    """A runner that counts its jobs."""

    def __init__(self, runner: Any) -> None:
        self.runner, self.jobs, self.units = runner, 0, 0

    def run(self, function: Any, units: Any, **named: Any) -> Any:
        self.jobs += bool(units)
        self.units += len(units)
        return self.runner.run(function, units, **named)


def batches(schema: Any) -> list[list[dict[str, Any]]]:
    """Rows; then nine of ten changes on one key, and unique values that move along."""
    first = [insert(i, f"u{i}") for i in range(ROWS)]
    hot = [update(insert(5, "u5", n - 1 if n else None), points=n) for n in range(ROWS * 9)]
    moved = [update(insert(i, f"u{i}"), email=f"u{i + 1 if i < ROWS - 1 else 6}") for i in range(6, ROWS)]
    return [first, [*hot, *moved, delete(insert(0, "u0"))]]


def test_every_place_gives_the_same_rows(
    tmp_path: Path, cluster: ConnectRunner, s3: S3Server, mysql_target: Any, fresh_schema: Any, monkeypatch: Any
) -> None:
    small_units(monkeypatch, 1000)
    sums = {}
    for place in ("here", "shared", "s3"):
        db = fresh_schema(mysql_target)
        mysql_target.execute(DDL.format(db, "people"))
        runner = Counting(LocalRunner() if place == "here" else cluster)
        pipe = Delivery(tmp_path / place, mysql_target, target={"options": {"ack_schema": db}}, runner=runner)
        if place == "s3":
            pipe.store = SegmentStore(s3.bucket("segments"), pipe.config.pipeline)
        for rows in batches(people(db)):
            pipe.deliver({people(db): rows})
        assert runner.units > runner.jobs
        sums[place] = (checksum(mysql_target, f"{db}.people"), runner.jobs)
        assert mysql_target.execute(f"SELECT COUNT(*) FROM {db}.people") == [(ROWS - 1,)]
    assert sums["here"] == sums["shared"] == sums["s3"]


def test_the_number_of_jobs_does_not_follow_the_tables(tmp_path: Path, mysql_target: Any, fresh_schema: Any) -> None:
    jobs = {}
    for count in (2, 60):
        db = fresh_schema(mysql_target)
        mysql_target.execute(*(DDL.format(db, f"t{n}") for n in range(count)))
        runner = Counting(LocalRunner())
        pipe = Delivery(tmp_path / str(count), mysql_target, target={"options": {"ack_schema": db}}, runner=runner)
        pipe.deliver({people(db, f"t{n}"): [insert(1, "a"), insert(2, "b")] for n in range(count)})
        jobs[count] = (runner.jobs, runner.units)
    assert jobs[2] == jobs[60]


def test_a_key_with_most_of_the_changes_neither_fills_a_unit_nor_holds_it_up(
    tmp_path: Path, mysql_target: Any, fresh_schema: Any, monkeypatch: Any
) -> None:
    """19 of 20 changes are of one key, which cannot be cut: what a merge holds is bounded all the same, and the rows
    are those of any other cut.
    """
    bound, part, total = 2_000, 500, 20_000
    small_units(monkeypatch, 1000, most=bound)
    held: list[int] = []

    def counted(changes: Any, key: Any) -> Any:
        held.append(changes.num_rows)
        return compact(changes, key)

    monkeypatch.setattr("sluice.flows.transform.merge_units.compact", counted)
    db = fresh_schema(mysql_target)
    mysql_target.execute(DDL.format(db, "people"))
    schema = people(db)
    hot = insert(0, "hot", 0)
    rows = [update({**hot, "points": n - 1}, points=n) if n % 20 else insert(n, f"u{n}") for n in range(1, total)]
    pipe = Delivery(tmp_path, mysql_target, target={"options": {"ack_schema": db}})
    pipe.deliver({schema: [hot]})
    changes = segment_rows(schema, rows)
    manifest = pipe.write_parts(schema, [changes.slice(start, part) for start in range(0, changes.num_rows, part)])
    pipe.load(pipe.merge(manifest))
    assert len(manifest.files) == -(-changes.num_rows // part)
    assert max(held) <= bound + part
    assert mysql_target.execute(f"SELECT COUNT(*), MAX(points) FROM {db}.people WHERE id = 0") == [(1, total - 1)]
    assert mysql_target.execute(f"SELECT COUNT(*) FROM {db}.people") == [(1 + sum(1 for row in rows if row["id"]),)]
