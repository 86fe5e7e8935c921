"""A target's checkpoint and ZooKeeper's state that do not speak of the same batches: nothing is written or
acknowledged, and the way on that is printed leads to equal sides. Every way in which they can differ, and what people
do then: test_disagreements.py and test_checkpoints_apart.py in tests/unit/flows."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from sluice.errors import CheckpointError
from sluice.flows.capture.drain import drain
from sluice.flows.load.ack import ack
from sluice.flows.load.load import load
from sluice.flows.transform.merge import merge
from sluice.operations.check import check
from sluice.operations.status import status
from tests.support.pipelines.case import Case
from tests.support.pipelines.znodes import znodes
from tests.support.tables.numbered import deliver, insert, numbered_pipeline, rows, sluice


@pytest.fixture
def made(tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any) -> Iterator[Case]:
    with numbered_pipeline(tmp_path, mysql_source, mysql_target, zookeeper, fresh_schema) as one:
        yield one


def ack_row(made: Case, change: str) -> None:
    made.target.execute(f"UPDATE `{made.schema}`._sluice_ack SET {change} WHERE scope = ''")


# -- what happens after two batches -------------------------------------------------------------------------


def deleted_node(made: Case) -> None:
    znodes(made, "case")


def another_root(made: Case) -> None:
    made.path.write_text(
        made.path.read_text().replace(f'root: "/test/{made.schema}"', f'root: "/test/{made.schema}/new"')
    )


def batch_ahead(made: Case) -> None:
    ack_row(made, "batch = batch + 1")


def no_row(made: Case) -> None:
    made.target.execute(f"DELETE FROM `{made.schema}`._sluice_ack")


def empty_target(made: Case) -> None:
    made.target.execute(f"DROP TABLE `{made.schema}`._sluice_ack", f"TRUNCATE TABLE `{made.schema}`.t")


@pytest.mark.parametrize(
    ("happens", "way"), [(another_root, "adopt"), (empty_target, "redeliver")], ids=["root", "empty"]
)
def test_nothing_is_lost_and_the_error_says_the_way(made: Case, happens: Callable[[Case], None], way: str) -> None:
    deliver(made, 1, 2)
    happens(made)
    insert(made, 3)
    there = rows(made, made.target)
    for number in range(4, 8):  # as a scheduler's retries do; more of them than there were batches
        with pytest.raises(CheckpointError) as caught:
            made.run_until_head()
        insert(made, number)
        assert rows(made, made.target) == there
    message = str(caught.value)
    assert "target copy" in message
    assert "_sluice_ack" in message
    assert f"ZooKeeper, /test/{made.schema}" in message
    shown = status(made.runtime())
    assert shown.state == "stopped"
    assert any("do not agree" in text for text in shown.errors)
    assert [f.setting for f in check(made.runtime()).findings if f.part == "target copy"] == ["CheckpointError"]
    hint = caught.value.hint or ""
    command = re.findall(r"`sluice ([^`]*)`", hint)[0].split()
    assert command[0] == way, hint
    sluice(made, *command, "--yes")
    made.run_until_head()
    made.assert_equal("t")
    assert rows(made, made.target) == list(range(1, 8))
    assert status(made.runtime()).state == "idle"
    with made.runtime().state() as state:
        assert [entry["what"] for entry in state.audit.entries()][-1] == command[0]
    deliver(made, 99)
    made.assert_equal("t")


# -- states of an older version ----------------------------------------------------------------------------------------


def as_an_older_version_left_it(made: Case) -> None:
    """No identity anywhere, no index of claims."""
    made.target.execute(f"ALTER TABLE `{made.schema}`._sluice_ack DROP COLUMN identity")
    znodes(made, "case/identity", "case/claims")
    path = f"/test/{made.schema}/replicator/case.copy/process"
    client = KazooClient(made.zookeeper_hosts)
    client.start()
    try:
        data = client.get(path)[0].decode()
        client.set(path, re.sub(r',"identity":"\w+"', "", data).encode())
        assert "identity" not in client.get(path)[0].decode()
    finally:
        client.stop()
        client.close()


def test_a_pipeline_of_an_older_version_goes_on(made: Case) -> None:
    deliver(made, 1, 2)
    as_an_older_version_left_it(made)
    assert status(made.runtime()).state == "idle"
    assert not check(made.runtime()).failed
    deliver(made, 3)
    made.assert_equal("t")
    with made.runtime().state() as state:
        identity, process = state.identity(), state.acks.get("copy")
    assert [
        row[0] for row in made.target.execute(f"SELECT identity FROM `{made.schema}`._sluice_ack WHERE scope = ''")
    ] == [identity]
    assert process is not None


@pytest.mark.parametrize("happens", [deleted_node, batch_ahead, no_row], ids=lambda f: f.__name__)
def test_an_older_versions_checkpoint_is_only_adopted_where_it_fits(
    made: Case, happens: Callable[[Case], None]
) -> None:
    deliver(made, 1, 2, 3)
    as_an_older_version_left_it(made)
    happens(made)
    insert(made, 4)
    for _ in range(5):
        with pytest.raises(CheckpointError):
            made.run_until_head()
    assert rows(made, made.target) == [1, 2, 3]


def test_a_state_that_an_older_version_began_anew_is_refused(made: Case) -> None:
    """The loss as it was: the new count has come further than the old one before anybody looks."""
    deliver(made, 1, 2)
    client = KazooClient(made.zookeeper_hosts)
    client.start()
    try:
        left = {name: client.get(f"/test/{made.schema}/{name}")[0] for name in ("replicator/case.copy/process",)}
        client.delete(f"/test/{made.schema}", recursive=True)
        made.target.execute(f"RENAME TABLE `{made.schema}`._sluice_ack TO `{made.schema}`.kept")
        shutil.rmtree(made.folder / "store")  # an older version counted from 1, whatever was stored
        runtime = made.runtime()
        drain(runtime, claim="test:a:0", idle_wait_s=0.1)
        for number in (3, 4, 5):
            insert(made, number)
            batch = drain(runtime, claim=f"test:a:{number}", idle_wait_s=5).batch
            assert batch is not None
            merge(runtime, batch)
        made.target.execute(f"RENAME TABLE `{made.schema}`.kept TO `{made.schema}`._sluice_ack")
        with pytest.raises(CheckpointError):
            load(runtime, "copy", 1)
        for name, data in left.items():
            client.set(f"/test/{made.schema}/{name}", data)
        for batch in (1, 2, 3):
            for work in (load, ack):
                with pytest.raises(CheckpointError):
                    work(runtime, "copy", batch)
    finally:
        client.stop()
        client.close()
    sluice(made, "adopt", "case", "copy", "--from-target", "--yes")
    made.run_until_head()
    made.assert_equal("t")
