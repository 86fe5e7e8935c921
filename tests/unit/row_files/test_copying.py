"""Copies of single files between real folders: what a repeat costs, what a reader sees, what is refused."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from sluice.errors import StorageUnavailable
from sluice.row_files.copier import Copier, CopyState, Layout, NamedFile
from sluice.row_files.copy_pool import copy_files
from sluice.row_files.local_folder import LocalFolder
from sluice.row_files.location import open_source, open_store
from sluice.row_files.object_store import ObjectStore
from sluice.row_files.port import FileSource, FileStore, Spool

MINUTE = timedelta(minutes=1)


class Folders:
    """Two folders, and how often a file was fetched from the first."""

    def __init__(self, root: Path) -> None:
        self.source, self.target = root / "from", root / "to"
        self.source.mkdir()
        self.target.mkdir()
        self.fetched = 0
        self.on_fetched: Callable[[], None] = lambda: None

    def put(self, name: str, contents: bytes | str) -> None:
        path = self.source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name("new")
        temporary.write_bytes(contents.encode() if isinstance(contents, str) else contents)
        temporary.rename(path)

    def got(self, name: str) -> str | None:
        path = self.target / name
        return path.read_text() if path.is_file() else None

    @property
    def leftovers(self) -> list[str]:
        return os.listdir(self.target / ".sluice/incoming")

    def copier(self, *, store: FileStore | None = None, **settings: object) -> Copier:
        outer = self

        class Counting(LocalFolder):
            def fetch(self, name: str, spool: Spool, *, unless: str = "") -> str | None:
                found = super().fetch(name, spool, unless=unless)
                outer.fetched += found is not None
                outer.on_fetched()
                return found

        given = {"max_bytes": 1 << 20, "timeout": MINUTE, "where": "shop.a", "sleep": lambda _: None, **settings}
        return Copier(Counting(str(self.source)), store or LocalFolder(str(self.target)), **given)  # type: ignore[arg-type]


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path)


def named(name: str, version: str | None = None) -> NamedFile:
    return NamedFile(name, version, name)


def test_a_repeat_fetches_nothing_and_a_new_version_does(folders: Folders) -> None:
    folders.put("p/1.txt", "one")
    copier = folders.copier()
    assert copier.copy(named("p/1.txt", "1")).state is CopyState.COPIED
    assert copier.copy(named("p/1.txt", "1")).state is CopyState.UNCHANGED
    assert folders.fetched == 1
    folders.put("p/1.txt", "two")
    assert copier.copy(named("p/1.txt", "2")).fetched_bytes == 3
    assert folders.got("p/1.txt") == "two"
    assert not folders.leftovers


def test_without_a_version_the_source_is_asked_and_nothing_read_again(folders: Folders) -> None:
    folders.put("a", "one")
    copier = folders.copier()
    assert [copier.copy(named("a")).state for _ in range(3)] == ["copied", "unchanged", "unchanged"]
    assert folders.fetched == 1
    folders.put("a", "two")  # of the same size
    assert copier.copy(named("a")).state is CopyState.COPIED
    assert folders.got("a") == "two"


def test_the_receipt_has_the_checksum(folders: Folders) -> None:
    folders.put("a", "one")
    folders.copier().copy(named("a", "7"))
    (receipt,) = (folders.target / ".sluice/files").rglob("*.json")
    data = json.loads(receipt.read_text())
    assert data["sha256"] == "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed"
    assert (data["name"], data["version"], data["size_bytes"]) == ("a", "7", 3)


@pytest.mark.parametrize("damage", ["gone", "overwritten", "no receipt", "damaged receipt"])
def test_what_is_no_longer_as_it_was_written_is_copied_again(folders: Folders, damage: str) -> None:
    folders.put("a", "one")
    copier = folders.copier()
    copier.copy(named("a", "1"))
    (receipt,) = (folders.target / ".sluice/files").rglob("*.json")
    if damage == "gone":
        (folders.target / "a").unlink()
    elif damage == "overwritten":
        (folders.target / "a").write_text("zzz")
    elif damage == "no receipt":
        receipt.unlink()
    else:
        receipt.write_text('{"name": "a", "written": [')
    copier.copy(named("a", "1"))
    assert folders.got("a") == "one"


def test_the_same_contents_under_a_new_version_are_not_written_again(folders: Folders) -> None:
    folders.put("a", "one")
    copier = folders.copier()
    copier.copy(named("a", "1"))
    written = (folders.target / "a").stat()
    copier.copy(named("a", "2"))
    assert (folders.target / "a").stat().st_ino == written.st_ino
    assert copier.copy(named("a", "2")).state is CopyState.UNCHANGED
    assert folders.fetched == 2


def test_a_late_writer_leaves_the_newest_contents(folders: Folders) -> None:
    """A worker reads a file and stalls; another one copies the next version; then the first one goes on."""
    folders.put("a", "old")
    late = folders.copier()
    once = [True]

    def others() -> None:
        if once.pop() if once else False:
            folders.put("a", "new")
            folders.copier().copy(named("a", "2"))

    folders.on_fetched = others
    late.copy(named("a", "1"))
    assert folders.got("a") == "new"


CALLS = ("spool", "discard", "put", "identity", "read", "write", "fetch")


class Calls:
    """The calls of both ends of a copy, at one of which something happens: before it, or after it."""

    def __init__(self, folders: Folders, at: int, then: Callable[[], None], *, after: bool) -> None:
        self.count = 0

        def watched(end: LocalFolder) -> LocalFolder:
            for name in CALLS:
                setattr(end, name, self._watched(getattr(end, name), at, then, after=after))
            return end

        self.copier = Copier(
            watched(LocalFolder(str(folders.source))), watched(LocalFolder(str(folders.target))), where="shop.a",
            max_bytes=1 << 20, timeout=MINUTE, sleep=lambda _: None,
        )  # fmt: skip

    def _watched(
        self, call: Callable[..., Any], at: int, then: Callable[[], None], *, after: bool
    ) -> Callable[..., Any]:
        def run(*args: Any, **named: Any) -> Any:
            self.count += 1
            mine = self.count == at
            if mine and not after:
                then()
            found = call(*args, **named)
            if mine and after:
                then()
            return found

        return run


class Died(BaseException):
    """Stands for the end of a process."""


def die() -> None:
    raise Died


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("begun", ["new", "old version there"])
def test_a_process_that_dies_at_any_call_leaves_a_whole_file_and_a_repeat_ends_right(
    tmp_path: Path, begun: str, after: bool
) -> None:
    for at in range(1, 100):
        root = tmp_path / str(at)
        root.mkdir()
        folders = Folders(root)
        if begun != "new":
            folders.put("p/a", "old")
            folders.copier().copy(named("p/a", "1"))
        folders.put("p/a", "new and longer")
        calls = Calls(folders, at, die, after=after)
        with suppress(Died):
            calls.copier.copy(named("p/a", "2"))
            break  # it took fewer calls
        assert folders.got("p/a") in {None if begun == "new" else "old", "new and longer"}
        assert folders.copier().copy(named("p/a", "2")).state in {CopyState.COPIED, CopyState.UNCHANGED}
        assert folders.got("p/a") == "new and longer"
        assert folders.copier().copy(named("p/a", "2")).state is CopyState.UNCHANGED
    assert at > 8, "the copy makes more calls than that"


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("version", ["1", None])
def test_a_worker_that_stalls_at_any_call_overwrites_nothing_newer(
    tmp_path: Path, version: str | None, after: bool
) -> None:
    for at in range(1, 100):
        root = tmp_path / str(at)
        root.mkdir()
        folders = Folders(root)
        folders.put("a", "old")

        def others(folders: Folders = folders) -> None:
            folders.put("a", "new!")
            folders.copier().copy(named("a", version and "2"))

        calls = Calls(folders, at, others, after=after)
        calls.copier.copy(named("a", version))
        if calls.count < at:
            break
        assert folders.got("a") == "new!", f"after call {at}"
        folders.copier().copy(named("a", version and "2"))
        assert folders.got("a") == "new!"
    assert at > 8


def test_contents_are_kept_by_their_checksum_and_never_replaced(folders: Folders) -> None:
    folders.put("a", "one")
    folders.put("b", "one")
    copier = folders.copier(layout=Layout.CONTENT)
    for name in ("a", "b", "a"):
        copier.copy(named(name, "1"))
    (kept,) = (path for path in (folders.target / "sha256").rglob("*") if path.is_file())
    assert kept.read_text() == "one"
    assert kept.parent.name == kept.name[:2]
    folders.put("a", "two")
    copier.copy(named("a", "2"))
    assert kept.read_text() == "one"
    assert len([path for path in (folders.target / "sha256").rglob("*") if path.is_file()]) == 2


def test_a_missing_file_is_told_from_a_missing_location(folders: Folders) -> None:
    assert folders.copier().copy(named("x/y")).state is CopyState.ABSENT
    os.rmdir(folders.source)
    with pytest.raises(StorageUnavailable, match="is not there"):
        folders.copier().copy(named("x/y"))


@pytest.mark.parametrize("kind", ["file link", "folder link", "inner link", "pipe", "folder", "large"])
def test_a_file_that_is_none_or_leads_out_is_refused(folders: Folders, kind: str) -> None:
    outside = folders.source.parent / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (folders.source / "d").mkdir()
    name = "d/x"
    if kind == "file link":
        (folders.source / name).symlink_to(outside / "secret")
    elif kind == "folder link":
        name = "l/secret"
        (folders.source / "l").symlink_to(outside)
    elif kind == "inner link":  # it stays inside, and is refused all the same: who writes there may turn it
        (folders.source / "d/real").write_text("x")
        (folders.source / name).symlink_to("real")
    elif kind == "pipe":
        os.mkfifo(folders.source / name)
    elif kind == "folder":
        name = "d"
    else:
        folders.put(name, b"x" * 2000)
    outcome = folders.copier(max_bytes=1000).copy(named(name))
    assert outcome.state is CopyState.REFUSED, outcome
    assert folders.got(name) is None
    assert not [path for path in folders.target.iterdir() if path.name != ".sluice"]


def test_a_link_at_the_target_leads_no_file_out(folders: Folders) -> None:
    outside = folders.target.parent / "outside"
    outside.mkdir()
    (outside / "f").write_text("mine")
    (folders.target / "l").symlink_to(outside)
    (folders.target / "f").symlink_to(outside / "f")
    folders.put("l/f", "theirs")
    folders.put("f", "theirs")
    assert folders.copier().copy(named("l/f")).state is CopyState.REFUSED
    assert folders.copier().copy(named("f")).state is CopyState.COPIED
    assert (outside / "f").read_text() == "mine"
    assert not (folders.target / "f").is_symlink()
    assert folders.got("f") == "theirs"


def test_a_reader_sees_a_whole_file_at_any_time(folders: Folders) -> None:
    sizes, stop = set[int](), threading.Event()

    def read() -> None:
        while not stop.is_set():
            found = folders.target / "a"
            if found.exists():
                sizes.add(len(found.read_bytes()))

    reader = threading.Thread(target=read)
    reader.start()
    copier = folders.copier(max_bytes=1 << 24)
    for version in range(20):
        folders.put("a", bytes([version]) * (3 << 20 if version % 2 else 1 << 20))
        copier.copy(named("a", str(version)))
    stop.set()
    reader.join()
    assert sizes <= {1 << 20, 3 << 20}


def test_a_location_that_fails_is_asked_again_and_then_the_batch_fails(folders: Folders) -> None:
    folders.put("a", "one")
    failures = [OSError(5, "Input/output error")] * 2

    class Failing(LocalFolder):
        def fetch(self, name: str, spool: Spool, *, unless: str = "") -> str | None:
            if failures:
                raise failures.pop()
            return super().fetch(name, spool, unless=unless)

    copier = Copier(
        Failing(str(folders.source)), LocalFolder(str(folders.target)), where="shop.a", max_bytes=99, timeout=MINUTE,
        sleep=lambda _: None,
    )  # fmt: skip
    assert copier.copy(named("a")).state is CopyState.COPIED
    failures += [OSError(5, "Input/output error")] * 9
    with pytest.raises(StorageUnavailable, match="copying the file b: Input/output error"):
        copier.copy(named("b"))
    with pytest.raises(StorageUnavailable, match=r"copying the file \*\*\*: OSError"):
        copier.copy(NamedFile("b", None, "***"))


def test_a_file_that_is_written_all_the_time_is_tried_later(folders: Folders) -> None:
    folders.put("a", "0")
    count = iter(range(1000))
    folders.on_fetched = lambda: folders.put("a", str(next(count)))
    with pytest.raises(StorageUnavailable, match="written all the time"):
        folders.copier().copy(named("a"))


def test_a_file_whose_time_is_over_is_not_put_in_its_place(folders: Folders) -> None:
    folders.put("a", "one")

    class Slow(LocalFolder):
        def fetch(self, name: str, spool: Spool, *, unless: str = "") -> str | None:
            found = super().fetch(name, spool, unless=unless)
            spool.deadline._end = 0.0
            return found

    copier = Copier(
        Slow(str(folders.source)), LocalFolder(str(folders.target)), where="t", max_bytes=99, timeout=MINUTE
    )
    with pytest.raises(StorageUnavailable, match="not copied within 60 s"):
        copier.copy(named("a"))
    assert folders.got("a") is None
    assert not folders.leftovers


def test_temporary_files_of_dead_processes_are_removed(folders: Folders) -> None:
    store = LocalFolder(str(folders.target))
    incoming = folders.target / ".sluice/incoming"
    incoming.mkdir(parents=True)
    for name in ("old", "new"):
        (incoming / name).write_text("x")
    os.utime(incoming / "old", (1, 1))
    store.remove_orphans()
    assert folders.leftovers == ["new"]


def test_many_files_go_side_by_side_and_the_first_failure_ends_them(folders: Folders) -> None:
    for number in range(40):
        folders.put(f"{number}", f"{number}")
    barrier = threading.Barrier(4, timeout=30)
    first = threading.Event()

    def met() -> None:
        if not first.is_set():
            barrier.wait()  # four at the same time, or the test fails
            first.set()

    folders.on_fetched = met
    outcomes, totals = copy_files(folders.copier(), [named(f"{n}") for n in range(41)], 4)
    assert [one.state for one in outcomes] == ["copied"] * 40 + ["absent"]
    assert (totals.copied, totals.absent, totals.size_bytes) == (40, 1, 70)
    os.rename(folders.source, folders.source.with_name("away"))
    with pytest.raises(StorageUnavailable):
        copy_files(folders.copier(), [named(f"{n}", "2") for n in range(41)], 4)


def test_an_object_that_is_replaced_while_it_is_read_is_never_written_in_parts(tmp_path: Path) -> None:
    """A store of objects reads large ones by several requests, which may meet two versions."""
    folders = Folders(tmp_path)
    folders.put("a", b"o" * 3_000_000)
    source = ObjectStore(fs.LocalFileSystem(), str(folders.source), "objects")
    written: list[bytes] = []
    replaced: list[bool] = []

    class Folder(LocalFolder):
        def put(self, name: str, spool: Spool) -> None:
            super().put(name, spool)
            written.append((folders.target / name).read_bytes())

    class Torn(Spool):
        def write(self, piece: bytes) -> None:
            if not replaced:
                replaced.append(True)
                folders.put("a", b"n" * 3_000_000)
            super().write(piece)

    store = Folder(str(folders.target))
    make = store.spool
    store.spool = lambda *given: _torn(make(*given), Torn)  # type: ignore[method-assign]
    copier = Copier(source, store, where="t", max_bytes=1 << 30, timeout=MINUTE)
    assert copier.copy(named("a", "1")).state is CopyState.COPIED
    assert written == [b"n" * 3_000_000]


def _torn(spool: Spool, kind: type[Spool]) -> Spool:
    spool.__class__ = kind
    return spool


def test_a_file_system_of_fsspec_takes_files_and_gives_them(tmp_path: Path) -> None:
    import fsspec

    fsspec.filesystem("memory").store.clear()
    memory = "memory://assets/deep"
    (tmp_path / "from").mkdir()
    (tmp_path / "from/a b").write_bytes(b"x" * 3_000_000)
    there = Copier(
        open_source(str(tmp_path / "from"), None, connections=1, timeout=MINUTE),
        store := open_store(memory, None, timeout=MINUTE),
        where="t", max_bytes=1 << 30, timeout=MINUTE,
    )  # fmt: skip
    assert [there.copy(named("a b", "1")).state for _ in range(2)] == ["copied", "unchanged"]
    back: FileSource = open_source(memory, None, connections=1, timeout=MINUTE)
    (tmp_path / "to").mkdir()
    here = Copier(
        back, open_store(f"file://{tmp_path}/to", None, timeout=MINUTE), where="t", max_bytes=1 << 30, timeout=MINUTE
    )
    assert [here.copy(named(name)).state for name in ("a b", "c")] == ["copied", "absent"]
    assert (tmp_path / "to/a b").read_bytes() == b"x" * 3_000_000
    assert not store.names(".sluice/incoming")
