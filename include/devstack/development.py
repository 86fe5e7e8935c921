"""The development stack as one thing: its settings, its servers, its state file.

Everything follows from the settings, so any process can build the same servers again from the state file and go on
with them: the command that stops the stack, the supervisor that restarts what died, a test that kills one on purpose.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from devstack import airflow, debian, paths, ports, processes
from devstack.airflow import AirflowApi, AirflowComponent
from devstack.kinds import KINDS, Kind, pipelines_from_postgresql, pipelines_with
from devstack.mariadb import MariaDBServer, find_mariadb
from devstack.mysql import Distribution, MySQLServer, find_mysql
from devstack.postgresql import PostgreSQLServer
from devstack.processes import Handle
from devstack.server import Server
from devstack.spark import SparkConnectServer
from devstack.subscriptions import SubscriptionService
from devstack.zookeeper import ZooKeeperServer
from sluice.errors import ConfigError
from sluice.model.dialects import MARIADB, MYSQL
from sluice.model.rights import Right, Scope
from sluice.mysql import rights

SOURCE, TARGET = "mysql-source", "mysql-target"
SOURCE_POSTGRESQL = "postgresql-source"
ZOOKEEPER, SPARK, SUBSCRIPTIONS = "zookeeper", "spark-connect", "subscriptions"
SOURCE_SCHEMA, TARGET_SCHEMA = "shop", "reporting"
_TWO_SITES = Path(__file__).parent / "demo" / "two_sites"
"""Files of the pipelines and of the channel of a stack whose servers both take writes."""

_PORT_VARIABLES = {
    SOURCE: "SLUICE_SOURCE_PORT",
    TARGET: "SLUICE_TARGET_PORT",
    ZOOKEEPER: "SLUICE_ZOOKEEPER_PORT",
    SPARK: "SLUICE_SPARK_PORT",
    "airflow": "SLUICE_UI_PORT",
    SUBSCRIPTIONS: "SLUICE_SERVE_PORT",
    "subscriptions-http": "SLUICE_SERVE_HTTP_PORT",
}


@dataclass(frozen=True)
class Settings:
    """Decisions that are made once per stack. Holds passwords: the state file is readable by its owner only."""

    folder: str
    ports: dict[str, int]
    keys: dict[str, str] = field(repr=False)
    passwords: dict[str, str] = field(repr=False)
    mariadb: bool = False
    pipelines: str = ""
    rules: str = ""
    kind: str = ""
    """The kind of the second target; "": there is only the MySQL one."""
    channel: bool = False
    """Both servers take writes, and a channel keeps them equal."""
    postgresql: bool = False
    """The source is a PostgreSQL server."""

    @classmethod
    def choose(
        cls,
        folder: Path,
        distribution: Distribution,
        kind: Kind | None = None,
        *,
        channel: bool = False,
        postgresql: bool = False,
    ) -> Settings:
        """Free ports (or those that the environment fixes), new passwords. Raises ConfigError for a taken port."""
        chosen = {name: _choose_port(variable) for name, variable in _PORT_VARIABLES.items()}
        root = paths.repo_root()
        pipelines = os.environ.get("SLUICE_PIPELINES") or str(root / "include" / "pipelines")
        if kind is not None:
            chosen |= {name: ports.free_port() for name in kind.ports}
            pipelines = str(pipelines_with(kind, folder / "pipelines"))
        if channel:
            shutil.copytree(_TWO_SITES, folder, dirs_exist_ok=True)
            pipelines = str(folder / "pipelines")
        if postgresql:
            pipelines = str(pipelines_from_postgresql(folder / "pipelines"))
        return cls(
            str(folder),
            chosen,
            airflow.new_secrets(),
            {name: secrets.token_urlsafe(12) for name in ("root", "sluice", "sluice_load")},
            distribution.is_mariadb,
            pipelines,
            os.environ.get("SLUICE_RULES") or str(root / "include" / "rules"),
            kind.name if kind else "",
            channel,
            postgresql,
        )


def _choose_port(variable: str) -> int:
    text = os.environ.get(variable, "")
    if not text:
        if variable == "SLUICE_UI_PORT" and ports.is_free(8080):
            return 8080
        return ports.free_port()
    if not text.isdigit() or not 0 < int(text) < 65536:
        raise ConfigError(f"{variable} is not a port: {text!r}")
    try:
        return ports.free_port(int(text))
    except ConfigError as error:
        raise ConfigError(f"{variable}: {error.message}", hint=error.hint) from None


class Stack:
    """The servers of one stack. Start them by name or by :mod:`devstack.commands`."""

    def __init__(self, settings: Settings, handles: Mapping[str, Handle] | None = None) -> None:
        self.settings = settings
        self.folder = Path(settings.folder)
        self.supervisor: Handle | None = (handles or {}).get("supervisor")
        self.servers: dict[str, Server] = {}
        self.servers = self._servers()
        for name, handle in (handles or {}).items():
            if name in self.servers:
                self.servers[name].handle = handle

    def _servers(self) -> dict[str, Server]:
        s, folder = self.settings, self.folder
        database: type[MySQLServer] = MariaDBServer if s.mariadb else MySQLServer

        def mysql(name: str, server_id: int) -> MySQLServer:
            root = s.passwords["root"]
            numbers = {"auto_increment_increment": 2, "auto_increment_offset": server_id} if s.channel else {}
            return database(
                folder / name, name=name, port=s.ports[name], server_id=server_id, root_password=root, options=numbers
            )

        other = self.other
        others = {self.settings.kind: other} if isinstance(other, Server) else {}
        servers: dict[str, Server] = {
            **({SOURCE_POSTGRESQL: self._postgresql()} if s.postgresql else {SOURCE: mysql(SOURCE, 1)}),
            TARGET: mysql(TARGET, 2),
            **others,
            ZOOKEEPER: ZooKeeperServer(folder / ZOOKEEPER, ZOOKEEPER, port=s.ports[ZOOKEEPER]),
            SPARK: SparkConnectServer(
                folder / SPARK,
                SPARK,
                port=s.ports[SPARK],
                env=self.environment(),
                conf=self.kind.spark_settings() if self.kind else {},
            ),
            SUBSCRIPTIONS: SubscriptionService(
                folder / SUBSCRIPTIONS,
                port=s.ports[SUBSCRIPTIONS],
                http_port=s.ports["subscriptions-http"],
                env=self.environment(),
            ),
        }
        env = self.airflow_environment()
        for kind in airflow.COMPONENTS:
            name = f"airflow-{kind}"
            servers[name] = AirflowComponent(self.airflow_home, name, kind=kind, port=s.ports["airflow"], env=env)
        return servers

    def _postgresql(self) -> PostgreSQLServer:
        s = self.settings
        return PostgreSQLServer(
            self.folder / SOURCE_POSTGRESQL,
            SOURCE_POSTGRESQL,
            port=s.ports[SOURCE],
            password=s.passwords["root"],
            options={"wal_level": "logical", "max_slot_wal_keep_size": "2GB"},
        )

    # -- parts -----------------------------------------------------------------------------------------------------
    @property
    def databases(self) -> list[str]:
        """The names of the source and of the target among the servers."""
        return [SOURCE_POSTGRESQL if self.settings.postgresql else SOURCE, TARGET]

    @property
    def source(self) -> MySQLServer:
        """The server whose log the pipeline reads, unless that is a PostgreSQL."""
        server = self.servers[SOURCE]
        assert isinstance(server, MySQLServer)
        return server

    @property
    def target(self) -> MySQLServer:
        """The server that the pipeline loads into; in a channel the other site."""
        server = self.servers[TARGET]
        assert isinstance(server, MySQLServer)
        return server

    @property
    def subscriptions(self) -> SubscriptionService:
        """The subscription service."""
        server = self.servers[SUBSCRIPTIONS]
        assert isinstance(server, SubscriptionService)
        return server

    @property
    def target_schema(self) -> str:
        """The schema of the shop at the target: two sites have it under one name."""
        return SOURCE_SCHEMA if self.settings.channel else TARGET_SCHEMA

    @property
    def kind(self) -> Kind | None:
        """The kind of the second target, if there is one."""
        return KINDS.get(self.settings.kind)

    @property
    def other(self) -> Server | Path | None:
        """The second target: its server, or the folder of a kind that keeps files."""
        if self.kind is None:
            return None
        made = self.servers.get(self.kind.name) or self.kind.server(
            self.folder, self.settings.ports, self.settings.passwords["root"]
        )
        return made or self.folder / self.kind.name

    @property
    def airflow_home(self) -> Path:
        """The folder of Airflow's configuration, database and logs."""
        return self.folder / "airflow"

    @property
    def api(self) -> AirflowApi:
        """The REST API of the stack's Airflow, with the administrator's password."""
        return AirflowApi(self.settings.ports["airflow"], self.settings.keys["admin_password"])

    def components(self) -> list[AirflowComponent]:
        """Return the Airflow components among the servers."""
        return [server for server in self.servers.values() if isinstance(server, AirflowComponent)]

    # -- environment -----------------------------------------------------------------------------------------------
    def connections(self) -> dict[str, str]:
        """Return connection id -> Airflow's JSON notation; users have no more than the rights they need."""
        s = self.settings

        def mysql(name: str, login: str, schema: str) -> str:
            return json.dumps({
                "conn_type": "mysql", "host": ports.LOOPBACK, "port": s.ports[name], "login": login,
                "password": s.passwords[login], "schema": schema,
            })  # fmt: skip

        databases = {
            "shop_mysql": mysql(SOURCE, "sluice", SOURCE_SCHEMA),
            "reporting_mysql": mysql(TARGET, "sluice_load", TARGET_SCHEMA),
        }
        if s.postgresql:
            source = {"host": ports.LOOPBACK, "port": s.ports[SOURCE], "login": "sluice", "schema": SOURCE_SCHEMA}
            made = {"conn_type": "postgres", **source, "password": s.passwords["sluice"]}
            databases = {"shop_postgresql": json.dumps(made), "reporting_mysql": databases["reporting_mysql"]}
        if s.channel:
            databases = {
                "a_mysql": mysql(SOURCE, "sluice", SOURCE_SCHEMA),
                "b_mysql": mysql(TARGET, "sluice", SOURCE_SCHEMA),
            }
        return {
            **databases,
            **({self.kind.connection_id: self.kind.connection(self.other)} if self.kind else {}),
            "zookeeper_default": _json("zookeeper", s.ports[ZOOKEEPER]),
            "spark_connect_default": _json("spark_connect", s.ports[SPARK]),
            "spark_default": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        }

    def environment(self) -> dict[str, str]:
        """Return variables that let any shell, task or Spark worker find the stack's servers and the store."""
        s = self.settings
        found = {f"AIRFLOW_CONN_{name.upper()}": value for name, value in self.connections().items()}
        store = {
            "SLUICE_STORE": (self.folder / "store").as_uri(),
            "SLUICE_PIPELINES": s.pipelines,
            "SLUICE_RULES": s.rules,
        }
        if s.channel:
            store["SLUICE_CHANNELS"] = str(self.folder / "channels")
        return {**found, **store}

    def airflow_environment(self) -> dict[str, str]:
        """Return the variables for Airflow's processes. They hold passwords."""
        s = self.settings
        return airflow.environment(
            self.airflow_home,
            port=s.ports["airflow"],
            keys=s.keys,
            connections=self.connections(),
            extra={**self.environment(), "SLUICE_EDIT_PIPELINES": "1"},
        )

    # -- preparation -----------------------------------------------------------------------------------------------
    def create_users(self) -> None:
        """Create the pipeline's two users: one reads the log and the shop, one writes the reporting schema.

        In a channel one user does both, at both sites.
        """
        if self.settings.channel:
            for server in (self.source, self.target):
                self._create_user(server, "sluice", (*rights.SOURCE, *rights.TARGET), SOURCE_SCHEMA)
            return
        if not self.settings.postgresql:
            self._create_user(self.source, "sluice", rights.SOURCE, SOURCE_SCHEMA)
        self._create_user(self.target, "sluice_load", rights.TARGET, TARGET_SCHEMA)

    def _create_user(self, server: MySQLServer, name: str, listed: Sequence[Right], schema: str) -> None:
        account, dialect = rights.account(name, "127.0.0.1"), MARIADB if self.settings.mariadb else MYSQL
        schemas = dict.fromkeys((Scope.CAPTURED, Scope.TABLES, Scope.CHECKPOINTS), schema)
        server.execute(
            f"CREATE USER IF NOT EXISTS {account} IDENTIFIED BY '{self.settings.passwords[name]}'",
            *rights.grants(listed, account, schemas, dialect),
        )

    # -- life ------------------------------------------------------------------------------------------------------
    def dead(self) -> list[str]:
        """Return the names of the servers that do not run."""
        return [name for name, server in self.servers.items() if not server.running]

    def handles(self) -> dict[str, Handle]:
        """Return the handles of all started processes by name, the supervisor's too."""
        found = {name: server.handle for name, server in self.servers.items() if server.handle is not None}
        return found | ({"supervisor": self.supervisor} if self.supervisor else {})

    def stop(self) -> None:
        """Stop the supervisor first, then Airflow, Spark and the subscription service (which use the rest), then the
        rest.
        """
        if self.supervisor is not None:
            processes.end_alone(self.supervisor)
            self.supervisor = None
        users = [
            server.handle
            for name, server in self.servers.items()
            if name.startswith(("airflow", SPARK, SUBSCRIPTIONS)) and server.handle
        ]
        processes.stop(users, grace_s=4.0)
        with ThreadPoolExecutor(max_workers=4) as pool:
            list(pool.map(lambda server: server.stop(), self.servers.values()))

    # -- state file ------------------------------------------------------------------------------------------------
    def save(self) -> None:
        """Write the state file (mode 0600), atomically."""
        data = {
            "version": 1,
            "settings": asdict(self.settings),
            "handles": {name: handle.to_json() for name, handle in self.handles().items()},
            "environment": self.environment(),
        }
        path = paths.stack_file(self.folder)
        partial = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(data, file, indent=1)
        partial.replace(path)

    @classmethod
    def load(cls, folder: Path) -> Stack | None:
        """Load the stack of that folder's state file; None when there is none (or none that this version can read)."""
        try:
            data: dict[str, Any] = json.loads(paths.stack_file(folder).read_text(encoding="utf-8"))
            handles = {name: Handle.from_json(value) for name, value in data["handles"].items()}
            return cls(Settings(**data["settings"]), handles)
        except (OSError, ValueError, KeyError, TypeError):
            return None


def _json(kind: str, port: int) -> str:
    return json.dumps({"conn_type": kind, "host": ports.LOOPBACK, "port": port})


def require_machine(folder: Path, needed_gb: float = 3.0) -> None:
    """Check for Java, room on the disk, and a loopback that works. Raises ConfigError with one clear line."""
    paths.java()
    folder.mkdir(parents=True, exist_ok=True)
    free_gb = shutil.disk_usage(folder).free / 1e9
    if free_gb < needed_gb:
        raise ConfigError(
            f"only {free_gb:.1f} GB are free on the disk of {folder}; the stack needs {needed_gb:.0f} GB",
            hint="make room, or set SLUICE_HOME to a folder on another disk",
        )
    try:
        with socket.socket() as probe:
            probe.bind((ports.LOOPBACK, 0))
    except OSError as error:
        raise ConfigError(f"cannot listen on {ports.LOOPBACK}: {error}") from error


def find_database(say: Callable[[str], None]) -> Distribution:
    """Return MySQL, fetched if need be; MariaDB as the last resort, with a message."""
    from sluice.errors import SluiceError

    try:
        return find_mysql()
    except SluiceError as error:
        say(f"no MySQL to be had ({error.message}); using MariaDB as the last resort")
        return find_mariadb()


def lock_file(folder: Path) -> Path:
    """Return the file that is locked while a stack is started, stopped or repaired."""
    return folder.parent / f".{folder.name}.lock"


locked = debian.lock
