"""``sluice recover`` on real servers: a loss of each store, and both sides equal after it.

The others: tests/unit/flows/test_recovering.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devstack.mysql import MySQLServer
from sluice.errors import CheckpointError, ConfigError, LostPosition, SegmentError, SluiceError, WrongServer
from sluice.flows.capture.drain import drain
from sluice.operations.verify.verify import VerifySpec, verify
from tests.support.crashes.damage import flip
from tests.support.flows.recovering import drained, goes_on, look, losses, recovered, store
from tests.support.pipelines.case import Case, case
from tests.support.pipelines.dumping import delivering
from tests.support.pipelines.znodes import znodes
from tests.support.servers.fixtures import UNSAFE
from tests.support.tables.numbered import deliver, insert, numbered_pipeline, rows, sluice


@pytest.fixture
def made(tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any) -> Iterator[Case]:
    with numbered_pipeline(tmp_path, mysql_source, mysql_target, zookeeper, fresh_schema) as one:
        yield one


# -- segments ----------------------------------------------------------------------------------------------------------


def data_damaged(made: Case, *batches: int) -> None:
    for batch in batches:
        folder = store(made) / f"batch={batch:010d}"
        for path in [path for path in folder.rglob("*") if path.is_file() and b"\0" in path.read_bytes()][:1]:
            flip(path)  # one of a statement alone has no rows


@pytest.mark.promise("E12")
def test_lost_batches_are_captured_again(made: Case) -> None:
    """A file of each of two batches is damaged; tests/unit/flows/test_recovering.py has every other way to lose them."""
    deliver(made, 1)
    made.source.execute(f"UPDATE `{made.schema}`.t SET note = 'changed' WHERE id = 1")
    second = drained(made, 2)
    made.source.execute(f"ALTER TABLE `{made.schema}`.t ADD COLUMN more INT")
    made.source.execute(f"INSERT INTO `{made.schema}`.t (id) VALUES (9)")
    third = drain(made.runtime(), claim="test:a:ddl", idle_wait_s=5).batch
    assert third is not None
    runtime = made.runtime()
    with runtime.state() as state:
        before = [state.batches.require(number) for number in (second, third)]
    data_damaged(made, second, third)
    with pytest.raises(SegmentError, match="sluice recover"):
        made.run_until_head()
    plan = look(made)
    assert "segments" in losses(plan)
    assert "captured again" in str(plan["measures"])
    assert not any(measure["lost"] for measure in plan["measures"])
    done = recovered(made)
    assert "changes are read from the log" in str(done["measures"])
    with runtime.state() as state:
        after = [state.batches.require(number) for number in (second, third)]
    assert [(b.number, b.first, b.last, b.changes) for b in after] == [
        (b.number, b.first, b.last, b.changes) for b in before
    ]
    made.run_until_head()
    made.assert_equal()
    made.source.execute(f"INSERT INTO `{made.schema}`.t (id) VALUES (10)")
    made.run_until_head()
    made.assert_equal()


# -- ZooKeeper ---------------------------------------------------------------------------------------------------------


def test_all_of_zookeeper_is_lost(made: Case) -> None:
    deliver(made, 1, 2)
    second, third = drained(made, 3), drained(made, 4)
    with made.runtime().state() as state:
        identity = state.identity()
    held = made.target.execute(f"SELECT MAX(epoch) FROM `{made.schema}`._sluice_ack")[0][0]
    epochs = max([held, *(int(path.stem.partition("-e")[2]) for path in store(made).glob("batch=*/manifest-e*"))])
    znodes(made, "")
    insert(made, 5)
    with pytest.raises(CheckpointError, match="sluice recover case"):
        made.run_until_head()
    assert losses(look(made)) == ["zookeeper"]
    recovered(made)
    with made.runtime().state() as state:
        cursor = state.cursor()
        assert cursor is not None
        assert cursor.next_batch == third + 1
        assert state.undelivered() == [second, third]
        assert state.identity() == identity
        assert state.highest_epoch() >= epochs
        with state.replicator() as lease:
            assert lease.epoch > epochs
    goes_on(made, 6)


# -- targets -----------------------------------------------------------------------------------------------------------


def ack_row(made: Case) -> list[Any]:
    return list(made.target.execute(f"SELECT * FROM `{made.schema}`._sluice_ack WHERE scope = ''"))


def edited_to_fit(made: Case) -> None:
    """Batch and position of a batch that was delivered, as ZooKeeper knows it: the rows from there on would be loaded
    again, or left out.
    """
    with made.runtime().state() as state:
        before = state.batches.get(state.acks.get("copy").batch - 1)
    assert before is not None
    position = json.loads(ack_row(made)[0][5]) | before.last.to_json()
    with made.target.connect(made.schema) as connection, connection.cursor() as cursor:
        cursor.execute(
            "UPDATE _sluice_ack SET batch = %s, position = %s WHERE scope = ''", (before.number, json.dumps(position))
        )
        connection.commit()


def test_an_edited_checkpoint_is_never_believed(made: Case) -> None:
    """Its batches are all stored, and its number fits its position: what was written together has a seal.

    A target that says nothing, or other nonsense: tests/unit/flows/test_recovering.py.
    """
    deliver(made, 1, 2, 3)
    made.source.execute(f"DELETE FROM `{made.schema}`.t WHERE id = 2")
    made.run_until_head()
    edited_to_fit(made)
    insert(made, 4)
    with pytest.raises(SluiceError, match="sluice recover case"):
        made.run_until_head()
    [question] = look(made)["questions"]
    assert question["subject"] == "copy"
    assert {"copy", "verify"} <= set(question["choices"])
    assert "checkpoint was edited" in question["why"]
    with pytest.raises(ConfigError, match="is no choice for copy"):
        sluice(made, "recover", "case", "--apply", "--yes", "--choose", "copy=maybe")
    recovered(made, "--choose", "copy=copy")
    goes_on(made, 5)


# -- the source --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", ["dump", "verify"])
def test_a_log_that_was_reset(
    tmp_path: Path, mysql_target: Any, zookeeper: Any, fresh_schema: Any, monkeypatch: Any, choice: str
) -> None:
    """RESET BINARY LOGS AND GTIDS: the numbers of files and transactions begin anew, and soon are as high as before.

    Nothing is read before a person chose. What the error says, and other ways in which a log goes back in time:
    capture/test_source_back.py."""
    with MySQLServer(tmp_path / "s", server_id=8, options=UNSAFE) as source:
        schema = fresh_schema(mysql_target)
        for server in (source, mysql_target):
            server.execute(
                f"CREATE DATABASE IF NOT EXISTS `{schema}`",
                f"CREATE TABLE `{schema}`.t (id INT PRIMARY KEY, note VARCHAR(40))",
            )
        with case(tmp_path, source, mysql_target, zookeeper, schema) as made:
            made.run_until_head()
            deliver(made, 1, 2, 3)
            source.execute(f"DELETE FROM `{schema}`.t WHERE id = 1", "RESET BINARY LOGS AND GTIDS")
            for number in range(10, 25):
                insert(made, number)
            with monkeypatch.context() as sooner:  # later so little would be too soon on a busy machine
                sooner.setattr("sluice.sources.mysql.server.position_check._SETTLE_S", 0.3)
                with pytest.raises((LostPosition, WrongServer)):
                    made.run_until_head()
            [question] = look(made)["questions"]
            assert question["subject"] == "source"
            assert set(question["choices"]) == {"dump", "verify"}
            with pytest.raises(ConfigError, match="not the one that was captured"):
                sluice(made, "recover", "case", "--apply", "--yes")
            assert rows(made, mysql_target) == [1, 2, 3]
            done = recovered(made, "--choose", f"source={choice}")
            if choice == "verify":
                assert done["measures"][0]["after"] == "sluice verify case --repair"
                with delivering(made):
                    assert verify(made.runtime(), VerifySpec(repair=True)).differing == 0
            goes_on(made, 30)
            assert 1 not in rows(made, mysql_target)
