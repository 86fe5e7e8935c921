"""Logins whose password lives for two seconds, at sources and targets; and what a connection may not run."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog

from devstack.postgresql import PostgreSQLServer
from sluice.config.connections import Endpoint, parse_connection, tls_settings
from sluice.config.credentials import ALLOWED, logged_in, password_of
from sluice.errors import ConfigError, CredentialsUnavailable
from sluice.operations.check import check
from tests.support.pipelines.case import Case, case
from tests.support.pipelines.pg_source import pg_case
from tests.support.running.packages import install

LIVES_S = 2.0
FLOCK = shutil.which("flock") or ""


class Rotation:
    """A password that is another every :data:`LIVES_S` seconds, and the command that prints the one of now."""

    def __init__(self, folder: Path, change: Callable[[str], None]) -> None:
        folder.mkdir()
        self.passwords: list[str] = []
        self._change, self._file, self._lock = change, folder / "password", folder / "lock"
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._rotate, daemon=True)
        self.command = [FLOCK, "--shared", str(self._lock), "cat", str(self._file)]

    def _next(self) -> None:
        with self._lock.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # nobody is given a password that has ended
            password = secrets.token_hex(12)
            self._change(password)
            self._file.write_text(f"{password}\n")
            self.passwords.append(password)

    def _rotate(self) -> None:
        while not self._over.wait(LIVES_S):
            self._next()

    def __enter__(self) -> Rotation:
        self._next()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def wait(self) -> None:
        """Wait until what was printed before is refused."""
        before, end = len(self.passwords), time.monotonic() + 60
        while len(self.passwords) == before:
            assert time.monotonic() < end
            time.sleep(0.05)

    def connection(self, as_root: str, user: str) -> str:
        """The connection of ``user``, from that of an administrator."""
        values = json.loads(as_root)
        extra = {**(values.get("extra") or {}), "password_command": self.command}
        return json.dumps({**values, "login": user, "password": "", "extra": extra})


@pytest.fixture(autouse=True)
def flock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOWED, os.pathsep.join((FLOCK, sys.executable)))


def in_three_lives(made: Case, rotation: Rotation, write: Callable[[int], None], tmp_path: Path) -> None:
    """Deliver a row with each of three passwords; none of them is in a log line, a file or a node."""
    with structlog.testing.capture_logs() as lines:
        for number in range(3):
            write(number)
            made.run_until_head()
            rotation.wait()
    texts = [str(lines), *(path.read_bytes().decode("latin-1") for path in tmp_path.rglob("*") if path.is_file())]
    with made.runtime().state() as state:
        texts.append(str(state.audit.entries()) + str(state.cursor()))
    for password in rotation.passwords:
        assert not any(password in text for text in texts)
    assert len(rotation.passwords) >= 4


@pytest.mark.promise("G8")
def test_a_password_of_mysql_lives_for_two_seconds(
    tmp_path: Path, tmp_path_factory: Any, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    schema = fresh_schema(mysql_source, mysql_target)
    user = f"u_{schema}"[:30]
    for server in (mysql_source, mysql_target):
        server.execute(
            f"CREATE TABLE `{schema}`.a (id INT PRIMARY KEY)",
            f"CREATE USER {user} IDENTIFIED BY 'first'",
            f"GRANT ALL ON *.* TO {user}",
        )

    def change(password: str) -> None:
        for server in (mysql_source, mysql_target):
            server.execute(f"ALTER USER {user} IDENTIFIED BY '{password}'")

    with (
        Rotation(tmp_path_factory.mktemp("login") / "mysql", change) as rotation,
        case(tmp_path, mysql_source, mysql_target, zookeeper, schema) as made,
    ):
        for name, server in (("case_source", mysql_source), ("case_target", mysql_target)):
            made.connections[name] = rotation.connection(made.connections[name], user)
            assert server.execute(f"SELECT 1 FROM mysql.user WHERE user = '{user}'")
        made.run_until_head()
        in_three_lives(
            made, rotation, lambda n: mysql_source.execute(f"INSERT INTO `{schema}`.a VALUES ({n})"), tmp_path
        )
        made.assert_equal("a")
        assert mysql_target.execute(f"SELECT COUNT(*) FROM `{schema}`.a") == [(3,)]
        assert all(finding.severity != "error" for finding in check(made.runtime()).findings)


@pytest.mark.promise("G8")
def test_a_password_of_postgresql_lives_for_two_seconds(
    tmp_path: Path, tmp_path_factory: Any, server_folder: Path, postgresql_source: Any, zookeeper: Any
) -> None:
    folder, options = server_folder / "pg-expiring", {"wal_level": "logical"}
    with PostgreSQLServer(
        folder, distribution=postgresql_source.distribution, password="s3cr't", options=options
    ) as server:
        server.execute("CREATE ROLE brief LOGIN SUPERUSER REPLICATION PASSWORD 'first'")
        with (
            Rotation(
                tmp_path_factory.mktemp("login") / "pg", lambda p: server.execute(f"ALTER ROLE brief PASSWORD '{p}'")
            ) as rotation,
            pg_case(
                tmp_path, server, zookeeper, schema="brief", tables=("CREATE TABLE a (id int PRIMARY KEY)",)
            ) as made,
        ):
            server.execute("CREATE TABLE brief.a (id int PRIMARY KEY)", database="copy")
            for name in ("case_source", "case_target"):
                made.connections[name] = rotation.connection(made.connections[name], "brief")
            made.prepare()
            made.run_until_head()
            in_three_lives(made, rotation, lambda n: made.write(f"INSERT INTO a VALUES ({n})"), tmp_path)
            assert made.rows("a")[1] == [(0,), (1,), (2,)]


def connection(**extra: Any) -> Endpoint:
    return parse_connection("db", json.dumps({"conn_type": "mysql", "host": "h", "login": "u", "extra": extra}))


@pytest.mark.promise("G8")
def test_a_connection_runs_no_program_that_the_environment_does_not_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may edit a connection in Airflow may not run what they like on its workers."""
    touch, trace = shutil.which("touch"), tmp_path / "trace"
    for command in ([touch, str(trace)], f"{touch} {trace}", ["touch", str(trace)], ["sh", "-c", f"touch {trace}"]):
        with pytest.raises(ConfigError, match="may not be run for a password") as refused:
            password_of(connection(password_command=command))
        assert ALLOWED in str(refused.value)
    monkeypatch.setenv(ALLOWED, "touch")  # no full path: whatever PATH finds
    with pytest.raises(ConfigError, match="may not be run for a password"):
        password_of(connection(password_command=["touch", str(trace)]))
    monkeypatch.delenv(ALLOWED)
    with pytest.raises(ConfigError, match="may not be run for a password"):
        password_of(connection(password_command=[sys.executable, "-c", "1"]))
    assert not trace.exists()


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("print('s3cret'); raise SystemExit(3)", "ended with 3"),
        ("", "printed nothing"),
        ("import time; print('s3cret', flush=True); time.sleep(60)", "printed no password within"),
    ],
)
def test_a_program_that_gives_no_password_is_asked_again_later(
    program: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.config.credentials.DEADLINE_S", 1.0)
    with pytest.raises(CredentialsUnavailable, match=why) as failed:
        password_of(connection(password_command=[sys.executable, "-c", program]))
    assert failed.value.retryable
    assert "s3cret" not in repr(failed.value) + str(failed.value)


def test_a_plug_in_gives_the_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "def ask(endpoint):\n    return f'{endpoint.user}@{endpoint.host}'\ndef fail(endpoint):\n    raise OSError('down')\n"
    points = "[sluice.credentials]\nvault = my_vault:ask\nbroken = my_vault:fail\n"
    install(monkeypatch, tmp_path, "my-vault", entry_points=points, modules={"my_vault": code})
    assert password_of(connection(credentials="vault")) == "u@h"
    with pytest.raises(CredentialsUnavailable, match="'broken' gave no password: OSError: down"):
        password_of(connection(credentials="broken"))
    with pytest.raises(ConfigError, match=r"no credentials 'valt' \(did you mean vault\?\)|'valt'.*'?vault") as unknown:
        password_of(connection(credentials="valt"))
    assert "rds_iam" in str(unknown.value)


def test_two_ways_are_refused_and_a_token_is_not_sent_in_the_clear() -> None:
    with pytest.raises(ConfigError, match="in two ways"):
        password_of(connection(credentials="rds_iam", password_command="/bin/true"))
    assert "ssl" in tls_settings(connection(credentials="rds_iam"))
    assert tls_settings(connection()) == {}


def test_a_refused_password_is_asked_for_once_more() -> None:
    asked: list[int] = []

    def connect(password: str) -> str:
        asked.append(1)
        if len(asked) == 1:
            raise PermissionError
        return password

    expiring = connection(password_command=[sys.executable, "-c", "print('s3cret')"])
    assert logged_in(expiring, connect, lambda error: isinstance(error, PermissionError)) == "s3cret"
    assert len(asked) == 2
    asked.clear()
    with pytest.raises(PermissionError):
        logged_in(connection(), connect, lambda error: True)
    assert len(asked) == 1
