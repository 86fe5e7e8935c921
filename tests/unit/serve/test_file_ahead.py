"""The next file of a read is decoded while the last one is sent, also across batches, and only if it is still the one
that is asked for.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest

from sluice.errors import SegmentError
from sluice.flows.load.batch_changes import StoredChanges
from sluice.segments.manifest import SegmentFile
from sluice.serve import batch_rows
from sluice.serve.batch_rows import WORTH_BYTES, FileAhead
from tests.support.pipelines.case import Case
from tests.support.pipelines.subscribing import serving, write


def file_of(path: str, size_bytes: int = WORTH_BYTES, crc32: str = "00000000") -> SegmentFile:
    return SegmentFile(
        path=path, schema_="shop", table="orders", schema_version="v", primary_key=("id",), rows=1, inserts=1,
        updates=0, deletes=0, size_bytes=size_bytes, crc32=crc32, bucket_min=0, bucket_max=63,
    )  # fmt: skip


class Loader:
    """Reads a file as its path, and whether the caller's own thread did it."""

    def __init__(self, *damaged: str) -> None:
        self.caller, self.damaged, self.read = threading.get_ident(), damaged, list[str]()

    def __call__(self, file: SegmentFile) -> tuple[str, bool]:
        self.read.append(file.path)
        if file.path in self.damaged:
            raise SegmentError("the segment file is damaged", where=file.path)
        return file.path, threading.get_ident() == self.caller


def test_a_file_that_is_worth_it_is_read_ahead_and_another_one_is_not() -> None:
    load = Loader()
    files = FileAhead(load)
    a, b, small = file_of("a"), file_of("b"), file_of("small", WORTH_BYTES - 1)
    assert files.read(a, b) == ("a", True)
    assert files.read(b, small) == ("b", False)
    assert files.read(small, None) == ("small", True)
    assert load.read == ["a", "b", "small"]


def test_a_file_that_is_not_asked_for_is_dropped() -> None:
    load = Loader()
    files = FileAhead(load)
    files.read(file_of("a"), file_of("b"))
    assert files.read(file_of("b", crc32="11111111"), None) == ("b", True), "compaction wrote it anew"
    files.read(file_of("a"), file_of("c"))
    files.close()
    assert load.read[-1] == "c", "closing waits for the thread"
    assert files.read(file_of("c"), None) == ("c", True)


def test_what_is_wrong_with_a_file_is_raised_where_it_is_asked_for() -> None:
    files = FileAhead(Loader("b"))
    assert files.read(file_of("a"), file_of("b")) == ("a", True)
    with pytest.raises(SegmentError, match="damaged"):
        files.read(file_of("b"), file_of("c"))


def test_the_next_batch_is_read_while_one_is_sent(shop: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    threads, plain = dict[str, str](), StoredChanges.plain

    def noting(self: StoredChanges, store: Any, file: SegmentFile, wanted: Any) -> Any:
        threads[file.path] = threading.current_thread().name
        return plain(self, store, file, wanted)

    monkeypatch.setattr(StoredChanges, "plain", noting)
    monkeypatch.setattr(batch_rows, "WORTH_BYTES", 0)
    numbers = [write(shop, f"INSERT INTO orders VALUES ({key}, 1, 'a')") for key in range(3)]
    with serving(shop) as (_, reader):
        read = reader.read(from_={"batch": numbers[0]})
    assert [row["id"] for row in read.rows()] == [0, 1, 2]
    assert [mark["batch"] for mark in read.marks] == numbers
    assert list(threads.values()) == ["ahead", "file-ahead_0", "file-ahead_0"]
