"""Files of an undelivered batch are damaged or gone: each error names commands that lead on, and none promises what it
cannot keep.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import OutOfOrder, SegmentError
from sluice.flows.load.load import load
from sluice.flows.transform.merge import merge
from sluice.operations import control
from tests.support.crashes.damage import flip
from tests.support.pipelines.case import as_older_versions_write
from tests.support.twins.pipes import Pipe, pipe


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Pipe]:
    for one in pipe(tmp_path, "copy"):
        drained(one, 1)
        one.deliver()
        yield one


def drained(made: Pipe, number: int) -> int:
    made.commit(("insert", "a", (number, "x")))
    batch = made.made.drain(deliver=False).batch
    assert batch is not None
    return batch


def deliver(made: Pipe, number: int) -> None:
    made.commit(("insert", "a", (number, "x")))
    made.deliver()


def name(made: Pipe) -> str:
    return made.made.runtime().name


def folder(made: Pipe, batch: int) -> Path:
    return made.made.folder / "store" / name(made) / f"batch={batch:010d}"


def files(made: Pipe, batch: int, *, changeset: bool = False) -> list[Path]:
    """The files that have the rows: Parquet files, or manifests in which they are packed."""
    every = [p for p in folder(made, batch).rglob("*") if p.is_file() and ("changeset-" in str(p)) == changeset]
    return [p for p in every if p.suffix == ".parquet"] or [p for p in every if b"\0" in p.read_bytes()]


def gone(made: Pipe, batch: int) -> None:
    for path in files(made, batch):
        path.unlink()


def folder_gone(made: Pipe, batch: int) -> None:
    shutil.rmtree(folder(made, batch))


def damaged(made: Pipe, batch: int) -> None:
    flip(files(made, batch)[0])


def manifest_damaged(made: Pipe, batch: int) -> None:
    next(folder(made, batch).glob("manifest-*.json")).write_text("{")


def commands(error: BaseException) -> list[list[str]]:
    """What the hint says to run."""
    return [text.split() for text in re.findall(r"`sluice ([^`]*)`", getattr(error, "hint", "") or "")]


@pytest.mark.parametrize(
    ("loses", "form"),
    [(gone, "apart"), (folder_gone, "packed"), (damaged, "packed"), (damaged, "apart"), (manifest_damaged, "packed")],
)
def test_the_log_is_read_again(made: Pipe, loses: Callable[[Pipe, int], None], form: str) -> None:
    if form == "packed":
        made.set_segments(small_files=0)
    second, third = drained(made, 2), drained(made, 3)
    loses(made, second)
    with pytest.raises(SegmentError) as caught:
        made.deliver()
    first, command = commands(caught.value)[:2]
    assert first == ["recover", name(made)]  # tests/integration/flows/test_recover.py
    assert command == ["seek", name(made), "--drop-undelivered"]
    plan = made.sluice(*command, "--dry-run")
    assert f"batch {second}" in plan
    assert f"batch {third}" in plan
    assert "read again" in plan
    with pytest.raises(OutOfOrder, match="--drop-undelivered"):
        control.seek(made.made.runtime(), "latest", by="test", dry_run=False)
    made.sluice(*command, "--yes")
    made.deliver()
    assert made.rows() == made.made.rows()
    deliver(made, 4)
    assert made.rows() == made.made.rows()
    with made.made.runtime().state() as state:
        assert "dropped" in state.audit.entries()[-1]


@pytest.mark.parametrize("loses", [folder_gone, damaged], ids=lambda f: f.__name__)
def test_a_batch_that_is_lost_is_passed(made: Pipe, loses: Callable[[Pipe, int], None]) -> None:
    batch = drained(made, 2)
    with made.made.runtime().state() as state:
        record = state.batches.require(batch)
    loses(made, batch)
    with pytest.raises(SegmentError) as caught:
        made.sluice("skip", name(made), "copy", str(batch), "--yes")
    assert not (made.made.folder / "store" / name(made) / "dead-letters").exists()
    command = commands(caught.value)[0]
    assert command == ["skip", name(made), "copy", str(batch), "--lost"]
    plan = " ".join(made.sluice(*command, "--dry-run").split())
    assert record.first.place in plan
    assert record.last.place in plan
    assert "no replay restores them" in plan
    assert "dead-letters" not in plan
    made.sluice(*command, "--reason", "disk", "--yes")
    deliver(made, 3)
    assert sorted(made.rows()) == [1, 3]
    with made.made.runtime().state() as state:
        entry = state.audit.entries()[-1]
    assert entry["what"] == "skip"
    assert "lost" in entry


def test_a_rollback_keeps_what_it_could_not_make_again(made: Pipe) -> None:
    batch = drained(made, 2)
    merge(made.made.runtime(), batch)
    gone(made, batch)
    assert "kept as it is" in made.sluice("rollback", name(made), "--yes")
    made.deliver()
    assert made.rows() == made.made.rows()


@pytest.mark.parametrize(("damage", "form"), [("file", "packed"), ("no file", "apart"), ("manifest", "packed")])
@pytest.mark.parametrize("way", ["run", "merge", "rollback"])
def test_a_damaged_changeset_is_made_anew(made: Pipe, damage: str, way: str, form: str, monkeypatch: Any) -> None:
    if form == "apart":
        as_older_versions_write(monkeypatch)
    batch = drained(made, 2)
    merge(made.made.runtime(), batch)
    (path,) = files(made, batch, changeset=True)
    if damage == "file":
        flip(path)
    elif damage == "no file":
        path.unlink()
    else:
        next(folder(made, batch).glob("changeset-*/manifest.json")).write_text("{")
    with pytest.raises(SegmentError) as caught:
        load(made.made.runtime(), "copy", batch)
    hint = str(caught.value.hint)
    assert "clear the task merge" in hint
    assert [command[0] for command in commands(caught.value)] == ["run", "rollback"]
    if way == "merge":  # what a cleared task does
        assert not merge(made.made.runtime(), batch).already
        assert merge(made.made.runtime(), batch).already
        load(made.made.runtime(), "copy", batch)
    elif way == "rollback":
        made.sluice("rollback", name(made), "--yes")
        load(made.made.runtime(), "copy", batch)
    made.deliver()
    assert made.rows() == made.made.rows()
