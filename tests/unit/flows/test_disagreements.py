"""A target's checkpoint and the state in ZooKeeper that do not describe the same batches: nothing is written or
acknowledged, and the command that the error prints leads to equal sides. The same with a MySQL and a ZooKeeper:
tests/integration/flows/test_checkpoints.py."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import CheckpointError, SluiceError
from sluice.flows.load.ack import ack
from sluice.flows.load.load import load
from sluice.flows.transform.merge import merge
from sluice.operations.check import check
from sluice.operations.status import status
from tests.support.twins.pipes import Pipe, pipe


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipe]:
    for one in pipe(tmp_path, "copy"):
        deliver(one, 1, 2)
        yield one


def insert(made: Pipe, number: int) -> None:
    made.commit(("insert", "a", (number, "x")))


def deliver(made: Pipe, *numbers: int) -> None:
    """A batch each."""
    for number in numbers:
        insert(made, number)
        made.deliver()


def forget(made: Pipe, path: str) -> None:
    """Delete this node and those below it, as somebody does with zkCli."""
    for found in [one for one in made.made.tree.nodes if one == path or one.startswith(f"{path}/")]:
        del made.made.tree.nodes[found]


def says(made: Pipe, **what: Any) -> None:
    """Change what the target says."""
    checkpoints = made.stores["copy"].checkpoints
    for owner, checkpoint in checkpoints.items():
        checkpoints[owner] = replace(checkpoint, **what)


def said(made: Pipe) -> Any:
    [checkpoint] = made.stores["copy"].checkpoints.values()
    return checkpoint


# -- what happens after two batches ------------------------------------------------------------------------------------


def deleted_node(made: Pipe) -> None:
    forget(made, f"/data/sync/{made.made.runtime().name}")


def deleted_root(made: Pipe) -> None:
    forget(made, "/data/sync")


def deleted_cursor(made: Pipe) -> None:
    forget(made, f"/data/sync/{made.made.runtime().name}/replicator")


def deleted_node_and_epoch(made: Pipe) -> None:
    """The obvious cure for "a newer run is at work"."""
    deleted_node(made)
    says(made, epoch=0)


def batch_ahead(made: Pipe) -> None:
    says(made, batch=said(made).batch + 1)


def batch_far_ahead(made: Pipe) -> None:
    says(made, batch=said(made).batch + 40)


def epoch_ahead(made: Pipe) -> None:
    says(made, epoch=said(made).epoch + 1000)


def another_identity(made: Pipe) -> None:
    says(made, identity="somebody else")


def older_target(made: Pipe) -> None:
    """Restored from a backup of a batch ago, rows and checkpoint."""
    rows = made.stores["copy"].tables[made.made.table].rows
    for key in [key for key in rows if key > (1,)]:
        del rows[key]
    says(made, batch=1, position=None)


def no_checkpoint(made: Pipe) -> None:
    made.stores["copy"].checkpoints.clear()


def empty_target(made: Pipe) -> None:
    no_checkpoint(made)
    made.stores["copy"].tables[made.made.table].rows.clear()


WITH_POSITION = [
    deleted_node, deleted_root, deleted_cursor, deleted_node_and_epoch, batch_ahead, batch_far_ahead, epoch_ahead,
    another_identity,
]  # fmt: skip
WITHOUT = [older_target, no_checkpoint, empty_target]


@pytest.mark.parametrize("happens", [*WITH_POSITION, *WITHOUT], ids=lambda f: f.__name__)
def test_nothing_is_lost_and_the_error_says_the_way(made: Pipe, happens: Callable[[Pipe], None]) -> None:
    happens(made)
    insert(made, 3)
    there = made.rows()
    for number in range(4, 8):  # as a scheduler's retries do; more of them than there were batches
        with pytest.raises(CheckpointError) as caught:
            made.deliver()
        insert(made, number)
        assert made.rows() == there
    assert "target copy" in str(caught.value)
    assert "ZooKeeper, /data/sync" in str(caught.value)
    shown = status(made.made.runtime())
    assert shown.state == "stopped"
    assert any("do not agree" in text for text in shown.errors)
    found = [f.setting for f in check(made.made.runtime()).findings if f.part == "target copy"]
    assert found == ["CheckpointError"]
    hint = caught.value.hint or ""
    command = re.findall(r"`sluice ([^`]*)`", hint)[0].split()
    assert command[0] == ("redeliver" if happens in WITHOUT else "adopt"), hint
    made.sluice(*command, "--yes")
    made.deliver()
    assert made.rows() == made.made.rows()
    assert sorted(made.rows()) == list(range(1, 8))
    assert status(made.made.runtime()).state == "idle"
    with made.made.runtime().state() as state:
        assert [entry["what"] for entry in state.audit.entries()][-1] == command[0]
    deliver(made, 99)
    assert made.rows() == made.made.rows()


@pytest.mark.parametrize(
    "happens", [deleted_root, deleted_cursor, batch_ahead, no_checkpoint], ids=lambda f: f.__name__
)
def test_a_reset_says_what_it_leaves_out_and_goes_on(made: Pipe, happens: Callable[[Pipe], None]) -> None:
    happens(made)
    insert(made, 3)
    with pytest.raises(CheckpointError):
        made.deliver()
    reset = ("adopt", made.made.runtime().name, "copy", "--reset")
    plan = made.sluice(*reset, "--dry-run")
    with pytest.raises(CheckpointError):
        made.deliver()
    made.sluice(*reset, "--yes")
    made.deliver()
    deliver(made, 4)
    lacks = set(made.made.rows()) - set(made.rows())
    assert lacks <= {3}
    if lacks:
        assert "NOT delivered" in plan
    assert status(made.made.runtime()).state == "idle"


@pytest.mark.parametrize(
    "happens", [deleted_node, no_checkpoint, another_identity, batch_ahead], ids=lambda f: f.__name__
)
def test_every_task_of_a_run_refuses(made: Pipe, happens: Callable[[Pipe], None]) -> None:
    """Airflow clears what it likes, in any order."""
    insert(made, 3)
    runtime = made.made.runtime()
    batch = made.made.drain(deliver=False).batch
    assert batch == 3
    merge(runtime, batch)
    load(runtime, "copy", batch)
    happens(made)
    for work in (ack, load, ack):
        with pytest.raises(SluiceError):
            work(made.made.runtime(), "copy", batch)
    if happens is not no_checkpoint:  # then a redelivery is the way
        with pytest.raises(SluiceError):
            made.sluice("redeliver", runtime.name, "copy", "--yes")
    with pytest.raises(SluiceError):
        made.sluice("skip", runtime.name, "copy", "3", "--yes")
