"""Files of an undelivered batch are damaged or gone: each error names commands that lead on, and none promises what it
cannot keep. Every kind of damage: tests/unit/flows/test_damaged_batches.py."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import OutOfOrder, SegmentError
from sluice.flows.capture.drain import drain
from sluice.flows.load.load import load
from sluice.flows.transform.merge import merge
from sluice.operations import control
from tests.support.crashes.damage import flip
from tests.support.pipelines.case import Case
from tests.support.tables.numbered import deliver, insert, numbered_pipeline, rows, sluice


@pytest.fixture
def made(tmp_path: Path, twin_source: Any, twin_target: Any, twin_zookeeper: Any, fresh_schema: Any) -> Iterator[Case]:
    with numbered_pipeline(tmp_path, twin_source, twin_target, twin_zookeeper, fresh_schema) as one:
        deliver(one, 1)
        yield one


def drained(made: Case, number: int) -> int:
    insert(made, number)
    batch = drain(made.runtime(), claim=f"test:a:{number}", idle_wait_s=5).batch
    assert batch is not None
    return batch


def folder(made: Case, batch: int) -> Path:
    return made.folder / "store" / "case" / f"batch={batch:010d}"


def files(made: Case, batch: int, *, changeset: bool = False) -> list[Path]:
    """The files that have the rows: manifests of small tables, or as older versions wrote them."""
    every = [p for p in folder(made, batch).rglob("*") if p.is_file() and ("changeset-" in str(p)) == changeset]
    return [p for p in every if p.suffix == ".parquet"] or [p for p in every if b"\0" in p.read_bytes()]


def folder_gone(made: Case, batch: int) -> None:
    shutil.rmtree(folder(made, batch))


def damaged(made: Case, batch: int) -> None:
    flip(files(made, batch)[0])


def commands(error: BaseException) -> list[list[str]]:
    """What the hint says to run."""
    return [text.split() for text in re.findall(r"`sluice ([^`]*)`", getattr(error, "hint", "") or "")]


def test_the_log_is_read_again(made: Case) -> None:
    second, third = drained(made, 2), drained(made, 3)
    damaged(made, second)
    with pytest.raises(SegmentError) as caught:
        made.run_until_head()
    first, command = commands(caught.value)[:2]
    assert first == ["recover", "case"]  # tests/unit/flows/test_recovering.py
    assert command == ["seek", "case", "--drop-undelivered"]
    plan = sluice(made, *command, "--dry-run")
    assert f"batch {second}" in plan
    assert f"batch {third}" in plan
    assert "read again" in plan
    with pytest.raises(OutOfOrder, match="--drop-undelivered"):
        control.seek(made.runtime(), "latest", by="test", dry_run=False)
    sluice(made, *command, "--yes")
    made.run_until_head()
    made.assert_equal("t")
    deliver(made, 4)
    made.assert_equal("t")
    with made.runtime().state() as state:
        assert "dropped" in state.audit.entries()[-1]


def test_a_batch_that_is_lost_is_passed(made: Case) -> None:
    batch = drained(made, 2)
    with made.runtime().state() as state:
        record = state.batches.require(batch)
    folder_gone(made, batch)
    with pytest.raises(SegmentError) as caught:
        sluice(made, "skip", "case", "copy", str(batch), "--yes")
    assert not (made.folder / "store/case/dead-letters").exists()
    command = commands(caught.value)[0]
    assert command == ["skip", "case", "copy", str(batch), "--lost"]
    plan = " ".join(sluice(made, *command, "--dry-run").split())
    assert record.first.place in plan
    assert record.last.place in plan
    assert "no replay restores them" in plan
    assert "dead-letters" not in plan
    sluice(made, *command, "--reason", "disk", "--yes")
    deliver(made, 3)
    assert rows(made, made.target) == [1, 3]
    with made.runtime().state() as state:
        entry = state.audit.entries()[-1]
    assert entry["what"] == "skip"
    assert "lost" in entry


def test_a_damaged_changeset_is_made_anew(made: Case) -> None:
    batch = drained(made, 2)
    merge(made.runtime(), batch)
    (path,) = files(made, batch, changeset=True)
    flip(path)
    with pytest.raises(SegmentError) as caught:
        load(made.runtime(), "copy", batch)
    assert "clear the task merge" in str(caught.value.hint)
    assert [command[0] for command in commands(caught.value)] == ["run", "rollback"]
    made.run_until_head()
    made.assert_equal("t")
