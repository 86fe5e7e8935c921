"""Older batches in archives: each is read as before, by whoever reads it and whenever, and an end of the compaction at
any point loses nothing.
"""

from __future__ import annotations

import os
import random
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice.errors import BatchesGone, SegmentError
from sluice.operations.compaction import MOST_BYTES, SPAN_S, grouped
from sluice.operations.control import redeliver
from sluice.operations.retention import prune
from sluice.segments.archive import ArchiveIndex
from sluice.segments.archive_writer import BatchFiles, write_archive
from sluice.segments.reader import iter_changes
from sluice.segments.store import FileInfo, SegmentStore
from sluice.serve.batch_range import StoredBatches, read_manifest
from sluice.serve.requests import FromBatch, ReadRequest
from tests.support.suite.examples import examples
from tests.support.twins.pipes import Pipe, pipe


@contextmanager
def piped(folder: Path, **segments: str) -> Iterator[Pipe]:
    folder.mkdir(exist_ok=True)
    named = {"uri": f"file://{folder}/store", "compact_after": "0s", **segments}
    yield from pipe(folder, "copy", capture={"segments": named})


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Pipe]:
    """Batches 1 to 4 are delivered."""
    for one in pipe(tmp_path, "copy", capture={"segments": {"uri": f"file://{tmp_path}/store", "compact_after": "0s"}}):
        for number in range(1, 5):
            deliver(one, number)
        yield one


def deliver(made: Pipe, number: int) -> None:
    made.commit(("insert", "a", (number, f"v{number}")))
    made.deliver()


def store_of(made: Pipe) -> SegmentStore:
    return made.made.runtime().store


def root(made: Pipe) -> Path:
    return Path(store_of(made).full_path(""))


def files(made: Pipe) -> list[Path]:
    return [
        path
        for pattern in ("batch=*", "archive")
        for folder in root(made).glob(pattern)
        for path in folder.rglob("*")
        if path.is_file()
    ]


def contents(made: Pipe, batch: int) -> dict[str, bytes]:
    store = store_of(made)
    return {path: store.read_bytes(path) for path, _ in store.files(batch)}


def all_contents(made: Pipe) -> dict[int, dict[str, bytes]]:
    return {batch: contents(made, batch) for batch in store_of(made).batches()}


def age(made: Pipe, batch: int, days: float) -> None:
    """A batch's files were written so long ago."""
    at = time.time() - days * 86400
    for path in (root(made) / f"batch={batch:010d}").rglob("*"):
        os.utime(path, (at, at))


def read_from(made: Pipe, batch: int) -> list[tuple[int, Any]]:
    """What a reader that begins with ``batch`` gets: (batch, id) of each change. Raises BatchesGone."""
    runtime = made.made.runtime()
    found = []
    with runtime.state() as state:
        stored = StoredBatches.of(runtime, state)
        first = stored.first(ReadRequest(pipeline=runtime.name, **{"from": FromBatch(batch=batch)}), state)
        for number in range(first, stored.following):
            manifest = read_manifest(runtime, number, state)
            assert manifest is not None
            found += [(number, change.after["id"]) for change in iter_changes(runtime.store, manifest) if change.after]
    return found


def test_every_file_of_a_batch_is_read_from_the_archive_as_it_was(made: Pipe) -> None:
    before, count = all_contents(made), len(files(made))
    open_store = store_of(made)  # of a process that has listed the batches, and knows no archive
    assert open_store.batches() == [1, 2, 3, 4]
    dry = prune(made.made.runtime(), dry_run=True)
    assert (dry.compacted, dry.archives) == ((1, 2, 3, 4), 1)
    assert len(files(made)) == count
    done = prune(made.made.runtime())
    assert (done.compacted, done.archives, done.removed, done.kept) == ((1, 2, 3, 4), 1, (), 4)
    assert (count, len(files(made))) == (12, 1)
    assert all_contents(made) == before
    for path, data in ((path, data) for found in before.values() for path, data in found.items()):
        assert open_store.read_bytes(path) == data
        assert open_store.read_text(path) == data.partition(b"\0")[0]
        assert open_store.checksum(path) == (len(data), store_of(made).checksum(path)[1])
        with open_store.open_input(path) as source:
            assert source.size() == len(data)
            assert bytes(source.read_at(len(data), 0)) == data
        assert open_store.exists(path)
        assert path in open_store.list_files(path.split("/")[0])
        assert path in open_store.list_files("")
    assert not open_store.exists("batch=0000000001/nothing")
    assert prune(made.made.runtime()).compacted == ()


def test_it_is_off_unless_the_pipeline_says_so(made: Pipe) -> None:
    made.set_segments(compact_after=None)
    assert prune(made.made.runtime()).compacted == ()
    assert len(files(made)) == 12


def test_the_command_line_says_what_it_does(made: Pipe) -> None:
    name = made.made.runtime().name
    assert "would compact 4 batches into 1 archives" in made.sluice("segments", name, "--prune", "--dry-run")
    assert "compacted 4 batches into 1 archives" in made.sluice("segments", name, "--prune")
    assert "4 verified" in made.sluice("segments", name, "--verify")
    assert made.sluice("tail", name, "--from-batch", "1", "--no-follow").count('"v3"') == 1


def test_files_of_failed_attempts_are_left_out(made: Pipe) -> None:
    folder = root(made) / "batch=0000000002"
    (folder / "x.a").mkdir()
    for orphan in ("x.a/1-e000000-0.parquet", "manifest-e000000.json"):
        (folder / orphan).write_bytes(b"half")
    prune(made.made.runtime())
    assert not folder.exists()
    assert not any("e000000" in path and b"half" in data for path, data in contents(made, 2).items())


def test_batches_that_a_target_gets_again_come_from_the_archive(made: Pipe) -> None:
    prune(made.made.runtime())
    redeliver(made.made.runtime(), "copy", by="test", dry_run=False, from_batch=2)
    made.stores["copy"].tables[made.made.table].rows.clear()
    made.deliver()
    assert made.acknowledged() == 4
    assert made.rows() == {n: f"v{n}" for n in range(2, 5)}
    prune(made.made.runtime())
    assert read_from(made, 1) == [(n, n) for n in range(1, 5)]


def test_an_archive_is_removed_when_all_of_its_batches_may_go(made: Pipe) -> None:
    for batch, days in ((1, 7.5), (2, 7.4), (3, 6.9), (4, 6.8)):
        age(made, batch, days)
    done = prune(made.made.runtime())
    assert (done.removed, done.compacted) == ((1, 2), (3, 4))
    deliver(made, 5)
    assert prune(made.made.runtime()).removed == ()
    made.set_segments(retain=timedelta(days=6.85))
    assert prune(made.made.runtime(), dry_run=True).removed == (), (
        "batch 4 is to be kept, and it is in one archive with 3"
    )
    made.set_segments(retain=timedelta(days=6.7))
    assert prune(made.made.runtime(), dry_run=True).removed == (3, 4)
    assert prune(made.made.runtime()).removed == (3, 4)
    assert store_of(made).batches() == [5]
    with pytest.raises(BatchesGone, match="the oldest is 5"):
        read_from(made, 3)


def test_a_damaged_archive_says_so(made: Pipe) -> None:
    prune(made.made.runtime())
    archive = next((root(made) / "archive").iterdir())
    archive.rename(archive.with_name(f"{1:010d}-{4:010d}-abc.slog"))
    archive = next((root(made) / "archive").iterdir())
    archive.write_bytes(archive.read_bytes()[:-30])
    with pytest.raises(SegmentError, match="its end is not that of an archive"):
        contents(made, 1)


def test_an_archive_of_the_first_format_is_read(made: Pipe) -> None:
    """Its bytes as they are stored, for ever."""
    folder = root(made) / "archive"
    folder.mkdir()
    index = (
        b'{"format_version":1,"batches":[{"batch":100,"written_s":1.5,"files":'
        b'[{"path":"batch=0000000100/note.txt","start":0,"size_bytes":5,"crc32":"3610a686"}]}]}'
    )
    end = len(index).to_bytes(8, "big") + zlib.crc32(index).to_bytes(4, "big") + b"SLUICEA1"
    (folder / "0000000100-0000000100-00ff.slog").write_bytes(b"hello" + index + end)
    assert ArchiveIndex.model_validate_json(index).ending() == index + end
    store = store_of(made)
    assert store.batches() == [1, 2, 3, 4, 100]
    assert store.read_bytes("batch=0000000100/note.txt") == b"hello"
    assert store.checksum("batch=0000000100/note.txt") == (5, "3610a686")
    assert store.written_s(100) == 1.5


class Killed(BaseException):
    """As kill -9: nothing of the process runs after it."""


def killed_at(monkeypatch: pytest.MonkeyPatch, step: int) -> Callable[[], int]:
    """The process ends before its write or delete number ``step`` of the store. The number of those that were made."""
    made = [0]

    def counted(call: Any) -> Any:
        def limited(*args: Any, **named: Any) -> Any:
            if made[0] >= step:
                raise Killed
            made[0] += 1
            return call(*args, **named)

        return limited

    for name in ("rmdir", "fsync"):
        monkeypatch.setattr(os, name, counted(getattr(os, name)))
    for name in ("publish", "delete", "move"):
        monkeypatch.setattr(SegmentStore, name, counted(getattr(SegmentStore, name)))
    deleting = SegmentStore._delete_files

    def one_by_one(self: SegmentStore, batch: int, paths: Any) -> None:
        for path in sorted(paths):
            counted(deleting)(self, batch, [path])

    monkeypatch.setattr(SegmentStore, "_delete_files", one_by_one)
    return lambda: made[0]


def test_an_end_at_any_write_or_delete_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """And a reader that comes in this state, or continues in it, gets each change once."""
    steps = 0
    for step in range(1000):
        with piped(tmp_path / str(step)) as made, pytest.MonkeyPatch.context() as patch:
            for number in range(1, 4):
                deliver(made, number)
            before, reader = all_contents(made), store_of(made)
            reader.batches()
            killed_at(patch, step)
            try:
                prune(made.made.runtime())
                ended = True
            except Killed:
                ended = False
            patch.undo()
            assert all_contents(made) == before
            assert {n: {p: reader.read_bytes(p) for p in found} for n, found in before.items()} == before
            for first in range(1, 5):  # a reader that had taken what is before
                assert read_from(made, first) == [(number, number) for number in range(first, 4)]
            for path in (root(made) / "archive").glob("*.tmp") if (root(made) / "archive").exists() else ():
                os.utime(path, (0, 0))
            prune(made.made.runtime())
            assert all_contents(made) == before
            assert len(files(made)) == 1, "nothing is left over"
            if ended:
                break
            steps += 1
    assert steps > 10


@settings(max_examples=examples(0.1), suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), days=st.integers(1, 12))
def test_a_reader_that_begins_anywhere_gets_each_change_once_in_order(
    tmp_path_factory: pytest.TempPathFactory, seed: int, days: int
) -> None:
    """Histories with compaction and retention at random places; begun inside an archive, at its edge, in a folder, or
    before all there is.
    """
    chance = random.Random(seed)
    with piped(tmp_path_factory.mktemp("history"), compact_after="1d", retain="5d") as made:
        written: list[tuple[int, int]] = []
        for batch in range(1, days + 1):
            written.append((batch, batch))
            deliver(made, batch)
            if chance.random() < 0.7:
                pace = chance.choice([0.3, 0.6])
                for number in range(1, batch + 1):
                    age(made, number, (batch - number) * pace)
                prune(made.made.runtime())
            oldest = store_of(made).batches()[0]
            for first in range(1, batch + 2):
                if first < oldest:
                    with pytest.raises(BatchesGone, match=f"the oldest is {oldest}"):
                        read_from(made, first)
                else:
                    assert read_from(made, first) == written[first - 1 :]


def test_a_reader_in_the_middle_goes_on_while_its_batches_are_moved(made: Pipe) -> None:
    runtime = made.made.runtime()
    with runtime.state() as state:
        manifests = [read_manifest(runtime, number, state) for number in (1, 2, 3, 4)]
    store = store_of(made)
    found = []
    for number, manifest in enumerate(manifests, 1):
        assert manifest is not None
        changes = iter_changes(store, manifest)
        if number == 2:
            prune(made.made.runtime())
        found += [change.after["id"] for change in changes if change.after]
    assert found == [1, 2, 3, 4]


def test_two_runs_at_once_leave_one_copy(made: Pipe) -> None:
    store, before = store_of(made), all_contents(made)
    both = [BatchFiles(n, tuple(store.folder_files(store.batch_path(n)))) for n in (1, 2, 3, 4)]
    write_archive(store, both)
    write_archive(store, both)
    prune(made.made.runtime())
    assert len(files(made)) == 1
    assert all_contents(made) == before


def test_a_batch_of_which_a_file_is_gone_keeps_its_folder_and_the_run_says_so(made: Pipe) -> None:
    next((root(made) / "batch=0000000002").glob("changeset-*/manifest.json")).unlink()
    done = prune(made.made.runtime())
    assert done.compacted == (3, 4)
    said = [
        warning.partition(":")[0] for warning in done.warnings if warning.startswith("batch ")
    ]  # a full disk is another warning
    assert said == ["batch 2 was not compacted"]
    assert store_of(made).batch_folders() == [1, 2]


def test_what_is_written_to_a_batch_meanwhile_stays(made: Pipe) -> None:
    store = store_of(made)
    known = store.folder_files(store.batch_path(2))
    store.write_bytes("batch=0000000002/changeset-new/manifest.json", b"{}")
    store.write_bytes(known[0].path, b"anew")
    store.delete_files(2, known)
    assert {path: store.read_bytes(path) for path, _ in store.files(2)} == {
        "batch=0000000002/changeset-new/manifest.json": b"{}",
        known[0].path: b"anew",
    }


def test_the_folder_wins_over_the_archive(made: Pipe) -> None:
    prune(made.made.runtime())
    store = store_of(made)
    path = next(path for path, _ in store.files(2))
    store.write_bytes(path, b"recovered")
    assert store.read_bytes(path) == b"recovered"
    assert dict(store.files(2))[path] == 9
    store.delete(path)
    assert store.read_bytes(path) != b"recovered"


@pytest.mark.promise("B11")
def test_batches_after_an_archive_that_stays_stay_too(made: Pipe) -> None:
    """One of its batches has a newer file, since a target got it again."""
    for batch in range(1, 5):
        age(made, batch, 3)
    made.set_segments(compact_after=timedelta(days=2))
    prune(made.made.runtime())
    store_of(made).write_bytes("batch=0000000002/changeset-new/manifest.json", b"{}")
    deliver(made, 5)
    age(made, 5, 2)
    made.set_segments(retain=timedelta(days=1), compact_after=None)
    assert prune(made.made.runtime()).removed == ()
    age(made, 2, 2)
    assert prune(made.made.runtime()).removed == (1, 2, 3, 4, 5)
    assert files(made) == []


def batch(number: int, *, size_bytes: int = 10, written_s: float = 0.0) -> BatchFiles:
    return BatchFiles(number, (FileInfo(f"batch={number:010d}/manifest-e000001.json", size_bytes, written_s),))


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ([batch(1)], []),
        ([batch(1), batch(2), batch(4), batch(5), batch(7)], [[1, 2], [4, 5]]),
        ([batch(n, size_bytes=MOST_BYTES // 2) for n in range(1, 6)], [[1, 2], [3, 4]]),
        ([batch(n, written_s=n * SPAN_S / 2) for n in range(1, 6)], [[1, 2, 3], [4, 5]]),
    ],
    ids=["alone", "gaps", "size", "time"],
)
def test_an_archive_has_consecutive_batches_and_is_bounded(
    batches: list[BatchFiles], expected: list[list[int]]
) -> None:
    assert [[one.batch for one in group] for group in grouped(batches)] == expected
