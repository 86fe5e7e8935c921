"""A real PostgreSQL server, the same way: an installed one, else Debian's 18, unpacked into a project folder."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import psutil
import psycopg
from psycopg import sql

from devstack import debian, packages, paths, ports
from devstack.mysql import run_setup
from devstack.packages import Packages
from devstack.processes import ServerFailed
from devstack.server import Server, copy_template

_MINIMUM = 18
_PROGRAMS = ("initdb", "postgres")
USER = "postgres"
_LEFT = b"pre-existing shared memory block"
"""What a server says that was killed, while one of its processes is not gone yet: it was made after the others died."""


@dataclass(frozen=True)
class PostgreSQL:
    """An installation: the folder of its programs, its version, and where it is from."""

    programs: Path
    version: str
    origin: str


def find_postgresql() -> PostgreSQL:
    """Return an installed server of at least 18, else the one fetched earlier, else fetch it now (about 58 MB).

    Where ``SLUICE_POSTGRESQL`` names a version and a Debian suite (``17@trixie``), that one. Raises ServerFailed where
    it could not run, ConfigError or FetchFailed where it cannot be fetched.
    """
    as_nobody()
    if wanted := os.environ.get("SLUICE_POSTGRESQL", ""):
        version, _, suite = wanted.partition("@")
        return _fetched(Packages(f"postgresql-{version}-{suite}", (f"postgresql-{version}",), suite))
    for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: path.parts[-2], reverse=True):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            said = subprocess.run(
                [folder / "postgres", "-V"], capture_output=True, text=True, timeout=30, check=True
            ).stdout
            found = re.search(r"\(PostgreSQL\) (\d+)(\S*)", said)
            if found and int(found[1]) >= _MINIMUM and (folder / "initdb").exists():
                return PostgreSQL(folder, f"{found[1]}{found[2]}", str(folder))
    return _fetched(packages.POSTGRESQL)


def find_postgis() -> PostgreSQL:
    """Return a server with PostGIS, fetched at first use, apart from the other one (394 MB unpacked).

    Raises as :func:`find_postgresql`.
    """
    as_nobody()
    found = _fetched(packages.POSTGIS)
    folder = Path(found.origin) / f"usr/share/postgresql/{found.version.split('.')[0]}/extension"
    with contextlib.suppress(FileExistsError):  # the package's own script would make the link when it is installed
        (folder / "postgis.control").symlink_to("postgis-3.control")
    return found


def _fetched(wanted: Packages) -> PostgreSQL:
    tree = wanted.tree()
    programs = next(tree.root.glob("usr/lib/postgresql/*/bin"))
    with debian.lock(paths.home() / wanted.folder / ".programs.lock"):
        for name in _PROGRAMS:
            debian.use_own_loader(tree, programs / name)
    return PostgreSQL(programs, tree.version, str(tree.root))


def as_nobody() -> list[str]:
    """Return a command that runs the server as another user than root, which it refuses.

    In a user namespace root is another user, and files stay root's. Raises ServerFailed if that is impossible.
    """
    if os.geteuid() != 0:
        return []
    made = [shutil.which("unshare") or "", "--user", "--map-user=65534", "--map-group=65534"]
    if not made[0] or not _works(tuple(made)):
        raise ServerFailed(
            "PostgreSQL does not run as root, and root cannot be somebody else here (unshare --user of util-linux)",
            hint="run as another user, or allow user namespaces",
        )
    return made


@cache
def _works(command: tuple[str, ...]) -> bool:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run([*command, "true"], capture_output=True, timeout=30, check=False).returncode == 0
    return False


@dataclass
class PostgreSQLServer(Server):
    """One server: its data directory, port and process.

    ``start`` makes the data directory when there is none (a copy of a template that is initialised once a version), so
    the same object, or a new one over the same ``folder``, also restarts after a crash. The administrator is
    ``postgres`` at 127.0.0.1, with no password unless ``password`` is set.

    Args:
        folder: everything of this server: ``data/``, ``postgres.log``; only you remove it.
        distribution: what to run; None: :func:`find_postgresql`.
        port: None: a free one; kept over restarts.
        options: settings, e.g. ``{"max_connections": 20}``; they win over the defaults (None takes a default away).
        password: of ``postgres``; logins over TCP then need it (SCRAM).
        hba: lines of ``pg_hba.conf`` that come before its own.
    """

    name: str = "postgresql"
    distribution: PostgreSQL | None = None
    port: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    password: str = field(default="", repr=False)
    hba: tuple[str, ...] = ()

    # -- life ------------------------------------------------------------------------------------------------------
    def start(self, timeout_s: float = 120.0) -> PostgreSQLServer:
        """Start and wait until it answers. Raises ServerFailed with the end of its log."""
        if self.running:
            return self
        distribution = self._distribution()
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.data_dir.exists():
            self._make_data_dir(distribution)
        if not self.port:
            self.port = ports.free_port()
        argv = [*as_nobody(), str(distribution.programs / "postgres"), "-D", str(self.data_dir), *self._arguments()]
        end = time.monotonic() + timeout_s
        while True:
            before = self.log.stat().st_size if self.log.exists() else 0
            self._spawn(argv, _environment())
            try:
                self._wait_ready(self._answers, timeout_s)
                return self
            except ServerFailed:
                if _LEFT not in self.log.read_bytes()[before:] or time.monotonic() > end:
                    raise
                time.sleep(0.2)

    def stop(self, grace_s: float = 20.0) -> None:
        """Stop at once, like ``pg_ctl stop -m fast``: after a SIGTERM it would wait for every client to leave."""
        leader = self.handle.process() if self.handle is not None else None
        if leader is not None:
            with contextlib.suppress(psutil.Error):
                leader.send_signal(signal.SIGINT)
        super().stop(grace_s)

    # -- use -------------------------------------------------------------------------------------------------------
    @property
    def data_dir(self) -> Path:
        """The folder of the database cluster."""
        return self.folder / "data"

    @property
    def log(self) -> Path:
        """The file of what the server prints."""
        return self.folder / "postgres.log"

    def connect(self, database: str = "postgres", **options: Any) -> psycopg.Connection[tuple[Any, ...]]:
        """Open a connection as the administrator (autocommit); ``options`` win."""
        settings: dict[str, Any] = {
            "host": self.host, "port": self.port, "user": USER, "password": self.password or None, "dbname": database,
            "autocommit": True, "connect_timeout": 10, "sslmode": "prefer",
        }  # fmt: skip
        return psycopg.connect(**(settings | options))

    def execute(self, *statements: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run statements as the administrator on a connection of their own; the rows of the last one."""
        with contextlib.closing(self.connect(database)) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(sql.SQL(statement))
            return list(cursor.fetchall()) if cursor.description else []

    def connection_json(
        self, *, user: str = USER, password: str | None = None, schema: str = "postgres", **extra: Any
    ) -> str:
        """Return the value for ``AIRFLOW_CONN_<ID>``, in Airflow's JSON notation. ``schema``: the database."""
        return json.dumps({
            "conn_type": "postgres", "host": self.host, "port": self.port, "login": user,
            "password": self.password if password is None else password, "schema": schema, "extra": extra,
        })  # fmt: skip

    # -- inside ----------------------------------------------------------------------------------------------------
    def _distribution(self) -> PostgreSQL:
        if self.distribution is None:
            self.distribution = find_postgresql()
        return self.distribution

    def _arguments(self) -> list[str]:
        settings: dict[str, Any] = {
            "port": self.port,
            "listen_addresses": ports.LOOPBACK,
            "unix_socket_directories": "",
            "fsync": "off",  # a killed server loses nothing; only a dead machine would
            "full_page_writes": "off",
            "jit": "off",
            "shared_buffers": "128MB",
            "max_wal_size": "1GB",
            "max_connections": 100,
            "timezone": "UTC",
            "log_timezone": "UTC",
        }
        settings |= self.options
        return [word for key, value in settings.items() if value is not None for word in ("-c", f"{key}={value}")]

    def _make_data_dir(self, distribution: PostgreSQL) -> None:
        def adapt(data: Path) -> None:
            if self.password or self.hba:
                self._secure(distribution, data)

        name = f"postgresql-{distribution.version}"
        copy_template(name, partial(_initialise, distribution), self.data_dir, adapt)

    def _secure(self, distribution: PostgreSQL, data: Path) -> None:
        """Set the password in single-user mode, before anybody can log in."""
        rest = f"host all all {ports.LOOPBACK}/32 {'scram-sha-256' if self.password else 'trust'}"
        (data / "pg_hba.conf").write_text("\n".join([*self.hba, rest]) + "\n", encoding="utf-8")
        if self.password:
            argv = [*as_nobody(), str(distribution.programs / "postgres"), "--single", "-D", str(data), "postgres"]
            statement = sql.SQL("ALTER ROLE postgres PASSWORD {}").format(sql.Literal(self.password)).as_string()
            run_setup(argv, "setting PostgreSQL's password", stdin=f"{statement}\n", env=_environment())

    def _answers(self) -> bool:
        try:
            self.connect(connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True


def _initialise(distribution: PostgreSQL, data: Path) -> None:
    """Make an empty data directory, of which the builtin locale sorts alike on every machine."""
    argv = [
        *as_nobody(),
        str(distribution.programs / "initdb"),
        "-D",
        str(data),
        "-U",
        USER,
        "-A",
        "trust",
        "-E",
        "UTF8",
        "--no-sync",
    ]
    if int(distribution.version.split(".")[0]) >= 17:
        argv += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--no-locale"]
    else:
        argv += ["--locale=C.UTF-8"]
    run_setup(argv, f"initialising PostgreSQL {distribution.version}", env=_environment())


def _environment() -> dict[str, str]:
    """Return the environment without anything that would change a PostgreSQL program's settings or language."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PG", "LC_", "LANG"))}
    return kept | {"TZ": "UTC", "LC_ALL": "C"}
