"""A file of positions: what it does beyond the contract of every store of positions."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from sluice.config.connections import Endpoint, from_environment, parse_connection
from sluice.coordination import sqlite
from sluice.coordination.port import Create, Put
from sluice.errors import ConfigError, CoordinationUnavailable, MissingConnection


def opened(file: Path, timeout_s: float = 30.0):
    return sqlite.connect(Endpoint("here", "sqlite", str(file)), session_timeout_s=timeout_s, connect_timeout_s=5)


def until(condition) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


OTHER = """\
import sys, time
from sluice.config.connections import Endpoint
from sluice.coordination import sqlite
from sluice.coordination.port import Create, Put
from sluice.errors import CoordinationUnavailable
with sqlite.connect(Endpoint("here", "sqlite", sys.argv[1]), session_timeout_s=1.5) as session:
    session.ensure("/a")
    session.transact([Create("/a/owner", b"the other process", ephemeral=True)])
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            session.transact([Put("/a", line.encode(), -1)])
            print("written", flush=True)
        except CoordinationUnavailable as error:
            print(error.message, session.alive, flush=True)
"""


class OtherProcess:
    """A process that holds the ephemeral node /a/owner, and writes into /a when it is told to."""

    def __init__(self, file: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", OTHER, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.answer() == "ready"

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def write(self) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write("x\n")
        self.process.stdin.flush()
        return self.answer()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "positions.db"


@pytest.fixture
def other(file: Path) -> Iterator[OtherProcess]:
    other = OtherProcess(file)
    yield other
    other.process.kill()
    other.process.communicate()


@pytest.mark.promise("G7")
def test_a_process_that_was_stopped_for_too_long_has_lost_its_session(file: Path, other: OtherProcess) -> None:
    assert other.write() == "written"
    with opened(file, timeout_s=1.5) as session:
        other.process.send_signal(signal.SIGSTOP)
        until(lambda: session.get("/a/owner") is None)
        session.transact([Create("/a/owner", b"me", ephemeral=True)])
        other.process.send_signal(signal.SIGCONT)
        assert other.write().endswith("the session was not renewed in time, and is over False")
        node, owner = session.get("/a"), session.get("/a/owner")
        assert node is not None
        assert node.version == 1
        assert owner is not None
        assert owner.data == b"me"


@pytest.mark.promise("G7")
def test_a_process_that_was_killed_gives_its_lease_up(file: Path, other: OtherProcess) -> None:
    with opened(file) as session:
        other.process.kill()
        until(lambda: session.get("/a/owner") is None)


def test_what_another_process_writes_is_noticed(file: Path, other: OtherProcess) -> None:
    with opened(file) as session:
        heard: list[str] = []
        assert session.get("/a", lambda: heard.append("node")) is not None
        assert session.children("/a", lambda: heard.append("children")) == ["owner"]
        other.write()
        until(lambda: heard)
        assert heard == ["node"], "the list of children is as it was"
        other.process.terminate()
        other.process.wait()
        until(lambda: len(heard) == 2)


def test_all_who_watch_are_called_when_the_session_is_over(file: Path) -> None:
    heard: list[str] = []
    with opened(file) as session:
        session.ensure("/a")
        session.notify("/a", lambda: heard.append("over"))
        session.notify("/b", lambda: heard.append("created"))
        with opened(file) as two:
            two.transact([Create("/b")])
        until(lambda: heard)
    assert heard == ["created", "over"]


def test_a_watch_that_fails_ends_neither_the_session_nor_the_others(file: Path) -> None:
    heard: list[str] = []

    def fail() -> None:
        raise RuntimeError("of the test")

    with opened(file, timeout_s=1) as session, opened(file) as two:
        session.notify("/a", fail)
        session.notify("/a", lambda: heard.append("second"))
        two.transact([Create("/a")])
        until(lambda: heard)
        time.sleep(1.5)
        assert session.get("/a") is not None, "the session is renewed as before"


def test_a_wall_clock_that_is_set_ends_no_session(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(file, timeout_s=2) as session:
        session.ensure("/a")
        session.transact([Create("/a/owner", ephemeral=True)])
        for days in (400, -400):
            wall = time.time_ns() + days * 86400 * 10**9
            monkeypatch.setattr("sluice.coordination.sqlite.time.time_ns", lambda wall=wall: wall)
            with opened(file) as two:
                two.transact([Put("/a", b"", -1)])
                node = two.get("/a")
                assert node is not None
                assert node.modified_ms == wall // 10**6
                assert two.get("/a/owner") is not None
        assert session.alive


def test_sessions_of_an_earlier_boot_are_over_at_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as earlier:
        earlier.enter_context(opened(file, timeout_s=3600)).transact([Create("/owner", ephemeral=True)])
        with opened(file) as session:
            assert session.get("/owner") is not None
        monkeypatch.setattr(sqlite, "_now_ms", lambda: 1000)
        with opened(file) as session:
            assert session.get("/owner") is None


@pytest.mark.promise("G7")
def test_a_full_disk_refuses_a_transaction_as_a_whole(file: Path) -> None:
    with opened(file) as session:
        session.transact([Create("/a", b"before")])
        pages = session._db.execute("PRAGMA page_count").fetchone()[0]
        session._db.execute(f"PRAGMA max_page_count = {pages + 1}")
        with pytest.raises(CoordinationUnavailable, match="database or disk is full") as raised:
            session.transact([Put("/a", b"after", 0), Create("/b", bytes(100_000))])
        assert raised.value.where == f"file of positions {file}"
        session._db.execute("PRAGMA max_page_count = 1000000")
        node = session.get("/a")
        assert node is not None
        assert (node.data, node.version) == (b"before", 0)
        session.transact([Put("/a", b"after", 0), Create("/b", bytes(100_000))])


@pytest.mark.promise("G7")
def test_the_file_is_its_owners_alone_and_durable(file: Path) -> None:
    with opened(file) as session:
        session.ensure("/a")
        for name in (file, Path(f"{file}-wal")):
            assert stat.S_IMODE(name.stat().st_mode) == 0o600
        assert session._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert session._db.execute("PRAGMA synchronous").fetchone() == (2,), "FULL"


@pytest.mark.parametrize(
    ("host", "content", "message"),
    [
        ("positions.db", None, "'positions.db' is not an absolute path of a file"),
        ("absent/positions.db", None, "there is no folder {tmp}/absent"),
        ("text.db", b"not a database, and long enough to be looked at " * 50, "it is not a file of positions: file is"),
        ("other.db", "CREATE TABLE mine (x)", "it is a SQLite file of something else"),
        ("newer.db", f"PRAGMA application_id = {sqlite.APPLICATION_ID}; PRAGMA user_version = 2", "it has format 2"),
    ],
)
def test_what_is_no_file_of_positions_is_refused_and_left_alone(
    tmp_path: Path, host: str, content: bytes | str | None, message: str
) -> None:
    file = tmp_path / host
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content:
        with closing(sqlite3.connect(file)) as db:
            db.executescript(content)
    before = file.read_bytes() if content else None
    place = host if "absolute" in message else str(file)
    with pytest.raises(ConfigError) as raised, sqlite.connect(Endpoint("here", "sqlite", place), session_timeout_s=5):
        pass
    assert message.format(tmp=tmp_path) in str(raised.value)
    if isinstance(content, bytes):
        assert file.read_bytes() == before
    assert content or not file.exists()


def test_a_file_system_that_machines_share_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sqlite._file_system(Path("/proc/self/mounts")) == "proc"
    monkeypatch.setattr(sqlite, "_file_system", lambda file: "nfs4")
    with pytest.raises(ConfigError, match="file system of type nfs4, which several machines may share"), opened(file):
        pass
    assert not file.exists()


def test_a_folder_that_may_not_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ConfigError, match="cannot be created: Permission denied"), opened(tmp_path / "positions.db"):
        pass


@pytest.mark.parametrize("uri", ["sqlite:///var/lib/positions.db", "sqlite:////var/lib/positions.db"])
def test_one_variable_names_the_file(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_connection("any", uri).host == "/var/lib/positions.db"
    with pytest.raises(MissingConnection) as missing:
        from_environment("zookeeper_default")
    assert "SLUICE_STATE=sqlite:///PATH keeps positions in a file" in (missing.value.hint or "")
    monkeypatch.setenv("SLUICE_STATE", uri)
    endpoint = from_environment("zookeeper_default")
    assert (endpoint.kind, endpoint.host, endpoint.port) == ("sqlite", "/var/lib/positions.db", None)
    with pytest.raises(MissingConnection, match="no connection 'other'"):
        from_environment("other")
    monkeypatch.setenv("AIRFLOW_CONN_ZOOKEEPER_DEFAULT", "zookeeper://127.0.0.1:2181")
    with pytest.raises(ConfigError, match="both SLUICE_STATE and AIRFLOW_CONN_ZOOKEEPER_DEFAULT"):
        from_environment("zookeeper_default")
