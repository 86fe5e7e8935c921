"""A target's checkpoint and ZooKeeper's state that do not speak of the same batches: nothing is written or
acknowledged, and the way on that is printed leads to equal sides. Every way in which they can differ:
tests/unit/flows/test_disagreements.py."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import CheckpointError, SegmentError
from sluice.flows.capture.drain import drain
from sluice.flows.load.ack import ack
from sluice.flows.load.load import load
from sluice.flows.transform.merge import merge
from tests.support.pipelines.case import Case, case
from tests.support.pipelines.znodes import restored, saved, znodes
from tests.support.tables.numbered import deliver, insert, numbered_pipeline, sluice


@pytest.fixture
def made(tmp_path: Path, twin_source: Any, twin_target: Any, twin_zookeeper: Any, fresh_schema: Any) -> Iterator[Case]:
    with numbered_pipeline(tmp_path, twin_source, twin_target, twin_zookeeper, fresh_schema) as one:
        yield one


def test_the_initial_copy_is_not_taken_for_delivered(
    tmp_path: Path, twin_source: Any, twin_target: Any, twin_zookeeper: Any, fresh_schema: Any
) -> None:
    schema = fresh_schema(twin_source, twin_target)
    for server in (twin_source, twin_target):
        server.execute(f"CREATE TABLE `{schema}`.t (id INT PRIMARY KEY, note VARCHAR(40))")
    twin_source.execute(f"INSERT INTO `{schema}`.t VALUES (1, 'before')")
    with case(tmp_path, twin_source, twin_target, twin_zookeeper, schema, start="dump") as made:
        made.run_until_head()
        deliver(made, 2, 3)
        znodes(made, "case")
        held = twin_target.store.checkpoints["case", "copy"]
        twin_target.store.checkpoints["case", "copy"] = replace(held, epoch=0)
        twin_target.execute(f"DELETE FROM `{schema}`.t")
        for _ in range(4):
            with pytest.raises(CheckpointError):
                made.run_until_head()
        sluice(made, "adopt", "case", "copy", "--reset", "--yes")
        made.run_until_head()
        made.assert_equal("t")


def test_a_new_target_still_joins(made: Case) -> None:
    deliver(made, 1, 2)
    made.path.write_text(made.path.read_text().rstrip() + "\n  - {name: late, type: memory, connection: case_target}\n")
    made.run_until_head()
    deliver(made, 3)
    with made.runtime().state() as state:
        assert {t: state.acks.get(t).batch for t in ("copy", "late")} == {"copy": 3, "late": 3}


@pytest.mark.parametrize("window", [1, 4])
def test_zookeeper_is_restored_from_a_backup(made: Case, window: int) -> None:
    """With the same identity; and with a window in which the count passes the target's before the first load."""
    made.path.write_text(made.path.read_text() + f"window: {window}\n")
    deliver(made, 1)
    backup = saved(made)
    deliver(made, 2, 3, 4)
    restored(made, backup)
    runtime = made.runtime()
    for number in range(5, 5 + window):
        insert(made, number)
        batch = drain(runtime, claim=f"test:a:{number}", idle_wait_s=5).batch
        assert batch is not None
        merge(runtime, batch)
    for _ in range(6):
        with pytest.raises(CheckpointError) as caught:
            load(runtime, "copy", 2)
        with pytest.raises(CheckpointError):
            ack(runtime, "copy", 2)
    assert caught.value.kind == ("ahead" if window == 1 else "position")
    sluice(made, "adopt", "case", "copy", "--from-target", "--yes")
    made.run_until_head()
    made.assert_equal("t")
    deliver(made, 20)
    made.assert_equal("t")


def test_a_reset_forgets_what_tables_without_a_key_remember(made: Case) -> None:
    """They remember the number of the batch that they hold, and numbers mean something else now."""
    for server in (made.source, made.target):
        server.execute(f"CREATE TABLE IF NOT EXISTS `{made.schema}`.k (a INT)")
    deliver(made, 1)
    backup = saved(made)
    for number in (2, 3):
        made.source.execute(f"INSERT INTO `{made.schema}`.k VALUES ({number})")
        made.run_until_head()
    restored(made, backup)
    made.target.execute(f"DELETE FROM `{made.schema}`.k")  # as both were restored, but for the row
    with pytest.raises(CheckpointError):
        made.run_until_head()
    sluice(made, "adopt", "case", "copy", "--reset", "--yes")
    made.run_until_head()
    assert sorted(row[0] for row in made.target.execute(f"SELECT a FROM `{made.schema}`.k")) == [2, 3]


def test_an_older_target_whose_batches_are_no_longer_stored(made: Case) -> None:
    deliver(made, 1)
    backup = made.target.store.checkpoints["case", "copy"]
    deliver(made, 2, 3)
    made.target.execute(f"DELETE FROM `{made.schema}`.t WHERE id > 1")
    held = made.target.store.checkpoints["case", "copy"]
    made.target.store.checkpoints["case", "copy"] = replace(held, batch=backup.batch, position=backup.position)
    shutil.rmtree(made.folder / "store/case/batch=0000000002")
    insert(made, 4)
    with pytest.raises(CheckpointError, match="sluice redeliver case copy"):
        made.run_until_head()
    with pytest.raises(SegmentError, match="sluice adopt case copy --from-target"):
        sluice(made, "redeliver", "case", "copy", "--yes")
    sluice(made, "adopt", "case", "copy", "--from-target", "--yes")
    made.run_until_head()
    made.assert_equal("t")
