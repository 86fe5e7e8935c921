"""A log that the server has purged is read from its archive, and goes on at the server (``source.archive``)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from devstack.mariadb import MariaDBServer
from devstack.mysql import MySQLServer
from sluice.errors import CaptureError, DecodeError, LogPurged
from sluice.flows.dump.progress import views
from tests.support.pipelines.case import Case, case
from tests.support.running.waiting import wait_until

ROWS = 40


@pytest.fixture(scope="module", params=[MySQLServer, MariaDBServer], ids=["mysql", "mariadb"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with request.param(tmp_path_factory.mktemp("archived") / "s", server_id=31) as started:
        yield started


@pytest.fixture
def shop(
    server: Any, tmp_path: Path, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> Iterator[tuple[Case, Path]]:
    """A pipeline at its head, and the files of the log behind it: archived, and purged at the server."""
    schema = fresh_schema(server, mysql_target)
    for each in (server, mysql_target):
        each.execute(f"CREATE TABLE `{schema}`.orders (id INT PRIMARY KEY, note VARCHAR(40))")
    archive = tmp_path / "binlogs"
    archive.mkdir()
    with case(tmp_path, server, mysql_target, zookeeper, schema) as world:
        world.run_until_head()
        for file in range(4):
            server.execute(
                *(f"INSERT INTO `{schema}`.orders VALUES ({file * ROWS + n}, REPEAT('x', {n}))" for n in range(ROWS)),
                f"UPDATE `{schema}`.orders SET note = 'file {file}' WHERE id % 7 = 0",
                "FLUSH BINARY LOGS",
            )
        *closed, newest = [row[0] for row in server.execute("SHOW BINARY LOGS")]
        for number, name in enumerate(closed):
            content = (server.data_dir / name).read_bytes()
            suffix, codec = [("", None), (".gz", "gzip"), (".zst", "zstd")][number % 3]
            with pa.output_stream(str(archive / f"{name}{suffix}"), compression=codec) as out:
                out.write(content)
        server.execute(f"INSERT INTO `{schema}`.orders VALUES (1000, 'at the server')")

        def purged() -> bool:  # MariaDB keeps a file while the thread that sent it is there
            server.execute(f"PURGE BINARY LOGS TO '{newest}'")
            return bool(server.execute("SHOW BINARY LOGS")[0][0] == newest)

        wait_until(purged, "the purge of the closed files")
        text = world.path.read_text()
        assert text.count("connection: case_source") == 1
        yield world, archive
        world.path.write_text(text)


def use(world: Case, archive: Path) -> None:
    text = world.path.read_text()
    world.path.write_text(
        text.replace("connection: case_source", f"connection: case_source, archive: '{archive.as_uri()}'")
    )


@pytest.mark.promise("G10")
def test_purged_files_are_read_from_the_archive_and_no_table_is_copied(shop: tuple[Case, Path]) -> None:
    world, archive = shop
    with pytest.raises(LogPurged):
        world.run_until_head()
    use(world, archive)
    world.run_until_head()
    world.assert_equal("orders")
    assert views(world.runtime()) == []


@pytest.mark.promise("G10")
def test_a_gap_stops_and_names_the_file(shop: tuple[Case, Path]) -> None:
    world, archive = shop
    missing = sorted(archive.iterdir())[-1]
    missing.rename(archive.parent / missing.name)
    use(world, archive)
    with pytest.raises(LogPurged, match=missing.stem if missing.suffix in {".gz", ".zst"} else missing.name):
        world.run_until_head()
    (archive.parent / missing.name).rename(missing)
    world.run_until_head()
    world.assert_equal("orders")


@pytest.mark.promise("G10")
def test_a_file_that_was_cut_short_stops(shop: tuple[Case, Path]) -> None:
    world, archive = shop
    whole = max((path for path in archive.iterdir() if path.suffix[1:].isdigit()), key=lambda path: path.name)
    shutil.copy(whole, archive.parent / "whole")
    whole.write_bytes(whole.read_bytes()[:-7])
    use(world, archive)
    with pytest.raises(DecodeError, match="within an event"):
        world.run_until_head()
    shutil.copy(archive.parent / "whole", whole)
    world.run_until_head()
    world.assert_equal("orders")


def test_a_file_that_was_copied_while_the_server_wrote_it_stops(shop: tuple[Case, Path]) -> None:
    """Its last transaction is whole, and nothing tells how many followed."""
    world, archive = shop
    whole = max((path for path in archive.iterdir() if path.suffix[1:].isdigit()), key=lambda path: path.name)
    content, at, ends = whole.read_bytes(), 4, [4]
    while at < len(content):
        at += int.from_bytes(content[at + 9 : at + 13], "little")
        ends.append(at)
    use(world, archive)
    for end in (ends[-2], ends[0]):
        whole.write_bytes(content[:end])
        with pytest.raises(DecodeError, match=f"ends after {end} bytes"):
            world.run_until_head()
    whole.write_bytes(content)
    world.run_until_head()
    world.assert_equal("orders")


def test_closed_files_are_archived_byte_by_byte(server: Any, shop: tuple[Case, Path]) -> None:
    world, archive = shop
    for path in archive.iterdir():
        path.unlink()
    use(world, archive)
    server.execute(
        f"INSERT INTO `{world.schema}`.orders VALUES (2000, 'x')",
        "FLUSH BINARY LOGS",
        f"CREATE TABLE `{world.schema}`.big (id INT PRIMARY KEY, v LONGTEXT)",
        f"INSERT INTO `{world.schema}`.big VALUES (1, REPEAT('b', 17000000))",
        "FLUSH BINARY LOGS",
    )
    closed = [row[0] for row in server.execute("SHOW BINARY LOGS")][:-1]
    printed = world.cli("source", "archive", str(world.path))
    assert [line.partition(":")[0] for line in printed.stdout.splitlines()] == closed, printed.stderr
    for name in closed:
        with pa.input_stream(str(archive / f"{name}.zst"), compression="zstd") as copy:
            assert copy.read() == (server.data_dir / name).read_bytes()
    assert world.cli("source", "archive", str(world.path)).stdout == ""


@pytest.mark.promise("G10")
def test_a_file_of_another_server_is_not_read(server: Any, shop: tuple[Case, Path]) -> None:
    world, archive = shop
    use(world, archive)
    server.execute("SET GLOBAL server_id = 32")
    try:
        with pytest.raises(CaptureError, match=r"server_id 31, not 32|another server answers"):
            world.run_until_head()
    finally:
        server.execute("SET GLOBAL server_id = 31")


def test_a_file_that_is_encrypted_is_refused(shop: tuple[Case, Path]) -> None:
    """MySQL's begins otherwise, MariaDB's has an event behind which all is encrypted."""
    world, archive = shop
    use(world, archive)
    plain = max((path for path in archive.iterdir() if path.suffix[1:].isdigit()), key=lambda path: path.name)
    whole = plain.read_bytes()
    begin = 4 + int.from_bytes(whole[13:17], "little")
    key_event = whole[begin : begin + 4] + bytes([164]) + whole[begin + 5 :]
    for content in (b"\xfdbin" + whole[4:], whole[:begin] + key_event):
        plain.write_bytes(content)
        with pytest.raises(DecodeError, match="is encrypted"):
            world.run_until_head()
    plain.write_bytes(whole)
    world.run_until_head()
    world.assert_equal("orders")
