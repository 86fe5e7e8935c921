"""A real Airflow for development: API server, scheduler, DAG processor and triggerer, each a process of its own.

Not ``airflow standalone``: its children go on when it is ended. Nothing here imports Airflow. The settings
are those of a low-latency deployment on one machine; each line below that departs from a default says why.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import secrets
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from devstack import debian, paths, ports
from devstack.processes import ServerFailed
from devstack.server import Server
from sluice.config.connections import httpx_tls
from sluice.errors import RetryableError

COMPONENTS = ("api-server", "scheduler", "triggerer", "dag-processor")

_PRELOAD = '''\
"""Imported by every Airflow process. The scheduler forks the task processes, so what it has imported they get for free; the DAG processor forks one
for each file that it parses."""

import contextlib
import importlib
import sys

if "dag-processor" in sys.argv:
    for name in (
        "sluice.orchestration.dags.sync",
        "sluice.orchestration.dags.backfill",
        "sluice.orchestration.dags.verify",
        "sluice.orchestration.dags.control",
        "sluice.orchestration.dags.retention",
        "sluice.config.connections",
        "sluice.flows.dump.table_list",
    ):
        with contextlib.suppress(Exception):
            importlib.import_module(name)
if "scheduler" in sys.argv:
    for name in (
        "airflow.sdk.execution_time.supervisor",
        "airflow.sdk.execution_time.task_runner",
        "airflow.dag_processing.dagbag",
        "airflow.providers.standard.operators.python",
        "airflow.providers.apache.spark.hooks.spark_submit",
        "pandas",
        "pyarrow.parquet",
        "pyarrow.compute",
        "numba",
        "pymysql",
        "kazoo.client",
        "pymysqlreplication",
        "ruamel.yaml",
        "grpc",
        "pyspark.sql.connect.session",
        "pyspark.sql.connect.dataframe",
        "pyspark.sql.connect.functions",
        "sluice.orchestration.dags.sync",
        "sluice.orchestration.connections",
        "sluice.flows.capture.drain",
        "sluice.flows.job",
        "sluice.flows.transform.merge",
        "sluice.flows.load.load",
        "sluice.flows.load.isolation",
        "sluice.flows.load.ack",
        "sluice.operations.status",
        "sluice.operations.alerts",
        "sluice.orchestration.metrics",
        "sluice.sources.mysql.source",
        "sluice.targets.mysql.target",
        "sluice.segments.store",
        "sluice.segments.writer",
        "sluice.segments.reader",
        "sluice.coordination.zookeeper",
        "sluice.spark.connect",
        "sluice.spark.local",
    ):
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    with contextlib.suppress(Exception):
        importlib.import_module("sluice.sources.mysql.reader.warm_up").compile_kernels()  # else each drain reads the kernels from disk, 0.2 s
'''  # noqa: E501


def new_secrets() -> dict[str, str]:
    """Return new keys that all processes of one Airflow share, and the password of its user ``admin``."""
    import base64

    return {
        "fernet_key": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        "jwt_secret": secrets.token_urlsafe(64),
        "api_secret": secrets.token_urlsafe(32),
        "admin_password": secrets.token_urlsafe(9),
    }


def environment(
    home: Path, *, port: int, keys: Mapping[str, str], connections: Mapping[str, str], extra: Mapping[str, str]
) -> dict[str, str]:
    """Return the settings of one Airflow as environment variables.

    Args:
        home: AIRFLOW_HOME.
        port: of the API server and UI.
        keys: of :func:`new_secrets`.
        connections: connection id -> Airflow's JSON notation.
        extra: more variables, e.g. SLUICE_STORE.
    """
    root = paths.repo_root()
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AIRFLOW", "SPARK_", "PYSPARK_", "_AIRFLOW"))
    }
    python_path = [str(root / "include"), str(root), *filter(None, [kept.get("PYTHONPATH")])]
    no_proxy = ",".join(dict.fromkeys([*filter(None, kept.get("NO_PROXY", "").split(",")), "127.0.0.1", "localhost"]))
    settings = {
        "CORE__DAGS_FOLDER": root / "dags",
        "CORE__PLUGINS_FOLDER": root / "plugins",
        "CORE__LOAD_EXAMPLES": False,
        "CORE__EXECUTOR": "LocalExecutor",
        "CORE__PARALLELISM": 8,  # forked workers are kept; 32 of them only take memory
        "CORE__DAGS_ARE_PAUSED_AT_CREATION": False,  # a pipeline file that is put into the folder runs
        "CORE__AUTH_MANAGER": "airflow.api_fastapi.auth.managers.simple.simple_auth_manager.SimpleAuthManager",
        "CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin",
        "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": home / "passwords.json",
        "CORE__FERNET_KEY": keys["fernet_key"],
        "CORE__EXECUTION_API_SERVER_URL": f"http://{ports.LOOPBACK}:{port}/execution/",
        "CORE__HOSTNAME_CALLABLE": "socket.gethostname",  # no look-up in the network
        "CORE__MIN_SERIALIZED_DAG_UPDATE_INTERVAL": 2,
        "API__HOST": ports.LOOPBACK,
        "API__PORT": port,
        "API__BASE_URL": f"http://{ports.LOOPBACK}:{port}",
        "API__SECRET_KEY": keys["api_secret"],
        "API__WORKERS": 1,
        "API_AUTH__JWT_SECRET": keys["jwt_secret"],
        # not more than SQLite's five seconds for the turns of other writers: the API server writes its audit log in the
        # event loop, and where another request holds the lock and waits for that loop, it is still for so long
        "DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}",
        "SCHEDULER__MAX_DAGRUNS_PER_LOOP_TO_SCHEDULE": 200,  # continuous pipelines keep a run open; backfills come last
        "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": 0.2,
        # the default of 1 s is added to every step of every run; 0.05 takes a quarter of a core
        # a scheduler that was killed takes its tasks with it; by default that is noticed after five minutes
        "SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": 15,
        "SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": 10,
        "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": 30,
        "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": 5,
        "WORKERS__MIN_HEARTBEAT_INTERVAL": 1,
        # also how long a supervisor may sleep after its task has ended; default 5
        "DAG_PROCESSOR__REFRESH_INTERVAL": 5,  # the default of 5 minutes hides a new file that long
        "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": 5,
        "DAG_PROCESSOR__PARSING_PROCESSES": 1,
        "LOGGING__BASE_LOG_FOLDER": home / "logs",
        "LOGGING__DAG_PROCESSOR_CHILD_PROCESS_LOG_DIRECTORY": home / "logs" / "dag_processor",
        "LOGGING__LOGGING_LEVEL": "INFO",
        "LOGGING__FAB_LOGGING_LEVEL": "WARNING",
        "USAGE_DATA_COLLECTION__ENABLED": False,
        "METRICS__STATSD_ON": False,
    }
    own_api = {
        "conn_type": "http",
        "host": ports.LOOPBACK,
        "port": port,
        "login": "admin",
        "password": keys["admin_password"],
    }
    connections = {
        "sluice_airflow_api": json.dumps(own_api),
        **connections,
    }  # the retention DAG removes old runs with it
    return {
        **kept,
        "AIRFLOW_HOME": str(home),
        **{f"AIRFLOW__{name}": str(value) for name, value in settings.items()},
        **{f"AIRFLOW_CONN_{name.upper()}": value for name, value in connections.items()},
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(path for part in python_path for path in part.split(os.pathsep))),
        "PYSPARK_PYTHON": sys.executable,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", "")]),
        "NO_PROXY": no_proxy,
        "no_proxy": no_proxy,
        "PYTHONUNBUFFERED": "1",
        "SCARF_NO_ANALYTICS": "true",
        **extra,
    }


def prepare_home(home: Path, keys: Mapping[str, str], env: Mapping[str, str]) -> None:
    """Write what Airflow finds in its home: the preload module, the password file, the database (from a template)."""
    (home / "config").mkdir(parents=True, exist_ok=True)
    (home / "config" / "airflow_local_settings.py").write_text(_PRELOAD, encoding="utf-8")
    passwords = home / "passwords.json"
    descriptor = os.open(passwords, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump({"admin": keys["admin_password"]}, file)
    if not (home / "airflow.db").exists():
        shutil.copyfile(_database_template(env), home / "airflow.db")


def _database_template(env: Mapping[str, str]) -> Path:
    """Return a migrated, empty SQLite database of this Airflow version; it is created once."""
    from devstack.mysql import run_setup

    version = importlib.metadata.version("apache-airflow")
    template = paths.home() / "templates" / f"airflow-{version}.db"
    with debian.lock(template.parent / f".{template.name}.lock"):
        if not template.exists():
            with tempfile.TemporaryDirectory(prefix=".airflow-", dir=template.parent) as scratch:
                database = Path(scratch) / "airflow.db"
                settings = {
                    **env,
                    "AIRFLOW_HOME": scratch,
                    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{database}",
                    "AIRFLOW__LOGGING__BASE_LOG_FOLDER": f"{scratch}/logs",
                }
                argv = [sys.executable, "-m", "airflow", "db", "migrate"]
                run_setup(argv, "making Airflow's database", env=settings)
                with contextlib.closing(sqlite3.connect(database)) as connection:
                    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                database.rename(template)
    return template


@dataclass
class AirflowComponent(Server):
    """One of :data:`COMPONENTS`; ``env`` is :func:`environment`'s."""

    kind: str = "scheduler"
    port: int = 0  # of the API server; the others talk to it
    env: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def log(self) -> Path:
        """The file of what this component prints, in Airflow's home."""
        return self.folder / f"airflow-{self.kind}.log"

    def start(self, timeout_s: float = 120.0, *, wait: bool = True) -> AirflowComponent:
        """Start the component unless it runs. With ``wait`` return when Airflow reports it healthy.

        Raises ServerFailed with the end of its log.
        """
        if self.running:
            return self
        argv: list[str | os.PathLike[str]] = [sys.executable, "-m", "airflow", self.kind]
        if self.kind == "api-server":
            workers = self.env.get("AIRFLOW__API__WORKERS", "1")
            argv += ["--host", ports.LOOPBACK, "--port", str(self.port), "--workers", workers]
        elif self.kind in {"scheduler", "triggerer"}:
            argv += ["--skip-serve-logs"]  # the API server reads the files themselves
        self._spawn(argv, self.env)
        if wait:
            self.wait(timeout_s)
        return self

    def wait(self, timeout_s: float = 120.0) -> None:
        """Wait until the API server reports this component healthy. Raises ServerFailed with the end of its log."""
        word = {"api-server": "metadatabase"}.get(self.kind, self.kind.replace("-", "_"))
        self._wait_ready(lambda: health(self.port).get(word) == "healthy", timeout_s, poll_s=0.3)


def health(port: int) -> dict[str, str]:
    """Return component -> healthy or not, as the API server says; empty while it does not answer."""
    with contextlib.suppress(httpx.HTTPError, ValueError):
        url = f"http://{ports.LOOPBACK}:{port}/api/v2/monitor/health"
        answer = httpx.get(url, timeout=5, trust_env=False, verify=httpx_tls())
        if answer.is_success:
            return {name: str((part or {}).get("status")) for name, part in answer.json().items()}
    return {}


_LOOKS = 5
"""How often a question is asked again after an error of the server itself."""


class _Failed(RetryableError):
    """An error of the server itself."""


@dataclass
class AirflowApi:
    """The REST API, as much of it as the stack and its tests need."""

    port: int
    password: str = field(repr=False)
    _token: str = field(default="", repr=False)

    @property
    def address(self) -> str:
        """The base URL, without a path."""
        return f"http://{ports.LOOPBACK}:{self.port}"

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None, timeout_s: float = 20.0) -> Any:
        """Return the JSON of the answer; None for 404. Raises RetryableError for what is refused or unreachable."""
        if not self._token:
            self._token = self._send(
                "POST", "/auth/token", {"username": "admin", "password": self.password}, timeout_s
            )["access_token"]
        for _ in range(_LOOKS if method == "GET" else 0):
            with contextlib.suppress(_Failed):  # with SQLite it answers 500 while another process writes
                return self._send(method, f"/api/v2{path}", body, timeout_s)
            time.sleep(0.5)
        return self._send(method, f"/api/v2{path}", body, timeout_s)

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float) -> Any:
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        try:
            answer = httpx.request(
                method,
                f"{self.address}{path}",
                json=body,
                headers=headers,
                timeout=timeout_s,
                trust_env=False,
                verify=httpx_tls(),
            )
        except httpx.HTTPError as error:
            raise RetryableError(f"Airflow does not answer: {error}", where=self.address) from None
        if answer.status_code == 404:
            return None
        if answer.is_error:
            failed = _Failed if answer.is_server_error else RetryableError
            raise failed(f"Airflow answered {answer.status_code} to {method} {path}: {answer.text[:400]}")
        return answer.json() if answer.content else {}

    def wait_for_dag(self, dag_id: str, timeout_s: float = 120.0) -> None:
        """Wait until the DAG is there, parsed without error. Raises ServerFailed with the import errors there are."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            with contextlib.suppress(RetryableError):
                if self.call("GET", f"/dags/{dag_id}") is not None:
                    return
            time.sleep(0.3)
        errors = self.call("GET", "/importErrors") or {}
        lines = "\n".join(
            f"    {item.get('filename')}: {str(item.get('stack_trace', '')).strip().splitlines()[-1:]}"
            for item in errors.get("import_errors", [])
        )
        raise ServerFailed(f"the DAG {dag_id} did not appear within {timeout_s:.0f} s\n{lines}".rstrip())
