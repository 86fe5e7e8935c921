"""``sluice recover`` on real servers: a loss of each store, and both sides equal after it.

The others: tests/unit/flows/test_recovering.py.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from devstack.mysql import MySQLServer
from sluice.errors import CheckpointError, ConfigError, LogPurged, LostPosition, SegmentError, SluiceError, WrongServer
from sluice.flows.capture.drain import drain
from sluice.flows.transform.merge import merge
from sluice.operations.verify.verify import VerifySpec, verify
from tests.support.crashes.damage import flip
from tests.support.pipelines.case import Case, case
from tests.support.pipelines.dumping import delivering
from tests.support.pipelines.znodes import znodes
from tests.support.servers.fixtures import UNSAFE
from tests.support.tables.numbered import deliver, insert, numbered_pipeline, rows, sluice


@pytest.fixture
def made(tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any) -> Iterator[Case]:
    with numbered_pipeline(tmp_path, mysql_source, mysql_target, zookeeper, fresh_schema) as one:
        yield one


def drained(made: Case, number: int) -> int:
    insert(made, number)
    batch = drain(made.runtime(), claim=f"test:a:{number}", idle_wait_s=5).batch
    assert batch is not None
    return batch


def look(made: Case, *options: str) -> dict[str, Any]:
    """The plan."""
    found: dict[str, Any] = json.loads(sluice(made, "recover", "case", "--json", *options).splitlines()[-1])
    return found


def losses(plan: dict[str, Any]) -> list[str]:
    return [finding["store"] for finding in plan["findings"] if finding["severity"] == "loss"]


def recovered(made: Case, *options: str) -> dict[str, Any]:
    """Do it; nothing is lost afterwards, and the audit has it."""
    done = look(made, "--apply", "--yes", *options)
    assert done["applied"]
    assert done["measures"]
    after = look(made)
    assert losses(after) == []
    assert after["measures"] == []
    with made.runtime().state() as state:
        said = [entry for entry in state.audit.entries() if entry["what"] == "recover"]
    assert [entry["subject"] for entry in said][-len(done["measures"]) :] == [m["subject"] for m in done["measures"]]
    return done


def goes_on(made: Case, *numbers: int) -> None:
    made.run_until_head()
    made.assert_equal()
    deliver(made, *numbers)
    made.assert_equal()


# -- segments ----------------------------------------------------------------------------------------------------------


def store(made: Case) -> Path:
    return made.folder / "store" / "case"


def folders(made: Case, *batches: int) -> list[Path]:
    return [store(made) / f"batch={batch:010d}" for batch in batches]


def folder_gone(made: Case, *batches: int) -> None:
    for folder in folders(made, *batches):
        shutil.rmtree(folder)


def manifest_gone(made: Case, *batches: int) -> None:
    for folder in folders(made, *batches):
        for path in folder.glob("manifest-*"):
            path.unlink()


def data_damaged(made: Case, *batches: int) -> None:
    for folder in folders(made, *batches):
        for path in [path for path in folder.rglob("*") if path.is_file() and b"\0" in path.read_bytes()][:1]:
            flip(path)  # one of a statement alone has no rows


def all_gone(made: Case, *batches: int) -> None:
    shutil.rmtree(store(made))


@pytest.mark.promise("E12")
@pytest.mark.parametrize("lost", [data_damaged, all_gone], ids=lambda f: f.__name__)
def test_lost_batches_are_captured_again(made: Case, lost: Callable[..., None]) -> None:
    deliver(made, 1)
    made.source.execute(f"UPDATE `{made.schema}`.t SET note = 'changed' WHERE id = 1")
    second = drained(made, 2)
    if (
        lost is not all_gone
    ):  # without the stored schema history it is not known what a statement changed, and the target says so
        made.source.execute(f"ALTER TABLE `{made.schema}`.t ADD COLUMN more INT")
    made.source.execute(f"INSERT INTO `{made.schema}`.t (id) VALUES (9)")
    third = drain(made.runtime(), claim="test:a:ddl", idle_wait_s=5).batch
    assert third is not None
    if lost is not data_damaged:  # what is merged does not need its segments
        merge(made.runtime(), second)
    runtime = made.runtime()
    with runtime.state() as state:
        before = [state.batches.require(number) for number in (second, third)]
    lost(made, second, third)
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


def test_the_log_was_purged_before_it_was_drained(made: Case) -> None:
    deliver(made, 1, 2)
    made.source.execute(f"DELETE FROM `{made.schema}`.t WHERE id = 1")
    insert(made, 3)
    made.source.execute("FLUSH BINARY LOGS")
    newest = made.source.execute("SHOW BINARY LOGS")[-1][0]
    made.source.execute(f"PURGE BINARY LOGS TO '{newest}'")
    with pytest.raises(LogPurged, match="purged before it was captured") as caught:
        made.run_until_head()
    assert "sluice recover case" in (caught.value.hint or "")
    recovered(made)
    goes_on(made, 4)
    assert rows(made, made.target) == [2, 3, 4]


# -- ZooKeeper ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_store", [True], ids=["with segments"])
def test_all_of_zookeeper_is_lost(made: Case, with_store: bool) -> None:
    deliver(made, 1, 2)
    second, third = drained(made, 3), drained(made, 4)
    with made.runtime().state() as state:
        identity = state.identity()
    epochs = made.target.execute(f"SELECT MAX(epoch) FROM `{made.schema}`._sluice_ack")[0][0]
    if with_store:
        epochs = max([epochs, *(int(path.stem.partition("-e")[2]) for path in store(made).glob("batch=*/manifest-e*"))])
    znodes(made, "")
    if not with_store:
        shutil.rmtree(store(made))
    insert(made, 5)
    with pytest.raises(CheckpointError, match="sluice recover case"):
        made.run_until_head()
    plan = look(made)
    assert losses(plan) == ["zookeeper"]
    shown = sluice(made, "recover", "case")
    assert re.search("zookeeper.*loss.*the store of positions has no state of this pipeline", shown)
    assert "zookeeper: the state is written anew" in shown
    assert "`sluice recover case --apply` does it" in shown
    recovered(made)
    with made.runtime().state() as state:
        cursor = state.cursor()
        assert cursor is not None
        assert cursor.next_batch == (third + 1 if with_store else second)
        assert state.undelivered() == ([second, third] if with_store else [])
        assert state.identity() == identity
        assert state.highest_epoch() >= epochs
        with state.replicator() as lease:
            assert lease.epoch > epochs
    goes_on(made, 6)


@pytest.mark.parametrize(("choice", "has"), [("redeliver", [1, 2, 3, 4, 5]), ("delivered", [1, 2, 4, 5])])
@pytest.mark.parametrize("is_edited", [True], ids=["edited"])
def test_zookeeper_is_lost_and_a_target_says_nothing(made: Case, choice: str, has: list[int], is_edited: bool) -> None:
    """As of one that keeps its checkpoint in ZooKeeper, or says what was never written: a person says what it holds."""
    deliver(made, 1, 2)
    batch = drained(made, 3)
    merge(made.runtime(), batch)
    znodes(made, "")
    edited(made) if is_edited else removed(made)
    plan = look(made)
    assert [set(question["choices"]) for question in plan["questions"]] == [{"redeliver", "delivered"}]
    why = "was edited" if is_edited else "says nothing"
    with pytest.raises(ConfigError, match=f"the store of positions is lost, and target copy .*{why}"):
        sluice(made, "recover", "case", "--apply", "--yes")
    recovered(made, "--choose", f"copy={choice}")
    made.run_until_head()
    deliver(made, 4, 5)
    assert rows(made, made.target) == has


# -- targets -----------------------------------------------------------------------------------------------------------


def ack_row(made: Case) -> list[Any]:
    return list(made.target.execute(f"SELECT * FROM `{made.schema}`._sluice_ack WHERE scope = ''"))


def put_back(made: Case, found: list[Any], keep: int) -> None:
    """As a backup of the target restores it."""
    made.target.execute(f"DELETE FROM `{made.schema}`.t WHERE id > {keep}")
    with made.target.connect(made.schema) as connection, connection.cursor() as cursor:
        cursor.execute("DELETE FROM _sluice_ack WHERE scope = ''")
        cursor.execute(f"INSERT INTO _sluice_ack VALUES ({', '.join(['%s'] * len(found[0]))})", found[0])
        connection.commit()


def test_a_target_restored_from_a_backup_catches_up_by_itself(made: Case) -> None:
    deliver(made, 1)
    backup = ack_row(made)
    deliver(made, 2, 3, 4)
    put_back(made, backup, 1)
    plan = look(made)
    assert losses(plan) == ["copy"]
    assert plan["questions"] == []
    insert(made, 5)
    made.run_until_head()
    made.assert_equal()
    with made.runtime().state() as state:
        said = state.audit.entries()[-1]
    assert (said["what"], said["by"], said["reason"]) == ("redeliver", "sluice", "the target was restored")
    goes_on(made, 6)


def empty(made: Case) -> None:
    made.target.execute(f"DROP DATABASE `{made.schema}`", f"CREATE DATABASE `{made.schema}`")


def removed(made: Case) -> None:
    made.target.execute(f"DELETE FROM `{made.schema}`._sluice_ack")


def edited(made: Case) -> None:
    made.target.execute(f"UPDATE `{made.schema}`._sluice_ack SET batch = batch - 1 WHERE scope = ''")


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


@pytest.mark.parametrize("happens", [empty, edited_to_fit], ids=lambda f: f.__name__)
def test_a_target_that_says_nothing_or_nonsense_is_never_guessed(made: Case, happens: Callable[[Case], None]) -> None:
    """Also an edited checkpoint whose batches are all stored: its number does not fit its position."""
    deliver(made, 1, 2, 3)
    made.source.execute(f"DELETE FROM `{made.schema}`.t WHERE id = 2")
    made.run_until_head()
    happens(made)
    insert(made, 4)
    with pytest.raises(SluiceError, match="sluice recover case"):
        made.run_until_head()
    [question] = look(made)["questions"]
    assert question["subject"] == "copy"
    assert {"copy", "verify"} <= set(question["choices"])
    assert ("checkpoint was edited" in question["why"]) == (happens in {edited, edited_to_fit})
    with pytest.raises(ConfigError, match="is no choice for copy"):
        sluice(made, "recover", "case", "--apply", "--yes", "--choose", "copy=maybe")
    recovered(made, "--choose", "copy=copy")
    goes_on(made, 5)


# -- the source --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", ["dump", "verify", "hint"])
def test_a_log_that_was_reset(
    tmp_path: Path, mysql_target: Any, zookeeper: Any, fresh_schema: Any, monkeypatch: Any, choice: str
) -> None:
    """RESET BINARY LOGS AND GTIDS: the numbers of files and transactions begin anew, and soon are as high as before.

    Nothing is read before a person chose, or did what the error says. Other ways in which a log goes back in time:
    test_source_back.py."""
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
                with pytest.raises((LostPosition, WrongServer)) as stopped:
                    made.run_until_head()
            if choice == "hint":
                said = (stopped.value.hint or "").replace("PIPELINE", "case")
                seek, *after = [one.split() for one in re.findall(r"`sluice ([^`]*)`", said) if "recover" not in one]
                sluice(made, *seek[:2], "latest", "--yes")
                with delivering(made):
                    sluice(made, *after[0], "--yes")
                goes_on(made, 30)
                return
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
