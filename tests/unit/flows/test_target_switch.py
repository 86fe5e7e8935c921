"""One command writes a target of every pipeline of a group at another server; one that lacks what was acknowledged is
refused. The same with two MySQL servers: tests/integration/flows/test_target_group.py.
"""

from __future__ import annotations

import copy
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from sluice.config.connections import Endpoint
from sluice.config.pipeline import PipelineConfig, TargetConfig
from sluice.coordination.memory import MemoryTree
from sluice.errors import CheckpointError, ConfigError, OutOfOrder, SegmentError, SluiceError
from sluice.flows.load.ack import ack
from sluice.flows.load.load import load
from sluice.flows.run import run
from sluice.flows.transform.merge import merge
from sluice.operations import target_switch
from sluice.operations.check import check
from sluice.operations.groups import GroupKind, members, move_group
from sluice.operations.recover.recover import recover
from sluice.operations.status import status
from sluice.operations.target_switch import switch
from sluice.targets.memory.store import MemoryStore, forget_store, memory_store
from tests.support.twins.serverless import Serverless, TreeRuntime, serverless


@dataclass
class Pipeline(Serverless):
    """A pipeline with a target that is one of two stores."""

    def runtime(self) -> TreeRuntime:
        source, name = self.case.endpoint, self.folder.name

        def resolver(connection: str) -> Endpoint:
            return Endpoint(connection, "memory", f"{name}-{connection}") if connection.startswith("wh") else source

        made = TreeRuntime(self.case.config, resolver, "local", self.folder / "rules")
        made.tree = self.tree
        return made

    def store(self, connection: str) -> MemoryStore:
        return memory_store(f"{self.folder.name}-{connection}")

    def replicate(self) -> None:
        """Make the second server equal to the first one, with its checkpoint."""
        first, second = self.store("wh1"), self.store("wh2")
        second.tables = {name: table.copy() for name, table in first.tables.items()}
        second.checkpoints, second.done = dict(first.checkpoints), dict(first.done)
        second.writes = copy.deepcopy(first.writes)

    def deliver(self, *numbers: int) -> None:
        """A batch each."""
        for number in numbers:
            self.case.commit(("insert", "a", (number, f"n{number}")))
            list(run(self.runtime(), until_head=True))

    def at(self, connection: str) -> dict[Any, Any]:
        return {row["id"]: row["v"] for row in self.store(connection).tables[self.table].all()}

    def written(self) -> str:
        return status(self.runtime()).targets[0].server


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipeline]:
    monkeypatch.setattr(target_switch, "PATIENCE_S", 0.0)
    (tmp_path / "rules").mkdir()
    target = {"name": "t", "type": "memory", "connections": ["wh1", "wh2"], "group": "warehouse"}
    with serverless(tmp_path, targets=[target]) as one:
        pipeline = Pipeline(one.case, tmp_path)
        for connection in ("wh1", "wh2"):
            pipeline.store(connection).create(pipeline.table, ["id", "v"], ["id"])
        pipeline.begin()
        yield pipeline
        for connection in ("wh1", "wh2"):
            forget_store(pipeline.store(connection).name)


def moved(made: Pipeline, to: str = "", **named: Any) -> tuple[str, ...]:
    return switch(made.runtime(), "t", to, **{"by": "me", "reason": "a test", "dry_run": False, **named}).steps


@pytest.mark.promise("G2")
def test_the_other_server_is_written_and_the_first_one_again(made: Pipeline) -> None:
    made.deliver(1, 2)
    made.replicate()
    plan = moved(made, dry_run=True)
    assert "written at wh2 from now on" in plan[0]
    assert made.written() == "wh1"
    assert moved(made) == plan
    assert made.written() == "wh2"
    made.deliver(3)
    assert made.at("wh1") == {1: "n1", 2: "n2"}
    assert made.at("wh2") == {1: "n1", 2: "n2", 3: "n3"}
    assert status(made.runtime()).state == "idle"
    with made.runtime().state() as state:
        [entry] = [entry for entry in state.audit.entries() if entry["what"] == "switch target"]
    assert (entry["by"], entry["from"], entry["to"], entry["reason"]) == ("me", "wh1", "wh2", "a test")
    assert moved(made, "wh2") == ("target t: wh2 is written already",)
    moved(made, "wh1", rewind=True)
    made.deliver(4)
    assert made.at("wh1") == made.rows()


@pytest.mark.promise("G2")
def test_a_server_that_lacks_what_was_acknowledged_is_refused(made: Pipeline) -> None:
    made.deliver(1)
    made.replicate()
    made.deliver(2, 3)
    with pytest.raises(CheckpointError, match="wh2 lacks 2 batches, 2 changes that were acknowledged") as caught:
        moved(made)
    assert "--to wh2 --rewind` delivers them again" in str(caught.value.hint)
    assert made.written() == "wh1"
    made.deliver(4)
    [line] = [one for one in check(made.runtime()).findings if one.setting == "server wh2"]
    assert (line.severity, "lacks 3 batches" in line.why) == ("warning", True)
    assert made.at("wh2") == {1: "n1"}


def test_what_it_lacks_is_delivered_again_on_demand(made: Pipeline) -> None:
    made.deliver(1)
    made.replicate()
    made.deliver(2, 3)
    assert "lacks batches 2 to 3: they are delivered again" in moved(made, rewind=True)[1]
    made.deliver(4)
    assert made.at("wh2") == made.rows() == {1: "n1", 2: "n2", 3: "n3", 4: "n4"}
    assert made.at("wh1") == {1: "n1", 2: "n2", 3: "n3"}


def test_what_is_no_longer_stored_is_not_delivered_again(made: Pipeline) -> None:
    made.deliver(1)
    made.replicate()
    made.deliver(2, 3)
    for folder in (made.folder / "store").rglob("batch=0000000002"):
        shutil.rmtree(folder)
    with pytest.raises(CheckpointError, match="wh2 lacks 2 batches") as caught:
        moved(made)
    assert "no longer all stored" in str(caught.value.hint)
    with pytest.raises(SegmentError, match="batch 2 is no longer stored"):
        moved(made, rewind=True)
    assert made.written() == "wh1"


def test_a_server_of_another_state_is_refused(made: Pipeline) -> None:
    made.deliver(1)
    made.replicate()
    checkpoints = made.store("wh2").checkpoints
    for owner, checkpoint in checkpoints.items():
        checkpoints[owner] = replace(checkpoint, identity="another")
    for rewind in (False, True):
        with pytest.raises(CheckpointError, match=r"wh2: .*another state of this pipeline"):
            moved(made, rewind=rewind)
    assert made.written() == "wh1"


def test_a_loader_that_was_paused_cannot_write_or_acknowledge_afterwards(made: Pipeline) -> None:
    """It holds batch 2 at the first server, which the other one lacks: that is loaded there, too."""
    made.deliver(1)
    made.replicate()
    made.case.commit(("insert", "a", (2, "n2")))
    batch = made.drain(deliver=False).batch
    assert batch == 2
    merge(made.runtime(), batch)
    load(made.runtime(), "t", batch)
    late = made.runtime()
    with late.state() as state:
        before = state.acks.get("t")
        moved(made)
        with pytest.raises(OutOfOrder, match="the position moved meanwhile"):
            state.acks.acknowledge("t", state.batches.require(batch), seen=before)
    with pytest.raises(OutOfOrder, match="holds batch 1"):
        ack(made.runtime(), "t", batch)
    owner, checkpoint = next(iter(made.store("wh1").checkpoints.items()))
    assert owner[1] == "t"
    assert checkpoint.epoch > made.store("wh2").checkpoints[owner].epoch - 1, "both are fenced by the same epoch"
    list(run(made.runtime(), until_head=True))
    assert made.at("wh2") == made.rows() == {1: "n1", 2: "n2"}


def test_a_switch_needs_no_first_server(made: Pipeline) -> None:
    made.deliver(1)
    made.replicate()
    made.store("wh1").away = True
    assert "wh1 could not be told" in moved(made)[-1]
    made.deliver(2)
    assert made.at("wh2") == made.rows()


@pytest.mark.parametrize("away", [False, True], ids=["both answer", "the first is away"])
def test_the_server_that_was_written_last_is_found_without_zookeeper(made: Pipeline, away: bool) -> None:
    made.deliver(1)
    made.replicate()
    moved(made)
    made.deliver(2)
    made.store("wh1").away = away
    made.tree = MemoryTree()
    plan = recover(made.runtime(), {}, by="me", dry_run=False)
    assert "target t is written at wh2, which was written last" in plan.measures[0].steps
    assert made.written() == "wh2"
    made.deliver(3)
    assert made.at("wh2") == made.rows() == {1: "n1", 2: "n2", 3: "n3"}


def test_a_group_that_was_never_switched_stays_at_its_first_server_without_zookeeper(made: Pipeline) -> None:
    made.deliver(1)
    made.replicate()
    made.tree = MemoryTree()
    recover(made.runtime(), {}, by="me", dry_run=False)
    made.deliver(2)
    assert (made.written(), made.at("wh1"), made.at("wh2")) == ("wh1", made.rows(), {1: "n1"})


@pytest.mark.promise("G2")
def test_a_switch_under_load_loses_and_doubles_nothing(made: Pipeline) -> None:
    made.deliver(1)
    made.replicate()
    stop, delivered = threading.Event(), threading.Semaphore(0)

    def load_on() -> None:
        number = 1
        while not stop.is_set():
            number += 1
            made.case.commit(("insert", "a", (number, f"n{number}")))
            try:
                list(run(made.runtime(), until_head=True))
                delivered.release()
            except SluiceError as error:  # it is restarted, or another process has the lease; a scheduler tries again
                if not error.retryable:
                    raise

    thread = threading.Thread(target=load_on, daemon=True)
    thread.start()
    try:
        for to in ("wh2", "wh1", "wh2"):
            for _ in range(3):
                assert delivered.acquire(timeout=60)
            while True:
                try:
                    moved(made, to, rewind=True)
                    break
                except SluiceError as error:
                    if not (error.retryable or isinstance(error, CheckpointError)):
                        raise
    finally:
        stop.set()
        thread.join(60)
    list(run(made.runtime(), until_head=True))
    assert made.at("wh2") == made.rows()


def test_a_group_moves_together_and_one_that_is_refused_holds_up_no_other(made: Pipeline) -> None:
    made.deliver(1)
    made.replicate()
    other = made.case.config.model_copy(update={"pipeline": "new"})
    new = Pipeline(replace(made.case, config=other), made.folder)
    order = {"to": "wh2", "reason": "", "rewind": False}
    runtimes = [new.runtime(), made.runtime()]
    moves = list(move_group(GroupKind.TARGET, "warehouse", runtimes, order, by="me", dry_run=False))
    assert [(one.pipeline == "new", one.error is None) for one in moves] == [(True, False), (False, True)]
    assert made.written() == "wh2"


FILE = """\
version: 1
pipeline: {name}
source: {{connection: db1}}
capture: {{include: ["s[.].*"]}}
targets: [{{name: t, type: memory, connections: [wh1, wh2], group: {group}}}]
"""


def test_a_group_is_the_pipelines_whose_targets_name_it(tmp_path: Path) -> None:
    for name, group in (("b", "warehouse"), ("a", "warehouse"), ("c", "office")):
        (tmp_path / f"{name}.yaml").write_text(FILE.format(name=name, group=group))
    assert [one.pipeline for one in members(GroupKind.TARGET, "warehouse", tmp_path)] == ["a", "b"]
    with pytest.raises(ConfigError, match=r"no pipeline has the target group 'warehuose'; did you mean 'warehouse'"):
        members(GroupKind.TARGET, "warehuose", tmp_path)


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ({"connection": "a", "group": "g"}, "a target with a group has several servers"),
        ({"connection": "a", "connections": ["b"]}, "connection for one server, or connections for a group"),
        ({}, "connection is missing: the id of the target's connection"),
        ({"connections": ["a", "a"]}, "names a server twice"),
    ],
)
def test_a_group_is_named_by_its_servers(target: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        TargetConfig.model_validate({"name": "t", "type": "memory", **target})


def test_a_target_that_keeps_no_checkpoint_is_not_switched(made: Pipeline) -> None:
    config = made.case.config
    target = config.targets[0].model_copy(update={"options": {"keeps_checkpoint": False}})
    made.case.config = PipelineConfig.model_validate({
        **config.model_dump(by_alias=True, exclude_unset=True, mode="json"),
        "targets": [{"name": "t", "type": "memory", "connections": ["wh1", "wh2"], "options": target.options}],
    })
    made.deliver(1)
    with pytest.raises(ConfigError, match="keeps no checkpoint of its own"):
        moved(made)
