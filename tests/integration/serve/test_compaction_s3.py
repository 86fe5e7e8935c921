"""Archives of old batches in a bucket of a real S3 server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import fs

from devstack.debian import FetchFailed
from sluice.operations.retention import prune
from sluice.segments.archive_writer import BatchFiles, write_archive
from sluice.segments.archives import Archives
from sluice.segments.reader import iter_changes
from sluice.segments.store import SegmentStore, is_manifest
from tests.support.servers.s3.server import S3Server, moto_server
from tests.support.twins.pipes import Pipe, pipe


@pytest.fixture(scope="module")
def s3(server_folder: Path) -> Iterator[S3Server]:
    try:
        moto_server()
    except FetchFailed as error:
        pytest.skip(f"the S3 server cannot be installed here: {error}")
    with pytest.MonkeyPatch.context() as patch, S3Server(server_folder / "s3-compaction") as server:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield server


@pytest.fixture(scope="module")
def bucket(s3: S3Server) -> str:
    return s3.bucket("segments")


@pytest.fixture
def made(tmp_path: Path, bucket: str) -> Iterator[Pipe]:
    """Batches 1 to 4 are delivered."""
    for one in pipe(tmp_path, "copy", capture={"segments": {"uri": bucket, "compact_after": "0s"}}):
        for number in range(1, 5):
            one.commit(("insert", "a", (number, f"v{number}")))
            one.deliver()
        yield one


def objects(made: Pipe) -> list[str]:
    """All objects of batches, markers of empty folders too."""
    store = made.made.runtime().store
    found = store.filesystem.get_file_info(fs.FileSelector(store.full_path(""), recursive=True))
    return [info.path for info in found if "/batch=" in info.path or info.path.endswith(".slog")]


def test_a_small_file_is_one_request(s3: S3Server, bucket: str) -> None:
    """Requests that write are what a store of objects costs."""
    log, store = s3.folder / "s3.log", SegmentStore(bucket, "requests")
    before = len(log.read_text().splitlines())
    store.write_bytes("notes/one", b"1")
    with store.open_output("batch=0000000001/two") as sink:
        sink.write(b"2")
    store.write_files([("batch=0000000001/three", b"3")])
    asked = [line.split('"')[1].split()[:2] for line in log.read_text().splitlines()[before:]]
    assert [" ".join(one) for one in asked if one[0] != "HEAD"] == [
        "PUT /segments/requests/notes/one",
        "PUT /segments/requests/batch=0000000001/two",
        "PUT /segments/requests/batch=0000000001/three",
    ]
    assert [store.read_bytes(path) for path in ("notes/one", "batch=0000000001/two")] == [b"1", b"2"]


def test_batches_in_archives_of_a_bucket_are_read_as_before_and_removed(
    made: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = made.made.runtime().store
    before = {path: reader.read_bytes(path) for batch in reader.batches() for path, _ in reader.files(batch)}
    done = prune(made.made.runtime())
    warnings = [
        warning for warning in done.warnings if not warning.startswith("the disk of")
    ]  # a machine may be nearly full
    assert (done.compacted, done.archives, warnings) == ((1, 2, 3, 4), 1, [])
    assert (len(before), len(objects(made))) == (12, 1)
    assert {path: reader.read_bytes(path) for path in before} == before
    for path, data in before.items():
        assert reader.exists(path)
        assert reader.checksum(path)[0] == len(data)
        with reader.open_input(path) as source:
            assert source.size() == len(data)
            source.seek(len(data) // 2)
            assert bytes(source.read()) == data[len(data) // 2 :]
            assert bytes(source.read_at(7, 1)) == data[1:8]
    with made.made.runtime().state() as state:
        manifests = [reader.read_manifest(state.batches.require(number).manifest) for number in (1, 2, 3, 4)]
    assert [c.after["id"] for m in manifests for c in iter_changes(reader, m) if c.after] == [1, 2, 3, 4]
    with monkeypatch.context() as patch:
        patch.setattr(Archives, "contents", None)  # the names say which batches there are
        assert made.made.runtime().store.batches() == [1, 2, 3, 4]
    config = made.made.case.config
    segments = config.capture.segments.model_copy(update={"retain": config.capture.batch.max_wait * 0})
    made.made.case.config = config.model_copy(
        update={"capture": config.capture.model_copy(update={"segments": segments})}
    )
    assert prune(made.made.runtime()).removed == (1, 2, 3, 4)
    assert objects(made) == []


def test_what_a_killed_run_left_in_a_bucket_is_removed_by_the_next_one(made: Pipe) -> None:
    store = made.made.runtime().store
    before = {path: store.read_bytes(path) for batch in store.batches() for path, _ in store.files(batch)}
    every = [BatchFiles(n, tuple(store.folder_files(store.batch_path(n)))) for n in (1, 2, 3, 4)]
    write_archive(store, every)  # the run ended here
    manifest = next(info for info in every[1].kept if is_manifest(info.path))
    store.delete(manifest.path)  # and another one within a batch
    assert {path: store.read_bytes(path) for path in before} == before
    assert store.batches() == [1, 2, 3, 4]
    prune(made.made.runtime())
    assert len(objects(made)) == 1
    assert {path: store.read_bytes(path) for path in before} == before
