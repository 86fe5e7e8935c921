"""What a batch reads of ZooKeeper and of the store does not grow with what is remembered there."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.coordination.port import Create
from sluice.coordination.state import KEPT_BATCHES
from sluice.coordination.zookeeper import ZookeeperZnodes
from sluice.flows.capture.drain import drain
from sluice.flows.load.ack import ack
from sluice.flows.load.load import load
from sluice.flows.transform.merge import merge
from sluice.model.definitions import Unknown
from sluice.model.dumps import Dump, DumpState, TableRequest
from sluice.model.tables import TableId
from sluice.operations.status import status
from sluice.segments.schemas import SchemaStore
from sluice.segments.store import SegmentStore
from tests.support.pipelines.case import Case
from tests.support.tables.numbered import numbered_pipeline

FIRST = 400
"""Number of the first real batch; those that are remembered have smaller ones."""

FEW, MANY = 12, KEPT_BATCHES - 10


@pytest.fixture
def made(tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any) -> Iterator[Case]:
    with numbered_pipeline(tmp_path, mysql_source, mysql_target, zookeeper, fresh_schema, begin=False) as one:
        (tmp_path / f"store/case/batch={FIRST - 1:010d}").mkdir(parents=True)
        one.run_until_head()
        yield one


class Reads:
    """Reads of ZooKeeper by path, and of the store by method."""

    def __init__(self) -> None:
        self.znodes: Counter[str] = Counter()
        self.store: Counter[str] = Counter()

    def totals(self) -> tuple[int, dict[str, int]]:
        """Return the reads without those of the pause switch, which work under way looks at from time to time."""
        return sum(count for path, count in self.znodes.items() if not path.endswith("/permit")), dict(self.store)


@contextmanager
def counted(monkeypatch: Any) -> Iterator[Reads]:
    reads = Reads()

    def counting(counter: Counter[str], original: Callable[..., Any], name: str = "") -> Callable[..., Any]:
        def call(self: Any, *arguments: Any) -> Any:
            counter[name or arguments[0]] += 1
            return original(self, *arguments)

        return call

    with monkeypatch.context() as patched:
        for name in ("get", "children"):
            patched.setattr(ZookeeperZnodes, name, counting(reads.znodes, getattr(ZookeeperZnodes, name)))
        for name in (
            "read_bytes",
            "read_text",
            "open_input",
            "exists",
            "batches",
            "files",
            "list_files",
            "folders",
            "checksum",
        ):
            patched.setattr(SegmentStore, name, counting(reads.store, getattr(SegmentStore, name), name))
        listed = SegmentStore.filesystem.fget
        assert listed is not None
        patched.setattr(SegmentStore, "filesystem", property(counting(reads.store, listed, "filesystem")))
        yield reads


def one_batch(made: Case, number: int, monkeypatch: Any) -> dict[str, Reads]:
    """Each step by itself, as Airflow's tasks are."""
    made.source.execute(f"INSERT INTO `{made.schema}`.t VALUES ({number}, 'n')")
    found: dict[str, Reads] = {}

    def step(name: str, work: Callable[[], Any]) -> Any:
        with counted(monkeypatch) as found[name]:
            return work()

    batch = step("drain", lambda: drain(made.runtime(), claim=f"test:a:{number}", idle_wait_s=5)).batch
    step("merge", lambda: merge(made.runtime(), batch))
    step("load", lambda: load(made.runtime(), "copy", batch))
    step("ack", lambda: ack(made.runtime(), "copy", batch))
    assert step("status", lambda: status(made.runtime())).state == "idle"
    assert sum(count for path, count in found["load"].znodes.items() if path.endswith(f"/batches/{batch:010d}")) == 1
    return found


def remember(made: Case, low: int, high: int, *, ago_s: float = 3600.0) -> None:
    """Batches, dumps that ended, entries of the audit, ``low`` to ``high`` of each, and definitions that changed, as if
    made before.
    """
    store = made.folder / "store/case"
    with made.runtime().state() as state:
        known = state.batches.require(FIRST)
        znodes = state._z
        now = int((time.time() - ago_s) * 1000)
        for number in range(FIRST - high, FIRST - low):
            data = json.dumps(replace(known, number=number, claim=f"test:old:{number}").to_json()).encode()
            znodes.transact([
                Create(state.layout.batch(number), data),
                Create(state.layout.claim(number, f"test:old:{number}")),
            ])
            shutil.copytree(store / f"batch={FIRST:010d}", store / f"batch={number:010d}", dirs_exist_ok=True)
            tables = tuple(TableRequest(TableId(made.schema, name)) for name in ("t", "u"))
            dump = state.dumps.create(Dump(f"d{number:010d}", tables, created_ms=now))
            assert state.dumps.update(dump.to_state(DumpState.DONE, ended_ms=now + number))
            state.audit.note(by="test", what="pause", details={"number": number})
        with state.replicator() as lease:
            cursor = state.cursor()
            assert cursor is not None
            for number in range(low, min(high, low + 40)):
                schemas = SchemaStore(made.runtime().store)
                found = schemas.load(cursor.schema, made.runtime().source.stored_definitions)
                found.lose(TableId(made.schema, f"u{number % 7}"), Unknown(f"statement {number}", "", ""))
                path = schemas.save(found, cursor.position, lease.epoch, cursor.schema)
                cursor = state.advance(lease, cursor, cursor.position, schema=path)


def test_reads_do_not_grow_with_history(made: Case, monkeypatch: Any) -> None:
    one_batch(made, 1, monkeypatch)
    remember(made, 0, FEW)
    few = one_batch(made, 2, monkeypatch)
    remember(made, FEW, MANY)
    many = one_batch(made, 3, monkeypatch)
    assert {name: reads.totals() for name, reads in many.items()} == {n: r.totals() for n, r in few.items()}
    dumps = [path for reads in many.values() for path in reads.znodes if "/dumps/" in path]
    assert not dumps


def test_status_reads_dumps_under_way_and_those_that_ended_lately(made: Case, monkeypatch: Any) -> None:
    one_batch(made, 1, monkeypatch)
    remember(made, 0, FEW)
    remember(made, FEW, FEW + 2, ago_s=60.0)
    with made.runtime().state() as state:
        state.dumps.create(
            Dump("running", (TableRequest(TableId(made.schema, "t")),), created_ms=int(time.time() * 1000))
        )
    with counted(monkeypatch) as reads:
        shown = [dump.id for dump in status(made.runtime()).dumps]
    lately = [f"d{FIRST - FEW - n:010d}" for n in (2, 1)]
    assert shown == [*lately, "running"]
    assert {path.split("/dumps/")[1].partition("/")[0] for path in reads.znodes if "/dumps/" in path} == set(shown)


def test_a_status_of_a_pipeline_that_never_ran_writes_nothing(made: Case) -> None:
    made.path.write_text(
        made.path.read_text().replace(f'root: "/test/{made.schema}"', f'root: "/test/{made.schema}-new"')
    )
    assert status(made.runtime()).state == "new"
    with made.runtime().state() as state:
        assert state._z.children(f"/test/{made.schema}-new") == []
