"""The protocol on a real ZooKeeper: leases, fencing after an expired session, compare-and-set, loss of a leader."""

from __future__ import annotations

import subprocess
import sys
import threading
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from devstack.zookeeper import ZooKeeperEnsemble, ZooKeeperServer
from sluice.config.connections import Endpoint
from sluice.coordination import zookeeper as connecting
from sluice.coordination.leases import try_acquire
from sluice.coordination.state import PipelineState
from sluice.coordination.zookeeper import connect
from sluice.errors import ConfigError, CoordinationUnavailable, Fenced, LeaseHeld, OutOfOrder
from sluice.flows.capture.drain import drain
from sluice.flows.dump import progress
from sluice.flows.dump.start import start
from sluice.flows.dump.worker import work
from sluice.model.batches import Batch, BatchNumber
from sluice.model.dumps import Chunk, Tuning
from sluice.model.offset import Offset
from sluice.model.tables import TableId
from tests.support.pipelines.case import Case
from tests.support.pipelines.dumping import delivering
from tests.support.pipelines.znodes import restored, saved, znodes
from tests.support.running.waiting import wait_until
from tests.support.tables.numbered import insert, numbered_pipeline, rows


def endpoint(server: ZooKeeperServer | ZooKeeperEnsemble, user: str = "", password: str = "") -> Endpoint:
    return Endpoint("zookeeper_default", "zookeeper", server.hosts, user=user, password=password)


def position(offset: int) -> Offset:
    return Offset.at("uuid", "binlog.000001", offset)


def state_of(znodes, root: str, wait_s: float = 0.0) -> PipelineState:
    return PipelineState(znodes, root, "shop", ["reporting"], lease_wait_s=wait_s)


@pytest.fixture
def root() -> str:
    return f"/test/{uuid.uuid4().hex}"


def batch(number: int, epoch: int, first: int, last: int) -> Batch:
    return Batch(BatchNumber(number), epoch, f"run-{number}", "m", position(first), position(last), 1, 1)


@pytest.mark.promise("A16", "A36")
def test_get_ack_and_retry(zookeeper, root) -> None:
    with connect(endpoint(zookeeper), session_timeout_s=6) as znodes:
        state = state_of(znodes, root)
        with state.replicator() as lease:
            cursor = state.begin(lease, position(4))
            state.acks.begin("reporting", BatchNumber(0), position(4))
            cursor = state.commit(lease, cursor, batch(1, lease.epoch, 4, 9))
            state.commit(lease, cursor, batch(2, lease.epoch, 9, 12))
        assert state.undelivered() == [1, 2]
        # get: a run finds its own batch, and no other
        assert [state.batches.claimed(f"run-{n}").number for n in (1, 2)] == [1, 2]
        assert state.batches.claimed("run-1").last == position(9)
        assert state.batches.claimed("run-3") is None
        with state.consumer("reporting"):
            # ack: in order only
            with pytest.raises(OutOfOrder):
                state.acks.acknowledge("reporting", state.batches.require(2))
            assert state.undelivered() == [1, 2]
            state.acks.acknowledge("reporting", state.batches.require(1))
            acknowledged = znodes.get(f"{root}/replicator/shop.reporting/process")
            # retry: the same ack again changes nothing, before and after a later one
            state.acks.acknowledge("reporting", state.batches.require(1))
            assert znodes.get(f"{root}/replicator/shop.reporting/process") == acknowledged
            assert state.acks.get("reporting").position == position(9)
            assert state.undelivered() == [2]
            # and the run that is tried again gets the batch that it had
            assert state.batches.claimed("run-1").number == 1
            assert state.batches.claimed("run-2").number == 2
            state.acks.acknowledge("reporting", state.batches.require(2))
            state.acks.acknowledge("reporting", state.batches.require(1))
        assert state.acks.get("reporting").position == position(12)
        assert state.undelivered() == []
        assert znodes.get(f"{root}/replicator/shop.reporting/process") is not None
        assert znodes.get(f"{root}/shop/replicator/node") is None


@pytest.mark.promise("A33")
def test_an_expired_owner_cannot_write(zookeeper, root) -> None:
    with (
        connect(endpoint(zookeeper), session_timeout_s=6) as first,
        connect(endpoint(zookeeper), session_timeout_s=6) as second,
    ):
        old, new = state_of(first, root), state_of(second, root)
        with old.replicator() as lease:
            cursor = old.begin(lease, position(4))
            with pytest.raises(LeaseHeld), new.replicator():
                pass
            session_id, password = first._client.client_id  # the same session elsewhere: closing it there ends it here
            thief = KazooClient(hosts=zookeeper.hosts, client_id=(session_id, password))
            thief.start()
            thief.stop()
            thief.close()
            with new.replicator() as newer:
                assert newer.epoch == lease.epoch + 1
                with pytest.raises((Fenced, CoordinationUnavailable)):
                    old.commit(lease, cursor, batch(1, lease.epoch, 4, 9))
                assert new.cursor().next_batch == 1
                new.commit(newer, new.cursor(), batch(1, newer.epoch, 4, 9))


@pytest.mark.promise("A33")
def test_a_stale_epoch_is_fenced_in_a_living_session(zookeeper, root) -> None:
    with connect(endpoint(zookeeper), session_timeout_s=6) as znodes:
        state = state_of(znodes, root)
        lease = try_acquire(znodes, f"{root}/shop/replicator", "old")
        cursor = state.begin(lease, position(4))
        znodes._client.delete(lease.node)  # as if the server had expired us
        try_acquire(znodes, f"{root}/shop/replicator", "new")
        with pytest.raises(Fenced, match="a newer owner took the lease after epoch 1"):
            state.commit(lease, cursor, batch(1, lease.epoch, 4, 9))
        assert state.batches.numbers() == []


def test_digest_authentication_shuts_others_out(zookeeper, root) -> None:
    with connect(endpoint(zookeeper, "sluice", "right"), session_timeout_s=6) as znodes:
        state_of(znodes, root).acks.begin("reporting", BatchNumber(0), position(4))
    with (
        connect(endpoint(zookeeper, "sluice", "wrong"), session_timeout_s=6) as znodes,
        pytest.raises(ConfigError, match="refused access") as caught,
    ):
        state_of(znodes, root).acks.get("reporting")
    assert "wrong" not in str(caught.value)


def test_no_server_is_one_clear_error() -> None:
    nowhere = Endpoint("zookeeper_default", "zookeeper", "127.0.0.1:1")
    with (
        pytest.raises(CoordinationUnavailable, match="did not answer within 1 s"),
        connect(nowhere, session_timeout_s=6, connect_timeout_s=1),
    ):
        pass


@pytest.mark.promise("B45")
def test_a_load_goes_on_while_zookeeper_is_down(
    tmp_path: Path, twin_source: Any, twin_target: Any, fresh_schema: Any
) -> None:
    """ZooKeeper dies as the first row is written and returns when the rows are there: the same attempt acknowledges."""
    (tmp_path / "zookeeper").mkdir()
    with (
        ZooKeeperServer(tmp_path / "zookeeper") as server,
        numbered_pipeline(tmp_path, twin_source, twin_target, server, fresh_schema) as made,
        ThreadPoolExecutor(1) as helper,
    ):
        restarted: list[Future[None]] = []

        def restart_once_written() -> None:
            wait_until(lambda: rows(made, made.target) == [1], "the row")
            server.start()

        def die(_: Any) -> str:
            if not restarted:
                server.kill()
                restarted.append(helper.submit(restart_once_written))
            return ""

        insert(made, 1)
        made.target.store.tables[TableId(made.schema, "t")].refuses = die
        made.run_until_head()
        restarted[0].result()
        with made.runtime().state() as state:
            assert state.undelivered() == []
        made.assert_equal()


def test_servers_that_are_gone_end_a_question_and_not_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ZooKeeperServer(tmp_path) as server, connect(endpoint(server), session_timeout_s=30) as znodes:
        assert znodes.get("/zookeeper") is not None
        monkeypatch.setattr(connecting, "ANSWER_S", 1.0)
        server.kill()
        for ask in (lambda: znodes.get("/zookeeper"), lambda: znodes.children("/"), lambda: znodes.ensure("/made")):
            with pytest.raises(CoordinationUnavailable, match="the connection to ZooKeeper was lost"):
                ask()
        server.start()
        monkeypatch.setattr(connecting, "ANSWER_S", 60.0)
        assert znodes.get("/zookeeper") is not None
        assert znodes.alive


HOLD = """
import sys, time
from sluice.config.connections import Endpoint
from sluice.coordination.state import PipelineState
from sluice.coordination.zookeeper import connect

hosts, root = sys.argv[1:]
with connect(Endpoint("z", "zookeeper", hosts), session_timeout_s=6) as znodes:
    with PipelineState(znodes, root, "case", ["copy"], lease_wait_s=0).consumer("copy"):
        print("loading", flush=True)
        time.sleep(600)
"""
"""A process that loads the target ``copy`` until it is killed."""


@pytest.mark.promise("B47")
def test_a_batch_whose_loader_was_killed_is_taken_over_after_the_grace(
    tmp_path: Path, twin_source: Any, twin_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    """A batch older than the grace stays with its run while ZooKeeper knows a loader, and goes to the next run after
    it.
    """
    with numbered_pipeline(tmp_path, twin_source, twin_target, zookeeper, fresh_schema) as made:
        made.path.write_text(made.path.read_text().replace("session_timeout:", "worker_grace: 1s, session_timeout:"))
        insert(made, 1)
        batch = drain(made.runtime(), claim="test:a:lost", idle_wait_s=5).batch
        assert batch is not None
        command = [sys.executable, "-c", HOLD, zookeeper.hosts, f"/test/{made.schema}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as loader:
            try:
                assert loader.stdout is not None
                assert loader.stdout.readline() == "loading\n"
                assert drain(made.runtime(), claim="test:a:next", idle_wait_s=1.5).batch is None
            finally:
                loader.kill()
        wait_until(lambda: drain(made.runtime(), claim="test:a:next", idle_wait_s=0.1).batch == batch, "the takeover")
        with made.runtime().state() as state:
            assert state.batches.require(batch).claim == "test:a:next"
        made.run_until_head()
        made.assert_equal()


@pytest.mark.promise("C17")
def test_positions_and_dumps_are_in_zookeeper_and_nowhere_else(
    tmp_path: Path, twin_source: Any, twin_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    """Without the nodes nothing is known of a paused dump or of the position; with them another process goes on."""
    with numbered_pipeline(tmp_path, twin_source, twin_target, zookeeper, fresh_schema) as made:
        for number in range(1, 31):
            insert(made, number)
        made.run_until_head()
        dump = start(made.runtime(), tuning=Tuning(chunk_rows=5, parallelism=1))

        claimed: list[int] = []

        def pause_at_the_third(step: str, chunk: Chunk) -> None:
            if step == "claimed":
                claimed.append(chunk.id.number)
                if len(claimed) == 3:
                    progress.pause(made.runtime(), dump.id, by="tester")

        stop = threading.Event()
        with delivering(made), ThreadPoolExecutor(1) as helper:
            working = helper.submit(lambda: work(made.runtime(), dump.id, hook=pause_at_the_third, stop=stop))
            wait_until(lambda: progress.one_view(made.runtime(), dump.id).rows == 15, "three chunks")
            stop.set()
            working.result()
        before, nodes = known(made), saved(made)
        znodes(made, "")
        assert known(made) == (None, None, [])
        restored(made, nodes)
        assert known(made) == before
        progress.resume(made.runtime(), dump.id, by="tester")
        with delivering(made):
            work(
                made.runtime(), dump.id, hook=lambda step, chunk: step == "claimed" and claimed.append(chunk.id.number)
            )
        assert sorted(set(claimed)) == sorted(claimed)  # no chunk is read a second time
        made.assert_equal()


def known(made: Case) -> tuple[Offset | None, Offset | None, list[tuple[str, str, Tuning]]]:
    """Return the captured and the acknowledged position, and each dump with its state and tuning."""
    with made.runtime().state() as state:
        cursor, acknowledged = state.cursor(), state.acks.get("copy")
        dumps = [state.dumps.require(name) for name in state.dumps.ids()]
        return (
            cursor.position if cursor else None,
            acknowledged.position if acknowledged else None,
            [(dump.id, dump.state, dump.tuning) for dump in dumps],
        )


@pytest.mark.promise("B12", "D14")
@pytest.mark.slow
def test_the_state_survives_the_loss_of_the_leader(tmp_path: Path, root) -> None:
    with (
        ZooKeeperEnsemble(tmp_path / "ensemble") as ensemble,
        connect(endpoint(ensemble), session_timeout_s=6) as znodes,
    ):
        state = state_of(znodes, root)
        with state.replicator() as lease:
            cursor = state.begin(lease, position(4))
            ensemble.leader().kill()
            for number in range(1, 20):
                cursor = commit_through(state, lease, cursor, number)
            assert state.batches.numbers() == list(range(1, 20))
        with connect(endpoint(ensemble), session_timeout_s=6) as another:
            cursor = state_of(another, root).cursor()
            assert (cursor.next_batch, cursor.position) == (20, position(4 + 19))


def commit_through(state, lease, cursor, number):
    """Commit until it is known to have gone through, as a retried task would."""
    while True:
        try:
            return state.commit(
                lease,
                cursor,
                batch(number, lease.epoch, cursor.position.row_place[1], cursor.position.row_place[1] + 1),
            )
        except CoordinationUnavailable:
            pass
        while True:
            try:
                if state.batches.get(number):
                    return state.cursor()
                break
            except CoordinationUnavailable:
                continue
