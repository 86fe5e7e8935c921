"""The way to the source: TLS, logins, connections that die without a word, another replica of the same id, files
that go.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from devstack.mariadb import MariaDBServer, find_mariadb
from devstack.mysql import MySQLServer
from sluice.config.connections import parse_connection
from sluice.config.pipeline import PipelineConfig
from sluice.errors import ConfigError, LogPurged, LostPosition, SourceUnavailable
from sluice.model.log_files import split_file
from sluice.sources.mysql.catalog.resolver import TableResolver
from sluice.sources.mysql.protocol import binlog_dump
from sluice.sources.mysql.protocol.binlog_dump import BinlogDump
from sluice.sources.mysql.reader.batch_reader import capture
from sluice.sources.mysql.reader.log_part import LogReading
from sluice.sources.mysql.server.connection import connected, open_connection, rows_of, server_info
from sluice.sources.mysql.server.preflight import preflight
from sluice.sources.mysql.server.server_ids import reader_id
from sluice.sources.port import StreamLimits
from sluice.sources.table_filter import Selection
from tests.support.capture.capturing import draining, head
from tests.support.servers.proxy import TcpProxy

PIPELINE = PipelineConfig.model_validate({
    "pipeline": "p", "source": {"connection": "c"}, "targets": [{"name": "t", "type": "mysql", "connection": "c"}],
})  # fmt: skip
FLAVOURS = pytest.mark.parametrize("cls", [MySQLServer, MariaDBServer], ids=["mysql", "mariadb"])
GRANT = "GRANT REPLICATION SLAVE, REPLICATION CLIENT, SELECT ON *.* TO"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory) -> Path:
    """An authority, a server's certificate for ``localhost`` only, and a client's."""
    folder = tmp_path_factory.mktemp("tls")

    def run(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    run(
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "30",
        "-keyout",
        "ca.key",
        "-out",
        "ca.pem",
        "-subj",
        "/CN=authority",
    )
    for name in ("server", "client"):
        run(
            "req",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-keyout",
            f"{name}.key",
            "-out",
            f"{name}.csr",
            "-subj",
            f"/CN={'localhost' if name == 'server' else name}",
        )
        (folder / "names").write_text("subjectAltName=DNS:localhost")
        run(
            "x509",
            "-req",
            "-in",
            f"{name}.csr",
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-days",
            "30",
            "-out",
            f"{name}.pem",
            "-extfile",
            "names",
        )
    run(
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "30",
        "-keyout",
        "other.key",
        "-out",
        "other.pem",
        "-subj",
        "/CN=other",
    )
    for path in folder.iterdir():
        path.chmod(0o644)
    return folder


@pytest.fixture(scope="module", params=[MySQLServer, MariaDBServer], ids=["mysql", "mariadb"])
def secured(request, certificates, tmp_path_factory):
    """A server with TLS, and users who may only come encrypted, with a certificate, or with a password."""
    options = {
        "ssl_ca": certificates / "ca.pem",
        "ssl_cert": certificates / "server.pem",
        "ssl_key": certificates / "server.key",
    }
    with request.param(tmp_path_factory.mktemp("secured") / "s", server_id=9, options=options) as server:
        server.execute("CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY)")
        for user, how in (("safe", "REQUIRE SSL"), ("known", "REQUIRE X509"), ("plain", "")):
            server.execute(f"CREATE USER {user}@'%' IDENTIFIED BY 'pass word' {how}", f"{GRANT} {user}@'%'")
        yield server


def login(server, user, **extra):
    made = parse_connection("c", server.connection_json(user=user, password="pass word"))
    return replace(made, host="localhost", extra={k: str(v) for k, v in extra.items()})


def captured(server, endpoint, folder) -> int:
    """Rows that come through this login, and whether both connections are encrypted as asked."""
    with draining(server, folder, "d") as drain:
        number = server.execute("SELECT COALESCE(MAX(id), 0) + 1 FROM d.t")[0][0]
        server.execute(f"INSERT INTO d.t VALUES ({number})")
        result = capture(
            LogReading(endpoint, 88_001, Selection.compile(drain.config),
                StreamLimits(stop_at=head(drain.endpoint).as_offset())),
            drain.position, lambda: Rows(),
        )  # fmt: skip
        return result.changes


class Rows:
    """A sink that keeps nothing."""

    def buckets(self, schema, keys, rows):
        import numpy as np

        return np.zeros(rows, np.uint8)

    def add(self, *_, **__):
        pass

    note_ddl = abort = add

    def finish(self, *_, **__):
        return "manifest"


def test_tls_modes(secured, certificates, tmp_path):
    ca = certificates / "ca.pem"
    assert captured(secured, login(secured, "safe", ssl_mode="required"), tmp_path / "1") == 1
    assert captured(secured, login(secured, "safe", ssl_ca=ca), tmp_path / "2") == 1
    assert captured(secured, login(secured, "safe", ssl_ca=ca, ssl_mode="verify_identity"), tmp_path / "3") == 1
    client = {"ssl_ca": ca, "ssl_cert": certificates / "client.pem", "ssl_key": certificates / "client.key"}
    assert captured(secured, login(secured, "known", **client), tmp_path / "4") == 1
    with pytest.raises(ConfigError):
        captured(secured, login(secured, "safe", ssl_mode="disabled"), tmp_path / "5")
    with pytest.raises(ConfigError):
        captured(secured, login(secured, "known", ssl_ca=ca), tmp_path / "6")


def test_tls_verifies_authority_and_identity(secured, certificates, tmp_path):
    wrong_authority = login(secured, "safe", ssl_ca=certificates / "other.pem")
    wrong_name = replace(
        login(secured, "safe", ssl_ca=certificates / "ca.pem", ssl_mode="verify_identity"), host="127.0.0.1"
    )
    start = head(login(secured, "safe", ssl_mode="required"))
    for endpoint in (wrong_authority, wrong_name):
        with pytest.raises((SourceUnavailable, ConfigError), match="certificate"), open_connection(endpoint):
            pass
        with pytest.raises((SourceUnavailable, ConfigError), match="certificate"):
            BinlogDump(endpoint, server_id=88_002, start=start)
    with (
        pytest.raises(ConfigError, match="no-such-file"),
        open_connection(login(secured, "safe", ssl_ca="/no-such-file")),
    ):
        pass
    with pytest.raises(ConfigError, match="does not exist"), open_connection(login(secured, "safe", ssl_mode="maybe")):
        pass


def test_the_dump_itself_is_encrypted(secured, certificates):
    endpoint = login(secured, "safe", ssl_ca=certificates / "ca.pem")
    made = BinlogDump(endpoint, server_id=88_003, start=head(endpoint))
    try:
        assert made.connection._sock.cipher()
    finally:
        made.close()


@pytest.mark.parametrize("mode", ["disabled", "preferred"])
def test_passwords_without_tls_settings(secured, mode, tmp_path):
    """caching_sha2 on MySQL (by RSA where nothing is encrypted, first and from the server's cache), native on
    MariaDB.
    """
    for _ in range(2):
        assert captured(secured, login(secured, "plain", ssl_mode=mode), tmp_path) == 1
    with pytest.raises(ConfigError, match="refuses user 'plain'") as caught:
        captured(secured, replace(login(secured, "plain", ssl_mode=mode), password="wr ong"), tmp_path)
    assert "wr ong" not in str(caught.value)


def test_ed25519(tmp_path):
    """MariaDB's own kind of login; needs a server with the plugin (SLUICE_TEST_PLUGINS may name a folder that has
    it).
    """
    found = find_mariadb()
    given = next((o.partition("=")[2] for o in found.options if o.startswith("--plugin-dir=")), "/usr/lib/mysql/plugin")
    folder = Path(os.environ.get("SLUICE_TEST_PLUGINS", given))
    if not (folder / "auth_ed25519.so").exists():
        pytest.skip("this MariaDB has no ed25519 plugin")
    options = tuple(o for o in found.options if not o.startswith("--plugin-dir="))
    distribution = replace(found, options=(*options, f"--plugin-dir={folder}"))
    with MariaDBServer(tmp_path / "s", server_id=8, distribution=distribution) as server:
        server.execute("INSTALL SONAME 'auth_ed25519'", "CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY)")
        server.execute("CREATE USER plain@'%' IDENTIFIED VIA ed25519 USING PASSWORD('pass word')", f"{GRANT} plain@'%'")
        assert captured(server, login(server, "plain"), tmp_path) == 1
        with pytest.raises(ConfigError, match="refuses user"):
            captured(server, replace(login(server, "plain"), password="other"), tmp_path)


# -- connections that die without a word -------------------------------------------------------------------------------
class SilentProxy:
    """Passes bytes until told to fall silent; then both sides stay connected and nothing moves."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.silent = threading.Event()
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._to))
                self._sockets += [near, far]
                for a, b in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=(a, b), daemon=True).start()

    def _pass(self, a: socket.socket, b: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := a.recv(65536):
                if not self.silent.is_set():
                    b.sendall(data)

    def close(self) -> None:
        for one in [self._listener, *self._sockets]:
            one.close()


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(binlog_dump, "HEARTBEAT_S", 0.3)
    monkeypatch.setattr(binlog_dump, "SILENCE_S", 1.2)


@pytest.mark.parametrize("kind", ["mysql_source", "mariadb"])
def test_a_silent_connection_is_noticed(kind, request, impatient, tmp_path, fresh_schema):
    server = request.getfixturevalue(kind)
    proxy = SilentProxy(server.port)
    calls = iter(range(10**6))

    def fall_silent(**_):
        if next(calls) == 8:  # about two seconds: an idle connection lives on heartbeats until here
            proxy.silent.set()

    try:
        with (
            draining(server, tmp_path, fresh_schema(server)) as drain,
            pytest.raises(SourceUnavailable, match="not even a heartbeat"),
        ):
            capture(
                LogReading(replace(drain.endpoint, port=proxy.port), 88_004, Selection.compile(drain.config),
                    StreamLimits(idle_wait_s=60)),
                drain.position, lambda: Rows(), progress=fall_silent,
            )  # fmt: skip
        assert proxy.silent.is_set()
    finally:
        proxy.close()


def test_a_connection_that_is_cut_between_two_questions(mysql_source):
    """The catalog asks over a connection that was open before."""
    with TcpProxy(mysql_source.host, mysql_source.port) as link:
        endpoint = replace(parse_connection("c", mysql_source.connection_json()), port=link.port)

        @contextlib.contextmanager
        def about_to_be_cut():
            with connected(endpoint) as connection:
                link.cut()
                yield connection

        catalog = TableResolver(about_to_be_cut, endpoint)
        with pytest.raises(SourceUnavailable, match="asking the source for its collations"):
            catalog.collations()
        catalog.close()


def test_a_stopped_server_is_noticed(impatient, tmp_path):
    with MySQLServer(tmp_path / "s", server_id=8) as server, draining(server, tmp_path, "d") as drain:
        calls = iter(range(10**6))

        def halt(**_):
            if next(calls) == 4:
                os.kill(server.handle.pid, signal.SIGSTOP)

        try:
            with pytest.raises(SourceUnavailable, match="not even a heartbeat"):
                capture(
                    LogReading(drain.endpoint, 88_005, Selection.compile(drain.config), StreamLimits(idle_wait_s=60)),
                    drain.position, lambda: Rows(), progress=halt,
                )  # fmt: skip
            with pytest.raises(SourceUnavailable):  # it accepts connections, and says nothing
                BinlogDump(drain.endpoint, server_id=88_005, start=drain.position)
        finally:
            os.kill(server.handle.pid, signal.SIGCONT)


# -- the same id, files that go ----------------------------------------------------------------------------------------
@pytest.mark.promise("A1")
def test_two_replicas_of_one_id(mysql_source, tmp_path, fresh_schema, monkeypatch):
    db = fresh_schema(mysql_source)
    with draining(mysql_source, tmp_path, db) as drain:
        monkeypatch.setattr(binlog_dump.socket, "gethostname", lambda: "elsewhere")
        others = [BinlogDump(drain.endpoint, server_id=88_006, start=drain.position)]
        monkeypatch.undo()
        try:
            with open_connection(drain.endpoint) as connection:
                found = preflight(connection, server_info(connection), PIPELINE, None, 88_006)
                assert [(f.severity, f.setting) for f in found] == [("warning", "server_id")]
                assert "elsewhere" in found[0].why
                assert preflight(connection, server_info(connection), PIPELINE, None, 88_007) == []
                monkeypatch.setattr(binlog_dump.socket, "gethostname", lambda: "elsewhere")
                others.append(BinlogDump(drain.endpoint, server_id=reader_id(88_007, 1), start=drain.position))
                monkeypatch.undo()
                found = preflight(connection, server_info(connection), PIPELINE, None, 88_007)
                assert [(f.setting, f.value) for f in found] == [("server_id", str(reader_id(88_007, 1)))]
                assert "of reader 2" in found[0].why

            def take_over(**_):
                if len(others) == 2:
                    others.append(BinlogDump(drain.endpoint, server_id=88_006, start=drain.position))

            with pytest.raises(SourceUnavailable, match="same server id took over") as caught:
                capture(
                    LogReading(drain.endpoint, 88_006, Selection.compile(drain.config), StreamLimits(idle_wait_s=60)),
                    drain.position, lambda: Rows(), progress=take_over,
                )  # fmt: skip
            assert "source.server_id" in (caught.value.hint or "")
        finally:
            for other in others:
                other.close()


def purge(server, name: str) -> None:
    """A server keeps files that a dump still reads, which takes a moment to notice that its reader hung up."""
    end = time.monotonic() + 240
    while server.execute("SHOW BINARY LOGS")[0][0] != name:
        assert time.monotonic() < end
        server.execute(f"PURGE BINARY LOGS TO '{name}'")
        time.sleep(0.2)


@FLAVOURS
def test_file_numbers_beyond_six_digits_and_purged_files(cls, tmp_path):
    with cls(tmp_path / "s", server_id=8) as server:
        server.execute("CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY)")
        server.stop()
        last = sorted(server.data_dir.glob("binlog.0*"))[-1]
        last.rename(last.with_name("binlog.999998"))
        index = server.data_dir / "binlog.index"
        index.write_text(index.read_text().replace(last.name, "binlog.999998"))
        for extra in server.data_dir.glob("binlog.state"):
            assert extra.exists()
        server.start()
        with draining(server, tmp_path, "d") as drain:
            assert split_file(drain.position.file)[1] == 999_999
            for i in range(3):
                server.execute(f"INSERT INTO d.t VALUES ({i})", "FLUSH BINARY LOGS")
                if i == 0:
                    assert [c.after["id"] for c in drain.changes(drain.all())] == [0]
                    behind = drain.position
            server.execute("INSERT INTO d.t VALUES (9)")
            assert [c.after["id"] for c in drain.changes(drain.all())] == [1, 2, 9]
            assert split_file(drain.position.file)[1] == 1_000_002
            assert drain.position.follows(behind)
            with open_connection(drain.endpoint) as connection:
                info = server_info(connection)
                assert [f for f in preflight(connection, info, PIPELINE, drain.position) if f.severity == "error"] == []
                purge(server, "binlog.1000001")
                (lost,) = preflight(connection, server_info(connection), PIPELINE, behind)
            assert lost.kind is LogPurged
            assert "hours ago" in lost.why
            assert "binlog.1000001 to binlog.1000002" in lost.why
            drain.position = behind
            with pytest.raises(LostPosition, match="1236"):
                drain.once()


@FLAVOURS
def test_a_log_that_was_reset_is_not_taken_for_the_old_one(cls, tmp_path):
    with cls(tmp_path / "s", server_id=8) as server:
        server.execute(
            "CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY)", "INSERT INTO d.t VALUES (1), (2), (3)"
        )
        old = head(parse_connection("c", server.connection_json()))
        server.execute("RESET MASTER" if cls is MariaDBServer else "RESET BINARY LOGS AND GTIDS")
        server.execute(
            "CREATE TABLE d.longer (id INT PRIMARY KEY, v VARCHAR(2000))",
            "INSERT INTO d.longer VALUES (1, REPEAT('x', 2000))",
        )
        with open_connection(parse_connection("c", server.connection_json())) as connection:
            info = server_info(connection)
            assert info.head.order > old.order  # the old position exists, and means something else
            (found,) = [f for f in preflight(connection, info, PIPELINE, old) if f.severity == "error"]
        assert found.setting == "GTIDs"


def test_schemas_that_the_server_does_not_log(tmp_path):
    with MySQLServer(
        tmp_path / "s", server_id=8, options={"binlog_ignore_db": "quiet", "binlog_checksum": "NONE"}
    ) as server:
        server.execute(
            "CREATE DATABASE quiet",
            "CREATE TABLE quiet.t (id INT PRIMARY KEY)",
            "CREATE DATABASE loud",
            "CREATE TABLE loud.t (id INT PRIMARY KEY)",
        )
        with open_connection(parse_connection("c", server.connection_json())) as connection:
            found = preflight(connection, server_info(connection), PIPELINE, None)
            assert [(f.severity, f.setting) for f in found] == [
                ("error", "binlog_ignore_db"),
                ("warning", "binlog_checksum"),
            ]
            assert "quiet" in found[0].why
            only = PIPELINE.model_copy(
                update={"capture": PIPELINE.capture.model_copy(update={"include": (r"loud\..*",)})}
            )
            assert [f.setting for f in preflight(connection, server_info(connection), only, None)] == [
                "binlog_checksum"
            ]
        with draining(server, tmp_path, "loud") as drain:  # without checksums
            server.execute("INSERT INTO loud.t VALUES (1), (2)")
            assert [c.after["id"] for c in drain.changes(drain.all())] == [1, 2]


def test_a_log_inside_a_storage_engine_is_refused(mysql_source):
    """MariaDB 12.3 has it, which cannot be had here: only its setting is looked at."""
    with open_connection(parse_connection("c", mysql_source.connection_json())) as connection:
        info = server_info(connection)
        info.variables["binlog_storage_engine"] = "innodb"
        (found,) = preflight(connection, info, PIPELINE, None)
    assert (found.severity, found.setting, found.value) == ("error", "binlog_storage_engine", "innodb")


def test_a_replica_that_does_not_log_what_it_applies(mysql_source, tmp_path):
    with MySQLServer(tmp_path / "s", server_id=8, options={"log_replica_updates": "OFF"}) as server:
        with open_connection(parse_connection("c", server.connection_json())) as connection:
            assert preflight(connection, server_info(connection), PIPELINE, None) == []
            rows_of(
                connection,
                f"CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', SOURCE_PORT={mysql_source.port}, "
                "SOURCE_USER='root'",
            )
            (found,) = preflight(connection, server_info(connection), PIPELINE, None)
        assert (found.severity, found.setting) == ("error", "log_replica_updates")
