"""A real Airflow for tests: every component a process of its own.

Test files share one, each with pipelines of its own.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

from devstack import ports
from devstack.airflow import COMPONENTS, AirflowApi, AirflowComponent, environment, new_secrets, prepare_home
from sluice.config.loading import load_pipeline
from sluice.errors import ConfigError, RetryableError
from tests.support.pipelines.case import HIDDEN
from tests.support.running.waiting import Patience


def pause(api: AirflowApi, dag: str, paused: bool = True) -> None:
    """The switch of a DAG. With SQLite Airflow may answer that its database is locked: a person presses it again."""
    asked = {"is_paused": paused}
    path = f"/dags/{dag}"
    wait_until(lambda: (api.call("PATCH", path, asked) or {}).get("is_paused") is paused, f"the switch of {dag}", 60.0)


class Keeper:
    """Starts a component again that ended by itself, as ``sluice up``, systemd or Kubernetes do.

    Airflow 3.3's scheduler may: where a task is cleared in the instant in which it ends, its update meets a row that
    has got another id, and ``StaleDataError`` or ``IntegrityError`` ends the process (on SQLite, which locks no rows).
    """

    def __init__(self, components: Mapping[str, AirflowComponent]) -> None:
        self._components = components
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="keeper", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(1.0):
            for kind, component in self._components.items():
                if not component.running:
                    print(f"Airflow's {kind} ended by itself and is started again; see {component.log}")
                    component.stop(grace_s=2.0)  # what it left behind
                    component.start(wait=False)

    def stop(self) -> None:
        """From now on what ends stays down."""
        self._over.set()
        self._thread.join()


@dataclass
class TestAirflow:
    """``folder``: its home and logs. ``components``: kind -> process."""

    __test__ = False

    folder: Path
    port: int
    password: str
    components: dict[str, AirflowComponent]
    keeper: Keeper
    dead: bool = False

    def die(self) -> None:
        """``kill -9`` to everything, as when a machine loses its power."""
        self.keeper.stop()
        self.dead = True
        for component in self.components.values():
            component.kill()

    def restart(self, meanwhile: Callable[[], None]) -> None:
        """Stop all components in an orderly way, call ``meanwhile``, and start them again on the same home."""
        self.keeper.stop()
        for component in reversed(self.components.values()):
            component.stop()
        meanwhile()
        _start(self.components)
        self.keeper = Keeper(self.components)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def password_of(self, user: str) -> str:
        """The password that Airflow made for a user of its simple auth manager."""
        return str(json.loads((self.folder / "home" / "passwords.json").read_text())[user])

    @cached_property
    def api(self) -> AirflowApi:
        return AirflowApi(self.port, self.password)

    def runs(self, dag_id: str, **filters: str) -> list[dict[str, Any]]:
        """Newest first, at most 100."""
        query = "&".join([f"{key}={value}" for key, value in filters.items()] + ["order_by=-id", "limit=100"])
        found: list[dict[str, Any]] = self.api.call("GET", f"/dags/{dag_id}/dagRuns?{query}")["dag_runs"]
        return found

    def tasks(self, dag_id: str, run_id: str = "~") -> list[dict[str, Any]]:
        answer = self.api.call("GET", f"/dags/{dag_id}/dagRuns/{quote(run_id, safe='~')}/taskInstances?limit=1000")
        found: list[dict[str, Any]] = answer["task_instances"]
        return found

    def page(self, pipeline: str = "case") -> dict[str, Any]:
        """What the Sluice page knows of a pipeline."""
        api = self.api
        api.call("GET", "/dags?limit=1")  # logs in
        found: dict[str, Any] = api._send("GET", f"/sluice/api/status/{pipeline}", None, 20.0)
        return found

    def connect(self, connection_id: str, notation: str) -> None:
        """Store a connection in Airflow's database, as a person does; ``notation``: Airflow's JSON.

        One that is there is replaced.
        """
        body = {"connection_id": connection_id, **json.loads(notation)}
        if isinstance(body.get("extra"), dict):
            body["extra"] = json.dumps(body["extra"])

        def stored() -> bool:
            self.api.call("DELETE", f"/connections/{connection_id}")
            return self.api.call("POST", "/connections", body) is not None

        wait_until(stored, f"the connection {connection_id}")

    def pause(self, dag: str, paused: bool = True) -> None:
        """See :func:`pause`."""
        pause(self.api, dag, paused)

    def retire(self, prefixes: tuple[str, ...] = ("sync__", "catchup__", "backfill__")) -> None:
        """End all that runs, and start nothing more: who comes next has other pipelines."""
        for dag in [one["dag_id"] for one in self.api.call("GET", "/dags?limit=100")["dags"]]:
            if dag.startswith(prefixes):
                self.pause(dag)
                for run in self.runs(dag, state="running") + self.runs(dag, state="queued"):
                    with contextlib.suppress(RetryableError):  # it ended by itself
                        path = f"/dags/{dag}/dagRuns/{quote(run['dag_run_id'], safe='')}"
                        self.api.call("PATCH", path, {"state": "failed"})

    def log(self, dag_id: str, run_id: str, task: str, attempt: int = 1, map_index: int = -1) -> str:
        """What a person reads in a task's log, as JSON."""
        path = (
            f"/dags/{dag_id}/dagRuns/{quote(run_id, safe='')}/taskInstances/{task}/logs/{attempt}?map_index={map_index}"
        )
        return json.dumps(self.api.call("GET", path), ensure_ascii=False)

    def trigger(self, dag_id: str, conf: Mapping[str, Any]) -> str:
        """Start a run as a person would, who presses again when Airflow's database is busy (SQLite); returns its id."""
        run = f"by_a_test__{uuid.uuid4().hex}"
        for pause_s in (0.5, 1.0, 2.0, 4.0, None):
            try:
                body = {"dag_run_id": run, "conf": dict(conf), "logical_date": None}
                self.api.call("POST", f"/dags/{dag_id}/dagRuns", body)
            except RetryableError as error:
                if "answered 409" in str(error):  # the answer before was wrong: it is there
                    break
                if "answered 5" not in str(error) or pause_s is None:
                    raise
                time.sleep(pause_s)
            else:
                break
        return run

    def wait_for_run(self, dag_id: str, run_id: str, patience_s: float = 300) -> str:
        """The state in which the run ended."""
        state = ""

        def ended() -> bool:
            nonlocal state
            state = self.api.call("GET", f"/dags/{dag_id}/dagRuns/{quote(run_id, safe='')}")["state"]
            return state in {"success", "failed"}

        wait_until(ended, f"end of {dag_id} {run_id}", patience_s)
        return state


@contextlib.contextmanager
def airflow(
    folder: Path,
    pipelines: Path,
    connections: Mapping[str, str],
    extra: Mapping[str, str] | None = None,
    of_api: Mapping[str, str] | None = None,
) -> Iterator[TestAirflow]:
    """Started and healthy; ended with everything that it started.

    ``extra``: more variables, also Airflow's settings; ``of_api``: those of the API server alone."""
    home = folder / "home"
    home.mkdir(parents=True)
    port, keys = ports.free_port(), new_secrets()
    env = environment(
        home, port=port, keys=keys, connections=connections, extra={"SLUICE_PIPELINES": str(pipelines), **(extra or {})}
    )
    prepare_home(home, keys, env)
    own = {"api-server": {**env, **(of_api or {})}}
    components = {kind: AirflowComponent(folder, kind=kind, port=port, env=own.get(kind, env)) for kind in COMPONENTS}
    try:
        _start(components)
        started = TestAirflow(folder, port, keys["admin_password"], components, Keeper(components))
        try:
            yield started
        finally:
            started.keeper.stop()
    finally:
        for component in reversed(components.values()):
            component.kill()  # nobody reads its home again; an orderly end takes it half a minute


class Gauges:
    """A StatsD server: the last value of every gauge that it was sent, and how often one came."""

    def __init__(self) -> None:
        self.last: dict[str, float] = {}
        self.count: Counter[str] = Counter()
        self._over = threading.Event()
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.settimeout(0.2)
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._listen, name="gauges", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while not self._over.is_set():
            with contextlib.suppress(TimeoutError):
                for line in self._socket.recv(65536).decode().splitlines():
                    name, _, rest = line.partition(":")
                    value, _, kind = rest.partition("|")
                    if kind.startswith("g"):
                        self.last[name] = float(value)
                        self.count[name] += 1

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self._socket.close()


BEATS = {"AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "1"}
JUDGES = {"AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "20"}
"""Of the API server alone: it says after twenty seconds that a scheduler is gone, the default is thirty.

A busy machine is no dead scheduler.
"""


class SharedAirflow:
    """The Airflow of all test files that do not stop one: started when the first asks, stopped when the next test needs
    none.

    Attributes:
        folder: its pipelines, with ``rules`` inside; the folder of each file's
            :class:`~tests.support.pipelines.case.Case`.
        gauges: what it says of its pipelines.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.folder = folder / "pipelines"
        (self.folder / "rules").mkdir(parents=True)
        self._stack = contextlib.ExitStack()
        self._started: TestAirflow | None = None
        self._homes = 0
        self.gauges = Gauges()

    def started(self) -> TestAirflow:
        """Running; a new one if the last was killed."""
        if self._started is None or self._started.dead:
            self.stop()
            self._homes += 1
            settings = {
                "SLUICE_INSTALLATION": "east",
                "SLUICE_EDIT_PIPELINES": "1",
                "SLUICE_RULES": str(self.folder / "rules"),
                "AIRFLOW__METRICS__STATSD_ON": "True",
                "AIRFLOW__METRICS__STATSD_PORT": str(self.gauges.port),
                "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin,reader:viewer,clerk:user,keeper:op",
                **BEATS,
            }
            home = self._folder / f"airflow-{self._homes}"
            self._started = self._stack.enter_context(airflow(home, self.folder, {}, settings, JUDGES))
        return self._started

    @contextlib.contextmanager
    def running(self, connections: Mapping[str, str], *dags: str) -> Iterator[TestAirflow]:
        """The pipelines of one test file, which stand in :attr:`folder`, until ``dags`` are there; after it they are
        gone.
        """
        with self._hidden():  # the first run of a pipeline needs its connections
            started = self.started()
            for name, notation in connections.items():
                started.connect(name, notation)
        mine = set()
        for path in self.folder.glob("*.yaml"):
            with contextlib.suppress(ConfigError):  # wrong on purpose
                mine.add(load_pipeline(path).pipeline)
        try:
            for dag in (*dags, "sluice_control"):
                started.api.wait_for_dag(dag, 300)
            wait_until(lambda: mine <= _choices(started), "the form of sluice_control for these pipelines", 300)
            yield started
        finally:
            if not started.dead:
                started.retire()
            for path in self.folder.glob("*.yaml"):
                path.unlink()

    @contextlib.contextmanager
    def _hidden(self) -> Iterator[None]:
        """Pipeline files under names that Airflow does not read, for the block."""
        for path in self.folder.glob("*.yaml"):
            path.rename(path.with_suffix(HIDDEN))
        yield
        for path in self.folder.glob(f"*{HIDDEN}"):
            path.rename(path.with_suffix(".yaml"))

    def stop(self) -> None:
        """Of all that it started, nothing runs any more."""
        self._started = None
        self._stack.close()

    def close(self) -> None:
        self.stop()
        self.gauges.close()


def _choices(started: TestAirflow) -> set[str]:
    details = started.api.call("GET", "/dags/sluice_control/details")
    return set(details["params"]["pipeline"]["schema"].get("enum") or ())


def _start(components: Mapping[str, AirflowComponent]) -> None:
    for component in components.values():
        component.start(wait=False)
    for component in components.values():
        component.wait(300)  # a busy machine


def wait_until(condition: Callable[[], Any], what: str, patience_s: float = 300.0) -> None:
    """Airflow's API may be away for a moment."""
    patience = Patience(patience_s)
    last: object = None
    pause_s = 0.05
    while not patience.is_over:
        try:
            if condition():
                return
        except RetryableError as error:
            last = error
        time.sleep(pause_s)
        pause_s = min(0.5, 1.3 * pause_s)  # each look takes the processor from what is waited for
    raise AssertionError(f"{what} did not happen within {patience_s:.0f} s ({last})")
