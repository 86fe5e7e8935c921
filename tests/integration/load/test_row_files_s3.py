"""Files that rows name, in buckets of a real S3 server."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from pyarrow import fs

from sluice.config.connections import Endpoint
from sluice.errors import ConfigError, SluiceError, StorageUnavailable
from sluice.row_files.copier import Copier, CopyState, Layout, NamedFile
from sluice.row_files.location import open_source, open_store
from sluice.row_files.port import Deadline
from tests.support.servers.s3.lake import BUCKET, aws_connection, s3_lake
from tests.support.servers.s3.server import S3Server

MINUTE = timedelta(minutes=1)


@pytest.fixture(scope="module")
def s3(server_folder: Path) -> Iterator[S3Server]:
    with s3_lake(server_folder / "s3-row-files") as server:
        yield server


@pytest.fixture
def bucket(s3: S3Server) -> fs.FileSystem:
    keys = s3.environment
    return fs.S3FileSystem(
        access_key=keys["AWS_ACCESS_KEY_ID"], secret_key=keys["AWS_SECRET_ACCESS_KEY"], scheme="http",
        endpoint_override=f"{s3.host}:{s3.port}", region="us-east-1",
    )  # fmt: skip


def put(bucket: fs.FileSystem, path: str, data: bytes) -> None:
    with bucket.open_output_stream(f"{BUCKET}/{path}") as stream:
        stream.write(data)


def copier(
    s3: S3Server, source: str, target: str, *, layout: Layout = Layout.PATH, login: Endpoint | None = None
) -> Copier:
    login = login or aws_connection(s3)
    ends = [
        open_source(source, login, connections=4, timeout=MINUTE),
        open_store(target, login if "://" in target else None, timeout=MINUTE),
    ]
    return Copier(*ends, where="t", max_bytes=1 << 26, timeout=MINUTE, layout=layout, sleep=lambda _: None)  # type: ignore[arg-type]


def named(name: str, version: str | None = None) -> NamedFile:
    return NamedFile(name, version, name)


def test_files_go_from_prefix_to_prefix_and_a_repeat_reads_nothing(s3: S3Server, bucket: fs.FileSystem) -> None:
    data = b"x" * 12_000_000  # in more than one part
    put(bucket, "a/p/1 ü.bin", data)
    one = copier(s3, f"s3://{BUCKET}/a", f"s3://{BUCKET}/b")
    assert [one.copy(named("p/1 ü.bin")).state for _ in range(2)] == ["copied", "unchanged"]
    with bucket.open_input_file(f"{BUCKET}/b/p/1 ü.bin") as stream:
        assert stream.read() == data
    put(bucket, "a/p/1 ü.bin", b"y" * len(data))  # of the same size, within the same second
    assert one.copy(named("p/1 ü.bin")).state is CopyState.COPIED
    put(bucket, "b/p/1 ü.bin", b"z" * len(data))  # somebody else writes the copy
    assert one.copy(named("p/1 ü.bin")).state is CopyState.COPIED
    with bucket.open_input_file(f"{BUCKET}/b/p/1 ü.bin") as stream:
        assert stream.read(1) == b"y"


def test_files_are_kept_by_their_contents(s3: S3Server, bucket: fs.FileSystem, tmp_path: Path) -> None:
    for name in ("c", "d"):
        put(bucket, f"e/{name}", b"same")
    one = copier(s3, f"s3://{BUCKET}/e", str(tmp_path), layout=Layout.CONTENT)
    for name in ("c", "d"):
        assert one.copy(named(name, "1")).state is CopyState.COPIED
    [kept] = (path for path in (tmp_path / "sha256").rglob("*") if path.is_file())
    assert kept.read_bytes() == b"same"


def test_an_absent_object_is_told_from_an_absent_bucket(s3: S3Server, bucket: fs.FileSystem, tmp_path: Path) -> None:
    put(bucket, "f/there", b"x")
    assert copier(s3, f"s3://{BUCKET}/f", str(tmp_path)).copy(named("gone")).state is CopyState.ABSENT
    assert copier(s3, f"s3://{BUCKET}/never", str(tmp_path)).copy(named("gone")).state is CopyState.ABSENT
    nowhere = copier(s3, "s3://no-such-bucket/f", str(tmp_path))
    with pytest.raises(StorageUnavailable, match="there is no bucket no-such-bucket"):
        nowhere.copy(named("gone"))


def test_a_missing_mark_is_set_and_cleared(s3: S3Server, bucket: fs.FileSystem) -> None:
    one = copier(s3, f"s3://{BUCKET}/g", f"s3://{BUCKET}/h")
    assert not one.receipts.missing()
    one.copy(named("gone"))
    assert len(one.receipts.missing()) == 1
    one.receipts.clear_missing("gone")
    assert not one.receipts.missing()


def test_check_reads_and_writes(s3: S3Server) -> None:
    source = open_source(f"s3://{BUCKET}/a", aws_connection(s3), connections=1, timeout=MINUTE)
    assert source.require_readable(Deadline(30)) == "it is there"
    store = open_store(f"s3://{BUCKET}/b", aws_connection(s3), timeout=MINUTE)
    store.write(".sluice/check", b"x")
    assert store.read(".sluice/check") == b"x"
    store.delete(".sluice/check")
    assert store.read(".sluice/check") is None


@pytest.mark.parametrize(
    ("address", "extra", "why"),
    [
        ("s3://b/x?regon=1", {}, "regon, which is not known"),
        ("s3://b/x", {"endpoint": "x"}, "endpoint, which is not known"),
    ],
)
def test_unknown_settings_are_refused(s3: S3Server, address: str, extra: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        open_source(address, aws_connection(s3, **extra), connections=1, timeout=MINUTE)


def test_a_server_that_is_away_is_an_outage(s3: S3Server, tmp_path: Path) -> None:
    login = aws_connection(s3, endpoint_url="http://127.0.0.1:1")
    with pytest.raises(SluiceError, match="copying the file a") as away:
        copier(s3, f"s3://{BUCKET}/a", str(tmp_path), login=login).copy(named("a"))
    assert away.value.retryable
    assert login.password not in str(away.value)
