"""The Delta target with Spark as the writer, in a bucket: exactly once beside delta-rs, whoever dies, and whatever of
them arrives late.
"""

from __future__ import annotations

import re
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow.fs import FileSelector

from devstack.debian import FetchFailed
from devstack.spark import SparkConnectServer
from sluice.config.connections import Endpoint, parse_connection
from sluice.config.pipeline import TargetConfig
from sluice.errors import ConfigError, SluiceError
from sluice.flows.load.load import SparkStatements
from sluice.spark.connect import ConnectRunner
from sluice.testing.targets import Pipe, changed, gone, new, people
from tests.support.crashes.strikes import At, children, start, twice_arrived
from tests.support.servers.proxy import TcpProxy
from tests.support.servers.s3.lake import aws_connection, delta_on, s3_lake
from tests.support.servers.s3.server import S3Server
from tests.support.servers.s3.spark import spark_settings

pytest.importorskip("deltalake")

from deltalake import write_deltalake

from sluice.targets.delta.stored_rows import files_of
from sluice.targets.delta.target import DeltaTarget
from tests.support.crashes import calls

children.set_forkserver_preload([
    "tests.support.crashes.calls",
    "tests.support.benches.delta_bench",
    "sluice.spark.connect",
])
TABLE = people("shop")
FIRST = [new(n, "a", 0) for n in range(4)]
SECOND = [changed((n, "a", 0), (n, "b", 1)) for n in range(3)] + [gone(3, "a", 0), new(4, "b", 1)]
EXPECTED = Counter([*((n, "b", 1) for n in range(3)), (4, "b", 1)])
_COMMIT = re.compile(rb"PUT \S+/shop/people/_delta_log/\d+\.json")


@dataclass
class Bucket:
    """A bucket and a Spark server that reaches it through ``proxy``; delta-rs goes there directly."""

    s3: S3Server
    proxy: TcpProxy
    server: SparkConnectServer

    @property
    def statements(self) -> SparkStatements:
        return SparkStatements(ConnectRunner(parse_connection("spark", self.server.connection_json())), "a test")

    def bench(self, folder: str, changes: str = "latest") -> Any:
        made = delta_on(self.s3, folder, changes, spark=self.statements)
        made.create_table(TABLE)
        return made

    @contextmanager
    def holding(self) -> Iterator[tuple[threading.Event, threading.Event]]:
        """Spark's next commit to the table is held on its way, whole: set once it is there; and set to let it go on."""
        begun, held, go = threading.Event(), threading.Event(), threading.Event()

        def before(piece: bytes) -> None:
            if _COMMIT.match(piece):
                begun.set()
            if begun.is_set() and b'"commitInfo"' in piece and not held.is_set():
                held.set()
                assert go.wait(300)

        self.proxy.before = before
        try:
            yield held, go
        finally:
            go.set()
            self.proxy.before = None


@pytest.fixture(scope="module")
def bucket(server_folder: Path) -> Iterator[Bucket]:
    folder = server_folder / "spark-s3"
    with s3_lake(folder / "s3") as s3, TcpProxy(s3.host, s3.port) as proxy:
        try:
            settings = spark_settings(s3, folder, port=proxy.port)
        except FetchFailed as error:
            pytest.skip(f"there is no Delta for Spark with S3: {error}")
        settings["spark.sql.codegen.wholeStage"] = "false"  # to compile costs more than few rows
        with SparkConnectServer(folder / "spark", "spark-s3", conf=settings, env=s3.environment) as server:
            yield Bucket(s3, proxy, server)


def _by_rust(bench: Any, **at: Any) -> Pipe:
    return Pipe(bench, config={"options": {"execution": "units"}}, **at)


@pytest.mark.parametrize("changes", ["latest", "all"])
def test_both_writers_write_one_table(bucket: Bucket, changes: str) -> None:
    """A batch by delta-rs, one by Spark, one by delta-rs; what was stored for Spark is gone."""
    bench = bucket.bench(f"both-{changes}", changes)
    rust = _by_rust(bench)
    rust.deliver((TABLE, FIRST))
    spark = Pipe(bench, batch=1, seq=rust.seq, epoch=rust.epoch)
    spark.deliver((TABLE, SECOND))
    assert spark.state(TABLE) == EXPECTED
    [last] = bench.table(TABLE.table).history(1)
    assert last["engineInfo"].startswith("Apache-Spark")
    assert '"sluice.batch": "2"' in last["userMetadata"]
    rust.batch, rust.seq = 2, spark.seq
    rust.deliver((TABLE, [changed((0, "b", 1), (0, "c", 2))]))
    assert rust.state(TABLE) == EXPECTED - Counter([(0, "b", 1)]) + Counter([(0, "c", 2)])
    assert not bench.appends or not twice_arrived(bench)
    left = files_of(bench.target().format.place).get_file_info(
        FileSelector("_sluice/~stored", recursive=True, allow_not_found=True)
    )
    assert not [one.path for one in left if one.is_file]


@pytest.mark.parametrize("changes", ["latest", "all"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_at_a_statement(bucket: Bucket, changes: str, after: bool) -> None:
    """The loading process: Spark has the rows or not, and the next process finds out."""
    bench = bucket.bench(f"killed-{changes}-{after}", changes)
    rust = _by_rust(bench)
    rust.deliver((TABLE, FIRST))
    pipe = Pipe(bench, batch=1, seq=rust.seq, epoch=3)
    batch = pipe.given([(TABLE, SECOND)])
    child, _ = start(calls.delta_by_spark, bench, [batch], 2, At(0, after, signal.SIGKILL))
    child.join(300)
    assert child.exitcode == -signal.SIGKILL
    assert pipe.held == 1
    assert (pipe.state(TABLE) == EXPECTED) is after
    version = bench.table(TABLE.table).version()
    pipe.write(batch)
    assert pipe.state(TABLE) == EXPECTED
    assert pipe.held == 2
    assert (bench.table(TABLE.table).version() == version) is after
    assert not bench.appends or not twice_arrived(bench)


def _somebody_writes(bench: Any) -> None:
    """One row, by delta-rs alone."""
    there = bench.table(TABLE.table)
    row = {"id": 99, "email": "somebody", "points": 9}
    kinds = pa.schema(there.schema().to_arrow())
    columns = {name: pa.array([row.get(name)], kinds.field(name).type) for name in kinds.names}
    write_deltalake(there, pa.table(columns), mode="append")


def test_a_commit_that_comes_between_is_not_lost(bucket: Bucket) -> None:
    """Somebody's, by delta-rs, while Spark's of the same version is on its way: Spark's is refused, and the batch
    begins again.
    """
    bench = bucket.bench("between")
    _by_rust(bench).deliver((TABLE, FIRST))
    pipe = Pipe(bench, batch=1, epoch=2)
    failed: list[BaseException] = []

    def deliver() -> None:
        try:
            pipe.deliver((TABLE, SECOND))
        except BaseException as error:
            failed.append(error)

    with bucket.holding() as (held, go):
        loading = threading.Thread(target=deliver)
        loading.start()
        assert held.wait(300)
        _somebody_writes(bench)
        go.set()
        loading.join(300)
    assert not failed
    assert pipe.state(TABLE) == EXPECTED + Counter([(99, "somebody", 9)])
    assert pipe.held == 2


def test_a_commit_of_a_server_that_died_arrives_late(bucket: Bucket) -> None:
    """Its version is another commit by then, and a newer process has delivered the batch and the next: the store
    refuses what arrives.
    """
    bench = bucket.bench("late")
    rust = _by_rust(bench)
    rust.deliver((TABLE, FIRST))
    late = Pipe(bench, batch=1, seq=rust.seq, epoch=2)
    batch = late.given([(TABLE, SECOND)])
    failed: list[BaseException] = []

    def load() -> None:
        try:
            late.take_over()
            late.write(batch)
        except SluiceError as error:
            failed.append(error)

    with bucket.holding() as (held, go):
        loading = threading.Thread(target=load)
        loading.start()
        assert held.wait(300)
        bucket.server.kill()
        loading.join(300)
        assert failed
        _somebody_writes(bench)
        rust.epoch, rust.batch, rust.seq = 5, 1, late.seq
        rust.take_over()
        rust.write(batch)
        rust.batch = 2
        rust.deliver((TABLE, [changed((0, "b", 1), (0, "c", 2))]))
        version = bench.table(TABLE.table).version()
        go.set()
    bucket.server.start()
    spark = Pipe(bench, batch=3, seq=rust.seq, epoch=6)
    spark.deliver((TABLE, [new(9, "z", 9)]))
    assert bench.table(TABLE.table).version() > version
    assert spark.state(TABLE) == EXPECTED - Counter([(0, "b", 1)]) + Counter([
        (0, "c", 2),
        (9, "z", 9),
        (99, "somebody", 9),
    ])


def test_a_server_that_could_lose_a_commit_is_refused(bucket: Bucket, spark_delta: SparkConnectServer) -> None:
    """One without the log store; and, before anything is opened, delta-rs committing by other means than Spark."""
    bench = bucket.bench("refused")
    bench.spark = SparkStatements(ConnectRunner(parse_connection("spark", spark_delta.connection_json())), "loading")
    with pytest.raises(
        ConfigError, match=r"loading needs .*ConditionalPutLogStore.* has nothing there.*docs/delta-target"
    ):
        Pipe(bench).deliver((TABLE, FIRST))
    assert not Pipe(bench).state(TABLE)
    for storage, said in (
        ({"AWS_S3_LOCKING_PROVIDER": "dynamodb"}, "aws_s3_locking_provider"),
        ({"conditional_put": "disabled"}, "disabled"),
    ):
        connection = aws_connection(bucket.s3, storage_options=storage)
        with pytest.raises(ConfigError, match=f"conditional puts, and storage_options has .*{said}"):
            _target(connection, "frame")
        _target(connection, "units")


def _target(connection: Endpoint, execution: str) -> DeltaTarget:
    config = {
        "name": "lake",
        "type": "delta",
        "connection": "lake",
        "options": {"location": "s3://lake/x", "execution": execution},
    }
    return DeltaTarget(TargetConfig.model_validate(config), connection, "p")


def test_the_login_is_in_no_log_and_no_setting(bucket: Bucket) -> None:
    """Spark's is in its environment, which its pages do not show."""
    secret = bucket.s3.environment["AWS_SECRET_ACCESS_KEY"]
    bench = bucket.bench("secret")
    Pipe(bench).deliver((TABLE, FIRST))
    assert secret not in bucket.server.log.read_text(encoding="utf-8")
    from pyspark.sql.connect.session import SparkSession

    session = SparkSession(connection=bucket.server.url)
    try:
        said = str(session.sql("SET -v").collect()) + str(session.sql("SET").collect())
    finally:
        session.stop()
    assert "ConditionalPutLogStore" in said
    assert secret not in said
