"""A real MySQL server on a free loopback port: an installed one, else Debian's newest, unpacked into a project
folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pymysql
from pymysql.connections import Connection
from pymysql.cursors import Cursor

from devstack import packages, ports
from devstack.processes import ServerFailed
from devstack.server import Server, copy_template

_MINIMUM = (8, 0)


@dataclass(frozen=True)
class Distribution:
    """An installation that servers are started from.

    ``command`` runs the server program; ``options`` point it at its own files; ``origin`` says where it is from.
    """

    name: str
    version: str
    command: tuple[str, ...]
    options: tuple[str, ...]
    origin: str
    share: Path | None = None

    @property
    def is_mariadb(self) -> bool:
        """True for MariaDB, False for MySQL."""
        return self.name == "MariaDB"


def find_mysql() -> Distribution:
    """Return an installed mysqld of at least 8.0, else the one fetched earlier, else fetch it now (about 65 MB)."""
    installed = _installed_mysqld()
    if installed is not None:
        return installed
    tree = packages.MYSQL.tree()
    share = tree.root / "usr/share/mysql"
    options = (
        f"--basedir={tree.root / 'usr'}",
        f"--lc-messages-dir={share}",
        f"--character-sets-dir={share / 'charsets'}",
        f"--plugin-dir={tree.root / 'usr/lib/mysql/plugin'}",
    )
    command = (*tree.command("usr/sbin/mysqld"), "--no-defaults")
    return Distribution("MySQL", tree.version, command, options, str(tree.root), share)


def _installed_mysqld() -> Distribution | None:
    for candidate in (shutil.which("mysqld"), "/usr/sbin/mysqld", "/usr/local/mysql/bin/mysqld"):
        if candidate is None or not Path(candidate).exists():
            continue
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            banner = subprocess.run(
                [candidate, "--version"], capture_output=True, text=True, timeout=30, check=True
            ).stdout
            match = re.search(r"Ver (\d+)\.(\d+)(\S*)", banner)
            if match and "MariaDB" not in banner and (int(match[1]), int(match[2])) >= _MINIMUM:
                version = f"{match[1]}.{match[2]}{match[3]}"
                return Distribution("MySQL", version, (candidate, "--no-defaults"), (), candidate)
    return None


@dataclass
class MySQLServer(Server):
    """One server: its data directory, port and process.

    ``start`` makes the data directory when there is none (a copy of a template that is initialised once a version), so
    the same object, or a new one over the same ``folder``, also restarts after a crash. The administrator is
    ``root`` at 127.0.0.1, with no password unless ``root_password`` is set.

    Args:
        folder: everything of this server: ``data/``, ``mysqld.log``; only you remove it.
        distribution: what to run; None: :func:`find_mysql`.
        port: None: a free one; kept over restarts.
        server_id: replication id, unique among the servers that see each other.
        options: server variables, e.g. ``{"binlog_format": "MIXED", "gtid_mode": "OFF"}``; they win over the defaults
            (row log, full row image and metadata, GTIDs on; None as the value takes a default away).
        root_password: for servers that others may reach for longer than a test.
    """

    name: str = "mysql"
    distribution: Distribution | None = None
    port: int = 0
    server_id: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)
    root_password: str = field(default="", repr=False)

    # -- life ------------------------------------------------------------------------------------------------------
    def start(self, timeout_s: float = 120.0) -> MySQLServer:
        """Start and wait until it answers. Raises ServerFailed with the end of its log."""
        if self.running:
            return self
        distribution = self._distribution()
        self.folder.mkdir(parents=True, exist_ok=True)
        fresh = not self.data_dir.exists()
        if fresh:
            self._make_data_dir(distribution)
        if not self.port:
            self.port = ports.free_port()
        argv = [*distribution.command, *distribution.options, *self._arguments(distribution)]
        self._spawn(argv, _environment())
        self._wait_ready(self._answers, timeout_s)
        if fresh and self.root_password:
            try:
                self._set_root_password()
            except BaseException:
                self.stop()
                raise
        return self

    def stop(self, grace_s: float = 20.0) -> None:
        """Shut down with an orderly end, by force after ``grace_s`` seconds: InnoDB flushes its pages first."""
        super().stop(grace_s)

    def __exit__(self, *_: object) -> None:
        self.kill()  # a block is a test or a benchmark: an orderly end, for data that is thrown away, only takes seconds  # noqa: E501

    def _stopped(self) -> None:
        for path in (self.socket, f"{self.socket}.lock"):
            with contextlib.suppress(OSError):
                os.unlink(path)

    # -- use -------------------------------------------------------------------------------------------------------
    @property
    def data_dir(self) -> Path:
        """The folder of the tables and of the binary log."""
        return self.folder / "data"

    @property
    def log(self) -> Path:
        """The error log."""
        return self.folder / "mysqld.log"

    @property
    def socket(self) -> str:
        """Path of the unix socket; in the temporary folder when the server's own is too deep for the kernel's 107
        bytes.
        """
        inside = str(self.folder / "mysqld.sock")
        if len(inside.encode()) < 100:
            return inside
        return str(Path(tempfile.gettempdir()) / f"sluice-{os.getuid()}-{self.port}.sock")

    def connect(self, database: str | None = None, **options: Any) -> Connection[Cursor]:
        """Open a PyMySQL connection as root (utf8mb4, autocommit); ``options`` win."""
        settings: dict[str, Any] = {
            "host": self.host,
            "port": self.port,
            "user": "root",
            "password": self.root_password,
            "database": database,
            "charset": "utf8mb4",
            "autocommit": True,
            "connect_timeout": 10,
        }
        if not any(name.startswith("ssl") for name in options):
            settings["ssl_disabled"] = True  # loopback; a TLS context of its own costs each connection 20 ms
        return pymysql.connect(**(settings | options))

    def execute(self, *statements: str, database: str | None = None) -> list[tuple[Any, ...]]:
        """Run statements as root on a connection of their own; the rows of the last one."""
        with contextlib.closing(self.connect(database)) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    def connection_json(self, *, user: str = "root", password: str | None = None, schema: str = "") -> str:
        """Return the value for ``AIRFLOW_CONN_<ID>``, in Airflow's JSON notation."""

        return json.dumps({
            "conn_type": "mysql",
            "host": self.host,
            "port": self.port,
            "login": user,
            "password": self.root_password if password is None else password,
            "schema": schema,
        })

    # -- inside ----------------------------------------------------------------------------------------------------
    def _distribution(self) -> Distribution:
        if self.distribution is None:
            self.distribution = find_mysql()
        return self.distribution

    def _arguments(self, distribution: Distribution) -> list[str]:
        variables: dict[str, Any] = {
            "datadir": self.data_dir,
            "port": self.port,
            "bind_address": ports.LOOPBACK,
            "socket": self.socket,
            "pid_file": self.folder / "mysqld.pid",
            "server_id": self.server_id,
            "log_bin": "binlog",
            "binlog_format": "ROW",
            "binlog_row_image": "FULL",
            "binlog_row_metadata": "FULL",
            "innodb_buffer_pool_size": "128M",
            "innodb_flush_log_at_trx_commit": 2,  # a killed server loses nothing; only a dead machine would
            "sync_binlog": 0,
            "character_set_server": "utf8mb4",
            "default_time_zone": "+00:00",
            "secure_file_priv": "",
            "local_infile": 1,
            "max_connections": 200,
            "max_allowed_packet": "64M",
            "skip_name_resolve": "ON",
        }
        variables |= self._own_defaults(distribution)
        variables |= self.options
        arguments = [f"--{key.replace('_', '-')}={value}" for key, value in variables.items() if value is not None]
        return [*run_as(), *arguments]

    def _own_defaults(self, distribution: Distribution) -> dict[str, Any]:
        defaults: dict[str, Any] = {
            "gtid_mode": "ON",
            "enforce_gtid_consistency": "ON",
            "mysqlx": "OFF",
            "innodb_redo_log_capacity": "256M",
            "log_error_verbosity": 2,
        }
        if distribution.version.startswith("8.0."):
            defaults["innodb_redo_log_capacity"] = None  # not in its first releases
        return defaults

    def _make_data_dir(self, distribution: Distribution) -> None:
        folded = f"-names{self.options['lower_case_table_names']}" if "lower_case_table_names" in self.options else ""
        copy_template(
            f"{distribution.name.lower()}-{distribution.version}{folded}",
            partial(self._initialise, distribution),
            self.data_dir,
            lambda data: (data / "auto.cnf").unlink(missing_ok=True),  # each server needs a uuid of its own
        )

    def _initialise(self, distribution: Distribution, data: Path) -> None:
        """Make an empty data directory whose root may log in from 127.0.0.1 without a password."""
        script = data.parent / "init.sql"
        script.write_text(
            "CREATE USER 'root'@'127.0.0.1' IDENTIFIED BY '';\n"
            "GRANT ALL PRIVILEGES ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION;\n",
            encoding="utf-8",
        )
        argv = [
            *distribution.command,
            *distribution.options,
            *run_as(),
            "--initialize-insecure",
            f"--datadir={data}",
            f"--init-file={script}",
            "--mysqlx=OFF",
            "--default-time-zone=+00:00",
            *(f"--{name}={self.options[name]}" for name in ("lower_case_table_names",) if name in self.options),
        ]
        run_setup(argv, f"initialising {distribution.name} {distribution.version}")

    def _answers(self) -> bool:
        try:
            self.connect(connect_timeout=2, password="").close()
        except pymysql.err.OperationalError as error:
            return bool(error.args[0] == 1045)  # it refuses the empty password: it is up
        except pymysql.MySQLError:
            return False
        return True

    def _set_root_password(self) -> None:
        with contextlib.closing(self.connect(password="")) as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION sql_log_bin = 0")
            cursor.execute("ALTER USER 'root'@'127.0.0.1' IDENTIFIED BY %s", (self.root_password,))
            cursor.execute("ALTER USER 'root'@'localhost' IDENTIFIED BY %s", (self.root_password,))


def run_as() -> list[str]:
    """Return the option with which mysqld accepts root; the stack's folders belong to the user who starts it."""
    return ["--user=root"] if os.geteuid() == 0 else []


def _environment() -> dict[str, str]:
    """Return the environment without anything that would change how a MySQL program reads its settings."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("MYSQL", "MARIADB"))} | {"TZ": "UTC"}


def run_setup(
    argv: list[str],
    what: str,
    stdin: str | None = None,
    timeout_s: float = 180.0,
    env: Mapping[str, str] | None = None,
) -> None:
    """Run a program that prepares something to its end. Raises ServerFailed with the end of its output."""
    environment = dict(_environment() if env is None else env)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    try:
        done = subprocess.run(
            argv, input=stdin or "", capture_output=True, text=True, errors="replace", env=environment,
            timeout=timeout_s, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServerFailed(f"{what} failed: {error}") from error
    if done.returncode:
        tail = "\n".join(f"    {line}" for line in (done.stdout + done.stderr).splitlines()[-8:])
        raise ServerFailed(f"{what} failed:\n{tail}")
