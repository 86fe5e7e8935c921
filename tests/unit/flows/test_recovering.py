"""``sluice recover``: every loss of a store in memory, and both sides equal after it."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.config.pipeline import PipelineConfig
from sluice.errors import CheckpointError, ConfigError, LogPurged, SegmentError, SluiceError
from sluice.flows.capture.drain import drain
from sluice.flows.dump.reconcile import kept_on_purpose
from sluice.flows.dump.start import start
from sluice.flows.dump.worker import work
from sluice.flows.load.ack import ack
from sluice.flows.load.load import load
from sluice.flows.runtime import Runtime
from sluice.flows.transform.merge import merge
from sluice.model.planned import PlannedTable
from sluice.model.tables import TableId
from sluice.operations.status import status
from sluice.targets.memory.target import MemoryReconciler, MemoryTarget
from sluice.targets.port import IDLE_WRITER_S, Checkpoint, OtherWriter
from tests.support.crashes.damage import flip
from tests.support.flows.recovering import drained, goes_on, look, losses, recovered, store
from tests.support.pipelines.case import Case
from tests.support.pipelines.dumping import both
from tests.support.pipelines.znodes import restored, saved, znodes
from tests.support.tables.numbered import deliver, insert, numbered_pipeline, rows, sluice


@pytest.fixture
def made(tmp_path: Path, twin_source: Any, twin_target: Any, twin_zookeeper: Any, fresh_schema: Any) -> Iterator[Case]:
    with numbered_pipeline(tmp_path, twin_source, twin_target, twin_zookeeper, fresh_schema) as one:
        yield one


# -- segments ----------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("lost", [folder_gone, manifest_gone, data_damaged, all_gone], ids=lambda f: f.__name__)
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


def test_lost_rows_of_a_dump_are_copied_again(made: Case) -> None:
    """They are not in the log. A table without a key is copied as a whole."""
    both(made, "CREATE TABLE k (a INT)")
    made.source.execute(
        f"USE `{made.schema}`", "INSERT INTO t VALUES (1, 'a'), (2, 'b')", "INSERT INTO k VALUES (5), (5), (6)"
    )
    made.run_until_head()
    made.target.execute(f"DELETE FROM `{made.schema}`.t")
    dump = start(made.runtime(), replace=True)
    worker = threading.Thread(target=lambda: work(made.runtime(), dump.id), daemon=True)
    worker.start()
    batches: list[int] = []
    while True:
        alive = worker.is_alive()
        found = drain(made.runtime(), claim=f"test:a:{len(batches)}", idle_wait_s=0.2).batch
        batches += [found] if found else []
        if found is None and (len(batches) > 1 or not alive):
            break
    assert batches
    folder_gone(made, *dict.fromkeys(batches))
    plan = look(made)
    assert "copied anew" in str(plan["measures"])
    recovered(made)
    goes_on(made, 7)


@pytest.mark.parametrize("lost", [folder_gone, data_damaged], ids=lambda f: f.__name__)
def test_the_log_is_purged_too(made: Case, lost: Callable[..., None]) -> None:
    """The tables are copied anew, deletes and all.

    What a target that takes every change lacks then: tests/unit/flows/test_recovery_plan.py.
    """
    deliver(made, 1, 2)
    made.source.execute(f"DELETE FROM `{made.schema}`.t WHERE id = 1")
    batch = drained(made, 3)
    lost(made, batch)
    made.source.execute("FLUSH BINARY LOGS")
    insert(made, 4)
    later = drain(made.runtime(), claim="test:a:later", idle_wait_s=5).batch
    assert later is not None
    made.source.execute("FLUSH BINARY LOGS")
    drain(made.runtime(), claim="test:a:none", idle_wait_s=0.2)
    newest = made.source.execute("SHOW BINARY LOGS")[-1][0]
    made.source.execute(f"PURGE BINARY LOGS TO '{newest}'")
    plan = look(made)
    assert plan["measures"][0]["lost"] == []
    recovered(made)
    goes_on(made, 5)
    assert rows(made, made.target) == [2, 3, 4, 5]


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
    assert [(one.part, one.kind) for one in status(made.runtime()).failures] == [("drain", "LogPurged")]
    recovered(made)
    goes_on(made, 4)
    assert rows(made, made.target) == [2, 3, 4]


# -- ZooKeeper ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_store", [True, False], ids=["with segments", "without segments"])
def test_all_of_zookeeper_is_lost(made: Case, with_store: bool) -> None:
    deliver(made, 1, 2)
    second, third = drained(made, 3), drained(made, 4)
    with made.runtime().state() as state:
        identity = state.identity()
    epochs = checkpoint(made).epoch
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


def test_zookeeper_is_restored_from_a_backup(made: Case) -> None:
    deliver(made, 1)
    backup = saved(made)
    deliver(made, 2, 3, 4)
    restored(made, backup)
    insert(made, 5)
    assert losses(look(made)) == ["zookeeper"]
    recovered(made)
    goes_on(made, 6)


@pytest.mark.parametrize(("choice", "has"), [("redeliver", [1, 2, 3, 4, 5]), ("delivered", [1, 2, 4, 5])])
def test_zookeeper_is_lost_and_a_target_says_nothing(made: Case, choice: str, has: list[int]) -> None:
    """As of one that keeps its checkpoint in ZooKeeper, or says what was never written: a person says what it holds."""
    deliver(made, 1, 2)
    batch = drained(made, 3)
    merge(made.runtime(), batch)
    znodes(made, "")
    removed(made)
    plan = look(made)
    assert [set(question["choices"]) for question in plan["questions"]] == [{"redeliver", "delivered"}]
    with pytest.raises(ConfigError, match=r"the store of positions is lost, and target copy .*says nothing"):
        sluice(made, "recover", "case", "--apply", "--yes")
    recovered(made, "--choose", f"copy={choice}")
    made.run_until_head()
    deliver(made, 4, 5)
    assert rows(made, made.target) == has


def test_an_edited_target_does_not_make_zookeepers_state_look_old(made: Case) -> None:
    deliver(made, 1, 2)
    held = checkpoint(made)
    made.target.store.checkpoints["case", "copy"] = replace(
        held, batch=held.batch + 5, epoch=held.epoch + 50, edited=True
    )
    plan = look(made)
    assert losses(plan) == ["copy"]
    [question] = plan["questions"]
    assert "checkpoint was edited" in question["why"]


def test_zookeeper_and_a_part_of_the_segments_are_lost(made: Case) -> None:
    """Two targets, one further than the other; a hole in the stored batches between them."""
    made.path.write_text(
        made.path.read_text().rstrip() + "\n  - {name: second, type: memory, connection: case_target}\n"
    )
    made.run_until_head()
    deliver(made, 1)
    numbers = [drained(made, number) for number in (2, 3, 4)]
    for number in numbers:
        merge(made.runtime(), number)
        load(made.runtime(), "second", number)
        ack(made.runtime(), "second", number)
    znodes(made, "")
    manifest_gone(made, numbers[1])
    recovered(made)
    goes_on(made, 5)


# -- targets -----------------------------------------------------------------------------------------------------------


def checkpoint(made: Case) -> Checkpoint:
    return made.target.store.checkpoints["case", "copy"]


def put_back(made: Case, found: Checkpoint, keep: int) -> None:
    """As a backup of the target restores it."""
    made.target.execute(f"DELETE FROM `{made.schema}`.t WHERE id > {keep}")
    made.target.store.checkpoints["case", "copy"] = found


def test_a_target_restored_from_a_backup_catches_up_by_itself(made: Case) -> None:
    deliver(made, 1)
    backup = checkpoint(made)
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


def test_recover_catches_a_restored_target_up_without_a_new_change(made: Case) -> None:
    deliver(made, 1)
    backup = checkpoint(made)
    deliver(made, 2, 3)
    put_back(made, backup, 1)
    recovered(made)
    goes_on(made, 4)


@pytest.mark.parametrize("choice", ["copy", "from-target"])
def test_a_restored_target_whose_batches_are_gone_is_one_question(made: Case, choice: str) -> None:
    deliver(made, 1)
    backup = checkpoint(made)
    deliver(made, 2, 3)
    put_back(made, backup, 1)
    folder_gone(made, 2)
    insert(made, 4)
    with pytest.raises(CheckpointError, match="sluice recover case"):
        made.run_until_head()
    [question] = look(made)["questions"]
    assert set(question["choices"]) == {"copy", "verify", "from-target"}
    with pytest.raises(ConfigError, match="not guessed") as caught:
        sluice(made, "recover", "case", "--apply", "--yes")
    assert "--choose copy=from-target" in (caught.value.hint or "")
    assert rows(made, made.target) == [1]
    recovered(made, "--choose", f"copy={choice}")
    goes_on(made, 5)


def empty(made: Case) -> None:
    removed(made)
    made.target.store.done.clear()
    made.target.execute(
        f"DROP TABLE `{made.schema}`.t", f"CREATE TABLE `{made.schema}`.t (id INT PRIMARY KEY, note VARCHAR(40))"
    )


def removed(made: Case) -> None:
    made.target.store.checkpoints.clear()


def edited(made: Case) -> None:
    """As the real targets see it by the seal of what was written together (tests/integration/flows/test_recover.py)."""
    held = checkpoint(made)
    made.target.store.checkpoints["case", "copy"] = replace(held, batch=held.batch - 1, edited=True)


def edited_to_fit(made: Case) -> None:
    """Batch and position of a batch that was delivered, as ZooKeeper knows it: the rows from there on would be loaded
    again, or left out.
    """
    with made.runtime().state() as state:
        before = state.batches.get(state.acks.get("copy").batch - 1)
    assert before is not None
    held = checkpoint(made)
    made.target.store.checkpoints["case", "copy"] = replace(
        held, batch=before.number, position=before.last, edited=True
    )


@pytest.mark.parametrize("happens", [empty, removed, edited, edited_to_fit], ids=lambda f: f.__name__)
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


@pytest.mark.promise("B47")
def test_a_batch_whose_worker_is_lost_is_taken_over_after_the_grace(made: Case) -> None:
    """Its run does not end; another run of the same installation delivers it."""
    batch = drained(made, 1)
    other = drain(made.runtime(), claim="test:a:other", idle_wait_s=0.1)
    assert other.batch is None  # 90 s by default
    made.path.write_text(made.path.read_text().replace("session_timeout:", "worker_grace: 1s, session_timeout:"))
    taken = drain(made.runtime(), claim="test:a:third", idle_wait_s=1.1)
    assert (taken.batch, taken.adopted) == (batch, True)
    with made.runtime().state() as state:
        assert state.batches.require(batch).claim == "test:a:third"
    goes_on(made, 2)


# -- the source --------------------------------------------------------------------------------------------------------


def without_ranges(monkeypatch: pytest.MonkeyPatch, listed: str = "") -> None:
    """Let the target remove listed keys only, or none of them, and say why."""

    class OfListedKeys(MemoryReconciler):
        def refuses(self, table: PlannedTable) -> str:
            return "its key is text"

        def refuses_listed(self, table: PlannedTable) -> str:
            return listed

    able = MemoryTarget.capabilities.fget
    assert able is not None
    declared = property(lambda self: replace(able(self), removes_listed_keys=True))
    monkeypatch.setattr(MemoryTarget, "capabilities", declared)
    monkeypatch.setattr(MemoryTarget, "reconciler", lambda self: OfListedKeys(self))


def purged(made: Case) -> None:
    """Delete a row, and the log that says so."""
    made.source.execute(f"DELETE FROM `{made.schema}`.t WHERE id = 1", "FLUSH BINARY LOGS")
    newest = made.source.execute("SHOW BINARY LOGS")[-1][0]
    made.source.execute(f"PURGE BINARY LOGS TO '{newest}'")


@pytest.mark.parametrize("listed", ["", "its kind removes nothing"], ids=["by listed keys", "not at all"])
def test_rows_that_a_copy_cannot_remove_are_in_the_plan_and_in_the_exit_status(
    made: Case, monkeypatch: pytest.MonkeyPatch, listed: str
) -> None:
    """Lake tables and PostgreSQL's text keys have no ranges: the copy keeps the rows, and what removes them is
    named.
    """
    without_ranges(monkeypatch, listed)
    deliver(made, 1, 2)
    purged(made)
    command = "sluice verify run case --target copy" + ("" if listed else " --repair")
    [measure] = look(made)["measures"]
    assert not any("are removed at" in step for step in measure["steps"])
    assert f"rows of {made.schema}.t at copy that the source does not have stay (its key is text)" in measure["left"]
    assert measure["after"] == command
    with pytest.raises(AssertionError, match="not done yet") as caught:
        sluice(made, "recover", "case", "--apply", "--yes")
    assert command in str(caught.value)
    made.run_until_head()
    assert rows(made, made.target) == [1, 2]
    assert losses(look(made)) == []


def test_no_rows_stay_in_a_table_that_the_target_lacks(made: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    without_ranges(monkeypatch)
    deliver(made, 1, 2)
    purged(made)
    made.target.execute(f"DROP TABLE `{made.schema}`.t")
    [measure] = look(made)["measures"]
    assert "rows that the source does not have are removed at copy" in measure["steps"]
    assert (measure["left"], measure["after"]) == ("", "")


def test_only_pipelines_that_write_the_same_table_keep_rows() -> None:
    table = TableId("shop", "t")
    config = PipelineConfig.model_validate({
        "pipeline": "p", "source": {"connection": "s"}, "capture": {"include": ["shop\\..*"]},
        "targets": [{"name": "copy", "type": "memory", "connection": "c"}],
    })  # fmt: skip
    runtime = Runtime.build(config, runner="local")
    for stays, other in {
        "": OtherWriter("b", frozenset({"shop.u", "crm.*"})),
        "is written by b": OtherWriter("b", frozenset({"shop.t"}), forget="DELETE FROM acks"),
        "is written by c": OtherWriter("c", frozenset({"shop.*"})),
        "run it once with this version, or, if it is gone, DELETE FROM acks": OtherWriter(
            "d", None, 60, "DELETE FROM acks"
        ),
    }.items():
        why = kept_on_purpose(runtime.pipeline, "copy", [other], table)
        assert (stays in why) if stays else not why
    assert not kept_on_purpose(runtime.pipeline, "copy", [OtherWriter("dead", None, 2 * IDLE_WRITER_S)], table)
