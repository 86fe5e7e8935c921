"""Files of an undelivered batch are damaged or gone: each error names commands that lead on, and none promises what it cannot keep."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import OutOfOrder, SegmentError
from sluice.flows.capture.drain import drain
from sluice.flows.load.load import load
from sluice.flows.operate import control
from sluice.flows.transform.merge import merge
from sluice.sources.mysql.reader.batch_reader import warm_up
from tests.support.numbered import deliver, insert, rows, sluice
from tests.support.pipelines import Case, as_older_versions_write, case


@pytest.fixture
def made(tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any) -> Iterator[Case]:
    warm_up()
    schema = fresh_schema(mysql_source, mysql_target)
    for server in (mysql_source, mysql_target):
        server.execute(f"CREATE TABLE `{schema}`.t (id INT PRIMARY KEY, note VARCHAR(40))")
    with case(tmp_path, mysql_source, mysql_target, zookeeper, schema) as one:
        one.run_until_head()
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


def gone(made: Case, batch: int) -> None:
    for path in files(made, batch):
        path.unlink()


def folder_gone(made: Case, batch: int) -> None:
    shutil.rmtree(folder(made, batch))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    start = 0 if path.suffix == ".parquet" else data.index(0)
    data[(start + len(data)) // 2] ^= 0x55
    path.write_bytes(data)


def damaged(made: Case, batch: int) -> None:
    flip(files(made, batch)[0])


def manifest_damaged(made: Case, batch: int) -> None:
    next(folder(made, batch).glob("manifest-*.json")).write_text("{")


def commands(error: BaseException) -> list[list[str]]:
    """What the hint says to run."""
    return [text.split() for text in re.findall(r"`sluice ([^`]*)`", getattr(error, "hint", "") or "")]


@pytest.mark.parametrize(
    ("loses", "form"),
    [(gone, "apart"), (folder_gone, "packed"), (damaged, "packed"), (damaged, "apart"), (manifest_damaged, "packed")],
)
def test_the_log_is_read_again(made: Case, loses: Callable[[Case, int], None], form: str, monkeypatch: Any) -> None:
    if form == "apart":
        as_older_versions_write(monkeypatch)
    second, third = drained(made, 2), drained(made, 3)
    loses(made, second)
    with pytest.raises(SegmentError) as caught:
        made.run_until_head()
    command = commands(caught.value)[0]
    assert command == ["seek", "case" if loses is not manifest_damaged else "PIPELINE", "--drop-undelivered"]
    command[1] = "case"
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
        assert "dropped" in state.audit_log()[-1]


@pytest.mark.parametrize("loses", [folder_gone, damaged], ids=lambda f: f.__name__)
def test_a_batch_that_is_lost_is_passed(made: Case, loses: Callable[[Case, int], None]) -> None:
    batch = drained(made, 2)
    with made.runtime().state() as state:
        record = state.require(batch)
    loses(made, batch)
    with pytest.raises(SegmentError) as caught:
        sluice(made, "skip", "case", "copy", str(batch), "--yes")
    assert not (made.folder / "store/case/dead-letters").exists()
    command = commands(caught.value)[0]
    assert command == ["skip", "case", "copy", str(batch), "--lost"]
    plan = " ".join(sluice(made, *command, "--dry-run").split())
    assert f"{record.first.file}:{record.first.offset}" in plan
    assert f"{record.last.file}:{record.last.offset}" in plan
    assert "no replay restores them" in plan
    assert "dead-letters" not in plan
    sluice(made, *command, "--reason", "disk", "--yes")
    deliver(made, 3)
    assert rows(made, made.target) == [1, 3]
    with made.runtime().state() as state:
        entry = state.audit_log()[-1]
    assert entry["what"] == "skip"
    assert "lost" in entry


def test_a_rollback_keeps_what_it_could_not_make_again(made: Case) -> None:
    batch = drained(made, 2)
    merge(made.runtime(), batch)
    gone(made, batch)
    assert "kept as it is" in sluice(made, "rollback", "case", "--yes")
    made.run_until_head()
    made.assert_equal("t")


@pytest.mark.parametrize(("damage", "form"), [("file", "packed"), ("no file", "apart"), ("manifest", "packed")])
@pytest.mark.parametrize("way", ["run", "merge", "rollback"])
def test_a_damaged_changeset_is_made_anew(made: Case, damage: str, way: str, form: str, monkeypatch: Any) -> None:
    if form == "apart":
        as_older_versions_write(monkeypatch)
    batch = drained(made, 2)
    merge(made.runtime(), batch)
    (path,) = files(made, batch, changeset=True)
    if damage == "file":
        flip(path)
    elif damage == "no file":
        path.unlink()
    else:
        next(folder(made, batch).glob("changeset-*/manifest.json")).write_text("{")
    with pytest.raises(SegmentError) as caught:
        load(made.runtime(), "copy", batch)
    hint = str(caught.value.hint)
    assert "clear the task merge" in hint
    assert [command[0] for command in commands(caught.value)] == ["run", "rollback"]
    if way == "merge":  # what a cleared task does
        assert not merge(made.runtime(), batch).already
        assert merge(made.runtime(), batch).already
        load(made.runtime(), "copy", batch)
    elif way == "rollback":
        sluice(made, "rollback", "case", "--yes")
        load(made.runtime(), "copy", batch)
    made.run_until_head()
    made.assert_equal("t")
